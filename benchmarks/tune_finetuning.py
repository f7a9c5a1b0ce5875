"""How fast to learn from pretrained weights, and with whose statistics: chosen on training images alone.

    python benchmarks/tune_finetuning.py TRAINING_IMAGES --out tuned

TRAINING_IMAGES is a data set without a test split, such as CIFAR-100's training shards alone: a fifth of it is cut off
and judges. One seed each. Calling it again goes on where it stopped. OUT/tune_finetuning.json keeps every run.
"""

from tuning import judge, options, planned

CANDIDATES = {
    "lr 0.2": (1, {"lr": 0.2}),
    "lr 0.05": (1, {"lr": 0.05}),
    "lr 0.2 bn-separate": (1, {"lr": 0.2, "bn": "separate"}),
}


def main() -> None:
    parser = options(__doc__, epochs=8)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--transforms", default="r0,r1,r2")
    parser.set_defaults(model="timm:tf_efficientnet_lite2")
    args = parser.parse_args()
    runs = planned(
        args, CANDIDATES, transforms=args.transforms, image_size=args.image_size, pretrained=True, label_smoothing=0.0,
        compile=False,
    )  # fmt: skip
    judge(runs, args, "tune_finetuning.json")


if __name__ == "__main__":
    main()
