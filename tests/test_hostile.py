"""Crafted model files, as a stranger might send them: each ends in a clear error, and none in a large allocation."""

import json
import os
import pickle
import resource
import struct
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file

from trained import copy_of_run, digit_files, digits_run
from transnet.cli import main
from transnet.ship.export import export_run


@cache
def exported() -> Path:
    folder = digits_run().parent
    for head, format in (("r0", "safetensors"), ("r1", "safetensors"), ("r0", "onnx")):
        export_run(digits_run(), folder / f"{head}-{format}", head=head, format=format)
    return folder


def stranger(tmp: Path) -> Path:
    """A run as a stranger would send it, without the hash that would reveal changed weights."""
    folder = copy_of_run(tmp / "run")
    (folder / "result.json").unlink()
    return folder


def config(path: list, value):
    """A run whose config.json has another value somewhere."""

    def craft(tmp: Path) -> Path:
        folder = stranger(tmp)
        content = json.loads((folder / "config.json").read_text())
        place = content
        for key in path[:-1]:
            place = place[key]
        if value is KeyError:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        (folder / "config.json").write_text(json.dumps(content))
        return folder

    return craft


def pruned_config(head="r0", **changes):
    def craft(tmp: Path) -> Path:
        folder = copy_of_run(tmp / "pruned", exported() / f"{head}-safetensors")
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**content, **changes}))
        return folder

    return craft


def raw_config(content: bytes):
    def craft(tmp: Path) -> Path:
        folder = stranger(tmp)
        (folder / "config.json").write_bytes(content)
        return folder

    return craft


def raw_weights(content: bytes):
    def craft(tmp: Path) -> Path:
        folder = stranger(tmp)
        (folder / "model.safetensors").write_bytes(content)
        return folder

    return craft


def header(content, data: bytes = b"", length: int | None = None):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return raw_weights(struct.pack("<Q", len(text) if length is None else length) + text + data)


def entry(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def tensors(change):
    def craft(tmp: Path) -> Path:
        folder = stranger(tmp)
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")
        return folder

    return craft


def cut_weights(tmp: Path) -> Path:
    folder = stranger(tmp)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    return folder


def pickled(name: str):
    class Bomb:
        def __reduce__(self):
            return os.system, ("touch /tmp/transnet-was-here",)

    def craft(tmp: Path) -> Path:
        path = tmp / name
        if name.endswith(".pt2"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("model/data.pkl", pickle.dumps(Bomb()))
        else:
            path.write_bytes(pickle.dumps(Bomb()))
        return path

    return craft


def pickle_as_weights(tmp: Path) -> Path:
    return raw_weights(pickled("model.pt")(tmp).read_bytes())(tmp)


def pickle_as_onnx(tmp: Path) -> Path:
    path = tmp / "model.onnx"
    path.write_bytes(pickled("model.pt")(tmp).read_bytes())
    return path


def graph(change):
    """The pruned run's ONNX file, changed."""

    def craft(tmp: Path) -> Path:
        proto = onnx.load_model(str(exported() / "r0-onnx" / "model.onnx"))
        change(proto)
        path = tmp / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    return craft


def metadata(text: str):
    return graph(lambda proto: setattr(proto.metadata_props[0], "value", text))


def graph_config(**changes):
    def change(proto):
        content = json.loads(proto.metadata_props[0].value)
        proto.metadata_props[0].value = json.dumps({**content, **changes})

    return graph(change)


def external(location: str):
    def change(proto):
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return graph(change)


def add_constant_of_shape(proto):
    """A terabyte that would be allocated when the constants are folded."""
    shape = numpy_helper.from_array(np.array([2**20, 2**20], dtype=np.int64), "hostile_shape")
    proto.graph.initializer.append(shape)
    proto.graph.node.append(helper.make_node("ConstantOfShape", ["hostile_shape"], ["hostile"]))
    proto.graph.output.append(helper.make_tensor_value_info("hostile", TensorProto.FLOAT, None))


def add_growing_constant(proto):
    """A size that the file does not state: the batch's, many times over."""
    numbers = {"start": [0], "end": [1], "factor": [2**40]}
    proto.graph.initializer.extend(helper.make_tensor(n, TensorProto.INT64, [1], v) for n, v in numbers.items())
    proto.graph.node.extend(
        [
            helper.make_node("Shape", ["images"], ["shape"]),
            helper.make_node("Slice", ["shape", "start", "end"], ["batch"]),
            helper.make_node("Mul", ["batch", "factor"], ["sides"]),
            helper.make_node("ConstantOfShape", ["sides"], ["hostile"]),
        ]
    )
    proto.graph.output.append(helper.make_tensor_value_info("hostile", TensorProto.FLOAT, [1]))


def add_sparse_constant(proto):
    """Whose values lie in another file."""
    values = helper.make_tensor("values", TensorProto.FLOAT, [2], [0.0, 0.0])
    values.ClearField("float_data")
    values.data_location = TensorProto.EXTERNAL
    values.external_data.append(onnx.StringStringEntryProto(key="location", value="secret.bin"))
    indices = helper.make_tensor("indices", TensorProto.INT64, [2], [0, 1])
    sparse = helper.make_sparse_tensor(values, indices, [2])
    proto.graph.node.append(helper.make_node("Constant", [], ["hostile"], sparse_value=sparse))


def add_subgraph(proto):
    body = helper.make_graph([], "body", [], [])
    proto.graph.node.append(helper.make_node("If", ["images"], ["hostile"], then_branch=body, else_branch=body))


def add_context_node(proto):
    proto.graph.node.append(
        helper.make_node("EPContext", ["images"], ["hostile"], domain="com.microsoft", ep_cache_context="../../x.bin")
    )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def add_function(proto):
    proto.functions.append(helper.make_function("own", "f", ["a"], ["b"], [], [helper.make_opsetid("", 18)]))


def claim_dims(proto):
    proto.graph.initializer[0].dims[:] = [2**31, 2**31]


def negative_dims(proto):
    proto.graph.initializer[0].dims[:] = [-1, 3, 3, 3]


def rename_input(proto):
    proto.graph.input[0].name = "pixels"


def fix_batch(proto):
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 7


def no_metadata(proto):
    del proto.metadata_props[:]


def no_output(proto):
    proto.graph.output[0].name = "scores"


def named_pipe(tmp: Path) -> Path:
    folder = stranger(tmp)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    return folder


def endless_weights(tmp: Path) -> Path:
    folder = stranger(tmp)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    return folder


DATA, TRAIN = "data", "train"
FILES = {
    "a backbone outside of the folder": (config([TRAIN, "model"], "../../etc/passwd"), "name of a backbone"),
    "an absolute path as backbone": (config([TRAIN, "model"], "/etc/passwd"), "name of a backbone"),
    "timm from a local folder": (config([TRAIN, "model"], "timm:local-dir:/tmp/x"), "name of a backbone"),
    "timm from the Hub": (config([TRAIN, "model"], "timm:hf-hub:owner/name"), "name of a backbone"),
    "a tag with a path": (config([TRAIN, "model"], "timm:resnet18.../../x"), "name of a backbone"),
    "an unknown tag": (config([TRAIN, "model"], "timm:resnet18.evil"), "resnet18"),
    "a timm model that does not exist": (config([TRAIN, "model"], "timm:nothing_like_it"), "timm has no"),
    "a function of torchvision": (config([TRAIN, "model"], "torchvision:get_model"), "torchvision has no"),
    "an unknown backbone": (config([TRAIN, "model"], "__import__"), "unknown '__import__'"),
    "another backbone than the weights'": (config([TRAIN, "model"], "resnet14-small"), "does not fit"),
    "a backbone with billions of parameters": (config([TRAIN, "model"], "timm:vit_giant_patch14_224"), "does not fit"),
    "a list as backbone": (config([TRAIN, "model"], ["resnet8-small"]), "train.model is ['resnet8-small']"),
    "no backbone": (config([TRAIN, "model"], KeyError), "model is None"),
    "an image of a billion pixels a side": (config([DATA, "image_size"], 10**9), "data.image_size is 1000000000"),
    "a negative image size": (config([DATA, "image_size"], -8), "data.image_size is -8"),
    "a size that is a fraction": (config([DATA, "image_size"], 8.5), "data.image_size is 8.5"),
    "an endless stored size": (config([DATA, "stored_size"], 10**12), "data.stored_size is 1000000000000"),
    "a billion channels": (config([DATA, "channels"], 10**9), "data.channels is 1000000000"),
    "a million classes": (config([DATA, "classes"], ["x"] * 10**6), "data.classes is"),
    "more classes than the weights have": (config([DATA, "classes"], ["x"] * 99_999), "does not fit"),
    "a class that is not text": (config([DATA, "classes"], [{"a": 1}] * 10), "data.classes[0]"),
    "a million heads": (config([TRAIN, "transforms"], "r0," * 10**6), "transforms is"),
    "an unknown transform": (config([TRAIN, "transforms"], "r0,os.system"), "known are r0 r1"),
    "a mean that is not finite": (config([DATA, "mean"], [float("inf")]), "data.mean[0] is inf"),
    "a division by zero": (config([DATA, "std"], [0]), "data.std[0] is 0"),
    "no data at all": (config([DATA], None), "data is None"),
    "another schema": (config(["schema"], 99), "schema is 99"),
    "a config that is not JSON": (raw_config(b"import os"), "cannot be read"),
    "a config of zeros": (raw_config(b"\0" * 4096), "cannot be read"),
    "a config of endless depth": (raw_config(b'{"train":' * 200_000), "cannot be read"),
    "a config that is a named pipe": (named_pipe, "does not exist"),
    "an unknown kind": (pruned_config(kind="pickle"), "known are full pruned"),
    "a fold that is code": (pruned_config(fold={"transform": "r1"}), "fold: expected"),
    "folded weights called plain": (pruned_config("r1", fold=False), "does not fit"),
    "plain weights called folded": (pruned_config(transforms=["r1"], fold=True), "does not fit"),
    "folded for another size": (pruned_config("r1", image_size=12, stored_size=12), "does not fit"),
    "empty weights": (raw_weights(b""), "is damaged"),
    "a header longer than the file": (raw_weights(b"\xff" * 100), "is damaged"),
    "a header that is not JSON": (header(b"{" * 64), "is damaged"),
    "a header cut short": (header({"w": entry([1], [0, 4])}, length=10**6), "is damaged"),
    "offsets beyond the file": (header({"w": entry([2**40], [0, 2**42])}), "is damaged"),
    "shape and bytes that differ": (header({"w": entry([1000], [0, 4])}, b"\0" * 4), "is damaged"),
    "offsets that overlap": (header({"a": entry([1], [0, 4]), "b": entry([1], [2, 6])}, b"\0" * 6), "is damaged"),
    "a shape that overflows": (header({"w": entry([2**63, 2**63], [0, 4])}, b"\0" * 4), "is damaged"),
    "a negative shape": (header({"w": entry([-1], [0, 4])}, b"\0" * 4), "is damaged"),
    "an unknown type": (header({"w": entry([1], [0, 4], "CODE")}, b"\0" * 4), "is damaged"),
    "weights cut short": (cut_weights, "is damaged"),
    "weights that never end": (endless_weights, "does not exist"),
    "a tensor missing": (tensors(lambda w: w.pop("heads.0.weight")), "Missing key(s) in state_dict: "),
    "a tensor too many": (tensors(lambda w: w.update(evil=torch.ones(3))), "Unexpected key(s) in state_dict: "),
    "a wrong shape": (tensors(lambda w: w.update({"heads.0.bias": torch.ones(11)})), "size mismatch for heads.0.bias"),
    "integers as weights": (tensors(lambda w: w.update({"heads.0.bias": torch.ones(10).int()})), "torch.int32"),
    "weights that are not numbers": (tensors(lambda w: w["heads.0.bias"].fill_(float("nan"))), "NaN or infinite"),
    "a pickle": (pickled("model.pt"), "can run code in it"),
    "a pickled checkpoint": (pickled("last.ckpt"), "can run code in it"),
    "an exported program": (pickled("model.pt2"), "can run code in it"),
    "a pickle called safetensors": (pickle_as_weights, "is damaged"),
    "a pickle called ONNX": (pickle_as_onnx, "model.onnx"),
    "a graph without metadata": (graph(no_metadata), "does not name its classes"),
    "a description that is not JSON": (metadata("rm -rf"), "cannot be read"),
    "a description of endless depth": (metadata('{"a":' * 100_000), "cannot be read"),
    "a graph of other classes": (graph_config(classes=["x"] * 5), "its description says"),
    "a graph of another size": (graph_config(image_size=9, stored_size=9), "one input 'images'"),
    "a graph that claims all heads": (graph_config(kind="full", transforms=["r0", "r1"]), "no output 'heads'"),
    "weights in a system file": (external("/etc/passwd"), "is in another file"),
    "weights above the folder": (external("../../secret"), "is in another file"),
    "a terabyte of constants": (graph(add_constant_of_shape), "claims 1048576×1048576 values"),
    "a terabyte for each image": (graph(add_growing_constant), "claims 1099511627776 values"),
    "a sparse constant in another file": (graph(add_sparse_constant), "has a sparse_tensor inside"),
    "a graph inside the graph": (graph(add_subgraph), "has a graph inside"),
    "an operator that reads a file": (graph(add_context_node), "only ONNX's own operators"),
    "functions of its own": (graph(add_function), "defines functions"),
    "weights of impossible size": (graph(claim_dims), "claims"),
    "weights of negative size": (graph(negative_dims), "claims -1×3×3×3 values"),
    "another input": (graph(rename_input), "model.onnx"),
    "a fixed batch": (graph(fix_batch), "model.onnx"),
    "another output": (graph(no_output), "model.onnx"),
}  # fmt: skip


def test_there_are_at_least_fifty():
    assert len(FILES) >= 50


@pytest.mark.parametrize("name", FILES)
def test_a_crafted_file_ends_in_a_clear_error(name, tmp_path, capsys):
    craft, message = FILES[name]
    image = digit_files(tmp_path / "images", 1)[0]
    model = craft(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = main(["predict", str(model), str(image), "--device", "cpu"])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    error = capsys.readouterr().err
    assert status == 2, error
    assert error.startswith("transnet: ")
    assert message in error
    assert "Traceback" not in error
    assert len(error) < 1000
    assert grown < 300_000  # kilobytes, of which imported libraries use a part
    assert not Path("/tmp/transnet-was-here").exists()
