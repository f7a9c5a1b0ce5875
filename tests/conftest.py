import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own data and cache."""
    monkeypatch.setenv("TRANSNET_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("TRANSNET_DATA", str(tmp_path_factory.mktemp("data")))
    monkeypatch.delenv("TRANSNET_IMAGENET", raising=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
