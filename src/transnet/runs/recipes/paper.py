"""The paper's appendix A to the letter: 300 epochs of SGD in steps, batch norm per transform as in Alg. 1.

    transnet train cifar100 --transforms r0,r1 --recipe paper --out runs/paper-t2

The appendix leaves some points open. Here, images are normalised by the data set's channel statistics and padded
with the mean colour. The ImageNet family is resized to a shorter side of 256 before the 224 crop. SGD has no Nesterov
momentum, and weight decay applies to all parameters.
"""

SETTINGS: dict[str, object] = {
    "epochs": 300,
    "batch_size": 64,
    "lr": 0.1,
    "schedule": "steps",
    "milestones": "0.5,0.75",
    "nesterov": False,
    "weight_decay": 1e-4,
    "bn": "separate",
}

PER_DATA: dict[str, dict[str, object]] = {
    "imagenet200": {"epochs": 120, "batch_size": 128, "milestones": "0.3333333333333333,0.6666666666666666"},
}
