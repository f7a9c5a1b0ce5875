"""Resident images are correct and cached, even if a process is killed meanwhile; streamed images equal them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from data_files import class_folder, encoded, noise
from transnet.data import Split, open_data
from transnet.data.augment import View, plan_epoch
from transnet.data.cache import cache_folder
from transnet.data.dataset import stream
from transnet.data.pixels import Geometry
from transnet.errors import DataError

# Opens the folder, waits for a file, so that two processes start at once, and prints a hash of the resident images.
SCRIPT = """
import hashlib, pathlib, sys, time
from transnet.data import open_data
data = open_data(sys.argv[1])
print("ready", flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.002)
print(hashlib.sha256(data.train.resident((24, 24)).numpy().tobytes()).hexdigest())
"""


def start(root: Path, go: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(go)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def entries(suffix: str) -> set[Path]:
    return set(cache_folder().glob(f"*{suffix}"))


def test_images_are_resized_and_cut_square_in_order(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=3, size=40)
    (root / "cat" / "wide.png").write_bytes(encoded(noise(5, 30, 70)))
    train = open_data(str(root)).train
    images = train.resident((20, 20))
    for i in range(len(train)):
        assert np.array_equal(images[i].numpy(), Geometry.square(20).fit(train.decode(i)))


def test_many_images_are_decoded_by_several_processes(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "many", n=400)
    train = open_data(str(root)).train
    assert len(train) == 640
    images = train.resident((12, 12))
    assert all(np.array_equal(images[i].numpy(), train.decode(i)) for i in range(0, 640, 7))


@pytest.mark.parametrize("image_size", [None, 16])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_decoded_only_once(tmp_path: Path, channels: int, image_size: int | None) -> None:
    root = class_folder(tmp_path / "pets", n=40, size=70)
    for i in range(0, 40, 1 if channels == 1 else 2):
        for name in ("cat", "dog"):
            (root / name / f"{i}.png").write_bytes(encoded(noise(i, 70, 90, 1)))
    data = open_data(str(root), image_size=image_size, val_fraction=0.2)
    expected = [data.geometry.fit(data.test.decode(i)) for i in range(len(data.test))]
    assert data.channels == channels
    shutil.rmtree(root)
    assert np.array_equal(data.test.resident(data.geometry.stored).numpy(), expected)
    assert len(data.train.resident(data.geometry.stored)) == len(data.train)
    assert not entries(".tmp")


def test_images_are_decoded_again_if_they_differ_from_those_checked_first(tmp_path: Path) -> None:
    """The check guesses size and colour from a sample, which here misses the only coloured image."""
    root = tmp_path / "pets"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(50):
            coloured = (name, i) == ("dog", 40)
            (root / name / f"{i:02}.png").write_bytes(encoded(noise(i, 12, 12, 3 if coloured else 1)))
    data = open_data(str(root))
    images = torch.cat([data.train.resident((12, 12)), data.test.resident((12, 12))])
    assert images.shape == (100, 12, 12, 3)
    assert (images != images[..., :1]).any((1, 2, 3)).sum() == 1


def test_resident_images_are_read_from_the_cache(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    train = open_data(str(root)).train
    first = train.resident((12, 12))
    before = first.clone()
    first.zero_()  # changes no entry
    shutil.rmtree(root)
    assert torch.equal(train.resident((12, 12)), before)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "header"])
def test_damaged_entry_is_computed_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    train = open_data(str(class_folder(tmp_path / "pets"))).train
    known = entries(".npy")
    first = train.resident((12, 12)).clone()
    (entry,) = entries(".npy") - known
    data = bytearray(entry.read_bytes())
    if damage == "truncated":
        data = data[:-500]
    elif damage == "emptied":
        data = bytearray()
    else:
        data[len(data) // 2 if damage == "flipped" else 60] ^= 1
    entry.write_bytes(data)
    assert torch.equal(train.resident((12, 12)), first)
    assert "damaged" in caplog.text
    caplog.clear()
    assert torch.equal(train.resident((12, 12)), first)
    assert "damaged" not in caplog.text


def test_damaged_survey_is_computed_again(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    before = open_data(str(root)).fingerprint
    (entry,) = entries(".npy")
    entry.write_bytes(entry.read_bytes()[:-100])
    assert open_data(str(root)).fingerprint == before


def test_two_processes_at_once(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "many", n=150, size=40)
    go = tmp_path / "go"
    processes = [start(root, go) for _ in range(2)]
    for process in processes:
        until_ready(process)
    go.touch()
    printed = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(printed) == 1
    assert not entries(".tmp")
    expected = open_data(str(root)).train
    assert torch.equal(
        expected.resident((24, 24)),
        torch.stack([torch.from_numpy(Geometry.square(24).fit(expected.decode(i))) for i in range(240)]),
    )


def test_killed_while_building(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "many", n=300, size=64)
    train = open_data(str(root)).train
    known, go = entries(".npy"), tmp_path / "go"
    process = start(root, go)
    until_ready(process)
    go.touch()
    while not entries(".tmp") and process.poll() is None:
        time.sleep(0.0005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert entries(".tmp"), "the process was meant to be killed in the middle"
    assert entries(".npy") == known
    images = train.resident((24, 24))
    assert all(np.array_equal(images[i].numpy(), Geometry.square(24).fit(train.decode(i))) for i in range(0, 480, 11))
    assert not entries(".tmp")


def test_image_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    train = open_data(str(root)).train
    Path(train.where(4)).write_bytes(encoded(noise(4711)))
    with pytest.raises(DataError, match="was changed while it was being read") as caught:
        train.resident((6, 6))  # a size for which the check has not kept the pixels
    assert train.where(4) in str(caught.value)
    assert not entries(".tmp")


def test_cache_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_folder(tmp_path / "pets")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRANSNET_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="TRANSNET_CACHE"):
        open_data(str(root))


def test_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = open_data(str(class_folder(tmp_path / "pets"))).train
    if not os.access("/dev/shm", os.W_OK) or os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize > 1e12:
        pytest.skip("no small file system to fill")
    folder = Path("/dev/shm") / f"transnet-test-{os.getpid()}"
    monkeypatch.setenv("TRANSNET_CACHE", str(folder))
    try:
        with pytest.raises(DataError, match="No space left"):
            train.resident((400_000, 400_000))
        assert not list(folder.glob("*.tmp"))
    finally:
        for path in folder.glob("*"):
            path.unlink()
        folder.rmdir()


def test_array_is_cached_only_if_it_has_to_be_resized() -> None:
    train = open_data("digits").train
    train.resident((8, 8))
    assert not entries(".npy")
    assert train.resident((16, 16)).shape == (1438, 16, 16, 1)
    assert len(entries(".npy")) == 1


# ------------------------------------------------------------------------------------------------------- streamed

GEOMETRY = Geometry.square(14, stored=16)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    root = class_folder(tmp_path / "pets", n=8, size=30)
    (root / "cat" / "wide.png").write_bytes(encoded(noise(77, 20, 50)))
    (root / "dog" / "tall.jpg").write_bytes(encoded(noise(78, 45, 25), "JPEG"))
    return open_data(str(root), image_size=14).train


def batches(split: Split) -> list[torch.Tensor]:
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
    return list(order.split(5))


def test_workers_do_not_change_a_pixel(split: Split) -> None:
    crops = torch.rand(len(split), 2, generator=torch.Generator().manual_seed(1))
    alone, with_two = (
        list(stream(split, batches(split), GEOMETRY, crops=crops, workers=workers, pin=False)) for workers in (0, 2)
    )
    assert len(alone) == len(batches(split))
    assert all(torch.equal(a, b) for a, b in zip(alone, with_two, strict=True))
    assert alone[0].dtype == torch.uint8
    assert alone[0].shape == (5, 14, 14, 3)


@pytest.mark.parametrize("stored", [16, 17, 25])
def test_crops_are_those_of_the_resident_images(split: Split, stored: int) -> None:
    view = View.create(Geometry.square(14, stored=stored), mean=(0, 0, 0), std=(1, 1, 1))
    drawn = plan_epoch(len(split), seed=3, epoch=0, batches=1, flip=False)
    expected = view.train(split.resident(view.geometry.stored), drawn.order, drawn.crop, drawn.flip)
    for crops, resident in (
        (drawn.crop, expected),
        (None, view.centre(split.resident(view.geometry.stored)[drawn.order])),
    ):
        (got,) = stream(split, [drawn.order], view.geometry, crops=crops, workers=0, pin=False)
        assert torch.equal(view.normalise(got), resident)


def test_crops_follow_the_order_of_the_batches_in_the_centre_square(split: Split) -> None:
    crops = torch.tensor([[0.99, 0.0], [0.0, 0.99], [0.5, 0.5], [0.1, 0.9]])
    indices = [torch.tensor([0, 8]), torch.tensor([3, 0])]
    got = torch.cat(list(stream(split, indices, GEOMETRY, crops=crops, workers=0, pin=False)))
    for image, i, (u, v) in zip(got, torch.cat(indices).tolist(), crops.tolist(), strict=True):
        top, left = int(u * 3), int(v * 3)
        assert np.array_equal(image.numpy(), GEOMETRY.fit(split.decode(i))[top : top + 14, left : left + 14])


@pytest.mark.parametrize("workers", [0, 1])
def test_vanished_image_is_named(split: Split, workers: int) -> None:
    Path(split.where(2)).unlink()
    with pytest.raises(DataError, match=r"\.png: cannot be read") as caught:
        list(stream(split, [torch.tensor([2])], GEOMETRY, crops=None, workers=workers, pin=False))
    assert "Traceback" not in str(caught.value)


_WITH_A_SERVER = """
import multiprocessing, sys

if __name__ == "__main__":
    import torch
    from transnet.data import open_data
    from transnet.data.pixels import Geometry
    from transnet.data.dataset import stream

    if sys.argv[2] == "chosen":
        multiprocessing.set_start_method("forkserver")
    else:  # its threads take Python's locks, so that a worker forked now and then would never start
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    split = open_data(sys.argv[1], image_size=14).train
    batches = list(torch.arange(len(split)).split(4))
    found = list(stream(split, batches, Geometry.square(14, stored=16), crops=None, workers=3, pin=False))
    print(sum(map(len, found)))
"""


@pytest.mark.parametrize("why", ["chosen", "process group"])
def test_a_fork_server_imports_once_for_all_workers(tmp_path: Path, why: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(_WITH_A_SERVER)
    root = class_folder(tmp_path / "pets", n=8, size=30)
    command = [sys.executable, "-X", "importtime", str(script), str(root), why]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(open_data(str(root)).train)
    # In the program and in the server, not in each of three workers.
    assert len(re.findall(r"\| +torch$", done.stderr, re.MULTILINE)) == 2


_SETTLES_LATER = """
import multiprocessing, sys
from transnet.data import open_data

open_data(sys.argv[1])
multiprocessing.set_start_method("spawn")
"""


def test_opening_data_does_not_set_the_start_method(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=8, size=30)
    subprocess.run([sys.executable, "-c", _SETTLES_LATER, str(root)], check=True)
