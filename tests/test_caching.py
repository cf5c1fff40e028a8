"""``restore`` and ``save``: jobs that come one after the other, and at once, on a directory and on S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler import caching, remote
from bundler.caching import restore, save
from bundler.errors import (
    LocalIOError,
    ObjectExistsError,
    StoreError,
    UnsupportedVersionError,
    UsageError,
)
from bundler.model import Target
from bundler.stores import ReplacedError, Store, open_store
from bundler.stores.memory import MemoryStore
from bundler.testing.stores import FailingStore, Fault, quick
from bundler.testing.trees import snapshot, synthetic_inductor_root, synthetic_kernel

KEY = "tb1-linux-cuda90-lock1"
PACKAGE = Path(bundler.__file__).parent.parent


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that is empty."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    return f"file://{tmp_path}/store?sync=0"


@pytest.fixture
def real(url: str) -> Store:
    """The store of this URL."""
    return open_store(url, retry=quick())


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("memory://ci", retry=quick())


def kernel(root: Path, name: str, **options: Any) -> str:
    """Put a kernel into a root; return its entry."""
    key = name.upper().ljust(52, "K")
    synthetic_kernel(root, name, key=key, source_file="/src/k.py", **options)
    return f"triton/{key}"


def stored(store: Store | str, key: str = KEY) -> set[str]:
    """Entries that are stored under a key."""
    return {f"{entry['root']}/{entry['path']}" for entry in remote.inspect_remote(store, key)["entries"]}


# -- jobs, one after the other -----------------------------------------------------------------------------------------


def test_a_second_job_is_warm(real: Store, tmp_path: Path) -> None:
    """Two jobs on two machines: the first compiles, the second finds every file."""
    first, second = tmp_path / "runner1" / "cache", tmp_path / "runner2" / "cache"
    cold = restore(real, KEY, [f"triton={first}"])
    assert (cold.hit, cold.matched_key, cold.unpacked.restored) == (False, None, 0)
    # A store that is not there is a miss, and may be a slip: a directory says so.
    assert [("is it a slip?" in warning) for warning in cold.warnings] == [True] * real.url.startswith("file://")
    assert cold.unpacked.env == {"TRITON_CACHE_DIR": str(first)} and not first.exists()
    made = {kernel(first, "add"), kernel(first, "mul")}
    saved = save(real, KEY, [f"triton={first}"])
    assert (saved.uploaded, saved.entries, saved.added) == (True, 2, 2)

    warm = restore(real, KEY, [f"triton={second}"])
    assert (warm.hit, warm.matched_key, warm.unpacked.restored) == (True, KEY, 2)
    assert warm.unpacked.env == {"TRITON_CACHE_DIR": str(second)}
    assert warm.content_digest == saved.content_digest
    assert bundler.verify_root(f"triton={second}").ok
    assert {path.split("/")[0] for path in snapshot(second)} == {entry.split("/")[1] for entry in made}
    again = save(real, KEY, [f"triton={second}"])
    assert (again.uploaded, again.would_upload, again.added, again.entries) == (False, False, 0, 2)
    assert again.content_digest == saved.content_digest


def test_a_saved_bundle_grows_and_never_shrinks(real: Store, tmp_path: Path) -> None:
    """The loss: what an earlier job compiled, gone with the save of a job that did not need it."""
    entries = set()
    for number, name in enumerate(("one", "two", "three")):
        root = tmp_path / name
        entries.add(kernel(root, name))
        report = save(real, KEY, [f"triton={root}"])
        assert (report.uploaded, report.added, report.entries) == (True, 1, number + 1)
        assert stored(real) == entries
    restore(real, KEY, [f"triton={tmp_path / 'all'}"])
    for name in ("one", "two", "three"):
        ours = {path: data for path, data in snapshot(tmp_path / name).items() if "__grp__" not in path}
        assert ours.items() <= snapshot(tmp_path / "all").items()


def test_a_prefix_gives_the_newest_and_the_first_prefix_wins(real: Store, tmp_path: Path) -> None:
    for key in ("a-old", "a-new", "b-newest"):
        kernel(tmp_path / key, key)
        save(real, key, [f"triton={tmp_path / key}"])
        time.sleep(1.1 if real.url.startswith("s3") and key == "a-old" else 0.01)  # S3 counts seconds

    def match(key: str, *prefixes: str) -> str | None:
        return restore(real, key, [f"triton={tmp_path / 'out'}"], restore_keys=prefixes).matched_key

    assert match("a-3", "x-", "a-", "b-") == "a-new"
    assert match("a-3", "b", "a-") == "b-newest"
    assert match("a-old", "b") == "a-old"
    assert match("a-3", "a-n", "a-") == "a-new"
    assert match("a-3", "c-") is None


def test_what_is_damaged_is_a_miss_and_the_next_save_replaces_it(real: Store, tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    entry = kernel(root, "add")
    save(real, KEY, [f"triton={root}"])
    good = real.get(KEY) or b""
    for damaged in (good[:-1], good[:200], good[:40], good[:300] + b"!!!!" + good[304:], good[:-9] + b"!" + good[-8:]):
        real.put(KEY, damaged)
        report = restore(real, KEY, [f"triton={out}"])
        assert not report.hit and not out.exists()
        assert len(report.warnings) == 1 and KEY in report.warnings[0]
        would = save(real, KEY, [f"triton={root}"], readonly=True)
        assert would.replaced_damaged and not would.uploaded and real.get(KEY) == damaged
        saved = save(real, KEY, [f"triton={root}"])
        assert saved.uploaded and saved.replaced_damaged and "damaged, and it is replaced" in saved.warnings[0]
        assert stored(real) == {entry} and saved.added == 1


def test_a_damaged_bundle_is_passed_over_for_a_prefix(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "root", "add")
    for key in ("p-1", "p-2", "p-3"):
        save(store, key, [f"triton={tmp_path / 'root'}"])
    store.put("p-3", (store.get("p-3") or b"")[:-1])
    store.put("p-4", b"a foreign object")
    report = restore(store, "p-5", [f"triton={tmp_path / 'out'}"], restore_keys=["p-"])
    assert (report.hit, report.matched_key) == (True, "p-2")
    assert [warning.split(" ")[0] for warning in report.warnings] == ["p-4", "p-3"]


def test_a_foreign_object_is_an_error_and_left_alone(real: Store, tmp_path: Path) -> None:
    """The loss: somebody's file that happens to lie under the key."""
    kernel(tmp_path / "root", "add")
    real.put(KEY, b"precious, and no bundle at all")
    for call in (restore, save):
        with pytest.raises(StoreError, match="is no bundle") as caught:
            call(real, KEY, [f"triton={tmp_path / 'root'}"])
        assert caught.value.exit_code == 10
    assert real.get(KEY) == b"precious, and no bundle at all"


def test_a_bundle_of_a_newer_version_is_a_miss_and_left_alone(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "root", "add")
    save(store, KEY, [f"triton={tmp_path / 'root'}"])
    data = bytearray(store.get(KEY) or b"")
    data[8] = 9
    store.put(KEY, bytes(data))
    assert not restore(store, KEY, [f"triton={tmp_path / 'out'}"]).hit
    with pytest.raises(UnsupportedVersionError):
        save(store, KEY, [f"triton={tmp_path / 'root'}"])
    assert store.get(KEY) == bytes(data)


def test_a_bundle_for_another_gpu_is_a_miss_that_says_so(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "root", "add")
    save(store, KEY, [f"triton={tmp_path / 'root'}"])
    other = bundler.bundle.Selection(targets=(Target.parse("cuda:75"),))
    report = restore(store, KEY, [f"triton={tmp_path / 'out'}"], selection=other)
    assert not report.hit and "cuda:90" in report.warnings[0] and "cuda:75" in report.warnings[0]
    assert not (tmp_path / "out").exists()


def test_the_stored_build_stays_on_a_conflict(store: MemoryStore, tmp_path: Path) -> None:
    entry = kernel(tmp_path / "a", "add", seed=1)
    kernel(tmp_path / "b", "add", seed=2)
    new = kernel(tmp_path / "b", "mul")
    first = save(store, KEY, [f"triton={tmp_path / 'a'}"])
    second = save(store, KEY, [f"triton={tmp_path / 'b'}"])
    assert [(each.entry, each.action) for each in second.conflicts] == [(entry, "kept")]
    assert stored(store) == {entry, new} and second.added == 1
    restore(store, KEY, [f"triton={tmp_path / 'out'}"])
    name = entry.split("/")[1]
    kept = {p: d for p, d in snapshot(tmp_path / "a").items() if p.startswith(name) and "__grp__" not in p}
    assert kept.items() <= snapshot(tmp_path / "out").items()
    third = save(store, KEY, [f"triton={tmp_path / 'a'}"])
    assert not third.uploaded and first.content_digest != third.content_digest == second.content_digest


def test_equivalent_builds_are_nothing_new_and_a_full_one_upgrades_a_runtime_one(
    store: MemoryStore, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        synthetic_kernel(tmp_path / name, "add", key="A" * 52, source_file=f"/{name}/k.py")
    roots = {name: [f"triton={tmp_path / name}"] for name in ("a", "b")}
    save(store, KEY, roots["a"], profile="runtime")
    assert not save(store, KEY, roots["b"], profile="runtime").uploaded
    report = save(store, KEY, roots["b"])
    assert (report.uploaded, report.added, report.upgraded, report.entries) == (True, 0, 1, 1)
    assert remote.inspect_remote(store, KEY)["profile"] == "full"
    assert not save(store, KEY, roots["a"], profile="runtime").uploaded
    assert not save(store, KEY, roots["a"]).uploaded


# -- roots -------------------------------------------------------------------------------------------------------------


def test_without_roots_each_kind_comes_from_and_goes_to_its_usual_place(store: MemoryStore, tmp_path: Path) -> None:
    def host(name: str) -> dict[str, str]:
        return {"HOME": str(tmp_path / name), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name / "inductor")}

    kernel(tmp_path / "one/.triton/cache", "add")
    (tmp_path / "one/inductor/ab").mkdir(parents=True)
    (tmp_path / "one/inductor/ab/module.py").write_text("x = 1\n")
    report = save(store, KEY, environ=host("one"))
    assert report.entries == 2 and report.warnings == ()
    found = restore(store, KEY, environ=host("two"))
    assert found.hit and found.unpacked.roots == {
        "inductor": str(tmp_path / "two/inductor"),
        "triton": str(tmp_path / "two/.triton/cache"),
    }


def test_a_usual_place_inside_another_one_is_saved_once(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "inductor/triton/0", "add")
    environ = {
        "HOME": str(tmp_path / "home"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "inductor/triton/0"),
    }
    assert save(store, KEY, environ=environ).entries == 1
    assert {entry.split("/")[0] for entry in stored(store)} == {"inductor"}


def test_a_host_without_caches_saves_nothing_and_says_so(store: MemoryStore, tmp_path: Path) -> None:
    empty = {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "absent")}
    (tmp_path / "there").mkdir()
    for roots in ((), [f"triton={tmp_path / 'absent'}"], [f"triton={tmp_path / 'there'}"]):
        report = save(store, KEY, roots, environ=empty)
        assert (report.uploaded, report.entries, report.content_digest) == (False, 0, None)
        assert report.warnings
    assert list(store.list()) == []


def test_only_roots_that_are_named_are_restored_and_those_that_are_not_stored_do_not_matter(
    store: MemoryStore, tmp_path: Path
) -> None:
    kernel(tmp_path / "a", "add")
    kernel(tmp_path / "b", "mul")
    save(store, KEY, [f"triton={tmp_path / 'a'}", f"other:triton={tmp_path / 'b'}"])
    report = restore(store, KEY, [f"other:triton={tmp_path / 'out'}", f"vllm={tmp_path / 'vllm'}"])
    assert report.hit and report.unpacked.restored == 1 and "roots triton are not among" in report.warnings[0]
    assert report.unpacked.env["VLLM_CACHE_ROOT"] == str(tmp_path / "vllm")
    assert len(list((tmp_path / "out").iterdir())) == 1
    report = restore(store, KEY, [f"vllm={tmp_path / 'vllm'}"])
    assert not report.hit and "none of vllm" in report.warnings[0]


def test_one_bare_path_is_enough_for_a_bundle_with_one_root(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "a", "add")
    save(store, KEY, [tmp_path / "a"])
    assert restore(store, KEY, [tmp_path / "out"]).unpacked.restored == 1
    save(store, KEY, [f"other:triton={tmp_path / 'a'}"])
    with pytest.raises(UsageError, match="KIND=PATH"):
        restore(store, KEY, [tmp_path / "new"])


@pytest.mark.parametrize("call", [restore, save])
@pytest.mark.parametrize(
    ("key", "roots", "error"),
    [("a b", [], StoreError), ("../a", [], StoreError), ("", [], StoreError), ("k", ["nokind=/x"], UsageError)],
)
def test_bad_input_is_refused_before_anything_is_done(
    call: Callable[..., Any], key: str, roots: list[str], error: type[Exception]
) -> None:
    failing = FailingStore(MemoryStore("memory://x"))
    with pytest.raises(error):
        call(failing, key, roots)
    assert not any(failing.calls.values())


def test_an_empty_prefix_is_refused(store: MemoryStore) -> None:
    with pytest.raises(UsageError, match="any bundle"):
        restore(store, KEY, restore_keys=[""])


def test_a_root_that_cannot_be_written_is_a_local_error(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "a", "add")
    save(store, KEY, [f"triton={tmp_path / 'a'}"])
    (tmp_path / "file").write_text("x")
    with pytest.raises(LocalIOError) as caught:
        restore(store, KEY, [f"triton={tmp_path / 'file' / 'below'}"])
    assert caught.value.exit_code == 12
    assert store.get(KEY) is not None


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_entries_are_dropped_whole(store: MemoryStore, tmp_path: Path) -> None:
    root = tmp_path / "root"
    entries = {name: kernel(root, name, seed=number) for number, name in enumerate("abcdef")}
    for age, name in enumerate("fbdace"):  # f is the oldest
        for path in root.glob(f"{name.upper()}K*/*"):
            os.utime(path, (1_700_000_100 + age, 1_700_000_000))
    whole = save(store, "whole", [f"triton={root}"])
    limit = whole.bytes_stored * 2 // 3
    report = save(store, KEY, [f"triton={root}"], max_size=limit)
    assert report.uploaded and report.bytes_stored <= limit
    dropped = [each.entry for each in report.dropped]
    assert dropped == [entries[name] for name in "fbdace"][: len(dropped)] and 2 <= len(dropped) <= 4
    assert report.dropped[0].last_used == 1_700_000_100
    assert stored(store) == set(entries.values()) - set(dropped)
    assert bundler.verify(store.get(KEY) or b"").ok

    # What is used, or new, stays; what was restored and nobody read goes, from its recorded time on.
    next_root = tmp_path / "next"
    restore(store, KEY, [f"triton={next_root}"])
    for path in next_root.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    for path in next_root.glob("AK*/*"):
        os.utime(path, (1_800_000_000, 1_700_000_000))
    new = kernel(next_root, "new", seed=99)
    kept = stored(store)
    report = save(store, KEY, [f"triton={next_root}"], max_size=limit)
    assert report.uploaded and report.bytes_stored <= limit
    assert {new, entries["a"]} <= stored(store) < kept | {new}
    assert not {new, entries["a"]} & {each.entry for each in report.dropped}
    assert not save(store, KEY, [f"triton={next_root}"], max_size=report.bytes_stored).uploaded


def test_a_bundle_that_is_too_large_already_shrinks(store: MemoryStore, tmp_path: Path) -> None:
    for number, name in enumerate("abcd"):
        kernel(tmp_path / "root", name, seed=number)
    before = save(store, KEY, [f"triton={tmp_path / 'root'}"])
    after = save(store, KEY, [f"triton={tmp_path / 'root'}"], max_size=before.bytes_stored - 1)
    assert after.uploaded and after.entries < 4 and after.added == 0 and after.dropped


def test_a_size_that_nothing_fits_into_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "root", "add")
    save(store, KEY, [f"triton={tmp_path / 'root'}"])
    before = store.get(KEY)
    for size in (0, 100, -1):
        with pytest.raises(UsageError):
            save(store, KEY, [f"triton={tmp_path / 'root'}"], max_size=size)
    assert store.get(KEY) == before


# -- read-only ---------------------------------------------------------------------------------------------------------


def test_readonly_uploads_nothing_and_says_what_would_be(store: MemoryStore, tmp_path: Path) -> None:
    kernel(tmp_path / "a", "add")
    report = save(store, KEY, [f"triton={tmp_path / 'a'}"], readonly=True)
    assert (report.uploaded, report.would_upload, report.added, report.entries) == (False, True, 1, 0)
    save(store, KEY, [f"triton={tmp_path / 'a'}"])
    before = store.get(KEY)
    kernel(tmp_path / "a", "mul")
    counting = FailingStore(store)
    report = save(counting, KEY, [f"triton={tmp_path / 'a'}"], readonly=True)
    assert (report.uploaded, report.would_upload, report.added, report.entries) == (False, True, 1, 1)
    assert store.get(KEY) == before and not counting.calls.get("put")


# -- many at once, and faults ------------------------------------------------------------------------------------------


def test_ten_savers_at_once_lose_nothing(url: str, real: Store, tmp_path: Path) -> None:
    """The loss: a job's kernels, gone because another job saved at the same moment."""
    entries = {kernel(tmp_path / f"root{number}", f"k{number}", seed=number) for number in range(10)}
    shared = {kernel(tmp_path / f"root{number}", "shared", seed=number) for number in range(10)}

    def job(number: int) -> int:
        return save(open_store(url, retry=quick()), KEY, [f"triton={tmp_path / f'root{number}'}"]).attempts

    with ThreadPoolExecutor(10) as pool:
        attempts = list(pool.map(job, range(10)))
    assert stored(real) == entries | shared
    assert max(attempts) > 1
    # Ten builds of one key: what is stored is one of them, whole.
    restore(real, KEY, [f"triton={tmp_path / 'out'}"])
    name = next(iter(shared)).split("/")[1]
    found = {p: d for p, d in snapshot(tmp_path / "out").items() if p.startswith(name) and "__grp__" not in p}
    builds = [
        {p: d for p, d in snapshot(tmp_path / f"root{n}").items() if p.startswith(name) and "__grp__" not in p}
        for n in range(10)
    ]
    assert builds.count(found) == 1


def test_two_processes_that_save_at_once_end_in_the_union(url: str, tmp_path: Path) -> None:
    jobs = []
    for name in ("one", "two"):
        kernel(tmp_path / name, name)
        argv = ["save", "--json", "--store", url, "--key", KEY, f"triton={tmp_path / name}"]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        jobs.append(subprocess.Popen([sys.executable, "-m", "bundler", *argv], stdout=subprocess.PIPE, env=environment))
    reports = [json.loads(job.communicate(timeout=60)[0]) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0] and all(report["uploaded"] for report in reports)
    assert len(stored(url)) == 2


class Busy(MemoryStore):
    """A store in which somebody else saves in front of each of our first ``times`` uploads."""

    other = b""
    times = 1

    def _put(self, key: str, body: Any, mode: Any) -> Any:
        if self.other and self.times:
            self.times -= 1
            other, self.other = self.other, b""
            self.put(key, other)
            self.other = other if self.times else b""
        return super()._put(key, body, mode)


def test_who_saves_in_between_is_united_too(tmp_path: Path) -> None:
    theirs, ours = kernel(tmp_path / "a", "theirs"), kernel(tmp_path / "b", "ours")
    bundler.pack([f"triton={tmp_path / 'a'}"], tmp_path / "a.tbundle")
    busy = Busy("memory://busy", retry=quick())
    busy.other = (tmp_path / "a.tbundle").read_bytes()
    report = save(busy, KEY, [f"triton={tmp_path / 'b'}"])
    assert (report.attempts, report.added, report.entries) == (2, 1, 2)
    assert stored(busy) == {theirs, ours}


def test_what_is_replaced_while_a_save_reads_it_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss prevented: of ten jobs that save at once one fails, and its kernels are gone."""
    theirs, ours = kernel(tmp_path / "a", "theirs"), kernel(tmp_path / "b", "ours")
    bundler.pack([f"triton={tmp_path / 'a'}"], tmp_path / "a.tbundle")
    store = MemoryStore("memory://busy", retry=quick())
    store.put(KEY, (tmp_path / "a.tbundle").read_bytes())
    real, calls = caching.pull, []

    def replaced(source: Store, key: str, path: str) -> Any:
        calls.append(key)
        if len(calls) < 3:
            raise ReplacedError(source.url, key)
        return real(source, key, path)

    monkeypatch.setattr(caching, "pull", replaced)
    assert save(store, KEY, [f"triton={tmp_path / 'b'}"]).attempts == 3
    assert stored(store) == {theirs, ours}


def test_a_save_that_never_gets_its_turn_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "SAVE_ATTEMPTS", 3)
    kernel(tmp_path / "a", "theirs")
    kernel(tmp_path / "b", "ours")
    bundler.pack([f"triton={tmp_path / 'a'}"], tmp_path / "a.tbundle")
    busy = Busy("memory://busy", retry=quick())
    busy.other, busy.times = (tmp_path / "a.tbundle").read_bytes(), 100
    with pytest.raises(StoreError, match="3 times"):
        save(busy, KEY, [f"triton={tmp_path / 'b'}"])


@pytest.mark.parametrize(
    "fault",
    [
        Fault("put", times=None),
        Fault("put", times=None, drop=True),
        Fault("put", times=None, cut=500),
        Fault("put", times=None, flip=500),
        Fault("put", times=None, error=OSError(5, "x")),
    ],
    ids=["refuses", "drops", "cuts", "flips", "fails"],
)
def test_a_store_that_fails_or_lies_is_an_error(tmp_path: Path, fault: Fault) -> None:
    """The loss: a job that believes that its caches are stored."""
    kernel(tmp_path / "a", "add")
    inner = FailingStore(MemoryStore("memory://inner"), fault, retry=quick(0.2))
    with pytest.raises(StoreError) as caught:
        save(inner, KEY, [f"triton={tmp_path / 'a'}"])
    assert caught.value.exit_code == 10 and not isinstance(caught.value, ObjectExistsError)


def test_noise_on_the_way_and_lost_answers_change_nothing(tmp_path: Path) -> None:
    kernel(tmp_path / "a", "add")
    inner = MemoryStore("memory://inner", retry=quick())
    noisy = FailingStore(inner, Fault("put", lose_answer=True), Fault("head"))
    assert save(noisy, KEY, [f"triton={tmp_path / 'a'}"]).uploaded
    kernel(tmp_path / "a", "mul")
    noisy = FailingStore(inner, Fault("put", cut=100), Fault("get_range", after=1, flip=300))
    report = save(noisy, KEY, [f"triton={tmp_path / 'a'}"])
    assert (report.uploaded, report.added) == (True, 1)
    assert len(stored(inner)) == 2 and bundler.verify(inner.get(KEY) or b"").ok


def test_a_store_that_cannot_be_reached_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    kernel(tmp_path / "a", "add")
    for call in (restore, save):
        with pytest.raises(StoreError):
            call("s3://b?endpoint=http://127.0.0.1:9&region=r&deadline=0", KEY, [f"triton={tmp_path / 'a'}"])


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.15])
def test_a_save_that_is_killed_leaves_the_old_bundle_or_the_new_one(tmp_path: Path, pause: float) -> None:
    """The loss: a bundle that was good, for one that is half written."""
    root = tmp_path / "root"
    kernel(root, "old")
    url = f"file://{tmp_path}/store"
    save(url, KEY, [f"triton={root}"])
    for number in range(6):
        kernel(root, f"new{number}", seed=number)
    program = (
        "import sys; from bundler.cli import main\n"
        "print('ready', flush=True)\n"
        f"sys.exit(main(['save', '--store', {url!r}, '--key', {KEY!r}, {f'triton={root}'!r}]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as job:
        assert job.stdout is not None and job.stdout.readline() == b"ready\n"
        time.sleep(0.1 + pause)
        job.send_signal(signal.SIGTERM)
    # Before the command has taken the signal over, and after it has given it back, the system ends the process.
    assert job.returncode in (0, 143, -signal.SIGTERM)
    assert len(stored(url)) in (1, 7)
    assert bundler.verify(open_store(url).get(KEY) or b"").ok


def test_a_delta_in_a_store_is_passed_over_and_left_alone(tmp_path: Path) -> None:
    """The loss: a job that ends, or a union that was made of half a bundle."""
    root, url = tmp_path / "root", f"file://{tmp_path}/store"
    kernel(root, "old")
    bundler.pack([f"triton={root}"], tmp_path / "old.tbundle")
    kernel(root, "new", seed=1)
    bundler.pack([f"triton={root}"], tmp_path / "delta.tbundle", base=tmp_path / "old.tbundle")
    bundler.push(tmp_path / "delta.tbundle", url, KEY)
    report = restore(url, KEY, [f"triton={tmp_path / 'there'}"])
    assert not report.hit and "it is a delta, and needs the bundle" in report.warnings[0]
    before = open_store(url).get(KEY)
    with pytest.raises(StoreError, match=r"is a delta of the bundle .* left alone"):
        save(url, KEY, [f"triton={root}"])
    assert open_store(url).get(KEY) == before


def test_what_has_to_go_is_not_the_graphs_and_the_seconds_are_not_claimed(tmp_path: Path) -> None:
    """The loss: a hit that promises what all was compiled in, and a cache of kernels that no graph asks for."""
    from bundler.formats import open_bundle
    from bundler.union import Union

    synthetic_inductor_root(tmp_path / "root", kernels=2, graphs=1)
    for number in range(12):
        synthetic_kernel(tmp_path / "root" / "triton" / "0", f"more_{number}", seed=number)
    bundler.pack([f"inductor={tmp_path / 'root'}"], tmp_path / "all.tbundle", facts={"compile_milliseconds": 5000})
    out = tmp_path / "some.tbundle"
    with open(tmp_path / "all.tbundle", "rb") as file:
        union = Union(open_bundle(file), None)
        union.write(str(out), level=3, max_size=(tmp_path / "all.tbundle").stat().st_size * 4 // 5)
    units = [entry["unit"] for entry in bundler.inspect(out)["entries"]]
    assert union.dropped and "fxgraph" in units and "aotautograd" in units
    assert "compile_milliseconds" not in bundler.inspect(out)["facts"]
