#!/usr/bin/env python3
"""Make the golden bundles, or check that those at hand still say what they said.

    scripts/env python scripts/make_goldens.py           write the ones that are missing
    scripts/env python scripts/make_goldens.py --check   compare; ends with 1 when something differs

Each golden has a listing beside it, ``path:size:sha256`` for each file in its stored form. A check decodes the bundle,
compares it with the listing, and compares its index with the one that would be written today. Frames are compared by
what they hold, since zstd promises that they can be decoded and not that it would make the same. A golden that was
released is never written again: it must decode for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bundler.formats import Reader, Source, _frame, _index, _msgpack, join, open_bundle, write
from bundler.formats._header import HEADER_SIZE, Header
from bundler.model import (
    Artifact,
    Base,
    BaseRecord,
    Content,
    Entry,
    Index,
    Profile,
    Relocation,
    RootRecord,
    Skipped,
    Spelling,
    Target,
    Unit,
)

GOLDENS = Path(__file__).parent.parent / "tests" / "goldens" / "v1"

Builder = tuple[Index, list[Source], int]  # the index without contents, its contents, the block size


# --- what is in them: from nothing but this file, so that no other change can change it ----------------------------


class _Shelf:
    """Contents by first use, and the sources of a bundle made of them."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.rows: list[tuple[bytes, tuple[tuple[int, int], ...], int]] = []

    def put(self, data: bytes, copies: tuple[tuple[int, int], ...] = (), foreign: int = 0) -> int:
        if data not in self.numbers:
            self.numbers[data] = len(self.rows)
            self.rows.append((data, copies, foreign))
        return self.numbers[data]

    def sources(self) -> list[Source]:
        return [self._source(*row) for row in self.rows]

    def _source(self, data: bytes, copies: tuple[tuple[int, int], ...], foreign: int) -> Source:
        parts, at = [], 0
        for gap, number in copies:
            parts.append(data[at : at + gap])
            at += gap + len(self.rows[number][0])
        own = b"".join(parts) + data[at:]
        return Source(Content(hashlib.sha256(data).digest(), len(data), copies, foreign), lambda: [own])


def _noise(name: str, size: int) -> bytes:
    """Bytes that do not shrink."""
    return hashlib.shake_256(name.encode()).digest(size)


def _text(name: str, lines: int) -> bytes:
    """Text that shrinks as IR does."""
    rows = [f"  %{n} = arith.addf %{n // 2}, %{n // 3} : tensor<1024xf32> loc(#loc{n})" for n in range(lines)]
    return "\n".join([f"// {name}", *rows, ""]).encode()


def _group(names: Sequence[str]) -> tuple[bytes, Relocation]:
    text = json.dumps({"child_paths": {name: f"[REPLACE]/{name}" for name in names}})
    offsets = tuple(at for at in range(len(text)) if text.startswith("[REPLACE]", at))
    return text.encode(), Relocation(Base.ENTRY, Spelling.JSON, offsets)


def _kernel(shelf: _Shelf, root: str, path: str, name: str, target: Target) -> Entry:
    binary = "cubin" if target.backend == "cuda" else "hsaco"
    value = {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size}
    files = {
        f"{name}.json": json.dumps({"name": name, "target": value}).encode(),
        f"{name}.ttir": _text(f"{name} ttir", 60),
        f"{name}.llir": _text(f"{name} llir", 90),
        f"{name}.{binary}": b"\x7fELF" + _noise(f"{name} {target}", 3000),
    }
    artifacts = [Artifact(file, shelf.put(data, foreign=1)) for file, data in files.items()]
    data, relocation = _group(list(files))
    artifacts.append(Artifact(f"__grp__{name}.json", shelf.put(data), relocation))
    return Entry(root, path, Unit.KERNEL, tuple(sorted(artifacts, key=lambda artifact: artifact.name)), target)


def _single(
    shelf: _Shelf, root: str, path: str, unit: Unit, data: bytes, relocation: Relocation | None = None
) -> Entry:
    name = path.rpartition("/")[2]
    return Entry(root, path, unit, (Artifact(name, shelf.put(data), relocation),))


def _pickle(shelf: _Shelf, strings: Sequence[bytes]) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """A pickled list of byte strings (protocol 4), and where contents stand in it."""
    parts, copies, gap = [b"\x80\x04]("], [], 4
    for string in strings:
        head = b"B" + len(string).to_bytes(4, "little")
        parts += [head, string]
        copies.append((gap + len(head), shelf.numbers[string]))
        gap = 0
    return b"".join(parts) + b"e.", tuple(copies)


def everything() -> Builder:
    """Two roots, every unit, two targets, copies, placeholders of both bases, many frames, an empty file."""
    shelf = _Shelf()
    cuda, hip = Target("cuda", "90", 32), Target("hip", "gfx942", 64)
    entries = [
        _kernel(shelf, "inductor", "triton/0/AAAA", "add", cuda),
        _kernel(shelf, "inductor", "triton/1/AAAA", "add", cuda),
        _kernel(shelf, "inductor", "triton/0/BBBB", "mul", hip),
        _single(shelf, "inductor", "ab/cabc.py", Unit.MODULE, b"import torch\n" * 20),
        _single(shelf, "inductor", "ab/0123.best_config", Unit.AUTOTUNE, b'{"triton_cache_hash": "AAAA"}'),
        _single(shelf, "inductor", "caf\u00e9 \u30c7\u30fc\u30bf", Unit.FILE, b""),
        _single(shelf, "vllm", "torch_compile_cache/h/rank_0_0/backbone/empty", Unit.FILE, b""),
    ]
    table = b"{(1, 'a'): ('x', '[ROOT]/torch_compile_cache/h/rank_0_0/backbone/x'), 'b': '[ROOT]/y', 'c': '[ROOT]'}"
    offsets = (table.index(b"[ROOT]"), table.index(b"[ROOT]/y"))
    entries.append(
        _single(
            shelf,
            "vllm",
            "torch_compile_cache/h/rank_0_0/backbone/vllm_compile_cache.py",
            Unit.MODULE,
            table,
            Relocation(Base.ROOT, Spelling.PYTHON, offsets),
        )
    )
    host = _single(shelf, "inductor", "ab/cabc.so", Unit.HOST_BINARY, b"\x7fELF" + _noise("host", 9000))
    entries.append(host._replace(needs=("glibc:2.34", "machine:x86_64")))
    strings = [data for data, _, _ in shelf.rows[:5]]
    data, copies = _pickle(shelf, [*strings, strings[0]])
    graph = Entry("inductor", "fxgraph/ab/fabc/hash", Unit.FXGRAPH, (Artifact("hash", shelf.put(data, copies, 2)),))
    data, copies = _pickle(shelf, strings[1:2])
    autograd = Entry(
        "inductor", "aotautograd/aabc/hash", Unit.AOTAUTOGRAD, (Artifact("hash", shelf.put(data, copies)),)
    )
    index = Index(
        profile=Profile.FULL,
        roots=(RootRecord("inductor", "inductor", "/tmp/torchinductor_me"), RootRecord("vllm", "vllm", "")),
        entries=tuple(sorted([*entries, graph, autograd], key=lambda entry: entry.identity)),
        contents=(),
        frames=(),
        foreign=((), ("/opt/venv/lib",), ("/tmp/torchinductor_me", "/usr/include")),
        facts={
            "cpu_isa": ["avx2", "fma"],
            "environment": {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"},
            "gpus": [{"name": "H200", "target": "cuda:90"}],
            "nothing": None,
            "python": "3.12.1",
            "recorded_roots": {"inductor": "/tmp/torchinductor_me"},
            "seconds": 4_294_967_296,
            "negative": -129,
            "yes": True,
        },
        skipped=(Skipped("inductor/triton/0/CCCC", "add.cubin: 0 bytes: the write was cut off"),),
    )
    return index, shelf.sources(), 4096


def runtime() -> Builder:
    """A runtime profile: one kernel, in one frame."""
    shelf = _Shelf()
    kernel = _kernel(shelf, "triton", "AAAA", "add", Target("cuda", "80", 32))
    index = Index(
        Profile.RUNTIME, (RootRecord("triton", "triton", "/home/me/.triton/cache"),), (kernel,), (), (), ((), ("/opt",))
    )
    return index, shelf.sources(), 1 << 20


def nothing() -> Builder:
    """No root, no entry, no frame."""
    return Index(Profile.FULL, (), (), (), ()), [], 1 << 20


def delta() -> Builder:
    """A delta of ``runtime``: its kernel in another build, with one file in common, and a graph that copies two."""
    base = open_bundle(io.BytesIO(build(BASES["delta"])))
    shelf = _Shelf()
    (old,) = base.index.entries
    for artifact in old.artifacts[1:3]:
        shelf.put(base.read(artifact.content))
    data, copies = _pickle(shelf, list(shelf.numbers))
    files = (Artifact("add.cubin", shelf.put(b"\x7fELF" + _noise("another build", 3000))), Artifact("add.json", 1))
    entries = (
        Entry("inductor", "fxgraph/ab/fabc/hash", Unit.FXGRAPH, (Artifact("hash", shelf.put(data, copies)),)),
        Entry("triton", "AAAA", Unit.KERNEL, files, old.target),
    )
    roots = (RootRecord("inductor", "inductor"), RootRecord("triton", "triton"))
    record = BaseRecord(base.content_digest.value, 2, ("triton/BBBB", "triton/CCCC"))
    return Index(Profile.FULL, roots, entries, (), (), base=record), shelf.sources(), 1 << 20


BUNDLES: dict[str, Callable[[], Builder]] = {
    "everything": everything,
    "nothing": nothing,
    "runtime": runtime,
    "delta": delta,
}
BASES = {"delta": "runtime"}


# --- what may come later, and this version must pass over ----------------------------------------------------------


def signed(bundle: bytes) -> bytes:
    """The bundle with a signature section of a scheme that nobody knows yet."""
    header = Header.decode(bundle[:HEADER_SIZE])
    signature = b"a signature of a later version"
    head = replace(header, signature_size=len(signature)).encode()
    at = HEADER_SIZE + header.index_size
    return head + bundle[HEADER_SIZE:at] + signature + bundle[at:]


def extended(bundle: bytes) -> bytes:
    """The bundle with a part in its index that may be passed over."""
    header = Header.decode(bundle[:HEADER_SIZE])
    raw = _raw_index(bundle)
    value = _msgpack.decode(raw, what="the index", offset=0, name="")
    raw = _msgpack.encode({**value, "~later": {"a": [1, b"x", None]}})
    stored = _frame.compress(raw, 19)
    header = replace(
        header, index_size=len(stored), index_raw_size=len(raw), index_digest=hashlib.sha256(stored).digest()
    )
    return header.encode() + stored + bundle[HEADER_SIZE + Header.decode(bundle[:HEADER_SIZE]).index_size :]


LATER: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "later-part": ("runtime", extended),
    "later-signature": ("runtime", signed),
}


# --- writing and checking ------------------------------------------------------------------------------------------


def build(name: str) -> bytes:
    """Return the bundle as it is written today."""
    if name in LATER:
        base, change = LATER[name]
        return change(build(base))
    index, sources, block_size = BUNDLES[name]()
    sources = [source._replace(own=list) for source in sources[: index.base_contents]] + sources[index.base_contents :]
    out = io.BytesIO()
    write(out, index, sources, block_size=block_size)
    return out.getvalue()


def listing(bundle: bytes) -> str:
    """Return ``path:size:sha256`` for each file, as it is read and not as the index says it is."""
    reader = _whole(bundle)
    numbers = range(len(reader.index.contents))
    contents: list[bytearray] = [bytearray() for _ in numbers]
    for chunk in reader.deliver(numbers):
        contents[chunk.content] += chunk.data
    reader.check_frames()
    lines = [f"# content digest {reader.content_digest}"]
    for entry in reader.index.entries:
        for artifact in entry.artifacts:
            data = bytes(contents[artifact.content])
            path = "/".join(part for part in (entry.root, entry.directory, artifact.name) if part)
            lines.append(f"{path}:{len(data)}:{hashlib.sha256(data).hexdigest()}")
    return "\n".join(lines) + "\n"


def _whole(bundle: bytes) -> Reader:
    """Open a bundle, a delta together with its base."""
    reader = open_bundle(io.BytesIO(bundle))
    if reader.index.base is None:
        return reader
    return join(open_bundle(io.BytesIO(build(BASES["delta"]))), reader)


def _raw_index(bundle: bytes) -> bytes:
    header = Header.decode(bundle[:HEADER_SIZE])
    stored = bundle[HEADER_SIZE:][: header.index_size]
    return _frame.decompress(stored, header.index_raw_size, what="the index", offset=HEADER_SIZE, name="")


def differences(name: str, golden: bytes, listed: str) -> list[str]:
    """Say what of a golden is not as its listing, or as today's writer, has it."""
    found = [f"{name}: its files are not those of its listing"] if listing(golden) != listed else []
    then, now = open_bundle(io.BytesIO(golden)), open_bundle(io.BytesIO(build(name)))
    if listing(build(name)) != listed:
        found.append(f"{name}: what is written today holds other files")
    sizes = [[frame.raw_size for frame in reader.index.frames] for reader in (then, now)]
    if sizes[0] != sizes[1]:
        found.append(f"{name}: frames of {sizes[1]} raw bytes are written today, not of {sizes[0]}")
    # zstd may make frames of another size and digest; all else of the index must be the same byte for byte.
    index = _index.encode_index(replace(now.index, frames=then.index.frames))
    raw = _raw_index(golden)
    if name == "later-part":
        raw = _msgpack.encode(
            {key: value for key, value in _msgpack.decode(raw, what="", offset=0, name="").items() if key[0] != "~"}
        )
    if raw != index:
        found.append(f"{name}: another index is written today")
    if golden[:16] != build(name)[:16]:  # magic, version, flags, size of the signature
        found.append(f"{name}: another header is written today")
    return found


def check() -> list[str]:
    """Return all differences, of all goldens."""
    found = []
    for name in (*BUNDLES, *LATER):
        golden, listed = GOLDENS / f"{name}.tbundle", GOLDENS / f"{name}.txt"
        if golden.exists() and listed.exists():
            found += differences(name, golden.read_bytes(), listed.read_text(encoding="utf-8"))
        else:
            found.append(f"{name}: {golden} or its listing is missing")
    known = {f"{name}.{ending}" for name in (*BUNDLES, *LATER) for ending in ("tbundle", "txt")}
    return found + [f"{path} is not known" for path in sorted(GOLDENS.iterdir()) if path.name not in known]


def main(arguments: Sequence[str]) -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description="Make the golden bundles, or check them.")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when something differs")
    if parser.parse_args(arguments).check:
        found = check()
        print("\n".join(found) or f"{len(BUNDLES) + len(LATER)} goldens are as they were")
        return 1 if found else 0
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for name in (*BUNDLES, *LATER):
        golden = GOLDENS / f"{name}.tbundle"
        if golden.exists():
            print(f"{golden} is there, and stays: a golden that was released is never written again")
            continue
        bundle = build(name)
        golden.write_bytes(bundle)
        golden.with_suffix(".txt").write_text(listing(bundle), encoding="utf-8")
        print(f"{golden}: {len(bundle)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
