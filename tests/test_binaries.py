"""Hearing of host binaries: Triton's calls go on as they came, and another Triton is left alone. No Triton here."""

from __future__ import annotations

import importlib
import logging
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bundler.integrations import binaries
from bundler.integrations.binaries import HostBinaryWatch

NAME = "cache_of_the_tests"
STUB = f"__triton_launcher{sysconfig.get_config_var('EXT_SUFFIX')}"

# As triton/runtime/cache.py has it, as far as its callers see.
TRITON = """
class FileCacheManager:
    files = {}

    def get_file(self, filename):
        return self.files.get(filename)

    def put(self, data, filename, binary=True):
        self.files[filename] = "/cache/" + filename
        return self.files[filename]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of what stands for Triton's module; it can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(binaries, "_MODULE", NAME)
    file = tmp_path / f"{NAME}.py"
    file.write_text(TRITON)
    yield file
    sys.modules.pop(NAME, None)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def watch(place: Path, told: list[str]) -> Iterator[HostBinaryWatch]:
    made = HostBinaryWatch(told.append)
    yield made
    made.stop()


def load() -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(NAME)


@pytest.mark.parametrize("imported", [True, False])
def test_a_stub_is_told_when_it_is_made_and_when_it_is_found(
    watch: HostBinaryWatch, told: list[str], imported: bool
) -> None:
    if imported:
        load()
    watch.start()
    cache = load().FileCacheManager()
    assert cache.get_file(STUB) is None and told == []
    assert cache.put(b"", STUB, binary=True) == f"/cache/{STUB}"
    assert told == [f"/cache/{STUB}"]
    assert cache.get_file(filename=STUB) == f"/cache/{STUB}"
    assert told == [f"/cache/{STUB}"] * 2


def test_every_other_file_is_triton_s_own_business(watch: HostBinaryWatch, told: list[str]) -> None:
    watch.start()
    cache = load().FileCacheManager()
    for name in ("add.cubin", "__grp__add.json", "launcher.so", f"{STUB}.txt", "launcher.cpython-27-x86_64.so"):
        cache.put(b"", name)
        assert cache.get_file(name) == f"/cache/{name}"
    assert told == []


def test_what_goes_wrong_with_us_is_not_triton_s(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The loss: a compile that ends with an exception of ours.
    def fail(path: str) -> None:
        raise RuntimeError("ours is broken")

    watch = HostBinaryWatch(fail)
    watch.start()
    with caplog.at_level(logging.DEBUG, "bundler"):
        assert load().FileCacheManager().put(b"", STUB) == f"/cache/{STUB}"
    assert [record.levelname for record in caplog.records] == ["DEBUG"] and "ours is broken" in caplog.text
    watch.stop()


def test_what_goes_wrong_with_triton_goes_through(watch: HostBinaryWatch, told: list[str]) -> None:
    watch.start()
    with pytest.raises(TypeError, match="filename"):
        load().FileCacheManager().get_file()
    assert told == []


def test_stopped_it_leaves_triton_as_it_was(watch: HostBinaryWatch, told: list[str]) -> None:
    cls = load().FileCacheManager
    before = dict(cls.__dict__)
    watch.start()
    assert cls.__dict__["get_file"] is not before["get_file"] and cls.__dict__["put"] is not before["put"]
    watch.stop()
    assert dict(cls.__dict__) == before
    watch.start()
    cls().put(b"", STUB)
    assert told == [f"/cache/{STUB}"]


def test_stopped_before_the_import_it_never_joins(watch: HostBinaryWatch, told: list[str]) -> None:
    watch.start()
    watch.stop()
    load().FileCacheManager().put(b"", STUB)
    assert told == []


def test_what_somebody_wrapped_again_stays_and_passes_on_to_triton(watch: HostBinaryWatch, told: list[str]) -> None:
    watch.start()
    cls = load().FileCacheManager
    ours = cls.get_file

    def another(self: Any, filename: str) -> Any:
        return ours(self, filename)

    cls.get_file = another
    watch.stop()
    assert cls.__dict__["get_file"] is another
    cls().put(b"", STUB)
    assert cls().get_file(STUB) == f"/cache/{STUB}" and told == []


UNKNOWN = {
    "a method renamed": TRITON.replace("get_file", "find_file"),
    "the class renamed": TRITON.replace("FileCacheManager", "DiskCache"),
    "another parameter": TRITON.replace("filename, binary=True", "filename, mode, binary=True"),
    "no function": TRITON + "    get_file = 'cache.so'\n",
}


@pytest.mark.parametrize("how", UNKNOWN)
def test_another_triton_is_left_as_it_is(
    place: Path, watch: HostBinaryWatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    # The loss: a Triton that cannot be imported any more, or a warning in every process that has a newer one.
    place.write_text(UNKNOWN[how])
    caplog.set_level(logging.DEBUG, "bundler")
    watch.start()
    module = load()
    cls = getattr(module, "FileCacheManager", None) or module.DiskCache
    assert all(not hasattr(method, "__wrapped__") for method in cls.__dict__.values())
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
