"""Functions that are measured inside a process: ours and their floors. ``serve`` answers requests on stdin.

Every function prepares, collects garbage, starts the clock, acts, stops it, and cleans up; the answer has the seconds.
A *floor* is what cannot be left out in Python: it does nothing that ours does beyond that.
"""

from __future__ import annotations

import cProfile
import gc
import hashlib
import io
import json
import os
import pstats
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_kit.floor import again as read_and_hash

FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {}
_held: dict[str, Any] = {}  # what a function keeps in memory for the next calls


def function(act: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Make a function one that can be asked for."""
    FUNCTIONS[act.__name__] = act
    return act


class Clock:
    """Seconds, and those of the processors, of a ``with`` block; also what is profiled, when anything is."""

    profiler: Any = None

    def __enter__(self) -> Clock:
        gc.collect()
        if Clock.profiler is not None:
            Clock.profiler.enable()
        self._cpu, self._started = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.cpu = time.process_time() - self._cpu
        if Clock.profiler is not None:
            Clock.profiler.disable()

    def answer(self, **more: Any) -> dict[str, Any]:
        """Return the fields of a sample."""
        return {"seconds": self.seconds, "cpu": self.cpu, **more}


@contextmanager
def fresh(place: str) -> Iterator[Path]:
    """Give a directory that is not there yet, and remove it afterwards."""
    path = Path(place)
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# -- ours --------------------------------------------------------------------------------------------------------------


@function
def pack(root: str, level: int) -> dict[str, Any]:
    """``bundler.pack`` into memory."""
    import bundler

    out = io.BytesIO()
    with Clock() as clock:
        bundler.pack([root], out, level=level)
    return clock.answer(size=len(out.getvalue()))


@function
def unpack(bundle: str, into: str) -> dict[str, Any]:
    """``bundler.unpack`` into a directory that is not there."""
    import bundler
    from bundler.emit import EmitOptions

    data = _bytes(bundle)
    with fresh(into) as path, Clock() as clock:
        report = bundler.unpack(data, into=path, options=EmitOptions(sync=False))
    return clock.answer(files=report.files_written, size=report.bytes_written)


@function
def unpack_again(bundle: str, tree: str) -> dict[str, Any]:
    """``bundler.unpack`` where everything is there already."""
    import bundler
    from bundler.emit import EmitOptions

    data = _bytes(bundle)
    with Clock() as clock:
        report = bundler.unpack(data, into=tree, options=EmitOptions(sync=False))
    if report.files_written or not report.unchanged:
        raise ValueError(f"{report.files_written} files written where none was due")
    return clock.answer(files=0)


@function
def read_kernel(bundle: str, number: int) -> dict[str, Any]:
    """Open a bundle and read one kernel out of it, verified; ``number`` runs over its kernels."""
    from bundler.model import Unit
    from bundler.reading import opened

    with Clock() as clock, opened(bundle) as reader:
        kernels = [entry for entry in reader.index.entries if entry.unit is Unit.KERNEL]
        wanted = [artifact.content for artifact in kernels[number % len(kernels)].artifacts]
        size = sum(len(chunk.data) for chunk in reader.deliver(wanted))
    return clock.answer(size=size)


@function
def inspect(bundle: str) -> dict[str, Any]:
    """``bundler.inspect`` of a file."""
    import bundler

    with Clock() as clock:
        bundler.inspect(bundle)
    return clock.answer()


# -- floors ------------------------------------------------------------------------------------------------------------


@function
def floor_pack(root: str, bundle: str, level: int) -> dict[str, Any]:
    """Read and hash every file while another thread compresses what the bundle stores, at the same level."""
    blocks = _raw_blocks(bundle)
    tree = root.partition("=")[2]
    out: list[bytes] = []
    with Clock() as clock:
        thread = threading.Thread(target=lambda: out.extend(_compress(block, level) for block in blocks))
        thread.start()
        read_and_hash(tree)
        thread.join()
    return clock.answer(size=sum(map(len, out)))


@function
def floor_unpack(bundle: str, tree: str, into: str) -> dict[str, Any]:
    """Decode the frames, hash the bytes of the files, and create these, from memory."""
    frames, files = _frames(bundle), _files(tree)
    with fresh(into), Clock() as clock:
        for frame, raw_size in frames:
            _decompress(frame, raw_size)
        _create(into, files, hashed=True)
    return clock.answer(files=len(files), size=sum(len(data) for _, data in files))


@function
def floor_create(tree: str, into: str) -> dict[str, Any]:
    """Create the files from memory; nothing else."""
    files = _files(tree)
    with fresh(into), Clock() as clock:
        _create(into, files, hashed=False)
    return clock.answer(files=len(files), size=sum(len(data) for _, data in files))


@function
def floor_again(tree: str) -> dict[str, Any]:
    """Read and hash every file of a tree."""
    with Clock() as clock:
        read_and_hash(tree)
    return clock.answer(files=0)


@function
def floor_kernel(bundle: str, number: int) -> dict[str, Any]:
    """Decode the frames that hold one kernel."""
    from bundler.model import Unit
    from bundler.reading import opened

    with opened(bundle) as reader:
        kernels = [entry for entry in reader.index.entries if entry.unit is Unit.KERNEL]
        needed = reader.frames_of([artifact.content for artifact in kernels[number % len(kernels)].artifacts])
    frames = _frames(bundle)
    with Clock() as clock:
        for frame in needed:
            _decompress(*frames[frame])
    return clock.answer()


@function
def python_pack(root: str, level: int) -> dict[str, Any]:
    """``tarfile`` and ``zstandard`` with a long window, into memory: what Python has without this package."""
    import zstandard

    tree = root.partition("=")[2]
    out = io.BytesIO()
    parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=27, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with Clock() as clock:
        with compressor.stream_writer(out, closefd=False) as writer, tarfile.open(fileobj=writer, mode="w|") as archive:
            archive.add(tree, arcname=".")
        size = len(out.getvalue())
    return clock.answer(size=size)


@function
def python_unpack(archive: str, into: str) -> dict[str, Any]:
    """``zstandard`` and ``tarfile``, from memory."""
    import zstandard

    data = _bytes(archive)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    with fresh(into) as path, Clock() as clock, decompressor.stream_reader(data) as reader:
        archived = tarfile.open(fileobj=reader, mode="r|")  # noqa: SIM115  it holds nothing but the reader
        archived.extractall(path, filter="data")
    return clock.answer()


@function
def write_plan(bundle: str, tree: str, plan: str) -> dict[str, Any]:
    """Write what ``floor.py`` works on: the frames of a bundle, their raw blocks, and the files of a tree in one."""
    from bundler.foreign import RUN

    place = Path(plan)
    place.mkdir(parents=True)
    frames = _frames(bundle)
    paths = sorted(path for path in Path(tree).rglob("*") if path.is_file())
    told = {
        "tree": tree,
        "strings": {str(path): found for path in paths if (found := _strings(path))},
        "paths": RUN.pattern.decode("latin-1"),
        "frames": [[len(frame), raw] for frame, raw in frames],
        "files": [[str(path.relative_to(tree)), path.stat().st_size] for path in paths],
    }
    (place / "plan.json").write_text(json.dumps(told))
    for name, parts in {
        "frames": (frame for frame, _ in frames),
        "blocks": (_decompress(*frame) for frame in frames),
        "image": (path.read_bytes() for path in paths),
    }.items():
        with open(place / name, "wb") as file:
            file.writelines(parts)
    forget()
    return {}


def _strings(path: Path) -> list[tuple[int, int]]:
    """Return (offset, size) of the strings of an entry that may be copies of other files."""
    from bundler.check import examine
    from bundler.collect import long_strings
    from bundler.kinds import unit_of
    from bundler.model import Unit

    unit = unit_of(path.as_posix())
    if unit not in (Unit.FXGRAPH, Unit.AOTAUTOGRAD):
        return []
    data = path.read_bytes()
    return [(offset, size) for offset, size, _ in long_strings(data, examine(path.name, data, unit))]


def _bytes(path: str) -> bytes:
    """Return a file's bytes, read once while it stays the same."""
    return bytes(_hold("bytes", path, lambda: Path(path).read_bytes()))


def _files(tree: str) -> list[tuple[str, bytes]]:
    def read() -> list[tuple[str, bytes]]:
        paths = sorted(path for path in Path(tree).rglob("*") if path.is_file())
        return [(str(path.relative_to(tree)), path.read_bytes()) for path in paths]

    return list(_hold("files", tree, read))


def _frames(bundle: str) -> list[tuple[bytes, int]]:
    def read() -> list[tuple[bytes, int]]:
        from bundler.reading import opened

        with opened(bundle) as reader:
            data, at = Path(bundle).read_bytes(), reader.header.payload_offset
            frames = []
            for frame in reader.index.frames:
                frames.append((data[at : at + frame.stored_size], frame.raw_size))
                at += frame.stored_size
            return frames

    return list(_hold("frames", bundle, read))


def _raw_blocks(bundle: str) -> list[bytes]:
    return list(_hold("blocks", bundle, lambda: [_decompress(*frame) for frame in _frames(bundle)]))


def _hold(kind: str, path: str, read: Callable[[], Any]) -> Any:
    status = os.stat(path)
    key, stamp = f"{kind} {path}", (status.st_mtime_ns, status.st_size)
    if key not in _held or _held[key][0] != stamp:
        _held[key] = stamp, read()
    return _held[key][1]


@function
def forget() -> dict[str, Any]:
    """Let go of what is held in memory."""
    _held.clear()
    gc.collect()
    return {}


def _compress(block: bytes, level: int) -> bytes:
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=27, source_size=len(block), write_content_size=1, write_checksum=1
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(block)


def _decompress(frame: bytes, raw_size: int) -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(frame, max_output_size=raw_size)


def _create(into: str, files: Sequence[tuple[str, bytes]], *, hashed: bool) -> None:
    made: set[str] = set()
    for name, data in files:
        path = f"{into}/{name}"
        directory = os.path.dirname(path)
        if directory not in made:
            os.makedirs(directory, exist_ok=True)
            made.add(directory)
        if hashed:
            hashlib.sha256(data).digest()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, data)
        os.close(fd)


# -- a profile ---------------------------------------------------------------------------------------------------------


@function
def profile(function: str, arguments: dict[str, Any], rows: int = 14) -> dict[str, Any]:
    """Run a function under cProfile, but for what it prepares; return its dearest functions by their own time."""
    FUNCTIONS[function](**arguments)
    Clock.profiler = cProfile.Profile()
    try:
        FUNCTIONS[function](**arguments)
        return {"rows": _dearest(pstats.Stats(Clock.profiler), rows)}
    finally:
        Clock.profiler = None


def _dearest(stats: Any, rows: int) -> list[dict[str, Any]]:
    found = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:rows]
    return [
        {
            "function": f"{Path(file).name}:{line} {name}" if line else name,
            "calls": calls,
            "own_ms": round(own * 1e3, 2),
            "total_ms": round(total * 1e3, 2),
        }
        for (file, line, name), (_, calls, own, total, _) in found
    ]


def serve() -> None:
    """Answer requests until stdin ends. What functions print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = FUNCTIONS[request["function"]](**request["arguments"])
        except Exception as error:  # noqa: BLE001  it is reported to whoever asked
            answer = {"error": f"{request['function']}: {type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
