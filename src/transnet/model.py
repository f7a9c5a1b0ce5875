"""TransNet: the paper in one file: split and heads, Alg. 1 (its loss is at the end), prediction, pruning.

>>> net = TransNet(model, ("r0", "r1"))       # section 3.1: one head per transformation
>>> loss = net.loss(images, labels)           # Alg. 1
>>> scores = net.eval()(images)               # h_T: all heads, one shared backbone
>>> pruned = net.prune()                      # section 3.4: your own model again
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from transnet import d4, inputs
from transnet.batchnorm import check_split, copies_in_batch, restore_batch_norm, split_batch_norm
from transnet.classifier import find_classifiers, reset
from transnet.conventions import TimmConventions
from transnet.distillation import distillation_loss, student_of
from transnet.errors import ModelError
from transnet.head import HeadPlaceholder, HeadSlot, copy_module, detached_copies, run_heads, warn_if_images_interact

# --------------------------------------------------------------------------- section 3.1: h = g∘f, and one g_t per t


class TransNet(TimmConventions, nn.Module):
    """A classifier with one head per input transformation; use it to train any model that gives class scores.

    In training mode ``net(x)`` returns the logits of all heads, (B, m, K); pass them to `heads_loss`. In evaluation
    mode it returns class scores (B, K), like any classifier. The model is copied: build the optimizer from
    ``net.parameters()``. State-dict keys are ``backbone.*`` (f, under the model's own names) and ``heads.<i>.*``
    (g_t, in the order of ``transforms``), or ``heads.<i>.<k>.*`` if the model has several classifiers. It pools or
    averages the scores of every head as it does those of its own classifiers.

    Args:
        model: any module that maps images to class scores, or to an object that has them as ``.logits``.
        transforms: names of `transnet.d4`, as a sequence or ``"r0,r1"``, or ``("name", callable)`` pairs with a
            function from a batch of images to one of the same shape. A name may repeat: ``("r0", "r0")`` is the
            paper's "Architecture only".
        heads: ``"separate"``, or ``"shared"`` for one g under all transforms (the paper's "Algorithm only").
        init: ``"fresh"`` initialises the heads randomly, ``"copy"`` as copies of the model's own head.
        bn: batch-norm statistics over all copies (``"joint"``) or per transform (``"separate"``, Alg. 1 to the letter).
        head: path of the classifier, such as ``"head.fc"``, if it cannot be found automatically: a linear layer, a 1×1
            convolution or a small head of several layers. Give a sequence of paths for several classifiers.
        eval_output: what ``net(x)`` returns in evaluation mode: ``"full"`` for h_T(x), the mean of all heads' logits
            (B, K); ``"pruned"`` for the identity head alone (B, K), at one pass; ``"heads"`` for all logits (B, m, K).
    """

    transforms: tuple[str, ...]
    """The names of the transforms, one per head, in order."""

    def __init__(
        self,
        model: nn.Module,
        transforms: str | Iterable[inputs.Transform] = ("r0", "r1"),
        *,
        heads: Literal["separate", "shared"] = "separate",
        init: Literal["fresh", "copy"] = "fresh",
        bn: Literal["joint", "separate"] = "joint",
        head: str | Sequence[str] | None = None,
        eval_output: inputs.EvalOutput = "full",
    ) -> None:
        super().__init__()
        if isinstance(model, TransNet):
            raise TypeError("model: a TransNet was given, which already has its heads; give a plain model: net.prune()")
        inputs.one_of("heads", heads, ("separate", "shared"))
        inputs.one_of("init", init, ("fresh", "copy"))
        inputs.one_of("bn", bn, ("joint", "separate"))
        self.transforms, self._custom = inputs.parse_transforms(transforms)
        self._classifiers = find_classifiers(model, head, fresh=init == "fresh")
        self.eval_output = eval_output
        self._bn = bn
        self._interaction_checked = False  # see `warn_if_images_interact`

        self.backbone = copy_module(model)  # f: the model with its classifiers taken out
        own = [self.backbone.get_submodule(paths[0]) for paths in self._classifiers]
        self._in_place = len(own) > 1 or any(isinstance(layer, nn.Conv2d) for layer in own[0].modules())
        kind = HeadSlot if self._in_place else HeadPlaceholder
        stand_ins = [kind(paths[0], layer) for paths, layer in zip(self._classifiers, own, strict=True)]
        self._set_classifiers(self.backbone, [stand_in.train(model.training) for stand_in in stand_ins])
        self.heads = nn.ModuleList()
        for _ in range(1 if heads == "shared" else len(self.transforms)):
            g = copy.deepcopy(own)
            if init == "fresh":
                for classifier in g:
                    reset(classifier)
            self.heads.append(g[0] if len(g) == 1 else nn.ModuleList(g))
        if bn == "separate":
            split_batch_norm(self.backbone, len(self.transforms))
        self.heads.train(model.training)
        self.training = model.training  # not self.train(), which would also set frozen layers of the backbone

    @property
    def eval_output(self) -> inputs.EvalOutput:
        """The output in evaluation mode: ``"full"``, ``"pruned"`` or ``"heads"``. It can be assigned."""
        return self._eval_output

    @eval_output.setter
    def eval_output(self, value: inputs.EvalOutput) -> None:
        inputs.check_eval_output(value, self.transforms)
        self._eval_output = value

    def forward(self, x: Tensor) -> Tensor:
        """Return `logits` in training mode, and the output that ``eval_output`` names in evaluation mode."""
        if self.training or self._eval_output == "heads":
            return self.logits(x)
        if self._eval_output == "pruned":
            return self._logits(x, [self.transforms.index("r0")])[:, 0]
        return self.logits(x).mean(1)

    def logits(self, x: Tensor, *, across: bool = False) -> Tensor:
        """Return h_t(t(x)) for every t, in every mode: (B, m, K), with the heads in the order of ``transforms``.

        With ``across``, entry [b, i, j] of (B, m, m, K) is head j on copy i of image b. This needs no further pass.
        """
        return self._logits(x, range(len(self.transforms)), across=across)

    def _logits(self, x: Tensor, indices: Sequence[int], *, across: bool = False) -> Tensor:
        inputs.check_images(x, [self.transforms[i] for i in indices])
        copies = [self._transform(self.transforms[i], x) for i in indices]
        if self._bn == "separate":
            check_split(self.backbone)
        fewer = self._bn == "separate" and len(indices) != len(self.transforms)
        stand_ins: list[Any] = [self.backbone.get_submodule(paths[0]) for paths in self._classifiers]
        heads = [self._head(i) for i in indices]
        m, batch, together = len(copies), x.shape[0], torch.cat(copies) if len(copies) > 1 else copies[0]
        with copies_in_batch(self.backbone, m) if fewer else nullcontext():
            if self._in_place:  # class scores, one head after the other
                output = run_heads(self.backbone, stand_ins, heads, together, across=across)
            else:
                output = stand_ins[0].features(self.backbone, together)
        if not (self.training or inputs.traced(x) or self._interaction_checked):
            f = partial(run_heads, self.backbone, stand_ins, heads[:1]) if self._in_place else self.backbone
            self._interaction_checked = warn_if_images_interact(self.backbone, f, copies[0])
        if self._in_place:
            output = output.unflatten(0, (m, m, batch) if across else (m, batch))
            return output.permute(2, 1, 0, 3) if across else output.transpose(0, 1)
        if across:
            return torch.stack([g(output).unflatten(0, (m, batch)) for g in heads], dim=2).transpose(0, 1)
        features = output.unflatten(0, (m, batch))  # (m, B, …): one part per copy
        return torch.stack([heads[j](features[j]) for j in range(m)], dim=1)

    def _transform(self, name: str, x: Tensor) -> Tensor:
        if name not in self._custom:
            return d4.apply(name, x)
        y = self._custom[name](x.clone())  # it may work in place, and the copy of r0 is x itself
        inputs.check_transformed(name, x, y)
        return d4.keep_format(y, x)

    def _set_classifiers(self, backbone: nn.Module, layers: Iterable[nn.Module]) -> None:
        for paths, layer in zip(self._classifiers, layers, strict=True):
            for path in paths:
                backbone.set_submodule(path, layer)

    def _head(self, i: int) -> nn.Module:
        return self.heads[i if len(self.heads) > 1 else 0]

    # ------------------------------------------------------------------------------------------- section 3.2: Alg. 1

    def loss(self, x: Tensor, y: Tensor, **kw: Any) -> Tensor:
        """Return the loss of Alg. 1 for one batch, over all heads in every mode: ``loss_of(net.logits(x), y)``.

        Under DDP, Accelerate or `torch.compile` call ``net.loss_of(wrapped(x), y)`` in training mode.
        """
        return self.loss_of(self.logits(x), y, **kw)

    def loss_of(self, output: Tensor, y: Tensor, *, distillation: float = 0.0, **kw: Any) -> Tensor:
        """Return `heads_loss` of all heads' logits (B, m, K), plus ``distillation`` · `distillation_loss`."""
        loss = heads_loss(output, y, **kw)
        if distillation:
            loss = loss + distillation * distillation_loss(output, student_of(self.transforms, distillation))
        return loss

    # --------------------------------------------------------------------------------------- section 3.1: prediction

    def predict(
        self,
        x: Tensor,
        *,
        heads: str | Sequence[str] | None = None,
        average: Literal["logits", "probabilities"] = "logits",
        flip: bool = False,
    ) -> Tensor:
        """Return h_T(x), the mean over heads of h_t(t(x)): (B, K), at one pass of the backbone per head.

        It changes neither the mode nor gradients: call ``net.eval()`` and `torch.no_grad` as for any model.

        Args:
            x: a batch of images.
            heads: names of the heads to use, all by default; a repeated name means its first head.
            average: the mean of logits (the paper's "mean of the outputs") or of probabilities.
            flip: flip TTA: also average over h_t(t(flip(x))), at twice the passes.
        """
        inputs.one_of("average", average, ("logits", "probabilities"))
        indices = range(len(self.transforms)) if heads is None else inputs.head_indices(heads, self.transforms)
        inputs.check_images(x, [self.transforms[i] for i in indices])
        views = [x, d4.apply("m0", x)] if flip else [x]
        logits = torch.cat([self._logits(view, indices) for view in views], dim=1)
        return (logits if average == "logits" else logits.softmax(-1)).mean(1)

    # ------------------------------------------------------------------------------------------ section 3.4: pruning

    def keep(self, *names: str) -> "TransNet":
        """Return a copy with only the named heads; without r0, an ``eval_output`` of "pruned" becomes "full"."""
        indices = inputs.head_indices(names, self.transforms)
        if len(set(indices)) < len(indices):
            raise ModelError(f"keep: {' '.join(names)} names a head twice; each can be kept once")
        net = copy.deepcopy(self)
        net.transforms = tuple(self.transforms[i] for i in indices)
        net._custom = {name: self._custom[name] for name in net.transforms if name in self._custom}
        if self._eval_output == "pruned" and "r0" not in net.transforms:
            net.eval_output = "full"
        if len(self.heads) > 1:
            net.heads = nn.ModuleList([net.heads[i] for i in indices])
        if self._bn == "separate":
            split_batch_norm(net.backbone, len(indices))
        return net

    def prune(self, name: str = "r0", *, image_size: int | tuple[int, int] | None = None) -> nn.Module:
        """Return the model's own class with its own state-dict keys: the backbone and the identity head.

        Args:
            name: the head to keep. The transform of any head other than r0 is folded into the weights (see `fold`), so
                that the result takes the untransformed image, of ``image_size`` only.
            image_size: side, or (height, width), of the images; required unless ``name`` is r0.
        """
        inputs.check_prunable(name, self.transforms, custom=name in self._custom, sized=image_size is not None)
        model = copy_module(self.backbone)
        restore_batch_norm(model)
        g = copy.deepcopy(self._head(self.transforms.index(name)))
        self._set_classifiers(model, [g] if len(self._classifiers) == 1 else cast(nn.ModuleList, g))
        if name == "r0" or image_size is None:
            return model
        from transnet.folding.fold import fold

        return fold(model, name, image_size=image_size)

    def __deepcopy__(self, memo: dict[int, Any]) -> "TransNet":
        memo.update(detached_copies(self))
        net = memo[id(self)] = self.__new__(type(self))
        net.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return net

    def extra_repr(self) -> str:
        """Describe the network in its `repr`."""
        shared = ", heads=shared" if len(self.heads) < len(self.transforms) else ""
        return f"transforms={','.join(self.transforms)}{shared}, bn={self._bn}"


# ------------------------------------------------------------------------------------------------- Alg. 1, lines 4–7


def heads_loss(
    logits: Tensor,
    y: Tensor,
    *,
    criterion: Callable[[Tensor, Any], Tensor] | None = None,
    label_smoothing: float = 0.0,
    sample_weight: Tensor | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Return the mean over heads of the mean cross-entropy (Alg. 1), or of any other classification loss.

    Args:
        logits: (B, m, K), from ``net(x)`` in training mode or from ``net.logits(x)``.
        y: class indices (B,), probabilities (B, K) as from mixup and CutMix, or whatever ``criterion`` takes.
        criterion: called as ``criterion(logits[:, j], y)`` for each head j instead of the cross-entropy, such as
            ``nn.CrossEntropyLoss(weight=w)`` or, for several labels per image, ``nn.BCEWithLogitsLoss()``. It returns
            a scalar or one value per image. It replaces the settings below.
        label_smoothing: as in `torch.nn.functional.cross_entropy`.
        sample_weight: (B,), relative: each head's loss is the weighted mean over the batch.
        reduction: ``"mean"`` for the loss, ``"none"`` for one value per head (m,).
    """
    inputs.one_of("reduction", reduction, ("mean", "none"))
    if criterion is not None:
        inputs.check_criterion(logits, criterion, label_smoothing, sample_weight is not None, reduction)
        return torch.stack([inputs.mean_loss(criterion(head, y), len(logits)) for head in logits.unbind(1)]).mean()
    inputs.check_targets(logits, y, label_smoothing, sample_weight)
    batch, m, _ = logits.shape
    target = y if y.is_floating_point() else y.long()
    target = target.unsqueeze(1).expand(batch, m, *target.shape[1:]).flatten(0, 1)
    loss = nn.CrossEntropyLoss(reduction="none", label_smoothing=label_smoothing, ignore_index=inputs.NO_LABEL)
    each = loss(logits.flatten(0, 1), target).unflatten(0, (batch, m))
    if sample_weight is None:
        per_head = each.mean(0)
    else:
        share = sample_weight.to(torch.promote_types(each.dtype, torch.float32))  # float16 sums would overflow
        per_head = (each * (share / share.sum())[:, None]).sum(0)
    return per_head if reduction == "none" else per_head.mean()
