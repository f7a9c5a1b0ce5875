"""A folded network computes model(t(x)) exactly, or an error names the layer that prevents it."""

import copy
import io
import pickle

import pytest
import timm
import torch
import torchvision
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from timm.layers import BlurPool2d, Conv2dSame, ScaledStdConv2dSame, StdConv2d
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from torch import fx, nn
from torch.nn import functional as F
from torchvision.models.feature_extraction import create_feature_extractor

from transnet import backbones, d4
from transnet.errors import ModelError
from transnet.folding.fold import fold
from transnet.folding.layers import Folded, FoldedUncompiledCalls

ELEMENTS = st.sampled_from(d4.NAMES)


class Values(nn.Module):
    """Sort the values of a map: an invariant last layer that forgets nothing except their positions."""

    def forward(self, x):
        return x.flatten(2).sort(-1).values.flatten(1)


class Functional(nn.Module):
    """A network in the style of tutorials, with pooling functions, and one pooling layer for several sizes."""

    def __init__(self, pads=(0, 2, 1, 0)):
        super().__init__()
        self.pads = pads
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, (1, 3), stride=(2, 1))
        self.pool = nn.MaxPool2d(3, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2, padding=1)
        x = F.avg_pool2d(self.pool(x), 2, ceil_mode=True) + F.adaptive_avg_pool2d(x, (3, 4)).mean()
        x = F.interpolate(F.pad(self.second(x), self.pads), scale_factor=2)
        return self.head(self.pool(x).mean((2, 3)))


def seeded(build):
    """Return a network with random weights and statistics, none of which is trivial."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
        for module in model.modules():
            if getattr(module, "running_mean", None) is not None:
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.1)
    return model.eval()


def images(size, channels=3):
    height, width = (size, size) if isinstance(size, int) else size
    source = torch.Generator().manual_seed(3)
    return torch.randn(2, channels, height, width, generator=source, dtype=torch.float64)


@torch.no_grad()
def error(model, t, size, channels=3):
    """Return the largest relative error of the fold."""
    x = images(size, channels)
    want = model(d4.apply(t, x))
    return ((fold(model, t, size)(x) - want).abs().max() / want.abs().max()).item()


def architecture(name, **options):
    if name.startswith("torchvision:"):
        return torchvision.models.get_model(name.removeprefix("torchvision:"), num_classes=7, **options)
    return timm.create_model(name, num_classes=7, **options)


# ------------------------------------------------------------------------------------------- whole architectures

SMALL = ["resnet18", "tf_mixnet_s", "resnet18d", "torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x0_5"]
ALL = [
    *SMALL, "resnetblur18", "seresnet18", "skresnet18", "resnest14d", "ecaresnet26t", "mobilenetv3_small_050",
    "tf_efficientnet_b0", "convnext_atto", "convnextv2_atto", "repvgg_a0", "mobileone_s0", "ghostnet_100",
    "nf_resnet26", "resnetv2_50x1_bit", "selecsls42", "ese_vovnet19b_dw", "dpn48b", "hrnet_w18_small", "dla34",
    "regnetx_002", "torchvision:densenet121", "torchvision:mobilenet_v2", "torchvision:inception_v3",
    "torchvision:googlenet", "torchvision:mnasnet0_5", "torchvision:efficientnet_b0", "torchvision:regnet_y_400mf",
]  # fmt: skip
# These add maps of different strides, whose sizes match at multiples of 32 only.
MULTIPLES = {"hrnet_w18_small", "dla34"}


@pytest.mark.parametrize("name", SMALL)
def test_small_grid_of_architectures_is_exact(name):
    model = seeded(lambda: architecture(name)).double()
    assert max(error(model, t, 64) for t in ("r1", "m2")) <= 1e-12
    assert max(error(model, t, 45) for t in ("r2", "r3")) <= 1e-12


@pytest.mark.parametrize("name", ["resnet18-cifar", "wrn16-4-cifar", "resnet8-small"])
def test_networks_for_small_images_are_exact(name):
    model = seeded(lambda: backbones.create(name, num_classes=7)).double()
    assert max(error(model, t, 16) for t in ("r1", "m2")) <= 1e-12
    assert max(error(model, t, 19) for t in ("r2", "r3")) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_all_elements_and_sizes_are_exact(name):
    options = {"aux_logits": False, "init_weights": True} if name.endswith(("inception_v3", "googlenet")) else {}
    model = seeded(lambda: architecture(name, **options)).double()
    for size in (64, 96) if name in MULTIPLES else (80, 85, 96, 101):
        assert max(error(model, t, size) for t in d4.NAMES) <= 1e-12, size


@pytest.mark.parametrize("t", ["r0", "r2", "m0", "m2"])
def test_rectangles_fold_if_t_keeps_the_sides(t):
    model = seeded(lambda: architecture("resnet18d")).double()
    assert error(model, t, (48, 70)) <= 1e-12


@pytest.mark.parametrize("t", ["r1", "r3", "m1", "m3"])
def test_rectangles_are_refused_if_t_swaps_the_sides(t):
    with pytest.raises(ModelError, match="square") as caught:
        fold(Functional(), t, (48, 70))
    assert caught.value.field == "image_size"


@pytest.mark.parametrize("t", d4.NAMES)
@pytest.mark.parametrize("size", [62, 63])
def test_functions_in_a_models_own_code_are_folded(t, size):
    model = seeded(Functional).double()
    assert error(model, t, size) <= 1e-12


def test_a_module_that_pools_by_a_function_may_get_several_sizes():
    class Halve(nn.Module):
        def forward(self, x):
            return F.max_pool2d(x, 2)

    halve = Halve()
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), halve, halve, halve, Values()).double()
    assert error(model, "r2", 28) <= 1e-12  # 28 and 14 fit, 7 does not
    torch.compile(fold(model, "r2", 28), backend="aot_eager", fullgraph=True)(images(28))


def test_shared_kernels_are_turned_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(3, 3, 3, stride=2, bias=False)
            self.b = nn.Conv2d(3, 3, 3, padding=1, bias=False)
            self.b.weight = self.a.weight
            self.end = Values()

        def forward(self, x):
            return self.end(self.a(self.b(x)))

    model = seeded(Shared).double()
    folded = fold(model, "r1", 16)
    assert folded.a.weight is folded.b.weight
    assert error(model, "r1", 16) <= 1e-12


# ---------------------------------------------------------------------------------------------- layer by layer

PAIR = st.tuples(st.integers(1, 4), st.integers(1, 4))
SIZE = st.tuples(st.integers(4, 11), st.integers(4, 11))


def check_layer(layer, t, size, channels=4):
    size = (size[0], size[0]) if d4.swaps_sides(t) else size
    model = nn.Sequential(nn.Conv2d(channels, channels, 1), layer, Values()).double()
    x = images(size, channels)
    try:
        want = d4.apply(d4.inverse(t), layer(d4.apply(t, x)))
    except RuntimeError:  # a kernel larger than the map, a reflection longer than it
        assume(False)
    folded = fold(model, t, size)
    torch.testing.assert_close(folded[1](x), want, rtol=1e-12, atol=1e-12)
    for s in ("r2", "m0"):
        twice = fold(folded, s, size)
        torch.testing.assert_close(twice(x), model(d4.apply(t, d4.apply(s, x))), rtol=1e-12, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    ELEMENTS, SIZE, PAIR, PAIR, PAIR, st.integers(1, 2), st.sampled_from([1, 2, 4]),
    st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
)  # fmt: skip
def test_any_convolution(t, size, kernel, stride, padding, dilation, groups, mode):
    padding = tuple(p - 1 for p in padding)
    check_layer(nn.Conv2d(4, 4, kernel, stride, padding, dilation, groups, padding_mode=mode), t, size)


@settings(max_examples=60, deadline=None)
@given(
    ELEMENTS, SIZE, PAIR, st.integers(1, 2), st.sampled_from(["same", "valid"]), st.sampled_from(["zeros", "reflect"])
)
def test_any_convolution_with_padding_by_name(t, size, kernel, dilation, padding, mode):
    check_layer(nn.Conv2d(4, 4, kernel, 1, padding, dilation, padding_mode=mode), t, size)


@settings(max_examples=200, deadline=None)
@given(ELEMENTS, SIZE, PAIR, PAIR, PAIR, st.integers(1, 2), st.booleans())
def test_any_max_pooling(t, size, kernel, stride, padding, dilation, ceil_mode):
    padding = tuple(min(p - 1, k // 2) for p, k in zip(padding, kernel, strict=True))
    check_layer(nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil_mode), t, size)


@settings(max_examples=600, deadline=None)
@given(ELEMENTS, SIZE, PAIR, PAIR, PAIR, st.booleans(), st.booleans(), st.sampled_from([None, None, 3]))
def test_any_average_pooling(t, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    padding = tuple(min(p - 1, k // 2) for p, k in zip(padding, kernel, strict=True))
    check_layer(nn.AvgPool2d(kernel, stride, padding, ceil_mode, count_include_pad, divisor), t, size)


@settings(max_examples=150, deadline=None)
@given(ELEMENTS, SIZE, st.data())
def test_any_timm_layer_and_any_other_pooling_padding_or_upsampling(t, size, data):
    kernel, stride = data.draw(PAIR), data.draw(PAIR)
    layers = {
        "conv same": lambda: Conv2dSame(4, 4, kernel, stride, dilation=data.draw(st.integers(1, 2))),
        "max same": lambda: MaxPool2dSame(kernel, stride),
        "average same": lambda: AvgPool2dSame(kernel, stride),
        "blur": lambda: BlurPool2d(data.draw(st.sampled_from([None, 4])), kernel[0] + 1, stride[0]),
        "standardised": lambda: StdConv2d(4, 4, kernel, stride, padding=1),
        "standardised same": lambda: ScaledStdConv2dSame(4, 4, kernel, stride, padding="same"),
        "adaptive": lambda: nn.AdaptiveAvgPool2d(kernel),
        "adaptive max": lambda: nn.AdaptiveMaxPool2d(kernel),
        "upsampling": lambda: nn.Upsample(scale_factor=tuple(map(float, kernel))),
        "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        "zeros": lambda: nn.ZeroPad2d((*kernel, *stride)),
        "crop and pad": lambda: nn.ConstantPad2d((-1, 2, 0, -2), 0.5),
        "reflection": lambda: nn.ReflectionPad2d((1, 2, 0, 3)),
    }
    check_layer(seeded(layers[data.draw(st.sampled_from(sorted(layers)))]), t, size)


# ------------------------------------------------------------------------------------------- what cannot be folded

REFUSED = [
    ("vit_tiny_patch16_224", {"img_size": 32}, 32, r"VisionTransformer.*positional embedding \(pos_embed\)"),
    ("swin_tiny_patch4_window7_224", {"img_size": 56, "depths": (1, 1, 1, 1)}, 56, r"layers.0.blocks.0.*windows"),
    ("mixer_s32_224", {"img_size": 64}, 64, r"blocks.0.mlp_tokens.fc1.*weights of its own for every position"),
    ("torchvision:alexnet", {}, 224, r"classifier.1' \(Linear\).*weights of its own for every position"),
    ("botnet26t_256", {"img_size": 64}, 64, "self_attn.pos_embed.*positional embedding"),
    ("tresnet_m", {}, 64, "body.s2d.*SpaceToDepth.*reading order"),
]


@pytest.mark.parametrize(("name", "options", "size", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_refusal_names_the_layer_and_the_reason(name, options, size, reason):
    with pytest.raises(ModelError, match=rf"r1 cannot be folded exactly into .*{reason}"):
        fold(seeded(lambda: architecture(name, **options)), "r1", size)


class Own(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.code, self.conv, self.end = code, nn.Conv2d(3, 4, 3), Values()

    def forward(self, x):
        return self.end(self.code(self.conv(x)))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (lambda x: x[:, :, 1:], "slices"),
        (lambda x: x.roll(1, -1) * torch.arange(6.0), "shifts"),
        (lambda x: F.interpolate(x, size=8), "nearest interpolation"),
        (lambda x: x + torch.linspace(0, 1, 6), "all positions"),
    ],
)
def test_a_networks_own_code_that_depends_on_directions_is_refused(code, reason):
    with pytest.raises(ModelError, match=rf"\(Own\), in its own code before 'end': .*{reason}"):
        fold(seeded(lambda: Own(code)), "r1", 8)


def test_layers_without_a_rule_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 4, 3, stride=2), Values())
    with pytest.raises(ModelError, match=r"layer '1' \(ConvTranspose2d\)"):
        fold(model, "r1", 8)
    with pytest.raises(ModelError, match=r"Conv2d\) computes its kernel.*parametrization"):
        fold(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), Values()), "r1", 8)


def test_an_all_zero_head_does_not_hide_a_wrong_layer():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    nn.init.zeros_(model[2].weight)
    with pytest.raises(ModelError, match=r"layer '2' \(Linear\)"):
        fold(model, "r1", 8)


@pytest.mark.parametrize("t", ["r5", "r0,r1", ""])
def test_exactly_one_known_element_is_required(t):
    with pytest.raises(ModelError, match="r0 r1 r2 r3"):
        fold(Functional(), t, 32)


@pytest.mark.parametrize("size", ["16", 16.5, (3, 16, 16), True, 0, (0, 3), None])
def test_invalid_image_sizes_are_refused(size):
    with pytest.raises(ModelError) as caught:
        fold(Functional(), "r2", size)
    assert caught.value.field == "image_size"


def test_a_size_at_which_the_network_fails_is_refused():
    with pytest.raises(ModelError, match="does not run on 3×4×4"):
        fold(Functional(), "r2", 4)


# -------------------------------------------------------------------------------------------- the folded network


@pytest.fixture(scope="module")
def small():
    return seeded(lambda: torchvision.models.resnet18(num_classes=5))


def test_the_model_is_not_changed_and_the_fold_has_its_class_dtype_and_mode(small):
    before = copy.deepcopy(small.state_dict())
    model = copy.deepcopy(small).train().bfloat16()
    model.layer1.eval()
    folded = fold(model, "r1", 32)
    assert isinstance(folded, torchvision.models.ResNet)
    assert folded.training
    assert not folded.layer1.training
    assert {p.dtype for p in folded.parameters()} == {torch.bfloat16}
    assert not folded(torch.randn(2, 3, 32, 32).bfloat16()).isnan().any()
    fold(small, "r1", 32)
    torch.testing.assert_close(small.state_dict(), before, rtol=0, atol=0)
    assert not any(isinstance(module, Folded) for module in small.modules())


def test_channels_last_weights_stay_channels_last(small):
    model = copy.deepcopy(small).to(memory_format=torch.channels_last)
    weight = fold(model, "r1", 32).layer2[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_r1_then_r3_is_the_plain_network_again(small):
    folded = fold(fold(small, "r1", 32), "r3", 32)
    torch.testing.assert_close(folded.state_dict(), small.state_dict(), rtol=0, atol=0)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(folded(x), small(x), rtol=0, atol=0)
    assert folded.fold_config == {"transform": "r0", "image_size": [32, 32]}
    model = seeded(Functional).double()
    back = fold(fold(model, "r1", 62), "r3", 62)
    torch.testing.assert_close(back(images(62)), model(images(62)), rtol=1e-12, atol=1e-12)
    assert type(back) is Functional


def test_folds_compose_as_the_group_does(small):
    assert fold(fold(small, "r1", 32), "m0", 32).fold_config["transform"] == d4.compose("r1", "m0")
    with pytest.raises(ModelError, match=r"64×64.*folded for 32×32"):
        fold(fold(small, "r1", 32), "r1", 64)
    with pytest.raises(ModelError, match="layer '0' is a folded network"):
        fold(nn.Sequential(fold(small, "r1", 32)), "r1", 32)


def test_moved_windows_show_in_the_state_dict_and_fail_a_strict_load(small):
    folded = fold(small, "r1", 32)
    assert folded.fold_config == {"transform": "r1", "image_size": [32, 32]}
    with pytest.raises(RuntimeError, match=r"conv1\.folded_pads"):
        copy.deepcopy(small).load_state_dict(folded.state_dict())
    with pytest.raises(RuntimeError, match=r"folded with .* same transform and image size"):
        fold(small, "r3", 32).load_state_dict(folded.state_dict())
    other = fold(seeded(lambda: torchvision.models.resnet18(num_classes=5)), "r1", 32)
    other.load_state_dict(folded.state_dict())
    # No window moves here, so that the state dict is that of a plain network.
    copy.deepcopy(small).load_state_dict(fold(small, "m3", 32).state_dict())
    copy.deepcopy(small).load_state_dict(fold(small, "r1", 33).state_dict())


def jit_traced(folded, x):
    return torch.jit.trace(folded, x)


def feature_extractor(folded, x):
    last = [name for name, _ in folded.named_children()][-1]
    extractor = create_feature_extractor(folded, {last: "logits"})
    return lambda x: extractor(x)["logits"]


def quantisation_prepared(folded, x):
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_fx

    return prepare_fx(folded, get_default_qconfig_mapping(), (x,))


def saved(folded, x):
    file = io.BytesIO()
    torch.save(folded, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def compiled(folded, x):
    # Only padding in a module's own code breaks the compiled graph.
    whole = not any(isinstance(module, FoldedUncompiledCalls) for module in folded.modules())
    return torch.compile(folded, backend="aot_eager", fullgraph=whole)


def exported(folded, x, size):
    return torch.export.export(folded, (x,), dynamic_shapes=({2: size, 3: size},)).module()


# Every way to run a folded network, given an example that only some of them need.
ROUTES = {
    "positional": lambda folded, x: folded,
    "keyword": lambda folded, x: lambda x: folded(x=x),
    "copied": lambda folded, x: copy.deepcopy(folded),
    "pickled": lambda folded, x: pickle.loads(pickle.dumps(folded)),
    "saved": saved,
    "vmap": lambda folded, x: torch.vmap(lambda image: folded(image[None])[0]),
    "compile": compiled,
    "compile dynamic": lambda folded, x: torch.compile(folded, backend="eager", dynamic=True),
    "export": lambda folded, x: torch.export.export(folded, (x,)).module(),
    "export dynamic": lambda folded, x: exported(folded, x, torch.export.Dim.AUTO),
    "fx": lambda folded, x: fx.symbolic_trace(folded),
    "feature extractor": feature_extractor,
    "quantisation": quantisation_prepared,
    "jit": jit_traced,
    "fx then jit": lambda folded, x: jit_traced(fx.symbolic_trace(folded), x),
}


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (torchvision.models.resnet18, 33),
        (torchvision.models.resnet18, 32),
        (lambda: Functional((1, 1, 1, 1)), 62),
        (Functional, 62),
    ],
    ids=["nothing moves", "layers move", "calls move", "padding moves"],
)
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_is_exact_at_the_folds_size_and_refuses_others(build, size, route):
    if build is not torchvision.models.resnet18 and route == "vmap":
        pytest.skip("the network averages over its batch")
    torch._dynamo.reset()
    model = seeded(build)
    x = torch.randn(2, 3, size, size)
    version = ROUTES[route](fold(model, "r1", size), x)  # nothing ran before
    with torch.no_grad():
        torch.testing.assert_close(version(x), model(d4.apply("r1", x)), rtol=1e-4, atol=1e-4)
        for other in ((size - 1, size - 1), (size, size + 1), (2 * size, 2 * size)):
            with pytest.raises((ValueError, RuntimeError, AssertionError), match=str(size)):
                version(torch.randn(2, 3, *other))


@pytest.mark.parametrize("size", [33, 32])
def test_export_with_a_dynamic_size_is_refused(size):
    folded = fold(seeded(torchvision.models.resnet18), "r1", size)
    with pytest.raises(torch._dynamo.exc.UserError, match="specialized"):
        exported(folded, torch.randn(2, 3, size, size), torch.export.Dim.DYNAMIC)


@pytest.mark.parametrize("size", [33, 32])
def test_folds_run_on_the_meta_device(size):
    folded = fold(seeded(torchvision.models.resnet18), "r1", size).to("meta")
    assert folded(torch.empty(2, 3, size, size, device="meta")).shape == (2, 1000)
    with pytest.raises(ModelError, match=f"{size}×{size} images"):
        folded(torch.empty(2, 3, size + 1, size, device="meta"))


def test_parts_of_a_folded_network_refuse_other_sizes():
    folded = fold(seeded(lambda: timm.create_model("resnet18")), "r1", 33)
    assert type(folded) is timm.models.resnet.ResNet
    for part in (folded.forward_features, folded.conv1, nn.Sequential(*list(folded.children())[:-1])):
        with pytest.raises(ModelError, match=r"r1 is folded into this network for 33×33 images.*got 32×33"):
            part(torch.randn(2, 3, 32, 33))


def test_the_size_is_checked_before_the_networks_own_code():
    class Subsampled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.end = nn.Conv2d(3, 4, 3), Values()

        def forward(self, image):
            return self.end(self.conv(image[:, :, ::2, ::2]))  # symmetric at odd sizes only

    folded = fold(seeded(Subsampled), "r1", 17)
    assert folded(image=torch.randn(2, 3, 17, 17)).shape == (2, 4 * 49)
    with pytest.raises(ModelError, match="got 18×18"):
        folded(image=torch.randn(2, 3, 18, 18))
    with pytest.raises(TypeError, match="first argument"):
        folded(torch.randn(2, 3, 17, 17).numpy())


def test_m3_and_r0_take_any_size(small):
    for t in ("r0", "m3"):
        x = torch.randn(2, 3, 40, 40)
        torch.testing.assert_close(fold(small, t, 33)(x), small(d4.apply(t, x)), rtol=1e-4, atol=1e-4)


def test_inputs_are_not_copied_if_torchs_own_padding_suffices(small):
    folded = fold(small, "r1", 32)
    changed = {name for name, module in folded.named_modules() if isinstance(module, Folded)}
    strided = {f"layer{i}.0.{name}" for i in (2, 3, 4) for name in ("conv1", "downsample.0")}
    assert changed == {"conv1", "maxpool"} | strided
    assert "FoldedConv2d" in repr(folded)
    (change,) = folded.maxpool.fold_change.calls.values()
    assert not any(change.pads)  # a maximum needs no copy: ceil mode reaches beyond the end
    (change,) = folded.layer2[0].downsample[0].fold_change.calls.values()
    assert change.pads == (-1, 0, 0, 0)  # a view


def test_gradients_match_those_of_the_plain_network(small):
    model = copy.deepcopy(small).double()
    folded = fold(model, "r1", 32)
    x = images(32)
    model(d4.apply("r1", x)).square().sum().backward()
    folded(x).square().sum().backward()
    turned = d4.apply("r3", model.layer2[0].conv1.weight.grad)
    torch.testing.assert_close(folded.layer2[0].conv1.weight.grad, turned, rtol=1e-9, atol=1e-9)
