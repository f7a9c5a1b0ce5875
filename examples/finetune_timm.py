"""Fine-tune a timm model as TransNet on a folder of images: python examples/finetune_timm.py images

images/ holds train/ and val/, each with one folder per class. --no-pretrained starts from random weights.
The recipe: AdamW with layer decay, weight averaging (EMA), mixed precision, gradient accumulation, RandAugment.
"""

import argparse

import timm
import torch
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from transnet import TransNet, heads_loss


def validate(model: nn.Module, loader: DataLoader, device: str) -> float:
    """Return the model's accuracy."""
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x.to(device)).argmax(1).cpu() == y).sum())
    return right / len(loader.dataset)


def main() -> None:
    """Train, validate after each epoch, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("images")
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--pretrained", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--out", default="finetuned.safetensors")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    classes = ImageFolder(f"{options.images}/train").classes
    try:
        model = timm.create_model(options.model, pretrained=options.pretrained, num_classes=len(classes))
    except OSError:  # offline, and the weights are not in the cache
        parser.error(f"cannot download the weights of {options.model}; --no-pretrained starts from random weights")
    data = resolve_model_data_config(model)
    augment = create_transform(**data, is_training=True, auto_augment="rand-m9-mstd0.5", scale=(0.35, 1.0))
    train = ImageFolder(f"{options.images}/train", augment)
    val = ImageFolder(f"{options.images}/val", create_transform(**data))
    train_loader = DataLoader(train, options.batch_size, shuffle=True)
    val_loader = DataLoader(val, options.batch_size)

    model = TransNet(model, ("r0", "r1")).to(device)
    optimizer = create_optimizer_v2(model, "adamw", lr=options.lr, weight_decay=0.05, layer_decay=0.75)
    updates = options.epochs * len(train_loader) // options.accumulate
    schedule = CosineLRScheduler(optimizer, updates, warmup_t=updates // 10, t_in_epochs=False)
    ema = ModelEmaV3(model, decay=0.999, use_warmup=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    step = 0
    for epoch in range(options.epochs):
        model.train()
        for x, y in train_loader:
            with torch.autocast(device, torch.bfloat16):
                loss = heads_loss(model(x.to(device)), y.to(device), criterion=criterion)
            (loss / options.accumulate).backward()
            step += 1
            if step % options.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step_update(step // options.accumulate)
                ema.update(model, step=step // options.accumulate)
        print(f"epoch {epoch + 1}: accuracy {validate(ema.module, val_loader, device):.1%}", flush=True)

    model = ema.module.prune()
    print(f"final model: accuracy {validate(model, val_loader, device):.1%}")
    save_file(model.state_dict(), options.out)


if __name__ == "__main__":
    main()
