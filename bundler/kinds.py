"""Kinds of cache roots, as data: where a root lies, what an entry is there, what is left out, which files hold paths.

To teach the package a new kind, add a row to ``KINDS``; no other module tells what a kind does. What holds for every
kind (a directory with a group file is a kernel entry, staging names are not entries) is in the shared tables.

Sources: torch/_inductor/runtime/cache_dir_utils.py, torch/_inductor/codecache.py, triton/knobs.py and
triton/runtime/cache.py, vllm/envs.py and vllm/compilation/backends.py, Lib/importlib/_bootstrap_external.py.
"""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bundler.errors import UsageError
from bundler.model import Unit

__all__ = [
    "KINDS",
    "STAGING_PREFIX",
    "RootKind",
    "detect",
    "excluded",
    "is_literal",
    "known_kind",
    "locate",
    "takes_file",
    "unit_of",
]

STAGING_PREFIX = ".tb-"
"""First characters of every staging name of ours; reserved, so no bundle may hold such a name."""

_HOME, _TEMP = "~", "$tmp"


@dataclass(frozen=True, slots=True)
class RootKind:
    """One kind of root.

    Attributes:
        name: The word users write, and the default name of a root.
        variable: Environment variable that points at the root; None when there is none.
        places: Where the root lies when nobody says, first hit wins. Each is (environment variable, ``~`` or
            ``$tmp``; path below it, in which ``{user}`` is the login name as torch writes it).
        marks: Regular expressions; a directory with a matching path below it (up to two levels) is of this kind.
        excluded: Regular expressions on the path inside the root, beside those shared by all kinds.
        literals: Regular expressions on the path inside the root of files that are Python literals and hold paths.
        devices: Directory whose children are numbered by device; "" when there is none.
        pointer: (environment variable, path of the root below what it names) by which a run is pointed at a fresh root,
            where ``variable`` would change more than the place; None where ``variable`` serves.
        filled: Regular expression; a directory in which every file matches, at any depth, is of this kind.
        kept: Regular expressions on the last part of a path that is an entry here, though in no other kind.
        asked: Whether a root of this kind takes part in a run, or a save, only when it is named or in the bundle.
        unset: Environment variables that keep programs from writing to a root of this kind: a run has none of them.
    """

    name: str
    variable: str | None
    places: tuple[tuple[str, str], ...] = ()
    marks: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    devices: str = ""
    pointer: tuple[str, str] | None = None
    filled: str = ""
    kept: tuple[str, ...] = ()
    asked: bool = False
    unset: tuple[str, ...] = ()


_VLLM_LITERALS = (r"(?:.*/)?vllm_compile_cache\.py",)

# Order matters for detection: a vLLM root holds an Inductor root, which holds a Triton root.
KINDS: Mapping[str, RootKind] = {
    kind.name: kind
    for kind in (
        RootKind(
            name="vllm",
            variable="VLLM_CACHE_ROOT",
            places=(("VLLM_CACHE_ROOT", ""), ("XDG_CACHE_HOME", "vllm"), (_HOME, ".cache/vllm")),
            marks=(r"torch_compile_cache", r"(?:[^/]+/)?rank_\d+_\d+"),
            # What vLLM keeps beside its compile cache: downloads, and the topology of this one host.
            excluded=(r"assets/.*", r"modelinfos/.*", r"gpu_p2p_access_cache_for_.*"),
            literals=_VLLM_LITERALS,
        ),
        RootKind(
            name="inductor",
            variable="TORCHINDUCTOR_CACHE_DIR",
            places=(("TORCHINDUCTOR_CACHE_DIR", ""), (_TEMP, "torchinductor_{user}")),
            marks=(r"fxgraph", r"aotautograd", r"triton/\d+"),
            devices="triton",
        ),
        RootKind(
            name="triton",
            variable="TRITON_CACHE_DIR",
            places=(("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache"), (_HOME, ".triton/cache")),
            marks=(r"[A-Z2-7]{52}", r"[^/]+/__grp__.*\.json"),
            # With TRITON_CACHE_DIR set, Inductor puts its kernels there too, without a directory for each device.
            pointer=("TRITON_HOME", ".triton/cache"),
        ),
        RootKind(
            name="pycache",
            variable="PYTHONPYCACHEPREFIX",
            # Without the variable Python keeps byte code beside each source: the other places are ours, so that a
            # restore has one, and whoever starts Python has to be told of it.
            places=(
                ("PYTHONPYCACHEPREFIX", ""),
                ("XDG_CACHE_HOME", "triton-bundler/pycache"),
                (_HOME, ".cache/triton-bundler/pycache"),
            ),
            # Below it lies the absolute path of each source, at any depth.
            filled=r"(?!(?:.*/)?__pycache__/).+\.(?:cpython-|pypy|graalpy)\d+[^/]*\.pyc",
            kept=(r".*\.pyc", r"locks?"),
            excluded=(r".*\.pyc\.\d+",),  # Python's own staging
            asked=True,
            unset=("PYTHONDONTWRITEBYTECODE",),
        ),
        RootKind(name="generic", variable=None, literals=_VLLM_LITERALS),
    )
}

_UNITS: tuple[tuple[re.Pattern[str], Unit], ...] = (
    # First, since a package may have a directory of any of the names below.
    (re.compile(r".*\.pyc"), Unit.FILE),
    (re.compile(r"(?:.*/)?fxgraph/[^/]+/[^/]+/[^/]+"), Unit.FXGRAPH),
    (re.compile(r"(?:.*/)?aotautograd/[^/]+/[^/]+"), Unit.AOTAUTOGRAD),
    # cache/ holds what max-autotune measured: torch/_inductor/codecache.py, LocalCache.
    (re.compile(r".*\.best_config|.*\.autotune\.json|(?:.*/)?cache/[^/]+"), Unit.AUTOTUNE),
    (re.compile(r".*\.(?:so|dylib|pyd)(?:\.[\d.]+)?"), Unit.HOST_BINARY),
    (re.compile(r".*\.py"), Unit.MODULE),
)

# One path component each. Triton: tmp.pid_<pid>_<uuid>/ and, once, <file>.tmp.pid_<pid>_<n>. torch: tmp.<uuid>/ and
# .<pid>.<thread>.tmp. NFS: .nfs<hex> stands for a file that is still open.
_EXCLUDED_NAMES = re.compile(
    r"tmp\.pid_.*|.*\.tmp\.pid_.*|tmp\.[0-9a-f]{8}-[0-9a-f-]{27}|\.\d+\.\d+\.tmp|\.nfs[0-9a-f]+"
    rf"|{re.escape(STAGING_PREFIX)}.*|locks?|.*\.lock|__pycache__|.*\.pyc",
    re.DOTALL,
)


def known_kind(name: str, root: str) -> RootKind:
    """Return the kind of a root of a bundle, which a newer package may have made.

    Args:
        name: The kind's name.
        root: The root's name, for the message.

    Raises:
        UsageError: This package has no such kind.
    """
    if name not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise UsageError(f"root {root!r} is of kind {name!r}; this package knows {known}: update it")
    return KINDS[name]


def unit_of(path: str) -> Unit:
    """Return what a file is that belongs to no kernel entry; ``path`` is inside the root, with ``/``."""
    for pattern, unit in _UNITS:
        if pattern.fullmatch(path):
            return unit
    return Unit.FILE


def excluded(kind: RootKind, path: str) -> bool:
    """Whether a declared rule leaves out ``path`` (inside the root). Every parent is taken to be tested already."""
    name = path.rpartition("/")[2]
    if _EXCLUDED_NAMES.fullmatch(name) and (name.startswith(STAGING_PREFIX) or not _matches(kind.kept, name)):
        return True
    return _matches(kind.excluded, path)


def _matches(patterns: Iterable[str], text: str) -> bool:
    return any(re.fullmatch(pattern, text, re.DOTALL) for pattern in patterns)


def takes_file(kind: RootKind, path: str) -> bool:
    """Whether a file at ``path`` (inside the root) can belong to a root that is of this kind by what fills it."""
    return not kind.filled or bool(re.fullmatch(kind.filled, path, re.DOTALL))


def is_literal(kind: RootKind, path: str) -> bool:
    """Whether the file at ``path`` (inside the root) is a Python literal whose paths must follow the tree."""
    return any(re.fullmatch(pattern, path) for pattern in kind.literals)


def detect(paths: Iterable[str], files: Iterable[str] = ()) -> RootKind:
    """Return the kind of a directory, from what lies in it.

    Args:
        paths: Paths inside it, with ``/``; two levels are enough.
        files: Paths of files in it at any depth, or of enough of them; only looked at when ``paths`` do not tell.
    """
    listed = list(paths)
    for kind in KINDS.values():
        if any(re.fullmatch(mark, path) for mark in kind.marks for path in listed):
            return kind
    deep = list(files)
    for kind in KINDS.values():
        counted = [path for path in deep if kind.filled and not excluded(kind, path)]
        if counted and all(re.fullmatch(kind.filled, path, re.DOTALL) for path in counted):
            return kind
    return KINDS["generic"]


def locate(kind: RootKind, environment: Mapping[str, str] | None = None) -> str:
    """Return the absolute path at which this host keeps a root of ``kind``, as torch and Triton work it out.

    Raises:
        UsageError: No place can be named: the kind has none, or there is no home directory.
    """
    variables = os.environ if environment is None else environment
    for place, below in kind.places:
        base = _base(place, variables)
        if base:
            return os.path.abspath(os.path.join(base, below.format(user=_user(variables)) if below else ""))
    if kind.variable is None:
        raise UsageError(f"a {kind.name} root lies nowhere by itself: give --root {kind.name}=PATH, or --into PATH")
    raise UsageError(
        f"no place for the {kind.name} root: {kind.variable} is not set and this user has no home directory; "
        f"set {kind.variable}, or give --root {kind.name}=PATH"
    )


def _base(place: str, variables: Mapping[str, str]) -> str:
    if place == _TEMP:
        return tempfile.gettempdir()
    if place == _HOME:
        home = variables["HOME"] if "HOME" in variables else os.path.expanduser("~")
        # Without a passwd entry expanduser gives "~" back: a relative path, which would be a root in the current
        # directory that anybody may have planted. An empty HOME means "/", as it does for Triton.
        return "" if home.startswith("~") else home or "/"
    return variables.get(place, "")


def _user(variables: Mapping[str, str]) -> str:
    try:
        name = next((variables[v] for v in ("LOGNAME", "USER", "LNAME", "USERNAME") if variables.get(v)), "")
        name = name or getpass.getuser()
    except (KeyError, ImportError, OSError):  # a random UID in a container has no passwd entry
        name = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return re.sub(r'[\\/:*?"<>|]', "_", name)
