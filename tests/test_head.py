"""Nothing may follow the head, however the first forward runs."""

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from small_models import Bare, K, batch, small
from transnet import TransNet, heads_loss


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_cast_after_the_head_is_accepted_after_one_batch(run):
    net = TransNet(Cast())
    x, _ = batch()
    expected = net(x)
    assert torch.allclose(run(net, x), expected, atol=1e-6)


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
