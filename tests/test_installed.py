"""Laws of an open root: nothing below it is reached through a link, and what is not there is None."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bundler.errors import LocalIOError, UnsafePathError
from bundler.installed import InstalledRoot, leads_to

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX directory descriptors")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[InstalledRoot]:
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a" / "file").write_bytes(b"bytes")
    tree = InstalledRoot(str(tmp_path / "root"), make=False)
    yield tree
    tree.close()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_root_is_made_when_asked_and_else_must_be_there(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "root")
    with pytest.raises(LocalIOError) as caught:
        InstalledRoot(path, make=False)
    assert (caught.value.path, caught.value.errno) == (path, errno.ENOENT)
    InstalledRoot(path, make=True).close()
    assert os.path.isdir(path)


def test_root_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "makedirs", failing(errno.EACCES))
    with pytest.raises(LocalIOError) as caught:
        InstalledRoot(str(tmp_path / "new"), make=True)
    assert (caught.value.errno, caught.value.action) == (errno.EACCES, "make the root")


def test_absent_root_may_be_taken_for_an_empty_one(tmp_path: Path) -> None:
    tree = InstalledRoot(str(tmp_path / "absent"), make=False, missing_ok=True)
    assert tree.directory("") is None and tree.directory("a/b") is None and tree.mode("a") is None
    with tree.entered("a") as fd:
        assert fd is None
    tree.close()
    (tmp_path / "file").touch()
    with pytest.raises(LocalIOError, match="ENOTDIR"):
        InstalledRoot(str(tmp_path / "file"), make=False, missing_ok=True)


def test_directory_is_made_when_asked_with_its_parents(root: InstalledRoot, tmp_path: Path) -> None:
    assert root.directory("x/y/z") is None
    fd = root.directory("x/y/z", make=True)
    assert fd is not None and os.path.samestat(os.fstat(fd), (tmp_path / "root" / "x" / "y" / "z").stat())
    assert root.directory("") == root.fd
    assert root.directory("x/y/z") == fd, "it is kept open"


def test_few_descriptors_are_kept_and_close_gives_all_back(tmp_path: Path) -> None:
    # The loss: "too many open files" on a cache with one directory per kernel and a limit of 1024.
    before = descriptors()
    tree = InstalledRoot(str(tmp_path), make=False)
    for number in range(300):
        assert tree.directory(f"{number}/below", make=True) is not None
    assert len(descriptors() - before) < 80
    for number in range(300):
        assert tree.directory(f"{number}/below") is not None
    tree.close()
    assert descriptors() == before


def test_forgotten_directories_are_looked_up_again(root: InstalledRoot, tmp_path: Path) -> None:
    first = root.directory("a/b")
    assert first is not None
    inode = os.fstat(first).st_ino
    (tmp_path / "root" / "a" / "b").rename(tmp_path / "root" / "a" / "old")
    (tmp_path / "root" / "a" / "b").mkdir()
    assert os.fstat(root.directory("a/b") or -1).st_ino == inode
    root.forget()
    assert os.fstat(root.directory("a/b") or -1).st_ino != inode


def test_reopened_root_is_what_lies_at_its_path_now(root: InstalledRoot, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "root")
    with pytest.raises(LocalIOError):
        root.reopen()
    (tmp_path / "root" / "new").mkdir(parents=True)
    root.reopen()
    assert root.directory("new") is not None and root.directory("a") is None


@pytest.mark.parametrize("where", ["a", "a/b", "a/b/c"])
def test_link_on_the_way_is_refused(where: str, root: InstalledRoot, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "root" / where.split("/")[0])
    path = tmp_path / "root" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(tmp_path)
    for look in (root.directory, lambda p: root.directory(p, make=True), root.mode, lambda p: _enter(root, p)):
        with pytest.raises(UnsafePathError) as caught:
            look(where)
        assert caught.value.path == str(path)
        with pytest.raises(UnsafePathError):
            look(f"{where}/deeper")


def _enter(root: InstalledRoot, path: str) -> None:
    with root.entered(path):
        pass


def test_file_on_the_way_is_an_error_that_names_it(root: InstalledRoot, tmp_path: Path) -> None:
    for look in (root.directory, lambda p: root.directory(p, make=True), lambda p: _enter(root, p)):
        with pytest.raises(LocalIOError) as caught:
            look("a/file")
        assert (caught.value.path, caught.value.errno) == (str(tmp_path / "root/a/file"), errno.ENOTDIR)


def test_link_that_is_gone_when_it_is_looked_at_is_still_an_error(
    root: InstalledRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: FileNotFoundError out of an error handler, which nobody waits for.
    def vanish(*arguments: object, **options: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "stat", vanish)
    with pytest.raises(LocalIOError, match="ENOTDIR"):
        root.directory("a/file")


def test_mode_tells_what_lies_there(root: InstalledRoot, tmp_path: Path) -> None:
    assert root.mode("a/file") == (tmp_path / "root/a/file").stat().st_mode
    assert root.mode("a") == (tmp_path / "root/a").stat().st_mode
    assert root.mode("a/nothing") is None and root.mode("no/parent") is None
    with pytest.raises(LocalIOError) as caught:
        root.mode("a/" + "x" * 300)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_files_are_read_and_hashed_and_what_is_none_is_none(root: InstalledRoot, tmp_path: Path) -> None:
    fd = root.directory("a")
    assert fd is not None
    assert root.read(fd, "file", "a") == b"bytes" == root.read(fd, "file", "a", 5)
    assert root.digest(fd, "file", "a", 5) == hashlib.sha256(b"bytes").digest()
    assert root.read(fd, "file", "a", 4) is None and root.digest(fd, "file", "a", 6) is None
    os.mkfifo(tmp_path / "root" / "a" / "fifo")
    for name in ("nothing", "b", "fifo"):
        assert root.read(fd, name, "a") is None and root.digest(fd, name, "a", 0) is None
    (tmp_path / "root" / "a" / "link").symlink_to("file")
    for look in (lambda: root.read(fd, "link", "a"), lambda: root.digest(fd, "link", "a", 5)):
        with pytest.raises(UnsafePathError):
            look()
    assert root.files(fd, "a") == {"file": b"bytes"}, "links, pipes and directories are left out"


def test_link_in_the_root_itself_is_named_without_a_directory(root: InstalledRoot, tmp_path: Path) -> None:
    (tmp_path / "root" / "link").symlink_to("a/file")
    with pytest.raises(UnsafePathError) as caught:
        root.read(root.fd, "link", "")
    assert caught.value.path == str(tmp_path / "root" / "link")


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 21) + 17])
def test_file_is_read_to_its_end_though_reads_are_short_or_it_grows(
    size: int, root: InstalledRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a read that ends early is taken for the whole file, which is then "different".
    data = os.urandom(size)
    (tmp_path / "root" / "big").write_bytes(data)
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, count: real(fd, min(count, 400_000)))
    assert root.read(root.fd, "big", "") == data
    assert root.digest(root.fd, "big", "", size) == hashlib.sha256(data).digest()


def test_file_that_vanishes_or_turns_while_a_directory_is_read_is_left_out(
    root: InstalledRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = root.directory("a")
    assert fd is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda fd: ["file", "gone"])
        assert root.files(fd, "a") == {"file": b"bytes"}
    with monkeypatch.context() as patch:
        patch.setattr(InstalledRoot, "read", lambda *arguments: None)
        assert root.files(fd, "a") == {}


def failing(code: int) -> Any:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_error_of_the_disk_is_one_of_ours_and_names_the_place(
    code: int, root: InstalledRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a stale handle on a network file system ends in a traceback.
    fd = root.directory("a")
    assert fd is not None
    file, directory = str(tmp_path / "root/a/file"), str(tmp_path / "root/a")
    cases = [
        ("read", lambda: root.read(fd, "file", "a"), file),
        ("read", lambda: root.digest(fd, "file", "a", 5), file),
        ("fstat", lambda: root.read(fd, "file", "a"), file),
        ("open", lambda: root.read(fd, "file", "a"), file),
        ("listdir", lambda: root.files(fd, "a"), directory),
        ("stat", lambda: root.files(fd, "a"), directory),
        ("stat", lambda: root.mode("a/file"), file),
        ("open", lambda: root.directory("a/b"), directory + "/b"),
    ]
    for function, look, path in cases:
        with monkeypatch.context() as patch:
            patch.setattr(os, function, failing(code))
            with pytest.raises(LocalIOError) as caught:
                look()
        assert (caught.value.errno, caught.value.path) == (code, path)


def test_refusal_inside_an_open_file_is_passed_on(root: InstalledRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise UnsafePathError("x", "a link")

    monkeypatch.setattr(os, "read", refuse)
    with pytest.raises(UnsafePathError):
        root.read(root.directory("a") or -1, "file", "a")


def test_refusal_inside_a_listing_is_passed_on(root: InstalledRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = root.directory("a")
    assert fd is not None

    def refuse(*arguments: object) -> None:
        raise UnsafePathError("x", "a link")

    monkeypatch.setattr(InstalledRoot, "read", refuse)
    with pytest.raises(UnsafePathError):
        root.files(fd, "a")


def test_path_leads_home_by_whatever_way(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "way").symlink_to("home")
    assert leads_to(str(home), str(home)) and leads_to(str(tmp_path / "way"), str(home))
    assert not leads_to(str(tmp_path), str(home))
    assert not leads_to("/x\0y", str(home)) and not leads_to("/\ud800", str(home))
