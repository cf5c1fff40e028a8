"""Real servers on loopback: a web server that knows ranges, and the proxy that breaks connections to moto's S3."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import bundler
from bundler.testing.proxy import Proxy
from bundler.testing.trees import synthetic_inductor_root, synthetic_kernel


@pytest.fixture
def proxy(s3_server: str) -> Iterator[Proxy]:
    """A proxy before the S3 server."""
    host, _, port = s3_server.removeprefix("http://").partition(":")
    with Proxy(host, int(port)) as proxy:
        yield proxy


class Web(BaseHTTPRequestHandler):
    """Objects in the server's dictionary: GET with ranges, HEAD, PUT and DELETE."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    ranges = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        data = self.server.objects.get(self.path.partition("?")[0])  # type: ignore[attr-defined]
        if data is None:
            self._answer(404)
            return
        asked = self.headers.get("Range", "") if self.server.ranges else ""  # type: ignore[attr-defined]
        tag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        if not asked:
            self._answer(200, data, tag)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        stop = min(int(last) + 1, len(data))
        self._answer(206, data[int(first) : stop], {**tag, "Content-Range": f"bytes {first}-{stop - 1}/{len(data)}"})

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.server.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))  # type: ignore[attr-defined]
        self._answer(201)

    def do_DELETE(self) -> None:
        self._answer(204 if self.server.objects.pop(self.path, None) is not None else 404)  # type: ignore[attr-defined]

    def _answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class WebServer(ThreadingHTTPServer):
    daemon_threads = True
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Web)
        self.objects: dict[str, bytes] = {}
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A web server, empty."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    server = WebServer()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a few kernels and graphs."""
    place = tmp_path_factory.mktemp("bundle")
    synthetic_inductor_root(place / "root")
    bundler.pack([f"inductor={place / 'root'}"], place / "it.tbundle")
    return place / "it.tbundle"


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a few KiB: one kernel as a launch reads it."""
    place = tmp_path_factory.mktemp("tiny")
    synthetic_kernel(place / "root", "tiny")
    bundler.pack([f"triton={place / 'root'}"], place / "it.tbundle", profile="runtime")
    return place / "it.tbundle"
