"""A page to try a model on: drop an image, see what each head sees, what it says, and how the anytime rule decides.

    transnet serve runs/t2

A server for one person at one machine. It answers on the loopback address, and only to pages it served itself: the
Host and Origin of a request are compared, so that no other site's page can reach it through the person's browser. It
takes JPEG, PNG and WebP up to 10 MB, keeps nothing, writes nothing, and its page loads nothing from elsewhere.
"""

import errno
import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from transnet.console import say
from transnet.errors import ConfigError, DataError
from transnet.ship.head_views import look
from transnet.ship.models import Model, open_model
from transnet.ship.predict import head_names

LARGEST_UPLOAD = 10 * 10**6
_PATIENCE_S = 20
_METHODS = {"/": ("GET", "HEAD"), "/look": ("POST",)}


def serve(model: str, *, host: str, port: int, confidence: float, device: str = "auto", browser: bool = False) -> None:
    """Serve until interrupted.

    Args:
        model: what `open_model` takes; a run shows all its heads.
        host: the address to listen on.
        port: 0 for any free one.
        confidence: where the anytime rule's threshold stands at first.
        device: where to compute.
        browser: open the page.
    """
    from transnet.train.device import find_device
    from transnet.train.distributed import World

    if not 0 <= confidence <= 1:
        raise ConfigError(f"{confidence} was given; a probability from 0 to 1 is needed", field="confidence")
    server = PageServer(open_model(model, device=find_device(device, World())), host, port, confidence)
    say(f"{server.url}  (stop with Ctrl-C)")
    if not _is_loopback(host):
        say(f"warning: on {host} anybody who reaches this machine can use the model, without a password")
    if browser:
        import webbrowser

        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        server.server_close()


class PageServer(ThreadingHTTPServer):
    """The server of one model's page.

    Args:
        model: what predicts.
        host: the address to listen on.
        port: 0 for any free one.
        confidence: the page's first threshold.
    """

    daemon_threads = True
    request_queue_size = 128  # of those that come at once, each waits for its turn

    def __init__(self, model: Model, host: str = "127.0.0.1", port: int = 0, confidence: float = 0.9) -> None:
        self.model, self.confidence = model, confidence
        self.turn = threading.Lock()  # one image at a time: more would only share the same processor
        if ":" in host:
            self.address_family = socket.AF_INET6
        if not host:  # as of a variable that is not set; to the system it would be every address
            raise ConfigError("none given; 127.0.0.1 answers this machine only, 0.0.0.0 any other too", field="host")
        if not 0 <= port <= 65535:
            raise ConfigError(
                f"{port} was given; a number up to 65535 is needed, and `port` 0 takes any free one", field="port"
            )
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            hint = "; --port 0 takes any free one" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"`host` {host} `port` {port}: {error}{hint}") from None
        self.everywhere = str(self.server_address[0]) in ("0.0.0.0", "::")
        name = f"[{host}]" if ":" in host else host.lower()
        self.names = {name}
        if self.everywhere:
            name = socket.gethostname().lower()
            self.names = {name, socket.getfqdn().lower(), "localhost"}
        elif _is_loopback(host):
            self.names |= {"localhost", "127.0.0.1", "[::1]"}
        self.url = f"http://{name}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing of a client that went away; anything else as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answers_to(self, host: str) -> bool:
        """Whether a request's Host is this server's.

        One that listens at every address of the machine answers to any of them and to the machine's name. Other names
        may be somebody else's, who has them point here to read the answers in a visitor's browser.
        """
        name, _, port = host.lower().rpartition(":")
        if not port.isdecimal():
            name, port = host.lower(), "80"
        if port != str(self.server_address[1]):
            return False
        return name in self.names or (self.everywhere and _address(name.strip("[]")) is not None)


def _name(source: str) -> str:
    """What a model is called on its page: its folder, without those above it, which are nobody else's business."""
    if source.startswith("hf:"):
        return source
    path = Path(os.path.abspath(os.path.expanduser(source)))
    return f"{path.parent.name}/{path.name}" if path.is_file() else path.name


def _is_loopback(host: str) -> bool:
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
    timeout = _PATIENCE_S

    def _asked(self) -> None:
        """Any request that can be read: the page for GET and HEAD of /, an answer for POST of /look."""
        if not self._from_here():
            return
        known = _METHODS.get(self.path)
        if known is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only the page, at /, and /look, where it sends images")
        elif self.command not in known:
            way = " or ".join(known)
            reason = f"{self.command} of {self.path} is not answered; {way} is"
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, reason, {"Allow": ", ".join(known)})
        elif self.path == "/":
            self._send_page()
        else:
            self._look()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _asked

    def _send_page(self) -> None:
        once = secrets.token_urlsafe(16)
        about = self.server.model.about
        facts = {
            "name": _name(self.server.model.source), "model": about.model, "heads": head_names(about.transforms),
            "classes": len(about.classes), "size": about.image_size, "confidence": self.server.confidence,
            "largest": LARGEST_UPLOAD,
        }  # fmt: skip
        page = resources.files("transnet.ship").joinpath("page.html").read_text("utf-8")
        # Inside a script element only "<" could end it early.
        page = page.replace("__ONCE__", once).replace("__FACTS__", json.dumps(facts).replace("<", "\\u003c"))
        policy = (
            f"default-src 'none'; script-src 'nonce-{once}'; style-src 'nonce-{once}'; img-src data: blob:; "
            "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
        )
        self._answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})

    def _look(self) -> None:
        """An image in, what the model says of it out."""
        if self.headers.get_content_maintype() == "multipart":
            how = f"curl --data-binary @FILE {self.server.url}look"
            reason = f"a form was sent; the bytes of the image alone are needed, as {how} sends them"
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)
            return
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not length.isascii() or not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the length of the image is needed")
            return
        if len(length) > 12 or int(length) > LARGEST_UPLOAD:
            most = LARGEST_UPLOAD // 10**6
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an image of more than {most} MB; scale it down")
            return
        encoded = self.rfile.read(int(length))
        try:
            with self.server.turn:
                content = look(self.server.model, encoded)
        except (DataError, ConfigError) as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), unread=False)
            return
        self._answer(HTTPStatus.OK, json.dumps(content).encode(), "application/json")

    def _from_here(self) -> bool:
        """Whether the request was meant for this server, by a page of its own or by hand."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self.server.answers_to(host):
            self._refuse(HTTPStatus.FORBIDDEN, f"this server answers at {self.server.url} only")
            return False
        if origin not in (None, f"http://{host}"):
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers its own page only")
            return False
        return True

    def _refuse(
        self, status: HTTPStatus, reason: str, headers: dict[str, str] | None = None, *, unread: bool = True
    ) -> None:
        """Answer with an error; ``unread``: what came with the request, if anything, was not read yet."""
        self.close_connection = True  # it may be left in the midst of a request
        self._answer(status, json.dumps({"error": reason}).encode(), "application/json", headers)
        if unread:
            self._pass_over()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The standard library's own refusals, of what is no request, in the form of all others."""
        status = HTTPStatus(code)
        self._refuse(status, message or status.phrase, unread=False)

    def _pass_over(self) -> None:
        """Read what is still being sent, within reason: a client that is cut off while it sends sees no answer."""
        length = self.headers.get("Content-Length", "")
        left = min(int(length[:12]), 5 * LARGEST_UPLOAD) if length.isascii() and length.isdigit() else 0
        while left > 0 and (part := self.rfile.read1(min(left, 1 << 16))):
            left -= len(part)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        standard = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }  # fmt: skip
        if self.close_connection:
            standard["Connection"] = "close"
        for name, value in {**standard, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what a person tries is kept nowhere."""
