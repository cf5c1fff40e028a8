"""The verb ``key``: a name for the caches of this kind of machine and software, and prefixes to fall back on.

A key is made of what decides whether a cache can hit, most general first, so that cutting it from the right gives ever
wider classes: ``tb1-linux-x86_64-py3.12-torch2.11.0-triton3.6.0-cuda13.0-cuda90-<lock>-<salt>``. Runner and host names
are not in it. The same facts give the same string, on any host.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bundler import host
from bundler.errors import LocalIOError

__all__ = ["LOCK_FILES", "Key", "make_key"]

_SCHEME = "tb1"  # grows when the meaning of a part changes
_HASH_DIGITS = 12  # hex digits kept of a hash: 48 bits, against accidents

LOCK_FILES = (
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "Pipfile.lock",
    "conda-lock.yml",
    "requirements.lock",
    "requirements.txt",
    "pyproject.toml",
)
"""Files that pin the software of a project, best first; the first that is there is hashed."""

_CUDA_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True, slots=True)
class Key:
    """``key``, and the ``prefixes`` of it to fall back on, longest first; each ends in ``-``."""

    key: str
    prefixes: tuple[str, ...]


def make_key(*, salt: str = "", facts: Mapping[str, Any] | None = None, directory: str | os.PathLike[str] = ".") -> Key:
    """Return the key of this host, or of ``facts``.

    Args:
        salt: What else must be equal for a cache to be right, such as a git hash of custom operators.
        facts: As ``host.facts()`` returns them, and ``lock``: the hash of a lock file. For a machine without the GPU.
        directory: Where a lock file is looked for, when ``facts`` are not given.

    Raises:
        LocalIOError: The lock file cannot be read.
    """
    known = dict(facts) if facts is not None else {**host.facts(), "lock": _lock_hash(os.fspath(directory))}
    parts = [_SCHEME, *_machine(known), *_software(known), _gpus(known)]
    fixed = [_clean(part) for part in parts]
    lock, salted = _short(str(known.get("lock", "")), "lock"), _short(_hash(salt.encode()) if salt else "", "salt")
    optional = [part for part in (lock, salted) if part]
    prefixes = ["-".join([*fixed, *optional[:count]]) + "-" for count in range(len(optional) - 1, -1, -1)]
    # Without a GPU's target a kernel cannot fit, so no prefix is shorter than that.
    return Key("-".join([*fixed, *optional]), tuple(prefixes))


def _machine(facts: Mapping[str, Any]) -> Iterable[str]:
    yield str(facts.get("os", "unknown")).split(" ")[0].lower()
    yield str(facts.get("machine", "unknown"))


def _software(facts: Mapping[str, Any]) -> Iterable[str]:
    packages = facts.get("packages")
    versions = {str(name): str(version) for name, version in packages.items()} if isinstance(packages, dict) else {}
    yield "py" + ".".join(str(facts.get("python", "0.0")).split(".")[:2])
    yield "torch" + versions.get("torch", "0")
    triton = next((versions[name] for name in sorted(versions) if "triton" in name), "0")
    yield "triton" + triton
    runtime = next((versions[name] for name in _CUDA_RUNTIMES if name in versions), "")
    rocm = re.search(r"\+rocm([\d.]+)", versions.get("torch", ""))
    cuda = re.search(r"\+cu(\d+)(\d)$", versions.get("torch", ""))
    if rocm:
        yield "rocm" + rocm.group(1)
    elif cuda:
        yield f"cuda{cuda.group(1)}.{cuda.group(2)}"
    elif runtime:
        yield "cuda" + ".".join(runtime.split(".")[:2])
    else:
        yield "nogpu"


def _gpus(facts: Mapping[str, Any]) -> str:
    gpus = facts.get("gpus")
    rows = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    targets = sorted({str(gpu.get("target", "")).replace(":", "") for gpu in rows} - {""})
    return "_".join(targets) or "cpu"


def _clean(part: str) -> str:
    """Keep what every store takes in a name; ``-`` stands between parts, so it stands in none."""
    return re.sub(r"[^A-Za-z0-9._+]", "_", part)


def _short(digits: str, what: str) -> str:
    return f"{what}{digits[:_HASH_DIGITS]}" if digits else ""


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _lock_hash(directory: str) -> str:
    for name in LOCK_FILES:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            try:
                with open(path, "rb") as file:
                    return _hash(file.read())
            except OSError as error:
                raise LocalIOError.from_os_error(error, "read the lock file", path) from error
    return ""
