"""One training step, against the same written out by hand."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from small_runs import plain
from transnet import TransNet
from transnet.backbones import create
from transnet.d4 import NAMES
from transnet.data.augment import View, mix, plan_epoch
from transnet.data.pixels import Geometry
from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig
from transnet.train.device import autocast_for
from transnet.train.distributed import World
from transnet.train.feed import Feed
from transnet.train.objective import build_objective
from transnet.train.optim import build_optimizer, state_tensors
from transnet.train.step import Step, clone_method, count_flops

CPU = torch.device("cpu")
N, CLASSES = 43, 3
LABELS = torch.arange(N) % CLASSES
IMAGES = torch.randint(0, 256, (N, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def geometry(device: torch.device = CPU) -> View:
    return View.create(Geometry.square(8, pad=1), mean=(0.4,), std=(0.3,), device=device)


def feed(
    batch: int = 16, world: World | None = None, device: torch.device = CPU, n: int = N, *, rotates: bool = False
) -> Feed:
    images = IMAGES[:n].to(device)
    return Feed(images, LABELS[:n], geometry(device), batch, world or World(), device, rotates=rotates)


def small_net(transforms: str = "r0,r1", **options: Any) -> TransNet:
    torch.manual_seed(0)
    return TransNet(create("resnet8-small", num_classes=CLASSES, in_channels=1), transforms, **options).train()


def stepper(
    net: TransNet, images: Feed, config: TrainConfig, rates: Tensor, *, precision: str = "fp32", **options: Any
) -> Step:
    device = images.labels.device
    return Step(
        net, build_optimizer(net, config, device), images, build_objective(config), rates,
        classes=CLASSES, autocast=autocast_for(precision, device) if precision != "fp32" else nullcontext,
        **{"compile": False, "capture": False, **options},
    )  # fmt: skip


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(data="digits", out="x", **changes)


def drawn(images: Feed, epoch: int, *, seed: int = 0, **options: float) -> Any:
    rotate = NAMES if images.rotates else ("r0",)
    return plan_epoch(len(images.labels), seed=seed, epoch=epoch, batches=images.steps, flip=True, rotate=rotate,
                      **options)  # fmt: skip


def run_epochs(step: Step, epochs: int, **options: float) -> None:
    for epoch in range(epochs):
        step.start(drawn(step.feed, epoch, **options), 0, epoch * step.feed.steps)
        for k in range(step.feed.steps):
            step(k, 1000 * epoch + k)


class ByHand:
    """SGD as a textbook has it, on a network that is run once per transform's loss but in one joint forward."""

    def __init__(self, net: TransNet, config: TrainConfig) -> None:
        self.net, self.config = net, config
        self.momentum = [torch.zeros_like(p) for p in net.parameters()]

    def step(self, x: Tensor, y: Tensor, rate: float) -> Tensor:
        logits = self.net(x)
        losses = torch.stack([F.cross_entropy(logits[:, i], y) for i in range(logits.shape[1])])
        self.net.zero_grad()
        losses.mean().backward()
        with torch.no_grad():
            for p, v in zip(self.net.parameters(), self.momentum, strict=True):
                gradient = p.grad + self.config.weight_decay * p
                v.mul_(self.config.momentum).add_(gradient)
                direction = gradient + self.config.momentum * v if self.config.nesterov else v
                p.sub_(rate * direction)
        self.logits = logits.detach()
        return losses.detach()


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_steps_equal_sgd_by_hand_with_the_smaller_last_batch(nesterov: bool, bn: str) -> None:
    config = settings(nesterov=nesterov, weight_decay=1e-2)
    net = small_net(bn=bn)
    hand = ByHand(copy.deepcopy(net), config)
    images = feed(batch=16)
    assert images.steps == 3  # of 16, 16 and 11
    rates = torch.linspace(0.1, 0.01, 6)
    step = stepper(net, images, config, rates)
    for epoch in range(2):
        p = drawn(images, epoch)
        step.start(p, 0, epoch * 3)
        losses, hits = [], torch.zeros(2)
        for k in range(3):
            step(k, 7)
            part = slice(16 * k, min(16 * k + 16, N))
            x = geometry().train(IMAGES, p.order[part], p.crop[part], p.flip[part])
            y = LABELS[p.order[part]]
            losses.append(hand.step(x, y, rates[epoch * 3 + k].item()))
            hits += (hand.logits.argmax(-1) == y[:, None]).sum(0)
        torch.testing.assert_close(step.losses, torch.stack(losses), atol=1e-5, rtol=1e-4)
        assert torch.equal(step.correct, hits)
    assert int(step.done) == 6
    for (name, got), expected in zip(net.state_dict().items(), hand.net.state_dict().values(), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    for parameter, expected in zip(net.parameters(), hand.momentum, strict=True):
        got = step.optimizer.state[parameter]["momentum_buffer"]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


class Recorder(nn.Module):
    """Remembers the images it saw; gives them scores that depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, CLASSES)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.fc(x.flatten(1))


@pytest.mark.parametrize("batch", [1, 5, 16, 43, 100])
def test_every_image_is_seen_once_an_epoch(batch: int) -> None:
    net = TransNet(Recorder(), "r0")
    images = Feed(IMAGES, LABELS, View.create(Geometry.square(8), mean=(0.0,), std=(1.0,), device=CPU), batch,
                  World(), CPU)  # fmt: skip
    step = stepper(net, images, settings(), torch.full((images.steps,), 0.01))
    step.start(plan_epoch(N, seed=0, epoch=0, batches=images.steps, flip=False), 0, 0)
    for k in range(images.steps):
        step(k, 0)
    seen = (torch.cat(net.backbone.seen) * 255).round().to(torch.uint8).flatten(1)
    assert sorted(seen.tolist()) == sorted(IMAGES.flatten(1).tolist())


def test_images_are_mixed_by_the_settings_of_the_step() -> None:
    net = TransNet(Recorder(), "r0")
    images = feed(batch=16)
    images.mixes = True
    step = stepper(net, images, settings(), torch.full((3,), 0.01))
    p = drawn(images, 0, mixup=1.0, cutmix=1.0)
    step.start(p, 0, 0)
    for k in range(3):
        step(k, 0)
        part = slice(16 * k, min(16 * k + 16, N))
        x = geometry().train(IMAGES, p.order[part], p.crop[part], p.flip[part])
        mixed, _ = mix(x, LABELS[p.order[part]], p.mix[k], CLASSES)
        torch.testing.assert_close(net.backbone.seen[k], mixed)


def test_images_are_rotated_by_the_plan() -> None:
    net = TransNet(Recorder(), "r0")
    images = feed(rotates=True)
    step = stepper(net, images, settings(), torch.full((3,), 0.01))
    p = drawn(images, 0)
    step.start(p, 0, 0)
    for k in range(3):
        step(k, 0)
        part = slice(16 * k, min(16 * k + 16, N))
        expected = geometry().train(IMAGES, p.order[part], p.crop[part], p.flip[part], p.rotate[part])
        assert torch.equal(net.backbone.seen[k], expected)
    assert len(p.rotate.unique()) == 8


def test_rotation_reads_nothing_back_from_the_device() -> None:
    x, y = feed(device=torch.device("meta"), rotates=True).fetch(16, 0)  # there reading a value raises
    assert (x.shape, y.shape) == ((16, 1, 8, 8), (16,))


def test_continuing_within_an_epoch_equals_an_uninterrupted_one() -> None:
    rates = torch.linspace(0.1, 0.01, 3)
    whole = stepper(small_net(), feed(), settings(), rates)
    run_epochs(whole, 1)
    first = stepper(small_net(), feed(), settings(), rates)
    first.start(drawn(first.feed, 0), 0, 0)
    first(0, 0)
    second = stepper(first.net, feed(), settings(), rates)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.losses.copy_(first.losses)
    second.correct.copy_(first.correct)
    second.start(drawn(second.feed, 0), 1, 1)
    second(1, 1)
    second(2, 2)
    for got, expected in zip(second.net.state_dict().values(), whole.net.state_dict().values(), strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(second.losses, whole.losses)
    assert torch.equal(second.correct, whole.correct)


def test_random_numbers_of_the_network_depend_only_on_the_seed() -> None:
    def weights(disturbed: bool) -> Tensor:
        net = TransNet(plain(dropout=0.5), "r0").train()
        torch.manual_seed(5)
        net.heads[0].reset_parameters()
        step = stepper(net, feed(), settings(), torch.full((3,), 0.1))
        step.start(drawn(step.feed, 0), 0, 0)
        for k in range(3):
            if disturbed:
                torch.rand(11)
            step(k, k)
        return net.heads[0].weight.detach()

    assert torch.equal(weights(False), weights(True))


# --------------------------------------------------------------------------------------------------- several processes


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("n", "batch"), [(43, 16), (43, 14), (42, 41), (33, 16), (5, 2), (3, 1)])
def test_the_processes_shares_cover_every_position_once(processes: int, n: int, batch: int) -> None:
    feeds = [feed(batch, World(rank, processes), n=n) for rank in range(processes)]
    p = drawn(feeds[0], 0)
    for each in feeds:
        each.start(p)
    seen: list[int] = []
    for k in range(feeds[0].steps):
        total, size = 0.0, min(batch, n - k * batch)
        for each in feeds:
            share = each.positions(k)
            x, y = each.fetch(each.size(k), each.offset(k))
            assert len(x) == len(y) == each.size(k) == len(range(*share.indices(n))) >= 1
            index = p.order[share]
            assert torch.equal(y, LABELS[index])
            torch.testing.assert_close(x, geometry().train(IMAGES, index, p.crop[share], p.flip[share]))
            weight = each.weight(k)
            assert weight == 0 or weight == pytest.approx(len(y) * processes / size)
            total += weight / processes
            seen += index.tolist() if weight else []
            each.step += 1
        assert total == pytest.approx(1)
    assert sorted(seen) == list(range(n))


def test_an_empty_share_has_no_weight() -> None:
    each = feed(16, World(3, 4), n=33)  # the last batch has one image, and it is the first process's
    step = stepper(TransNet(plain(), "r0"), each, settings(weight_decay=0.0), torch.full((3,), 0.1))
    step.start(drawn(each, 0), 2, 2)
    before = [p.clone() for p in step.net.parameters()]
    step(2, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, step.net.parameters(), strict=True))
    assert step.correct.sum() == 0
    assert step.losses.sum() == 0


def test_the_mean_over_processes_of_weighted_losses_is_the_batchs_mean() -> None:
    net = TransNet(plain(), "r0,r1")
    for k in range(3):
        means = []
        for rank in range(3):
            each = feed(16, World(rank, 3))
            each.start(drawn(each, 0), k)
            x, y = each.fetch(each.size(k), each.offset(k))
            means.append(each.weight(k) * net.loss(x, y))
        alone = feed(16)
        alone.start(drawn(alone, 0), k)
        torch.testing.assert_close(torch.stack(means).mean(), net.loss(*alone.fetch(alone.size(k), 0)))


@torch._dynamo.config.patch(recompile_limit=8)  # other libraries may have raised it
def test_many_steps_in_one_process_are_all_compiled() -> None:
    class Shift:
        compiled = False

        def __init__(self, n: int) -> None:
            self.values = torch.zeros(n)

        def total(self, shift: int) -> Tensor:
            if torch.compiler.is_compiling():
                self.compiled = True
            return (self.values + shift).sum()

    torch._dynamo.reset()
    several = [Shift(n) for n in range(1, 16)]
    for each in several:
        compiled = torch.compile(clone_method(each.total), dynamic=False, backend="eager")
        assert compiled(2) == 2 * len(each.values)
    assert all(each.compiled for each in several)


def test_a_step_seeds_only_the_devices_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` may keep a stack trace of every call for kinds of device that are not there."""

    def refuse(_seed: int) -> None:
        raise AssertionError("torch.manual_seed was called")

    step = stepper(small_net(), feed(), settings(), torch.full((6,), 0.1))
    monkeypatch.setattr(torch, "manual_seed", refuse)
    run_epochs(step, 2)
    torch.default_generator.manual_seed(1005)  # the last step's
    expected = torch.rand(3)
    step.start(drawn(step.feed, 1), 2, 5)
    step(2, 1005)
    assert torch.equal(torch.rand(3), expected)  # it drew nothing itself


def test_convolutions_are_timed_only_for_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    step = stepper(small_net(), feed(batch=16), settings(), torch.full((3,), 0.1))
    tried = []
    step.net.register_forward_pre_hook(lambda net, args: tried.append((len(args[0]), torch.backends.cudnn.benchmark)))
    run_epochs(step, 1)
    assert tried == [(16, True), (16, True), (11, False)]
    assert torch.backends.cudnn.benchmark


# ---------------------------------------------------------------------------------- a step that cannot be made faster


def prepared_after(options: dict[str, Any]) -> tuple[Step, str | None]:
    """A step that has trained an epoch, and what preparing it for the next one gives."""
    config = settings(transforms="r0,r1", distillation=1.0)
    step = stepper(small_net(), feed(), config, torch.linspace(0.1, 0.01, 6), **options)
    step.capture = False
    run_epochs(step, 1)
    step.capture = options.get("capture", False)
    return step, step.prepare()


def assert_eager(step: Step) -> None:
    """Another epoch ends exactly as without the attempt."""
    expected, nothing = prepared_after({})
    assert nothing is None
    assert (step.compile, step.capture, step.graphs) == (False, False, {})
    for each in (step, expected):
        assert (int(each.feed.step), int(each.done)) == (3, 3)
        each.start(drawn(each.feed, 1), 0, 3)
        for k in range(3):
            each(k, k)
    everything = [*expected.net.state_dict().values(), *state_tensors(expected.optimizer).values()]
    found = [*step.net.state_dict().values(), *state_tensors(step.optimizer).values()]
    for name in ("losses", "correct", "terms", "done"):
        found.append(getattr(step, name))
        everything.append(getattr(expected, name))
    assert all(torch.equal(a, b) for a, b in zip(found, everything, strict=True))


@torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True})
def test_without_a_c_compiler_a_step_runs_eagerly() -> None:
    step, problem = prepared_after({"compile": True})
    assert "No working C++ compiler" in problem
    assert "\n" not in problem
    assert len(problem) <= 300
    assert_eager(step)


@pytest.mark.skipif(torch.cuda.is_available(), reason="capturing works")
def test_a_step_that_cannot_be_captured_runs_eagerly_from_the_state_before() -> None:
    step, problem = prepared_after({"capture": True})  # the steps before it run, and change everything
    assert problem
    assert_eager(step)


def test_running_out_of_memory_while_compiling_is_no_reason_to_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    step = stepper(small_net(), feed(), settings(), torch.full((3,), 0.1), capture=True)
    before = {name: tensor.clone() for name, tensor in step.net.state_dict().items()}

    def full(*_: Any) -> None:
        if int(step.feed.step) == 0 and step.net.heads[0].weight.ne(before["heads.0.weight"]).any():
            raise torch.OutOfMemoryError("CUDA out of memory")

    step.net.register_forward_pre_hook(full)  # in the second step
    with pytest.raises(torch.OutOfMemoryError):
        step.prepare()
    assert all(torch.equal(tensor, before[name]) for name, tensor in step.net.state_dict().items())
    monkeypatch.setenv("TRANSNET_REWRITES", "unknown")
    step.compile = True
    with pytest.raises(ConfigError):
        step.prepare()


# ------------------------------------------------------------------------------------------------------- operations


def evaluate_once(net: TransNet) -> None:
    net.eval()(torch.rand(2, 1, 8, 8))
    net.train()


def opened(n: int = N) -> Any:
    return SimpleNamespace(train=range(n), channels=1, geometry=Geometry.square(8))


@pytest.mark.parametrize("heads", ["separate", "shared"])
@pytest.mark.parametrize("m", [1, 3])
def test_operations_are_those_of_every_pass(m: int, heads: Any) -> None:
    net = TransNet(plain(), ("r0", "r1", "r2")[:m], heads=heads)
    evaluate_once(net)
    conv, linear = 2 * 6 * 9 * 64, 2 * 96 * 3
    step = 2 * conv + 3 * linear  # no gradient of the images is needed
    config = settings(batch_size=16, epochs=4)
    assert count_flops(net, build_objective(config), opened(), config) == (step * m * N * 4, conv + linear)
    config = settings(batch_size=100, epochs=4)  # a batch of all images
    assert count_flops(net, build_objective(config), opened(), config)[0] == step * m * N * 4


@pytest.mark.parametrize(("layer", "weights"), [
    (nn.Conv2d(6, 6, 3, padding=1, groups=6), 6 * 9), (nn.Conv2d(6, 6, 3, padding=1, groups=2), 6 * 3 * 9),
    (nn.ConvTranspose2d(6, 6, 3, padding=1, groups=3), 6 * 2 * 9), (nn.Conv2d(6, 6, 1), 6 * 6),
])  # fmt: skip
def test_a_convolutions_gradients_take_twice_its_operations(layer: nn.Module, weights: int) -> None:
    net = TransNet(nn.Sequential(nn.Conv2d(1, 6, 1), layer, nn.Flatten(), nn.Linear(6 * 64, CLASSES)), "r0")
    evaluate_once(net)
    config = settings(batch_size=16, epochs=1)
    first, own, linear = 2 * 6 * 64, 2 * weights * 64, 2 * 6 * 64 * CLASSES
    expected = (2 * first + 3 * own + 3 * linear) * N, first + own + linear
    assert count_flops(net, build_objective(config), opened(), config) == expected


def test_operations_of_every_term_are_counted() -> None:
    plainly = settings(batch_size=16, epochs=1)
    every = settings(batch_size=16, epochs=1, invariance_weight=0.1, distillation=0.5, label_augmentation=1.0)
    net = small_net()
    evaluate_once(net)
    less, more = (count_flops(net, build_objective(config), opened(), config)[0] for config in (plainly, every))
    assert 0 < less < more < 1.01 * less  # every head on every copy


@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_counting_operations_changes_nothing(bn: Any) -> None:
    net = small_net(bn=bn)
    evaluate_once(net)
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    assert None not in count_flops(net, build_objective(settings()), opened(), settings())
    assert torch.equal(torch.get_rng_state(), random)
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(parameter.grad is None and parameter.device == CPU for parameter in net.parameters())


def test_operations_of_a_network_that_reads_values_are_unknown() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.flatten(1) if x.max() > 0 else -x.flatten(1))

    net = TransNet(Reads(), "r0")
    evaluate_once(net)
    assert count_flops(net, build_objective(settings()), opened(), settings()) == (None, None)


# ------------------------------------------------------------------------------------------------------------- on a GPU

gpu = pytest.mark.gpu


def on_gpu(
    precision: str, *, epochs: int = 2, config: TrainConfig | None = None, rotates: bool = False, **options: Any
) -> Step:
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    net = small_net().to(device, memory_format=torch.channels_last)
    images = feed(device=device, rotates=rotates)
    rates = torch.linspace(0.1, 0.01, 3 * epochs)
    step = stepper(net, images, config or settings(), rates, precision=precision, **options)
    step.prepare()
    run_epochs(step, epochs)
    torch.cuda.synchronize()
    return step


@gpu
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 2e-3), ("bf16", 6e-2)])
def test_captured_steps_equal_eager_ones(compile: bool, precision: str, tolerance: float) -> None:
    eager = on_gpu(precision)
    captured = on_gpu(precision, capture=True, compile=compile)
    assert captured.graphs[16] is not captured.graphs[11]
    torch.testing.assert_close(captured.losses, eager.losses, atol=tolerance, rtol=tolerance)
    assert int(captured.done) == int(eager.done) == 6
    for (name, got), expected in zip(captured.net.state_dict().items(), eager.net.state_dict().values(), strict=True):
        torch.testing.assert_close(
            got, expected, atol=tolerance, rtol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@gpu
def test_captured_steps_equal_eager_ones_with_every_term() -> None:
    config = settings(transforms="r0,r1", invariance_weight=0.1, distillation=0.5, label_augmentation=1.0)
    eager = on_gpu("fp32", config=config)
    captured = on_gpu("fp32", config=config, capture=True, compile=True)
    torch.testing.assert_close(captured.losses, eager.losses, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(captured.terms, eager.terms, atol=2e-3, rtol=2e-3)
    assert captured.terms.all()


@gpu
def test_captured_steps_with_rotation_equal_the_cpus() -> None:
    cpu = stepper(small_net(), feed(rotates=True), settings(), torch.linspace(0.1, 0.01, 6))
    run_epochs(cpu, 2)
    captured = on_gpu("fp32", rotates=True, capture=True, compile=True)
    torch.testing.assert_close(captured.losses.cpu(), cpu.losses, atol=2e-3, rtol=2e-3)


@gpu
def test_a_gpus_eager_steps_equal_the_cpus() -> None:
    cpu = stepper(small_net(), feed(), settings(), torch.linspace(0.1, 0.01, 6))
    run_epochs(cpu, 2)
    torch.testing.assert_close(on_gpu("fp32").losses.cpu(), cpu.losses, atol=2e-3, rtol=2e-3)


@gpu
def test_capturing_in_the_very_last_step_of_a_run_works() -> None:
    step = on_gpu("fp32", epochs=1, capture=True)
    assert int(step.done) == 3
    assert step.losses.isfinite().all()


@gpu
def test_a_step_that_reads_a_value_back_runs_eagerly_and_equals_one_that_was_never_captured() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.flatten(1) / x.std().item())

    found = []
    for capture in (False, True):
        torch.manual_seed(0)
        device = torch.device("cuda")
        step = stepper(TransNet(Reads(), "r0,r1").to(device), feed(device=device), settings(), torch.full((3,), 0.1),
                       capture=capture)  # fmt: skip
        assert bool(step.prepare()) == capture
        run_epochs(step, 1)
        found.append(step)
    eager, other = found
    assert not other.capture
    torch.testing.assert_close(other.losses, eager.losses)
    torch.testing.assert_close(other.net.state_dict(), eager.net.state_dict())


@gpu
def test_warming_up_does_not_change_weights_optimizer_statistics_or_counters() -> None:
    device = torch.device("cuda")
    net = small_net().to(device)
    step = stepper(net, feed(device=device), settings(), torch.full((9,), 0.1), capture=True)
    step.start(drawn(step.feed, 0), 1, 1)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    step.prepare()
    torch.cuda.synchronize()
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not any(tensor.any() for tensor in state_tensors(step.optimizer).values())
    assert (int(step.feed.step), int(step.done)) == (1, 1)
    assert not any(tensor.any() for tensor in (step.losses, step.correct, step.terms))
