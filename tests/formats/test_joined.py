"""A delta and its base: read as one bundle, or refused with the reason. Deltas are forged without the format's code."""

from __future__ import annotations

import hashlib
import io
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bundler.errors import (
    BundlerError,
    DigestMismatchError,
    FormatError,
    LimitExceededError,
    MissingBaseError,
    UsageError,
    WrongBaseError,
)
from bundler.formats import Reader, _rules, collision, join, open_bundle
from bundler.model import Profile

make = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_attacks.py")))
single, frame, sha256 = make.single, make.frame, make.sha256

Change = Callable[[dict[str, Any]], object]

OLD: bytes = make.bundle([single("a", b"alpha"), single("b", b"beta"), single("d/c", b"gamma")])
COPIER = b"<alpha|own>"  # a content that holds another one


def opened(data: bytes, **options: Any) -> Reader:
    return open_bundle(io.BytesIO(data), **options)


def digest(data: bytes) -> bytes:
    return opened(data).content_digest.value


def delta(
    own: Sequence[bytes] = (COPIER, b"new"),
    *,
    base: bytes = OLD,
    there: Sequence[bytes] = (b"alpha", b"gamma"),
    lost: Sequence[str] = ("triton/b",),
    change: Change = lambda index: None,
) -> bytes:
    """A delta of ``base``: an entry for each of its contents, ``b`` in another build, and the rest new."""
    stored = own[0].replace(there[0], b"") + b"".join(own[1:])
    payload = frame(stored)
    names = ["b", "e", "f", "g"]
    contents = [*there, *own]
    used = [len(there), len(there) + 1, 0, 1]
    index = make.parts(
        base=[digest(base), len(there), list(lost)],
        contents={
            "copies": [[len(there), 1, 0]],
            "digests": b"".join(map(sha256, contents)),
            "foreign": [0] * len(contents),
            "sizes": list(map(len, contents)),
        },
        entries=[[0, make.FILE, name, 0, [], [[name, number]]] for name, number in zip(names, used)],
        frames=[[len(payload), len(stored), sha256(payload)]],
    )
    change(index)
    built: bytes = make.forge(index, payload)
    return built


def read_all(reader: Reader) -> dict[str, bytes]:
    return {str(entry): reader.read(entry.artifacts[0].content) for entry in reader.index.entries}


def test_the_two_are_one_bundle() -> None:
    reader = join(opened(OLD), opened(delta()))
    assert read_all(reader) == {
        "triton/a": b"alpha",
        "triton/b": COPIER,
        "triton/d/c": b"gamma",
        "triton/e": b"new",
        "triton/f": b"alpha",
        "triton/g": b"gamma",
    }
    reader.check_frames()
    reader.finish()
    assert reader.bundle_size == len(OLD) + len(delta())
    wanted = {entry.artifacts[0].content for entry in reader.index.entries}
    assert reader.frames_of(wanted) == {0, 1}


def test_contents_come_in_one_pass_whatever_is_asked_for() -> None:
    reader = join(opened(OLD), opened(delta()))
    parts: dict[int, bytes] = {}
    for chunk in reader.deliver(range(len(reader.index.contents))):
        parts[chunk.content] = parts.get(chunk.content, b"") + bytes(chunk.data)
    assert list(parts.values()) == [b"alpha", b"beta", b"gamma", COPIER, b"new"]


def test_a_delta_is_pinned_together_with_its_base() -> None:
    other = make.bundle([single("a", b"alpha"), single("b", b"another"), single("d/c", b"gamma")])
    one, two = opened(delta()), opened(delta(base=other))
    assert one.index.entries == two.index.entries
    assert one.content_digest != two.content_digest
    assert join(opened(OLD), one).content_digest == one.content_digest


def test_a_delta_alone_gives_what_it_holds_and_no_more() -> None:
    reader = opened(delta())
    reader.check_frames()
    assert reader.read(3) == b"new"
    for number in (0, 2):  # one lies in the base, the other copies from there
        with pytest.raises(MissingBaseError) as caught:
            reader.read(number)
        assert caught.value.fields() == {"name": "bundle", "base": f"sha256:{digest(OLD).hex()}"}


def test_facts_of_both_are_there() -> None:
    older = make.bundle(
        [single("a", b"alpha"), single("b", b"beta"), single("d/c", b"gamma")],
        change=lambda index: index.update(
            facts={
                "cpu_isa": ["avx", "fma"],
                "os": "x",
                "compile_milliseconds": 5,
                "recorded_roots": {"a": "/a", "b": "/b"},
            }
        ),
    )
    facts = {"cpu_isa": ["avx512f", "avx"], "python": "3", "compile_milliseconds": 7, "recorded_roots": {"b": "/c"}}
    newer = delta(base=older, change=lambda index: index.update(facts=facts))
    assert join(opened(older), opened(newer)).index.facts == {
        "cpu_isa": ["avx", "avx512f", "fma"],  # a host binary of either may use any of them
        "compile_milliseconds": 7,
        "os": "x",
        "python": "3",
        "recorded_roots": {"a": "/a", "b": "/c"},
    }
    strange = delta(base=older, change=lambda index: index.update(facts={"cpu_isa": [1, None], "x": 0}))
    assert join(opened(older), opened(strange)).index.facts["cpu_isa"] == ["1", "None", "avx", "fma"]


def test_foreign_paths_keep_their_contents() -> None:
    def foreign(row: list[str], number: int) -> Change:
        def change(index: dict[str, Any]) -> None:
            index["foreign"] = [[], row]
            index["contents"]["foreign"][number] = 1

        return change

    older = make.bundle(
        [single("a", b"alpha"), single("b", b"beta"), single("d/c", b"gamma")], change=foreign(["/old"], 2)
    )
    index = join(opened(older), opened(delta(base=older, change=foreign(["/new"], 3)))).index
    assert [index.foreign[content.foreign] for content in index.contents] == [(), (), ("/old",), (), ("/new",)]


@pytest.mark.parametrize(("old", "new", "expected"), [("full", "full", "full"), ("runtime", "runtime", "runtime")])
def test_a_union_is_of_the_runtime_profile_if_both_are(old: str, new: str, expected: str) -> None:
    older = make.bundle(
        [single("a", b"alpha"), single("b", b"beta"), single("d/c", b"gamma")],
        change=lambda index: index.update(profile=old),
    )
    reader = join(opened(older), opened(delta(base=older, change=lambda index: index.update(profile=new))))
    assert reader.index.profile is Profile(expected)
    mixed = join(opened(older), opened(delta(base=older, change=lambda i: i.update(profile="full"))))
    assert mixed.index.profile is Profile.FULL


# --- what does not fit -----------------------------------------------------------------------------------------------


def base_part(*row: Any) -> bytes:
    return delta(change=lambda index: index.update(base=list(row)))


def column(name: str, number: int, value: Any) -> bytes:
    return delta(change=lambda index: index["contents"][name].__setitem__(number, value))


DIGEST = digest(OLD)
REFUSED_ALONE: dict[str, tuple[bytes, str]] = {
    "no row": (delta(change=lambda index: index.update(base=5)), "row 0 of index part base has another shape"),
    "two fields": (base_part(DIGEST, 2), "row 0 of index part base has another shape"),
    "four fields": (base_part(DIGEST, 2, [], 0), "row 0 of index part base has another shape"),
    "a digest in words": (base_part("sha256:00", 2, []), "row 0 of index part base has another shape"),
    "a short digest": (base_part(DIGEST[:31], 2, []), "the digest of the base has 31 bytes, not 32"),
    "a negative count": (base_part(DIGEST, -1, []), "row 0 of index part base holds a negative number"),
    "more than there are": (base_part(DIGEST, 5, []), "5 of 4 contents lie in the base"),
    "lost numbers": (base_part(DIGEST, 2, [1]), "index part base holds something else than strings"),
    "lost ones twice": (base_part(DIGEST, 2, ["t/a", "t/a"]), "the lost entries are not sorted, or one stands twice"),
    "lost ones unsorted": (
        base_part(DIGEST, 2, ["t/b", "t/a"]),
        "the lost entries are not sorted, or one stands twice",
    ),
    "a count too low": (base_part(DIGEST, 1, []), "the contents have 14 bytes of their own, the frames hold 9"),
    "a count too high": (base_part(DIGEST, 3, []), "a content that lies in the base has copies, or foreign paths"),
    "foreign paths there": (column("foreign", 1, 1), "a content that lies in the base has copies, or foreign paths"),
}


@pytest.mark.parametrize("case", REFUSED_ALONE)
def test_a_delta_that_breaks_a_rule_is_refused_alone(case: str) -> None:
    data, what = REFUSED_ALONE[case]
    with pytest.raises(FormatError) as caught:
        opened(data)
    assert caught.value.fields() == {"what": what, "offset": 72, "name": "bundle"}


def test_a_part_that_says_base_needs_no_base_to_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rules, "MAX_COUNT", 4)
    with pytest.raises(LimitExceededError) as caught:
        opened(base_part(DIGEST, 2, ["t/a", "t/b", "t/c", "t/d", "t/e"]))
    assert (caught.value.what, caught.value.size) == ("number of lost entries", 5)


OTHER = make.bundle([single("a", b"alpha"), single("b", b"beta")])
MISFITS: dict[str, tuple[bytes, bytes, type[BundlerError], str]] = {
    "no delta": (OLD, OTHER, UsageError, "is a whole bundle, and needs no base"),
    "a delta as base": (delta(), delta(base=delta()), MissingBaseError, "is a delta, and needs the bundle"),
    "another base": (OTHER, delta(), WrongBaseError, f"was given sha256:{digest(OTHER).hex()}"),
    "a content that is not there": (
        OLD,
        delta(there=(b"alpha", b"omega")),
        FormatError,
        f"content sha256:{sha256(b'omega').hex()} of 5 bytes is not in the base",
    ),
    "a content of another size": (
        OLD,
        column("sizes", 1, 6),
        FormatError,
        f"content sha256:{sha256(b'gamma').hex()} of 6 bytes is not in the base",
    ),
    "a root of another kind": (
        OLD,
        delta(change=lambda index: index.update(roots=[["triton", "inductor", ""]])),
        FormatError,
        "root 'triton' is of kind triton in the base and of kind inductor in the delta",
    ),
    "a file for a directory": (
        OLD,
        delta(change=lambda index: index["entries"].__setitem__(1, [0, make.FILE, "d", 0, [], [["d", 3]]])),
        FormatError,
        "triton/d is a file of one entry and a directory of another",
    ),
    "a content that is stored in both": (
        OLD,
        delta(own=(COPIER, b"beta")),
        FormatError,
        "a content stands twice",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_together_is_refused(case: str) -> None:
    base, newer, kind, what = MISFITS[case]
    with pytest.raises(BundlerError) as caught:
        join(opened(base), opened(newer))
    assert type(caught.value) is kind and what in str(caught.value)


@pytest.mark.parametrize("pipe", [0, 1])
def test_a_pipe_cannot_be_read_together_with_another_file(pipe: int) -> None:
    readers = [opened(data, seekable=number != pipe) for number, data in enumerate((OLD, delta()))]
    with pytest.raises(UsageError, match="is a pipe"):
        join(*readers)


def test_a_flipped_byte_in_either_is_found_and_the_file_named() -> None:
    for broken, name in ((0, "old: frame 0"), (1, "new: frame 0")):
        files = [bytearray(OLD), bytearray(delta())]
        files[broken][-1] ^= 1
        reader = join(opened(bytes(files[0]), name="old"), opened(bytes(files[1]), name="new"))
        with pytest.raises(DigestMismatchError) as caught:
            reader.check_frames()
        assert caught.value.name == name
        with pytest.raises(DigestMismatchError):
            read_all(reader)


def test_a_salvage_of_a_delta_gives_what_is_good_of_both() -> None:
    broken = bytearray(OLD)
    broken[-1] ^= 1
    reader = join(opened(bytes(broken)), opened(delta()))
    ended = [chunk for chunk in reader.deliver(range(len(reader.index.contents)), salvage=True) if chunk.last]
    # The other content of the delta copies from the base.
    assert [(chunk.content, chunk.error is None) for chunk in ended] == [(n, n == 4) for n in range(5)]


def test_a_delta_may_stand_for_more_than_its_own_bytes_could(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rules, "MAX_FREE_EXPANSION", 10)
    monkeypatch.setattr(_rules, "MAX_EXPANSION", 100)
    noise = hashlib.shake_256(b"noise").digest(100_000)
    large = make.bundle([single("a", noise), single("b", b"beta")])
    newer = delta(base=large, there=(noise,), own=(b"x", b"y"), lost=(), change=_plain)
    assert len(newer) < 1000  # and so more than 100 times smaller than what it stands for
    assert join(opened(large), opened(newer)).index.content_size == 200_000 + 4 + 2
    monkeypatch.setattr(_rules, "MAX_EXPANSION", 1)
    with pytest.raises(LimitExceededError):
        join(opened(large), opened(newer))


def _plain(index: dict[str, Any]) -> None:
    index["contents"]["copies"] = []
    index["entries"] = [[0, make.FILE, name, 0, [], [[name, n]]] for n, name in enumerate(["c", "e", "f"])]


def test_collisions_are_found_without_entries() -> None:
    assert collision([("r", "a", "b"), ("r", "", "a")]) == "r/a is a file of one entry and a directory of another"
    assert collision([("r", "a", "b"), ("s", "", "a"), ("r", "", "ab")]) is None
