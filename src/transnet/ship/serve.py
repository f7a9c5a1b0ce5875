"""A page to try a model on: drop an image to see each head's view and class, and how many heads it needs.

    transnet serve runs/t2

This is a server for one person on one machine. It listens on the loopback address and answers only pages that it
served itself: it compares the Host and Origin of a request, so that no other site's page can reach it through the
person's browser. It accepts JPEG, PNG and WebP up to 10 MB, stores nothing, and its page loads nothing from elsewhere.
"""

import base64
import errno
import io
import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from transnet import d4
from transnet.data.pixels import Pixels, decode_image
from transnet.early_exit import lead
from transnet.errors import ConfigError, DataError, TransnetError
from transnet.ship.models import Model
from transnet.ship.predict import head_names

LARGEST_UPLOAD = 10 * 10**6
_MOST_PIXELS = 40 * 10**6
_FORMATS = ("JPEG", "PNG", "WEBP")  # of those that Pillow reads, because the image may come from a stranger
_TOP = 5
_METHODS = {"/": ("GET", "HEAD"), "/predict": ("POST",)}


class PageServer(ThreadingHTTPServer):
    """The server of one model's page, on any free port if ``port`` is 0."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, model: Model, host: str = "127.0.0.1", port: int = 0, confidence: float = 0.9) -> None:
        self.model, self.confidence = model, confidence
        self.lock = threading.Lock()  # one image at a time, because several would share the same processor
        if ":" in host:
            self.address_family = socket.AF_INET6
        if not host:  # an unset variable; the system would take it for every address
            raise ConfigError("none given; 127.0.0.1 answers this machine only, 0.0.0.0 any other too", field="host")
        if not 0 <= port <= 65535:
            raise ConfigError(f"{port} was given; a number from 0 (any free one) to 65535 is needed", field="port")
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            hint = "; `port` 0 takes any free one" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"`host` {host} `port` {port}: {error}{hint}") from None
        name = f"[{host}]" if ":" in host else host.lower()
        self.names = {"localhost", name}
        if self.server_address[0] in ("0.0.0.0", "::"):
            name = socket.gethostname().lower()
            self.names |= {name, socket.getfqdn().lower()}
        self.url = f"http://{name}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, except those of a client that closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answers_to(self, host: str) -> bool:
        """Whether a request's Host is this server: an address, or one of its own names.

        Other names are refused, because somebody can point their name here to read the answers in a visitor's browser.
        """
        name, _, port = host.lower().rpartition(":")
        if not port.isdecimal():
            name, port = host.lower(), "80"
        known = name in self.names or _address(name.strip("[]")) is not None
        return known and port == str(self.server_address[1])


def _name(source: str) -> str:
    """A model's name on its page: its folder without the folders above it, which could reveal private names."""
    if source.startswith("hf:"):
        return source
    path = Path(os.path.abspath(os.path.expanduser(source)))
    return f"{path.parent.name}/{path.name}" if path.is_file() else path.name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host's address."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "transnet", ""
    protocol_version = "HTTP/1.1"
    timeout = 20

    def _dispatch(self) -> None:
        """Answer any request: the page for GET and HEAD of /, predictions for POST of /predict, errors otherwise."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        methods = _METHODS.get(self.path)
        if not self.server.answers_to(host):
            self._refuse(HTTPStatus.FORBIDDEN, f"this server answers at {self.server.url} only")
        elif origin not in (None, f"http://{host}"):
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers its own page only")
        elif methods is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only the page, at /, and /predict, where it sends images")
        elif self.command not in methods:
            reason = f"{self.command} of {self.path} is not answered; {' or '.join(methods)} is"
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, reason, Allow=", ".join(methods))
        elif self.path == "/":
            self._send_page()
        else:
            self._predict()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _dispatch

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        about = self.server.model.about
        facts = {
            "name": _name(self.server.model.source), "model": about.model, "heads": head_names(about.transforms),
            "classes": len(about.classes), "size": about.image_size, "confidence": self.server.confidence,
            "largest": LARGEST_UPLOAD,
        }  # fmt: skip
        page = resources.files("transnet.ship").joinpath("page.html").read_text("utf-8")
        # Only "<" could end the script element early.
        page = page.replace("__NONCE__", nonce).replace("__FACTS__", json.dumps(facts).replace("<", "\\u003c"))
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data: blob:; "
            "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
        )
        self._send(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})

    def _predict(self) -> None:
        length = self._length()
        if self.headers.get_content_maintype() == "multipart":
            command = f"curl --data-binary @FILE {self.server.url}predict"
            reason = f"this is a form; send only the bytes of the image, as {command} does"
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)
        elif "Transfer-Encoding" in self.headers or length is None:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the length of the image is needed")
        elif length > LARGEST_UPLOAD:
            reason = f"the image has more than {LARGEST_UPLOAD // 10**6} MB; scale it down"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        else:
            encoded = self.rfile.read(length)
            try:
                with self.server.lock:
                    views = head_views(self.server.model, encoded)
            except TransnetError as error:
                self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), unread=False)
            else:
                self._send(HTTPStatus.OK, json.dumps(views).encode(), "application/json")

    def _length(self) -> int | None:
        """The length of the request's body, at most 10¹²; None if it is not stated as a number."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            return None
        return int(length) if len(length) <= 12 else 10**12

    def _refuse(self, status: HTTPStatus, reason: str, *, unread: bool = True, **headers: str) -> None:
        """Answer with an error; ``unread`` states that the body of the request, if any, was not read yet."""
        self.close_connection = True  # part of the request may be left
        self._send(status, json.dumps({"error": reason}).encode(), "application/json", headers)
        # The client reads the answer only after it has sent everything, so read that, up to a limit.
        left = min(self._length() or 0, 5 * LARGEST_UPLOAD) if unread else 0
        while left > 0 and (chunk := self.rfile.read1(min(left, 1 << 16))):
            left -= len(chunk)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Give the standard library's own errors, about malformed requests, the form of all others."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase, unread=False)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin", **(more or {}),
        }  # fmt: skip
        if self.close_connection:
            headers["Connection"] = "close"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because requests are private."""


def head_views(model: Model, encoded: bytes) -> dict[str, object]:
    """Predict one image and return what the page shows about it, as JSON content.

    ``heads`` has each head alone, ``ensemble`` the most probable classes of all heads, ``steps`` the class of the first
    1, 2, … m heads and its lead over the runner-up. ``early_exit`` states whether heads can run one by one.
    """
    pixels = model.crop(_decode(encoded))
    logits = model.heads(model.normalise(pixels)[None])[0].double()
    about, classes = model.about, model.about.classes
    # The transform of a folded head is in its weights, so it sees the image as it is.
    views = [_picture(model, pixels, "r0" if about.fold else name) for name in about.transforms]
    sums = logits.cumsum(0)
    leads = lead(sums).clamp(max=1e9).tolist()  # JSON cannot hold the infinite lead of a single class
    return {
        "heads": [
            {"name": title, "view": view, "classes": _most_probable(classes, row)}
            for title, view, row in zip(head_names(about.transforms), views, logits, strict=True)
        ],
        "ensemble": _most_probable(classes, logits.mean(0)),
        "steps": [{"label": classes[i], "lead": ahead} for i, ahead in zip(sums.argmax(-1).tolist(), leads)],
        "early_exit": model.net is not None,
    }


def _decode(encoded: bytes) -> Pixels:
    limit = f"at most {_MOST_PIXELS // 10**6} million are accepted: scale it down"
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:  # reads the header only
            width, height = image.size
    except Image.DecompressionBombError as error:
        raise DataError(f"far too many pixels; {limit}") from error
    except Exception as error:  # a decoder can raise anything about damaged bytes
        raise DataError("not a JPEG, PNG or WebP image, or its beginning is damaged") from error
    if width * height > _MOST_PIXELS:
        raise DataError(f"{width}×{height} pixels; {limit}")
    return decode_image(encoded)


def _picture(model: Model, pixels: Pixels, transform: str) -> str:
    """The transformed image as a data URL. The page enlarges it such that each pixel becomes a square."""
    if transform in d4.NAMES or model.net is None:
        image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)
        seen = d4.apply(transform, image).permute(1, 2, 0).numpy()
    else:
        seen = model.seen_by(model.net, transform, pixels)
    file = io.BytesIO()
    Image.fromarray(seen[:, :, 0] if seen.shape[2] == 1 else seen).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _most_probable(classes: Sequence[str], logits: Tensor) -> list[dict[str, object]]:
    top = logits.softmax(-1).topk(min(_TOP, len(logits)))
    return [{"label": classes[i], "probability": p} for p, i in zip(top.values.tolist(), top.indices.tolist())]
