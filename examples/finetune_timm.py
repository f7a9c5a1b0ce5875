"""Fine-tune a pretrained timm model as TransNet on a folder of images, and end with a plain timm model.

python examples/finetune_timm.py photos/ --model resnet18 --epochs 5 --out better.safetensors

photos/ has one folder for each class. --random starts from random weights instead of downloading timm's.
"""

import argparse

import timm
import torch
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from timm.optim import create_optimizer_v2
from torch.utils.data import DataLoader, random_split
from torchvision.datasets import ImageFolder

from transnet import TransNet
from transnet.integrations.timm import TransNetTask


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("images")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--out", default="better.safetensors")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    classes = ImageFolder(options.images).classes
    model = timm.create_model(options.model, pretrained=not options.random, num_classes=len(classes))
    look = {**resolve_model_data_config(model), "input_size": (3, options.image_size, options.image_size)}
    folder = ImageFolder(options.images, create_transform(**look, is_training=True, scale=(0.6, 1.0), hflip=0.0))
    plain = ImageFolder(options.images, create_transform(**look))
    train, test = random_split(range(len(folder)), [0.8, 0.2])

    net = TransNet(model, ("r0", "r1"), init="copy").to(device)  # every head starts as the model's own
    task = TransNetTask(net, evaluate="pruned")
    optimizer = create_optimizer_v2(net, opt="adamw", lr=options.lr, weight_decay=0.01)
    for epoch in range(options.epochs):
        task.train()
        for x, y in DataLoader(torch.utils.data.Subset(folder, list(train)), batch_size=32, shuffle=True):
            result = task(x.to(device), y.to(device))
            optimizer.zero_grad()
            result["loss"].backward()
            optimizer.step()
        task.eval()
        classifier, right = task.get_eval_model(), 0
        with torch.no_grad():
            for x, y in DataLoader(torch.utils.data.Subset(plain, list(test)), batch_size=64):
                right += int((classifier(x.to(device)).argmax(1).cpu() == y).sum())
        print(f"epoch {epoch + 1}: pruned {right / len(test):.1%} of {len(test)} test images", flush=True)

    better = task.prune()  # timm's own class and names again
    save_file({name: tensor.cpu().contiguous() for name, tensor in better.state_dict().items()}, options.out)
    print(
        f"{options.out}: timm.create_model({options.model!r}, checkpoint_path={options.out!r}, num_classes=…) loads it"
    )


if __name__ == "__main__":
    main()
