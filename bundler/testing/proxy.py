"""An HTTP proxy on loopback that breaks what passes through it: cuts, delays, refusals, truncated and flipped bytes.

It stands between a client and a real server, so that what is tested is the client as it is. Faults are chosen by
request, and one that is used up lets the next request through: ``Fault(cut_down=100, times=1)`` breaks one download.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

__all__ = ["Fault", "Proxy", "Request"]

_HEAD_END = b"\r\n\r\n"
_CHUNK = 64 << 10  # bytes moved at a time
_TIMEOUT = 20.0  # seconds without a byte


@dataclass(slots=True)
class Fault:
    """What goes wrong, in the requests that it is for.

    Attributes:
        times: How many requests it breaks; None for all.
        method: Only requests of this method; "" for all.
        path: Only requests whose target has this text.
        status: Answer with this status; the server never sees the request.
        delay: Seconds to wait before the request is passed on.
        cut_up: Break the connection once this many bytes of the request were passed on, its head counted.
        cut_down: Break the connection once this many bytes of the answer were passed on, its head counted.
        truncate: End the answer's body after this many bytes, and the connection as if all were well.
        flip_up: Invert this byte of the request's body.
        flip_down: Invert this byte of the answer's body.
        lose_answer: Pass the request on, and break the connection in place of an answer.
    """

    times: int | None = 1
    method: str = ""
    path: str = ""
    status: int | None = None
    delay: float = 0.0
    cut_up: int | None = None
    cut_down: int | None = None
    truncate: int | None = None
    flip_up: int | None = None
    flip_down: int | None = None
    lose_answer: bool = False

    def fits(self, method: str, target: str) -> bool:
        """Whether it is for this request."""
        return self.times != 0 and self.method in ("", method) and self.path in target


@dataclass(slots=True)
class Request:
    """A request that came. ``range`` is its Range header; ``up`` and ``down`` count the bytes of the bodies."""

    method: str
    target: str
    range: str
    up: int = 0
    down: int = 0


class _CutError(Exception):
    """The fault wants the connection broken."""


@dataclass(slots=True)
class Proxy:
    """A proxy to one server; a context manager. Each request has a connection of its own.

    Args:
        host: The server's.
        port: The server's.
    """

    host: str
    port: int
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    _listener: socket.socket = field(default_factory=socket.socket, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _closed: bool = False

    def __enter__(self) -> Proxy:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def plan(self, *faults: Fault) -> None:
        """Forget earlier faults and requests; break what comes as ``faults`` say, the first that fits."""
        with self._lock:
            self.faults[:] = faults
            self.requests.clear()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(_TIMEOUT)
        try:
            self._pass_on(client)
            with suppress(OSError):
                client.shutdown(socket.SHUT_WR)
        except _CutError:
            # A reset rather than an end: what a cable or a gateway does.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass  # the client went away, or the server did
        finally:
            client.close()

    def _pass_on(self, client: socket.socket) -> None:
        head, rest = _read_head(client)
        if not head:
            return
        method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        request = Request(method, target, _header(head, "range"))
        with self._lock:
            self.requests.append(request)
            fault = next((fault for fault in self.faults if fault.fits(method, target)), Fault())
            if fault.times is not None:
                fault.times -= 1
        time.sleep(fault.delay)
        size = int(_header(head, "content-length") or 0)
        if fault.status is not None:
            for part in _body(client, rest, size):
                request.up += len(part)
            client.sendall(_answer(fault.status))
            return
        with socket.create_connection((self.host, self.port), _TIMEOUT) as server:
            self._send(server, head, client, rest, size, fault, request)
            if fault.lose_answer:
                while server.recv(_CHUNK):
                    pass
                raise _CutError
            self._answer(client, server, method, fault, request)

    @staticmethod
    def _send(
        server: socket.socket,
        head: bytes,
        client: socket.socket,
        rest: bytes,
        size: int,
        fault: Fault,
        request: Request,
    ) -> None:
        send = _limited(server.sendall, fault.cut_up)
        send(_closing(head))
        for part in _body(client, rest, size):
            send(_flipped(part, request.up, fault.flip_up))
            request.up += len(part)

    @staticmethod
    def _answer(client: socket.socket, server: socket.socket, method: str, fault: Fault, request: Request) -> None:
        head, rest = _read_head(server)
        send = _limited(client.sendall, fault.cut_down)
        send(_closing(head))
        length = _header(head, "content-length")
        size = 0 if method == "HEAD" else int(length) if length else 1 << 62
        for part in _body(server, rest, size):
            kept = part if fault.truncate is None else part[: max(0, fault.truncate - request.down)]
            send(_flipped(kept, request.down, fault.flip_down))
            request.down += len(part)


def _limited(send: Callable[[bytes], None], limit: int | None) -> Callable[[bytes], None]:
    """Return ``send`` with a connection that breaks after ``limit`` bytes."""
    sent = 0

    def limited(data: bytes) -> None:
        nonlocal sent
        if limit is not None and sent + len(data) >= limit:
            send(data[: limit - sent])
            raise _CutError
        send(data)
        sent += len(data)

    return limited


def _flipped(data: bytes, start: int, at: int | None) -> bytes:
    if at is None or not start <= at < start + len(data):
        return data
    changed = bytearray(data)
    changed[at - start] ^= 0xFF
    return bytes(changed)


def _read_head(source: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a message with its empty line, and what came behind it."""
    data = b""
    while _HEAD_END not in data:
        part = source.recv(_CHUNK)
        if not part:
            return b"", data
        data += part
    head, _, rest = data.partition(_HEAD_END)
    return head + _HEAD_END, rest


def _body(source: socket.socket, rest: bytes, size: int) -> Iterator[bytes]:
    """Yield ``size`` bytes, or those until the other side ends."""
    while size > 0:
        part = rest[:size] or source.recv(min(_CHUNK, size))
        rest = rest[size:] if rest else b""
        if not part:
            return
        size -= len(part)
        yield part


def _header(head: bytes, name: str) -> str:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name.encode("ascii"):
            return value.strip().decode("latin-1")
    return ""


def _closing(head: bytes) -> bytes:
    """Return a head that ends the connection behind its message."""
    lines = [line for line in head[: -len(_HEAD_END)].split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close"]) + _HEAD_END


def _answer(status: int) -> bytes:
    return f"HTTP/1.1 {status} Fault\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode("ascii")
