"""Symbolic links below a root: no write goes through one, whoever put it there and whenever.

The victim of every test is a directory outside of the root, which must be as it was.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler import _atomic, publish, stage
from bundler.emit import EmitOptions, OnConflict
from bundler.errors import BundlerError, LocalIOError, UnsafePathError
from bundler.testing import trees
from bundler.testing.faults import crash_points, without_renameat2

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors")

REPLACE = EmitOptions(on_conflict=OnConflict.REPLACE)


class Place:
    """A bundle of one kernel and one module, a root, and a victim outside of it with files of the same names."""

    def __init__(self, base: Path) -> None:
        source = base / "source"
        self.kernel = trees.synthetic_kernel(source / "triton" / "0", "add").relative_to(source)
        self.module = Path("ab", "cab.py")
        (source / "ab").mkdir()
        (source / self.module).write_text("x = 1\n", encoding="utf-8")
        self.bundle = base / "bundle"
        bundler.pack([f"inductor={source}"], self.bundle)
        self.root = base / "root"
        self.root.mkdir()
        self.victim = base / "victim"
        self.victim.mkdir()
        for name in ("add.cubin", "add.json", "cab.py", "__grp__add.json"):
            (self.victim / name).write_bytes(b"precious")
        self.before = self._listing()

    def restore(self, options: EmitOptions = REPLACE) -> bundler.bundle.UnpackReport:
        return bundler.unpack(self.bundle, into=self.root, options=options)

    def is_untouched(self) -> bool:
        """Whether the victim is as it was, and no staging is left in the root."""
        return self._listing() == self.before and not list(self.root.glob(".tb-*"))

    def _listing(self) -> dict[str, tuple[bytes, int, int]]:
        return {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
            for path in self.victim.iterdir()
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    path.symlink_to(target)


LINKS: dict[str, Callable[[Place], Path]] = {
    "the kernel's directory": lambda place: place.root / place.kernel,
    "its parent": lambda place: (place.root / place.kernel).parent,
    "the parent of that": lambda place: place.root / "triton",
    "a file of the kernel": lambda place: place.root / place.kernel / "add.cubin",
    "the group file": lambda place: place.root / place.kernel / "__grp__add.json",
    "a module": lambda place: place.root / place.module,
    "the module's directory": lambda place: (place.root / place.module).parent,
}


@pytest.mark.parametrize("dangling", [False, True], ids=["victim", "dangling"])
@pytest.mark.parametrize("dry_run", [False, True], ids=["restore", "dry-run"])
@pytest.mark.parametrize("where", LINKS)
def test_link_below_the_root_is_refused_before_the_first_write(
    where: str, dry_run: bool, dangling: bool, place: Place
) -> None:
    # The loss: whoever may write to the cache makes a job of root overwrite any file of the host.
    path = LINKS[where](place)
    place.restore()
    inside = place.victim / path.name if path.is_file() else place.victim
    link(path, place.root.parent / "nowhere" if dangling else inside)
    with pytest.raises(UnsafePathError) as caught, crash_points() as calls:
        place.restore(EmitOptions(on_conflict=OnConflict.REPLACE, dry_run=dry_run))
    assert caught.value.path == str(path) and caught.value.exit_code == 5
    assert "symbolic link" in str(caught.value)
    assert calls == []
    assert place.is_untouched() and path.is_symlink()
    assert not (place.root.parent / "nowhere").exists()


def test_link_in_one_entry_keeps_every_other_from_appearing(place: Place) -> None:
    # The loss: half a cache, and a report of an attack that only stopped there.
    link(place.root / place.module, place.victim / "cab.py")
    with pytest.raises(UnsafePathError):
        place.restore()
    assert not (place.root / "triton").exists()


def test_root_itself_may_be_a_link(place: Place) -> None:
    # The loss: ~/.triton that points to a scratch disk, which is how people move it, is refused.
    real = place.root.parent / "scratch"
    real.mkdir()
    place.root.rmdir()
    place.root.symlink_to(real)
    assert place.restore().restored == 2
    assert place.restore().unchanged == 2
    assert place.root.is_symlink() and (real / place.module).is_file()
    assert bundler.verify_root(f"inductor={real}").ok and bundler.verify_root(f"inductor={place.root}").ok
    # Whatever path a host reaches it by, what is installed there is at home.
    assert bundler.unpack(place.bundle, into=real).repaired == 0


def test_root_below_a_link_works(place: Place) -> None:
    real = place.root.parent / "scratch"
    real.mkdir()
    (place.root.parent / "way").symlink_to(real)
    assert bundler.unpack(place.bundle, into=place.root.parent / "way" / "deeper").restored == 2
    assert (real / "deeper" / place.module).is_file()


def test_root_that_is_a_dangling_link_is_refused(place: Place) -> None:
    place.root.rmdir()
    place.root.symlink_to(place.root.parent / "nowhere")
    with pytest.raises(LocalIOError) as caught:
        place.restore()
    assert caught.value.errno == errno.ENOENT and caught.value.path == str(place.root)
    assert not (place.root.parent / "nowhere").exists()


@pytest.mark.parametrize("kind", ["directory", "fifo", "link to nothing"])
@pytest.mark.parametrize("where", ["a module", "a file of the kernel"])
def test_what_is_no_file_in_place_of_one_is_refused_before_the_first_write(where: str, kind: str, place: Place) -> None:
    # The loss: a restore that waits for a pipe, or that deletes somebody's directory.
    place.restore()
    path = LINKS[where](place)
    path.unlink()
    if kind == "directory":
        path.mkdir()
        (path / "theirs").write_bytes(b"keep")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nothing")
    for exchange in (True, False):
        with pytest.raises(BundlerError) as caught, crash_points(points=["rename", "rename_new", "exchange"]) as calls:
            if exchange:
                place.restore()
            else:
                with without_renameat2():
                    place.restore()
        assert caught.value.exit_code == (5 if kind == "link to nothing" else 12)
        assert str(path) in str(caught.value)
        assert calls == []
    assert (path / "theirs").read_bytes() == b"keep" if kind == "directory" else not path.is_file()


# --- planted while the restore runs ----------------------------------------------------------------------------------


def plant_before(
    monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], None], module: Any = _atomic
) -> list[bool]:
    """Let ``act`` happen once, right before the first call of a function; the list is empty until then."""
    real = getattr(module, function)
    done: list[bool] = []

    def first(*arguments: Any, **options: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return real(*arguments, **options)

    monkeypatch.setattr(module, function, first)
    return done


# Directories by how much of the restore is done when the link appears in their place.
MOMENTS = {
    "probe": ("make_directory", _atomic),
    "staging": ("create", _atomic),
    "compare": ("staged_files", stage),
    "publish": ("publish", publish),
    "rename": ("rename_new", _atomic),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("where", ["the kernel's directory", "its parent", "a module", "the module's directory"])
def test_link_planted_after_the_probe_is_not_written_through(
    where: str, moment: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: as above, by somebody who waits for the moment between the look and the write.
    path = LINKS[where](place)
    target = place.victim / "cab.py" if where == "a module" else place.victim
    function, module = MOMENTS[moment]
    if moment == "compare":
        place.restore()
        (place.root / place.kernel / "add.json").write_bytes(b"")
        (place.root / place.module).write_bytes(b"y = 1")
    done = plant_before(monkeypatch, function, lambda: link(path, target), module)
    try:
        place.restore()
    except BundlerError as error:
        assert error.exit_code in (5, 12)
    assert done and place.is_untouched()
    assert sorted(os.listdir(place.victim)) == sorted(place.before)


@pytest.mark.parametrize("exchange", [True, False], ids=["renameat2", "plain-rename"])
@pytest.mark.parametrize("function", ["link", "exchange", "rename", "unlink"])
@pytest.mark.parametrize("where", ["the kernel's directory", "its parent", "a file of the kernel"])
def test_link_planted_before_a_replacement_is_not_written_through(
    where: str, function: str, exchange: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.restore()
    (place.root / place.kernel / "add.json").write_bytes(b"")
    (place.root / place.kernel / "notes").write_bytes(b"foreign")
    path = LINKS[where](place)
    target = place.victim / "add.cubin" if where == "a file of the kernel" else place.victim
    done = plant_before(monkeypatch, function, lambda: _swap(path, target))
    try:
        if exchange:
            place.restore()
        else:
            with without_renameat2():
                place.restore()
    except BundlerError as error:
        assert error.exit_code in (5, 12)
    assert place.is_untouched() and (done or (exchange and function == "unlink"))


def _swap(path: Path, target: Path) -> None:
    if path.exists() and not path.is_symlink():
        path.rename(path.with_name(path.name + ".moved"))
    path.symlink_to(target)


def test_staging_that_became_a_link_is_not_followed_by_the_clean_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: the clean-up of a job of root empties a directory of somebody's choice.
    def swap() -> None:
        (staging,) = place.root.glob(".tb-*")
        staging.rename(place.root / "stolen")
        staging.symlink_to(place.victim)

    plant_before(monkeypatch, "rename_new", swap)
    place.restore()
    assert place._listing() == place.before


def test_sweeping_follows_no_link(place: Place) -> None:
    # The loss: as above, at the start of the next restore.
    name = ".tb-0-0-1-1-0123456789abcdef"
    (place.root / name).symlink_to(place.victim)
    (place.root / (name[:-1] + "e")).mkdir()
    (place.root / (name[:-1] + "e") / "link").symlink_to(place.victim)
    for path in place.root.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    assert place.restore().warnings == ()
    assert place._listing() == place.before
    assert (place.root / name).is_symlink() and not (place.root / (name[:-1] + "e")).exists()
