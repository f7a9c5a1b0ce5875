"""How the recipe `fast` was chosen: CIFAR-100's training set cut into 45,000 to train on and 5,000 to choose by.

    python benchmarks/tune_fast.py DATA --out results/tune_fast.json

Base and T2 get the same candidates and are judged by their own best: a recipe that suits only one of them would show.
The test set is not used. One seed each, half the epochs of the recipe.
"""

import tempfile
from pathlib import Path

from measuring import options, write
from transnet.runs.config import TrainConfig
from transnet.train.trainer import train

CANDIDATES = {
    "lr 0.4, decay 5e-4, smoothing 0.1, warm-up 0.2": {},
    "lr 0.2": {"lr": 0.2},
    "lr 0.8": {"lr": 0.8},
    "decay 1e-3": {"weight_decay": 1e-3},
    "smoothing 0": {"label_smoothing": 0.0},
    "warm-up 0.1": {"warmup": 0.1},
    "decay 2.5e-4": {"weight_decay": 2.5e-4},
}


def main():
    parser = options(__doc__, epochs=30, device="auto")
    parser.add_argument("data")
    args = parser.parse_args()
    standard = {"batch_size": 512, "lr": 0.4, "weight_decay": 5e-4, "label_smoothing": 0.1, "warmup": 0.2}
    rows = []
    for name, change in CANDIDATES.items():
        row = {"candidate": name}
        for kind, transforms in (("base", "r0"), ("T2", "r0,r1")):
            with tempfile.TemporaryDirectory() as folder:
                config = TrainConfig.for_data(
                    args.data, str(Path(folder) / "run"), transforms=transforms, epochs=args.epochs, val_fraction=0.1,
                    evaluate_every=0, tensorboard=False, device=args.device, **{**standard, **change},
                )  # fmt: skip
                result = train(config, quiet=True)
            view = result.val_flip or result.val
            row[kind] = {"pruned": view.pruned.accuracy, "full": view.full.accuracy}
            row[kind]["train_seconds"] = result.train_seconds
        rows.append(row)
        print(
            f"{name:<50} base {row['base']['pruned']:.4f}  PT2 {row['T2']['pruned']:.4f}  T2 {row['T2']['full']:.4f}"
            f"  ({row['base']['train_seconds']:.0f} s, {row['T2']['train_seconds']:.0f} s)",
            flush=True,
        )
        content = {"rows": rows, "epochs": args.epochs, "seed": 0, "split": "45,000 / 5,000 of the training set"}
        # After every row: a stretch of GPU time may end at any moment.
        write(args.out, "cuda" if args.device == "auto" else args.device, content)


if __name__ == "__main__":
    main()
