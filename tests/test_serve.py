import base64
import http.client
import io
import json
import math
import socket
import struct
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from browser import chromium
from data_files import encoded, noise
from trained import digit_files, digits_run
from transnet import anytime, d4
from transnet.cli import main
from transnet.errors import ConfigError, DataError
from transnet.ship.export import export_run
from transnet.ship.models import open_model
from transnet.ship.serve import LARGEST_UPLOAD, PageServer, head_views


def views(model, image):
    """What the page receives about an image."""
    return json.loads(json.dumps(head_views(model, image)))


@pytest.fixture(scope="module")
def server():
    server = PageServer(open_model(digits_run()), confidence=0.5)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def request(server, method="GET", path="/", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        given.setdefault("Content-Length", str(len(body)))
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_the_page_does_not_name_the_folders_above_the_model():
    run = digits_run()
    for source, name in ((run, run.name), (f"{run}/../{run.name}/", run.name)):
        server = PageServer(open_model(source))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            page = request(server)[1].decode()
        finally:
            server.shutdown()
            server.server_close()
        assert f'"name": {json.dumps(name)}' in page
        assert str(run.parent) not in page


def test_the_page_shows_the_networks_predictions(tmp_path):
    model = open_model(digits_run())
    file = digit_files(tmp_path, 1)[0].read_bytes()
    shown = views(model, file)
    heads = model.heads(model.prepare(file)[None])[0]
    assert [head["name"] for head in shown["heads"]] == ["r0", "r1", "r2"]
    for head, logits in zip(shown["heads"], heads, strict=True):
        assert head["classes"][0]["label"] == model.about.classes[int(logits.argmax())]
        assert head["classes"][0]["probability"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
    assert shown["ensemble"][0]["probability"] == pytest.approx(float(heads.mean(0).softmax(-1).max()), abs=1e-5)
    first, second = heads[0].topk(2).values.tolist()
    assert shown["steps"][0]["lead"] == pytest.approx(first - second, abs=1e-4)
    first, second = heads[:2].sum(0).topk(2).values.tolist()
    assert shown["steps"][1]["lead"] == pytest.approx(first - second, abs=1e-4)
    assert shown["steps"][0]["label"] == shown["heads"][0]["classes"][0]["label"]
    assert shown["steps"][-1]["label"] == shown["ensemble"][0]["label"]
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(file))))
    view = base64.b64decode(shown["heads"][1]["view"].partition(",")[2])
    picture = np.asarray(Image.open(io.BytesIO(view)))
    assert np.array_equal(picture, d4.apply("r1", pixels).numpy())


def test_the_view_of_a_folded_head_is_the_image_itself(tmp_path):
    export_run(digits_run(), tmp_path / "r1", head="r1")
    shown = views(open_model(tmp_path / "r1"), digit_files(tmp_path / "images", 1)[0].read_bytes())
    assert not shown["early_exit"]
    whole = views(open_model(digits_run()), digit_files(tmp_path / "images", 1)[0].read_bytes())
    assert shown["heads"][0]["view"] == whole["heads"][0]["view"]
    assert shown["heads"][0]["classes"][0]["label"] == whole["heads"][1]["classes"][0]["label"]


def test_the_page_loads_nothing_from_elsewhere(server):
    response, content = request(server)
    assert response.status == 200
    policy = response.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b"http://" not in content
    assert b"https://" not in content
    assert b"__FACTS__" not in content


def test_an_image_gets_predictions(server, tmp_path):
    response, content = request(server, "POST", "/predict", digit_files(tmp_path, 1)[0].read_bytes())
    assert response.status == 200
    assert len(json.loads(content)["heads"]) == 3


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_is_refused(server, host):
    response, content = request(server, Host=host)
    assert response.status == 403
    assert b"answers at http://127.0.0.1" in content


def test_pages_of_other_sites_are_refused(server, tmp_path):
    body = digit_files(tmp_path, 1)[0].read_bytes()
    assert request(server, "POST", "/predict", body, Origin="http://evil.example")[0].status == 403
    assert request(server, "POST", "/predict", body, Origin="null")[0].status == 403
    own = f"http://127.0.0.1:{server.server_address[1]}"
    assert request(server, "POST", "/predict", body, Origin=own)[0].status == 200


@pytest.mark.parametrize(
    ("length", "status"), [(str(LARGEST_UPLOAD + 1), 413), ("9" * 30, 413), ("-1", 411), ("ten", 411), ("", 411)]
)
def test_a_wrong_length_is_refused_without_reading_the_body(server, length, status):
    response, content = request(server, "POST", "/predict", b"", Content_Length=length)
    assert response.status == status
    assert json.loads(content)["error"]


def test_a_client_that_disconnects_causes_no_error_message(server, tmp_path, capfd):
    content, port = digit_files(tmp_path, 1)[0].read_bytes(), server.server_address[1]
    with server.lock:  # so that the client is gone before the answer
        for _ in range(3):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends with a reset
            head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(content)}\r\n\r\n"
            client.sendall(head.encode() + content)
            time.sleep(0.2)
            client.close()
    assert request(server, "POST", "/predict", content)[0].status == 200
    time.sleep(0.2)
    assert capfd.readouterr().err == ""


def test_many_requests_at_once_are_all_answered(server, tmp_path):
    content, found = digit_files(tmp_path, 1)[0].read_bytes(), []
    threads = [
        threading.Thread(target=lambda: found.append(request(server, "POST", "/predict", content)[0].status))
        for _ in range(60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 60


def test_the_ipv6_loopback_address_answers_to_localhost():
    try:
        server = PageServer(open_model(digits_run()), "::1")
    except ConfigError:
        pytest.skip("no IPv6 here")
    with server:
        assert server.answers_to(f"localhost:{server.server_address[1]}")
        assert not server.answers_to(f"evil.example:{server.server_address[1]}")


def test_only_jpeg_png_and_webp_are_accepted(server):
    image = Image.fromarray(np.zeros((8, 8), np.uint8))
    for format in ("GIF", "BMP", "TIFF", "PPM"):
        file = io.BytesIO()
        image.save(file, format)
        response, content = request(server, "POST", "/predict", file.getvalue())
        assert response.status == 422
        assert b"not a JPEG, PNG or WebP" in content
    for body in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, encoded(noise(0, 40, 40))[:300]):
        assert request(server, "POST", "/predict", body)[0].status == 422
    for format in ("JPEG", "PNG", "WEBP"):
        file = io.BytesIO()
        image.convert("RGB").save(file, format)
        assert request(server, "POST", "/predict", file.getvalue())[0].status == 200


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded():
    file = io.BytesIO()
    Image.new("1", (7000, 7000)).save(file, "PNG")
    with pytest.raises(DataError, match="7000×7000 pixels; at most 40 million are accepted"):
        views(open_model(digits_run()), file.getvalue())
    file = io.BytesIO()
    Image.new("1", (20000, 9500)).save(file, "PNG")
    with pytest.raises(DataError, match="too many pixels; at most 40 million are accepted"):
        views(open_model(digits_run()), file.getvalue())


def test_other_paths_are_not_found(server):
    for path in ("/config.json", "/../etc/passwd"):
        for method in ("GET", "POST", "DELETE"):
            response, content = request(server, method, path, b"x")
            assert response.status == 404
            assert "there is only the page" in json.loads(content)["error"]


@pytest.mark.parametrize(
    ("path", "methods", "allowed"),
    [
        ("/", ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"), "GET, HEAD"),
        ("/predict", ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"), "POST"),
    ],
)
def test_another_method_is_refused_and_the_allowed_ones_are_listed(server, path, methods, allowed):
    for method in methods:
        response, content = request(server, method, path, b"x")
        assert (response.status, response.getheader("Allow")) == (405, allowed)
        assert response.getheader("Content-Type") == "application/json"
        if method != "HEAD":
            assert json.loads(content)["error"].startswith(f"{method} of {path} is not answered")
        assert request(server, method, path, Host="evil.example")[0].status == 403


def test_malformed_requests_are_refused_in_the_same_form(server):
    for method, path, status in (("BREW", "/", 501), ("GET", "/" + "x" * 70_000, 414)):
        response, content = request(server, method, path)
        assert response.status == status
        assert json.loads(content)["error"]


def test_head_is_the_page_without_its_body(server):
    page, content = request(server)
    head, nothing = request(server, "HEAD")
    assert head.status == 200
    assert nothing == b""
    for name in ("Content-Type", "Content-Length"):
        assert head.getheader(name) == page.getheader(name)
    assert head.getheader("Content-Length") == str(len(content))


def test_a_form_is_refused_with_the_right_command(server, tmp_path):
    image = digit_files(tmp_path, 1)[0].read_bytes()
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + image + b"\r\n--x--\r\n"
    response, content = request(server, "POST", "/predict", form, Content_Type="multipart/form-data; boundary=x")
    assert response.status == 415
    assert f"curl --data-binary @FILE {server.url}predict" in json.loads(content)["error"]


def test_a_refused_client_that_sends_too_much_can_read_the_reason(server):
    for method, headers, status in (
        ("POST", {}, 413), ("PUT", {}, 405), ("POST", {"Origin": "http://evil.example"}, 403),
        ("POST", {"Content_Type": "multipart/form-data; boundary=x"}, 415),
    ):  # fmt: skip
        response, content = request(server, method, "/predict", b"x" * (LARGEST_UPLOAD + 10**6), **headers)
        assert response.status == status
        assert json.loads(content)["error"]


def test_mistakes_end_with_status_2(tmp_path, server, capsys):
    port = str(server.server_address[1])
    for words, message in (
        ([str(tmp_path / "nothing")], "does not exist"),
        ([str(digits_run()), "--confidence", "2"], "a number from 0 to 1"),
        ([str(digits_run()), "--host", ""], "--host: none given; 127.0.0.1 answers this machine only"),
        ([str(digits_run()), "--port", port], "--port 0 takes any free one"),
        ([str(digits_run()), "--port", "99999"], "--port: 99999 was given; a number from 0"),
        ([str(digits_run()), "--port", "-1"], "--port: -1 was given; a number from 0"),
    ):
        assert main(["serve", *words, "--no-browser"]) == 2
        assert message in capsys.readouterr().err


def test_the_page_in_a_browser_shows_the_heads_of_a_dropped_image(server, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    paths = digit_files(tmp_path, 20)
    (tmp_path / "notes.png").write_text("no image")
    # An image for which the second head chooses the same class, so that some thresholds stop after two heads.
    candidates = [(path, views(server.model, path.read_bytes())) for path in paths[1:]]
    chosen, wanted = next(
        (path, shown) for path, shown in candidates if 1.3 * shown["steps"][0]["lead"] < shown["steps"][1]["lead"]
    )
    with chromium() as driver:
        driver.get(server.url)
        text = lambda name: driver.find_element(By.ID, name).text  # noqa: E731
        assert text("title") == f"Try {digits_run().name}"
        assert "10 classes, heads r0 r1 r2" in text("about")
        driver.find_element(By.ID, "file").send_keys(str(chosen))
        WebDriverWait(driver, 20).until(lambda _: text("prediction"))
        cards = driver.find_elements(By.CSS_SELECTOR, "#heads .card")
        assert [card.find_element(By.TAG_NAME, "h3").text[:2] for card in cards] == ["r0", "r1", "r2"]
        loaded = "return [...document.images].every(i => i.complete && i.naturalWidth > 0)"
        WebDriverWait(driver, 5).until(lambda d: d.execute_script(loaded))
        assert text("prediction").startswith(wanted["ensemble"][0]["label"] + ",")
        agree = sum(head["classes"][0]["label"] == wanted["ensemble"][0]["label"] for head in wanted["heads"])
        assert text("agreement") == f"{agree} of 3 heads chose this class."

        def threshold(value):
            script = "const s = arguments[0]; s.value = arguments[1]; s.dispatchEvent(new Event('input'))"
            driver.execute_script(script, driver.find_element(By.ID, "confidence"), value)
            return text("saved")

        assert threshold(0).startswith("1 of 3 passes")
        assert "so stop" in text("steps")
        assert threshold(1).startswith("3 of 3 passes")
        assert "no head is left" in text("steps")
        assert [line.partition(":")[0] for line in text("steps").splitlines()] == [
            "r0 alone", "r0 and r1 together", "r0, r1 and r2 together",
        ]  # fmt: skip
        x = server.model.prepare(chosen.read_bytes())[None]
        one, two, _ = (step["lead"] for step in wanted["steps"])
        seen = []
        for odds in (0.9 * one, 1.1 * one, 0.95 * two, 1.05 * two):  # either side of each stop
            confidence = 1 / (1 + math.exp(-odds))
            seen.append(int(anytime(server.model.net, x, confidence)[1]))
            assert threshold(confidence).startswith(f"{seen[-1]} of 3 passes"), (odds, one, two)
        assert set(seen) == {1, 2, 3}
        driver.save_screenshot(str(tmp_path / "page.png"))
        assert (tmp_path / "page.png").stat().st_size > 10_000

        # Now drop a file instead of choosing one.
        drop = """
            const place = document.getElementById("drop");
            const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0)), carried = new DataTransfer();
            carried.items.add(new File([bytes], "dropped.png", {type: "image/png"}));
            place.dispatchEvent(new DragEvent("drop", {dataTransfer: carried, bubbles: true}));
        """
        driver.execute_script(drop, base64.b64encode(paths[0].read_bytes()).decode())
        WebDriverWait(driver, 20).until(lambda _: text("note") == "dropped.png")
        driver.find_element(By.ID, "file").send_keys(str(tmp_path / "notes.png"))
        WebDriverWait(driver, 20).until(lambda _: "not a JPEG, PNG or WebP" in text("note"))
        severe = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert all("422" in entry["message"] for entry in severe)
        assets = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert all(name.startswith((server.url, "data:", "blob:")) for name in assets)


def test_a_server_on_every_address_answers_only_to_addresses_and_its_own_name():
    server = PageServer(open_model(digits_run()), "0.0.0.0")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    try:
        own = socket.gethostname()
        for name in ("127.0.0.1", "192.168.1.20", "[fe80::1]", "localhost", "LocalHost", own, own.upper()):
            assert request(server, Host=f"{name}:{port}")[0].status == 200
        for host in (f"evil.example:{port}", "127.0.0.1:1", "127.0.0.1", f"127.0.0.1.evil.example:{port}"):
            assert request(server, Host=host)[0].status == 403
        foreign = {"Host": f"127.0.0.1:{port}", "Origin": f"http://10.0.0.1:{port}"}
        assert request(server, "POST", "/predict", b"x", **foreign)[0].status == 403
    finally:
        server.shutdown()
        server.server_close()
