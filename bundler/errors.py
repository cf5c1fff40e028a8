"""Every exception of this package, its fields and its exit code. Imports nothing of ours.

Two rules hold for all of them. The fields go to ``super().__init__`` in the order of ``__init__``, so that an error
survives pickling between processes; the sentence is built in ``__str__``. And the sentence says what was found, what
was expected, and what to do next.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import Any, ClassVar

__all__ = [
    "BundlerError",
    "ConflictError",
    "DigestMismatchError",
    "EntryExistsError",
    "FormatError",
    "IncompatibleTargetError",
    "IncompleteEntryError",
    "KeyNameError",
    "LimitExceededError",
    "LocalIOError",
    "MissingBaseError",
    "NoHitError",
    "NotABundleError",
    "NothingToPackError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "OtherBundleError",
    "RelocationError",
    "RequirementError",
    "SkippedError",
    "StoreError",
    "TruncatedError",
    "UnsafePathError",
    "UnsupportedVersionError",
    "UntrustedError",
    "UsageError",
    "WrongBaseError",
]


class BundlerError(Exception):
    """Root of the tree; never raised itself."""

    exit_code: ClassVar[int] = 1
    field_names: ClassVar[tuple[str, ...]] = ()

    def fields(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, for ``error`` in the JSON of a command."""
        return {name: getattr(self, name) for name in self.field_names}


class UsageError(BundlerError):
    """The call cannot be carried out as asked, whatever the files hold."""

    exit_code = 2
    field_names: ClassVar[tuple[str, ...]] = ("reason",)

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class MissingBaseError(UsageError):
    """A delta alone: some of its contents lie in another bundle. ``base`` is the content digest of that one."""

    field_names: ClassVar[tuple[str, ...]] = ("name", "base")

    def __init__(self, name: str, base: str) -> None:
        super().__init__(name)
        self.args = (name, base)
        self.name = name
        self.base = base

    def __str__(self) -> str:
        return (
            f"{self.name} is a delta, and needs the bundle with content digest {self.base}: name that one beside it, "
            "as in `unpack OLD DELTA`, or make one of the two first, with `merge OLD DELTA -o FILE`"
        )


class FormatError(BundlerError):
    """The bytes break FORMAT.md.

    Args:
        what: The part of the file, and what is wrong with it.
        offset: Bytes from the start of the file (or of the part that ``what`` names); -1 when no single place is wrong.
        name: The file, or "" while only bytes are known.
    """

    exit_code = 3
    field_names: ClassVar[tuple[str, ...]] = ("what", "offset", "name")

    def __init__(self, what: str, offset: int = -1, name: str = "") -> None:
        super().__init__(what, offset, name)
        self.what = what
        self.offset = offset
        self.name = name

    def _place(self) -> str:
        place = f"{self.name}: " if self.name else ""
        return place + (f"at byte {self.offset}: " if self.offset >= 0 else "")

    def __str__(self) -> str:
        return (
            f"{self._place()}{self.what}; the file is damaged or was not written by this format: make the bundle again"
        )


class NotABundleError(FormatError):
    """The first bytes are not the magic of a bundle."""

    def __str__(self) -> str:
        return f"{self._place()}not a bundle: {self.what}; name a file that `triton-bundler pack` wrote"


class UnsupportedVersionError(FormatError):
    """A file of a known format, in a version that this package cannot read. ``offset`` is where the version stands."""

    field_names: ClassVar[tuple[str, ...]] = ("found", "supported", "offset", "name")

    def __init__(self, found: int, supported: tuple[int, ...], offset: int = 8, name: str = "") -> None:
        super().__init__(f"format version {found}", offset, name)
        self.args = (found, supported, offset, name)
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        known = ", ".join(map(str, self.supported))
        return (
            f"{self._place()}format version {self.found} found, this package reads {known}: "
            "install a newer triton-bundler, or pack again with this one"
        )


class TruncatedError(FormatError):
    """The bytes end early. ``needed`` and ``available`` count bytes from ``offset``."""

    field_names: ClassVar[tuple[str, ...]] = ("offset", "needed", "available", "what", "name")

    def __init__(self, offset: int, needed: int, available: int, what: str = "bundle", name: str = "") -> None:
        super().__init__(what, offset, name)
        self.args = (offset, needed, available, what, name)
        self.needed = needed
        self.available = available

    def __str__(self) -> str:
        return (
            f"{self._place()}{self.what} is cut short: {self.needed} bytes needed, {self.available} available; "
            "copy or download it again"
        )


class LimitExceededError(FormatError):
    """A count or size is above the limit of the format. ``size`` and ``limit`` share the unit that ``what`` names."""

    field_names: ClassVar[tuple[str, ...]] = ("what", "size", "limit", "name")

    def __init__(self, what: str, size: int, limit: int, name: str = "") -> None:
        super().__init__(what, -1, name)
        self.args = (what, size, limit, name)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self._place()}{self.what} is {self.size}, the limit is {self.limit}; "
            "a bundle this large is refused before memory is allocated: split it, or do not trust it"
        )


class DigestMismatchError(BundlerError):
    """Stored bytes hash to another value than the one recorded. Digests are written ``sha256:<hex>``."""

    exit_code = 4
    field_names: ClassVar[tuple[str, ...]] = ("name", "expected", "actual", "offset")

    def __init__(self, name: str, expected: str, actual: str, offset: int = -1) -> None:
        super().__init__(name, expected, actual, offset)
        self.name = name
        self.expected = expected
        self.actual = actual
        self.offset = offset

    def __str__(self) -> str:
        place = f" at byte {self.offset}" if self.offset >= 0 else ""
        return (
            f"{self.name}{place}: digest is {self.actual}, expected {self.expected}; "
            "the bytes were changed after they were written: copy or download the file again, or pack again"
        )


class OtherBundleError(DigestMismatchError):
    """A whole bundle, and not the one whose content digest was asked for."""

    field_names: ClassVar[tuple[str, ...]] = ("name", "expected", "actual")

    def __init__(self, name: str, expected: str, actual: str) -> None:
        super().__init__(name, expected, actual)
        self.args = (name, expected, actual)

    def __str__(self) -> str:
        return (
            f"{self.name} has content digest {self.actual}, and {self.expected} was asked for: it is another bundle; "
            "name the right one, or find out who replaced it before you use it"
        )


class WrongBaseError(OtherBundleError):
    """A delta, and beside it a bundle that it was not made from. ``actual`` is the content digest of that one."""

    def __str__(self) -> str:
        return (
            f"{self.name} is a delta of the bundle with content digest {self.expected}, and was given {self.actual}: "
            "name the bundle that `pack --base` was given"
        )


class UnsafePathError(BundlerError):
    """A path that a restore must not follow: absolute, with ``..``, through a link, or of a reserved name."""

    exit_code = 5
    field_names: ClassVar[tuple[str, ...]] = ("path", "reason")

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path!r}: {self.reason}; nothing was written there: do not trust the bundle, or remove the link"


class IncompleteEntryError(BundlerError):
    """An entry without all of its members, or with a member that fails its check."""

    exit_code = 6
    field_names: ClassVar[tuple[str, ...]] = ("entry", "missing")

    def __init__(self, entry: str, missing: str) -> None:
        super().__init__(entry, missing)
        self.entry = entry
        self.missing = missing

    def __str__(self) -> str:
        return f"{self.entry}: {self.missing}; delete it, or run `triton-bundler repair` with a bundle that holds it"


class SkippedError(IncompleteEntryError):
    """``--strict`` was asked for, and something was skipped. ``entry`` is the first, ``missing`` its reason."""

    field_names: ClassVar[tuple[str, ...]] = ("entry", "missing", "count")

    def __init__(self, entry: str, missing: str, count: int) -> None:
        super().__init__(entry, missing)
        self.args = (entry, missing, count)
        self.count = count

    def __str__(self) -> str:
        return (
            f"{self.count} skipped and --strict given; the first is {self.entry}: {self.missing}; "
            "repair or remove what was skipped, or pack without --strict"
        )


class NothingToPackError(IncompleteEntryError):
    """No entry was found in any root. ``entry`` names the roots."""

    def __str__(self) -> str:
        return (
            f"nothing to pack in {self.entry}: {self.missing}; "
            "name the directory that the compile wrote to, and see that it compiled"
        )


class RequirementError(IncompleteEntryError):
    """A run left nothing of a kind that was required. ``entry`` names the roots, ``missing`` the kinds."""

    def __str__(self) -> str:
        return (
            f"required, and not in {self.entry}: {self.missing}; nothing was written: a cache was bypassed or switched "
            "off, or what compiles was not run (TORCH_LOGS=+torch._inductor.codecache says why)"
        )


class RelocationError(BundlerError):
    """A path in a file cannot be replaced by a placeholder, or a placeholder is not where the index says."""

    exit_code = 7
    field_names: ClassVar[tuple[str, ...]] = ("name", "reason", "offset")

    def __init__(self, name: str, reason: str, offset: int = -1) -> None:
        super().__init__(name, reason, offset)
        self.name = name
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        place = f" at byte {self.offset}" if self.offset >= 0 else ""
        return f"{self.name}{place}: {self.reason}; the entry cannot be moved: compile it again in its new place"


class IncompatibleTargetError(BundlerError):
    """The bundle has entries for GPUs, and none of them for this host. Targets are written ``cuda:90``."""

    exit_code = 8
    field_names: ClassVar[tuple[str, ...]] = ("bundle", "host")

    def __init__(self, bundle: tuple[str, ...], host: tuple[str, ...]) -> None:
        super().__init__(bundle, host)
        self.bundle = bundle
        self.host = host

    def __str__(self) -> str:
        return (
            f"the bundle holds kernels for {', '.join(self.bundle)}, wanted are {', '.join(self.host)}; nothing "
            "was written: use a bundle made for this GPU (unpack takes --target for another, and --force for any)"
        )


class EntryExistsError(BundlerError, FileExistsError):
    """A different entry is installed under the same identity, and the policy is ``fail``."""

    exit_code = 9
    field_names: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(_errno.EEXIST, "a different entry is installed", path)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def __str__(self) -> str:
        return (
            f"{self.path}: a different entry is installed here; nothing was written: "
            "choose --on-conflict keep or replace"
        )


class ConflictError(BundlerError):
    """Sources hold different entries of one identity.

    Args:
        entry: The first that differs.
        sources: Where it differs.
        conflicts: All that differ, as rows of JSON: ``entry``, ``sources`` and ``action``.
    """

    exit_code = 9
    field_names: ClassVar[tuple[str, ...]] = ("entry", "sources", "conflicts")

    def __init__(self, entry: str, sources: tuple[str, ...], conflicts: tuple[dict[str, Any], ...] = ()) -> None:
        super().__init__(entry, sources, conflicts)
        self.entry = entry
        self.sources = sources
        self.conflicts = conflicts

    def __str__(self) -> str:
        more = f" (and {len(self.conflicts) - 1} more entries differ)" if len(self.conflicts) > 1 else ""
        return (
            f"{self.entry} differs between {', '.join(self.sources)}{more}; nothing was written: "
            "choose --on-conflict first, last or lowest"
        )


class StoreError(BundlerError):
    """A store failed, or answered against its contract."""

    exit_code = 10
    field_names: ClassVar[tuple[str, ...]] = ("store", "key", "reason")
    remedy: ClassVar[str] = "check the address and the credentials, then try again"

    def __init__(self, store: str, key: str, reason: str) -> None:
        super().__init__(store, key, reason)
        self.store = store
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.store}: {self.key!r}: {self.reason}; {self.remedy}"


class KeyNameError(StoreError):
    """A key that no store takes, on any host."""

    remedy = "choose another key"


class NoHitError(StoreError):
    """A hit was required, and nothing was restored."""

    remedy = "save a bundle under this key first, or do without --require-hit"


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """No object under this key."""

    remedy = "list what is there with `triton-bundler ls`"

    def __init__(self, store: str, key: str) -> None:
        super().__init__(store, key, "no such object")
        self.errno, self.strerror, self.filename = _errno.ENOENT, "no such object", key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.key)


class ObjectExistsError(StoreError, FileExistsError):
    """An object is under this key already, or is not the version that was to be replaced."""

    remedy = "choose another key, or let it be replaced"

    def __init__(self, store: str, key: str) -> None:
        super().__init__(store, key, "the object exists already")
        self.errno, self.strerror, self.filename = _errno.EEXIST, "the object exists already", key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.key)


class UntrustedError(BundlerError):
    """No signature, or one that does not fit. ``signer`` is a key id, or "" when there is none."""

    exit_code = 11
    field_names: ClassVar[tuple[str, ...]] = ("reason", "signer")

    def __init__(self, reason: str, signer: str = "") -> None:
        super().__init__(reason, signer)
        self.reason = reason
        self.signer = signer

    def __str__(self) -> str:
        who = f" (signed by {self.signer})" if self.signer else ""
        return f"not trusted: {self.reason}{who}; get the bundle from its maker again, or give the right key"


class LocalIOError(BundlerError, OSError):
    """Reading or writing on this host failed.

    Args:
        path: What was read or written.
        code: The errno.
        action: What was being done, as a verb and its object ("write the staged files").
        needed: Bytes (or inodes, as ``action`` says) needed; 0 when that is not the matter.
        available: The same unit; 0 when that is not the matter.
    """

    exit_code = 12
    field_names: ClassVar[tuple[str, ...]] = ("path", "errno", "action", "needed", "available")

    def __init__(self, path: str, code: int, action: str, needed: int = 0, available: int = 0) -> None:
        super().__init__(code, os.strerror(code), path)
        self.path = path
        self.action = action
        self.needed = needed
        self.available = available

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.errno, self.action, self.needed, self.available)

    def __str__(self) -> str:
        code = self.errno or 0
        name = _errno.errorcode.get(code, str(code))
        sizes = f", {self.needed} needed, {self.available} available" if self.needed else ""
        return f"{self.path}: cannot {self.action}: {name} ({os.strerror(code)}){sizes}; {_remedy(code)}"

    @classmethod
    def from_os_error(cls, error: OSError, action: str, path: str = "", needed: int = 0) -> LocalIOError:
        """Wrap an ``OSError``; ``path`` is used when the error names none."""
        name = error.filename if error.filename is not None else path
        text = os.fsdecode(name) if isinstance(name, (str, bytes)) else path
        return cls(text if os.path.isabs(text) or not path else path, error.errno or _errno.EIO, action, needed)


_REMEDIES = {
    _errno.EACCES: "choose a directory that this user can read and write",
    _errno.EPERM: "choose a directory that this user can read and write",
    _errno.EROFS: "the file system is read-only: choose another directory",
    _errno.ENOSPC: "free some space or inodes, or choose another directory",
    _errno.EDQUOT: "the quota is used up: free some space or inodes, or choose another directory",
    _errno.ENOENT: "check the path",
    _errno.ENOTDIR: "check the path: a part of it is not a directory",
    _errno.EISDIR: "check the path: it is a directory",
    _errno.ENAMETOOLONG: "choose a shorter path",
    _errno.ELOOP: "a part of the path is a symbolic link: remove it, or name what it points to",
}


def _remedy(code: int) -> str:
    return _REMEDIES.get(code, "check the device, then try again")
