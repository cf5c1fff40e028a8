"""Build, or load, a C module as Triton does for its launchers, inside a compile of torch's bundler with the hook on.

    python stub_step.py collect TREE ENTRY     # compile: put the kernels of TREE, build the module, store in ENTRY
    python stub_step.py collect TREE ENTRY CACHE   # the same, but the module was built before, in another cache
    python stub_step.py emit ENTRY             # hit: restore ENTRY, then ask Triton for the module
    python stub_step.py emit-fresh ENTRY       # the same, as a new process does: Triton's cache is Triton's own
    python stub_step.py emit-only ENTRY        # emit with the hook off
    python stub_step.py build                  # ask Triton for the module, and that is all

``TREE`` is a Triton cache; ``ENTRY`` the pickle of torch's bundle. Triton's cache is where torch says that device 0 has
it. The module is a launcher's, or has the name in ``STUB_NAME``. Prints one JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch._inductor.triton_bundler as theirs
from torch._dynamo.utils import counters
from triton.runtime.build import compile_module_from_src

import bundler

NAME = os.environ.get("STUB_NAME", "__triton_launcher")
SOURCE = f"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{NAME}", NULL, -1, NULL}};
PyMODINIT_FUNC PyInit_{NAME}(void) {{ return PyModule_Create(&module); }}
"""
DIRECTORY = Path(theirs.triton_cache_dir(0))
os.environ["TRITON_CACHE_DIR"] = str(DIRECTORY)  # as torch does for the kernels of a device

heard: list[str] = []


class _Ear(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            heard.append(record.getMessage())


for name in ("bundler", "triton.runtime.build", "torch._inductor.triton_bundler"):
    logging.getLogger(name).addHandler(_Ear())


def collect(tree: Path, entry: Path, cache: Path = DIRECTORY) -> Any:
    """Compile, as far as the bundler sees it."""
    shutil.copytree(tree, DIRECTORY, dirs_exist_ok=True)
    if cache != DIRECTORY:
        os.environ["TRITON_CACHE_DIR"] = str(cache)
        compile_module_from_src(SOURCE, NAME)
        os.environ["TRITON_CACHE_DIR"] = str(DIRECTORY)
    theirs.TritonBundler.begin_compile()
    try:
        for key in sorted(path.parent.name for path in tree.glob("*/__grp__*.json")):
            theirs.TritonBundler.put(key, 0)
        if cache == DIRECTORY:
            compile_module_from_src(SOURCE, NAME)
        bundle, metadata = theirs.TritonBundler.collect()
    finally:
        theirs.TritonBundler.end_compile()
    entry.write_bytes(pickle.dumps(bundle))
    return metadata


def load() -> str:
    """Ask Triton for the module; returns its file, or why there is none."""
    try:
        return str(compile_module_from_src(SOURCE, NAME).__file__)
    except (subprocess.CalledProcessError, RuntimeError) as error:
        return type(error).__name__


def main() -> None:
    verb, *paths = sys.argv[1:]
    metadata = None
    if verb == "emit-fresh":
        del os.environ["TRITON_CACHE_DIR"]
    if verb != "emit-only":
        bundler.enable()
    if verb == "collect":
        metadata = collect(*map(Path, paths))
    elif verb.startswith("emit"):
        metadata = theirs.TritonBundler.read_and_emit(pickle.loads(Path(paths[0]).read_bytes()))
    report = {
        "module": load(),
        "names": len(metadata.cached_kernel_names) if metadata is not None else 0,
        "kernels": sorted(path.parent.name for path in DIRECTORY.glob("*/__grp__*.json")),
        "stubs": [str(path) for path in DIRECTORY.glob(f"*/{NAME}*")],
        "counters": {name: value for name, value in counters["inductor"].items() if "bundler" in name},
        "stats": bundler.stats(),
        "heard": heard,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
