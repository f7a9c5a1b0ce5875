"""Downloads: verified before use, complete or absent, with a clear error without a network."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from transnet.data.catalog import fetch, fetch_folder
from transnet.errors import DataError

CONTENT = b"pixels" * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "archive.bin").write_bytes(CONTENT)
    handler = partial(Quiet, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_file_is_downloaded_once(server: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    path = fetch(f"{server}/archive.bin", (MD5,), folder, progress=False)
    assert path.read_bytes() == CONTENT
    assert left_in(folder) == {"archive.bin"}
    (tmp_path / "www" / "archive.bin").unlink()
    assert fetch(f"{server}/archive.bin", (MD5,), folder, progress=False) == path


def test_changed_download_is_not_kept(server: str, tmp_path: Path) -> None:
    (tmp_path / "www" / "archive.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="cut short or changed"):
        fetch(f"{server}/archive.bin", (MD5,), tmp_path / "data", progress=False)
    assert left_in(tmp_path / "data") == set()


def test_wrong_file_is_refused_but_not_deleted(server: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "archive.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match=f"expected is {MD5}; delete it"):
        fetch(f"{server}/archive.bin", (MD5,), tmp_path / "data", progress=False)
    assert (tmp_path / "data" / "archive.bin").read_bytes() == b"something else"


@pytest.mark.parametrize("where", ["/gone.bin", None])
def test_failed_download_names_the_file_and_its_folder(server: str, tmp_path: Path, where: str | None) -> None:
    url = f"{server}{where}" if where else "http://127.0.0.1:9/gone.bin"
    with pytest.raises(DataError) as caught:
        fetch(url, (MD5,), tmp_path / "data", progress=False)
    for part in ("gone.bin", MD5, str(tmp_path / "data"), "TRANSNET_DATA"):
        assert part in str(caught.value)
    assert left_in(tmp_path / "data") == set()


def archive(path: Path, names: dict[str, bytes]) -> tuple[str]:
    """Write an archive and return its md5."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return (hashlib.md5(path.read_bytes()).hexdigest(),)


def unpack(folder: Path, md5: tuple[str]) -> Path:
    return fetch_folder("http://127.0.0.1:9/a.tgz", md5, "pets", folder, progress=False)


def test_archive_is_unpacked_once(tmp_path: Path) -> None:
    md5 = archive(tmp_path / "a.tgz", {"pets/cat/0.png": b"0"})
    for _ in range(2):
        assert (unpack(tmp_path, md5) / "cat" / "0.png").read_bytes() == b"0"
        assert left_in(tmp_path) - {"a.tgz"} == {"pets"}
        (tmp_path / "a.tgz").unlink(missing_ok=True)


@pytest.mark.parametrize("names", [{"other/x": b""}, {"pets/../../outside": b"", "pets/x": b""}])
def test_wrong_archive_leaves_nothing(tmp_path: Path, names: dict[str, bytes]) -> None:
    (tmp_path / "in").mkdir()
    md5 = archive(tmp_path / "in" / "a.tgz", names)
    with pytest.raises(DataError, match=r"a\.tgz"):
        unpack(tmp_path / "in", md5)
    assert left_in(tmp_path / "in") == {"a.tgz"}
    assert not (tmp_path / "outside").exists()


def test_truncated_archive_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    archive(path, {f"pets/{i}": bytes(range(256)) * 40 for i in range(20)})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path, (hashlib.md5(path.read_bytes()).hexdigest(),))
    assert left_in(tmp_path) == {"a.tgz"}
