#!/usr/bin/env python3
"""Write hostile bundles, one file each: paths that lead out, bombs, overlaps, lies, and code that waits to be run.

    scripts/env python scripts/make_attacks.py DIRECTORY

The suite builds the same ones in memory (tests/attacks) and takes every verb through them. Nothing of
``bundler.formats`` is used to build them, so that what it refuses to write can be written here. ``CANARY`` in DIRECTORY
is the file that the waiting code would make.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgpack
import zstandard

from bundler.testing.artifacts import Recipe
from bundler.testing.trees import default_key

MAGIC = b"\x89TBL\r\n\x1a\n"
HEADER = struct.Struct("<8sHHIQQQ32s")
KERNEL, FXGRAPH, AOTAUTOGRAD, AUTOTUNE, MODULE, HOST_BINARY, FILE = range(7)
TRITON = (("triton", "triton", "/packed"),)

Files: TypeAlias = Sequence[tuple[str, bytes] | tuple[str, bytes, Sequence[int]]]
Entry: TypeAlias = tuple[int, int, str, int, Files]  # root, unit, path, target, files


# --- a bundle, any bundle ------------------------------------------------------------------------------------------


def frame(data: bytes, *, level: int = 3, **options: Any) -> bytes:
    """Return ``data`` as a zstd frame; ``options`` change what a frame of the format has."""
    chosen = {"write_content_size": 1, "write_checksum": 1, "source_size": len(data), **options}
    parameters = zstandard.ZstdCompressionParameters.from_level(level, **chosen)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def sha256(data: bytes) -> bytes:
    """Return the raw digest."""
    return hashlib.sha256(data).digest()


def parts(**changes: Any) -> dict[str, Any]:
    """Return the parts of an empty index, with ``changes``."""
    empty: dict[str, Any] = {
        "contents": {"copies": [], "digests": b"", "foreign": [], "sizes": []},
        "entries": [],
        "facts": {},
        "foreign": [[]],
        "frames": [],
        "profile": "full",
        "roots": [list(root) for root in TRITON],
        "skipped": [],
        "targets": [],
    }
    return empty | changes


def spelled(value: Any) -> bytes:
    """Return msgpack with the keys of maps in order."""
    return bytes(msgpack.packb(_sorted(value), use_bin_type=True))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


def forge(
    index: Mapping[str, Any] | bytes,
    payload: bytes = b"",
    *,
    stored: bytes | None = None,
    signature: bytes = b"",
    **header: Any,
) -> bytes:
    """Return a bundle.

    Args:
        index: Its parts, or the raw bytes of the index.
        payload: All frames.
        stored: The index as stored; by default a frame of the raw bytes.
        signature: The signature section.
        header: Fields to set in place of the right ones.
    """
    raw = index if isinstance(index, bytes) else spelled(index)
    stored = frame(raw) if stored is None else stored
    fields = {
        "magic": MAGIC,
        "version": 1,
        "flags": 0,
        "signature_size": len(signature),
        "index_size": len(stored),
        "index_raw_size": len(raw),
        "payload_size": len(payload),
        "index_digest": sha256(stored),
    }
    return HEADER.pack(*(fields | header).values()) + stored + signature + payload


def index_of(
    entries: Iterable[Entry], *, roots: Sequence[Sequence[str]] = TRITON, targets: Sequence[Sequence[Any]] = ()
) -> tuple[dict[str, Any], bytes]:
    """Return the parts of an index with these entries, and the payload: one frame of all contents."""
    contents: dict[bytes, int] = {}
    rows = []
    for root, unit, path, target, files in entries:
        listed = []
        for name, data, *relocation in files:
            listed.append([name, contents.setdefault(data, len(contents)), *map(list, relocation)])
        rows.append([root, unit, path, target, [], listed])
    raw = b"".join(contents)
    payload = frame(raw) if raw else b""
    found = parts(
        contents={
            "copies": [],
            "digests": b"".join(map(sha256, contents)),
            "foreign": [0] * len(contents),
            "sizes": list(map(len, contents)),
        },
        entries=rows,
        frames=[[len(payload), len(raw), sha256(payload)]] if raw else [],
        roots=[list(root) for root in roots],
        targets=[list(target) for target in targets],
    )
    return found, payload


def bundle(
    entries: Iterable[Entry],
    *,
    roots: Sequence[Sequence[str]] = TRITON,
    targets: Sequence[Sequence[Any]] = (),
    change: Callable[[dict[str, Any]], object] = lambda index: None,
    **header: Any,
) -> bytes:
    """Return a bundle of ``entries``; ``change`` edits the parts of its index before they are written."""
    index, payload = index_of(entries, roots=roots, targets=targets)
    change(index)
    return forge(index, payload, **header)


def single(path: str, data: bytes = b"data", unit: int = FILE, relocation: Sequence[int] | None = None) -> Entry:
    """Return an entry of one file."""
    name = path.rpartition("/")[2]
    return (0, unit, path, 0, [(name, data) if relocation is None else (name, data, relocation)])


def kernel(
    path: str | None = None, *, target: int = 1, prefix: str = "", group: bytes | None = None, name: str = "add"
) -> Entry:
    """Return a whole kernel for cuda:90 with its group file in placeholder form, or with ``group`` in its place.

    ``target`` is its number in the index plus one; ``prefix`` goes before the name of each file but the group file.
    """
    recipe = Recipe(name)
    files = {f"{prefix}{name}.{suffix}": data for suffix, data in recipe.files().items()}
    files[f"{prefix}{name}.json"] = json.dumps(recipe.metadata()).encode()
    rows: list[tuple[str, bytes] | tuple[str, bytes, Sequence[int]]] = list(files.items())
    if group is None:
        text = json.dumps({"child_paths": {member: f"[REPLACE]/{member}" for member in files}})
        offsets = [at for at in range(len(text)) if text.startswith("[REPLACE]", at)]
        deltas = [after - before for before, after in zip((0, *offsets), offsets)]
        rows.append((f"__grp__{name}.json", text.encode(), [0, 0, *deltas]))
    else:
        rows.append((f"__grp__{name}.json", group))
    return (0, KERNEL, path if path is not None else default_key(name), target, sorted(rows))


CUDA_80, CUDA_90 = ("cuda", "80", 32), ("cuda", "90", 32)


# --- attacks -------------------------------------------------------------------------------------------------------


def paths() -> dict[str, bytes]:
    """Names that lead out of the root, or mean something else than they seem to."""
    names = {
        "up": "../escaped",
        "up from below": "a/../../escaped",
        "up and back": "a/../b",
        "up twice as many": "../" * 200 + "tmp/escaped",
        "absolute": "/tmp/escaped",
        "absolute, twice": "//tmp/escaped",
        "current directory": "./a",
        "empty part": "a//b",
        "empty": "",
        "slash": "/",
        "trailing slash": "a/",
        "NUL": "a\0b",
        "NUL and up": "a\0/../escaped",
        "staging name": ".tb-1-2-3/a",
        "staging name below": "a/.tb-x",
        "backslashes": "..\\..\\escaped",
        "drive": "C:\\escaped",
        "drive, forward": "C:/escaped",
        "stream": "a:stream",
        "device": "NUL",
        "line ends and escapes": "a\n\x1b[2J\r\x07b",
        "right to left": "gnp.\u202efdp",
        "long name": "n" * 256,
        "long path": "/".join(["d" * 200] * 21),
        "deep path": "/".join("d" * 2000),
        "through a link": "link/escaped",
        "onto a link": "planted",
        "kernel key": default_key("add"),
    }
    found = {f"path: {case}": bundle([single(path)]) for case, path in names.items()}
    kernels = {
        "up": "../escaped",
        "the root itself": "",
        "dot": ".",
        "absolute": "/tmp/escaped",
        "through a link": f"link/{default_key('add')}",
        "onto a link": "planted",
    }
    for case, path in kernels.items():
        found[f"kernel path: {case}"] = bundle([kernel(path)], targets=[CUDA_90])
    for case, prefix in {"up": "../", "below": "sub/", "absolute": "/tmp/", "staging": ".tb-", "NUL": "\0"}.items():
        found[f"kernel file: {case}"] = bundle([kernel(prefix=prefix)], targets=[CUDA_90])
    for case, name in {"up": "..", "below": "a/b", "empty": "", "absolute": "/tmp", "long": "n" * 65}.items():
        found[f"root name: {case}"] = bundle([single("a")], roots=[(name, "triton", "")])
    lone = spelled(parts(roots=[["triton", "triton", "PATH"]])).replace(b"PATH", b"\xed\xb0\x80\xff")
    return found | {"path: not UTF-8": forge(lone)}


def collisions() -> dict[str, bytes]:
    """Two things in one place."""

    def twice(index: dict[str, Any]) -> None:
        index["entries"].append(index["entries"][-1])

    def backwards(index: dict[str, Any]) -> None:
        index["entries"].reverse()

    def file_twice(index: dict[str, Any]) -> None:
        index["entries"][0][5].append(index["entries"][0][5][-1])

    key = default_key("add")
    two = [single("a", b"1"), single("b", b"2")]
    return {
        "collision: an entry twice": bundle(two, change=twice),
        "collision: entries out of order": bundle(two, change=backwards),
        "collision: a file twice": bundle([kernel()], targets=[CUDA_90], change=file_twice),
        "collision: a file and a directory": bundle([single("a", b"1"), single("a/b", b"2")]),
        "collision: a kernel and a file": bundle([kernel(), single(f"{key}/add.ttir", b"other")], targets=[CUDA_90]),
        "collision: a kernel in a file": bundle([single("a", b"1"), kernel("a/K")], targets=[CUDA_90]),
        "collision: a kernel in a kernel": bundle([kernel("K"), kernel("K/add.ttir")], targets=[CUDA_90]),
        "collision: capitals": bundle([single("A.py", b"a = 1"), single("a.py", b"a = 2")]),
        "collision: accents": bundle([single("e\u0301", b"1"), single("\u00e9", b"2")]),
        "collision: roots": bundle([single("a")], roots=[("triton", "triton", "")] * 2),
    }


def bombs() -> dict[str, bytes]:
    """Few bytes that stand for many."""
    zeros = bytes(64 << 20)
    big = frame(zeros)

    def many_files(index: dict[str, Any]) -> None:
        index["entries"] = [[0, FILE, f"f{n:04}", 0, [], [[f"f{n:04}", 0]]] for n in range(4000)]

    def undersaid(index: dict[str, Any]) -> None:
        index["contents"].update(sizes=[11], digests=sha256(b"x" * 11))
        index["frames"] = [[len(big), 11, sha256(big)]]

    def empties(index: dict[str, Any]) -> None:
        index["contents"] = {
            "copies": [[1, *[0, 0] * 100_000]],
            "digests": sha256(b"") + sha256(b"x"),
            "foreign": [0, 0],
            "sizes": [0, 1],
        }
        index["frames"] = [[len(frame(b"x")), 1, sha256(frame(b"x"))]]

    index, payload = index_of([single("f0000", zeros)])
    many_files(index)
    lying, _ = index_of([single("f0000", zeros)])
    undersaid(lying)
    hollow, _ = index_of([single("f0000", b"x")])
    empties(hollow)
    deep = 2_000
    chain = bytes([0x91]) * deep + b"\x90"
    rows = b"\xdd" + struct.pack(">I", 30 << 20) + b"\x90" * (30 << 20)
    nested = (b"\xdd" + struct.pack(">I", 60 << 20)) * 500 + b"\x90" * (1 << 20)
    placeholders = b"[ROOT]" * 60_000
    relocated = [single(f"r{n}", placeholders + bytes([n]), FILE, [1, 1, 0, *[6] * 59_999]) for n in range(5)]
    tall = "/".join("d" * 100)
    return {
        "bomb: 4,000 files of 64 MiB": forge(index, payload),
        "bomb: a frame of 64 MiB that the index calls 11 bytes": forge(lying, big),
        "bomb: a window of 2 GiB": _wide(),
        "bomb: 100,000 empty copies": forge(hollow, frame(b"x")),
        "bomb: an index of 30 million empty arrays": forge(_raw_with("foreign", rows)),
        "bomb: an index of open arrays": forge(_raw_with("foreign", nested)),
        "bomb: a deep index": forge(_raw_with("facts", b"\x81\xa1x" + chain)),
        "bomb: a string of 4 GiB": forge(_raw_with("profile", b"\xdb\xff\xff\xff\xff")),
        "bomb: a map of 4 Gi keys": forge(_raw_with("facts", b"\xdf\xff\xff\xff\xff")),
        "bomb: placeholders": bundle(relocated),
        "bomb: directories": bundle([single(f"{n}/{tall}") for n in range(1000, 4000)]),
        "bomb: an index that declares 4 GiB": forge(parts(), index_raw_size=4 << 30),
        "bomb: a payload that is 8 EiB": forge(parts(frames=[[1 << 62, 1, bytes(32)]]), payload_size=1 << 62),
        "bomb: an index of 32 MiB and a byte": forge(parts(), index_size=(32 << 20) + 1),
    }


def _wide() -> bytes:
    """A frame of the right size whose window is far larger."""
    data = b"data"
    # Magic; descriptor: 4 bytes of content size, checksum, no single segment; window of 2 GiB; size; one raw block.
    body = struct.pack("<I", 0xFD2FB528) + bytes([0b1000_0100, (21 << 3)]) + struct.pack("<I", len(data))
    body += (1 | len(data) << 3).to_bytes(3, "little") + data + frame(data)[-4:]
    index, _ = index_of([single("a", data)])
    index["frames"] = [[len(body), len(data), sha256(body)]]
    return forge(index, body)


def _raw_with(part: str, value: bytes) -> bytes:
    """The raw index with ``value`` spelled as it is."""
    items = sorted(parts().items())
    return bytes([0x80 | len(items)]) + b"".join(
        spelled(key) + (value if key == part else spelled(item)) for key, item in items
    )


def lies() -> dict[str, bytes]:
    """An index that says what the payload is not."""
    two = [single("a", b"1234567"), single("b", b"89")]

    def content(**columns: Any) -> Callable[[dict[str, Any]], object]:
        return lambda index: index["contents"].update(columns)

    def frames(*rows: list[Any]) -> Callable[[dict[str, Any]], object]:
        return lambda index: index.update(frames=list(rows))

    swapped = sha256(b"89") + sha256(b"1234567")
    placeholder = b"[ROOT]/x [ROOT]"
    one = frame(b"123456789")
    return {
        "lie: digests swapped": bundle(two, change=content(digests=swapped)),
        "lie: another size": bundle(two, change=content(sizes=[6, 3])),
        "lie: more than there is": bundle(two, change=content(sizes=[7, 3])),
        "lie: a frame longer than the payload": bundle(two, change=frames([len(one) + 1, 9, sha256(one)])),
        "lie: an empty frame": bundle(two, change=frames([0, 0, bytes(32)], [len(one), 9, sha256(one)])),
        "lie: the digest of a frame": bundle(two, change=frames([len(one), 9, bytes(32)])),
        "lie: copies of itself": bundle(two, change=content(copies=[[1, 0, 1]])),
        "lie: copies of the next": bundle(two, change=content(copies=[[0, 0, 1]])),
        "lie: copies of nothing there": bundle(two, change=content(copies=[[1, 0, 7]])),
        "lie: copies larger than the whole": bundle(two, change=content(copies=[[1, 0, 0]])),
        "lie: a content before the first": bundle(
            two, change=lambda index: index["entries"][1][5][0].__setitem__(1, -1)
        ),
        "lie: no such content": bundle(two, change=lambda index: index["entries"][1][5][0].__setitem__(1, 2)),
        "lie: no such root": bundle(two, change=lambda index: index["entries"][1].__setitem__(0, 1)),
        "lie: no such unit": bundle(two, change=lambda index: index["entries"][1].__setitem__(1, 7)),
        "lie: an unknown kind": bundle(two, roots=[("triton", "tpu", "")]),
        "lie: placeholders overlap": bundle([single("p", placeholder, FILE, [1, 1, 0, 3])]),
        "lie: a placeholder beyond the end": bundle([single("p", placeholder, FILE, [1, 1, 0, 10])]),
        "lie: a placeholder far beyond the end": bundle([single("p", placeholder, FILE, [1, 1, 1 << 62])]),
        "lie: no placeholder there": bundle([single("p", placeholder, FILE, [1, 1, 1])]),
        "lie: a placeholder of the other base": bundle([single("p", placeholder, FILE, [0, 0, 0])]),
        "lie: the GPU": bundle([kernel()], targets=[CUDA_80]),
        "lie: no GPU": bundle([kernel(target=0)]),
        "lie: a group that points away": bundle(
            [kernel(group=b'{"child_paths": {"add.json": "/etc/KEY/add.json", "add.cubin": "/etc/KEY/add.cubin"}}')],
            targets=[CUDA_90],
        ),
        "lie: a group that lists what is not there": bundle(
            [kernel(group=json.dumps({"child_paths": {"../x": "/a/../x"}}).encode())], targets=[CUDA_90]
        ),
        "lie: facts of strange types": bundle(
            two, change=lambda index: index.update(facts={"cpu_isa": {"a": 1}, "recorded_roots": 7, "gpus": "\x1b[2J"})
        ),
        "lie: a signature of nothing": bundle(two, signature=b"signed, truly"),
        "lie: a signature larger than its room": bundle(two, signature=bytes((64 << 10) + 1)),
        "lie: bytes behind the end": bundle(two) + b"x",
        "lie: cut off": bundle(two)[:-1],
    }


def sleepers(canary: str) -> dict[str, bytes]:
    """Code that makes the file ``canary`` when it is unpickled, imported or run. It must not be."""
    call = f"open({canary!r}, 'w').close()"

    class Loaded:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, (call,)

    loaded = pickle.dumps({"a": Loaded(), "b": b"x" * 200}, 4)
    literal = f"{{'a': ('b', {call})}}".encode()
    return {
        "sleeper: an FX graph": bundle([single("fxgraph/ab/fabc/hash", loaded, FXGRAPH)]),
        "sleeper: an AOTAutograd entry": bundle([single("aotautograd/aabc/hash", loaded, AOTAUTOGRAD)]),
        "sleeper: a module": bundle([single("ab/cab.py", call.encode(), MODULE)]),
        "sleeper: sitecustomize": bundle([single("sitecustomize.py", call.encode(), MODULE)]),
        "sleeper: a handle table": bundle(
            [single("torch_compile_cache/a/rank_0_0/backbone/vllm_compile_cache.py", literal, MODULE)],
            roots=[("triton", "vllm", "")],
        ),
        "sleeper: an autotuning result": bundle([single("ab/x.best_config", b'{"a": ' + b"[" * 99_999, AUTOTUNE)]),
        "sleeper: a deep module": bundle([single("ab/deep.py", b"(" * 9_999 + b")" * 9_999, MODULE)]),
        "sleeper: a host binary": bundle([single("ab/x.so", b"\x7fELF" + bytes(60), HOST_BINARY)]),
    }


def attacks(canary: str) -> dict[str, bytes]:
    """Return every attack by name; ``canary`` is the file that code inside would make."""
    return paths() | collisions() | bombs() | lies() | sleepers(canary)


def main(arguments: Sequence[str]) -> int:
    """Write them."""
    parser = argparse.ArgumentParser(description="Write hostile bundles.")
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args(arguments).directory
    directory.mkdir(parents=True, exist_ok=True)
    found = attacks(str(directory / "CANARY"))
    for name, data in found.items():
        file = directory / ("".join(c if c.isalnum() else "-" for c in name) + ".tbundle")
        file.write_bytes(data)
    print(f"{len(found)} hostile bundles, {sum(map(len, found.values()))} bytes, in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
