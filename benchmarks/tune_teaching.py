"""Which heads beside r0, and how much of their teaching: chosen on training images alone.

    python benchmarks/tune_teaching.py TRAINING_IMAGES --out tuned

TRAINING_IMAGES is a data set without a test split, such as CIFAR-100's training shards alone: a fifth of it is cut off
and judges. Every candidate is trained with half the recipe's epochs, the plain network twice as long, and all share
their seeds. Calling it again goes on where it stopped. OUT/tune_teaching.json keeps every run, and OUT/outputs what
their heads said of the images that judge, plain and mirrored, to look at rules of prediction without training again.
"""

from tuning import judge, options, planned

# Name: seeds, what differs. Those that matter most come first: time may run out.
CANDIDATES = {
    "base-long": (1, {"transforms": "r0", "longer": 2}),
    "r0,r1": (2, {}),
    "r0,m3": (2, {}),
    "r0,r1 taught 1": (2, {"distillation": 1.0}),
    "r0,m3 taught 1": (2, {"distillation": 1.0}),
    "r0,m3 taught 2": (2, {"distillation": 2.0}),
    "r0,m3,r2 taught 1": (1, {"distillation": 1.0}),
    "r0,m3,r2 taught 2": (1, {"distillation": 2.0}),
    "r0,r1,r2": (1, {}),
    "r0,m0 taught 1": (1, {"distillation": 1.0}),
    "r0,m3 taught 4": (1, {"distillation": 4.0}),
    "r0,m3 taught 1 bn-separate": (1, {"distillation": 1.0, "bn": "separate"}),
}


def main() -> None:
    args = options(__doc__, epochs=30).parse_args()
    candidates = {
        name: (seeds, {"transforms": name.split()[0], **change}) for name, (seeds, change) in CANDIDATES.items()
    }
    judge(planned(args, candidates), args, "tune_teaching.json")


if __name__ == "__main__":
    main()
