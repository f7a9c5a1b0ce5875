import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own data and cache."""
    monkeypatch.setenv("TRANSNET_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("TRANSNET_DATA", str(tmp_path_factory.mktemp("data")))
    monkeypatch.delenv("TRANSNET_IMAGENET", raising=False)
