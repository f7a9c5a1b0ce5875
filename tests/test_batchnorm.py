"""bn="separate" is Alg. 1 to the letter: a plain loop of one forward per transform."""

import copy
import pickle

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from transnet import TransNet, backbones, d4
from transnet.batchnorm import restore_batch_norm, split_batch_norm

T = ("r0", "r1", "m2")


def small(momentum=0.1):
    model = backbones.create("resnet8-small", num_classes=5, in_channels=2).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    return model


def literal_loop(net, x, y):
    """Alg. 1 as printed, with the network's own layers: one forward per transform."""
    model = copy.deepcopy(net.backbone)
    restore_batch_norm(model)
    heads = copy.deepcopy(net.heads)
    losses = [F.cross_entropy(g(model(d4.apply(t, x))), y) for t, g in zip(net.transforms, heads, strict=True)]
    (sum(losses) / len(losses)).backward()
    return losses, model, heads


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_equals_the_literal_loop_over_several_steps(momentum):
    net = TransNet(small(momentum), T, bn="separate")
    for _ in range(3):
        x, y = torch.randn(6, 2, 9, 9, dtype=torch.float64), torch.randint(5, (6,))
        losses, model, heads = literal_loop(net, x, y)
        per_head = net.loss(x, y, reduction="none")
        net.zero_grad()
        per_head.mean().backward()
        assert torch.allclose(per_head, torch.stack(losses), rtol=1e-12)
        for (name, ours), (_, theirs) in zip(net.backbone.named_parameters(), model.named_parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-8, atol=1e-12), name
        for ours, theirs in zip(net.heads.parameters(), heads.parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-8, atol=1e-12)
        for (name, ours), (_, theirs) in zip(net.backbone.named_buffers(), model.named_buffers(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-12), name


def test_joint_takes_statistics_over_all_copies():
    net = TransNet(small(), T)
    x = torch.randn(6, 2, 8, 8, dtype=torch.float64)
    both = copy.deepcopy(net.backbone)
    net(x)
    both(torch.cat([d4.apply(t, x) for t in T]))
    for ours, theirs in zip(net.backbone.buffers(), both.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_joint_and_separate_differ():
    x = torch.rand(6, 2, 8, 8, dtype=torch.float64) * torch.linspace(0, 3, 8)
    joint, separate = TransNet(small(), "r0,r1"), TransNet(small(), "r0,r1", bn="separate")
    separate.load_state_dict(joint.state_dict())
    assert not torch.allclose(joint(x), separate(x))
    assert joint.state_dict().keys() == separate.state_dict().keys()


def test_layers_that_are_not_batch_norm_run_once():
    net = TransNet(small(), T, bn="separate")
    calls = []
    net.backbone.conv1.register_forward_hook(lambda m, a, o: calls.append(a[0].shape[0]))
    net(torch.randn(4, 2, 8, 8, dtype=torch.float64))
    assert calls == [12]


def test_works_with_timms_batch_norm_with_activation():
    model = timm.create_model("regnetx_002", num_classes=3)
    net = TransNet(model, "r0,r1", bn="separate")
    x, y = torch.randn(4, 3, 64, 64), torch.randint(3, (4,))
    losses, reference, _ = literal_loop(net, x, y)
    assert torch.allclose(net.loss(x, y, reduction="none"), torch.stack(losses), rtol=1e-4)
    ours = dict(net.backbone.named_buffers())
    for name, theirs in reference.named_buffers():
        assert torch.allclose(ours[name].float(), theirs.float(), rtol=1e-3, atol=1e-5), name


def test_eval_mode_uses_the_running_statistics():
    net = TransNet(small(), T, bn="separate")
    net(torch.randn(8, 2, 8, 8, dtype=torch.float64))
    x = torch.randn(3, 2, 8, 8, dtype=torch.float64)
    net.eval()
    assert torch.allclose(net.logits(x)[:, 0], net.prune().eval()(x), rtol=1e-12)


def test_without_running_statistics_evaluation_keeps_the_transforms_apart_too():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), nn.Flatten(),
                          nn.Linear(4 * 36, 5)).double()  # fmt: skip
    net = TransNet(model, T, bn="separate").eval()
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    for i, name in enumerate(T):
        assert torch.allclose(net.logits(x)[:, i], net.predict(x, heads=name), rtol=1e-12)


def test_prediction_with_fewer_heads_in_train_mode_splits_into_as_many():
    net = TransNet(small(), T, bn="separate")
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    expected = copy.deepcopy(net).keep("r1").predict(x)
    assert torch.allclose(net.predict(x, heads="r1"), expected, rtol=1e-12)
    assert net(x).shape == (4, 3, 5)


def test_pruned_and_merged_layers_have_their_original_class():
    net = TransNet(small(), T, bn="separate")
    assert {type(m).__name__ for m in net.modules() if isinstance(m, nn.BatchNorm2d)} == {"PerTransformBatchNorm2d"}
    assert {type(m) for m in net.prune().modules() if isinstance(m, nn.BatchNorm2d)} == {nn.BatchNorm2d}
    layer = nn.BatchNorm1d(3)
    split_batch_norm(layer, 2)
    restore_batch_norm(layer)
    assert type(layer) is nn.BatchNorm1d
    assert "copies" not in vars(layer)


def test_pickle_and_deepcopy_keep_the_layers():
    net = TransNet(small(), T, bn="separate")
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    expected = copy.deepcopy(net)(x)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)


def test_a_batch_that_does_not_split_is_an_error():
    layer = nn.BatchNorm1d(3)
    split_batch_norm(layer, 2)
    with pytest.raises(ValueError, match="does not split into 2 transforms"):
        layer(torch.randn(5, 3))


def test_layers_replaced_after_wrapping_are_refused_unless_bn_is_joint():
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(TransNet(small(), T, bn="separate"))
    for forward in (net, net.eval(), lambda x: net.predict(x, heads="r0")):
        with pytest.raises(ValueError, match=r"bn='separate': layer 'bn1' .*SyncBatchNorm.*before wrapping"):
            forward(x)
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="bn='separate'"):
        torch.compile(net, backend="eager")(x)
    assert nn.SyncBatchNorm.convert_sync_batchnorm(TransNet(small(), T)).eval()(x).shape == (4, 5)


def test_layers_replaced_before_wrapping_keep_separate_statistics():
    torch.manual_seed(0)
    plain = TransNet(small(), T, bn="separate")
    net = TransNet(nn.SyncBatchNorm.convert_sync_batchnorm(small()), T, bn="separate")
    net.load_state_dict(plain.state_dict())
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    assert torch.allclose(net(x), plain(x), rtol=1e-10)


def test_lightnings_conversion_is_refused_too():
    layer_sync = pytest.importorskip("lightning.pytorch.plugins.layer_sync")
    net = layer_sync.TorchSyncBatchNorm().apply(TransNet(small(), T, bn="separate"))
    with pytest.raises(ValueError, match="sync_batchnorm"):
        net(torch.randn(4, 2, 8, 8, dtype=torch.float64))
