"""Take one training step under ``torch.compile`` on the CPU, with real Triton kernels put into each graph.

    python inductor_step.py TREE PROGRAMS [--hide]

``TREE`` is a Triton cache; ``PROGRAMS`` the directory of ``compile_torch.py``. ``--hide``: as if this package were not
installed. The hook is switched on as the entry point does it. Prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

TREE, PROGRAMS = Path(sys.argv[1]), sys.argv[2]
HIDDEN = "--hide" in sys.argv
ROOT = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
states: list[tuple[bool, bool]] = []
heard: dict[str, list[str]] = {"bundler": [], "torch": []}


class _Hide:
    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "bundler":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _Ear(logging.Handler):
    def __init__(self, whose: str) -> None:
        super().__init__(logging.WARNING)
        self.whose = whose

    def emit(self, record: logging.LogRecord) -> None:
        heard[self.whose].append(record.getMessage())


def look() -> None:
    if not HIDDEN:
        import bundler

        stats = bundler.stats()
        states.append((stats["joined"], stats["waiting"]))


def put_kernels() -> None:
    """Make every graph that is compiled put the kernels of the tree, as if it had compiled them."""
    import torch._inductor.compile_fx as compile_fx

    original = compile_fx.fx_codegen_and_compile

    def compiling(*given: Any, **named: Any) -> Any:
        from torch._inductor.triton_bundler import TritonBundler

        shutil.copytree(TREE, ROOT / "triton" / "0", dirs_exist_ok=True)
        for key in sorted(path.parent.name for path in TREE.glob("*/__grp__*.json")):
            TritonBundler.put(key, 0)
        return original(*given, **named)

    compile_fx.fx_codegen_and_compile = compiling


def kernels() -> list[str]:
    found = []
    for group in (ROOT / "triton" / "0").glob("*/__grp__*.json"):
        paths = json.loads(group.read_text())["child_paths"].values()
        if all(Path(path).is_file() for path in paths):
            found.append(group.parent.name)
    return sorted(found)


def main() -> None:
    if HIDDEN:
        sys.meta_path.insert(0, _Hide())  # type: ignore[arg-type]
    else:
        from bundler.integrations import autoload

        autoload()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    logging.getLogger("bundler").addHandler(_Ear("bundler"))
    look()
    importlib.import_module("torch")
    look()
    importlib.import_module("torch._inductor.triton_bundler")
    look()
    from torch._dynamo.utils import counters

    for name in ("torch._inductor.codecache", "torch._functorch._aot_autograd.autograd_cache"):
        logging.getLogger(name).addHandler(_Ear("torch"))
    put_kernels()
    sys.path.insert(0, PROGRAMS)
    from compile_torch import train_step

    checksum = train_step(32, "cpu")
    stats = {}
    if not HIDDEN:
        import bundler

        stats = bundler.stats()
    report = {
        "checksum": checksum,
        "states": states,
        "counters": dict(counters["inductor"]),
        "kernels": kernels(),
        "stats": stats,
        "heard": heard,
        "loaded": sorted(name for name in sys.modules if name.startswith("bundler")),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
