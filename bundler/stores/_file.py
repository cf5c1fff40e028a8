"""An object as a seekable file: read by ranges, a few large ones rather than many small ones."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bundler.stores._base import ObjectInfo, Store

__all__ = ["BLOCK_SIZE", "RemoteFile"]

BLOCK_SIZE = 256 << 10
"""Bytes that the cache counts in. The first read of an object is one block: enough for the index of most bundles."""

MAX_AHEAD = 8 << 20
"""Bytes of the largest request. A request costs some 50 ms whatever its size; 8 MiB hide that on most links."""

CACHED = 32 << 20
"""Bytes of blocks that are kept."""


class RemoteFile(io.BufferedIOBase):
    """An open object of a store; made by ``Store.open``.

    All reads are of one version of the object: when it is replaced meanwhile, reading fails with ``StoreError``.

    Args:
        store: Where it lies.
        info: Its size and version.
        first: Its first bytes, already read.
    """

    def __init__(self, store: Store, info: ObjectInfo, first: bytes) -> None:
        self._store = store
        self.info = info
        self.name = f"{store.url.rstrip('/')}/{info.key}"
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._ahead = BLOCK_SIZE
        self._keep(0, first)
        self._next = len(self._blocks)  # the block that a reader who goes straight on would miss first

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position, in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.info.size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}: before the start of the object")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes from the position on, fewer only at the end.

        Raises:
            StoreError: The store failed, or the object was replaced.
        """
        end = self.info.size if size is None or size < 0 else min(self._at + size, self.info.size)
        parts = []
        while self._at < end:
            number, skip = divmod(self._at, BLOCK_SIZE)
            block = self._block(number, end)
            part = block[skip : skip + end - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def read1(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes; the same as ``read``."""
        return self.read(size)

    def prefetch(self, start: int, end: int) -> None:
        """Read the blocks from ``start`` to ``end`` that are not there yet, in as few requests as possible."""
        last = -(-min(end, self.info.size) // BLOCK_SIZE)
        number = start // BLOCK_SIZE
        while number < last:
            if number not in self._blocks:
                stop = number
                while stop < last and stop not in self._blocks and (stop - number) * BLOCK_SIZE < MAX_AHEAD:
                    stop += 1
                self._fetch(number, stop)
                number = stop
            number += 1

    def forget(self) -> None:
        """Drop what was read: the next read asks the store again."""
        self._blocks.clear()

    def _block(self, number: int, end: int) -> bytes:
        if number not in self._blocks:
            # Who reads on without a gap will go on doing so: the next request is twice as large.
            self._ahead = min(2 * self._ahead, MAX_AHEAD) if number == self._next else BLOCK_SIZE
            wanted = -(-end // BLOCK_SIZE)
            stop = min(max(wanted, number + self._ahead // BLOCK_SIZE), number + MAX_AHEAD // BLOCK_SIZE)
            while stop > number + 1 and stop - 1 in self._blocks:
                stop -= 1
            self._fetch(number, stop)
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def _fetch(self, first: int, stop: int) -> None:
        start, end = first * BLOCK_SIZE, min(stop * BLOCK_SIZE, self.info.size)
        self._keep(first, self._store.read_version(self.info, start, end - start))
        self._next = -(-end // BLOCK_SIZE)

    def _keep(self, first: int, data: bytes) -> None:
        for number, start in enumerate(range(0, len(data), BLOCK_SIZE), first):
            self._blocks[number] = data[start : start + BLOCK_SIZE]
            self._blocks.move_to_end(number)
        while len(self._blocks) * BLOCK_SIZE > CACHED:
            self._blocks.popitem(last=False)
