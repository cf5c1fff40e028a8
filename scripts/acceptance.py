#!/usr/bin/env python3
"""Take one real Inductor cache through everything that the package promises, and print what was seen.

    scripts/env python scripts/acceptance.py CACHE [--flips 300] [--cuts 60] [--kills 40]

CACHE is a ``TORCHINDUCTOR_CACHE_DIR``, or a copy of one: its group files may name where it was recorded. Ends with 1
when a promise does not hold. The judge of a torn kernel is this script (group file and bytes), not the package.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STAGING = ".tb-"


def command(*arguments: str | Path, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Run ``triton-bundler ARGUMENTS --json``; return its exit code and its object."""
    full = [sys.executable, "-m", "bundler", *map(str, arguments), "--json"]
    result = subprocess.run(full, capture_output=True, text=True, env={**os.environ, **(env or {})})
    return result.returncode, json.loads(result.stdout or "{}")


def files_of(root: Path) -> dict[str, bytes]:
    """Return every regular file below ``root`` by relative path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def torn(root: Path, packed: dict[str, bytes]) -> list[str]:
    """Return what is neither absent nor whole: a kernel that lacks a member of its group, a file of other bytes."""
    found = []
    for path, data in files_of(root).items():
        if path.startswith(STAGING):
            continue
        if Path(path).name.startswith("__grp__"):
            members = json.loads(data)["child_paths"]
            found += [f"{path}: {name}" for name, place in members.items() if place != str((root / path).parent / name)]
            found += [f"{path}: {name} is missing" for name in members if not ((root / path).parent / name).is_file()]
        elif packed.get(path) != data:
            found.append(path)
    return found


def triton_hits(cache: Path) -> tuple[int, int]:
    """Ask Triton itself for every group below a kernel directory; return (hits, groups)."""
    program = (
        "import os, sys\n"
        "from triton.runtime.cache import FileCacheManager\n"
        "hits = groups = 0\n"
        "for key in sorted(os.listdir(os.environ['TRITON_CACHE_DIR'])):\n"
        "    for name in os.listdir(os.path.join(os.environ['TRITON_CACHE_DIR'], key)):\n"
        "        if name.startswith('__grp__'):\n"
        "            groups += 1\n"
        "            hits += bool(FileCacheManager(key).get_group(name[len('__grp__'):]))\n"
        "print(hits, groups)\n"
    )
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    hits, groups = subprocess.run(
        [sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True
    ).stdout.split()
    return int(hits), int(groups)


class Acceptance:
    """Runs each step, prints one line for it, and remembers whether any failed."""

    def __init__(self, cache: Path, work: Path) -> None:
        self.cache, self.work = cache, work
        self.bundle = work / "cache.tbundle"
        self.packed = files_of(cache)
        self.failed = False

    def line(self, holds: bool, text: str) -> None:
        """Print what was seen."""
        self.failed |= not holds
        print(f"{'ok    ' if holds else 'FAILED'} {text}", flush=True)

    def round_trip(self) -> None:
        """Pack, verify, inspect, unpack elsewhere, unpack again."""
        code, packed = command("pack", f"inductor={self.cache}", "-o", self.bundle)
        self.line(
            code == 0 and not packed["skipped"] and packed["files"] == len(self.packed),
            f"pack: {packed['entries']} entries, {packed['files']} of {len(self.packed)} files, "
            f"{packed['bytes_in']:,} -> {packed['bytes_out']:,} bytes, {packed['seconds']:.2f} s",
        )
        code, verified = command("verify", self.bundle)
        self.line(code == 0 and verified["ok"], f"verify: {verified['entries']} entries, ok {verified['ok']}")
        code, listed = command("inspect", self.bundle)
        self.line(code == 0, f"inspect: targets {listed['targets']}, {len(listed['foreign_paths'])} foreign paths")
        home = self.work / "elsewhere"
        code, first = command("unpack", self.bundle, "--root", f"inductor={home}")
        back = files_of(home)
        same = [path for path in self.packed if "__grp__" in path or back.get(path) == self.packed[path]]
        self.line(
            code == 0 and len(same) == len(self.packed) == len(back) and not torn(home, self.packed),
            f"unpack: {first['restored']} restored, {len(back)} files back, every group file points home, "
            f"{first['seconds']:.2f} s",
        )
        code, second = command("unpack", self.bundle, "--root", f"inductor={home}")
        self.line(
            code == 0 and second["files_written"] == 0 and second["unchanged"] == packed["entries"],
            f"unpack again: {second['unchanged']} unchanged, {second['files_written']} files written",
        )
        code, again = command("pack", f"inductor={home}", "-o", self.work / "again.tbundle")
        self.line(again["content_digest"] == packed["content_digest"], f"packed again: {again['content_digest']}")
        for device in sorted((home / "triton").iterdir()) if (home / "triton").is_dir() else []:
            hits, groups = triton_hits(device)
            self.line(hits == groups, f"Triton, device {device.name}: {hits} hits of {groups} groups")

    def damage(self, flips: int, cuts: int) -> None:
        """Flip single bits and cut the file; each must be refused, or restore the very same files."""
        import bundler
        from bundler.emit import EmitOptions
        from bundler.errors import BundlerError

        whole = self.bundle.read_bytes()
        chance = random.Random(20)
        refused = harmless = wrong = 0
        places = [("flip", chance.randrange(len(whole))) for _ in range(flips)]
        places += [("cut", chance.randrange(len(whole))) for _ in range(cuts)]
        for kind, at in places:
            data = bytearray(whole)
            if kind == "flip":
                data[at] ^= 1 << chance.randrange(8)
            else:
                del data[at:]
            home = self.work / "damaged"
            try:
                bundler.unpack(bytes(data), [f"inductor={home}"], options=EmitOptions(sync=False))
            except BundlerError:
                left = files_of(home) if home.exists() else {}
                refused += not left
                wrong += bool(left)
            else:
                bad = torn(home, self.packed) or len(files_of(home)) != len(self.packed)
                harmless += not bad
                wrong += bool(bad)
            shutil.rmtree(home, ignore_errors=True)
        self.line(wrong == 0, f"{flips} flips, {cuts} cuts: {refused} refused, {harmless} harmless, {wrong} wrong")

    def kills(self, count: int) -> None:
        """Kill a restore at random instants; nothing may be torn, and the next run must leave nothing over."""
        home = self.work / "killed"
        arguments = [
            sys.executable,
            "-m",
            "bundler",
            "unpack",
            str(self.bundle),
            "--root",
            f"inductor={home}",
            "--quiet",
        ]
        started = time.monotonic()
        subprocess.run(arguments, check=True)
        whole_run = time.monotonic() - started
        chance = random.Random(21)
        killed, bad = 0, []
        for _ in range(count):
            shutil.rmtree(home, ignore_errors=True)
            process = subprocess.Popen(arguments)
            time.sleep(chance.uniform(0.2, 1.0) * whole_run)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            if home.exists():
                bad += torn(home, self.packed)
            subprocess.run(arguments, check=True)
            left = [path for path in home.iterdir() if path.name.startswith(STAGING)]
            bad += [str(path) for path in left] + torn(home, self.packed)
            bad += [] if len(files_of(home)) == len(self.packed) else ["files are missing"]
        self.line(not bad, f"{count} SIGKILLs, {killed} of them before the end: {len(bad)} torn or left over {bad[:3]}")


def main() -> int:
    """Run all steps; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--cuts", type=int, default=60)
    parser.add_argument("--kills", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        run = Acceptance(options.cache.resolve(), Path(work))
        run.round_trip()
        run.damage(options.flips, options.cuts)
        run.kills(options.kills)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
