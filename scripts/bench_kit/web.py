"""A web server on loopback that serves one file and knows ranges, in a thread of this process."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    data = b""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        first, last = 0, len(self.data) - 1
        if asked:
            start, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.data[first : last + 1])

    do_HEAD = do_GET


class WebServer:
    """Serves a file for the time of a ``with`` block, which gets its URL."""

    def __init__(self, file: Path) -> None:
        handler = type("Handler", (_Handler,), {"data": file.read_bytes()})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._url = f"http://127.0.0.1:{self._server.server_address[1]}/{file.name}"

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self._url

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
