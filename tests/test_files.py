import pytest

from transnet.errors import FileError
from transnet.runs.files import LONGEST_JSON, read_json


def test_json_that_is_missing_too_long_too_deep_or_no_object_is_refused(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(FileError, match="does not exist; give one"):
        read_json(path, "give one")
    path.write_text("[" * 100_000)
    with pytest.raises(FileError, match="cannot be read"):
        read_json(path, "")
    path.write_text("[1]")
    with pytest.raises(FileError, match="no JSON object"):
        read_json(path, "")
    with open(path, "wb") as file:
        file.truncate(LONGEST_JSON + 1)
    with pytest.raises(FileError, match="bytes; at most"):
        read_json(path, "")
