"""The stream gives the same pixels whatever decodes them."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data_files import class_folder, encoded, noise
from transnet.data import Split, open_data
from transnet.data.augment import View, plan_epoch
from transnet.data.pixels import Geometry
from transnet.data.stream import stream
from transnet.errors import DataError

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


def test_centre_crops_are_the_resident_images(split: Split) -> None:
    resident = split.resident((16, 16))[:, 1:15, 1:15]
    got = stream(split, batches(split), GEOMETRY, crops=None, workers=0, pin=False)
    for indices, images in zip(batches(split), got, strict=True):
        assert torch.equal(images, resident[indices])


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


def test_crops_reach_every_place_and_no_other(split: Split) -> None:
    crops = torch.tensor([[0.0, 0.0], [0.5, 0.7], [1 - 2.0**-24] * 2])
    whole = split.resident((16, 16))[0]
    (got,) = stream(split, [torch.tensor([0] * 3)], GEOMETRY, crops=crops, workers=0, pin=False)
    for image, (top, left) in zip(got, ((0, 0), (1, 2), (2, 2)), strict=True):
        assert torch.equal(image, whole[top : top + 14, left : left + 14])


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
    from transnet.data.stream import stream

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
