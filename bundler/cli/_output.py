"""What a command prints: one JSON object, or words for a person, or plain lines for a log; and progress on a terminal.

Names come from file systems and from bundles of strangers, so every character that is not printable is escaped before
it reaches a stream: a name can neither move the cursor nor forge a line of a log.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO, TypeAlias

from bundler.errors import UsageError

__all__ = ["Bytes", "Console", "counted", "printable", "size_text"]

Cell: TypeAlias = "str | int | float"

_LISTED = 20  # rows of a list that a terminal gets; a log gets all
_REDRAWN = 0.1  # seconds between two pictures of the progress
_BAR = 24  # characters


class Bytes(int):
    """A number of bytes: for a person in KiB and MiB, for a log exactly."""


def size_text(size: float) -> str:
    """Return a size for a person: ``917 bytes``, ``1.5 MiB``."""
    if size < 1024:
        return f"{size:.0f} byte{'' if size == 1 else 's'}"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``1 entry`` or ``2 entries``."""
    if count != 1:
        noun = plural or (noun[:-1] + "ies" if noun.endswith("y") else noun + "s")
    return f"{count} {noun}"


def printable(text: str) -> str:
    r"""Escape what is not printable, as in a Python literal: a newline becomes ``\n``, a bidi mark ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed before Python started
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


class Console:
    """The streams of one run of a command.

    Attributes:
        as_json: One JSON object goes to stdout, and no words do.
        quiet: No words but warnings, errors and what was asked for.
        report: The JSON object; filled in by the command, printed in the end, and beside an error too.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.quiet = False
        self.report: dict[str, Any] = {}
        self._stdout_taken = False

    def take_stdout(self) -> None:
        """Keep stdout for what was asked for; words (and JSON) go to stderr from now on."""
        self._stdout_taken = True

    def binary_stdout(self) -> BinaryIO:
        """Return stdout for bytes, and keep everything else off it.

        Raises:
            UsageError: It is a terminal, or closed.
        """
        if sys.stdout is None or _is_terminal(sys.stdout):
            what = "closed" if sys.stdout is None else "a terminal"
            raise UsageError(f"stdout is {what}: a bundle goes to a pipe or to a file")
        self.take_stdout()
        sys.stdout.flush()
        return sys.stdout.buffer

    @property
    def _words(self) -> TextIO | None:
        return sys.stderr if self._stdout_taken else sys.stdout

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the words."""
        return _is_terminal(self._words)

    @property
    def is_silent(self) -> bool:
        """Whether words are not wanted."""
        return self.as_json or self.quiet

    def say(self, text: str) -> None:
        """Print one line of words."""
        if not self.is_silent:
            _write(self._words, printable(text) + "\n")

    def give(self, text: str) -> None:
        """Print a line that was asked for to stdout, as it is."""
        _write(sys.stdout, text + "\n")

    def warn(self, text: str) -> None:
        """Print a warning to stderr, whatever else is printed."""
        self.complain(f"triton-bundler: warning: {printable(text)}")

    def complain(self, text: str) -> None:
        """Print ours as it is to stderr; never fails, since there is nowhere left to say so."""
        try:
            _write(sys.stderr, text + "\n")
            if sys.stderr is not None:
                sys.stderr.flush()
        except (OSError, ValueError):
            pass

    def listing(self, word: str, rows: Iterable[Sequence[Cell]]) -> None:
        """Print a list, a line for each row with ``word`` in front; a terminal gets the first rows only."""
        if self.is_silent:
            return
        everything = list(rows)
        shown = everything[:_LISTED] if self.is_terminal else everything
        for row in shown:
            cells = [printable(str(cell)) for cell in row if cell != ""]
            self.say(f"{word}: {': '.join(cells)}") if self.is_terminal else self._line(word, cells)
        if len(everything) > len(shown):
            self.say(f"{word}: and {len(everything) - len(shown)} more (--json has all)")

    def _line(self, word: str, cells: Sequence[str]) -> None:
        _write(self._words, "\t".join((word, *cells)) + "\n")

    def table(self, word: str, header: Sequence[str], rows: Iterable[Sequence[Cell]], *, whole: bool = False) -> None:
        """Print a table: with columns under each other on a terminal, as lines with tabs in a log.

        Args:
            word: What a row is, in the plural.
            header: A name for each column.
            rows: The cells.
            whole: Print all rows on a terminal too.
        """
        if self.is_silent:
            return
        everything = list(rows)
        if not self.is_terminal:
            for row in everything:
                self._line(word, [printable(f"{cell}") for cell in row])
            return
        shown = everything if whole else everything[:_LISTED]
        lines = [[*header], *([_cell(cell) for cell in row] for row in shown)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        numeric = [all(isinstance(row[column], (int, float)) for row in everything) for column in range(len(header))]
        _write(self._words, f"\n{word}\n")
        for line in lines:
            padded = (c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric))
            _write(self._words, f"  {'  '.join(padded).rstrip()}\n")
        if len(everything) > len(shown):
            _write(self._words, f"  and {len(everything) - len(shown)} more (--json has all)\n")

    @contextmanager
    def progress(self, word: str, total: Callable[[], int] = lambda: 0) -> Iterator[Callable[[int], None]]:
        """Show on stderr how far the work is, if that is a terminal; yields what is to be told of more bytes.

        Args:
            word: What is done: ``packing``.
            total: Tells the bytes in all, 0 when they are not known; asked only when progress is shown.
        """
        if self.is_silent or not _is_terminal(sys.stderr):
            yield lambda size: None
            return
        meter = _Meter(sys.stderr, word, total())
        try:
            yield meter.add
        finally:
            meter.clear()

    def finish(self, error: dict[str, Any] | None = None) -> None:
        """Print what the run ends with: the JSON object, or the message of an error.

        Raises:
            BrokenPipeError: Nobody reads it.
        """
        if error is not None and not self.as_json:
            self.complain(f"triton-bundler: error: {printable(error['message'])}")
        if self.as_json:
            report = self.report if error is None else {**self.report, "error": error}
            _write(self._words, json.dumps(report, allow_nan=False) + "\n")
        if self._words is not None:
            self._words.flush()


def _cell(cell: Cell) -> str:
    return size_text(cell) if isinstance(cell, Bytes) else printable(str(cell))


class _Meter:
    """One line on a terminal that is drawn over and over."""

    def __init__(self, stream: TextIO, word: str, total: int) -> None:
        self._stream = stream
        self._word = word
        self._total = total
        self._done = 0
        self._next = time.monotonic() + 5 * _REDRAWN  # what is done by then needs no picture
        self._width = 0

    def add(self, size: int) -> None:
        self._done += size
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REDRAWN
            self._draw()

    def _draw(self) -> None:
        text = f"{self._word} {size_text(self._done)}"
        if self._total:
            part = min(1.0, self._done / self._total)
            bar = "#" * round(_BAR * part)
            text = f"{self._word} [{bar:.<{_BAR}}] {part:4.0%} of {size_text(self._total)}"
        self._put(text)

    def _put(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Leave an empty line, with the cursor at its start."""
        if self._width:
            self._put("")
            self._stream.write("\r")
            self._stream.flush()
