"""The directory store: the promises of all stores, and what is its own."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bundler import _atomic
from bundler.errors import ObjectExistsError, StoreError
from bundler.stores import Store, open_store
from bundler.stores import local as local_module
from bundler.stores.local import LocalStore
from bundler.testing.stores import StoreTests, quick


class TestLocalStore(StoreTests):
    can_nest_below_objects = False

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store", sync=False, retry=quick())

    def again(self, store: Store) -> Store:
        assert isinstance(store, LocalStore)
        return LocalStore(store.root, sync=False, retry=quick())


class TestWithoutFlock(TestLocalStore):
    """A network file system whose flock does nothing: the other lock must do."""

    @pytest.fixture(autouse=True)
    def _flock_does_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local_module, "_flock", lambda fd: True)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", retry=quick())


def visible(store: LocalStore) -> dict[str, bytes]:
    root = Path(store.root)
    files = [path for path in root.rglob("*") if path.is_file() and ".tb-staging" not in path.parts]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_an_object_is_a_plain_file_under_its_key(store: LocalStore) -> None:
    store.put("ci/main.tbundle", b"value")
    assert visible(store) == {"ci/main.tbundle": b"value"}


def test_a_file_that_somebody_copied_in_is_an_object(store: LocalStore) -> None:
    store.put("a", b"")
    Path(store.root, "copied.tbundle").write_bytes(b"by hand")
    assert store.get("copied.tbundle") == b"by hand"
    assert [info.key for info in store.list()] == ["a", "copied.tbundle"]


def test_names_that_no_key_has_are_not_listed(store: LocalStore) -> None:
    store.put("a", b"")
    Path(store.root, "with blank").write_bytes(b"")
    Path(store.root, "with blank and more").mkdir()
    assert [info.key for info in store.list()] == ["a"]


def test_a_missing_root_holds_nothing_and_is_not_made_by_reading(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "absent")
    assert store.get("a") is None
    assert list(store.list()) == []
    store.delete("a")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("name", ["put", "rename", "write", "sync"])
def test_a_failure_of_the_disk_leaves_the_old_object(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The loss: the bundle of yesterday, for one that was never finished."""
    store.put("key", b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_atomic, "create" if name == "put" else name, fail)
    with pytest.raises(StoreError, match="ENOSPC"):
        store.put("key", b"new")
    monkeypatch.undo()
    assert visible(store) == {"key": b"old"}
    assert os.listdir(Path(store.root, ".tb-staging")) in ([], ["lock"])


def test_a_root_that_is_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    store = LocalStore(tmp_path / "file")
    for call in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: list(store.list())):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.exit_code == 10
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_a_root_that_cannot_be_made_is_refused_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(StoreError):
        LocalStore("/proc/none/store").put("a", b"")
    assert time.monotonic() - started < 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="EACCES"):
        LocalStore(tmp_path / "store").put("a", b"")


@pytest.mark.parametrize("key", ["link", "directory/below", "dangling"])
def test_no_symbolic_link_is_followed(store: LocalStore, tmp_path: Path, key: str) -> None:
    """The loss: a file outside of the store, written through a link inside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "below").write_bytes(b"secret")
    store.put("a", b"")
    os.symlink(outside / "below", Path(store.root, "link"))
    os.symlink(outside, Path(store.root, "directory"))
    os.symlink(outside / "new", Path(store.root, "dangling"))
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.delete(key),
    ):
        with pytest.raises(StoreError, match="symbolic link"):
            call()
    assert [info.key for info in store.list()] == ["a"]
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"below": b"secret"}


def test_a_pipe_is_no_object_and_is_not_waited_for(store: LocalStore) -> None:
    store.put("a", b"")
    os.mkfifo(Path(store.root, "pipe"))
    with pytest.raises(StoreError, match="no regular file"):
        store.get("pipe")
    assert [info.key for info in store.list()] == ["a"]


def test_versions_differ_even_when_the_clock_stands_still(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss: a save over another one that looked like the version before it."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    versions = [store.put("key", b"same size").tag for _ in range(5)]
    assert len(set(versions)) == 5


def test_touch_is_a_use_and_no_change(store: LocalStore) -> None:
    version = store.put("key", b"1")
    os.utime(Path(store.root, "key"), ns=(1, os.stat(Path(store.root, "key")).st_mtime_ns))
    store.touch("key")
    store.touch("missing")
    store.touch("../outside")
    info = store.head("key")
    assert info is not None and info.version == version
    assert info.used >= info.modified


def test_leftovers_of_a_killed_writer_are_removed(store: LocalStore) -> None:
    store.put("key", b"1")
    program = (
        "import os, signal, sys\n"
        "from bundler import _atomic\n"
        "from bundler.stores.local import LocalStore\n"
        "_atomic.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "LocalStore(sys.argv[1]).put('key', b'2')\n"
    )
    result = subprocess.run([sys.executable, "-c", program, store.root], env=_environment(), check=False)
    assert result.returncode == -signal.SIGKILL
    staging = Path(store.root, ".tb-staging")
    assert {"busy", "lock"} < set(os.listdir(staging))
    assert visible(store) == {"key": b"1"}
    started = time.monotonic()
    store.put("key", b"3")
    assert time.monotonic() - started < 5, "the lock of a dead process is waited for"
    assert os.listdir(staging) == ["lock"]
    assert visible(store) == {"key": b"3"}


def test_a_lock_of_an_unknown_host_is_broken_once_it_was_watched(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_module, "LOCK_WATCHED", 0.2)
    store.put("key", b"1")
    busy = Path(store.root, ".tb-staging", "busy")
    busy.write_bytes(b"")
    store.put("key", b"2")
    busy.write_bytes(b".tb-deadbeef-1-1-1-0123456789abcdef")
    store.put("key", b"3")
    assert store.get("key") == b"3"
    assert not busy.exists()


def test_a_lock_of_a_live_process_is_respected(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "LOCK_WATCHED", 0.1)
    monkeypatch.setattr(local_module, "LOCK_TIMEOUT", 0.5)
    store.put("key", b"1")
    busy = Path(store.root, ".tb-staging", "busy")
    busy.write_text(local_module._owner.new_name())
    with pytest.raises(StoreError, match="another writer held the lock"):
        LocalStore(store.root, retry=quick(0.0)).put("key", b"2")
    assert store.get("key") == b"1"
    assert busy.exists()


SAVER = """
import sys
from bundler.errors import ObjectExistsError
from bundler.stores.local import LocalStore
if "noflock" in sys.argv:
    from bundler.stores import local
    local._flock = lambda fd: True
store, number = LocalStore(sys.argv[1], sync=False), sys.argv[2]
for turn in range(10):
    while True:
        info = store.head("key")
        there = store.get("key") if info else b""
        try:
            store.put("key", there + f"{number}.{turn},".encode(), mode=info.version if info else "create")
            break
        except ObjectExistsError:
            pass
"""


@pytest.mark.parametrize("lock", ["flock", "noflock"])
def test_ten_processes_that_save_at_once_lose_nothing(store: LocalStore, lock: str) -> None:
    arguments = [sys.executable, "-c", SAVER, store.root]
    processes = [subprocess.Popen([*arguments, str(n), lock], env=_environment()) for n in range(10)]
    assert [process.wait(100) for process in processes] == [0] * 10
    saved = (store.get("key") or b"").decode().rstrip(",").split(",")
    assert sorted(saved) == sorted(f"{number}.{turn}" for number in range(10) for turn in range(10))


def test_a_saver_that_is_killed_at_any_moment_leaves_old_or_new(store: LocalStore) -> None:
    """The loss: a cache that is neither, found by the next job."""
    program = (
        "import sys\nfrom bundler.stores.local import LocalStore\nstore = LocalStore(sys.argv[1])\n"
        "print(flush=True)\nwhile True:\n    for c in b'ab':\n        store.put('key', bytes([c]) * 3_000_000)\n"
    )
    for number in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", program, store.root], env=_environment(), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 * number)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        process.stdout.close()
        found = store.get("key")
        assert found is None or (len(found) == 3_000_000 and len(set(found)) == 1)
    store.put("key", b"next")
    assert os.listdir(Path(store.root, ".tb-staging")) == ["lock"]


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file://localhost{path}", "file://{path}?sync=0"])
def test_every_way_to_write_its_address(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(path=tmp_path / "store"))
    assert isinstance(store, LocalStore)
    assert store.root == str(tmp_path / "store")


def test_create_where_renames_have_no_flags(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(_atomic, "_renameat2", without)
    store.put("key", b"1", mode="create")
    with pytest.raises(ObjectExistsError):
        store.put("key", b"2", mode="create")
    assert store.get("key") == b"1"


def _environment() -> dict[str, str]:
    package = Path(local_module.__file__).parents[2]
    return {**os.environ, "PYTHONPATH": str(package)}
