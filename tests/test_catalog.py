"""The named datasets, from archives of the published form with other pixels in them, and their downloads."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets

from data_files import class_folder, encoded, noise
from transnet.cli import main
from transnet.data import catalog, open_data
from transnet.data.catalog import DATASETS, fetch, fetch_folder, needs_download, wordnet_classes
from transnet.data.pixels import Geometry
from transnet.errors import DataError
from transnet.runs.folder import Run


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.fixture
def root() -> Path:
    return Path(os.environ["TRANSNET_DATA"])


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("fashion-mnist", "train-images-idx3-ubyte.gz"),
        ("imagenette", "imagenette2-320.tgz"),
        ("imagenette160", "imagenette2-160.tgz"),
        ("imagewoof", "imagewoof2-320.tgz"),
    ],
)
def test_offline_error_names_the_file_and_its_folder(root: Path, name: str, file: str) -> None:
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        open_data(name)
    assert file in str(caught.value)
    assert str(root) in str(caught.value)
    assert time.monotonic() - began < 5


def cifar_files(classes: int = 10) -> dict[str, bytes]:
    def batch(seed: int, n: int) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)
        return pickle.dumps({"data": pixels, "labels": [i % classes for i in range(n)]})

    files = {f"data_batch_{i}": batch(i, 20) for i in range(1, 6)}
    files["test_batch"] = batch(9, 10)
    files["batches.meta"] = pickle.dumps({"label_names": [f"class {i}" for i in range(classes)]})
    return files


def publish_cifar(root: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torchvision.datasets.CIFAR10
    (tgz_md5,) = archive(root / kind.filename, {f"{kind.base_folder}/{name}": data for name, data in files.items()})
    monkeypatch.setattr(kind, "tgz_md5", tgz_md5)
    monkeypatch.setattr(kind, "train_list", [[n, md5(d)] for n, d in files.items() if n.startswith("data")])
    monkeypatch.setattr(kind, "test_list", [["test_batch", md5(files["test_batch"])]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(files["batches.meta"])}
    monkeypatch.setattr(kind, "meta", meta)


def test_cifar_from_its_archive(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = cifar_files()
    publish_cifar(root, files, monkeypatch)
    data = open_data("cifar10")
    assert (len(data.train), len(data.test), len(data.classes)) == (100, 10, 10)
    assert (data.geometry, data.flip) == (Geometry.square(32, pad=4), True)
    first = pickle.loads(files["data_batch_1"])["data"][0].reshape(3, 32, 32).transpose(1, 2, 0)
    assert np.array_equal(data.train.decode(0), first)
    assert open_data("cifar10").fingerprint == data.fingerprint


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_nothing_unverified_is_unpickled(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_cifar(root, cifar_files(), monkeypatch)
    open_data("cifar10")
    trap = tmp_path / "sprung"
    for name in ("data_batch_2", "test_batch", "batches.meta"):
        path = root / "cifar-10-batches-py" / name
        good = path.read_bytes()
        path.write_bytes(pickle.dumps(Trap(trap)))
        with pytest.raises(DataError, match="not the published ones"):
            open_data("cifar10")
        path.write_bytes(good)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Trap(trap)))
    assert trap.exists(), "the trap itself must work"


def test_changed_cifar_archive_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_cifar(root, cifar_files(), monkeypatch)
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", "0" * 32)
    with pytest.raises(DataError, match=f"expected is {'0' * 32}"):
        open_data("cifar10")
    assert not (root / "cifar-10-batches-py").exists()


def test_fashion_mnist_from_its_archives(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torchvision.datasets.FashionMNIST
    images, labels = noise(0, 40, 784, 1), (np.arange(40) % 10).astype(np.uint8)
    contents = [bytes(16) + images[:30].tobytes(), bytes(8) + labels[:30].tobytes()]
    contents += [bytes(16) + images[30:].tobytes(), bytes(8) + labels[30:].tobytes()]
    resources = []
    (root / "FashionMNIST" / "raw").mkdir(parents=True)
    for (name, _), content in zip(kind.resources, contents, strict=True):
        packed = gzip.compress(content)
        (root / "FashionMNIST" / "raw" / name).write_bytes(packed)
        resources.append((name, md5(packed)))
    monkeypatch.setattr(kind, "resources", resources)
    data = open_data("fashion-mnist")
    assert (data.channels, len(data.train), len(data.test)) == (1, 30, 10)
    assert (data.geometry, data.flip) == (Geometry.square(28, pad=2), True)
    assert np.array_equal(data.test.decode(3), images[33].reshape(28, 28, 1))
    assert data.test.labels.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("name", "folder", "geometry"),
    [
        ("imagenette", "imagenette2-320", Geometry.square(224, stored=256)),
        ("imagenette160", "imagenette2-160", Geometry.square(128, stored=160)),
    ],
)
def test_unpacked_imagenette(root: Path, name: str, folder: str, geometry: Geometry) -> None:
    wnids = tuple(torchvision.datasets.Imagenette._WNID_TO_CLASS)
    class_folder(root / folder / "train", wnids, n=2)
    class_folder(root / folder / "val", wnids, n=1, seed=500)
    assert not needs_download(name)
    data = open_data(name)
    assert data.classes[:2] == ("tench", "English springer")
    assert (data.geometry, data.flip) == (geometry, True)
    assert (len(data.train), len(data.test)) == (20, 10)


def test_imagenet200_is_a_part_of_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = wordnet_classes("imagenet200")
    assert len(words) == len(set(words.values())) == 200
    class_folder(tmp_path / "train", (*words, "n01440764"), n=1)
    class_folder(tmp_path / "val", (*words, "n01440764"), n=1, seed=500)
    (tmp_path / "test").mkdir()
    monkeypatch.setenv("TRANSNET_IMAGENET", str(tmp_path))
    data = open_data("imagenet200")
    assert (len(data.train), len(data.test), len(data.classes)) == (200, 200, 200)
    assert (data.classes[0], data.geometry) == ("goldfish", Geometry.square(224, stored=256))
    (tmp_path / "val" / "n01443537").rename(tmp_path / "val" / "n00000000")
    with pytest.raises(DataError, match="1 of 200 classes are missing, among them 'n01443537'"):
        open_data("imagenet200")


def test_imagenet200_without_imagenet() -> None:
    with pytest.raises(DataError, match="TRANSNET_IMAGENET"):
        open_data("imagenet200")


def test_folder_of_that_name_replaces_a_download(root: Path) -> None:
    class_folder(root / "cifar10", n=5, size=32)
    data = open_data("cifar10")
    assert (data.name, data.classes) == ("cifar10", ("cat", "dog"))
    assert (data.geometry, data.flip) == (DATASETS["cifar10"].geometry, True)


# ----------------------------------------------------------------------------------------------------------- downloads

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
    return (md5(path.read_bytes()),)


def photograph(seed: int) -> bytes:
    return encoded(noise(seed, 40, 30), "JPEG")


def test_imagewoof_is_downloaded_trained_on_and_evaluated(
    server: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wnids = list(wordnet_classes("imagewoof"))
    files = {"imagewoof2-320/noisy_imagewoof.csv": b"path,noisy_labels_0\n"}  # the published archive has it
    for c, wnid in enumerate(wnids):
        for i, part in enumerate(("train", "train", "val")):
            files[f"imagewoof2-320/{part}/{wnid}/{wnid}_{i}.JPEG"] = photograph(10 * c + i)
    digest = archive(tmp_path / "www" / "imagewoof2-320.tgz", files)
    monkeypatch.setattr(catalog, "IMAGEWOOF", (f"{server}/imagewoof2-320.tgz", digest))
    out = tmp_path / "run"
    words = (
        "train imagewoof --model resnet8-small --image-size 16 --epochs 1 --batch-size 8 --device cpu --no-tensorboard"
    )
    assert main([*words.split(), "--out", str(out)]) == 0
    (tmp_path / "www" / "imagewoof2-320.tgz").unlink()
    data = Run(out).settings().data
    assert (data.sizes.train, data.sizes.test, data.classes[0]) == (20, 10, "Shih-Tzu")
    assert main(["evaluate", str(out), "--device", "cpu"]) == 0
    image = root / "imagewoof2-320" / "val" / wnids[0] / f"{wnids[0]}_2.JPEG"
    assert main(["predict", str(out), str(image)]) == 0
    assert "JPEG" in capsys.readouterr().out
    assert not needs_download("imagewoof")


def test_imagenet200_is_trained_on_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for c, wnid in enumerate((*wordnet_classes("imagenet200"), "n01440764")):  # one class that is not used
        for part in ("train", "val"):
            folder = tmp_path / "ILSVRC" / part / wnid
            folder.mkdir(parents=True)
            (folder / f"{wnid}_1.JPEG").write_bytes(photograph(c))
    monkeypatch.setenv("TRANSNET_IMAGENET", str(tmp_path / "ILSVRC"))
    out = tmp_path / "run"
    words = (
        "train imagenet200 --model resnet8-small --image-size 8 --recipe paper --epochs 1 --device cpu --no-tensorboard"
    )
    assert main([*words.split(), "--out", str(out)]) == 0
    run = Run(out).settings()
    assert (run.data.sizes.train, run.data.sizes.test, run.train.batch_size) == (200, 200, 128)
    assert main(["evaluate", str(out), "--device", "cpu"]) == 0


def unpack(folder: Path, digest: tuple[str]) -> Path:
    return fetch_folder("http://127.0.0.1:9/a.tgz", digest, "pets", folder, progress=False)


def test_archive_is_unpacked_once(tmp_path: Path) -> None:
    digest = archive(tmp_path / "a.tgz", {"pets/cat/0.png": b"0"})
    for _ in range(2):
        assert (unpack(tmp_path, digest) / "cat" / "0.png").read_bytes() == b"0"
        assert left_in(tmp_path) - {"a.tgz"} == {"pets"}
        (tmp_path / "a.tgz").unlink(missing_ok=True)


@pytest.mark.parametrize("names", [{"other/x": b""}, {"pets/../../outside": b"", "pets/x": b""}])
def test_wrong_archive_leaves_nothing(tmp_path: Path, names: dict[str, bytes]) -> None:
    (tmp_path / "in").mkdir()
    digest = archive(tmp_path / "in" / "a.tgz", names)
    with pytest.raises(DataError, match=r"a\.tgz"):
        unpack(tmp_path / "in", digest)
    assert left_in(tmp_path / "in") == {"a.tgz"}
    assert not (tmp_path / "outside").exists()


def test_truncated_archive_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    archive(path, {f"pets/{i}": bytes(range(256)) * 40 for i in range(20)})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path, (md5(path.read_bytes()),))
    assert left_in(tmp_path) == {"a.tgz"}
