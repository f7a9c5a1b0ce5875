"""TransNet around a model, in a training loop."""

import copy
import io
import os
import socket

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
import torchvision
from timm.loss import SoftTargetCrossEntropy
from torch import nn

from small_models import Bare, K, batch, small
from transnet import TransNet, d4, distillation_loss, heads_loss

# ------------------------------------------------------------------------------------------------- shapes and names


def test_logits_are_batch_by_heads_by_classes_in_the_order_of_the_transforms():
    net = TransNet(Bare(), ("r0", "r2", "m1"))
    x, _ = batch()
    assert net.transforms == ("r0", "r2", "m1")
    logits = net(x)
    assert logits.shape == (4, 3, K)
    for i, t in enumerate(net.transforms):
        expected = net.heads[i](net.backbone(d4.apply(t, x)))
        assert torch.allclose(logits[:, i], expected, atol=1e-6)


def test_state_dict_keys_are_backbone_and_heads():
    model = small()
    net = TransNet(model, "r0,r1")
    keys = list(net.state_dict())
    assert [k for k in keys if k.startswith("heads.")] == [
        "heads.0.weight", "heads.0.bias", "heads.1.weight", "heads.1.bias",
    ]  # fmt: skip
    body = [k.removeprefix("backbone.") for k in keys if k.startswith("backbone.")]
    assert body == [k for k in model.state_dict() if not k.startswith("fc.")]


def test_the_model_is_copied_not_changed():
    model = small()
    before = copy.deepcopy(model.state_dict())
    net = TransNet(model)
    x, y = batch()
    net.loss(x, y).backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert isinstance(model.fc, nn.Linear)


def test_layers_stay_in_the_mode_they_are_in():
    model = small().train()
    model.bn1.eval()
    net = TransNet(model)
    assert [name for name, layer in net.named_modules() if not layer.training] == ["backbone.bn1"]
    assert not any(layer.training for layer in TransNet(model.eval()).modules())


def test_fresh_heads_differ_and_copied_heads_are_the_models_own():
    model = small()
    fresh = TransNet(model, "r0,r1")
    assert not torch.equal(fresh.heads[0].weight, fresh.heads[1].weight)
    assert not torch.equal(fresh.heads[0].weight, model.fc.weight)
    copied = TransNet(model, "r0,r1", init="copy")
    assert all(torch.equal(g.weight, model.fc.weight) and g.weight is not model.fc.weight for g in copied.heads)


def test_shared_heads_are_one_layer_under_all_transforms():
    net = TransNet(Bare(), "r0,r1", heads="shared")
    x, _ = batch()
    assert [k for k in net.state_dict() if "heads" in k] == ["heads.0.weight", "heads.0.bias"]
    logits = net(x)
    assert torch.allclose(logits[:, 1], net.heads[0](net.backbone(d4.apply("r1", x))), atol=1e-6)
    assert torch.equal(net.keep("r1")(x)[:, 0], TransNet.keep(net, "r1")(x)[:, 0])
    assert torch.allclose(net.prune()(x), logits[:, 0], atol=1e-6)


def test_a_name_may_repeat_and_pruning_takes_the_first():
    net = TransNet(Bare(), ("r0", "r0"))
    x, _ = batch()
    logits = net(x)
    assert not torch.allclose(logits[:, 0], logits[:, 1])
    assert torch.allclose(net.prune()(x), logits[:, 0], atol=1e-6)
    assert torch.allclose(net.keep("r0")(x)[:, 0], logits[:, 0], atol=1e-6)


# --------------------------------------------------------------------------------------- output in evaluation mode


def test_evaluation_mode_returns_the_mean_over_heads_like_any_classifier():
    net = TransNet(small(), "r0,r1,r2")
    x, _ = batch()
    assert net(x).shape == (4, 3, K)
    net.eval()
    logits = net.logits(x)
    assert logits.shape == (4, 3, K)
    assert torch.equal(net(x), logits.mean(1))
    assert torch.equal(net(x), net.predict(x))


def test_eval_output_pruned_is_the_identity_head_at_one_pass():
    net = TransNet(Bare(), "r1,r0,r2", eval_output="pruned").eval()
    sizes = []
    net.backbone.conv.register_forward_hook(lambda m, a, o: sizes.append(len(a[0])))
    x, _ = batch()
    assert torch.equal(net(x), net.prune()(x))
    assert sizes[0] == 4
    assert net.train()(x).shape == (4, 3, K)


def test_eval_output_heads_returns_all_logits():
    net = TransNet(small(), eval_output="heads").eval()
    x, _ = batch()
    assert torch.equal(net(x), net.logits(x))
    net.eval_output = "full"
    assert net(x).shape == (4, K)


@pytest.mark.parametrize("eval_output", ["full", "pruned", "heads"])
def test_the_loss_uses_all_heads_in_every_mode(eval_output):
    net = TransNet(Bare(), "r0,r1", eval_output=eval_output)
    x, y = batch()
    training = net.loss(x, y)
    assert torch.equal(net.eval().loss(x, y), training)


def test_keep_keeps_eval_output_unless_the_identity_head_is_dropped():
    net = TransNet(Bare(), "r0,r1,r2", eval_output="pruned")
    assert net.keep("r0", "r2").eval_output == "pruned"
    assert net.keep("r1", "r2").eval_output == "full"
    assert TransNet(Bare(), "r0,r1", eval_output="heads").keep("r1").eval_output == "heads"


# ------------------------------------------------------------------------------------------------- custom transforms


def test_custom_transforms_can_be_mixed_with_those_of_d4():
    net = TransNet(Bare(), ("r0", ("negative", lambda x: -x), "r1"))
    x, y = batch()
    assert net.transforms == ("r0", "negative", "r1")
    assert torch.allclose(net(x)[:, 1], net.heads[1](net.backbone(-x)), atol=1e-6)
    net.loss(x, y).backward()
    assert net.keep("negative").transforms == ("negative",)
    with pytest.raises(ValueError, match="custom transform"):
        net.prune("negative", image_size=8)


def test_a_custom_transform_keeps_channels_last():
    net = TransNet(Bare(), (("transpose", lambda x: x.transpose(2, 3)),))
    seen = []
    net.backbone.conv.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    net(batch()[0].to(memory_format=torch.channels_last))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_a_custom_transform_that_changes_the_shape_is_an_error_at_the_first_batch():
    net = TransNet(Bare(), ("r0", ("crop", lambda x: x[..., 1:])))
    with pytest.raises(ValueError, match=r"'crop' turned a batch of shape \(4, 3, 8, 8\) into \(4, 3, 8, 7\)"):
        net(batch()[0])


@pytest.mark.parametrize("bad", [("r1", torch.neg), ("", torch.neg), ("a,b", torch.neg)])
def test_custom_transforms_cannot_use_names_of_d4(bad):
    with pytest.raises(ValueError, match="cannot name a custom transform"):
        TransNet(Bare(), ("r0", bad))
    with pytest.raises(ValueError, match="two different functions"):
        TransNet(Bare(), (("a", torch.neg), ("a", torch.abs)))


# -------------------------------------------------------------------------------------------------------------- loss


def test_loss_is_the_mean_over_heads_of_the_mean_cross_entropy():
    net = TransNet(Bare(), "r0,r1,r2")
    x, y = batch()
    logits = net(x)
    each = torch.stack([F.cross_entropy(logits[:, i], y) for i in range(3)])
    assert torch.allclose(net.loss(x, y), each.mean())
    assert torch.allclose(net.loss(x, y, reduction="none"), each)
    assert torch.equal(heads_loss(logits, y), net.loss(x, y))


def test_soft_targets_smoothing_and_integer_types():
    logits = torch.randn(6, 2, K)
    y = torch.randint(K, (6,))
    one_hot = F.one_hot(y, K).float()
    assert torch.allclose(heads_loss(logits, y), heads_loss(logits, one_hot))
    smooth = one_hot * 0.9 + 0.1 / K
    assert torch.allclose(heads_loss(logits, y, label_smoothing=0.1), heads_loss(logits, smooth))
    assert torch.equal(heads_loss(logits, y), heads_loss(logits, y.to(torch.uint8)))
    mixed = 0.3 * one_hot + 0.7 * one_hot.flip(0)
    expected = 0.3 * heads_loss(logits, y, reduction="none") + 0.7 * heads_loss(logits, y.flip(0), reduction="none")
    assert torch.allclose(heads_loss(logits, mixed, reduction="none"), expected)


def test_sample_weights_in_half_precision_do_not_overflow():
    torch.manual_seed(0)
    logits, y = torch.randn(70_000, 1, 3).half(), torch.zeros(70_000, dtype=torch.long)
    weighted = heads_loss(logits, y, sample_weight=torch.ones(70_000).half())
    assert torch.allclose(weighted, heads_loss(logits.float(), y), rtol=1e-3)


def test_sample_weights_are_relative_and_zero_leaves_a_sample_out():
    logits, y = torch.randn(6, 2, K), torch.randint(K, (6,))
    weight = torch.tensor([1.0, 1, 1, 0, 0, 0])
    assert torch.allclose(heads_loss(logits, y, sample_weight=weight), heads_loss(logits[:3], y[:3]))
    assert torch.allclose(heads_loss(logits, y, sample_weight=torch.full((6,), 7.0)), heads_loss(logits, y))


def test_a_criterion_is_averaged_over_the_heads():
    logits, y = torch.randn(6, 3, K), torch.randint(K, (6,))
    weighted = nn.CrossEntropyLoss(weight=torch.rand(K))
    expected = torch.stack([weighted(logits[:, j], y) for j in range(3)]).mean()
    assert torch.allclose(heads_loss(logits, y, criterion=weighted), expected)
    assert torch.allclose(heads_loss(logits, y, criterion=nn.CrossEntropyLoss()), heads_loss(logits, y))
    per_image = nn.CrossEntropyLoss(reduction="none")
    assert torch.allclose(heads_loss(logits, y, criterion=per_image), heads_loss(logits, y))


def test_criteria_for_several_labels_ignored_labels_and_timms_losses():
    logits = torch.randn(6, 2, K)
    labels = torch.randint(2, (6, K)).float()
    bce = nn.BCEWithLogitsLoss()
    expected = (bce(logits[:, 0], labels) + bce(logits[:, 1], labels)) / 2
    assert torch.allclose(heads_loss(logits, labels, criterion=bce), expected)
    assert heads_loss(logits[..., :1], labels[:, :1], criterion=bce) > 0
    y = torch.randint(K, (6,))
    y[:2] = -100
    ignoring = nn.CrossEntropyLoss(ignore_index=-100)
    assert torch.allclose(heads_loss(logits, y, criterion=ignoring), heads_loss(logits[2:], y[2:]))
    one_hot = F.one_hot(y.clamp_min(0), K).float()
    timms = SoftTargetCrossEntropy()
    assert torch.allclose(heads_loss(logits, one_hot, criterion=timms), heads_loss(logits, one_hot))

    def focal(z, y):
        ce = F.cross_entropy(z, y, reduction="none")
        return (1 - (-ce).exp()) ** 2 * ce

    net = TransNet(Bare(), "r0,r1")
    x, y = batch()
    net.loss(x, y, criterion=focal).backward()
    assert all(g.weight.grad.any() for g in net.heads)


def test_loss_of_adds_self_distillation_to_the_loss_of_the_heads():
    net = TransNet(Bare(), "r1,r0")
    x, y = batch()
    output = net(x)
    assert torch.equal(net.loss_of(output, y), heads_loss(output, y))
    expected = heads_loss(output, y, label_smoothing=0.1) + 0.5 * distillation_loss(output, student=1)
    assert torch.allclose(net.loss_of(output, y, distillation=0.5, label_smoothing=0.1), expected)
    assert torch.allclose(net.loss(x, y, distillation=0.5, label_smoothing=0.1), expected)
    with pytest.raises(ValueError, match="r0"):
        TransNet(Bare(), "r1,r2").loss(x, y, distillation=0.5)


# -------------------------------------------------------------------------------------------------------- prediction


def test_predict_is_the_mean_over_heads():
    net = TransNet(Bare(), "r0,r1,r3").eval()
    x, _ = batch()
    logits = net.logits(x)
    assert torch.allclose(net.predict(x), logits.mean(1), atol=1e-6)
    assert torch.allclose(net.predict(x, average="probabilities"), logits.softmax(-1).mean(1), atol=1e-6)
    assert torch.allclose(net.predict(x, heads="r1"), logits[:, 1], atol=1e-6)
    assert torch.allclose(net.predict(x, heads=("r3", "r0")), logits[:, [2, 0]].mean(1), atol=1e-6)


def test_flip_is_before_the_transform_never_after():
    net = TransNet(Bare(), "r1").eval()
    net.heads[0].double(), net.backbone.double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    x[..., :4, :] = 0  # so that a flip before and after r1 differ
    before = (net(x) + net(x.flip(-1))) / 2
    after = (net(x) + net.heads[0](net.backbone(d4.apply("r1", x).flip(-1)))) / 2
    assert torch.allclose(net.predict(x, flip=True), before)
    assert not torch.allclose(before, after)


def test_predict_changes_neither_mode_nor_gradients():
    net = TransNet(small(), "r0,r1")
    x, _ = batch()
    assert net.predict(x).requires_grad
    assert net.training
    net.eval()
    with torch.no_grad():
        assert not net.predict(x).requires_grad
    assert not net.training


def test_predicting_with_one_head_costs_one_pass():
    net = TransNet(Bare(), "r0,r1,r2")
    sizes = []
    net.backbone.conv.register_forward_hook(lambda m, a, o: sizes.append(a[0].shape[0]))
    x, _ = batch()
    net.predict(x, heads="r2")
    net.predict(x, flip=True)
    assert sizes == [4, 12, 12]


# ----------------------------------------------------------------------------------------------------- keep and prune


def test_prune_returns_the_models_class_and_keys_with_the_first_head_bit_for_bit():
    model = torchvision.models.resnet18(num_classes=K)
    net = TransNet(model, "r0,r1")
    x, y = batch(side=32)
    net.loss(x, y).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    net.eval()
    pruned = net.prune()
    assert type(pruned) is type(model)
    assert list(pruned.state_dict()) == list(model.state_dict())
    assert torch.equal(pruned(x), net.keep("r0")(x))
    assert torch.equal(pruned(x), net.keep("r0").predict(x))
    assert torch.allclose(pruned(x), net.logits(x)[:, 0], rtol=1e-4, atol=1e-5)


def test_keep_and_prune_share_nothing():
    net = TransNet(small(), "r0,r1,r2")
    kept, pruned = net.keep("r0", "r2"), net.prune()
    ours = {p.data_ptr() for p in net.parameters()}
    assert not ours & {p.data_ptr() for p in kept.parameters()}
    assert not ours & {p.data_ptr() for p in pruned.parameters()}
    assert kept.transforms == ("r0", "r2")
    assert torch.equal(kept.heads[1].weight, net.heads[2].weight)


def test_prune_keeps_mode_and_frozen_parameters():
    model = small()
    for p in model.conv1.parameters():
        p.requires_grad_(False)
    net = TransNet(model).eval()
    assert not net.prune().training
    assert not net.prune().conv1.weight.requires_grad
    assert net.prune().fc.weight.requires_grad


# ------------------------------------------------------------------------------- memory formats, precision, wrappers


def test_channels_last_reaches_the_backbone():
    net = TransNet(small().to(memory_format=torch.channels_last), "r0,r1,m3")
    seen = []
    net.backbone.conv1.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    x, _ = batch()
    logits = net(x.to(memory_format=torch.channels_last))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert seen[0].shape[0] == 12
    assert logits.shape == (4, 3, K)


def test_autocast():
    net = TransNet(small())
    x, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net.loss(x, y)
    loss.backward()
    assert net(x).dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_deepcopy_state_dict_and_dtype_moves():
    net = TransNet(small(), "r0,r1").eval()
    x, _ = batch()
    expected = net(x)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    other = TransNet(small(), "r0,r1").eval()
    other.load_state_dict(net.state_dict(), strict=True)
    assert torch.equal(other(x), expected)
    stream = io.BytesIO()
    torch.save(net.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    assert net.to(torch.float64)(x.double()).dtype == torch.float64


def test_torch_compile_gives_the_same_loss():
    net = TransNet(Bare(), "r0,r1")
    x, y = batch()
    expected = net.loss(x, y)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True)
    assert torch.allclose(heads_loss(compiled(x), y), expected, atol=1e-5)


def test_torch_export_includes_the_transforms():
    net = TransNet(Bare(), "r0,r1").eval()
    x, _ = batch()
    exported = torch.export.export(net, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    other, _ = batch(7)
    assert torch.allclose(exported.module()(other), net(other), atol=1e-6)


def _ddp_rank(rank, port, state, x, y, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    net = TransNet(Bare(), "r0,r1")
    net.load_state_dict(state)
    wrapped = nn.parallel.DistributedDataParallel(net)
    heads_loss(wrapped(x[rank::2]), y[rank::2]).backward()
    if rank == 0:
        torch.save([p.grad for p in net.parameters()], out)
    torch.distributed.destroy_process_group()


def test_ddp_averages_to_the_gradient_of_the_whole_batch(tmp_path):
    net = TransNet(Bare(), "r0,r1")
    x, y = batch(8)
    net.loss(x, y).backward()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(_ddp_rank, (port, net.state_dict(), x, y, tmp_path / "grads"), nprocs=2)
    for ours, p in zip(torch.load(tmp_path / "grads"), net.parameters(), strict=True):
        assert torch.allclose(ours, p.grad, atol=1e-6)


def test_accelerate_prepares_and_gathers():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    net = TransNet(Bare(), "r0,r1")
    data = torch.utils.data.TensorDataset(*batch(8))
    prepared, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.1), torch.utils.data.DataLoader(data, batch_size=4)
    )
    for x, y in loader:
        logits = prepared(x)
        accelerator.backward(heads_loss(logits, y))
        optimizer.step()
        assert accelerator.gather_for_metrics((logits, y))[0].shape == (4, 2, K)
    assert isinstance(accelerator.unwrap_model(prepared).prune(), Bare)


@pytest.mark.gpu
def test_a_network_works_on_a_gpu():
    net = TransNet(small(), "r0,r1", bn="separate").to("cuda").to(memory_format=torch.channels_last)
    x, y = (v.cuda() for v in batch())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        net.loss(x.to(memory_format=torch.channels_last), y).backward()
    assert all(p.grad.is_cuda for p in net.parameters())
