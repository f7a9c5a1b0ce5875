"""One run of the fine-tuning study: EfficientNet-Lite0 on photographs, in plain PyTorch around `TransNet`.

    python benchmarks/finetune_loop.py --data FOLDER --dataset grocery144 --arm t2-distilled --seed 100 --out run.npz

It prints one line of JSON and writes, per view, the predicted class and the log-probability of the true class of every
scored image to `--out`. finetune_study.py drives all runs; finetune_inputs.py describes the data and the weights.

A two-head arm sees every image of a batch of 16 twice; the other arms see 32 images. All arms share images and crops.
Losses and log-probabilities are taken at one temperature per view, fitted on images that no arm trains on. `upright_bn`
repeats the views at these temperatures, with batch-norm statistics of one epoch of upright training crops.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch.utils.flop_counter import FlopCounterMode

from environment import environment
from finetune_inputs import IMAGES, SIZE, batches, center_crop, load, pretrained, tensor
from transnet import TransNet, distillation_loss, heads_loss

PASSES = 32  # per step
VIEWS = ("one_pass", "flip", "two_views")
ARMS = {  # transforms, heads, weight of self-distillation
    "base": ("r0", "separate", 0), "base-rot": ("r0", "separate", 0), "t2": ("r0,r1", "separate", 0),
    "t2-distilled": ("r0,r1", "separate", 1), "shared": ("r0,r1", "shared", 0),
    "views-distilled": ("r0,crop", "separate", 1),
}  # fmt: skip


class SecondCrop:
    """The transform of `views-distilled`: another crop of the same images in training, none in evaluation."""

    images = None

    def __call__(self, x):
        return x if self.images is None else self.images


def train(net, second_crop, distillation, photos, labels, args):
    """Train for the given number of steps of 32 passes each."""
    matrices, vectors = ([p for p in net.parameters() if (p.ndim > 1) is many] for many in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0}])
    warmup, size, crops = args.steps / 16, PASSES // len(net.train().transforms), 1 + ("crop" in net.transforms)
    feed = batches(photos, labels, size, args.steps, args.seed, upright_share=args.upright_share, crops=crops)
    for step, (copies, y) in enumerate(feed):
        decay = 0.5 + 0.5 * math.cos(math.pi * max(0, step - warmup) / (args.steps - warmup))
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / warmup) * decay
        second_crop.images = copies[-1]
        logits = net(copies[0])
        distilled = distillation * distillation_loss(logits) if distillation else 0
        optimizer.zero_grad()
        (heads_loss(logits, y, label_smoothing=0.1) + distilled).backward()
        optimizer.step()
    second_crop.images = None


@torch.inference_mode()
def views(net, photos):
    """Return logits (N, K) per view: one pass, flip TTA, and r0 with r1 or both heads."""
    found, heads = [], net.eval().transforms
    for start in range(0, len(photos), PASSES):
        x = tensor([center_crop(photo) for photo in photos[start : start + PASSES]])
        rotated = x.rot90(1, (-2, -1)).contiguous(memory_format=torch.channels_last)
        one, flipped = (net.predict(image, heads=heads[:1]) for image in (x, x.flip(-1)))
        other = net.predict(x, heads=heads[1:]) if len(heads) > 1 else net.predict(rotated)
        found.append(torch.stack([one, (one + flipped) / 2, (one + other) / 2]).double())
    return dict(zip(VIEWS, torch.cat(found, 1), strict=True))


@torch.no_grad()
def recompute_statistics(net, photos, labels, seed):
    """Replace the batch-norm statistics by their mean over one epoch of upright training crops."""
    for layer in net.train().modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    for (x,), _ in batches(photos, labels, PASSES, max(1, len(photos) // PASSES), seed):
        net.backbone(x)


def fit_temperature(logits, y):
    """Return the temperature with the lowest loss."""
    found = minimize_scalar(lambda t: F.cross_entropy(logits / math.exp(t), y).item(), bounds=(-3, 3), method="bounded")
    return math.exp(found.x)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder that holds grocery144/ and cifar100/.")
    parser.add_argument("--dataset", choices=IMAGES, required=True)
    parser.add_argument("--arm", choices=[*ARMS, *(f"{arm}-x2" for arm in ARMS)], required=True)
    parser.add_argument("--seed", type=int, required=True, help="Its parity selects Grocery's direction.")
    parser.add_argument("--tune", action="store_true", help="Score on training images held out by the seed instead.")
    parser.add_argument("--epochs", type=int, default=16, help="Training compute, in epochs of one view.")
    parser.add_argument("--steps", type=int, help="Number of steps, if it does not follow from the epochs.")
    parser.add_argument("--lr", type=float, default=1e-3, help="Peak learning rate.")
    parser.add_argument("--upright-share", type=float, help="Share of unrotated images; base-rot alone needs it.")
    parser.add_argument("--out", type=Path, required=True, help="File for the predictions (.npz).")
    args, started = parser.parse_args(argv), time.monotonic()
    transforms, heads, distillation = ARMS[args.arm.removesuffix("-x2")]
    if args.arm.startswith("base-rot") != (args.upright_share is not None):
        parser.error("--upright-share: base-rot needs it and no other arm takes it; 0.25 is uniform rotation")
    args.steps = args.steps or IMAGES[args.dataset] * args.epochs // PASSES
    torch.set_num_threads(1)

    training, scored, fitted, classes = load(args.data, args.dataset, args.seed, tune=args.tune)
    second_crop = SecondCrop()
    named = [("crop", second_crop) if name == "crop" else name for name in transforms.split(",")]
    model = pretrained(classes)
    torch.manual_seed(args.seed)
    net = TransNet(model.to(memory_format=torch.channels_last), named, heads=heads)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.eval().predict(torch.zeros(1, 3, SIZE, SIZE), heads="r0")
    train(net, second_crop, distillation, *training, args)

    logits = views(net, scored[0])
    fit, fit_y = logits if fitted is scored else views(net, fitted[0]), torch.from_numpy(fitted[1])
    temperature = {view: fit_temperature(z, fit_y) for view, z in fit.items()}
    if not args.tune and ("r1" in transforms or args.upright_share is not None):
        recompute_statistics(net, *training, args.seed)
        logits |= {f"upright_bn_{view}": z for view, z in views(net, scored[0]).items()}
    y, arrays, accuracy, nll = torch.from_numpy(scored[1]), {"label": scored[1].astype(np.uint8)}, {}, {}
    for view, z in logits.items():
        loss = F.cross_entropy(z / temperature[view.removeprefix("upright_bn_")], y, reduction="none")
        arrays[f"{view}_class"] = z.argmax(1).numpy().astype(np.uint8)
        arrays[f"{view}_log_probability"] = -loss.numpy().astype(np.float16)
        accuracy[view], nll[view] = 100 * (z.argmax(1) == y).double().mean().item(), loss.mean().item()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **arrays)

    upright = {view: accuracy[f"upright_bn_{view}"] for view in VIEWS if f"upright_bn_{view}" in accuracy}
    result = {"data": args.dataset} | {name: getattr(args, name) for name in ("arm", "seed", "epochs", "steps", "lr")}
    result |= {view: accuracy[view] for view in VIEWS} | {"nll": {view: nll[view] for view in VIEWS}}
    result |= {"temperature": temperature, "upright_bn": upright or None}
    result |= {"upright_share": args.upright_share, "train_flops": 3 * counter.get_total_flops() * PASSES * args.steps}
    result |= {"seconds": round(time.monotonic() - started, 1), "commit": environment("cpu")["commit"]}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
