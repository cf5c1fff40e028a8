"""Laws of the life cycle inside a training process: any order of calls, many threads, and never an exception.

The table in the docstring of ``bundler.triton_bundler`` is tested row by row.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pickle
import re
import shutil
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler import TritonBundler, scope, triton_bundler
from bundler.collect import ChangedError
from bundler.errors import BundlerError, DigestMismatchError, LocalIOError, NotABundleError
from bundler.formats import open_bundle, v1
from bundler.switch import SWITCH, is_switched_on
from bundler.testing import artifacts, trees
from bundler.testing.faults import crash_points, judge

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors")


class Place:
    """A Triton cache of three kernels for device 0, and one for device 1; and another host's root."""

    def __init__(self, base: Path) -> None:
        self.cache = base / "cache"
        self.keys = [
            trees.synthetic_kernel(self.cache / "0", "add", seed=seed, source_file=f"/x/m{seed % 2}.py").name
            for seed in range(3)
        ]
        self.other_device = trees.synthetic_kernel(self.cache / "1", "mul").name
        self.there = base / "there"

    def collected(self, *keys: str, **options: Any) -> bytes:
        """The blob of a compile that put ``keys``; of all kernels of device 0 when there are none."""
        made = TritonBundler(self.cache, strict=True, **options)
        made.begin_compile()
        for key in keys or self.keys:
            made.put(key)
        blob = made.collect()
        assert blob is not None
        return blob

    def host_binary(self, name: str = "stub") -> Path:
        """A host binary beside the kernels of device 0."""
        path = self.cache / "0" / ("S" * 52) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(artifacts.host_binary())
        return path

    def whole(self) -> dict[str, dict[str, bytes]]:
        """What the root over there holds when every kernel of device 0 is emitted."""
        found = {}
        for path, data in trees.snapshot(self.cache).items():
            if path.startswith("0/"):
                moved = data.replace(str(self.cache).encode(), str(self.there).encode())
                found[path] = moved if "__grp__" in path else data
        return {"whole": found}

    def is_whole(self) -> bool:
        judged = judge(self.there, self.whole())
        return set(judged.entries.values()) == {"whole"} and judged.leftovers == []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """``warnings()``: what was logged as a warning so far."""
    caplog.set_level(logging.DEBUG, logger="bundler")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def keys_in(blob: bytes) -> list[str]:
    return [entry["key"] for entry in bundler.inspect(blob)["entries"]]


# --- the life cycle --------------------------------------------------------------------------------------------------


def test_kernels_of_a_compile_are_there_after_a_hit_elsewhere(place: Place) -> None:
    here, there = TritonBundler(place.cache, strict=True), TritonBundler(place.there, strict=True)
    here.begin_compile()
    for key in place.keys:
        here.put(key, compile_seconds=0.5)
    blob = here.collect()
    assert isinstance(blob, bytes) and sorted(keys_in(blob)) == sorted(place.keys)
    report = there.read_and_emit(blob)
    assert report is not None and report.restored == 3
    assert place.is_whole()
    assert here.stats()["kernels_collected"] == 3 == there.stats()["kernels_emitted"]
    assert here.stats()["bytes_collected"] == len(blob)
    assert there.stats()["compile_seconds_saved"] == pytest.approx(1.5)


@pytest.mark.parametrize("layout", ["triton/3", "3", ""])
def test_kernel_goes_back_to_where_it_was_found(layout: str, tmp_path: Path) -> None:
    # The loss: a kernel that is restored to a directory in which nobody looks.
    kernel = trees.synthetic_kernel(tmp_path / "cache" / layout, "add")
    here = TritonBundler(tmp_path / "cache", strict=True)
    here.begin_compile()
    here.put(kernel.name, device=3)
    blob = here.collect()
    assert blob is not None
    assert TritonBundler(tmp_path / "there", strict=True).read_and_emit(blob).restored == 1  # type: ignore[union-attr]
    assert (tmp_path / "there" / layout / kernel.name / "add.cubin").is_file()


def test_kernels_of_two_devices_are_told_apart(place: Place) -> None:
    here = TritonBundler(place.cache, strict=True)
    here.begin_compile()
    here.put(place.keys[0], device=0)
    here.put(place.other_device, device=1)
    blob = here.collect()
    assert blob is not None
    there = TritonBundler(place.there, strict=True)
    assert there.read_and_emit(blob).restored == 2  # type: ignore[union-attr]
    assert (place.there / "1" / place.other_device).is_dir() and (place.there / "0" / place.keys[0]).is_dir()


# The rows of the table, by the text of the call and of the outcome.


def row_begin_twice(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    made.begin_compile()
    made.put(place.keys[0])
    made.begin_compile()
    made.put(place.keys[1])
    blob = made.collect()
    assert blob is not None and keys_in(blob) == [place.keys[1]]
    assert made.stats()["scopes_abandoned"] == 1


def row_put_outside(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    made.put(place.keys[0])
    made.put_winner(place.keys[0])
    assert made.stats()["put_outside"] == 1 and made.stats()["kernels_put"] == 0
    made.begin_compile()
    assert made.collect() is None


def row_host_binary_outside(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    stub = place.host_binary()
    made.put_host_binary(stub)
    assert made.stats()["put_outside"] == 0
    made.begin_compile()
    made.put(place.keys[0])
    blob = made.collect()
    assert blob is not None and keys_in(blob) == [place.keys[0]]
    helper = place.host_binary("cuda_utils")
    made.put_host_binary(helper)
    for key in place.keys[:2]:
        made.begin_compile()
        made.put(key)
        blob = made.collect()
        assert blob is not None and set(keys_in(blob)) == {key, "cuda_utils"}


def row_host_binary_alone(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    made.begin_compile()
    made.put_host_binary(place.host_binary())
    assert made.collect() is None
    assert made.stats()["host_binaries_collected"] == 0 and made.stats()["collect_failures"] == 0


def row_collect_twice(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    assert made.collect() is None
    made.begin_compile()
    assert made.collect() is None
    made.begin_compile()
    made.put(place.keys[0])
    assert made.collect() is not None
    assert made.collect() is None
    made.begin_compile()
    made.put(place.keys[0])
    made.end_compile()
    made.end_compile()
    assert made.collect() is None


def row_off_at_begin(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    made.begin_compile()
    switch(False)
    made.begin_compile()
    switch(True)
    made.put(place.keys[0])
    assert made.stats()["put_outside"] == 1
    assert made.collect() is None


def row_off_at_collect(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    made.begin_compile()
    made.put(place.keys[0])
    switch(False)
    assert made.collect() is None
    switch(True)
    assert made.collect() is None, "the scope was to be dropped"


def row_off_at_emit(made: TritonBundler, place: Place, switch: Callable[[bool], None]) -> None:
    blob = place.collected()
    there = TritonBundler(place.there, enabled=made._enabled, strict=True)
    switch(False)
    assert there.read_and_emit(blob) is None and not place.there.exists()
    assert there.stats()["emit_failures"] == 0
    switch(True)
    assert there.read_and_emit(blob) is not None


ROWS = {
    "``begin_compile`` twice": row_begin_twice,
    "``put`` without any open scope": row_put_outside,
    "``put_host_binary`` without a scope": row_host_binary_outside,
    "``put_host_binary`` without a ``put``": row_host_binary_alone,
    "``collect`` twice, or without a scope": row_collect_twice,
    "switched off at ``begin_compile``": row_off_at_begin,
    "switched off at ``collect``": row_off_at_collect,
    "switched off at ``read_and_emit``": row_off_at_emit,
}


@pytest.mark.parametrize("row", ROWS)
def test_row_of_the_table_holds(row: str, place: Place, warnings: Callable[[], list[str]]) -> None:
    on = [True]
    made = TritonBundler(place.cache, enabled=lambda: on[0], strict=True)

    def switch(state: bool) -> None:
        on[0] = state

    ROWS[row](made, place, switch)
    assert warnings() == []


def test_every_row_of_the_table_is_tested() -> None:
    # A table that no test reads is a rumour.
    lines = (triton_bundler.__doc__ or "").splitlines()
    _, head, end = (number for number, line in enumerate(lines) if line.startswith("====="))
    assert [re.split(r"\s{2,}", line)[0] for line in lines[head + 1 : end]] == list(ROWS)


@pytest.mark.parametrize(("value", "on"), [(None, True), ("1", True), ("", True), ("0", False)])
def test_one_variable_switches_everything_off(
    value: str | None, on: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = place.collected()
    if value is None:
        monkeypatch.delenv(SWITCH, raising=False)
    else:
        monkeypatch.setenv(SWITCH, value)
    assert is_switched_on() is on
    made = TritonBundler(place.there)
    made.begin_compile()
    made.put(place.keys[0])
    assert (made.read_and_emit(blob) is not None) is on and place.there.exists() is on
    assert (made.collect() is not None) is on


# --- winners ---------------------------------------------------------------------------------------------------------


def test_losers_of_a_winner_are_left_out_and_kernels_of_one_configuration_stay(
    place: Place, warnings: Callable[[], list[str]]
) -> None:
    # The loss: thirty configurations per kernel in every blob; or the kernel that was never timed, left out.
    made = TritonBundler(place.cache, strict=True)
    made.begin_compile()
    for key in place.keys:  # the first and the third come from one module
        made.put(key)
    made.put_winner(place.keys[2])
    blob = made.collect()
    assert blob is not None and sorted(keys_in(blob)) == sorted(place.keys[1:])
    assert warnings() == []


def test_without_a_winner_every_configuration_is_taken(place: Place) -> None:
    assert len(keys_in(place.collected())) == 3


@pytest.mark.parametrize("profile", ["full", "runtime"])
def test_profile_says_what_of_a_kernel_is_taken(profile: str, place: Place) -> None:
    blob = place.collected(profile=profile)
    names = {file["name"] for entry in bundler.inspect(blob)["entries"] for file in entry["files"]}
    assert ("add.ttir" in names) is (profile == "full") and "add.cubin" in names


def test_compile_time_is_the_longest_that_was_told_and_recorded(place: Place) -> None:
    made = TritonBundler(place.cache, strict=True)
    made.begin_compile()
    for seconds in (0.25, 2.0, 0.5):
        made.put(place.keys[0], compile_seconds=seconds)
    blob = made.collect()
    assert blob is not None
    assert bundler.inspect(blob)["facts"]["compile_milliseconds"] == 2000
    assert "compile_milliseconds" not in bundler.inspect(place.collected())["facts"]


# --- content ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["kernel JSON", "IR", "group file"])
def test_text_that_looks_like_the_placeholder_survives(where: str, place: Place) -> None:
    # The loss: a name or a string of the user's that holds the token, and a kernel that reads another host's path.
    kernel = place.cache / "0" / place.keys[0]
    if where == "kernel JSON":
        metadata = json.loads((kernel / "add.json").read_bytes())
        (kernel / "add.json").write_text(json.dumps({**metadata, "name": "[REPLACE]/add", "note": "[REPLACE]"}))
    elif where == "IR":
        (kernel / "add.ttir").write_bytes(b'loc("[REPLACE]/add.py")' + (kernel / "add.ttir").read_bytes())
    else:
        (kernel / "[REPLACE].ttir").write_bytes(b"[REPLACE]")
        group = json.loads((kernel / "__grp__add.json").read_bytes())
        group["child_paths"]["[REPLACE].ttir"] = f"{kernel}/[REPLACE].ttir"
        (kernel / "__grp__add.json").write_text(json.dumps(group))
    assert TritonBundler(place.there, strict=True).read_and_emit(place.collected()) is not None
    assert place.is_whole()


@pytest.mark.parametrize("at", ["magic", "version", "index", "payload", "last"])
def test_blob_with_a_flipped_byte_is_refused_and_nothing_appears(
    at: str, place: Place, warnings: Callable[[], list[str]]
) -> None:
    # The loss: a bad DIMM or disk under the FX graph cache, and a kernel that computes something else.
    blob = bytearray(place.collected())
    header = open_bundle(io.BytesIO(blob)).header
    offsets = {"magic": 1, "version": 8, "index": 100, "payload": header.payload_offset + 40, "last": len(blob) - 1}
    blob[offsets[at]] ^= 0xFF
    there = TritonBundler(place.there)
    assert there.read_and_emit(bytes(blob)) is None
    assert trees.snapshot(place.there) == {} and not list(place.there.glob(".tb-*"))
    assert len(warnings()) == 1 and "emit failed" in warnings()[0]
    assert there.stats()["emit_failures"] == 1
    with pytest.raises(BundlerError):
        TritonBundler(place.there, strict=True).read_and_emit(bytes(blob))


def test_payload_is_hashed(place: Place) -> None:
    blob = bytearray(place.collected())
    blob[-1] ^= 1
    with pytest.raises(DigestMismatchError):
        TritonBundler(place.there, strict=True).read_and_emit(bytes(blob))


BAD = {
    "empty": lambda blob: b"",
    "one byte": lambda blob: blob[:1],
    "header only": lambda blob: blob[:72],
    "half": lambda blob: blob[: len(blob) // 2],
    "all but one byte": lambda blob: blob[:-1],
    "one byte more": lambda blob: blob + b"\0",
    "NULs": lambda blob: bytes(len(blob)),
    "zip": lambda blob: b"PK\3\4" + blob,
    "too new": lambda blob: blob[:8] + b"\x63" + blob[9:],
}


@pytest.mark.parametrize("how", BAD)
def test_bad_blob_is_one_warning_and_a_counter(how: str, place: Place, warnings: Callable[[], list[str]]) -> None:
    # The loss: a broken cache entry ends a training run that would only have had to compile.
    bad = BAD[how](place.collected())
    there = TritonBundler(place.there)
    for _ in range(3):
        assert there.read_and_emit(bad) is None
    assert len(warnings()) == 1 and "the kernels are compiled instead" in warnings()[0]
    assert there.stats()["emit_failures"] == 3 and there.stats()["kernels_emitted"] == 0
    with pytest.raises(BundlerError):
        TritonBundler(place.there, strict=True).read_and_emit(bad)
    assert trees.snapshot(place.there) == {}
    assert there.read_and_emit(place.collected()) is not None, "the next good blob is emitted"


def test_pickle_of_torch_s_own_is_refused_and_not_loaded(tmp_path: Path, place: Place) -> None:
    # The loss: code of whoever wrote the blob runs as soon as it is looked at.
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.system, (f"touch {tmp_path}/pwned",))

    for protocol in (2, 4, 5):
        with pytest.raises(NotABundleError):
            TritonBundler(place.there, strict=True).read_and_emit(pickle.dumps(Bomb(), protocol=protocol))
    assert not (tmp_path / "pwned").exists()


# --- collect ---------------------------------------------------------------------------------------------------------


def test_damaged_kernel_is_left_out_with_one_warning(place: Place, warnings: Callable[[], list[str]]) -> None:
    # The loss: a partial kernel in a blob, which every host that hits then has.
    (place.cache / "0" / place.keys[0] / "add.cubin").unlink()
    (place.cache / "0" / place.keys[1] / "__grp__add.json").unlink()
    made = TritonBundler(place.cache)
    for _ in range(2):
        made.begin_compile()
        for key in [*place.keys, "never written"]:
            made.put(key)
        blob = made.collect()
        assert blob is not None and keys_in(blob) == [place.keys[2]]
    assert len(warnings()) == 3 and all("left out of the bundle" in warning for warning in warnings())
    assert made.stats()["kernels_skipped"] == 6 and made.stats()["kernels_collected"] == 2


def test_compile_with_no_whole_kernel_gives_no_blob(place: Place, warnings: Callable[[], list[str]]) -> None:
    made = TritonBundler(place.cache)
    made.begin_compile()
    made.put("never written")
    assert made.collect() is None
    assert made.stats()["kernels_skipped"] == 1 and made.stats()["collect_failures"] == 0
    assert len(warnings()) == 1


def test_kernel_that_changes_while_it_is_packed_is_left_out_in_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a compile that never ends, or a blob with bytes that no digest fits.
    real, calls = scope.write_collected, []

    def changing(out: Any, roots: Any, collected: Any, **options: Any) -> Any:
        calls.append([draft.path for draft in collected.drafts])
        if f"0/{place.keys[0]}" in calls[-1]:
            raise ChangedError("triton", f"0/{place.keys[0]}")
        return real(out, roots, collected, **options)

    monkeypatch.setattr(scope, "write_collected", changing)
    blob = place.collected()
    assert sorted(keys_in(blob)) == sorted(place.keys[1:])
    assert [len(paths) for paths in calls] == [3, 3, 2]


@pytest.mark.parametrize("strict", [False, True])
def test_collect_without_room_for_a_temporary_file_is_a_warning(
    strict: bool, place: Place, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: /tmp is full, and OSError comes out of a compile.
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(v1, "_SPOOL_SIZE", 1)  # a blob of many kernels does not fit into memory
    made = TritonBundler(place.cache, strict=strict)
    made.begin_compile()
    made.put(place.keys[0])
    if strict:
        with pytest.raises(LocalIOError):
            made.collect()
        return
    assert made.collect() is None
    assert len(warnings()) == 1 and "collect failed" in warnings()[0] and "ENOSPC" in warnings()[0]
    assert made.stats()["collect_failures"] == 1
    made.begin_compile()
    assert made.collect() is None


# --- emit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lone text", "stray", "no group", "no binary"])
def test_partial_directory_is_repaired(how: str, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    # The loss: any directory that is not empty is taken for the kernel.
    blob = place.collected()
    there = TritonBundler(place.there, strict=True)
    there.read_and_emit(blob)
    kernel = place.there / "0" / place.keys[0]
    keep = {"lone text": {"add.ttir"}, "stray": set()}.get(how)
    for path in kernel.iterdir():
        gone = (
            path.name not in keep
            if keep is not None
            else path.name == {"no group": "__grp__add.json"}.get(how, "add.cubin")
        )
        if gone:
            path.unlink()
    if how == "stray":
        (kernel / ".nfs0001").write_bytes(b"open")
    with caplog.at_level("WARNING", "bundler"):
        report = there.read_and_emit(blob)
    assert report is not None and report.unchanged == 2 and report.repaired + report.restored == 1
    assert len(caplog.messages) == report.repaired and all("found damaged" in text for text in caplog.messages)
    (kernel / ".nfs0001").unlink(missing_ok=True)
    assert place.is_whole()


def test_hit_on_what_is_there_writes_nothing(place: Place) -> None:
    # The loss: every start of every rank writes every kernel again.
    blob = place.collected()
    there = TritonBundler(place.there, strict=True)
    there.read_and_emit(blob)
    with crash_points() as calls:
        report = there.read_and_emit(blob)
    assert report is not None and (report.unchanged, report.files_written) == (3, 0) and calls == []
    assert there.stats()["kernels_unchanged"] == 3 and there.stats()["bytes_emitted"] > 0


def test_different_build_is_kept(place: Place) -> None:
    blob = place.collected()
    trees.synthetic_kernel(place.there / "0", "add", key=place.keys[0], seed=77)
    before = trees.snapshot(place.there)
    there = TritonBundler(place.there, strict=True)
    report = there.read_and_emit(blob)
    assert report is not None and (report.kept, report.restored) == (1, 2) and there.stats()["kernels_kept"] == 1
    assert {path: data for path, data in trees.snapshot(place.there).items() if path in before} == before


def test_emit_never_syncs(place: Place) -> None:
    # The loss: seconds of fsync on a network disk, inside of every compile; damage is repaired on the next hit.
    with crash_points() as calls:
        TritonBundler(place.there, strict=True).read_and_emit(place.collected())
    assert calls and "sync" not in {call.point for call in calls}


@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EROFS", "EDQUOT", "EACCES"])
def test_failing_disk_in_emit_costs_a_compile_and_one_warning(
    code: str, place: Place, warnings: Callable[[], list[str]]
) -> None:
    # The loss: the cache directory is full, and so training stops.
    blob = place.collected()
    with crash_points() as calls:
        TritonBundler(place.there).read_and_emit(blob)
    for at in range(0, len(calls), 5):
        shutil.rmtree(place.there)
        there = TritonBundler(place.there)
        with crash_points(at, error=getattr(errno, code)):
            assert there.read_and_emit(blob) is None
        assert there.stats()["emit_failures"] == 1
        judge(place.there, place.whole())
        assert there.read_and_emit(blob) is not None and place.is_whole()
    assert all(code in warning and "emit failed" in warning for warning in warnings())


def test_root_that_cannot_be_made_is_a_warning(place: Place, warnings: Callable[[], list[str]]) -> None:
    place.there.write_bytes(b"a file")
    assert TritonBundler(place.there).read_and_emit(place.collected()) is None
    assert len(warnings()) == 1 and str(place.there) in warnings()[0]


def test_warning_of_the_restore_is_logged_once(
    place: Place, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*arguments: object, **options: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    there = TritonBundler(place.there, strict=True)
    blob = place.collected()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        assert there.read_and_emit(blob) is not None
    assert len(warnings()) == 1 and "can be deleted" in warnings()[0]


def test_blob_of_pack_is_emitted_too(place: Place, tmp_path: Path) -> None:
    bundler.pack([f"triton={place.cache}"], tmp_path / "b")
    report = TritonBundler(place.there, strict=True).read_and_emit((tmp_path / "b").read_bytes())
    assert report is not None and report.restored == 4


# --- threads ---------------------------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(number)`` in threads that start at one moment; the first failure is raised."""
    barrier, failures = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            barrier.wait(10)
            work(number)
        except BaseException as error:  # noqa: BLE001  # raised below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_that_compile_at_once_each_get_their_own_kernels(place: Place) -> None:
    # The loss: kernels of one graph in the blob of another, and missing from their own.
    made = TritonBundler(place.cache, strict=True)
    blobs: dict[tuple[int, int], list[str]] = {}

    def compile_some(number: int) -> None:
        for turn in range(5):
            made.begin_compile()
            made.put(place.keys[(number + turn) % 3])
            blob = made.collect()
            assert blob is not None
            blobs[number, turn] = keys_in(blob)

    in_threads(8, compile_some)
    assert blobs == {(number, turn): [place.keys[(number + turn) % 3]] for number in range(8) for turn in range(5)}
    stats = made.stats()
    assert (stats["kernels_put"], stats["kernels_collected"], stats["scopes_abandoned"]) == (40, 40, 0)


def test_put_of_a_thread_without_a_scope_goes_to_every_open_one(place: Place) -> None:
    # The loss: a compile worker's callback comes on a thread of its own, and its kernel is in no blob.
    made = TritonBundler(place.cache, strict=True)
    opened, put = threading.Barrier(3), threading.Barrier(3)
    blobs: list[list[str]] = []

    def compile_one(number: int) -> None:
        if number == 2:
            opened.wait(10)
            made.put(place.keys[2])
            made.put_winner(place.keys[2])
            put.wait(10)
            return
        made.begin_compile()
        made.put(place.keys[number])
        opened.wait(10)
        put.wait(10)
        blob = made.collect()
        assert blob is not None
        blobs.append(sorted(keys_in(blob)))

    in_threads(3, compile_one)
    # The first kernel and the third are configurations of one module, so the winner is all that is left of them.
    assert sorted(blobs) == sorted([[place.keys[2]], sorted([place.keys[1], place.keys[2]])])


def test_threads_that_hit_at_once_all_find_their_kernels(place: Place) -> None:
    # The loss: a loader thread and a compile thread that race on one directory.
    blob = place.collected()
    there = TritonBundler(place.there, strict=True)
    wanted = place.whole()["whole"]

    def hit(number: int) -> None:
        for _ in range(5):
            report = there.read_and_emit(blob)
            assert report is not None and report.restored + report.unchanged == 3
            for path, data in wanted.items():
                assert (place.there / path).read_bytes() == data

    in_threads(8, hit)
    assert place.is_whole()
    stats = there.stats()
    assert stats["kernels_emitted"] + stats["kernels_unchanged"] == 120 and stats["kernels_emitted"] >= 3


def test_stats_are_numbers_that_start_at_nothing(place: Place) -> None:
    stats = TritonBundler(place.cache).stats()
    assert set(stats.values()) == {0} and all(isinstance(name, str) for name in stats)
    json.dumps(stats)


def test_nothing_stored_is_a_miss(tmp_path: Path) -> None:
    assert TritonBundler(tmp_path).read_and_emit(None) is None
