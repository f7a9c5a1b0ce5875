"""Which classification architectures of timm and torchvision TransNet wraps, and whether the numbers are right.

    python benchmarks/architectures.py --out results/architectures.json

Every architecture is created with 10 classes on the meta device, wrapped, run in both modes and pruned. With fewer than
12 M parameters it is also created with random weights, and three outputs are compared with the plain model's in
evaluation mode: a single head that is a copy of the model's own, every head of a network with fresh heads (the plain
model with that head's weights, on the transformed images), and the pruned network. Errors are relative to the largest
score.

Each architecture has a process of its own, so that a crash becomes a row with its reason. The script continues where it
was stopped; ``--seconds`` stops it after that time.
"""

import contextlib
import copy
import json
import multiprocessing
import time
import warnings
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

from measuring import options, write
from transnet import TransNet, d4

CLASSES = 10
LARGEST = 12_000_000  # parameters of a network that is run with values
TOLERANCE = 1e-4
SECONDS = 300  # for one architecture
AUXILIARY = ("googlenet", "inception_v3")
Row = dict[str, Any]


def names() -> list[str]:
    torchvisions = torchvision.models.list_models(module=torchvision.models)
    return [f"timm:{name}" for name in timm.list_models()] + [f"torchvision:{name}" for name in torchvisions]


def create(name: str) -> nn.Module:
    source, name = name.split(":")
    if source == "timm":
        return timm.create_model(name, num_classes=CLASSES)
    more = {"aux_logits": False, "init_weights": False} if name in AUXILIARY else {}
    return torchvision.models.get_model(name, num_classes=CLASSES, **more)


def images(model: nn.Module, name: str, device: str) -> Tensor:
    otherwise = (3, 299, 299) if name == "torchvision:inception_v3" else (3, 224, 224)
    size = getattr(model, "pretrained_cfg", {}).get("input_size") or otherwise
    return torch.randn(2, *size, device=device)


def transforms(x: Tensor) -> str:
    return "r0,r1" if x.shape[-1] == x.shape[-2] else "r0,m0"  # quarter turns need square images


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def failure(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]


def structure(name: str) -> Row:
    """Wrap, run and prune an architecture without values. A row with a reason is one that is not wrapped."""
    try:
        try:
            with torch.device("meta"):
                model = create(name)
        except NotImplementedError:  # it computes its initial weights from others
            model = create(name).to("meta")
    except Exception as problem:
        return {"created": False, "reason": failure(problem)}
    row: Row = {"parameters": sum(p.numel() for p in model.parameters())}
    if getattr(model, "num_classes", CLASSES) == 0:
        row["classifier"] = False
    try:
        x = images(model, name, "meta")
        net = TransNet(model, transforms(x))
        row["heads"] = " ".join(type(part).__name__ for part in parts(net, 0))
        try:
            model.eval()(x)
        except Exception as problem:  # it reads values, for example
            row["plain_forward_on_meta"] = failure(problem)
        else:
            assert net.eval()(x).shape == (2, CLASSES), "the shape of the scores"
            assert net.train()(x).shape == (2, 2, CLASSES), "the shape of all heads' logits"
        pruned = net.prune()
        assert type(pruned) is type(model), "the class of the pruned network"
        assert list(pruned.state_dict()) == list(model.state_dict()), "the keys of the pruned network"
    except Exception as problem:
        row["reason"] = failure(problem)
    return row


@torch.no_grad()
def errors(name: str) -> Row:
    """Compare the outputs of an architecture, plain and wrapped."""
    torch.manual_seed(0)
    model = create(name).eval()
    x = images(model, name, "cpu")
    net = TransNet(model, transforms(x)).eval()
    heads = net.logits(x)
    expected, own = [], copy.deepcopy(model)
    for i, t in reversed([*enumerate(net.transforms)]):
        for part, paths in zip(parts(net, i), net._classifiers, strict=True):
            own.get_submodule(paths[0]).load_state_dict(part.state_dict())
        expected.insert(0, own(d4.apply(t, x)))
    alone = TransNet(own, "r0", init="copy").eval()  # the model's own classifier may be zeros
    return {
        "plain": error(alone(x), own(x)),
        "each_head": max(error(heads[:, i], scores) for i, scores in enumerate(expected)),
        "pruned": error(net.prune()(x), expected[0]),
    }


def parts(net: TransNet, i: int) -> list[nn.Module]:
    return list(net.heads[i]) if len(net._classifiers) > 1 else [net.heads[i]]


def measure(name: str) -> Row:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row = structure(name)
        if "reason" in row or row["parameters"] >= LARGEST:
            return row
        try:
            found = errors(name)
        except Exception as problem:
            return row | {"reason": failure(problem)}
    if not max(found.values()) < TOLERANCE:
        mixes = [str(warning.message) for warning in caught if "depends on the other images" in str(warning.message)]
        row["reason"] = mixes[0] if mixes else "wrong numbers"
    return row | found


def in_a_process(name: str) -> Row:
    """Measure in a child process; if that ends early, this is the reason."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(measure(name)))
    process.start()
    sender.close()
    row: Row | None = None
    if receiver.poll(SECONDS):
        with contextlib.suppress(EOFError):
            row = receiver.recv()
    else:
        process.terminate()
        row = {"reason": f"it took longer than {SECONDS} seconds"}
    process.join()
    return row or {"reason": f"its process ended with status {process.exitcode}"}


def summary(rows: dict[str, Row]) -> Row:
    created = {name: row for name, row in rows.items() if row.get("created", True)}
    classifiers = {name: row for name, row in created.items() if row.get("classifier", True)}
    wrapped = [row for row in classifiers.values() if "reason" not in row]
    checked = [row for row in wrapped if "plain" in row]
    return {
        "tried": len(rows), "created": len(created), "with_classifier": len(classifiers), "wrapped": len(wrapped),
        "with_numbers": len(checked), "largest_with_numbers": LARGEST,
        "largest_error": max((row[key] for row in checked for key in ("plain", "each_head", "pruned")), default=None),
        "encoders": [name for name, row in created.items() if not row.get("classifier", True)],
        "rest": {name: row["reason"] for name, row in rows.items() if "reason" in row},
    }  # fmt: skip


def main() -> None:
    args = options(__doc__, seconds=0, only="").parse_args()
    began, out = time.monotonic(), args.out
    rows: dict[str, Row] = json.loads(out.read_text())["architectures"] if out.exists() else {}
    torch.set_num_threads(1)
    chosen = [name for name in names() if args.only in name]
    for name in chosen:
        if name in rows or (args.seconds and time.monotonic() - began > args.seconds):
            continue
        rows[name] = in_a_process(name)
        print(name, rows[name].get("reason", "ok"), flush=True)
        write(out, "cpu", {**summary(rows), "architectures": rows})  # an interrupted run continues from here
    print(f"{sum(name in rows for name in chosen)} of {len(chosen)} done")


if __name__ == "__main__":
    main()
