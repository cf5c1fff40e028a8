"""Take one training step of a small model under ``torch.compile``, with its cache in ``TORCHINDUCTOR_CACHE_DIR``.

On the CPU, unless ``--device`` names another.

Prints one JSON object::

    {"fxgraph_hits": 0, "fxgraph_misses": 2, "autograd_hits": 0, "autograd_misses": 1, "checksum": "<hex>",
     "cpp_compiled": 4, "cpp_headers": 1, "import_seconds": 4.0, "step_seconds": 13.0, "seconds": 17.0,
     "torch": "2.13.0"}

``checksum`` is over the loss and all gradients, bit by bit. ``cpp_compiled`` counts calls of the C++ compiler that
build something under the cache directory; ``cpp_headers`` counts precompiled headers, which torch keeps outside of
it, under the temporary directory. Probes of the compiler (its version, the preprocessor) count as neither.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

COMPILERS = ("c++", "g++", "clang++", "gcc", "clang")


def main() -> None:
    """Parse the command line, take the step, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32, help="of the hidden layer; another width is another graph")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    calls = watch_compiler()
    started = time.perf_counter()
    # Compile in this process: the watch sees no other, and a pool of workers costs more than it saves here.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    imported = time.perf_counter()
    checksum = train_step(arguments.width, arguments.device)
    finished = time.perf_counter()
    report = {
        **cache_counters(),
        "checksum": checksum,
        "cpp_compiled": sum(not output.endswith(".gch") for output in calls),
        "cpp_headers": sum(output.endswith(".gch") for output in calls),
        "import_seconds": imported - started,
        "step_seconds": finished - imported,
        "seconds": finished - started,
        "torch": torch.__version__,
    }
    print(json.dumps(report))


def train_step(width: int, device: str) -> str:
    """Run forward and backward once; return the SHA-256 of the loss and the gradients."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)).to(device)
    loss = torch.compile(model)(torch.randn(8, 16).to(device)).square().sum()
    loss.backward()
    results = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    text = " ".join(number.hex() for tensor in results for number in tensor.flatten().tolist())
    return hashlib.sha256(text.encode()).hexdigest()


def cache_counters() -> dict[str, int]:
    """Return the hits and misses that torch counted in this process."""
    from torch._dynamo.utils import counters

    return {
        "fxgraph_hits": counters["inductor"]["fxgraph_cache_hit"],
        "fxgraph_misses": counters["inductor"]["fxgraph_cache_miss"],
        "autograd_hits": counters["aot_autograd"]["autograd_cache_hit"],
        "autograd_misses": counters["aot_autograd"]["autograd_cache_miss"],
    }


def watch_compiler() -> list[str]:
    """Return a list that grows by one output file for each build that this process asks a C++ compiler for."""
    outputs: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            command = [os.fsdecode(part) for part in arguments[1]]
            if Path(command[0]).name in COMPILERS and "-o" in command and "-E" not in command:
                outputs.append(command[command.index("-o") + 1])

    sys.addaudithook(hook)
    return outputs


if __name__ == "__main__":
    main()
