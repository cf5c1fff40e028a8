"""Laws of the mega cache reader; torch itself, in processes of its own, is the judge of where artifacts go."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import posixpath
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bundler.digest import Digest
from bundler.errors import (
    BundlerError,
    DigestMismatchError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    UnsafePathError,
    UnsupportedVersionError,
)
from bundler.formats import megacache
from bundler.formats.megacache import LeftOut, MegaArtifact, MegaCache, Placed

Section = tuple[str, list[tuple[str, bytes]]]

KINDS = ("inductor", "autotune", "aot_autograd", "pgo", "precompile")
FX_KEY = "f" + "abcdefghijklmnopqrstuvwxyz234567" + "a" * 19  # 52 characters, as torch's
NO_DIGEST = Digest(bytes(32))
NO_NAME = "a" * 51  # what torch's sha256_hash makes of 32 NUL bytes


# A writer that shares nothing with the reader.


def integer(value: int) -> bytes:
    return value.to_bytes(8, "big")


def field(raw: bytes) -> bytes:
    return integer(len(raw)) + raw


def text(value: str) -> bytes:
    return field(base64.b64encode(value.encode("utf-8")))


def section(kind: str, artifacts: list[tuple[str, bytes]]) -> bytes:
    return text(kind) + integer(len(artifacts)) + b"".join(text(key) + field(content) for key, content in artifacts)


def checked(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big") + body


def mega(sections: list[Section], version: int = 1) -> bytes:
    return checked(integer(version) + b"".join(section(kind, artifacts) for kind, artifacts in sections))


SAMPLE = mega([("inductor", [(FX_KEY, b"graph"), (FX_KEY, b"other guards")]), ("pgo", [("job:0:", b"")])])


def contents(data: bytes, cache: MegaCache) -> list[tuple[str, str, bytes]]:
    return [(a.kind, a.key, b"".join(megacache.chunks(data, a))) for a in cache.artifacts]


class TrickleFile(io.RawIOBase):
    """An unbuffered file that gives at most three bytes for each read, and can lose its end."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.inner.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        part = self.inner.read(min(3, len(buffer)))
        buffer[: len(part)] = part
        return len(part)


# Reading.


def test_read_lists_every_artifact_with_the_place_of_its_content() -> None:
    cache = megacache.read(SAMPLE)
    first = 4 + 8 + (8 + 12) + 8 + (8 + 72) + 8  # checksum, version, kind, count, key, length
    assert cache.artifacts == (
        MegaArtifact("inductor", FX_KEY, first, 5),
        MegaArtifact("inductor", FX_KEY, first + 5 + (8 + 72) + 8, 12),
        MegaArtifact("pgo", "job:0:", len(SAMPLE), 0),
    )


def test_read_keeps_every_section_of_a_repeated_kind() -> None:
    data = mega([("inductor", [("fa", b"1")]), ("pgo", [("p", b"2")]), ("inductor", [("fb", b"3")])])
    assert contents(data, megacache.read(data)) == [
        ("inductor", "fa", b"1"),
        ("pgo", "p", b"2"),
        ("inductor", "fb", b"3"),
    ]


def test_read_takes_a_file_at_any_position_and_leaves_it_open(tmp_path: Path) -> None:
    path = tmp_path / "mega"
    path.write_bytes(SAMPLE)
    with path.open("rb") as file:
        file.seek(7)
        cache = megacache.read(file)
        assert cache == megacache.read(SAMPLE)
        assert megacache.artifact_digest(file, cache.artifacts[0]) == Digest.of(b"graph")


def test_read_is_the_same_when_a_file_trickles() -> None:
    assert megacache.read(TrickleFile(SAMPLE)) == megacache.read(SAMPLE)  # type: ignore[arg-type]


def test_chunks_are_bounded_and_whole() -> None:
    content = bytes(range(256)) * 10_000
    data = mega([("inductor", [(FX_KEY, content)])])
    (artifact,) = megacache.read(data).artifacts
    pieces = list(megacache.chunks(data, artifact))
    assert max(map(len, pieces)) <= 1 << 20
    assert b"".join(pieces) == content


def test_chunks_refuse_a_file_that_became_shorter() -> None:
    artifact = megacache.read(SAMPLE).artifacts[1]
    with pytest.raises(TruncatedError) as caught:
        list(megacache.chunks(SAMPLE[:230], artifact))
    assert (caught.value.offset, caught.value.needed, caught.value.available) == (221, 12, 9)


def test_read_refuses_a_file_that_shrinks_while_it_is_read() -> None:
    class Shrinking(TrickleFile):
        def readinto(self, buffer: Any) -> int:
            return 0 if self.inner.tell() > 40 else super().readinto(buffer)

    with pytest.raises(TruncatedError) as caught:
        megacache.read(Shrinking(SAMPLE))  # type: ignore[arg-type]
    assert (caught.value.offset, caught.value.needed, caught.value.available) == (4, len(SAMPLE) - 4, 39)


# Bytes that break the format: name -> (bytes, error class, its fields).

HEAD = 4 + 8  # checksum, version
KIND = HEAD + 8 + 12  # behind the kind "inductor"
HUGE = 1 << 62


def body(*parts: bytes) -> bytes:
    return checked(integer(1) + b"".join(parts))


def crc(data: bytes) -> str:
    return f"crc32:{zlib.crc32(data[4:]):08x}"


FLIPPED = SAMPLE[:-90] + bytes([SAMPLE[-90] ^ 1]) + SAMPLE[-89:]
WRONG_VERSION_UNCHECKED = SAMPLE[:4] + integer(2) + SAMPLE[12:]
MANY_SECTIONS = section("pgo", []) * (megacache.MAX_SECTIONS + 1)

MALFORMED: dict[str, tuple[bytes, type[BundlerError], dict[str, Any]]] = {
    "empty": (b"", TruncatedError, {"offset": 0, "needed": 12, "available": 0, "what": "checksum and version"}),
    "cut in the version": (
        SAMPLE[:11],
        TruncatedError,
        {"offset": 0, "needed": 12, "available": 11, "what": "checksum and version"},
    ),
    "cut in a content": (
        SAMPLE[:223],
        TruncatedError,
        {"offset": 221, "needed": 12, "available": 2, "what": "content of inductor artifact"},
    ),
    "cut between sections": (
        SAMPLE[:233],
        DigestMismatchError,
        {"name": "mega cache", "expected": crc(SAMPLE), "actual": crc(SAMPLE[:233]), "offset": 0},
    ),
    "flipped bit": (
        FLIPPED,
        DigestMismatchError,
        {"name": "mega cache", "expected": crc(SAMPLE), "actual": crc(FLIPPED), "offset": 0},
    ),
    "version flipped": (
        WRONG_VERSION_UNCHECKED,
        DigestMismatchError,
        {"name": "mega cache", "expected": crc(SAMPLE), "actual": crc(WRONG_VERSION_UNCHECKED), "offset": 0},
    ),
    "version 2": (mega([], version=2), UnsupportedVersionError, {"found": 2, "supported": (1,), "offset": 4}),
    "version 0": (mega([], version=0), UnsupportedVersionError, {"found": 0, "supported": (1,), "offset": 4}),
    "length of the kind cut": (
        body(b"\0" * 7),
        TruncatedError,
        {"offset": HEAD, "needed": 8, "available": 7, "what": "length of kind"},
    ),
    "kind cut": (
        body(integer(12), b"aW5k"),
        TruncatedError,
        {"offset": HEAD + 8, "needed": 12, "available": 4, "what": "kind"},
    ),
    "kind of 2**62 bytes": (
        body(integer(HUGE)),
        LimitExceededError,
        {"what": "length of kind in bytes of base64", "size": HUGE, "limit": megacache.MAX_KIND_BYTES},
    ),
    "kind not base64": (
        body(field(b"a"), integer(0)),
        FormatError,
        {"what": "kind is not base64", "offset": HEAD + 8},
    ),
    "kind with a line end in its base64": (
        body(field(b"cGdv\n"), integer(0)),
        FormatError,
        {"what": "kind is not canonical base64", "offset": HEAD + 8},
    ),
    "kind with spare bits in its base64": (
        body(field(b"eHh4eF=="), integer(0)),
        FormatError,
        {"what": "kind is not canonical base64", "offset": HEAD + 8},
    ),
    "kind not UTF-8": (
        body(field(base64.b64encode(b"\xff")), integer(0)),
        FormatError,
        {"what": "kind is not UTF-8", "offset": HEAD + 8},
    ),
    "kind empty": (body(section("", [])), FormatError, {"what": "kind '' is not a name", "offset": HEAD + 8}),
    "kind with a slash": (
        body(section("a/b", [])),
        FormatError,
        {"what": "kind 'a/b' is not a name", "offset": HEAD + 8},
    ),
    "no count": (
        body(text("inductor")),
        TruncatedError,
        {"offset": KIND, "needed": 8, "available": 0, "what": "count of artifacts"},
    ),
    "count of 2**62": (
        body(text("inductor"), integer(HUGE)),
        LimitExceededError,
        {"what": "count of artifacts", "size": HUGE, "limit": megacache.MAX_ARTIFACTS},
    ),
    "counts together above the limit": (
        body(section("pgo", [("k", b"")]), text("inductor"), integer(megacache.MAX_ARTIFACTS)),
        LimitExceededError,
        {"what": "count of artifacts", "size": megacache.MAX_ARTIFACTS + 1, "limit": megacache.MAX_ARTIFACTS},
    ),
    "count that the bytes left cannot hold": (
        body(text("inductor"), integer(3), text("12345678")),
        TruncatedError,
        {"offset": KIND + 8, "needed": 48, "available": 20, "what": "section of 3 artifacts"},
    ),
    "too many sections": (
        body(MANY_SECTIONS),
        LimitExceededError,
        {"what": "count of sections", "size": megacache.MAX_SECTIONS + 1, "limit": megacache.MAX_SECTIONS},
    ),
    "key above the limit": (
        body(section("inductor", [("a" * 3073, b"")])),
        LimitExceededError,
        {"what": "length of key of inductor artifact in bytes of base64", "size": 4100, "limit": 4096},
    ),
    "key cut": (
        body(text("inductor"), integer(1), integer(72), b"a" * 20),
        TruncatedError,
        {"offset": KIND + 16, "needed": 72, "available": 20, "what": "key of inductor artifact"},
    ),
    "key not base64": (
        body(text("inductor"), integer(1), field(b"abc"), field(b"")),
        FormatError,
        {"what": "key of inductor artifact is not base64", "offset": KIND + 16},
    ),
    "key not UTF-8": (
        body(text("inductor"), integer(1), field(base64.b64encode(b"\x80abc")), field(b"")),
        FormatError,
        {"what": "key of inductor artifact is not UTF-8", "offset": KIND + 16},
    ),
    "no content": (
        body(text("inductor"), integer(1), text("12345678")),
        TruncatedError,
        {"offset": KIND + 8 + 20, "needed": 8, "available": 0, "what": "length of content of inductor artifact"},
    ),
    "content of 2**62 bytes": (
        body(text("inductor"), integer(1), text("fa"), integer(HUGE), b"graph"),
        TruncatedError,
        {"offset": KIND + 8 + 12 + 8, "needed": HUGE, "available": 5, "what": "content of inductor artifact"},
    ),
    "content one byte short": (
        body(text("inductor"), integer(1), text("fa"), integer(6), b"graph"),
        TruncatedError,
        {"offset": KIND + 8 + 12 + 8, "needed": 6, "available": 5, "what": "content of inductor artifact"},
    ),
    "one byte behind the end": (
        checked(SAMPLE[4:] + b"\0"),
        TruncatedError,
        {"offset": len(SAMPLE), "needed": 8, "available": 1, "what": "length of kind"},
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_bytes_are_refused_with_the_place_and_both_numbers(case: str) -> None:
    data, error, fields = MALFORMED[case]
    with pytest.raises(BundlerError) as caught:
        megacache.read(data)
    named = {} if error is DigestMismatchError else {"name": ""}
    assert (type(caught.value), caught.value.fields()) == (error, fields | named)


def test_errors_name_the_file_and_the_place_of_the_version() -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        megacache.read(mega([], version=2), name="tf.mega")
    assert str(caught.value).startswith("tf.mega: at byte 4: format version 2 found, this package reads 1")
    with pytest.raises(DigestMismatchError) as mismatch:
        megacache.read(FLIPPED, name="tf.mega")
    assert mismatch.value.name == "tf.mega"


def test_a_mega_cache_without_a_section_is_empty() -> None:
    assert megacache.read(mega([])).artifacts == ()


# The look at the first bytes.


@pytest.mark.parametrize("kind", [*KINDS, "third_party"])
def test_is_megacache_knows_the_first_bytes(kind: str) -> None:
    assert megacache.is_megacache(mega([(kind, [("key", bytes(1000))])])[: megacache.HEAD_BYTES])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        SAMPLE[:4],
        SAMPLE[:12],
        SAMPLE[:20],
        SAMPLE[:31],
        mega([]),
        mega([("inductor", [])], version=2),
        b"\x80\x04\x95\xcc\x00\x00\x00\x00\x00\x00\x00\x8c" + bytes(200),
        b"PK\x03\x04" + bytes(200),
        bytes(200),
        body(integer(HUGE), b"aW5kdWN0b3I="),
        body(field(b"\xff" * 12)),
        body(text("a kind")),
    ],
)
def test_is_megacache_refuses_other_bytes(head: bytes) -> None:
    assert not megacache.is_megacache(head)


# Laws.

kinds = st.one_of(st.sampled_from(KINDS), st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,40}", fullmatch=True))
sections = st.lists(st.tuples(kinds, st.lists(st.tuples(st.text(max_size=60), st.binary(max_size=200)), max_size=4)))
fast = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@fast
@given(sections)
def test_read_returns_what_was_written(written: list[Section]) -> None:
    data = mega(written)
    expected = [(kind, key, content) for kind, artifacts in written for key, content in artifacts]
    assert contents(data, megacache.read(data)) == expected
    assert megacache.is_megacache(data[: megacache.HEAD_BYTES]) == bool(written)


@fast
@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 2**32 - 1))
def test_a_flip_of_up_to_32_neighbouring_bits_is_refused(place: int, flip: int) -> None:
    # A CRC32 finds every burst of up to 32 bits, wherever it is.
    data = bytearray(SAMPLE)
    for index, byte in enumerate(flip.to_bytes(4, "big")):
        if place + index < len(data):
            data[place + index] ^= byte
    if data != SAMPLE:
        with pytest.raises(BundlerError):
            megacache.read(bytes(data))


@pytest.mark.parametrize("size", range(len(SAMPLE)))
def test_a_truncation_is_refused(size: int) -> None:
    with pytest.raises((TruncatedError, DigestMismatchError)):
        megacache.read(SAMPLE[:size])


@fast
@given(st.binary(max_size=300), st.integers(0, len(SAMPLE) - 12), st.integers(0, 40))
def test_any_bytes_with_a_good_checksum_are_read_or_refused_by_an_error_of_ours(
    noise: bytes, start: int, gone: int
) -> None:
    data = checked(integer(1) + SAMPLE[12 : 12 + start] + noise + SAMPLE[12 + start + gone :])
    try:
        cache = megacache.read(data)
    except BundlerError:
        return
    assert all(0 < a.offset <= a.offset + a.size <= len(data) for a in cache.artifacts)


# Places.


def place(kind: str, key: str, digest: Digest = NO_DIGEST) -> Placed | LeftOut:
    return megacache.place(MegaArtifact(kind, key, 100, 5), digest)


@pytest.mark.parametrize(
    ("kind", "key", "path"),
    [
        ("inductor", FX_KEY, f"fxgraph/ab/{FX_KEY}/{NO_NAME}"),
        ("aot_autograd", "a" + FX_KEY[1:], f"aotautograd/a{FX_KEY[1:]}/{NO_NAME}"),
        ("autotune", "uz/b0b96d32.best_config", "uz/b0b96d32.best_config"),
        ("pgo", "job:0:", "dynamo/code_state_job_0_.pkl"),
        ("pgo", 'team/../r<>"\\|?*:None:tag', "dynamo/code_state_team_.._r________None_tag.pkl"),
        ("precompile", "20b4ed0e", "dynamo/20b4ed0e/entry"),
        ("precompile", "model.v1", "dynamo/model.v1/entry"),
    ],
)
def test_place_is_torch_s(kind: str, key: str, path: str) -> None:
    assert place(kind, key) == Placed(path, 100, 5)


def test_place_takes_the_name_from_the_digest() -> None:
    # A file of a real cache: base32 of the digest in its name, and of nothing else.
    digest = Digest(base64.b32decode("DEDRWJ35MT523RE4QLISDU5QYITTSMRKLK24K3SYGE76BUOSDPBA===="))
    placed = place("inductor", FX_KEY, digest)
    assert isinstance(placed, Placed)
    assert placed.path.endswith("/dedrwj35mt523re4qlisdu5qyittsmrklk24k3syge76buosdpb")


@pytest.mark.parametrize(
    ("kind", "key", "word"), [("pgo", "mast:job:1:0:", "MAST"), ("third_party", "../../x", "third_party")]
)
def test_place_gives_a_reason_where_only_torch_can_tell(kind: str, key: str, word: str) -> None:
    left_out = place(kind, key)
    assert isinstance(left_out, LeftOut)
    assert word in left_out.reason


HOSTILE = {
    "inductor": ["", "f", "..", "../../etc", "/etc/x", "a/b", "a\\b", "fab\0c", "fab\n", "a..", "a..b", ".fab", "f:c"],
    "aot_autograd": ["", ".", "..", "../x", "/x", "a/b", "a\\b", "a\0", "C:x", "a ", "\ud7ff", "a" * 256],
    "autotune": [
        "",
        "x.best_config",
        "../x.best_config",
        "/x.best_config",
        "/etc/x.best_config",
        "a/../x.best_config",
        "a/b/x.best_config",
        "a\\b/x.best_config",
        "ab/c\\x.best_config",
        "ab/c\0.best_config",
        "ab/.best_config",
        "ab/cabc.py",
        "ab/x.best_config\n",
        "..\\..\\x.best_config",
    ],
    "pgo": ["a\0b", "a\nb", "\x7f", "x" * 256, "\u00e9" * 125],
    "precompile": ["", ".", "..", "../x", "/tmp/x", "a/b", "a\\b", "a\0", "x" * 256],
}


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in HOSTILE.items() for key in keys])
def test_place_refuses_a_key_that_leads_elsewhere(kind: str, key: str) -> None:
    with pytest.raises(UnsafePathError) as caught:
        place(kind, key)
    assert caught.value.path == key


HOME = {"inductor": "fxgraph", "aot_autograd": "aotautograd", "autotune": "", "pgo": "dynamo", "precompile": "dynamo"}
awkward = st.one_of(st.text(), st.text(alphabet="abf./\\:\0~ "), st.from_regex(r"[a-z./]{1,4}\.best_config"))


@fast
@given(st.sampled_from(KINDS), awkward)
def test_a_place_is_a_plain_path_below_the_home_of_its_kind(kind: str, key: str) -> None:
    try:
        placed = place(kind, key)
    except UnsafePathError:
        return
    assert isinstance(placed, Placed) or key.startswith("mast:")
    if isinstance(placed, Placed):
        assert posixpath.normpath(placed.path) == placed.path
        assert not {"..", ".", ""} & set(placed.path.split("/"))
        assert not set("\\\0") & set(placed.path)
        assert placed.path.startswith(HOME[kind])


# torch as the judge: one process compiles and saves, one loads into an empty root, one starts from the root we made.

PROGRAM = """
import json, os, sys
from types import SimpleNamespace
import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch.compiler._cache import CacheArtifactManager

ROOT = os.environ["TORCHINDUCTOR_CACHE_DIR"]

def product(x, w):
    return x @ w

def cube(x, w):
    return x @ w @ w

def train(function):
    # Only matrix products, which Inductor leaves to ATen: no C++ compiler is needed, and it takes seconds.
    w = torch.ones(4, 4, requires_grad=True)
    torch.compile(function)(torch.ones(4, 4), w).backward(torch.ones(4, 4))

def tuned(name):
    # The tuning of a Triton kernel needs a GPU to run; its cache does not.
    return AutotuneCache.create({"is_fbcode": False}, os.path.join(ROOT, name[1:3], name + ".py"), "configs")

def train_all():
    train(product)
    torch._dynamo.config.caching_precompile = True
    train(cube)

def write(path):
    data, _ = torch.compiler.save_cache_artifacts()
    with open(path, "wb") as file:
        file.write(data)

def compile_(path):
    config = SimpleNamespace(kwargs={"XBLOCK": 64}, num_warps=4, num_stages=1)
    train_all()
    tuned("cabc").save(config, 10**6)
    write(path)
    tuned("cxyz").save(config, 10**6)
    write(path + ".second")

def load(path):
    with open(path, "rb") as file:
        info = torch.compiler.load_cache_artifacts(file.read())
    with open(path + ".second", "rb") as file:
        second = CacheArtifactManager.deserialize(file.read())
    return {
        "loaded": [[kind, key] for kind, keys in info.artifacts.items() for key in keys],
        "second": [[kind, artifact.key] for kind, artifacts in second.items() for artifact in artifacts],
    }

def warm(path):
    train_all()
    configs = [SimpleNamespace(kwargs={"XBLOCK": size}, num_warps=4, num_stages=1) for size in (32, 64)]
    best = tuned("cabc").read_best({}, configs)
    return {"best": best and best.kwargs, **{name: dict(counter) for name, counter in counters.items()}}

verb = {"compile": compile_, "load": load, "warm": warm}[sys.argv[1]]
print(json.dumps(verb(sys.argv[2])))
"""


@dataclass
class Judgement:
    """What torch did, and the mega caches it did it with."""

    mega: Path
    compiled: Path  # the root of the process that compiled
    loaded: Path  # the root that load_cache_artifacts filled
    report: dict[str, Any]
    run: Callable[[str, Path], dict[str, Any]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed, and only torch can judge")
    directory = tmp_path_factory.mktemp("judge")
    program = directory / "program.py"
    program.write_text(PROGRAM)
    mega_file = directory / "saved.mega"

    def run(verb: str, root: Path) -> dict[str, Any]:
        return run_program([str(program), verb, str(mega_file)], root)

    compiled, loaded = directory / "compiled", directory / "loaded"
    run("compile", compiled)
    return Judgement(mega_file, compiled, loaded, run("load", loaded), run)


def run_program(arguments: list[str], root: Path) -> dict[str, Any]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "TRITON", "PYTORCH"))}
    ours = {
        "TORCHINDUCTOR_CACHE_DIR": str(root),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCH_COMPILE_JOB_ID": "team/run",  # without a job there is no PGO artifact; the slash is rewritten
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, *arguments], env=kept | ours, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) or {}
    return answer


def tree(root: Path) -> dict[str, bytes]:
    # torch takes a lock beside a PGO file and leaves it there, empty.
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def our_tree(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    with path.open("rb") as file:
        for artifact in megacache.read(file).artifacts:
            placed = megacache.place(artifact, megacache.artifact_digest(file, artifact))
            assert isinstance(placed, Placed)
            file.seek(placed.offset)
            files[placed.path] = file.read(placed.size)
    return files


@pytest.mark.torch
@pytest.mark.slow
def test_our_tree_is_the_one_that_torch_makes(judged: Judgement) -> None:
    cache = megacache.read(judged.mega.read_bytes())
    assert {artifact.kind for artifact in cache.artifacts} == set(KINDS)
    assert sorted([a.kind, a.key] for a in cache.artifacts) == sorted(judged.report["loaded"])
    ours = our_tree(judged.mega)
    assert ours == tree(judged.loaded)
    # And so was the tree of the process that compiled, which holds its modules besides.
    assert ours.items() <= tree(judged.compiled).items()


@pytest.mark.torch
@pytest.mark.slow
def test_real_bytes_are_recognised(judged: Judgement) -> None:
    with judged.mega.open("rb") as file:
        assert megacache.is_megacache(file.read(megacache.HEAD_BYTES))


@pytest.mark.torch
@pytest.mark.slow
def test_a_process_started_from_our_tree_hits_every_cache(judged: Judgement, tmp_path: Path) -> None:
    for name, content in our_tree(judged.mega).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    report = judged.run("warm", tmp_path)
    assert report["inductor"]["fxgraph_cache_hit"] == 2  # forward and backward of `product`
    assert "fxgraph_cache_miss" not in report["inductor"]
    assert report["aot_autograd"]["autograd_cache_hit"] == 1
    assert "autograd_cache_miss" not in report["aot_autograd"]
    assert report["dynamo_cache"] == {"dynamo_cache_hit": 1}  # `cube`, from its precompile artifact
    assert report["best"] == {"XBLOCK": 64}


@pytest.mark.torch
@pytest.mark.slow
def test_we_keep_the_sections_that_torch_forgets_after_a_second_save(judged: Judgement) -> None:
    # The second save appended one more autotune section; torch's dict of sections keeps that one alone.
    second = megacache.read(judged.mega.with_name("saved.mega.second").read_bytes())
    kept = [key for kind, key in judged.report["second"] if kind == "autotune"]
    ours = [artifact.key for artifact in second.artifacts if artifact.kind == "autotune"]
    assert (len(ours), kept) == (2, ours[1:])
