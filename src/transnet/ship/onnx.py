"""ONNX files, written by `transnet prune --format onnx` and read without trusting them.

Beside the graph a file holds its description under ``transnet`` in the metadata: classes, heads, preprocessing.
The graph takes ``images`` (B, C, S, S), normalised, and gives ``logits`` (B, K); that of a full model has its
transforms inside and also gives ``heads`` (B, m, K).

Before ONNX Runtime sees a file, it is parsed and refused where it reaches outside of itself (weights in other files,
operators of other libraries) or where its sizes are not plausible.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transnet.errors import FileError
from transnet.runs.description import Description
from transnet.runs.files import parse_json

KEY = "transnet"
LARGEST_FILE = 2**31 - 1
# One image at the largest side, through a wide network: no layer's output is larger.
LARGEST_TENSOR = 2**29
_DOMAINS = ("", "ai.onnx")


def open_graph(path: Path) -> tuple[Description, Callable[[Tensor], Tensor]]:
    """A file's description, and the function from normalised images to logits (B, m, K).

    Raises:
        FileError: where the file is damaged, not an export of TransNet, or not safe to run.
    """
    onnx, runtime = _libraries()
    if not path.is_file():
        raise FileError(f"{path} does not exist or is not a file; an .onnx file is needed")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise FileError(f"{path}: {size:,} bytes; an ONNX file has at most {LARGEST_FILE:,}")
    content = path.read_bytes()
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # whatever a damaged file makes its parser raise
        raise FileError(f"{path} is damaged: not an ONNX file ({error})") from None
    described = {entry.key: entry.value for entry in proto.metadata_props}
    if KEY not in described:
        raise FileError(f"{path}: says nothing of classes and preprocessing; export it with `transnet prune` as onnx")
    about = Description.of_export(parse_json(described[KEY], f"{path}: its metadata"), str(path))
    _check_graph(proto, path, onnx)
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # its complaints are raised as errors
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise FileError(f"{path}: ONNX Runtime cannot run it ({_first_line(error)})") from None
    _check_ends(session, about, path)
    whole = about.kind == "full"

    def heads(x: Tensor) -> Tensor:
        given = {"images": np.ascontiguousarray(x.float().cpu().numpy())}
        try:
            out = torch.from_numpy(session.run(["heads" if whole else "logits"], given)[0])
        except Exception as error:
            raise FileError(f"{path}: ONNX Runtime failed on the images ({_first_line(error)})") from None
        out = out if whole else out[:, None]
        wanted = (len(x), len(about.transforms), len(about.classes))
        if tuple(out.shape) != wanted:
            raise FileError(f"{path}: gives {tuple(out.shape)} for these images; its description promises {wanted}")
        return out

    return about, heads


def write_graph(module: nn.Module, example: Tensor, about: Description, path: Path, outputs: list[str]) -> None:
    """Write a network as one ONNX file of any batch size, with its description inside.

    Args:
        module: from ``images`` to ``outputs``.
        example: a batch of more than one image.
        about: goes into the metadata.
        path: the file.
        outputs: names of what the module returns.
    """
    onnx, _ = _libraries()
    program = torch.onnx.export(
        module, (example,), dynamo=True, verbose=False, input_names=["images"], output_names=outputs,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    if proto.ByteSize() > LARGEST_FILE:
        raise FileError(f"{proto.ByteSize():,} bytes; an ONNX file has at most {LARGEST_FILE:,}: use safetensors")
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {KEY: json.dumps(about.to_dict(), sort_keys=True)})
    for node in proto.graph.node:  # where the code lay on this machine is nobody's business
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save_model(proto, str(path))


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise FileError(f"ONNX needs {error.name}: pip install onnx onnxscript onnxruntime") from None
    return onnx, onnxruntime


def _check_graph(proto: Any, path: Path, onnx: Any) -> None:
    """Refuse what reaches outside of the file, hides code in subgraphs or claims sizes that cannot be."""
    if proto.functions:
        raise FileError(f"{path}: has functions of its own; an export of TransNet has none")
    for node in proto.graph.node:
        if node.domain not in _DOMAINS:
            raise FileError(f"{path}: operator {node.op_type!r} of {node.domain!r}; only ONNX's own are run")
        for attribute in node.attribute:
            for kind, what in (("GRAPH", "a graph"), ("SPARSE_TENSOR", "a sparse tensor")):
                if attribute.type in (getattr(onnx.AttributeProto, kind), getattr(onnx.AttributeProto, kind + "S")):
                    raise FileError(
                        f"{path}: operator {node.op_type!r} has {what} inside; an export of TransNet has none"
                    )
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise FileError(f"{path}: {tensor.name!r} lies in another file; only weights inside the file are read")
        if any(side < 0 for side in tensor.dims):
            raise FileError(f"{path}: {tensor.name!r} has sides {list(tensor.dims)}")
        _check_size(list(tensor.dims), tensor.name, path, LARGEST_FILE)
    _for_one_image(proto.graph)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise FileError(f"{path} is damaged: its shapes do not fit ({_first_line(error)})") from None
    for value in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input):
        sides = [side.dim_value for side in value.type.tensor_type.shape.dim if side.HasField("dim_value")]
        _check_size(sides, value.name, path, LARGEST_TENSOR)


def _for_one_image(graph: Any) -> None:
    """Take out what the file says of its sizes, and fix the batch: sizes made from its own are found out then."""
    for value in graph.input:
        for side in value.type.tensor_type.shape.dim:
            if not side.HasField("dim_value"):
                side.dim_value = 1
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def _tensors(proto: Any) -> Iterator[Any]:
    yield from proto.graph.initializer
    for sparse in proto.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_size(sides: list[int], name: str, path: Path, most: int) -> None:
    product = 1
    for side in sides:
        product *= max(side, 1)
    if product > most:
        raise FileError(f"{path}: {name!r} claims {'×'.join(map(str, sides))} values; at most {most:,} are plausible")


def _check_ends(session: Any, about: Description, path: Path) -> None:
    inputs = [(entry.name, entry.type, entry.shape) for entry in session.get_inputs()]
    sides = [about.channels, about.image_size, about.image_size]
    if len(inputs) != 1 or inputs[0][:2] != ("images", "tensor(float)") or list(inputs[0][2][1:]) != sides:
        wanted = "×".join(map(str, sides))
        raise FileError(f"{path}: takes {inputs}; one input 'images' of (batch, {wanted}) is needed")
    if isinstance(inputs[0][2][0], int):
        raise FileError(f"{path}: is fixed to batches of {inputs[0][2][0]}; export it with transnet prune")
    wanted_output = "heads" if about.kind == "full" else "logits"
    if wanted_output not in [entry.name for entry in session.get_outputs()]:
        raise FileError(f"{path}: has no output {wanted_output!r}; export it with `transnet prune` as onnx")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
