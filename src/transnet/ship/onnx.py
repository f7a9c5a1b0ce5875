"""ONNX files, written by ``transnet prune --format onnx`` and read without trusting them.

The metadata entry ``transnet`` of a file holds its description: classes, heads, preprocessing. The graph takes
normalised ``images`` (B, C, S, S) and returns ``logits`` (B, K). The graph of a full model contains the transforms and
also returns ``heads`` (B, m, K).

Before ONNX Runtime reads a file, it is parsed, and refused if it refers to anything outside of itself (weights in other
files, operators of other libraries) or if its sizes are not plausible.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transnet.console import first_line
from transnet.errors import FileError
from transnet.runs.description import Description
from transnet.runs.files import parse_json

_KEY = "transnet"
_LARGEST_FILE = 2**31 - 1
_LARGEST_TENSOR = 2**29  # no layer of a wide network has a larger output for one image of the largest size


def write_onnx(module: nn.Module, example: Tensor, about: Description, path: Path, outputs: list[str]) -> None:
    """Write a network as one ONNX file for any batch size, with its description inside.

    ``example`` is a batch of more than one image, and ``outputs`` has the names of what the module returns for it.
    """
    onnx, _ = _libraries()
    program = torch.onnx.export(
        module, (example,), dynamo=True, verbose=False, input_names=["images"], output_names=outputs,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    if proto.ByteSize() > _LARGEST_FILE:
        raise FileError(f"the network is larger than an ONNX file, {_LARGEST_FILE:,} bytes: use `format` safetensors")
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {_KEY: json.dumps(about.to_dict(), sort_keys=True)})
    for node in proto.graph.node:  # the exporter notes paths of this machine here
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save_model(proto, str(path))


def open_onnx(path: Path) -> tuple[Description, Callable[[Tensor], Tensor]]:
    """Return a file's description, and the function from normalised images to logits (B, m, K), if it is safe."""
    onnx, runtime = _libraries()
    if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
        raise FileError(f"{path} is not a file of at most {_LARGEST_FILE:,} bytes; an .onnx file is needed")
    content = path.read_bytes()
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # a parser can raise anything about a damaged file
        raise FileError(f"{path} is damaged: not an ONNX file ({error})") from None
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    if _KEY not in metadata:
        raise FileError(f"{path} does not name its classes and preprocessing; export it with `transnet prune`")
    about = Description.of_export(parse_json(metadata[_KEY], f"{path}: its metadata"), str(path))
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
    if proto.functions or proto.graph.sparse_initializer:
        raise FileError(f"it {'defines functions' if proto.functions else 'has sparse tensors'}; an export has none")
    for node in proto.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise FileError(f"operator {node.op_type!r} of {node.domain!r}; only ONNX's own operators are run")
        for attribute in node.attribute:
            kind = onnx.AttributeProto.AttributeType.Name(attribute.type).lower()  # such as floats or sparse_tensor
            if "graph" in kind or "sparse" in kind:
                raise FileError(f"operator {node.op_type!r} has a {kind} inside; an export has none")
    attributes = [attribute for node in proto.graph.node for attribute in node.attribute]
    nested = [
        *(entry.t for entry in attributes if entry.HasField("t")),
        *(t for entry in attributes for t in entry.tensors),
    ]
    for tensor in (*proto.graph.initializer, *nested):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise FileError(f"{tensor.name!r} is in another file; only weights inside the file are read")
        _check_size(tensor.name, tensor.dims, _LARGEST_FILE)
    # Without the shapes that the file states, and for a batch of 1, shape inference computes all sizes.
    for value in proto.graph.input:
        for side in value.type.tensor_type.shape.dim:
            if not side.HasField("dim_value"):
                side.dim_value = 1
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise FileError(f"it is damaged: its shapes do not fit ({first_line(error)})") from None
    for value in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input):
        sides = [side.dim_value for side in value.type.tensor_type.shape.dim if side.HasField("dim_value")]
        _check_size(value.name, sides, _LARGEST_TENSOR)


def _check_size(name: str, sides: Sequence[int], most: int) -> None:
    if any(side < 0 for side in sides) or math.prod(max(side, 1) for side in sides) > most:
        raise FileError(f"{name!r} claims {'×'.join(map(str, sides))} values; at most {most:,} are plausible")


def _check_interface(session: Any, about: Description) -> str:
    """Compare the graph's inputs and outputs with the description, and return the output to read."""
    inputs = [(entry.name, entry.type, entry.shape) for entry in session.get_inputs()]
    sides = [about.channels, about.image_size, about.image_size]
    if (
        len(inputs) != 1 or inputs[0][:2] != ("images", "tensor(float)") or list(inputs[0][2][1:]) != sides
        or isinstance(inputs[0][2][0], int)
    ):  # fmt: skip
        wanted = "×".join(map(str, sides))
        raise FileError(f"it takes {inputs}; one input 'images' of (batch, {wanted}) is needed, for any batch size")
    output = "heads" if about.kind == "full" else "logits"
    if output not in [entry.name for entry in session.get_outputs()]:
        raise FileError(f"it has no output {output!r}; export it with `transnet prune`")
    return output
