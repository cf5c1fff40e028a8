"""Acting when somebody else imports a module: the way to join a library without paying for its import."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["WhenImported"]


class WhenImported(MetaPathFinder):
    """Calls ``then`` with a module right after it is imported for the first time; at once when it is there already.

    Args:
        name: Of the module.
        then: Must not raise; what it raised would look like a failure of the module.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._waits = False

    def watch(self) -> None:
        """Begin to wait."""
        module = sys.modules.get(self._name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            self._then(module)
        else:
            self._waits = True
            self._stand_first()

    def forget(self) -> None:
        """Stop waiting; no-op when it is over already."""
        self._waits = False
        self._step_aside()

    def act(self, module: ModuleType) -> None:
        """The module has been loaded: that is what was waited for."""
        if self._waits:
            self.forget()
            self._then(module)

    def _stand_first(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def _step_aside(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module where it really is, and stand between it and its loader."""
        if fullname != self._name:
            return None
        self._step_aside()  # the search below must not come back here
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            if self._waits:  # still, for who only asks where the module is, and for an import that fails
                self._stand_first()
        if spec is not None and spec.loader is not None:
            spec.loader = _Between(spec.loader, self)
        return spec


class _Between(Loader):
    """Loads a module by its own loader, then puts that back in its place and tells who waits for the module."""

    def __init__(self, loader: Any, waiting: WhenImported) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._waiting.act(module)
