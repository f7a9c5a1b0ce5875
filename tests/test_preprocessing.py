"""The function on the export page gives the same pixels as `transnet predict` and as training."""

import io
import json
import re
import zipfile
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from transnet.cli import main
from transnet.data.augment import View
from transnet.data.pixels import Geometry, decode_image, with_channels
from transnet.runs.description import Description
from transnet.ship import export
from transnet.ship.models import Model, open_model

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "export.md"
SIZES = {
    "landscape": (97, 61), "portrait": (53, 88), "square": (71, 71), "one pixel wider": (36, 35),
    "one pixel narrower": (34, 35), "the stored size": (35, 35), "smaller": (20, 13), "large": (411, 307),
    "long strip": (501, 7), "high strip": (3, 200), "one pixel": (1, 1),
}  # fmt: skip


def photograph(width: int, height: int) -> Image.Image:
    """Smooth colours with noise, different for every size."""
    random = np.random.default_rng([width, height])
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = np.stack([np.sin(x / 7), np.cos(y / 5), np.sin((x + y) / 9)], -1)
    return Image.fromarray((128 + 90 * waves + random.normal(0, 12, waves.shape)).clip(0, 255).astype(np.uint8))


def saved(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def photographs() -> dict[str, bytes]:
    colour = photograph(83, 58)
    alpha = photograph(83, 58).getchannel(0)
    see_through = colour.copy()
    see_through.putalpha(alpha)
    grey_through = colour.convert("L")
    grey_through.putalpha(alpha)
    deep = np.random.default_rng(0).integers(0, 2**16, (41, 66), dtype=np.uint16)
    files = {name: saved(photograph(*size)) for name, size in SIZES.items()}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files[f"orientation {orientation}"] = saved(photograph(70, 43), "JPEG", exif=exif)
    return files | {
        "broken EXIF": saved(colour, "JPEG", exif=b"Exif\0\0nonsense"),
        "grey": saved(colour.convert("L"), "JPEG"),
        "grey with alpha": saved(grey_through),
        "16-bit grey": saved(Image.fromarray(deep)),
        "black and white": saved(colour.convert("1")),
        "RGBA": saved(see_through, "WEBP", lossless=True),
        "palette": saved(colour.quantize(64)),
        "transparent palette": saved(colour.quantize(64), transparency=3),
        "animation": saved(colour, "GIF", save_all=True, append_images=[photograph(83, 58)]),
        "CMYK": saved(colour.convert("CMYK"), "JPEG"),
    }


def documented():
    """The page's first Python block, run with nothing but what it imports itself."""
    names = {}
    code = re.search(r"^```python\n(import numpy.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    exec(code, names)
    return names["preprocess"]


@pytest.fixture(scope="module", params=["colour", "grey"])
def exported(request, tmp_path_factory) -> Model:
    """An ONNX export with a margin of an odd number of pixels around the crop."""
    colour = request.param == "colour"
    mean, std = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if colour else ((0.31,), (0.27,))
    torch.manual_seed(0)
    about = Description("full", "resnet8-small", ("r0", "r1"), tuple("abcde"), len(mean), 32, 35, mean, std)
    folder = tmp_path_factory.mktemp(request.param)
    export.write_model(about.build().eval(), about, folder, "onnx")
    return open_model(folder / "model.onnx")


def test_the_documented_function_needs_only_numpy_and_pillow():
    imports = PAGE.read_text().partition("def preprocess")[0].rpartition("```python\n")[2]
    assert imports.strip() == "import numpy as np\nfrom PIL import Image, ImageOps"


@pytest.mark.parametrize("name", photographs())
def test_it_gives_the_pixels_of_predict_and_of_training(exported, name):
    about, encoded = exported.about, photographs()[name]
    given = documented()(io.BytesIO(encoded), json.loads(json.dumps(about.to_dict())))
    assert given.dtype == np.float32
    assert given.shape == (about.channels, 32, 32)
    assert np.array_equal(given, exported.prepare(encoded).numpy())
    pixels = decode_image(encoded)
    view = View.create(Geometry.square(32, stored=35), mean=about.mean, std=about.std)
    stored = torch.from_numpy(view.geometry.fit(with_channels(pixels, about.channels)).copy())
    assert np.array_equal(given, view.centre(stored[None])[0].numpy())


def test_onnx_runtime_gives_the_probabilities_of_predict(exported, tmp_path, capsys):
    import onnxruntime

    session = onnxruntime.InferenceSession(exported.source)
    settings = json.loads(session.get_modelmeta().custom_metadata_map["transnet"])
    wanted = {}
    for name, encoded in photographs().items():
        (tmp_path / f"{name}.png").write_bytes(encoded)
        images = documented()(tmp_path / f"{name}.png", settings)[None]
        logits = session.run(["logits"], {settings["input"]["name"]: images})[0][0].astype(np.float64)
        p = np.exp(logits - logits.max())
        wanted[name] = (settings["classes"][logits.argmax()], p.max() / p.sum())
    assert main(["predict", exported.source, str(tmp_path)]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {Path(entry["image"]).stem for entry in entries} == set(wanted)
    for entry in entries:
        label, probability = wanted[Path(entry["image"]).stem]
        assert entry["class"] == label
        assert entry["probability"] == pytest.approx(probability, abs=1e-6)


def test_every_format_carries_the_same_settings(tmp_path):
    import onnx

    about = Description("pruned", "resnet8-small", ("r0",), ("a", "b"), 3, 16, 18, (0.5,) * 3, (0.2,) * 3)
    found = {}
    for format in get_args(export.Format):
        folder = tmp_path / format
        folder.mkdir()
        export.write_model(about.build().eval(), about, folder, format)
        found[format] = json.loads((folder / "config.json").read_text())
    metadata = onnx.load(tmp_path / "onnx" / "model.onnx").metadata_props
    found["in onnx"] = json.loads({entry.key: entry.value for entry in metadata}["transnet"])
    with zipfile.ZipFile(tmp_path / "pt2" / "model.pt2") as archive:
        (entry,) = [name for name in archive.namelist() if name.endswith("/config.json")]
        found["in pt2"] = json.loads(archive.read(entry))
    wanted = json.loads(json.dumps(about.to_dict()))
    assert found == dict.fromkeys(found, wanted)
    assert {"preprocessing", "input", "classes", "transforms", "channels", "mean", "std"} < set(wanted)


def test_predict_refuses_a_model_with_other_rules(tmp_path, capsys):
    about = Description("pruned", "resnet8-small", ("r0",), ("a", "b"), 3, 16, 18, (0.5,) * 3, (0.2,) * 3)
    export.write_model(about.build().eval(), about, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["preprocessing"]["interpolation"] = "bicubic"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "photo.png").write_bytes(saved(photograph(20, 30)))
    assert main(["predict", str(tmp_path), str(tmp_path / "photo.png")]) == 2
    assert "preprocessing is {" in capsys.readouterr().err


def test_timm_resizes_an_export_to_the_stored_size(tmp_path):
    # 23 / (23 / 30) is slightly below 30, which timm would round down to 29
    about = Description("pruned", "timm:resnet18", ("r0",), ("a", "b"), 3, 23, 30, (0.5,) * 3, (0.2,) * 3)
    export.write_model(about.build().eval(), about, tmp_path)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    photo = photograph(57, 44)
    resized = transform.transforms[0](photo)
    assert min(resized.size) == 30
    assert transform(photo).shape == (3, 23, 23)
