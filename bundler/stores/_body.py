"""What is stored, as bytes that can be read again for each attempt."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias

from bundler.errors import LocalIOError

__all__ = ["Body", "Source", "as_body"]

Source: TypeAlias = "bytes | bytearray | memoryview | BinaryIO | str | os.PathLike[str]"


class Body:
    """The bytes to be stored, readable any number of times from the start.

    Args:
        file: Seekable; read from its start.
        size: Bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size

    def rewind(self) -> BinaryIO:
        """Return the file, at its start."""
        self.file.seek(0)
        return self.file

    def read(self, start: int, size: int) -> bytes:
        """Return exactly ``size`` bytes from ``start`` on.

        Raises:
            LocalIOError: The file is shorter than it was.
        """
        try:
            self.file.seek(start)
            data = self.file.read(size)
        except OSError as error:
            raise LocalIOError.from_os_error(error, "read the file to store", self._name) from error
        if len(data) != size:
            action = "read the file to store: it became shorter meanwhile"
            raise LocalIOError(self._name, errno.EIO, action, start + size, start + len(data))
        return data

    @property
    def _name(self) -> str:
        return str(getattr(self.file, "name", "the bytes"))

    def chunks(self, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield all bytes, ``size`` at a time."""
        at = 0
        while at < self.size:
            yield self.read(at, min(size, self.size - at))
            at += size

    def md5(self, part_size: int = 0) -> str:
        """Return the MD5 in hex; with ``part_size``, the MD5 of the MD5s of the parts, as S3 tags multipart uploads."""
        if not part_size:
            whole = hashlib.md5(usedforsecurity=False)
            for chunk in self.chunks():
                whole.update(chunk)
            return whole.hexdigest()
        digests, count = hashlib.md5(usedforsecurity=False), 0
        for part in self.chunks(part_size):
            digests.update(hashlib.md5(part, usedforsecurity=False).digest())
            count += 1
        return f"{digests.hexdigest()}-{count}"


@contextmanager
def as_body(source: Source) -> Iterator[Body]:
    """Give what ``put`` was given as a body; a path is opened, and closed again.

    Raises:
        LocalIOError: It cannot be read.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield Body(io.BytesIO(source), memoryview(source).nbytes)
        return
    if not isinstance(source, (str, os.PathLike)):
        size = source.seek(0, io.SEEK_END)
        yield Body(source, size)
        return
    path = os.fspath(source)
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; its errors alone are local ones
    except OSError as error:
        raise LocalIOError.from_os_error(error, "read the file to store", path) from error
    with file:
        yield Body(file, os.fstat(file.fileno()).st_size)
