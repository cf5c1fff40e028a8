"""One ptxas for a whole process: torch's own choice, taken before the first kernel is looked up.

Triton's key of a kernel for CUDA holds the version of ptxas, which Triton reads once in each process. Some builds of
torch ship a ptxas, and torch points ``TRITON_PTXAS_PATH`` at it: in compile workers at their start, in the process
itself when it first compiles an Inductor kernel there. A cold process has read the version by then, since generating
code asks for it; a warm one may have read nothing. The two then know one kernel by two keys, and the cold one's names
another ptxas than the one that makes the binary.

Nothing is chosen here: torch's function is called, at the moment when it can be.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from bundler.integrations.importing import WhenImported

__all__ = ["PtxasChoice"]

log = logging.getLogger("bundler")

_VARIABLE = "TRITON_PTXAS_PATH"
_TASKS = "torch._inductor.runtime.compile_tasks"
_CHOOSE = "_set_triton_ptxas_path"  # () -> None: sets the variable, unless it is set or no ptxas is shipped
_COMPILER = "triton.backends.nvidia.compiler"


class PtxasChoice:
    """Calls torch's function once, as soon as it is imported; another torch or Triton is left as it is.

    Args:
        is_on: Asked at that moment; when it says no, nothing is called.
    """

    def __init__(self, is_on: Callable[[], bool]) -> None:
        self._is_on = is_on
        self._waiting = WhenImported(_TASKS, self._choose)

    def start(self) -> None:
        """Call it now, when it is there, else later."""
        self._waiting.watch()

    def stop(self) -> None:
        """Stop waiting. What torch has set stays: torch believes that it is set."""
        self._waiting.forget()

    def _choose(self, tasks: Any) -> None:
        try:
            if os.environ.get(_VARIABLE) is not None or not self._is_on():
                return
            if _is_version_read():
                # The keys of this process are settled. What is compiled should go on to be made by what they name.
                log.debug("Triton has read the version of ptxas already: %s is left to torch", _VARIABLE)
                return
            getattr(tasks, _CHOOSE)()
            log.debug("%s is %s: torch's own choice, at once", _VARIABLE, os.environ.get(_VARIABLE, "not set"))
        except Exception as error:  # noqa: BLE001  torch makes its choice later, as it would without us
            log.debug("%s is left to torch: %s: %s", _VARIABLE, type(error).__name__, error)


def _is_version_read() -> bool:
    """Whether Triton has read a version of ptxas in this process; it keeps that in a table of the function."""
    table = getattr(getattr(sys.modules.get(_COMPILER), "get_ptxas_version", None), "cache_info", None)
    return table is not None and table().currsize > 0
