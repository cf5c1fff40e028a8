"""The nouns: what an entry is called, looked up by and restored to, and when a kernel fits a GPU."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bundler.model import (
    Artifact,
    Base,
    Content,
    Entry,
    Frame,
    Index,
    Profile,
    Relocation,
    RootRecord,
    Skipped,
    Spelling,
    Target,
    Unit,
)

KEY = "A" * 52


def entry(unit: Unit, path: str, *names: str, root: str = "inductor", target: Target | None = None) -> Entry:
    return Entry(root, path, unit, tuple(Artifact(name, 0) for name in names or [path.rpartition("/")[2]]), target)


# case -> (entry, directory, key, name)
NAMES: dict[str, tuple[Entry, str, str, str]] = {
    "kernel": (
        entry(Unit.KERNEL, f"triton/0/{KEY}", "__grp__add.json", "add.cubin", "add.json"),
        f"triton/0/{KEY}",
        KEY,
        "add",
    ),
    "kernel in the root": (entry(Unit.KERNEL, KEY, "__grp__add.x.json"), KEY, KEY, "add.x"),
    "kernel without its group file": (entry(Unit.KERNEL, KEY, "add.cubin"), KEY, KEY, KEY),
    "FX graph": (entry(Unit.FXGRAPH, "fxgraph/ab/fabc/hash"), "fxgraph/ab/fabc", "fabc", "hash"),
    "AOTAutograd": (entry(Unit.AOTAUTOGRAD, "aotautograd/aabc/hash"), "aotautograd/aabc", "aabc", "hash"),
    "FX graph without a directory": (entry(Unit.FXGRAPH, "hash.bin"), "", "hash", "hash.bin"),
    "module": (entry(Unit.MODULE, "ab/cab1.py"), "ab", "cab1", "cab1.py"),
    "module with more dots": (entry(Unit.HOST_BINARY, "ab/cab1.main.so"), "ab", "cab1", "cab1.main.so"),
    "file in the root": (entry(Unit.FILE, "notes"), "", "notes", "notes"),
    "hidden file": (entry(Unit.FILE, "a/.env"), "a", ".env", ".env"),
    "autotuning result": (entry(Unit.AUTOTUNE, "ab/x.best_config"), "ab", "x", "x.best_config"),
}


@pytest.mark.parametrize("case", NAMES)
def test_an_entry_has_a_directory_a_key_and_a_name(case: str) -> None:
    found, directory, key, name = NAMES[case]
    assert (found.directory, found.key, found.name) == (directory, key, name)
    assert found.identity == (found.root, found.path)
    assert str(found) == f"{found.root}/{found.path}"


def test_a_target_is_read_as_it_is_written() -> None:
    for text in ("cuda:90", "hip:gfx942", "cuda:90a", "xpu:a:b"):
        assert str(Target.parse(text)) == text


@pytest.mark.parametrize("text", ["", "cuda", ":90", "cuda:", ":", "90"])
def test_a_target_needs_a_backend_and_an_arch(text: str) -> None:
    with pytest.raises(ValueError, match="not a target"):
        Target.parse(text)


def test_a_kernel_fits_its_own_arch_and_no_other() -> None:
    kernel = Target("cuda", "90", 32)
    assert kernel.fits(Target("cuda", "90"))  # a host does not tell its warp size
    assert not kernel.fits(Target("cuda", "89"))
    assert not kernel.fits(Target("cuda", "90a"))
    assert not Target("hip", "90").fits(Target("cuda", "90"))


def test_an_index_names_each_target_once_in_order() -> None:
    first, second = Target("cuda", "90", 32), Target("cuda", "80", 32)
    index = Index(
        Profile.FULL,
        (RootRecord("inductor", "inductor"),),
        tuple(entry(Unit.KERNEL, f"k{n}", target=target) for n, target in enumerate([first, None, second, first])),
        (),
        (),
    )
    assert index.targets == (second, first)


def test_the_content_size_counts_a_content_for_every_file_that_has_it() -> None:
    contents = (Content(bytes(32), 5), Content(b"\1" + bytes(31), 7, copies=((1, 0),)))
    files = (Artifact("a", 0), Artifact("b", 1), Artifact("c", 0, Relocation(Base.ENTRY, Spelling.JSON, (0,))))
    index = Index(Profile.FULL, (), (Entry("triton", "k", Unit.KERNEL, files),), contents, ())
    assert index.content_size == 5 + 7 + 5


def test_words_of_the_index_are_their_own_text() -> None:
    assert [str(unit) for unit in Unit] == [unit.value for unit in Unit] == json.loads(json.dumps(list(Unit)))
    assert f"{Profile.RUNTIME}" == "runtime" == str(Profile("runtime"))
    assert (Base.ENTRY.value, Base.ROOT.value, Spelling.JSON.value, Spelling.PYTHON.value) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    "thing",
    [
        Target("cuda", "90"),
        Content(bytes(32), 1),
        Artifact("a", 0),
        entry(Unit.FILE, "a"),
        RootRecord("a", "triton"),
        Frame(1, 1, bytes(32)),
        Skipped("a", "b"),
        Index(Profile.FULL, (), (), (), ()),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_a_bundle_says_cannot_be_changed(thing: object) -> None:
    named = getattr(thing, "_fields", None) or [each.name for each in dataclasses.fields(thing)]  # type: ignore[arg-type]
    with pytest.raises(AttributeError):  # FrozenInstanceError is one
        setattr(thing, named[0], None)
    assert not hasattr(thing, "__dict__")
