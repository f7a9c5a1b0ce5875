"""ONNX files, written by ``transnet prune --format onnx`` and read without trusting them.

The metadata entry ``transnet`` of a file holds its description: classes, heads, preprocessing. The graph takes
normalised ``images`` (B, C, S, S) and returns ``logits`` (B, K). The graph of a full model contains the transforms and
also returns ``heads`` (B, m, K).

Before ONNX Runtime reads a file, it is parsed, and refused if it refers to anything outside of itself (weights in other
files, operators of other libraries) or if its sizes are not plausible.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from transnet.console import first_line
from transnet.errors import FileError
from transnet.runs.description import Description
from transnet.runs.files import parse_json

if TYPE_CHECKING:
    from transnet.ship.models import Heads

KEY = "transnet"
LARGEST_FILE = 2**31 - 1
LARGEST_TENSOR = 2**29  # no layer of a wide network has a larger output for one image of the largest size


def write_onnx(module: nn.Module, example: Tensor, about: Description, path: Path, outputs: list[str]) -> None:
    """Write a network as one ONNX file for any batch size, with its description inside.

    Args:
        module: from ``images`` to ``outputs``.
        example: a batch of more than one image.
        about: the description.
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
        raise FileError(f"the network has {proto.ByteSize():,} bytes; an ONNX file has at most {LARGEST_FILE:,}: "
                        "use `format` safetensors")  # fmt: skip
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {KEY: json.dumps(about.to_dict(), sort_keys=True)})
    for node in proto.graph.node:  # the exporter notes paths of this machine here
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save_model(proto, str(path))


def open_onnx(path: Path) -> "tuple[Description, Heads]":
    """Return a file's description, and the function from normalised images to logits (B, m, K).

    Raises:
        FileError: if the file is damaged, not an export of TransNet, or not safe to run.
    """
    onnx, runtime = _libraries()
    if not path.is_file():
        raise FileError(f"{path} does not exist or is not a file; an .onnx file is needed")
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise FileError(f"{path} has {size:,} bytes; an ONNX file has at most {LARGEST_FILE:,}")
    content = path.read_bytes()
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # a parser can raise anything about a damaged file
        raise FileError(f"{path} is damaged: not an ONNX file ({error})") from None
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    if KEY not in metadata:
        raise FileError(f"{path} does not name its classes and preprocessing; export it with `transnet prune`")
    about = Description.of_export(parse_json(metadata[KEY], f"{path}: its metadata"), str(path))
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so there is nothing to log
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        _check_graph(proto, onnx)
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        output = _check_interface(session, about)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    except Exception as error:
        raise FileError(f"{path}: ONNX Runtime cannot run it ({first_line(error)})") from None

    def heads(x: Tensor) -> Tensor:
        images = np.ascontiguousarray(x.float().cpu().numpy())
        try:
            logits = torch.from_numpy(session.run([output], {"images": images})[0])
        except Exception as error:
            raise FileError(f"{path}: ONNX Runtime failed on the images ({first_line(error)})") from None
        logits = logits if output == "heads" else logits[:, None]
        wanted = (len(x), len(about.transforms), len(about.classes))
        if tuple(logits.shape) != wanted:
            raise FileError(f"{path} returns {tuple(logits.shape)} for these images; its description says {wanted}")
        return logits

    return about, heads


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise FileError(f"ONNX needs {error.name}: pip install onnx onnxscript onnxruntime") from None
    return onnx, onnxruntime


def _check_graph(proto: Any, onnx: Any) -> None:
    """Refuse a graph that refers to something outside of the file, has subgraphs or states impossible sizes."""
    if proto.functions:
        raise FileError("it defines functions; an export of TransNet has none")
    kinds = onnx.AttributeProto
    nested = {kinds.GRAPH: "a graph", kinds.GRAPHS: "a graph", kinds.SPARSE_TENSOR: "a sparse tensor",
              kinds.SPARSE_TENSORS: "a sparse tensor"}  # fmt: skip
    for node in proto.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise FileError(f"operator {node.op_type!r} of {node.domain!r}; only ONNX's own operators are run")
        for attribute in node.attribute:
            if attribute.type in nested:
                raise FileError(f"operator {node.op_type!r} has {nested[attribute.type]} inside; an export has none")
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise FileError(f"{tensor.name!r} is in another file; only weights inside the file are read")
        if any(side < 0 for side in tensor.dims):
            raise FileError(f"{tensor.name!r} has the sides {list(tensor.dims)}")
        _check_size(tensor.name, tensor.dims, LARGEST_FILE)
    _reset_shapes(proto.graph)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise FileError(f"it is damaged: its shapes do not fit ({first_line(error)})") from None
    for value in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input):
        sides = [side.dim_value for side in value.type.tensor_type.shape.dim if side.HasField("dim_value")]
        _check_size(value.name, sides, LARGEST_TENSOR)


def _reset_shapes(graph: Any) -> None:
    """Drop the shapes that the file states and set the batch size to 1, so that shape inference computes all sizes."""
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


def _check_size(name: str, sides: Sequence[int], most: int) -> None:
    if math.prod(max(side, 1) for side in sides) > most:
        raise FileError(f"{name!r} claims {'×'.join(map(str, sides))} values; at most {most:,} are plausible")


def _check_interface(session: Any, about: Description) -> str:
    """Compare the graph's inputs and outputs with the description, and return the output to read."""
    inputs = [(entry.name, entry.type, entry.shape) for entry in session.get_inputs()]
    sides = [about.channels, about.image_size, about.image_size]
    if len(inputs) != 1 or inputs[0][:2] != ("images", "tensor(float)") or list(inputs[0][2][1:]) != sides:
        wanted = "×".join(map(str, sides))
        raise FileError(f"it takes {inputs}; one input 'images' of (batch, {wanted}) is needed")
    if isinstance(inputs[0][2][0], int):
        raise FileError(f"it takes only batches of {inputs[0][2][0]}; export it with `transnet prune`")
    output = "heads" if about.kind == "full" else "logits"
    if output not in [entry.name for entry in session.get_outputs()]:
        raise FileError(f"it has no output {output!r}; export it with `transnet prune`")
    return output
