"""What a bundle says: frozen dataclasses, and named tuples where there are thousands, which take a third of the time.

No bytes of payload, no paths of this host.

The nouns are those of FORMAT.md. A ``Bundle index`` lists *roots*, *entries* with their *artifacts*, the *contents*
that artifacts refer to, and the *frames* that hold the contents. Everything here is checked by ``formats`` when it
comes from bytes, and by ``collect`` when it comes from a tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from bundler.errors import UsageError

__all__ = [
    "Artifact",
    "Base",
    "BaseRecord",
    "Content",
    "Entry",
    "Frame",
    "Index",
    "Profile",
    "Relocation",
    "RootRecord",
    "Skipped",
    "Spelling",
    "Target",
    "Unit",
]


class Unit(str, Enum):
    """What an entry is. The value is the word used in the index and in JSON."""

    KERNEL = "kernel"
    FXGRAPH = "fxgraph"
    AOTAUTOGRAD = "aotautograd"
    AUTOTUNE = "autotune"
    MODULE = "module"
    HOST_BINARY = "host_binary"
    FILE = "file"

    def __str__(self) -> str:
        return self.value


class Profile(str, Enum):
    """``full``: every file of an entry. ``runtime``: what a launch reads (binary, metadata, a group file of those)."""

    FULL = "full"
    RUNTIME = "runtime"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def read(cls, word: Profile | str) -> Profile:
        """Read ``full`` or ``runtime``.

        Raises:
            UsageError: Another word.
        """
        try:
            return cls(word)
        except ValueError:
            raise UsageError(f"profile {word!r} is unknown: known are {', '.join(cls)}") from None


class Base(Enum):
    """What a placeholder stands for: the entry's own directory, or the root. The value is the number in the index."""

    ENTRY = 0
    ROOT = 1


class Spelling(Enum):
    """How a path is written where a placeholder stands: inside a JSON string, or inside a Python string literal."""

    JSON = 0
    PYTHON = 1


class Relocation(NamedTuple):
    """The placeholders of one file. ``offsets`` count bytes from the start of the content, in its placeholder form.

    All placeholders of a file have one base and one spelling: a group file names its own directory in JSON, a vLLM
    handle table names paths below the root in Python literals.
    """

    base: Base
    spelling: Spelling
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """The GPU that a binary is for, as Triton writes it: ``arch`` is ``"90"`` (never ``"9.0"``) or ``"gfx942"``."""

    backend: str
    arch: str
    warp_size: int = 0

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"

    def fits(self, host: Target) -> bool:
        """Whether a binary for ``self`` loads on ``host``. Exact: a cubin or hsaco runs on its own arch only."""
        return (self.backend, self.arch) == (host.backend, host.arch)

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``cuda:90``.

        Raises:
            ValueError: No colon, or an empty part.
        """
        backend, _, arch = text.partition(":")
        if not backend or not arch:
            raise ValueError(f"{text!r} is not a target: expected BACKEND:ARCH, such as cuda:90 or hip:gfx942")
        return cls(backend, arch)


class Content(NamedTuple):
    """Bytes that are stored once. Position in ``Index.contents`` is the content's number.

    Attributes:
        digest: Raw SHA-256 of the ``size`` bytes (32 bytes, placeholder form).
        size: Bytes, all pieces together.
        copies: Whole contents inside this one, each as (bytes of its own before the copy, number of a content without
            copies that stands earlier). What follows the last copy is its own again.
        foreign: Number of a row in ``Index.foreign``: the foreign path prefixes found in these bytes.
    """

    digest: bytes
    size: int
    copies: tuple[tuple[int, int], ...] = ()
    foreign: int = 0


class Artifact(NamedTuple):
    """One file of an entry: its name inside the entry, the number of its content, its placeholders if it has any."""

    name: str
    content: int
    relocation: Relocation | None = None


class Entry(NamedTuple):
    """The atomic unit of a root.

    Attributes:
        root: Name of the root.
        path: Inside the root, with ``/``: a directory for a kernel, a file for every other unit.
        unit: What it is.
        artifacts: Sorted by name. A unit other than kernel has one, named as the last part of ``path``.
        target: The GPU that it is for; None when it is for none.
        needs: What a host binary asks of the host, such as ``machine:x86_64`` or ``glibc:2.34``; and byte code of
            Python, such as ``python:cpython-311``.
    """

    root: str
    path: str
    unit: Unit
    artifacts: tuple[Artifact, ...]
    target: Target | None = None
    needs: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        """(root name, path): what two bundles compare by."""
        return (self.root, self.path)

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"

    @property
    def directory(self) -> str:
        """The directory inside the root that holds the artifacts; "" for the root itself."""
        return self.path if self.unit is Unit.KERNEL else self.path.rpartition("/")[0]

    @property
    def key(self) -> str:
        """What the cache looks the entry up by: path key, FX graph or AOTAutograd cache key, else the file stem."""
        parts = self.path.split("/")
        if self.unit in (Unit.FXGRAPH, Unit.AOTAUTOGRAD) and len(parts) > 1:
            return parts[-2]
        return parts[-1] if self.unit is Unit.KERNEL else parts[-1].partition(".")[0] or parts[-1]

    @property
    def name(self) -> str:
        """The kernel's name where there is one (from its group file), else the last part of the path."""
        for artifact in self.artifacts:
            if artifact.name.startswith(GROUP_PREFIX):
                return artifact.name[len(GROUP_PREFIX) :].removesuffix(".json")
        return self.path.rpartition("/")[2]


GROUP_PREFIX = "__grp__"  # Triton: triton/runtime/cache.py, FileCacheManager.put_group


@dataclass(frozen=True, slots=True)
class RootRecord:
    """A root as the bundle knows it. ``path`` is where it lay when it was packed; "" when that was dropped (merge)."""

    name: str
    kind: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class BaseRecord:
    """What a delta says of the bundle that it stands on.

    Attributes:
        digest: Raw content digest of that bundle (32 bytes).
        contents: How many contents, the first ones, lie there and not in the payload of the delta.
        lost: Entries, as ``name/relative/path``, that it has and the packed tree did not; sorted. A restore keeps them.
    """

    digest: bytes
    contents: int
    lost: tuple[str, ...] = ()


class Frame(NamedTuple):
    """One zstd frame of the payload. Sizes in bytes; ``digest`` is the raw SHA-256 of the frame as stored."""

    stored_size: int
    raw_size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something of a root that is not in the bundle, written ``name/relative/path``, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Index:
    """All that a bundle says of itself.

    Attributes:
        profile: What of each kernel is in it.
        roots: Sorted by name.
        entries: Sorted by identity.
        contents: In payload order: content ``i`` has its own bytes right behind those of content ``i - 1``.
        frames: In payload order.
        foreign: Rows of foreign path prefixes; row 0 is empty. ``Content.foreign`` points here.
        facts: What was true of the host at pack time; JSON values without floats.
        skipped: What was left out.
        base: The bundle that has what is not in this one; None for a whole bundle.
    """

    profile: Profile
    roots: tuple[RootRecord, ...]
    entries: tuple[Entry, ...]
    contents: tuple[Content, ...]
    frames: tuple[Frame, ...]
    foreign: tuple[tuple[str, ...], ...] = ((),)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    base: BaseRecord | None = None

    @property
    def base_contents(self) -> int:
        """How many contents, the first ones, lie in the base: 0 for a whole bundle."""
        return self.base.contents if self.base else 0

    def needs_base(self, content: int) -> bool:
        """Whether a content lies in the base, or copies from there: a delta alone does not give it."""
        first = self.base_contents
        return content < first or any(source < first for _, source in self.contents[content].copies)

    @property
    def targets(self) -> tuple[Target, ...]:
        """Every target in it, once, sorted."""
        return tuple(sorted({entry.target for entry in self.entries if entry.target}))

    @property
    def content_size(self) -> int:
        """Bytes of all files that a full restore writes (placeholders counted as they are stored)."""
        return sum(self.contents[a.content].size for entry in self.entries for a in entry.artifacts)
