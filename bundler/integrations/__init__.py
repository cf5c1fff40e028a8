"""Where this package joins torch and Triton: their only importers. Nothing here may fail into a user's program.

``autoload`` is what torch calls at the end of ``import torch``, through the entry point group ``torch.backends``. It
stands here, and not in a module of its own, because every module more costs each start half a millisecond.
"""

from __future__ import annotations

import os

__all__ = ["autoload"]

_OFF = frozenset({"", "0"})


def autoload() -> None:
    """Switch the hook on when ``TRITON_BUNDLER`` asks for it; it joins once Inductor's bundler is imported."""
    if os.environ.get("TRITON_BUNDLER", "") in _OFF:
        return
    try:
        from bundler.integrations.inductor import enable

        enable()
    except Exception as error:  # noqa: BLE001  else `import torch` fails, for a cache
        import logging

        logging.getLogger("bundler").warning("not switched on: %s: %s", type(error).__name__, error)
