import pytest
import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.task import TrainingTask
from torch import nn

from transnet import TransNet, distillation_loss, heads_loss
from transnet.integrations.timm import TransNetTask


@pytest.fixture
def net():
    torch.manual_seed(0)
    return TransNet(timm.create_model("test_resnet", num_classes=5, in_chans=1), "r0,r1", eval_output="heads")


X, Y = torch.randn(6, 1, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 5


def test_the_loss_is_algorithm_1(net):
    task = TransNetTask(net, verbose=False).eval()
    assert isinstance(task, TrainingTask)
    result = task(X, Y)
    assert torch.allclose(result["loss"], heads_loss(net(X), Y))
    assert torch.equal(result["output"], net(X).mean(1))
    result["loss"].backward()
    assert all(p.grad is not None for p in net.parameters())


def test_timms_criteria_with_soft_targets_work(net):
    soft = nn.functional.one_hot(Y, 5).float() * 0.9 + 0.02
    task = TransNetTask(net, SoftTargetCrossEntropy(), verbose=False).eval()
    assert torch.allclose(task(X, soft)["loss"], heads_loss(net(X), soft))


def test_the_head_that_is_kept_can_be_taught():
    net = TransNet(timm.create_model("test_resnet", num_classes=5, in_chans=1), "r1,r0", eval_output="heads").eval()
    task = TransNetTask(net, distillation=2.0, verbose=False).eval()
    wanted = heads_loss(net(X), Y) + 2 * distillation_loss(net(X), 1)
    assert torch.allclose(task(X, Y)["loss"], wanted)
    alone = TransNet(timm.create_model("test_resnet", num_classes=5, in_chans=1), "r0")
    with pytest.raises(ValueError, match="r0 learns from others"):
        TransNetTask(alone, distillation=1.0, verbose=False)


@pytest.mark.parametrize("evaluate", ["pruned", "full"])
def test_validation_sees_a_classifier(net, evaluate):
    net.eval()
    model = TransNetTask(net, evaluate=evaluate, verbose=False).eval().get_eval_model()
    wanted = net.predict(X, heads="r0" if evaluate == "pruned" else None)
    assert torch.equal(model(X), wanted)


def test_checkpoints_hold_the_transnet_and_load_again(net):
    task = TransNetTask(net, verbose=False)
    assert task.get_checkpoint_state(ema=True) == {}
    task.setup_ema(decay=0.9)
    state = task.get_checkpoint_state()["state_dict"]
    assert set(state) == set(net.state_dict())
    other = TransNetTask(
        TransNet(timm.create_model("test_resnet", num_classes=5, in_chans=1), "r0,r1", eval_output="heads"),
        verbose=False,
    )
    other.load_checkpoint_state(state)
    assert torch.equal(other.eval().get_eval_model()(X), task.eval().get_eval_model()(X))
    assert set(task.get_checkpoint_state(ema=True)["state_dict_ema"]) == set(net.state_dict())
    with pytest.raises(RuntimeError, match="call setup_ema"):
        other.load_checkpoint_state(state, ema=True)


def test_pruning_gives_timms_own_model(net):
    task = TransNetTask(net, verbose=False)
    task.setup_ema()
    for ema in (False, True):
        model = task.prune(ema=ema)
        assert type(model) is type(timm.create_model("test_resnet"))
        assert model.num_classes == 5


def test_mistakes_say_what_would_work(net):
    with pytest.raises(TypeError, match=r"wrap it first: TransNet\(model"):
        TransNetTask(net.backbone)
    with pytest.raises(ValueError, match="evaluate='full' would work"):
        TransNetTask(net.keep("r1"))
    with pytest.raises(ValueError, match="evaluate: unknown 'best'"):
        TransNetTask(net, evaluate="best")
