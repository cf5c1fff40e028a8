"""Floors as commands: what a process in Python cannot leave out, with as few imports as that takes.

``floor.py unpack PLAN INTO`` decodes frames, hashes files and creates them; ``floor.py again TREE`` reads and hashes a
tree, and ``floor.py command TREE`` does so with the libraries imported that a command of this package has to have.
``floor.py pack PLAN LEVEL`` has them too, and reads and hashes a tree and the strings of its pickles (or no copy could
be found) and looks for paths in what the bundle stores (or it could not tell of them), while a thread compresses that.
A plan is a directory that ``write_plan`` of the worker made: frames, blocks and files as they would lie in memory.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sys
from hashlib import sha256
from threading import Thread
from types import MappingProxyType

MYPY = False
if MYPY:  # this program loads nothing that it can do without
    from collections.abc import Mapping, Sequence


def unpack(plan: str, into: str) -> None:
    """Decode, hash, create."""
    import zstandard

    with open(f"{plan}/plan.json", "rb") as file:
        told = json.loads(file.read())
    with open(f"{plan}/frames", "rb") as file:
        for stored, raw in told["frames"]:
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            decompressor.decompress(file.read(stored), max_output_size=raw)
    with open(f"{plan}/image", "rb") as file:
        image = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    at, made = 0, set()
    for name, size in told["files"]:
        data = image[at : at + size]
        at += size
        path = f"{into}/{name}"
        directory = os.path.dirname(path)
        if directory not in made:
            os.makedirs(directory, exist_ok=True)
            made.add(directory)
        sha256(data).digest()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, data)
        os.close(fd)


def pack(plan: str, level: str) -> None:
    """Read, hash and look beside a thread that compresses; the frames go to stdout."""
    import_libraries()
    import zstandard

    with open(f"{plan}/plan.json", "rb") as file:
        told = json.loads(file.read())
    with open(f"{plan}/blocks", "rb") as file:
        blocks = [file.read(raw) for _, raw in told["frames"]]

    def compress() -> None:
        for block in blocks:
            parameters = zstandard.ZstdCompressionParameters.from_level(
                int(level), window_log=27, source_size=len(block), write_content_size=1, write_checksum=1
            )
            compressor = zstandard.ZstdCompressor(compression_params=parameters)
            sys.stdout.buffer.write(compressor.compress(block))

    thread = Thread(target=compress)
    thread.start()
    again(told["tree"], told["strings"])
    pattern = re.compile(told["paths"].encode("latin-1"))
    for block in blocks:
        set(pattern.findall(block))
    thread.join()


def import_libraries() -> None:
    """Import what a command of this package cannot do without."""
    for name in ("click", "msgpack", "zstandard"):
        __import__(name)


def again(tree: str, strings: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})) -> None:
    """Read and hash every file, and of some the strings in them; by path: (offset, size)."""
    waiting = [tree]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                fd = os.open(entry.path, os.O_RDONLY)
                data = memoryview(os.read(fd, entry.stat(follow_symlinks=False).st_size))
                os.close(fd)
                sha256(data).digest()
                for offset, size in strings.get(entry.path, ()):
                    sha256(data[offset : offset + size]).digest()


if __name__ == "__main__":
    if sys.argv[1] in ("again", "command"):
        if sys.argv[1] == "command":
            import_libraries()
        again(sys.argv[2])
    else:
        (unpack if sys.argv[1] == "unpack" else pack)(sys.argv[2], sys.argv[3])
