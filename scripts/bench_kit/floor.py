"""Floors as commands: what a process in Python cannot leave out, with as few imports as that takes.

``floor.py unpack PLAN INTO`` decodes frames, hashes files and creates them; ``floor.py pack PLAN LEVEL`` reads and
hashes a tree while it compresses what a bundle of it stores; ``floor.py again TREE`` reads and hashes a tree. A plan is
a directory that ``write_plan`` of the worker made: frames, blocks and files as they would lie in memory.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from hashlib import sha256
from threading import Thread


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
    """Read and hash the tree beside a thread that compresses; the frames go to stdout."""
    import zstandard

    with open(f"{plan}/plan.json", "rb") as file:
        told = json.loads(file.read())

    def compress() -> None:
        with open(f"{plan}/blocks", "rb") as file:
            for _, raw in told["frames"]:
                parameters = zstandard.ZstdCompressionParameters.from_level(
                    int(level), window_log=27, source_size=raw, write_content_size=1, write_checksum=1
                )
                compressor = zstandard.ZstdCompressor(compression_params=parameters)
                sys.stdout.buffer.write(compressor.compress(file.read(raw)))

    thread = Thread(target=compress)
    thread.start()
    again(told["tree"])
    thread.join()


def again(tree: str) -> None:
    """Read and hash every file."""
    waiting = [tree]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                fd = os.open(entry.path, os.O_RDONLY)
                sha256(os.read(fd, entry.stat(follow_symlinks=False).st_size)).digest()
                os.close(fd)


if __name__ == "__main__":
    if sys.argv[1] == "again":
        again(sys.argv[2])
    else:
        (unpack if sys.argv[1] == "unpack" else pack)(sys.argv[2], sys.argv[3])
