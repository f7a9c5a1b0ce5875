"""The head ends the model, images of a batch do not influence each other, and models that cache tensors are copied."""

import copy
import types
import warnings

import pytest
import timm
import torch
import torch._dynamo.testing
from torch import nn

from small_models import Bare, K, batch, small
from small_runs import Plain, images_file, run
from transnet import TransNet, fold, heads_loss


class Softmax(Bare):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class InPlace(Bare):
    def __init__(self):
        super().__init__()
        self.last = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.last(super().forward(x))


class SoftmaxOfTensors(Bare):
    def forward(self, x):
        y = super().forward(x)
        return y.softmax(-1) if isinstance(y, torch.Tensor) else y


class Clamp(Bare):
    def forward(self, x):
        return torch.clamp(super().forward(x), -50, 50)


class Cast(Bare):
    def forward(self, x):
        return super().forward(x).float()


def _compile(net, x):
    torch._dynamo.reset()
    return torch.compile(net, backend="aot_eager")(x)


def _compile_fullgraph(net, x):
    torch._dynamo.reset()
    return torch.compile(net, backend="eager", fullgraph=True)(x)


def _vmap(net, x):
    return torch.func.vmap(lambda image: net(image[None]).squeeze(0))(x)


RUNS = {
    "eager": lambda net, x: net(x),
    "compile": _compile,
    "compile_fullgraph": _compile_fullgraph,
    "export": lambda net, x: torch.export.export(net, (x,)).module()(x),
    "trace": lambda net, x: torch.jit.trace(net, (x,))(x),
    "fx": lambda net, x: torch.fx.symbolic_trace(net)(x),
    "vmap": _vmap,
}


@pytest.mark.filterwarnings("ignore")  # torch's own, on tracing
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_first_forward_may_be_compiled_exported_or_traced(run, mode):
    net = TransNet(Bare(), "r0,r1,m0").train(mode == "train")
    x, _ = batch()
    first = run(net, x)
    assert torch.allclose(first, net(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [Softmax, InPlace])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_model_with_layers_after_its_head_is_refused_however_it_first_runs(run, model):
    kind = Exception if run is _compile_fullgraph else ValueError  # the compiler's own class holds the message
    with pytest.raises(kind, match=r"does not end in 'out'|HeadMustBeLast"):
        run(TransNet(model()), batch()[0])


@pytest.mark.parametrize("model", [SoftmaxOfTensors, Clamp])
def test_layers_that_are_hard_to_notice_are_found_by_the_first_eager_batch(model):
    with pytest.raises(ValueError, match="does not end in 'out'"):
        TransNet(model())(batch()[0])


def test_a_network_compiles_after_another_was_refused():
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="does not end in 'out'"):
        torch.compile(TransNet(Softmax()), backend="eager")(batch()[0])
    x = batch()[0]
    assert torch.compile(TransNet(Bare()), backend="eager", fullgraph=True)(x).shape[:2] == (len(x), 2)


@pytest.mark.parametrize("trained", [False, True])
def test_a_layer_that_follows_in_one_mode_is_found_by_the_first_batch_in_that_mode(trained):
    class SoftmaxInOneMode(Bare):
        def forward(self, x):
            y = super().forward(x)
            return y.softmax(-1) if self.training == trained else y

    net = TransNet(SoftmaxInOneMode()).train(not trained)
    net(batch()[0])
    with pytest.raises(ValueError, match="does not end in 'out'"):
        net.train(trained)(batch()[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_cast_after_the_head_is_accepted_after_one_batch(run):
    net = TransNet(Cast())
    x, _ = batch()
    expected = net(x)
    assert torch.allclose(run(net, x), expected, atol=1e-6)


class Convolution(nn.Module):
    """SqueezeNet's end: what follows its head pools."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Conv2d(8, K, 1)

    def forward(self, x):
        return self.out(self.conv(x).relu()).relu().mean((2, 3))


class Two(Convolution):
    """A distilled model, which returns a tuple in training mode."""

    def __init__(self):
        super().__init__()
        self.out, self.other = nn.Linear(8, K), nn.Linear(8, K)

    def forward(self, x):
        x = self.conv(x).relu().mean((2, 3))
        pair = self.out(x), self.other(x)
        return pair if self.training else (pair[0] + pair[1]) / 2


class Third(Two):
    def __init__(self):
        super().__init__()
        self.third = nn.Linear(3, K)

    def forward(self, x):
        y = super().forward(x)
        y = sum(y) / 2 if self.training else y
        return y + self.third(x.mean((2, 3)))


class WithLogits(Bare):
    def forward(self, x):
        return types.SimpleNamespace(logits=super().forward(x), loss=None)


class SoftmaxOfConvolution(Convolution):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class SoftmaxOfTwo(Two):
    def forward(self, x):
        y = super().forward(x)
        return (y[0].softmax(-1), y[1]) if self.training else y.softmax(-1)


class SoftmaxOfLogits(WithLogits):
    def forward(self, x):
        return types.SimpleNamespace(logits=super().forward(x).logits.softmax(-1))


def _wrapped(model, mode):
    head = ("out", "other") if issubclass(model, Two) else None
    return TransNet(model(), "r0,r1,m0", head=head).train(mode == "train")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "mode"), [(Convolution, "eval"), (Two, "train"), (Two, "eval"), (WithLogits, "train")]
)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_heads_in_place_and_objects_may_first_run_in_any_way(run, model, mode):
    net = _wrapped(model, mode)
    x, _ = batch()
    first = run(net, x)
    assert torch.allclose(first, net(x), atol=1e-6)
    assert torch.allclose(run(net, x), first, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "mode"),
    [(SoftmaxOfConvolution, "train"), (SoftmaxOfTwo, "train"), (SoftmaxOfLogits, "eval"), (Third, "eval")],
)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_what_changes_scores_is_refused_however_the_network_first_runs(run, model, mode):
    kind = Exception if run is _compile_fullgraph else ValueError
    with pytest.raises(kind, match=r"does not end in|HeadMustBeLast|Observed exception"):
        run(_wrapped(model, mode), batch()[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["compile_fullgraph", "export", "fx"])
def test_functions_that_only_values_show_to_be_harmless_are_accepted_after_one_batch(how):
    class Rolled(Convolution):
        def forward(self, x):
            return super().forward(x).roll(1, -1)

    run, (x, _) = RUNS[how], batch()
    with pytest.raises(Exception, match=r"one batch|Observed exception"):
        run(TransNet(Rolled()), x)
    net = TransNet(Rolled())
    expected = net(x)
    assert torch.allclose(run(net, x), expected, atol=1e-6)


@pytest.mark.parametrize("model", [Convolution, Two, WithLogits])
def test_heads_in_place_and_objects_work_on_the_meta_device(model):
    x = torch.empty(4, 3, 8, 8, device="meta")
    assert _wrapped(model, "eval").to("meta")(x).shape == (4, K)
    with pytest.raises(ValueError, match="does not end in"):
        _wrapped(SoftmaxOfTwo, "train").to("meta")(x)


def test_scores_that_are_not_finite_are_not_an_error_of_the_head():
    net = TransNet(Convolution())
    torch.nn.init.constant_(net.heads[0].bias, torch.nan)
    assert net(batch()[0])[:, 0].isnan().all()


def test_an_error_before_the_heads_is_not_one_of_the_heads():
    with pytest.raises(RuntimeError, match="channels"):
        TransNet(Convolution())(torch.randn(2, 4, 8, 8))


def test_scores_with_positions_are_refused():
    class Dense(Convolution):
        def forward(self, x):
            return self.out(self.conv(x).relu())

    with pytest.raises(ValueError, match=r"\(batch, classes\)"):
        TransNet(Dense())(batch()[0])


@pytest.mark.parametrize("model", [Convolution, Two])
def test_heads_in_place_see_one_pass_and_do_not_mix(model):
    net = _wrapped(model, "eval")
    sizes = []
    net.backbone.conv.register_forward_hook(lambda m, a, o: sizes.append(len(a[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(batch()[0])
        net(batch()[0])
    assert sizes == [12, 2, 2, 12]  # the check of the images needs two small batches


def test_the_check_works_on_the_meta_device():
    x = torch.empty(4, 3, 8, 8, device="meta")
    net = TransNet(Bare().to("meta"))
    assert net.loss(x, torch.empty(4, dtype=torch.long, device="meta")).is_meta
    assert net.eval()(x).shape == (4, K)
    with pytest.raises(ValueError, match="does not end in 'out'"):
        TransNet(Softmax().to("meta"))(x)


def test_an_eager_batch_causes_no_recompilation():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    net = TransNet(small(), "r0,r1")
    compiled = torch.compile(net, backend=counter)
    x, _ = batch()
    compiled(x)
    net(x)
    compiled(x)
    assert counter.frame_count == 1


class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = small()

    def forward(self, x):
        return self.model(x).view(len(x), -1)


@pytest.mark.parametrize("model", [small, Viewed])
def test_the_check_runs_the_model_once(model):
    net = TransNet(model().train(), "r0,r1")
    net(batch()[0])
    assert {int(b) for name, b in net.named_buffers() if name.endswith("num_batches_tracked")} == {1}


def test_an_eager_batch_causes_no_recompilation_with_heads_in_place():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    net = TransNet(Convolution(), "r0,r1")
    compiled = torch.compile(net, backend=counter)
    x, _ = batch()
    compiled(x)
    net(x)
    compiled(x)
    assert counter.frame_count == 1


@pytest.mark.parametrize("transforms", ["r1", "r0,r1"])
def test_an_fx_graph_refuses_images_that_are_not_square(transforms):
    graph = torch.fx.symbolic_trace(TransNet(Bare(), transforms))
    with pytest.raises(AssertionError, match="r1 need square images"):
        graph(torch.randn(2, 3, 8, 6))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_per_sample_gradients_average_to_the_gradient_of_the_batch(memory_format):
    net = TransNet(Bare(), "r0,r1")
    x, y = batch()
    x = x.to(memory_format=memory_format)
    soft = torch.nn.functional.one_hot(y, K).float()
    parameters = dict(net.named_parameters())
    for targets in (y, soft):

        def loss(parameters, image, target):
            logits = torch.func.functional_call(net, parameters, (image[None],))
            return heads_loss(logits, target[None], sample_weight=torch.ones_like(target[None].flatten()[:1]).float())

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, targets)
        net.zero_grad()
        net.loss(x, targets).backward()
        for name, p in net.named_parameters():
            assert torch.allclose(each[name].mean(0), p.grad, atol=1e-5), name


# ----------------------------------------------------------------------------- the images of a batch


class Mixing(Bare):
    def forward(self, x):
        return super().forward(x + 0.1 * x.mean(0))


def test_timms_gcvit_is_named_in_one_warning_at_the_first_batch_in_evaluation_mode():
    net = TransNet(timm.create_model("gcvit_xxtiny", num_classes=K)).eval()
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="GlobalContextVit.*depends on the other images"):
            net(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(x)


def test_a_run_warns_before_it_trains(tmp_path):
    class MixingPlain(Plain):
        def forward(self, x):
            return super().forward(x + 0.1 * x.mean(0))

    with pytest.warns(UserWarning, match="MixingPlain.*depends on the other images"):
        run(images_file(tmp_path / "x.npz"), tmp_path / "run", model=MixingPlain(), epochs=1)


def test_the_check_waits_for_two_different_images_in_evaluation_mode():
    net = TransNet(Mixing())
    x, _ = batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(x)
        net.eval()
        net(x[:1])
        net(x[:1].expand(4, -1, -1, -1))
    with pytest.warns(UserWarning, match="Mixing"):
        net.predict(x, heads="r1")


@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_models_that_do_not_mix_images_cause_no_warning(bn):
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    x, _ = batch()
    for model in (small(), nn.Sequential(Noisy(), small())):
        net = TransNet(model, bn=bn).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(x)


def test_the_check_does_not_change_the_random_numbers():
    x, _ = batch()
    net = TransNet(Bare()).eval()
    torch.manual_seed(3)
    net(x)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), after)


# ------------------------------------------------------------------------------- cached tensors


@pytest.mark.parametrize("name", ["efficientvit_m0", "tiny_vit_5m_224"])
def test_timm_models_that_cache_tensors_can_be_wrapped_kept_and_pruned(name):
    model = timm.create_model(name, num_classes=K).eval()
    x = torch.randn(2, 3, 224, 224)
    assert model(x).requires_grad
    net = TransNet(model, "r0,r1", init="copy")
    logits = net.logits(x)
    for one in (net.prune(), net.keep("r0"), copy.deepcopy(net).keep("r0")):
        assert torch.allclose(one(x), logits[:, 0], atol=1e-4)
    copy.deepcopy({"net": net})


def test_tensors_cached_in_containers_are_copied_without_their_graph():
    class Caching(Bare):
        def forward(self, x):
            self.cache = {"a": [self.conv.weight * 2], "b": (self.conv.bias * 2,)}
            self.last = self.conv.weight.sum()
            return super().forward(x)

    net = TransNet(Caching())
    net(batch()[0])
    x, _ = batch()
    assert torch.allclose(fold(net.prune(), "m0", 8)(x), net.prune()(x.flip(-1)), atol=1e-6)
    model = Caching()
    model(x)
    assert torch.allclose(fold(model, "m0", 8)(x), model(x.flip(-1)), atol=1e-6)
    pruned = net.prune()
    assert torch.equal(pruned.cache["a"][0], net.backbone.cache["a"][0])
    assert not pruned.cache["a"][0].requires_grad
    assert net.backbone.cache["a"][0].requires_grad


def test_shared_tensors_stay_shared_in_a_copy():
    net = TransNet(Bare())
    first, second = copy.deepcopy((net, nn.ModuleList([net])))
    assert second[0] is first
    assert first.heads[0].weight is not net.heads[0].weight
