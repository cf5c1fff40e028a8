"""``triton-bundler demo``: real caches, packed, deleted, restored elsewhere, and hit; and a changed byte, refused."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from bundler.cli import inspect as inspect_command
from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._output import Console, counted, size_text
from bundler.errors import BundlerError, UsageError

__all__ = ["FIELDS", "command"]

_RUN = {
    "seconds": float,
    "kernels_compiled": int,
    "kernel_hits": int,
    "graphs_compiled": int,
    "graph_hits": int,
    "autograd_misses": int,
    "autograd_hits": int,
    "cpp_compiled": int,
}

FIELDS = {
    "ok": Field(bool, "Whether every check holds."),
    "checks": Field([{"name": str, "ok": bool, "detail": str}], "What was shown, one by one."),
    "cold": Field(_RUN, "The run with empty caches: seconds of compiling, and what was compiled."),
    "warm": Field(_RUN, "The same run with caches that were restored elsewhere."),
    "seconds_saved": Field(float, "Seconds of compiling that the warm run did not need."),
    "new_files": Field(int, "Files that the warm run added to the restored caches."),
    "entries": Field(int, "Entries in the bundle."),
    "bytes_in": Field(int, "Bytes of the caches."),
    "bytes_out": Field(int, "Bytes of the bundle."),
    "pack_seconds": Field(float, "How long it took to pack."),
    "unpack_seconds": Field(float, "How long it took to restore."),
    "refused": Field(str, 'Error that met the bundle with a changed byte; "" if none did.'),
}

_TARGETS = "cuda:90,hip:gfx942"

# What would switch a cache off, move it, or make a run do other things than the one before.
_UNSET = (
    "PYTHONDONTWRITEBYTECODE",
    "TORCHINDUCTOR_AUTOGRAD_CACHE",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCH_COMPILE_DEBUG",
    "TORCH_COMPILE_FORCE_DISABLE_CACHES",
    "TRITON_ALWAYS_COMPILE",
    "TRITON_CACHE_MANAGER",
    "TRITON_HOME",
    "TRITON_INTERPRET",
    "TRITON_STORE_BINARY_ONLY",
)
_SET = {
    # torch keeps a precompiled header (150 MB) outside of its cache, and would make it anew on every new host.
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TRITON_DEFAULT_FP_FUSION": "1",  # Triton 3.9 warns when it is unset
}


@_command("demo", FIELDS)
def command(console: Console) -> int:
    """Show on this machine that caches move and hit; needs torch, Triton and a C++ compiler, and no GPU.

    Compiles kernels for cuda:90 and hip:gfx942, and a training step of a small model on the CPU, with empty caches;
    packs the caches, deletes them, restores them elsewhere, and runs the same again: every kernel and every graph has
    to be a hit, and nothing may be compiled. Then a byte of the bundle is changed, and the bundle has to be refused.
    Takes one to three minutes, and leaves nothing behind. The exit code is 1 when something does not hold.
    """
    _require_tools()
    with tempfile.TemporaryDirectory(prefix="triton-bundler-demo-") as place:
        demo = _Demo(console, place)
        try:
            demo.run()
        except RuntimeError as error:  # programs.ProgramError, whose text is all that the program printed
            console.complain(str(error))
            demo.check("the programs ran", ok=False, detail=str(error).partition("\n")[0])
    demo.conclude()
    return 0 if console.report["ok"] else 1


def _require_tools() -> None:
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo needs {' and '.join(missing)}, which this Python does not have: "
            "pip install 'triton-bundler[torch]', or run scripts/demo in a checkout"
        )
    compiler = (os.environ.get("CXX") or "g++").split()[0]
    if shutil.which(compiler) is None:
        raise UsageError(f"the demo needs a C++ compiler, and there is no {compiler}: apt-get install g++, or set CXX")


class _Demo:
    """One run of the demo. ``place`` is a directory of its own."""

    def __init__(self, console: Console, place: str) -> None:
        self._console = console
        self._place = place
        self._bundle = os.path.join(place, "caches.tbundle")
        empty = dict.fromkeys(_RUN, 0)
        self._figures: dict[str, Any] = dict.fromkeys(FIELDS, 0)
        self._figures.update({"ok": False, "cold": empty, "warm": empty, "refused": ""})
        self._checks: list[dict[str, Any]] = []

    def _step(self, text: str) -> None:
        self._console.say(f"== {text}")

    def check(self, name: str, *, ok: bool, detail: str = "") -> None:
        """Note whether something holds."""
        self._checks.append({"name": name, "ok": ok, "detail": detail})
        self._console.say(f"{'ok' if ok else 'NOT OK'}: {name}{f' ({detail})' if detail else ''}")

    def conclude(self) -> None:
        """Put the figures into the report."""
        ok = all(check["ok"] for check in self._checks)
        self._console.report = {**self._figures, "ok": ok, "checks": self._checks}
        self._console.say("== everything holds" if ok else "== NOT everything holds")

    def run(self) -> None:
        """Take all steps, in order."""
        before, after = os.path.join(self._place, "before"), os.path.join(self._place, "after", "elsewhere")
        self._step(f"compile with empty caches: kernels for {_TARGETS}, and a training step on the CPU")
        cold, cold_sum = self._compile(before)
        self._step("pack both caches into one bundle, and look at it")
        self._pack(before)
        self._step("delete the caches, and restore them elsewhere")
        shutil.rmtree(before)
        self._unpack(after)
        self._step("compile the same again")
        files = _files(after)
        warm, warm_sum = self._compile(after)
        new = sorted(_files(after) - files)
        self._compare(cold, warm, cold_sum == warm_sum, new)
        self._step("change one byte of the bundle, and try to restore it")
        self._refuse()

    def _compile(self, caches: str) -> tuple[dict[str, Any], str]:
        """Run both programs with their caches below a directory; return the figures, and a checksum of the results."""
        from bundler.testing import programs

        with tempfile.TemporaryDirectory(dir=self._place) as temporary:
            variables = {
                **dict.fromkeys(_UNSET, ""),
                **_SET,
                "HOME": temporary,
                "TMPDIR": temporary,
                "XDG_CACHE_HOME": temporary,
                "TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, "inductor"),
            }
            torch = programs.run(programs.COMPILE_TORCH, env=variables)
            variables["TRITON_CACHE_DIR"] = os.path.join(caches, "triton")
            triton = programs.run(programs.COMPILE_TRITON, ["--targets", _TARGETS], env=variables)
        kernels = triton["kernels"]
        run = {
            "seconds": round(torch["step_seconds"] + sum(kernel["seconds"] for kernel in kernels.values()), 3),
            "kernels_compiled": triton["compiled"],
            "kernel_hits": triton["hits"],
            "graphs_compiled": torch["fxgraph_misses"],
            "graph_hits": torch["fxgraph_hits"],
            "autograd_misses": torch["autograd_misses"],
            "autograd_hits": torch["autograd_hits"],
            "cpp_compiled": torch["cpp_compiled"] + torch["cpp_headers"],
        }
        said = f"{run['kernels_compiled']} kernels, {run['graphs_compiled']} graphs, {run['cpp_compiled']} C++ files"
        self._console.say(f"compiled: {said}, in {run['seconds']:.1f} s")
        return run, torch["checksum"]

    def _pack(self, caches: str) -> None:
        from bundler.listing import inspect
        from bundler.packing import pack

        roots = [f"{kind}={os.path.join(caches, kind)}" for kind in ("inductor", "triton")]
        report = pack(roots, self._bundle, strict=True)
        inspect_command.say(self._console, inspect(self._bundle))
        sizes = f"{size_text(report.bytes_in)} became {size_text(report.bytes_out)}"
        self._console.say(f"packed: {counted(report.files, 'file')}, {sizes}, in {report.seconds:.2f} s")
        self._figures["entries"] = report.entries
        self._figures["bytes_in"], self._figures["bytes_out"] = report.bytes_in, report.bytes_out
        self._figures["pack_seconds"] = report.seconds

    def _unpack(self, place: str) -> None:
        from bundler.bundle import Selection, unpack
        from bundler.model import Target

        # Given, so that a GPU of this host does not choose among the kernels.
        selection = Selection(targets=tuple(map(Target.parse, _TARGETS.split(","))))
        report = unpack(self._bundle, into=place, selection=selection)
        whole = report.restored == self._figures["entries"]
        self.check("every entry was restored", ok=whole, detail=f"{report.restored} in {report.seconds:.2f} s")
        self._figures["unpack_seconds"] = report.seconds

    def _compare(self, cold: Mapping[str, Any], warm: Mapping[str, Any], same: bool, new: Sequence[str]) -> None:
        for name, hits, misses, compiled in (
            ("kernel", "kernel_hits", "kernels_compiled", cold["kernels_compiled"]),
            ("FX graph", "graph_hits", "graphs_compiled", cold["graphs_compiled"]),
            ("AOTAutograd entry", "autograd_hits", "autograd_misses", cold["autograd_misses"]),
        ):
            ok = warm[hits] == compiled > 0 and warm[misses] == 0
            self.check(f"every {name} was a hit", ok=ok, detail=f"{warm[hits]} of {compiled}")
        detail = f"{cold['cpp_compiled']} before, {warm['cpp_compiled']} now"
        self.check("nothing was compiled by C++", ok=warm["cpp_compiled"] == 0 < cold["cpp_compiled"], detail=detail)
        self.check("nothing was added to the caches", ok=not new, detail=", ".join(new[:3]))
        self.check("the results are the same, bit by bit", ok=same)
        saved = round(cold["seconds"] - warm["seconds"], 3)
        detail = f"{cold['seconds']:.1f} s before, {warm['seconds']:.1f} s now: {saved:.1f} s saved"
        self.check("it was faster", ok=saved > 0, detail=detail)
        self._figures.update({"cold": cold, "warm": warm, "seconds_saved": saved, "new_files": len(new)})

    def _refuse(self) -> None:
        from bundler.bundle import unpack

        with open(self._bundle, "r+b") as file:
            middle = os.path.getsize(self._bundle) // 2
            file.seek(middle)
            byte = file.read(1)[0]
            file.seek(middle)
            file.write(bytes([byte ^ 1]))
        place = os.path.join(self._place, "refused")
        try:
            unpack(self._bundle, into=place)
        except BundlerError as error:
            self._figures["refused"] = type(error).__name__
            self._console.say(f"refused: {error}")
        ok = bool(self._figures["refused"]) and not _files(place)
        self.check("the changed bundle was refused, and nothing was written", ok=ok)


def _files(root: str) -> set[str]:
    """Return the files below a directory, locks left out: who looks into a cache takes them."""
    found = {
        os.path.relpath(os.path.join(directory, name), root) for directory, _, names in os.walk(root) for name in names
    }
    return {path for path in found if not path.endswith((".lock", ".pyc"))}
