"""Choose the heads and the weight of self-distillation, on training images alone.

    python benchmarks/tune_teaching.py TRAINING_IMAGES --out tuned

TRAINING_IMAGES is a data set without a test split, such as CIFAR-100's training shards alone. A fifth of it is held
out to compare the candidates. Every candidate is trained for half the recipe's epochs, the plain network twice as long,
and all share their seeds. Calling it again resumes where it stopped. OUT/tune_teaching.json keeps every run, and
OUT/outputs the logits for the held-out images and their flips, so that rules of prediction can be tried later.
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
