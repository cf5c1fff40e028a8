"""Bundles as a command line names them: a path, ``-`` for stdin, or a path that leads to a pipe."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias

from bundler.errors import BundlerError, LocalIOError, UsageError

__all__ = ["STDIN", "Source", "content_bytes", "source"]

STDIN = "-"
"""What stands for standard input where a bundle is named."""

Source: TypeAlias = "str | BinaryIO"

_COPY_SIZE = 1 << 20  # bytes moved at a time


@contextmanager
def source(name: str, *, again: bool) -> Iterator[Source]:
    """Give what the verbs take for a bundle.

    Args:
        name: As the command line has it.
        again: Whether the bundle is read more than once, or out of order: a pipe then goes through a temporary file.

    Raises:
        UsageError: stdin is a terminal, or closed.
        LocalIOError: A pipe cannot be read, or there is no room for the temporary file.
    """
    if name != STDIN and not _is_pipe(name):
        yield name
    elif not again:
        yield _stdin() if name == STDIN else name
    else:
        import tempfile

        with tempfile.TemporaryFile() as spool:
            try:
                _fill(spool, name)
            except OSError as error:
                if isinstance(error, LocalIOError):
                    raise
                raise LocalIOError.from_os_error(error, "keep the piped bundle in a temporary file", name) from error
            yield spool


def _fill(spool: Any, name: str) -> None:
    import shutil

    if name == STDIN:
        shutil.copyfileobj(_stdin(), spool, _COPY_SIZE)
    else:
        with open(name, "rb") as pipe:
            shutil.copyfileobj(pipe, spool, _COPY_SIZE)
    spool.seek(0)
    # What the messages call it; without a name of its own it would be a number.
    spool.raw.name = "<stdin>" if name == STDIN else name


def _is_pipe(path: str) -> bool:
    """Whether a path exists and can be read only once; what does not exist is left to whoever opens it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise LocalIOError("stdin", errno.EBADF, "read the bundle")
    if sys.stdin.isatty():
        raise UsageError("stdin is a terminal: pipe a bundle into it, or name a file")
    return sys.stdin.buffer


def content_bytes(bundle: Source) -> int:
    """Return the bytes of the contents of a bundle, for the progress; 0 when they are not known."""
    from bundler.reading import opened

    if not isinstance(bundle, str) or _is_pipe(bundle):
        return 0
    try:
        with opened(bundle, alone=True) as reader:
            return sum(content.size for content in reader.index.contents[reader.index.base_contents :])
    except BundlerError:  # whoever opens it next says what is wrong
        return 0
