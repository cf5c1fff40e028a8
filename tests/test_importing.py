"""Acting when somebody else imports a module: once, right after it, and as if nobody stood between."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from bundler.integrations.importing import WhenImported

NAME = "awaited_by_the_tests"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module that can be imported; neither it nor a watcher is left behind."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


@pytest.fixture
def seen() -> list[ModuleType]:
    return []


@pytest.fixture
def waiting(seen: list[ModuleType]) -> WhenImported:
    return WhenImported(NAME, seen.append)


def test_it_acts_once_right_after_the_import(place: Path, waiting: WhenImported, seen: list[ModuleType]) -> None:
    place.write_text("value = 1")
    before = list(sys.meta_path)
    waiting.watch()
    waiting.watch()  # twice is once
    assert seen == []
    module = importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert seen == [module] and module.value == 1
    assert sys.meta_path == before
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is type(module.__loader__) is SourceFileLoader


def test_it_acts_at_once_on_what_is_imported(place: Path, waiting: WhenImported, seen: list[ModuleType]) -> None:
    place.write_text("")
    module = importlib.import_module(NAME)
    waiting.watch()
    assert seen == [module] and waiting not in sys.meta_path


def test_an_import_that_fails_is_not_the_last(place: Path, waiting: WhenImported, seen: list[ModuleType]) -> None:
    # Lost otherwise: everything that was to happen after the import that then succeeds.
    place.write_text("raise RuntimeError('not now')")
    waiting.watch()
    with pytest.raises(RuntimeError, match="not now"):
        importlib.import_module(NAME)
    assert seen == []
    place.write_text("value = 2  # of another size, for what remembers files by that")
    importlib.invalidate_caches()
    assert importlib.import_module(NAME).value == 2
    assert len(seen) == 1 and waiting not in sys.meta_path


def test_what_is_forgotten_does_not_act(place: Path, waiting: WhenImported, seen: list[ModuleType]) -> None:
    place.write_text("")
    waiting.watch()
    waiting.forget()
    waiting.forget()
    importlib.import_module(NAME)
    assert seen == []


def test_a_look_where_the_module_is_is_no_import(place: Path, waiting: WhenImported, seen: list[ModuleType]) -> None:
    """The loss: a hook that never joins, because some library asked whether Inductor is there."""
    place.write_text("")
    waiting.watch()
    assert importlib.util.find_spec(NAME) is not None
    assert seen == [] and waiting in sys.meta_path
    module = importlib.import_module(NAME)
    assert seen == [module] and waiting not in sys.meta_path


def test_a_module_that_is_not_there_yet_is_waited_for(
    place: Path, waiting: WhenImported, seen: list[ModuleType]
) -> None:
    waiting.watch()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    place.write_text("")
    importlib.invalidate_caches()
    module = importlib.import_module(NAME)
    assert seen == [module] and waiting not in sys.meta_path
