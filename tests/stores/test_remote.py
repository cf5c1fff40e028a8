"""``push``, ``pull``, ``ls``, ``rm``, ``gc`` and ``inspect`` of what lies in a store."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler import remote, retention
from bundler.errors import (
    DigestMismatchError,
    FormatError,
    LocalIOError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    TruncatedError,
    UsageError,
)
from bundler.formats import open_bundle, write
from bundler.stores import Store, open_store
from bundler.stores.local import LocalStore
from bundler.stores.memory import MemoryStore
from bundler.testing.proxy import Fault as WireFault
from bundler.testing.proxy import Proxy
from bundler.testing.stores import FailingStore, Fault, pattern, quick


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("memory://remote", retry=quick())


@pytest.fixture(scope="session")
def many_frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 40 files in frames of 64 KiB: some 40 frames."""
    place = tmp_path_factory.mktemp("frames")
    root = place / "root"
    root.mkdir()
    for number in range(40):
        (root / f"file{number:02}").write_bytes(pattern(65_000, number))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bundler.packing.write", lambda *args, **options: write(*args, block_size=64 << 10, **options))
        bundler.pack([f"generic={root}"], place / "frames.tbundle")
    return place / "frames.tbundle"


# -- push --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["path", "text", "bytes", "file"])
def test_what_is_pushed_is_pulled(store: Store, small_bundle: Path, tmp_path: Path, form: str) -> None:
    with open(small_bundle, "rb") as file:
        blob: Any = {"path": small_bundle, "text": str(small_bundle), "bytes": small_bundle.read_bytes(), "file": file}
        pushed = remote.push(blob[form], store, "ci/main")
    pulled = remote.pull(store, "ci/main", tmp_path / "out.tbundle")
    assert (tmp_path / "out.tbundle").read_bytes() == small_bundle.read_bytes()
    listing = bundler.inspect(small_bundle)
    assert pushed.uploaded and pushed.bytes_out == pulled.bytes_in == pulled.bytes_out == listing["bundle_size"]
    assert pushed.content_digest == pulled.content_digest == listing["content_digest"]
    assert pushed.entries == pulled.entries == len(listing["entries"])


def test_the_same_bundle_is_not_sent_again(store: MemoryStore, small_bundle: Path) -> None:
    first = remote.push(small_bundle, store, "key")
    failing = FailingStore(store, Fault("put", times=None))
    again = remote.push(small_bundle, failing, "key")
    assert not again.uploaded and again.bytes_out == 0
    assert again.version == first.version
    with pytest.raises(ObjectExistsError):
        remote.push(small_bundle, store, "key", mode="create")


def test_another_bundle_replaces_and_a_version_is_replaced_once(
    store: Store, small_bundle: Path, many_frames: Path
) -> None:
    first = remote.push(small_bundle, store, "key")
    second = remote.push(many_frames, store, "key", mode=first.version)
    assert second.uploaded
    with pytest.raises(ObjectExistsError):
        remote.push(small_bundle, store, "key", mode=first.version)
    assert store.get("key") == many_frames.read_bytes()


@pytest.mark.parametrize("at", [70, 120, -1])
def test_a_damaged_bundle_is_not_pushed(store: Store, small_bundle: Path, at: int) -> None:
    data = bytearray(small_bundle.read_bytes())
    data[at] ^= 0xFF
    with pytest.raises((DigestMismatchError, FormatError)):
        remote.push(bytes(data), store, "key")
    with pytest.raises(TruncatedError):
        remote.push(small_bundle.read_bytes()[:-1], store, "key")
    assert store.get("key") is None


def test_what_is_no_bundle_is_never_replaced(store: Store, small_bundle: Path) -> None:
    """The loss: somebody's checkpoint, under a key that was typed wrong."""
    for foreign in (b"precious", b"", pattern(300_000)):
        store.put("key", foreign)
        with pytest.raises(StoreError, match="no bundle") as caught:
            remote.push(small_bundle, store, "key")
        assert caught.value.exit_code == 10
        assert store.get("key") == foreign


def test_a_damaged_bundle_in_a_store_is_replaced(store: Store, small_bundle: Path) -> None:
    for damaged in (small_bundle.read_bytes()[:200], small_bundle.read_bytes()[:-1] + b"?"):
        store.put("key", damaged)
        assert remote.push(small_bundle, store, "key").uploaded or damaged.endswith(b"?")
    remote.push(small_bundle, store, "key")


def test_a_file_that_is_missing_is_a_local_error(store: Store, tmp_path: Path) -> None:
    with pytest.raises(LocalIOError) as caught:
        remote.push(tmp_path / "absent", store, "key")
    assert caught.value.errno == errno.ENOENT and caught.value.exit_code == 12


# -- inspect -----------------------------------------------------------------------------------------------------------


def test_inspect_moves_the_header_and_the_index_in_one_request(store: MemoryStore, many_frames: Path) -> None:
    remote.push(many_frames, store, "key")
    counting = FailingStore(store)
    assert remote.inspect_remote(counting, "key") == bundler.inspect(many_frames)
    assert counting.calls == {"get_range": 1}


def test_a_large_index_takes_one_request_more(store: MemoryStore, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(4500):
        (root / f"{number}-{pattern(60, number).hex()}").write_bytes(b"")
    bundler.pack([f"generic={root}"], tmp_path / "large.tbundle", level=1)
    listing = bundler.inspect(tmp_path / "large.tbundle")
    assert listing["index_size"] > 256 << 10
    store.put("key", tmp_path / "large.tbundle")
    counting = FailingStore(store)
    assert remote.inspect_remote(counting, "key") == listing
    assert counting.calls == {"get_range": 2}


def test_inspect_over_http_moves_no_more(proxy: Proxy, bucket: str, many_frames: Path) -> None:
    store = open_store(f"s3://{bucket}?endpoint={proxy.url}", retry=quick())
    store.put("dir/key", many_frames)
    proxy.plan()
    assert remote.inspect_remote(store, "dir/key") == bundler.inspect(many_frames)
    (request,) = proxy.requests
    assert (request.method, request.range) == ("GET", "bytes=0-262143")


def test_a_missing_object_and_a_foreign_one(store: Store, tmp_path: Path) -> None:
    store.put("foreign", b"something else")
    calls = (
        lambda key: remote.inspect_remote(store, key),
        lambda key: remote.pull(store, key, tmp_path / "out"),
        lambda key: remote.pull(store, key, tmp_path / "out", only=["*"]),
    )
    for call in calls:
        with pytest.raises(ObjectNotFoundError) as missing:
            call("missing")
        with pytest.raises(StoreError, match="no bundle") as foreign:
            call("foreign")
        assert missing.value.exit_code == foreign.value.exit_code == 10
    assert list(tmp_path.iterdir()) == []
    assert remote.open_remote(store, "missing") is None


def test_a_url_is_enough(small_bundle: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    remote.push(small_bundle, url, "a/b")
    assert remote.inspect_remote(url, "a/b") == bundler.inspect(small_bundle)
    assert [info.key for info in retention.ls(url, "a/")] == ["a/b"]


# -- pull --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flip_anywhere_on_the_way_never_arrives(store: MemoryStore, tiny_bundle: Path, tmp_path: Path) -> None:
    """The loss: a kernel that computes something else."""
    data = tiny_bundle.read_bytes()
    store.put("key", data)
    out = tmp_path / "out.tbundle"
    for call in (0, 1):
        for at in range(call, len(data), 29):
            noisy = FailingStore(store, Fault("get_range", after=call, flip=at))
            remote.pull(noisy, "key", out)
            assert out.read_bytes() == data, (call, at)


@pytest.mark.parametrize("only", [(), ("*triton_poi*",)])
def test_what_is_stored_damaged_is_an_error_after_three_readings(
    store: MemoryStore, small_bundle: Path, tmp_path: Path, only: tuple[str, ...]
) -> None:
    data = bytearray(small_bundle.read_bytes())
    data[-100] ^= 1
    store.put("key", bytes(data))
    counting = FailingStore(store)
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(DigestMismatchError, match="memory://remote/key: frame 0"):
        remote.pull(counting, "key", tmp_path / "out", only=only)
    assert counting.calls["get_range"] == 1 + remote.ATTEMPTS
    assert (tmp_path / "out").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("size", [0, 5, 79, 80, 500, -1])
def test_what_is_stored_in_part_is_an_error(store: Store, small_bundle: Path, tmp_path: Path, size: int) -> None:
    store.put("key", small_bundle.read_bytes()[:size])
    with pytest.raises((StoreError, TruncatedError)):
        remote.pull(store, "key", tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_only_moves_the_frames_that_it_needs(store: MemoryStore, many_frames: Path, tmp_path: Path) -> None:
    store.put("key", many_frames)
    counting = FailingStore(store)
    report = remote.pull(counting, "key", tmp_path / "out.tbundle", only=["generic/file07", "*/file3[01]"])
    assert report.entries == 3
    assert report.bytes_in < many_frames.stat().st_size // 4
    assert counting.calls["get_range"] <= 7
    assert bundler.verify(tmp_path / "out.tbundle").ok
    bundler.unpack(tmp_path / "out.tbundle", into=tmp_path / "into")
    files = {path.name: path.read_bytes() for path in (tmp_path / "into").iterdir()}
    assert files == {f"file{number:02}": pattern(65_000, number) for number in (7, 30, 31)}


def test_only_keeps_entries_as_they_are(store: Store, small_bundle: Path, tmp_path: Path) -> None:
    store.put("key", small_bundle)
    remote.pull(store, "key", tmp_path / "part.tbundle", only=["fxgraph"])
    whole, part = bundler.inspect(small_bundle), bundler.inspect(tmp_path / "part.tbundle")
    assert part["entries"] == [entry for entry in whole["entries"] if entry["unit"] == "fxgraph"]
    assert part["entries"]
    assert part["facts"] == whole["facts"] and part["profile"] == whole["profile"]
    assert bundler.verify(tmp_path / "part.tbundle").ok


def test_only_that_matches_all_has_the_content_digest_of_the_whole(
    store: Store, small_bundle: Path, tmp_path: Path
) -> None:
    store.put("key", small_bundle)
    report = remote.pull(store, "key", tmp_path / "all.tbundle", only=["*"])
    assert report.content_digest == bundler.inspect(small_bundle)["content_digest"]


def test_only_that_matches_nothing_is_refused(store: Store, small_bundle: Path, tmp_path: Path) -> None:
    store.put("key", small_bundle)
    with pytest.raises(UsageError, match="matches none"):
        remote.pull(store, "key", tmp_path / "out", only=["nothing*"])
    assert os.listdir(tmp_path) == []


def test_the_expected_digest_is_required(store: Store, small_bundle: Path, tmp_path: Path) -> None:
    store.put("key", small_bundle)
    digest = bundler.inspect(small_bundle)["content_digest"]
    remote.pull(store, "key", tmp_path / "out", expect_digest=digest)
    with pytest.raises(DigestMismatchError):
        remote.pull(store, "key", tmp_path / "other", expect_digest="sha256:" + "0" * 64)
    with pytest.raises(UsageError):
        remote.pull(store, "key", tmp_path / "other", expect_digest="md5:1")
    assert os.listdir(tmp_path) == ["out"]


def test_a_bundle_that_is_replaced_meanwhile_is_pulled_as_one_version(
    many_frames: Path, small_bundle: Path, tmp_path: Path
) -> None:
    class Replacing(MemoryStore):
        count = 0

        def _get_range(self, key: str, start: int, size: int):  # type: ignore[no-untyped-def]
            self.count += 1
            if self.count == 5:
                self.put(key, small_bundle)
            return super()._get_range(key, start, size)

    store = Replacing(retry=quick())
    store.put("key", many_frames)
    report = remote.pull(store, "key", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == small_bundle.read_bytes()
    assert report.content_digest == bundler.inspect(small_bundle)["content_digest"]


def test_a_bundle_that_is_removed_meanwhile_is_missing(many_frames: Path, tmp_path: Path) -> None:
    class Removing(MemoryStore):
        count = 0

        def _get_range(self, key: str, start: int, size: int):  # type: ignore[no-untyped-def]
            self.count += 1
            if self.count == 5:
                self.delete(key)
            return super()._get_range(key, start, size)

    store = Removing(retry=quick())
    store.put("key", many_frames)
    with pytest.raises(ObjectNotFoundError):
        remote.pull(store, "key", tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("only", [(), ("*",)])
@pytest.mark.parametrize("out", ["absent/out", "file/out"])
def test_a_place_that_cannot_be_written_is_a_local_error(
    store: Store, small_bundle: Path, tmp_path: Path, out: str, only: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    store.put("key", small_bundle)
    with pytest.raises(LocalIOError) as caught:
        remote.pull(store, "key", tmp_path / out, only=only)
    assert caught.value.exit_code == 12


def test_progress_adds_up(store: Store, many_frames: Path, tmp_path: Path) -> None:
    store.put("key", many_frames)
    told: list[int] = []
    report = remote.pull(store, "key", tmp_path / "out", progress=told.append)
    assert sum(told) == report.bytes_in == many_frames.stat().st_size


def test_a_signature_section_that_came_damaged_is_read_again(
    store: MemoryStore, small_bundle: Path, tmp_path: Path
) -> None:
    data = small_bundle.read_bytes()
    header = open_bundle(open(small_bundle, "rb")).header  # noqa: SIM115 - read at once
    front = replace(header, signature_size=64).encode()
    index_end = header.payload_offset
    signed = front + data[len(front) : index_end] + bytes(range(64)) + data[index_end:]
    store.put("key", signed)
    for call in range(3):
        noisy = FailingStore(store, Fault("get_range", after=call, flip=index_end + 7 if call != 1 else 7))
        remote.pull(noisy, "key", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == signed, call


def cuts(size: int) -> list[int]:
    """Where a line is cut: at every tenth byte of what comes first (heads, header, index), then now and then."""
    return [*range(0, min(size, 600), 10), *range(600, size, 97), size - 1]


@pytest.mark.slow
def test_a_pull_through_a_line_that_is_cut_anywhere(
    proxy: Proxy, bucket: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    store = open_store(f"s3://{bucket}?endpoint={proxy.url}", retry=quick())
    once = open_store(f"s3://{bucket}?endpoint={proxy.url}", retry=quick(0.0))
    remote.push(tiny_bundle, store, "key")
    data, out = tiny_bundle.read_bytes(), tmp_path / "out"
    for at in cuts(len(data)):
        proxy.plan(WireFault(method="GET", cut_down=at))
        with pytest.raises(StoreError):
            remote.pull(once, "key", out)
        assert not out.exists()
    for at in cuts(len(data)):
        proxy.plan(WireFault(method="GET", cut_down=at), WireFault(method="GET", flip_down=at))
        remote.pull(store, "key", out)
        assert out.read_bytes() == data
        out.unlink()


def test_a_push_through_a_line_that_is_cut_anywhere_leaves_the_old_bundle(
    proxy: Proxy, bucket: str, small_bundle: Path, tiny_bundle: Path
) -> None:
    once = open_store(f"s3://{bucket}?endpoint={proxy.url}", retry=quick(0.0))
    remote.push(small_bundle, once, "key")
    for at in cuts(tiny_bundle.stat().st_size):
        proxy.plan(WireFault(method="PUT", cut_up=at))
        with pytest.raises(StoreError):
            remote.push(tiny_bundle, once, "key")
    proxy.plan()
    assert once.get("key") == small_bundle.read_bytes()


# -- ls, rm, gc --------------------------------------------------------------------------------------------------------


def test_rm_removes_bundles_and_leaves_what_is_none(store: Store, small_bundle: Path) -> None:
    remote.push(small_bundle, store, "a")
    store.put("foreign", b"precious")
    report = retention.rm(store, ["a", "missing", "foreign"])
    assert (report.removed, report.missing, report.foreign) == (("a",), ("missing",), ("foreign",))
    assert [info.key for info in retention.ls(store)] == ["foreign"]
    assert retention.rm(store, ["foreign"], force=True).removed == ("foreign",)


@pytest.fixture
def aged(tmp_path: Path, small_bundle: Path) -> LocalStore:
    """Bundles ``day1`` to ``day5``, that many days old at second 1,000,000, and a foreign file as old as the oldest."""
    store = LocalStore(tmp_path / "aged", sync=False)
    for day in range(1, 6):
        store.put(f"day{day}", small_bundle)
    store.put("foreign", b"precious")
    for day in (*range(1, 6), 9):
        name = f"day{day}" if day < 9 else "foreign"
        seconds = 1_000_000 - day * 86_400
        os.utime(Path(store.root, name), (seconds, seconds))
    return store


NOW = 1_000_000.0


def keys(store: Store) -> list[str]:
    return [info.key for info in store.list()]


def test_gc_by_age(aged: LocalStore) -> None:
    report = retention.gc(aged, max_age=3.5 * 86_400, now=NOW)
    assert [removal.key for removal in report.removed] == ["day5", "day4"]
    assert report.foreign == ("foreign",)
    assert keys(aged) == ["day1", "day2", "day3", "foreign"]
    assert "not used for 5.0 days, 3.5 are allowed" in report.removed[0].reason


def test_gc_by_size_takes_the_least_recently_used_first(aged: LocalStore, small_bundle: Path) -> None:
    size = small_bundle.stat().st_size
    aged.touch("day5")
    report = retention.gc(aged, max_size=3 * size + 8, now=NOW)
    assert [removal.key for removal in report.removed] == ["day4", "day3"]
    assert report.bytes_before - report.bytes_after == 2 * size
    assert report.kept == 4
    assert retention.gc(aged, max_size=3 * size + 8, now=NOW).removed == ()


def test_gc_keeps_what_it_is_told_to(aged: LocalStore) -> None:
    report = retention.gc(aged, max_size=0, keep=["day[12]", "foreign"], now=NOW)
    assert [removal.key for removal in report.removed] == ["day5", "day4", "day3"]
    assert keys(aged) == ["day1", "day2", "foreign"]


def test_gc_can_only_say_what_would_go(aged: LocalStore) -> None:
    report = retention.gc(aged, max_size=0, dry_run=True, now=NOW)
    assert len(report.removed) == 5 and report.dry_run
    assert len(keys(aged)) == 6


def test_gc_looks_at_a_prefix(aged: LocalStore) -> None:
    report = retention.gc(aged, prefix="day5", max_size=0, now=NOW)
    assert [removal.key for removal in report.removed] == ["day5"]


def test_gc_leaves_what_was_replaced_meanwhile(aged: LocalStore, small_bundle: Path) -> None:
    """The loss: a bundle saved a moment ago, for the age of the one before it."""

    class Busy(LocalStore):
        def _head(self, key: str):  # type: ignore[no-untyped-def]
            if key == "day5":
                os.utime(Path(self.root, key))
            return super()._head(key)

    report = retention.gc(Busy(aged.root), max_age=86_400 * 4.5, now=NOW)
    assert report.removed == () and "day5" in keys(aged)


@pytest.mark.parametrize("options", [{}, {"max_size": -1}, {"max_age": -1.0}])
def test_gc_without_a_sensible_limit_is_refused(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        retention.gc(store, **options)


def test_a_pull_is_a_use(aged: LocalStore, tmp_path: Path) -> None:
    remote.pull(aged, "day5", tmp_path / "out")
    assert [removal.key for removal in retention.gc(aged, max_age=4.5 * 86_400, now=NOW).removed] == []
