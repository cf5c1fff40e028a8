"""Laws of the host binaries beside kernels: they travel with the kernels, appear where they run, and cost no kernel."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import struct
import sysconfig
import threading
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest

from bundler import TritonBundler, host, packing, scope
from bundler.collect import Collected, Options, collect_files, collect_kernels
from bundler.errors import LocalIOError
from bundler.formats import open_bundle
from bundler.hit import HitReport
from bundler.host_binaries import unusable
from bundler.integrations import blob as blob_of_torch
from bundler.integrations import observe
from bundler.kinds import KINDS
from bundler.model import Profile, Unit
from bundler.packing import write_collected
from bundler.reading import opened
from bundler.ready import is_ready
from bundler.roots import Root
from bundler.testing import artifacts, trees
from bundler.testing.faults import crash_points

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors")

SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
KEY, HEX_KEY = "S" * 52, "5a" * 32
STUB = f"__triton_launcher{SUFFIX}"
HELPER_KEY, HELPER = "H" * 52, f"cuda_utils{SUFFIX}"


class Place:
    """The directory of a device with two kernels and one host binary, and another host's empty one."""

    def __init__(self, base: Path) -> None:
        self.here, self.there = base / "here", base / "there"
        self.keys = [trees.synthetic_kernel(self.here / "0", "add", seed=seed).name for seed in range(2)]
        self.stub = self.write(f"0/{KEY}/{STUB}")

    def write(self, path: str, data: bytes = b"") -> Path:
        """Write a file below ``here``: a host binary for x86-64 unless told."""
        file = self.here / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data or artifacts.host_binary())
        return file

    def bundler_of(self, base: Path, **options: bool) -> TritonBundler:
        return TritonBundler(base, directories=lambda device: str(base / str(device)), **options)

    def collected(self, *files: Path, made: TritonBundler | None = None) -> bytes:
        """The blob of a compile that put both kernels, and found ``files``."""
        made = made or self.bundler_of(self.here, strict=True)
        made.begin_compile()
        for key in self.keys:
            made.put(key, compile_seconds=2.0)
        for file in files:
            made.put_host_binary(file)
        blob = made.collect()
        assert blob is not None
        return blob

    def hit(self, blob: bytes, made: TritonBundler | None = None) -> HitReport:
        report = (made or self.bundler_of(self.there, strict=True)).read_and_emit(blob)
        assert report is not None
        return report


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """On a host that the synthetic host binaries run on."""
    monkeypatch.setattr(host, "_machine", lambda: "x86_64")
    monkeypatch.setattr(host, "_libc", lambda: "glibc 2.36")
    return Place(tmp_path)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """``warnings()``: what was logged as a warning so far."""
    caplog.set_level(logging.DEBUG, logger="bundler")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def paths_in(blob: bytes) -> dict[str, str]:
    """Return the unit of each entry of a blob, by ``root/path``."""
    with opened(blob) as reader:
        return {str(entry): entry.unit.value for entry in reader.index.entries}


# --- collect ---------------------------------------------------------------------------------------------------------


def test_host_binary_travels_with_the_kernels_and_comes_back_before_they_are_loaded(place: Place) -> None:
    # The loss: a call of gcc for each signature on every warm start; a failed start where there is no compiler.
    made = place.bundler_of(place.here, strict=True)
    blob = place.collected(place.stub, made=made)
    assert paths_in(blob)[f"0/{KEY}/{STUB}"] == "host_binary" and len(paths_in(blob)) == 3
    assert (made.stats()["kernels_collected"], made.stats()["host_binaries_collected"]) == (2, 1)
    there = place.bundler_of(place.there, strict=True)
    report = place.hit(blob, there)
    assert (place.there / "0" / KEY / STUB).read_bytes() == place.stub.read_bytes()
    assert (report.restored, report.host_binaries.restored) == (2, 1)
    stats = there.stats()
    assert (stats["kernels_emitted"], stats["host_binaries_emitted"]) == (2, 1)
    assert stats["bytes_emitted"] == report.bytes_written + place.stub.stat().st_size


def test_a_key_in_hex_is_a_key_too(place: Place) -> None:
    blob = place.collected(place.write(f"0/{HEX_KEY}/{STUB}"))
    assert f"0/{HEX_KEY}/{STUB}" in paths_in(blob)
    place.hit(blob)
    assert (place.there / "0" / HEX_KEY / STUB).is_file()


@pytest.mark.parametrize(
    "path", [f"1/{KEY}/{STUB}", f"{KEY}/{STUB}", f"0/{STUB}", f"0/x/{STUB}", f"0/{KEY}/x/{STUB}", f"0/{KEY}0/{STUB}"]
)
def test_what_does_not_lie_in_the_directory_of_a_device_of_the_compile_is_not_taken(place: Place, path: str) -> None:
    # The loss: native code of some other program, or of the user's own directory, in every FX graph entry.
    if path == f"0/{STUB}":
        shutil.rmtree(place.stub.parent)
    blob = place.collected(place.write(path))
    assert set(paths_in(blob).values()) == {"kernel"}


def test_root_without_devices_has_its_host_binaries_beside_its_kernels(place: Place, tmp_path: Path) -> None:
    made = TritonBundler(place.here, strict=True)
    elsewhere = place.write(f"1/{KEY}/{STUB}")
    blob = place.collected(place.stub, elsewhere, made=made)
    assert [path for path, unit in paths_in(blob).items() if unit == "host_binary"] == [f"triton/0/{KEY}/{STUB}"]
    assert TritonBundler(place.there, strict=True).read_and_emit(blob).host_binaries.restored == 1  # type: ignore[union-attr]
    assert (place.there / "0" / KEY / STUB).is_file()


def test_host_binary_of_a_directory_that_devices_share_goes_to_each(place: Place) -> None:
    # The loss: TRITON_CACHE_DIR was set when the blob was made, and is not where it is used: device 1 has no stub.
    made = TritonBundler(place.here, directories=lambda device: str(place.here / "0"), strict=True)
    made.begin_compile()
    made.put(place.keys[0], device=0)
    made.put(place.keys[1], device=1)
    made.put_host_binary(place.stub)
    blob = made.collect()
    assert blob is not None
    assert place.hit(blob).host_binaries.restored == 2
    assert (place.there / "0" / KEY / STUB).is_file() and (place.there / "1" / KEY / STUB).is_file()


def test_losers_of_autotuning_are_left_out_and_the_host_binary_stays(place: Place) -> None:
    made = place.bundler_of(place.here, strict=True)
    made.begin_compile()
    for key in place.keys:
        made.put(key)
    made.put_winner(place.keys[1])
    made.put_host_binary(place.stub)
    blob = made.collect()
    assert blob is not None and set(paths_in(blob)) == {f"0/{place.keys[1]}", f"0/{KEY}/{STUB}"}


@pytest.mark.parametrize(
    ("how", "warned"), [("cut", True), ("empty", True), ("NULs", True), ("gone", True), ("unknown", False)]
)
def test_damaged_or_foreign_host_binary_is_left_out_and_the_kernels_are_not(
    place: Place, warnings: Callable[[], list[str]], how: str, warned: bool
) -> None:
    # The loss: one broken stub in every host's cache; or all kernels of a graph, for the sake of one stub.
    if how == "unknown":  # no ELF by its name: nothing tells what it needs
        stub = place.write(f"0/{KEY}/module.pyd", b"MZ and more")
    else:
        whole = place.stub.read_bytes()
        place.stub.write_bytes({"cut": whole[: len(whole) // 2], "NULs": bytes(len(whole))}.get(how, b""))
        stub = place.stub
        if how == "gone":
            stub.unlink()
    made = place.bundler_of(place.here)
    blob = place.collected(stub, made=made)
    assert set(paths_in(blob).values()) == {"kernel"} and len(paths_in(blob)) == 2
    stats = made.stats()
    assert (stats["host_binaries_collected"], stats["host_binaries_skipped"]) == (0, 1)
    assert (stats["kernels_collected"], stats["kernels_skipped"], stats["collect_failures"]) == (2, 0, 0)
    assert len(warnings()) == warned and all(stub.name in warning for warning in warnings())


def test_host_binary_of_a_name_that_no_bundle_holds_costs_no_kernel(
    place: Place, warnings: Callable[[], list[str]]
) -> None:
    # The loss: all kernels of a graph, since the index of their blob is refused.
    made = place.bundler_of(place.here)
    blob = place.collected(place.write(f"0/{HEX_KEY}/\udcff{SUFFIX}"), place.stub, made=made)
    assert len(paths_in(blob)) == 3 and made.stats()["host_binaries_skipped"] == 1
    assert len(warnings()) == 1


@pytest.mark.parametrize("profile", ["full", "runtime"])
def test_host_binary_in_the_directory_of_a_kernel_costs_no_kernel(place: Place, profile: str) -> None:
    # The loss: all kernels of a graph, since a blob that holds one file twice is refused.
    stub = place.write(f"0/{place.keys[0]}/{STUB}")
    made = TritonBundler(place.here, directories=lambda device: str(place.here / str(device)), profile=profile)
    place.hit(place.collected(stub, place.stub, made=made))
    stats = made.stats()
    assert (stats["kernels_collected"], stats["collect_failures"], stats["host_binaries_skipped"]) == (2, 0, 0)
    assert (place.there / "0" / place.keys[0] / STUB).read_bytes() == stub.read_bytes()
    assert (place.there / "0" / KEY / STUB).is_file()


def test_host_binary_without_one_whole_kernel_is_no_blob(place: Place) -> None:
    # The loss: an entry that says that it restores something, and launches nothing.
    for key in place.keys:
        (place.here / "0" / key / "add.cubin").unlink()
    made = place.bundler_of(place.here)
    made.begin_compile()
    made.put(place.keys[0])
    made.put_host_binary(place.stub)
    assert made.collect() is None
    assert (made.stats()["kernels_skipped"], made.stats()["host_binaries_collected"]) == (1, 0)


def test_blob_without_host_binaries_is_that_of_its_kernels_alone(place: Place) -> None:
    # The loss: a host that heard of a file somewhere makes another digest than one that did not.
    collected, root = Collected(), Root("0", KINDS["triton"], str(place.here / "0"))
    collect_kernels(root, place.keys, Options(), collected)
    out = io.BytesIO()
    write_collected(out, [root], collected, profile=Profile.FULL, level=1, facts={"compile_milliseconds": 4000})
    assert place.collected() == place.collected(place.here / "elsewhere.so") == out.getvalue()


@pytest.mark.parametrize(("isa", "runs"), [((), True), (("avx2",), True), (("avx2", "amx_tile"), False)])
def test_instruction_sets_count_where_a_bundle_records_them(
    isa: tuple[str, ...], runs: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: an illegal instruction, which ends the process.
    monkeypatch.setattr(host, "_cpu_isa", lambda: ("avx2", "fma"))
    with opened(place.collected(place.stub)) as reader:
        entry = next(entry for entry in reader.index.entries if entry.unit is Unit.HOST_BINARY)
    reason = unusable(entry, isa, by_device=True)
    assert (reason is None) is runs and (runs or "amx_tile" in str(reason))


def test_threads_that_compile_at_once_each_get_their_own_host_binaries(place: Place) -> None:
    # The loss: a graph whose launcher stub is in the entry of another graph.
    made = place.bundler_of(place.here, strict=True)
    stubs = [place.write(f"0/{letter * 52}/{STUB}", artifacts.host_binary(ord(letter))) for letter in "AB"]
    barrier = threading.Barrier(2, timeout=20)
    blobs: dict[int, bytes | None] = {}

    def work(number: int) -> None:
        made.begin_compile()
        barrier.wait()
        made.put(place.keys[number])
        made.put_host_binary(stubs[number])
        barrier.wait()
        blobs[number] = made.collect()

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, letter in enumerate("AB"):
        assert set(paths_in(blobs[number] or b"")) == {f"0/{place.keys[number]}", f"0/{letter * 52}/{STUB}"}


# --- helpers of Triton's driver --------------------------------------------------------------------------------------


def test_helper_of_another_cache_travels_beside_the_kernels(place: Place) -> None:
    # The loss: a call of gcc on every warm start, 0.3 s: Triton asked its driver before torch had set the cache.
    helper = place.write(f"home/cache/{HELPER_KEY}/{HELPER}")
    made = place.bundler_of(place.here, strict=True)
    blob = place.collected(helper, made=made)
    assert paths_in(blob)[f"0/{HELPER_KEY}/{HELPER}"] == "host_binary" and len(paths_in(blob)) == 3
    assert made.stats()["host_binaries_collected"] == 1
    assert place.hit(blob).host_binaries.restored == 1
    assert (place.there / "0" / HELPER_KEY / HELPER).read_bytes() == helper.read_bytes()


def test_helper_goes_beside_the_kernels_of_a_root_without_devices(place: Place) -> None:
    for key in place.keys:
        (place.here / "triton" / "0").mkdir(parents=True, exist_ok=True)
        (place.here / "0" / key).rename(place.here / "triton" / "0" / key)
    helper = place.write(f"home/cache/{HELPER_KEY}/{HELPER}")
    blob = place.collected(helper, made=TritonBundler(place.here, strict=True))
    assert paths_in(blob)[f"triton/triton/0/{HELPER_KEY}/{HELPER}"] == "host_binary"


def test_helper_goes_beside_the_kernels_of_each_device(place: Place) -> None:
    # The loss: the helper is where device 0 is looked for, and the process uses device 1.
    other = trees.synthetic_kernel(place.here / "1", "add", seed=3).name
    made = place.bundler_of(place.here, strict=True)
    made.begin_compile()
    made.put(place.keys[0], device=0)
    made.put(other, device=1)
    made.put_host_binary(place.write(f"home/cache/{HELPER_KEY}/{HELPER}"))
    found = paths_in(made.collect() or b"")
    assert {f"0/{HELPER_KEY}/{HELPER}", f"1/{HELPER_KEY}/{HELPER}"} <= set(found)


def test_helper_is_in_the_blob_of_every_compile_of_the_process(place: Place) -> None:
    # The loss: the entry that a warm start happens to hit first has no helper. Triton asks for it once, at any time.
    helper = place.write(f"home/cache/{HELPER_KEY}/{HELPER}")
    made = place.bundler_of(place.here, strict=True)
    made.put_host_binary(helper)
    assert [len(paths_in(place.collected(made=made))) for _ in range(2)] == [3, 3]


def test_helper_that_lies_in_two_caches_is_stored_once(place: Place) -> None:
    # The loss: all kernels of a graph, since a blob that holds one file twice is refused.
    own, other = place.write(f"0/{HELPER_KEY}/{HELPER}"), place.write(f"home/cache/{HELPER_KEY}/{HELPER}")
    for files in ((own, other), (other, own)):
        made = place.bundler_of(place.here, strict=True)
        assert len(paths_in(place.collected(*files, made=made))) == 3
        assert (made.stats()["host_binaries_collected"], made.stats()["host_binaries_skipped"]) == (1, 0)


def test_helper_travels_with_kernels_that_torch_launches_too(place: Place) -> None:
    # The loss: a call of gcc in a start whose first hit is of such a graph: torch asks the driver in every start.
    made = place.bundler_of(place.here, strict=True)
    made.begin_compile()
    for key in place.keys:
        made.put(key)
        made.require(key)
    made.put_host_binary(place.write(f"home/cache/{HELPER_KEY}/{HELPER}"))
    assert len(paths_in(made.collect() or b"")) == 3


def test_launcher_stub_of_another_cache_is_no_helper(place: Place) -> None:
    # The loss: the stubs of every other program of this user, in every entry.
    names = [STUB, f"utils{SUFFIX}", f"cuda_utils_x{SUFFIX}", "cuda_utils.so", "cuda_utils.cpython-27-x86_64.so"]
    files = [place.write(f"home/cache/{HELPER_KEY}/{name}") for name in names]
    files.append(place.write(f"home/cache/{HELPER}"))
    assert set(paths_in(place.collected(*files)).values()) == {"kernel"}


def test_helper_that_is_gone_is_no_loss_to_speak_of(place: Place, warnings: Callable[[], list[str]]) -> None:
    # The loss: a warning in every compile of a process whose caches were cleaned; Triton makes it again.
    helper = place.write(f"home/cache/{HELPER_KEY}/{HELPER}")
    made = place.bundler_of(place.here)
    made.put_host_binary(helper)
    helper.unlink()
    assert len(paths_in(place.collected(made=made))) == 2 and warnings() == []
    helper.mkdir()
    assert len(paths_in(place.collected(made=made))) == 2 and warnings() == []


@pytest.mark.parametrize("how", ["cut", "empty", "NULs"])
def test_damaged_helper_of_another_cache_costs_one_warning_and_no_kernel(
    place: Place, warnings: Callable[[], list[str]], how: str
) -> None:
    # The loss: all kernels of a graph; or one broken helper in every host's cache.
    helper = place.write(f"home/cache/{HELPER_KEY}/{HELPER}")
    whole = helper.read_bytes()
    helper.write_bytes({"cut": whole[: len(whole) // 2], "NULs": bytes(len(whole))}.get(how, b""))
    made = place.bundler_of(place.here)
    made.put_host_binary(helper)
    for _ in range(2):
        assert set(paths_in(place.collected(made=made)).values()) == {"kernel"}
    assert len(warnings()) == 1 and HELPER in warnings()[0]
    assert (made.stats()["kernels_collected"], made.stats()["collect_failures"]) == (4, 0)


def test_helper_that_changes_while_it_is_packed_is_left_out_in_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a compile that never ends, because another process replaces its helper again and again.
    helper = place.write(f"home/cache/{HELPER_KEY}/{HELPER}")
    monkeypatch.setattr(Options, "__init__", partialmethod(Options.__init__, keep_bytes=0))  # it is read a second time
    real, calls = scope.write_collected, []

    def changing(out: Any, roots: Any, collected: Any, **options: Any) -> Any:
        calls.append(len(collected.drafts))
        helper.write_bytes(artifacts.host_binary(seed=len(calls)))
        return real(out, roots, collected, **options)

    monkeypatch.setattr(scope, "write_collected", changing)
    made = place.bundler_of(place.here, strict=True)
    made.put_host_binary(helper)
    assert set(paths_in(place.collected(made=made)).values()) == {"kernel"} and calls == [3, 3, 2]


class Fresh:
    """A host with nothing: where a blob with a helper and a stub goes, and where Triton looks at first."""

    def __init__(self, place: Place) -> None:
        self.place, self.cache = place, place.there / "home" / ".triton" / "cache"
        self.helper = self.cache / HELPER_KEY / HELPER
        self.beside = place.there / "0" / HELPER_KEY / HELPER
        self.blob = place.collected(place.write(f"home/cache/{HELPER_KEY}/{HELPER}"), place.stub)

    def bundler(self, cache: Path | None, *, strict: bool = True) -> TritonBundler:
        return TritonBundler(
            self.place.there,
            directories=lambda device: str(self.place.there / str(device)),
            triton_cache=lambda: str(cache) if cache else None,
            strict=strict,
        )


@pytest.fixture
def fresh(place: Place) -> Fresh:
    return Fresh(place)


def test_helper_appears_where_triton_looks_at_first_too(fresh: Fresh) -> None:
    # The loss: on each new host, a call of gcc in the middle of the first hit; where there is no gcc, the start.
    made = fresh.bundler(fresh.cache)
    report = fresh.place.hit(fresh.blob, made)
    assert fresh.helper.read_bytes() == fresh.beside.read_bytes() != b""
    assert trees.snapshot(fresh.cache).keys() == {f"{HELPER_KEY}/{HELPER}"}
    assert (report.restored, report.host_binaries.restored) == (2, 3)
    again = fresh.place.hit(fresh.blob, made)
    assert (again.host_binaries.unchanged, again.all_bytes_written) == (3, 0)


def test_helper_stays_out_of_a_cache_that_needs_none(fresh: Fresh) -> None:
    # The loss: a file in the cache of a user whose Triton has its own; or the same file twice in one emission.
    assert fresh.place.hit(fresh.blob, fresh.bundler(None)).host_binaries.restored == 2
    assert not fresh.cache.exists()
    shutil.rmtree(fresh.place.there)
    assert fresh.place.hit(fresh.blob, fresh.bundler(fresh.place.there / "0")).host_binaries.restored == 2


def test_different_helper_of_this_host_is_kept_and_a_damaged_one_replaced(fresh: Fresh) -> None:
    fresh.helper.parent.mkdir(parents=True)
    other = artifacts.host_binary(seed=7)
    fresh.helper.write_bytes(other)
    report = fresh.place.hit(fresh.blob, fresh.bundler(fresh.cache))
    assert fresh.helper.read_bytes() == other and report.host_binaries.kept == 1
    fresh.helper.write_bytes(other[:100])
    report = fresh.place.hit(fresh.blob, fresh.bundler(fresh.cache))
    assert fresh.helper.read_bytes() == fresh.beside.read_bytes() and report.host_binaries.repaired == 1


def test_cache_of_triton_that_cannot_be_written_costs_nothing_else(
    fresh: Fresh, warnings: Callable[[], list[str]]
) -> None:
    # The loss: kernels and stubs, because the home directory is a file.
    fresh.cache.parent.parent.mkdir(parents=True)
    fresh.cache.parent.write_bytes(b"")
    report = fresh.place.hit(fresh.blob, fresh.bundler(fresh.cache, strict=False))
    assert fresh.beside.is_file() and (fresh.place.there / "0" / KEY / STUB).is_file()
    assert (report.restored, report.host_binaries.restored, report.host_binaries_failed) == (2, 2, 1)
    assert len(warnings()) == 1 and "host binaries are compiled instead" in warnings()[0]


def test_flipped_byte_and_no_helper_appears_anywhere(fresh: Fresh) -> None:
    for at in range(0, len(fresh.blob), 97):
        damaged = bytearray(fresh.blob)
        damaged[at] ^= 0xFF
        assert fresh.bundler(fresh.cache, strict=False).read_and_emit(bytes(damaged)) is None
        assert not fresh.place.there.exists() or trees.snapshot(fresh.place.there) == {}


def test_helper_of_another_python_is_not_put_where_triton_looks(place: Place) -> None:
    name = "cuda_utils.cpython-27-x86_64-linux-gnu.so"
    blob = place.collected(place.write(f"0/{HELPER_KEY}/{name}"))
    fresh = Fresh(place)
    assert place.hit(blob, fresh.bundler(fresh.cache)).host_binaries_unusable == 1
    assert not fresh.cache.exists()


# --- what runs here --------------------------------------------------------------------------------------------------


def _for_glibc(version: str) -> bytes:
    strings = artifacts.Section(".dynstr", f"\0GLIBC_{version}\0".encode(), artifacts.SHF_ALLOC)
    data = bytearray(artifacts.elf([strings], machine=artifacts.EM_X86_64, kind=artifacts.ET_DYN))
    (sections,) = struct.unpack_from("<Q", data, 40)  # e_shoff
    struct.pack_into("<I", data, sections + 64 + 4, 3)  # sh_type of the first section: SHT_STRTAB
    return bytes(data)


def _for_arm() -> bytes:
    data = bytearray(artifacts.host_binary())
    struct.pack_into("<H", data, 18, 183)  # e_machine: EM_AARCH64
    return bytes(data)


OF_NO_USE = {
    "newer libc": (STUB, _for_glibc("99.0")),
    "other machine": (STUB, _for_arm()),
    "other Python": ("__triton_launcher.cpython-27-x86_64-linux-gnu.so", artifacts.host_binary()),
    "no Python": ("__triton_launcher.so", artifacts.host_binary()),
}


@pytest.mark.parametrize("why", OF_NO_USE)
def test_host_binary_that_is_of_no_use_here_is_left_out_without_a_warning(
    place: Place, warnings: Callable[[], list[str]], why: str
) -> None:
    # The loss: an ImportError, or an illegal instruction, in place of a call of gcc.
    name, data = OF_NO_USE[why]
    blob = place.collected(place.write(f"0/{HEX_KEY}/{name}", data), place.stub)
    there = place.bundler_of(place.there)
    report = place.hit(blob, there)
    assert not (place.there / "0" / HEX_KEY).exists() and (place.there / "0" / KEY / STUB).is_file()
    assert (report.restored, report.host_binaries.restored, report.host_binaries_unusable) == (2, 1, 1)
    assert there.stats()["host_binaries_unusable"] == 1 and there.stats()["emit_failures"] == 0
    assert warnings() == []


def test_host_that_does_not_know_its_libc_restores_no_host_binary(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = place.collected(place.write(f"0/{KEY}/{STUB}", _for_glibc("2.36")))
    with monkeypatch.context() as patch:
        patch.setattr(host, "_libc", lambda: "")
        assert place.hit(blob).host_binaries_unusable == 1
    assert place.hit(blob).host_binaries.restored == 1


def _crafted(place: Place, path: str, *, needs: tuple[str, ...]) -> bytes:
    """Return a blob that ``collect`` would not make, with one host binary at ``path``."""
    root = Root("0", KINDS["triton"], str(place.here / "0"))
    collected = Collected()
    collect_kernels(root, place.keys, Options(), collected)
    collect_files(root, [path], Options(), collected)
    assert collected.drafts[-1].unit is Unit.HOST_BINARY
    collected.drafts[-1].needs = needs
    out = io.BytesIO()
    write_collected(out, [root], collected, profile=Profile.FULL, level=1, facts={})
    return out.getvalue()


@pytest.mark.parametrize("path", [f"lib{SUFFIX}", f"x/lib{SUFFIX}", f"0/{KEY}/lib{SUFFIX}", f"{KEY}/x/lib{SUFFIX}"])
def test_host_binary_at_another_place_than_triton_s_is_refused(place: Place, path: str) -> None:
    # The loss: a blob that plants native code where another program loads it.
    place.write(f"0/{path}")
    report = place.hit(_crafted(place, path, needs=("machine:x86_64",)))
    assert (report.restored, report.host_binaries_unusable) == (2, 1)
    assert not (place.there / "0" / path).exists()


def test_host_binary_that_says_nothing_of_its_needs_is_refused(place: Place) -> None:
    report = place.hit(_crafted(place, f"{KEY}/{STUB}", needs=()))
    assert (report.restored, report.host_binaries_unusable) == (2, 1)
    assert not (place.there / "0" / KEY).exists()


def test_torch_without_the_hook_is_given_the_kernels_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: torch takes KEY/NAME for the key of a kernel, and writes a stub for any host into a directory of it.
    given: list[str] = []
    monkeypatch.setattr(blob_of_torch, "_kernel", lambda entry, contents: given.append(entry.path) or entry)
    assert len(blob_of_torch.kernel_artifacts(place.collected(place.stub))) == 2
    assert given == sorted(place.keys)


# --- emit ------------------------------------------------------------------------------------------------------------


def test_host_binary_that_is_there_is_compared_and_left_alone(place: Place) -> None:
    # The loss: every start of every rank writes the stub again, under the nose of who has it mapped.
    blob = place.collected(place.stub)
    there = place.bundler_of(place.there, strict=True)
    place.hit(blob, there)
    installed = place.there / "0" / KEY / STUB
    os.utime(installed, ns=(1, 1))
    with crash_points() as calls:
        report = place.hit(blob, there)
    assert calls == [] and installed.stat().st_mtime_ns == 1
    assert (report.unchanged, report.host_binaries.unchanged, report.host_binaries.files_written) == (2, 1, 0)
    assert (there.stats()["kernels_unchanged"], there.stats()["host_binaries_unchanged"]) == (2, 1)


def test_host_binary_is_ready_when_it_has_the_digest_and_not_before(place: Place) -> None:
    # The loss: each start opens the cache for a restore, though everything is there.
    with opened(place.collected(place.stub)) as reader:
        entry = next(entry for entry in reader.index.entries if entry.unit is Unit.HOST_BINARY)

        def ready(base: Path) -> bool:
            return is_ready(entry, reader.index.contents, str(base / "0"))

        assert ready(place.here) and not ready(place.there)
        place.write(f"0/{KEY}/{STUB}", artifacts.host_binary(seed=7))
        assert not ready(place.here)


@pytest.mark.parametrize("how", ["cut", "empty", "NULs"])
def test_damaged_host_binary_is_replaced_with_one_warning(
    place: Place, warnings: Callable[[], list[str]], how: str
) -> None:
    # The loss: Triton loads it, warns, and compiles it again, in each start of each process.
    blob = place.collected(place.stub)
    there = place.bundler_of(place.there)
    place.hit(blob, there)
    installed = place.there / "0" / KEY / STUB
    whole = installed.read_bytes()
    installed.write_bytes({"cut": whole[:100], "NULs": bytes(len(whole))}.get(how, b""))
    report = place.hit(blob, there)
    assert installed.read_bytes() == whole
    assert (report.unchanged, report.repaired, report.host_binaries.repaired) == (2, 0, 1)
    assert (there.stats()["kernels_repaired"], there.stats()["host_binaries_repaired"]) == (0, 1)
    assert len(warnings()) == 1 and warnings()[0].startswith("1 host binary in the cache found damaged")


def test_different_whole_host_binary_is_kept(place: Place, warnings: Callable[[], list[str]]) -> None:
    # The loss: the build of this host's own compiler is taken away.
    blob = place.collected(place.stub)
    other = place.there / "0" / KEY / STUB
    other.parent.mkdir(parents=True)
    other.write_bytes(artifacts.host_binary(seed=7))
    there = place.bundler_of(place.there)
    report = place.hit(blob, there)
    assert other.read_bytes() == artifacts.host_binary(seed=7)
    assert (report.restored, report.kept, report.host_binaries.kept) == (2, 0, 1)
    assert (there.stats()["kernels_kept"], there.stats()["host_binaries_kept"]) == (0, 1) and warnings() == []


def test_flipped_byte_anywhere_and_neither_kernel_nor_host_binary_appears(place: Place) -> None:
    # The loss: kernels of a blob that is known to be damaged; or a stub of one, which is loaded into this process.
    blob = place.collected(place.stub)
    for at in range(0, len(blob), 7):
        damaged = bytearray(blob)
        damaged[at] ^= 0xFF
        assert place.bundler_of(place.there).read_and_emit(bytes(damaged)) is None
        assert not place.there.exists() or trees.snapshot(place.there) == {}


def test_flipped_byte_of_the_host_binary_s_own_frame_is_found_before_a_kernel_appears(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As above, in a blob so large that the host binary is not in one frame with the kernels.
    monkeypatch.setattr(packing, "write", partial(packing.write, block_size=1024))
    blob = bytearray(place.collected(place.stub))
    reader = open_bundle(io.BytesIO(blob))
    frames: dict[Unit, set[int]] = {unit: set() for unit in Unit}
    for entry in reader.index.entries:
        frames[entry.unit] |= reader.frames_of({artifact.content for artifact in entry.artifacts})
    own = min(frames[Unit.HOST_BINARY] - frames[Unit.KERNEL])
    start = reader.header.payload_offset + sum(frame.stored_size for frame in reader.index.frames[:own])
    blob[start + reader.index.frames[own].stored_size // 2] ^= 0xFF
    assert place.bundler_of(place.there).read_and_emit(bytes(blob)) is None
    assert not place.there.exists() or trees.snapshot(place.there) == {}


def test_place_that_cannot_be_written_costs_the_host_binary_and_no_kernel(
    place: Place, warnings: Callable[[], list[str]]
) -> None:
    # The loss: every kernel of a graph is compiled, because something lies where one stub should.
    blob = place.collected(place.stub)
    (place.there / "0" / KEY / STUB).mkdir(parents=True)
    there = place.bundler_of(place.there)
    report = place.hit(blob, there)
    assert (report.restored, report.host_binaries.restored, report.host_binaries_failed) == (2, 0, 1)
    assert len(warnings()) == 1 and "host binaries are compiled instead" in warnings()[0]
    stats = there.stats()
    assert (stats["kernels_emitted"], stats["host_binaries_failed"], stats["emit_failures"]) == (2, 1, 0)
    with pytest.raises(LocalIOError):
        place.hit(blob)


def test_seconds_saved_are_those_of_kernels(place: Place) -> None:
    # The loss: a figure that counts a stub as a kernel.
    blob = place.collected(place.stub)
    there = place.bundler_of(place.there, strict=True)
    place.hit(blob, there)
    assert there.stats()["compile_seconds_saved"] == pytest.approx(4.0)
    shutil.rmtree(place.there / "0" / place.keys[0])
    (place.there / "0" / KEY / STUB).unlink()
    place.hit(blob, there)
    assert there.stats()["compile_seconds_saved"] == pytest.approx(4.0 + 2.0)


def test_summary_of_a_blob_counts_host_binaries_apart(place: Place) -> None:
    # The loss: torch's metadata and counters name kernels that are none.
    alone, both = place.collected(), place.collected(place.stub)
    summaries = []
    for blob in (alone, both):
        with opened(blob) as reader:
            summaries.append(observe.summarize(reader.index))
    assert summaries[0].host_binaries == 0 and summaries[1].host_binaries == 1
    assert (summaries[0].names, summaries[0].identities, summaries[0].files) == (
        summaries[1].names,
        summaries[1].identities,
        summaries[1].files,
    )


def test_stats_with_host_binaries_are_plain_numbers(place: Place) -> None:
    made = place.bundler_of(place.here)
    place.collected(place.stub, made=made)
    assert json.loads(json.dumps(made.stats()))["host_binaries_collected"] == 1
