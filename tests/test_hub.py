import dataclasses
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import timm
import torch

from trained import digits_run
from transnet import load
from transnet.errors import TransnetError
from transnet.runs.folder import Run
from transnet.ship import models
from transnet.ship.hub import SharedModel, model_card
from transnet.ship.models import open_model


def images():
    return torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("head", ["r0", "r1", "all"])
def test_a_saved_model_can_be_loaded(tmp_path, head):
    shared = SharedModel.from_run(digits_run(), head)
    shared.save_pretrained(tmp_path / "model")
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    again = SharedModel.from_pretrained(tmp_path / "model")
    assert again.about == shared.about
    x = images()
    assert torch.equal(again.network(x), shared.network(x))
    net = load(digits_run())
    wanted = net(x) if head == "all" else net.logits(x)[:, net.transforms.index(head)]
    assert torch.allclose(again.network(x), wanted, atol=1e-4)


def test_the_card_is_filled_from_the_result(tmp_path):
    SharedModel.from_run(digits_run(), "r1").save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    result = json.loads((digits_run() / "result.json").read_text())
    assert card.startswith("---\nlibrary_name: transnet\n")
    assert "pipeline_tag: image-classification" in card
    assert f"| **head r1** (this model) | {100 * result['test']['heads'][1]['accuracy']:.2f} |" in card
    assert f"| full | {100 * result['test']['full']['accuracy']:.2f} |" in card
    assert "its transform folded into the weights for 8×8 images" in card
    assert "hf:owner/name" in card
    assert "mean 0.30" in card
    assert ", trained with TransNet\n" in card
    assert f" in {result['train_seconds']:.0f} s on CPU" in card
    assert "transnet train digits --out runs/run --model resnet8-small --transforms r0,r1,r2" in card
    assert str(digits_run().parent) not in card


def test_the_card_of_a_plain_network_has_one_row():
    run = digits_run("r0", epochs=1)
    card = str(model_card(open_model(run).about, Run(run).result(), "me/mine"))
    assert ", trained plainly\n" in card
    assert "| **head r0** (this model) |" in card
    assert "| full |" not in card
    assert "all heads" not in card


def test_the_card_distinguishes_heads_of_one_transform():
    about = open_model(digits_run()).about
    result = Run(digits_run()).result()
    heads = tuple(
        dataclasses.replace(head, name=name, accuracy=accuracy)
        for head, name, accuracy in zip(result.test.heads, ("r0", "r1", "r0"), (0.1, 0.2, 0.3), strict=True)
    )
    result = dataclasses.replace(result, test=dataclasses.replace(result.test, heads=heads))
    kept = dataclasses.replace(about, kind="pruned", transforms=("r0",))
    card = str(model_card(kept, result, "me/mine"))
    assert "| **head r0** (this model) | 10.00 |" in card
    assert "| head r0#2 | 30.00 |" in card


def test_without_a_result_the_card_has_no_scores():
    about = open_model(digits_run()).about
    assert "accuracy" not in str(model_card(about, None, "me/mine"))


def test_a_pruned_timm_model_loads_with_plain_timm(tmp_path):
    run = digits_run(transforms="r0,r1", model="timm:test_resnet", epochs=1)
    shared = SharedModel.from_run(run)
    shared.save_pretrained(tmp_path)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = images()
    with torch.no_grad():
        assert torch.equal(model(x), shared.network(x))
    assert model.num_classes == 10
    assert timm.data.resolve_model_data_config(model)["input_size"] == [1, 8, 8]
    assert "hf-hub:" in (tmp_path / "README.md").read_text()


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(TransnetError, match="does not exist"):
        SharedModel.from_pretrained(tmp_path)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A local Hub that records the client's requests, over real HTTP."""
    requests = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(("GET", self.path))
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append(("POST", self.path, body))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    import huggingface_hub.constants
    import huggingface_hub.hf_api

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
    yield requests
    server.shutdown()
    server.server_close()


def test_an_unknown_repository_is_a_clear_error(hub, tmp_path):
    with pytest.raises(TransnetError, match=r"hf:nobody/nothing: the Hub has no such model|could not be downloaded"):
        models.download("hf:nobody/nothing", cache_dir=tmp_path)
    assert any("nobody/nothing" in path for _, path, *_ in hub)


def test_without_a_network_a_download_is_a_clear_error(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(TransnetError, match="hf:owner/name could not be downloaded"):
        models.download("hf:owner/name", cache_dir=tmp_path)


def test_pushing_creates_the_repository_on_the_hub(hub):
    with pytest.raises(Exception, match="401"):
        SharedModel.from_run(digits_run()).push_to_hub("me/mine", token="hf_test")
    _, path, body = next(request for request in hub if request[0] == "POST")
    assert path == "/api/repos/create"
    assert json.loads(body)["name"] == "mine"
