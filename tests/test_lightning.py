import subprocess
import sys

import lightning
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from transnet import TransNet, distillation_loss, heads_loss
from transnet.backbones import create
from transnet.integrations.lightning import PruneAtEnd, TransNetModule


def net(transforms="r0,r1"):
    torch.manual_seed(0)
    return TransNet(create("resnet8-small", num_classes=3, in_channels=1), transforms)


def fit(module, callback):
    x = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, torch.arange(24) % 3), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(module, loader, loader)
    return trainer.callback_metrics


def test_it_trains_logs_and_prunes_at_the_end(tmp_path):
    module, callback = TransNetModule(net()), PruneAtEnd(tmp_path / "out" / "better.safetensors")
    before = module.net.heads[0].weight.clone()
    metrics = fit(module, callback)
    assert set(metrics) >= {"train_loss", "val_loss", "val_accuracy", "val_accuracy_pruned"}
    assert not torch.equal(before, module.net.heads[0].weight)
    x = torch.randn(4, 1, 8, 8)
    assert torch.allclose(callback.model(x), module.net.eval().predict(x, heads="r0"), atol=1e-5)
    model = create("resnet8-small", num_classes=3, in_channels=1)
    model.load_state_dict(load_file(tmp_path / "out" / "better.safetensors"))


def test_the_head_that_is_kept_can_be_taught():
    module = TransNetModule(net("r1,r0"), distillation=2.0).eval()
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
    module.log = lambda *_args, **_settings: None  # outside a Trainer there is nowhere to log to
    logits = module.net.logits(x)
    assert torch.allclose(module.training_step((x, y), 0), heads_loss(logits, y) + 2 * distillation_loss(logits, 1))
    with pytest.raises(ValueError, match="r0 learns from others"):
        TransNetModule(net("r0"), distillation=1.0)


def test_a_head_with_two_names_is_written_under_both(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = self.also = nn.Linear(64, 3)

        def forward(self, x):
            return self.fc(x.flatten(1))

    fit(TransNetModule(TransNet(Named(), "r0,r1")), PruneAtEnd(tmp_path / "better.safetensors"))
    written = load_file(tmp_path / "better.safetensors")
    assert torch.equal(written["fc.weight"], written["also.weight"])


def test_the_callback_works_with_a_module_of_ones_own():
    class Own(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({"net": net()})

        def training_step(self, batch, index):
            return heads_loss(self.parts["net"](batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = PruneAtEnd(head="r1", image_size=8)
    fit(Own(), callback)
    assert callback.model.fold_config["transform"] == "r1"


def test_a_head_that_is_not_there_is_found_before_training():
    with pytest.raises(ValueError, match="no head 'r0' among r1 r2"):
        fit(TransNetModule(net("r1,r2")), PruneAtEnd())


def test_a_head_that_cannot_be_folded_is_found_before_training():
    with pytest.raises(ValueError, match=r"prune\('r1'\): image_size=… is needed"):
        fit(TransNetModule(net("r0,r1")), PruneAtEnd(head="r1"))


def test_without_lightning_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['lightning'] = None; import transnet.integrations.lightning"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "ImportError: transnet.integrations.lightning needs Lightning: pip install 'lightning" in said
