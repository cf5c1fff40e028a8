"""The quick look of a hit: what launches as the bundle's is left alone; whatever else it may be is looked at again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bundler
from bundler import ready
from bundler.formats import limits
from bundler.model import Content, Entry
from bundler.reading import opened
from bundler.ready import is_ready
from bundler.testing import trees

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors")


class Installed:
    """A kernel that was restored with the full profile, and what bundles of both profiles say of it."""

    def __init__(self, base: Path) -> None:
        source = trees.synthetic_kernel(base / "source", "add")
        self.root, self.kernel = base / "root", base / "root" / source.name
        self.entries: dict[str, tuple[Entry, tuple[Content, ...]]] = {}
        for profile in ("full", "runtime"):
            bundle = base / f"{profile}.tbundle"
            bundler.pack([f"triton={base / 'source'}"], bundle, profile=profile)
            with opened(bundle) as reader:
                self.entries[profile] = reader.index.entries[0], reader.index.contents
        bundler.unpack(base / "full.tbundle", into=self.root)

    def is_ready(self, profile: str) -> bool:
        entry, contents = self.entries[profile]
        return is_ready(entry, contents, str(self.root))


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_a_kernel_is_ready_for_bundles_of_either_profile(installed: Installed) -> None:
    assert installed.is_ready("full") and installed.is_ready("runtime")


def _group(installed: Installed) -> Path:
    return next(installed.kernel.glob("__grp__*"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    moved = path.rename(path.with_name("moved"))
    path.symlink_to(moved)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _elsewhere(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"/root/", b"/toor/"))


def _fewer(path: Path) -> None:
    named = json.loads(path.read_bytes())
    named["child_paths"].pop("add.cubin")
    path.write_text(json.dumps(named))


# The loss in each case: the kernel is taken for installed, and misses, or is loaded damaged.
CHANGES: dict[str, Callable[[Installed], object]] = {
    "the binary is one byte longer": lambda i: (i.kernel / "add.cubin").open("ab").write(b"x"),
    "the binary is cut": lambda i: os.truncate(i.kernel / "add.cubin", 9),
    "the binary is empty": lambda i: os.truncate(i.kernel / "add.cubin", 0),
    "the binary is a FIFO": lambda i: _fifo(i.kernel / "add.cubin"),
    "the binary is a link": lambda i: _link(i.kernel / "add.cubin"),
    "the binary is a directory": lambda i: _directory(i.kernel / "add.cubin"),
    "the metadata is gone": lambda i: (i.kernel / "add.json").unlink(),
    "the group file is gone": lambda i: _group(i).unlink(),
    "the group file is a FIFO": lambda i: _fifo(_group(i)),
    "the group file is no JSON": lambda i: _group(i).write_bytes(b"{"),
    "the group file is empty": lambda i: _group(i).write_bytes(b""),
    "the group file leads elsewhere": lambda i: _elsewhere(_group(i)),
    "the group file does not name the binary": lambda i: _fewer(_group(i)),
    "the group file is larger than any": lambda i: _group(i).write_bytes(b" " * 70_000 + _group(i).read_bytes()),
    "all of it is gone": lambda i: shutil.rmtree(i.kernel),
}


@pytest.fixture
def reading_at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``reading_at_most(n)``: a file system that gives no more than ``n`` bytes at once."""
    read = os.read
    return lambda most: monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, most)))


@pytest.mark.parametrize("profile", ["full", "runtime"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_as_the_bundle_has_it_is_not_ready(change: str, profile: str, installed: Installed) -> None:
    CHANGES[change](installed)
    assert not installed.is_ready(profile)


def test_ir_that_nobody_loads_need_not_be_whole(installed: Installed) -> None:
    (installed.kernel / "add.ttir").write_bytes(b"cut")
    assert installed.is_ready("runtime") and not installed.is_ready("full")


def test_a_file_system_may_give_less_than_it_is_asked_for(
    installed: Installed, reading_at_most: Callable[[int], None]
) -> None:
    """Loss prevented: over a network each hit finds every kernel damaged, and writes it again."""
    reading_at_most(7)
    assert installed.is_ready("runtime")
    (installed.kernel / "add.cubin").write_bytes(b"cut off")
    assert not installed.is_ready("runtime")


def test_a_file_that_goes_on_is_not_ready_however_little_is_read_at_once(
    installed: Installed, reading_at_most: Callable[[int], None]
) -> None:
    """Loss prevented: over a network a file with something behind its end is taken for whole."""
    reading_at_most(1)
    assert installed.is_ready("runtime")
    with (installed.kernel / "add.cubin").open("ab") as file:
        file.write(b"x")
    assert not installed.is_ready("runtime")


@pytest.mark.parametrize("piece", [1, 100])
def test_a_file_of_many_pieces_is_read_to_its_end(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(ready, "_PIECE", piece)
    assert installed.is_ready("full")
    os.truncate(installed.kernel / "add.ttir", (installed.kernel / "add.ttir").stat().st_size - 1)
    assert not installed.is_ready("full") and installed.is_ready("runtime")


def test_no_room_is_taken_for_what_only_the_index_speaks_of(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss prevented: a blob that says a terabyte of a kernel ends the training run with a MemoryError."""
    entry, contents = installed.entries["runtime"]
    huge = [content._replace(size=limits.MAX_CONTENT_SIZE) for content in contents]
    asked: list[int] = []
    read = os.read

    def watched(fd: int, size: int) -> bytes:
        asked.append(size)
        return read(fd, size)

    monkeypatch.setattr(os, "read", watched)
    assert not is_ready(entry, huge, str(installed.root))
    assert max(asked) <= limits.MAX_BLOCK_SIZE
