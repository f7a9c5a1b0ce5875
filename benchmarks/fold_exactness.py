"""How exact folding is, beside the paper's plain rule, and which architectures can be folded.

    python benchmarks/fold_exactness.py --out results/fold_exactness.json

Networks have random weights and random batch norm statistics; errors are max |fold(x) − model(t(x))| / max
|model(t(x))| in float64, the worst over the seven elements but r0. The plain rule is Prop. 1 to the letter: t⁻¹ on
every kernel and nothing else.
"""

import copy

import timm
import torch
import torchvision
from torch import nn

from measuring import options, write
from transnet import d4
from transnet.folding.fold import fold

COMPARED = [
    "timm:resnet18", "timm:resnet50", "timm:resnet18d", "timm:mobilenetv3_small_050", "timm:tf_efficientnet_b0",
    "timm:convnext_atto", "timm:regnetx_002", "timm:ghostnet_100", "torchvision:densenet121",
    "torchvision:squeezenet1_1",
]  # fmt: skip
ALSO = [
    "timm:seresnet18", "timm:skresnet18", "timm:resnest14d", "timm:ecaresnet26t", "timm:resnetblur18",
    "timm:resnetv2_50x1_bit", "timm:nf_resnet26", "timm:convnextv2_atto", "timm:repvgg_a0", "timm:mobileone_s0",
    "timm:tf_mixnet_s", "timm:mobilenetv4_conv_small", "timm:selecsls42", "timm:ese_vovnet19b_dw", "timm:dpn48b",
    "timm:hrnet_w18_small", "timm:dla34", "timm:xception41", "timm:inception_v4", "timm:pnasnet5large",
    "timm:poolformer_s12", "timm:fastvit_t8", "timm:mobilevit_xxs", "timm:inception_next_tiny", "timm:hgnetv2_b0",
    "torchvision:googlenet", "torchvision:inception_v3", "torchvision:mobilenet_v2", "torchvision:mnasnet0_5",
    "torchvision:shufflenet_v2_x0_5", "torchvision:efficientnet_b0", "torchvision:regnet_y_400mf",
]  # fmt: skip
REFUSED = {
    "torchvision:vgg11": (64, {}), "torchvision:alexnet": (224, {}),
    "timm:vit_tiny_patch16_224": (32, {"img_size": 32}),
    "timm:swin_tiny_patch4_window7_224": (56, {"img_size": 56}), "timm:mixer_s32_224": (64, {"img_size": 64}),
    "timm:levit_128s": (224, {}), "timm:coatnet_0_rw_224": (64, {"img_size": 64}),
    "timm:maxvit_nano_rw_256": (64, {"img_size": 64}), "timm:botnet26t_256": (64, {"img_size": 64}),
    "timm:lambda_resnet26t": (64, {}), "timm:tresnet_m": (64, {}), "timm:tf_efficientnet_cc_b0_4e": (64, {}),
    "timm:efficientvit_b0": (64, {}),
}  # fmt: skip
OTHERS = d4.NAMES[1:]


def network(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    source, name = name.split(":")
    if source == "torchvision" and name in ("googlenet", "inception_v3"):
        options |= {"init_weights": True, "aux_logits": False}
    build = timm.create_model if source == "timm" else torchvision.models.get_model
    model = build(name, num_classes=10, **options)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.double().eval()


def plain_rule(model: nn.Module, t: str) -> nn.Module:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = d4.apply(d4.inverse(t), module.weight.data)
    return model


@torch.no_grad()
def error(model: nn.Module, turned: nn.Module, t: str, side: int) -> float:
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    want = model(d4.apply(t, x))
    return ((turned(x) - want).abs().max() / want.abs().max()).item()


def main() -> None:
    args = options(__doc__).parse_args()
    compared, exact, refused = [], {}, {}
    for name in COMPARED:
        model = network(name)
        for side in (64, 96, 65):
            row = {"model": name, "size": side}
            row["plain"] = {t: error(model, plain_rule(model, t), t, side) for t in OTHERS}
            row["exact"] = {t: error(model, fold(model, t, side), t, side) for t in OTHERS}
            compared.append(row)
            print(name, side, f"{max(row['plain'].values()):.1e} {max(row['exact'].values()):.1e}", flush=True)
    for name in ALSO:
        model = network(name)
        exact[name] = max(error(model, fold(model, t, 96), t, 96) for t in ("r1", "r2", "m2"))
        print(name, f"{exact[name]:.1e}", flush=True)
    for name, (side, changes) in REFUSED.items():
        try:
            fold(network(name, **changes), "r1", side)
        except ValueError as reason:
            refused[name] = str(reason)
            print(name, reason, flush=True)
    write(args.out, "cpu", {"compared": compared, "exact": exact, "refused": refused})


if __name__ == "__main__":
    main()
