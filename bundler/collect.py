"""Cache directories -> entries. Reads only; an entry is taken whole or not at all.

Everything is read once. A small tree is kept in memory until it is written; of a large one only digests and positions
are kept, and each file is read again when its turn in the payload comes. A file that is not the same then makes the
whole pack start over without its entry.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from sys import intern
from typing import TypeAlias

from bundler import check
from bundler._opening import READ_FLAGS, open_unseen
from bundler.errors import LimitExceededError, LocalIOError, RelocationError, UnsafePathError, UsageError
from bundler.formats import check_path
from bundler.kinds import excluded, is_literal, takes_file, unit_of
from bundler.model import Profile, Relocation, Skipped, Target, Unit
from bundler.relocate import make_group, parse_literal
from bundler.roots import Root

__all__ = [
    "ChangedError",
    "Collected",
    "Draft",
    "File",
    "Options",
    "collect",
    "collect_files",
    "collect_kernels",
    "long_strings",
    "read_file",
    "shown",
    "stream_file",
    "takes",
]

_CHUNK = 1 << 20  # bytes read at a time from a large file
_EDGE = 64  # bytes looked at on either end of a large file
_COPY_MINIMUM = 128  # bytes; a shorter copy costs more in the index than it saves
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd  # not on Windows
_DIRECTORY_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


class ChangedError(Exception):
    """A file is not as it was when it was first read. Never leaves ``pack``."""

    def __init__(self, root: str, path: str) -> None:
        super().__init__(root, path)
        self.root = root
        self.path = path


@dataclass(frozen=True, slots=True)
class Options:
    """What to take.

    Attributes:
        profile: What of each kernel.
        launch_only: Do not read the IR of kernels: it must be there and not empty, and what it says (``module``) is not
            known. For the runtime profile, inside a training process.
        exclude: Glob patterns on ``path`` or ``name/path``.
        only: Identities; nothing else is then read.
        keep_bytes: Memory for what was read, in bytes.
        banned: Identities that changed under our hands twice.
    """

    profile: Profile = Profile.FULL
    launch_only: bool = False
    exclude: tuple[str, ...] = ()
    only: frozenset[tuple[str, str]] | None = None
    keep_bytes: int = 64 << 20
    banned: frozenset[tuple[str, str]] = frozenset()


@dataclass(slots=True)
class File:
    """One file of a draft, in its placeholder form.

    Attributes:
        name: Inside the entry.
        digest: Raw SHA-256 of the placeholder form.
        size: Its bytes.
        disk_size: Bytes of the file as it lies on disk.
        reopen: Reads the file again, in chunks; only asked of files without placeholders.
        relocation: Where its placeholders stand.
        data: Its bytes while they are kept in memory.
        long: (offset, size, digest) of the strings in a pickle that may be copies of other files.
        recorded: The root that a handle table names.
    """

    name: str
    digest: bytes
    size: int
    disk_size: int
    reopen: Callable[[], Iterable[bytes]]
    relocation: Relocation | None = None
    data: bytes | None = field(default=None, repr=False)
    long: tuple[tuple[int, int, bytes], ...] = field(default=(), repr=False)
    recorded: str = ""


@dataclass(slots=True)
class Draft:
    """An entry that was found whole.

    ``recorded`` is the directory that its group file names, or the root that its handle table names; "" without either.
    ``module`` is the file name of the Python module that a kernel was compiled from; "" when it does not say.
    ``compile_ns`` is how many nanoseconds torch spent on an FX graph, as its entry says.
    """

    root: str
    path: str
    unit: Unit
    files: list[File]
    target: Target | None = None
    needs: tuple[str, ...] = ()
    recorded: str = ""
    module: str = ""
    compile_ns: int = 0

    @property
    def directory(self) -> str:
        """The directory inside the root that holds the files; "" for the root itself."""
        return self.path if self.unit is Unit.KERNEL else self.path.rpartition("/")[0]


@dataclass(slots=True)
class Collected:
    """What lies in the roots: whole entries, what was left out and why, and bytes on disk of what is taken."""

    drafts: list[Draft] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    damaged: list[tuple[str, check.Problem]] = field(default_factory=list)  # those of ``skipped`` that fail a check
    bytes_in: int = 0

    @property
    def compile_ns(self) -> int:
        """Nanoseconds that torch spent on the FX graphs, as their entries say."""
        return sum(draft.compile_ns for draft in self.drafts)


def collect(root: Root, options: Options, into: Collected) -> None:
    """Read one root into ``into``.

    Raises:
        LocalIOError: The root itself cannot be read.
        UsageError: The root is a kernel directory itself.
    """
    _Collector(root, options, into).run()


def collect_kernels(root: Root, paths: Iterable[str], options: Options, into: Collected) -> None:
    """Read just the kernel directories at ``paths`` inside ``root``; one that is absent is skipped with that reason."""
    collector = _Collector(root, options, into)
    for path in paths:
        collector.kernel(path)


def collect_files(root: Root, paths: Iterable[str], options: Options, into: Collected) -> None:
    """Read just the files at ``paths`` inside ``root``, each an entry; one that is absent is skipped with a reason."""
    collector = _Collector(root, options, into)
    for path in paths:
        collector.file(path)


class _OnDisk:
    """Gives the bytes of a file again. Its directory is one string for all files in it: a tree has many."""

    __slots__ = ("_directory", "_name")

    def __init__(self, directory: str, name: str) -> None:
        self._directory = directory
        self._name = name

    def __call__(self) -> Iterator[bytes]:
        return stream_file(os.path.join(self._directory, self._name))


class _Collector:
    """Walks one root. Paths in it are relative to the root, with ``/``."""

    def __init__(self, root: Root, options: Options, into: Collected) -> None:
        self._root = root
        self._options = options
        self._into = into
        self._budget = options.keep_bytes

    def run(self) -> None:
        try:
            found = _scan(self._root.path)
        except OSError as error:
            raise LocalIOError.from_os_error(error, "read the root", self._root.path) from error
        if any(check.is_group(name) for name, _ in found):
            parent = os.path.dirname(self._root.path)
            raise UsageError(
                f"{self._root.path} is a kernel directory, not a root: name the directory above it, {parent}"
            )
        # Not by recursion: a path has room for 2,000 directories, and Python's stack for 1,000 calls.
        pending = self._directory("", found)
        while pending:
            path = pending.pop()
            listed = self._list(path)
            if listed is not None:
                pending += self._directory(path, listed)

    def _skip(self, path: str, reason: str) -> None:
        self._into.skipped.append(Skipped(f"{self._root.name}/{shown(path)}", shown(reason)))

    def _damaged(self, path: str, problems: Sequence[check.Problem]) -> None:
        self._skip(path, "; ".join(map(str, problems[:3])))
        self._into.damaged += [(f"{self._root.name}/{path}", problem) for problem in problems]

    def _full(self, path: str) -> str:
        return os.path.join(self._root.path, path if os.sep == "/" else path.replace("/", os.sep))

    def _directory(self, path: str, found: Iterable[tuple[str, int]]) -> list[str]:
        """Take what lies in a directory; return the directories in it, the last one first."""
        files, directories = [], []
        for name, kind in found:
            below = f"{path}/{name}" if path else name
            if excluded(self._root.kind, below) or self._is_excluded(below) or not self._is_named(below):
                continue
            if kind == stat.S_IFDIR:
                directories.append(below)
            elif kind == stat.S_IFREG:
                if takes_file(self._root.kind, below):
                    files.append(name)
            elif kind >= 0:
                what = "a symbolic link" if kind == stat.S_IFLNK else "not a regular file"
                self._skip(below, f"{what}: a bundle holds regular files only")
            elif kind != -errno.ENOENT:  # else a compiler renamed it away since it was listed: not an entry (any more)
                self._skip(below, f"cannot be read: {os.strerror(-kind)}")
        if path and any(check.is_group(name) for name in files):
            if self._is_wanted(path):
                self._kernel(path, files)
        else:
            for single in (f"{path}/{name}" if path else name for name in files):
                if self._is_wanted(single):
                    self._single(single)
        return directories[::-1]

    def _is_wanted(self, path: str) -> bool:
        return _is_wanted(self._root, path, self._options)

    def _is_excluded(self, path: str) -> bool:
        return _is_excluded(self._root, path, self._options)

    def _is_named(self, path: str) -> bool:
        """Whether a bundle can hold the name; one that it cannot hold is skipped."""
        try:
            check_path(path, path)
        except UnsafePathError as error:
            self._skip(path, error.reason)
        except LimitExceededError as error:
            self._skip(path, f"{error.what} is {error.size}, and a bundle holds {error.limit} at most")
        else:
            return True
        return False

    def _list(self, path: str) -> list[tuple[str, int]] | None:
        try:
            return _scan(self._full(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._skip(path, f"cannot be listed: {error.strerror}")
            return None

    # -- entries -------------------------------------------------------------------------------------------------

    def _keep(self, draft: Draft) -> None:
        if (draft.root, draft.path) in self._options.banned:
            self._skip(draft.path, "changed while it was read, twice: something is writing to it")
            return
        for file in draft.files:
            if file.data is not None:
                # What was made or edited cannot simply be read again, and is small: a group file, a handle table.
                if file.relocation is not None or len(file.data) <= self._budget:
                    self._budget -= len(file.data)
                else:
                    file.data = None
        self._into.drafts.append(draft)
        self._into.bytes_in += sum(file.disk_size for file in draft.files)

    def kernel(self, path: str) -> None:
        """Take one kernel directory."""
        found = self._list(path)
        if found is None:
            self._skip(path, "no such kernel directory: it was never written, or is gone")
        elif not any(check.is_group(name) for name, _ in found):
            self._skip(path, "no group file: the kernel counts as absent")
        else:
            self._kernel(path, [name for name in self._wanted(path, found) if self._is_named(f"{path}/{name}")])

    def file(self, path: str) -> None:
        """Take one file that is an entry by itself."""
        if self._is_named(path):
            self._single(path)

    def _wanted(self, path: str, found: Iterable[tuple[str, int]]) -> list[str]:
        below = ((name, f"{path}/{name}") for name, kind in found if kind == stat.S_IFREG)
        return [name for name, full in below if not excluded(self._root.kind, full) and not self._is_excluded(full)]

    def _kernel(self, path: str, names: list[str]) -> None:
        draft = None
        for attempt in (1, 2):  # what vanishes or changes is read once more, then given up
            try:
                draft = self._read_kernel(path, names)
                break
            except ChangedError as error:
                if attempt == 2:
                    self._skip(path, f"{error.path.rpartition('/')[2]} changed or vanished while it was read, twice")
                names = [name for name in self._wanted(path, self._list(path) or []) if shown(name) == name]
            except OSError as error:
                self._skip(path, f"cannot be read: {error.strerror}")
                break
        if draft is not None:
            self._keep(draft)

    def _read_kernel(self, path: str, names: list[str]) -> Draft | None:
        key, home = path.rpartition("/")[2], self._full(path)
        files: dict[str, File] = {}
        facts: dict[str, check.Facts] = {}
        with self._entered(path) as directory:
            stamps: dict[str, _Stamp] = {}
            for name in names:
                if self._options.launch_only and check.suffix(name) in check.IR_SUFFIXES:
                    size = self._stamp(path, name, directory)[1]
                    facts[name] = check.Facts()
                    if size:
                        continue
                found = self._read(f"{path}/{name}", name, Unit.KERNEL, key, home, directory)
                files[name], facts[name], stamps[name] = found
            # Each file is whole by now, but the first may be of one build and the last of another.
            if not facts or any(self._stamp(path, name, directory) != stamp for name, stamp in stamps.items()):
                raise ChangedError(self._root.name, path)
        problems, target = check.judge(facts)
        if problems:
            self._damaged(path, problems)
            return None
        module = module_of({name: file.data for name, file in files.items() if file.data is not None})
        if self._options.profile is Profile.RUNTIME:
            files = _runtime_files(files, facts)
        recorded = next((f.group.directory for f in facts.values() if f.group), "")
        return Draft(
            self._root.name,
            path,
            Unit.KERNEL,
            [files[name] for name in sorted(files)],
            target,
            recorded=recorded,
            module=module,
        )

    @contextmanager
    def _entered(self, path: str) -> Iterator[int | None]:
        """Give a descriptor of a kernel's directory, so that its path is walked once; None where there are none."""
        if not _HAS_DESCRIPTORS:
            yield None
            return
        try:
            directory = os.open(self._full(path), _DIRECTORY_FLAGS)
        except FileNotFoundError as error:
            raise ChangedError(self._root.name, path) from error
        try:
            yield directory
        finally:
            os.close(directory)

    def _stamp(self, path: str, name: str, directory: int | None) -> _Stamp:
        """Return what changes when a file of a kernel, or a single one (without ``name``), is written or replaced."""
        try:
            place = name if directory is not None else self._full(f"{path}/{name}" if name else path)
            return _stamp_of(os.stat(place, dir_fd=directory, follow_symlinks=False))
        except FileNotFoundError as error:
            raise ChangedError(self._root.name, f"{path}/{name}" if name else path) from error

    def _single(self, path: str) -> None:
        unit, name = unit_of(path), path.rpartition("/")[2]
        home = intern(os.path.dirname(self._full(path)))
        for attempt in (1, 2):
            try:
                file, facts, _ = self._read(path, name, unit, "", home)
                if facts.problems:
                    self._damaged(path, facts.problems)
                else:
                    needs = tuple(map(shown, facts.needs))
                    draft = Draft(self._root.name, path, unit, [file], needs=needs, recorded=file.recorded)
                    draft.compile_ns = facts.compile_ns
                    self._keep(draft)
                return
            except RelocationError as error:
                self._damaged(path, (check.Problem("bad_python", name, error.reason),))
                return
            except ChangedError:
                if attempt == 2:
                    self._skip(path, "changed or vanished while it was read, twice")
            except OSError as error:
                self._skip(path, f"cannot be read: {error.strerror}")
                return

    def _read(
        self, path: str, name: str, unit: Unit, key: str, home: str, directory: int | None = None
    ) -> tuple[File, check.Facts, _Stamp]:
        """Read and examine a file in ``home``; that its stamp is still the same is for the caller to see."""
        full, name = os.path.join(home, name), intern(name)  # the files of many kernels have few names
        try:
            data, stamp = _read_stamped(full if directory is None else name, directory, limit=check.WHOLE_LIMIT)
            if data is None and stamp[1] > check.WHOLE_LIMIT:
                return (*_read_large(full, name, unit, self._root.name, path), stamp)
        except FileNotFoundError as error:
            raise ChangedError(self._root.name, path) from error
        if data is None:
            raise ChangedError(self._root.name, path)
        facts = check.examine(name, data, unit, key=key)
        stored, relocation, recorded = data, None, ""
        if facts.group is not None:
            stored, relocation = facts.group.data, facts.group.relocation
        elif unit is not Unit.KERNEL and is_literal(self._root.kind, path) and not facts.problems:
            literal = parse_literal(data, path.rpartition("/")[0], name=name)
            stored, relocation, recorded = literal.data, literal.relocation, literal.root
        long = long_strings(data, facts)
        digest = hashlib.sha256(stored).digest()
        reopen = _OnDisk(home, name)
        return File(name, digest, len(stored), len(data), reopen, relocation, stored, long, recorded), facts, stamp


_Stamp: TypeAlias = tuple[int, int, int]  # inode, bytes, time of change: one of them differs once a file is written


def _stamp_of(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _scan(path: str) -> list[tuple[str, int]]:
    """Return name and kind of what lies in a directory, sorted; see ``_kind_of``."""
    with os.scandir(path) as found:
        return sorted((entry.name, _kind_of(entry)) for entry in found)


def _kind_of(entry: os.DirEntry[str]) -> int:
    """Return ``stat.S_IFMT`` of an entry of a directory, or minus the errno of what kept us from looking.

    On nearly every file system the listing tells, and nothing is looked at.
    """
    try:
        if entry.is_file(follow_symlinks=False):
            return stat.S_IFREG
        if entry.is_dir(follow_symlinks=False):
            return stat.S_IFDIR
        return stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
    except OSError as error:
        return -(error.errno or errno.EIO)


def shown(text: str) -> str:
    """Return ``text`` as a bundle can hold it: bytes of a path that are not UTF-8 are spelled as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


_LOCATION = re.compile(rb'loc\("([^"\\]+\.py)":')
_LOCATED = (".ttir", ".source", ".ttgir")  # stages that name their source, earliest first


def module_of(files: Mapping[str, bytes]) -> str:
    """Return the name of the Python module that a kernel was compiled from, from its IR; "" when it does not say."""
    for stage in _LOCATED:
        for name, data in files.items():
            match = _LOCATION.search(data) if name.endswith(stage) else None
            if match:
                return match.group(1).rpartition(b"/")[2].decode("utf-8", "replace")
    return ""


def _is_wanted(root: Root, path: str, options: Options) -> bool:
    return options.only is None or (root.name, path) in options.only


def _is_excluded(root: Root, path: str, options: Options) -> bool:
    if not options.exclude:
        return False
    forms = (path, f"{root.name}/{path}")
    return any(fnmatchcase(form, pattern) for pattern in options.exclude for form in forms)


def takes(root: Root, path: str, options: Options) -> bool:
    """Whether the options let an entry at ``path`` inside ``root`` be taken."""
    is_banned = (root.name, path) in options.banned
    return not is_banned and _is_wanted(root, path, options) and not _is_excluded(root, path, options)


def long_strings(data: bytes, facts: check.Facts) -> tuple[tuple[int, int, bytes], ...]:
    """Return (offset, size, digest) of the strings of a pickle that are worth looking up among other files."""
    view = memoryview(data)
    return tuple(
        (offset, size, hashlib.sha256(view[offset : offset + size]).digest())
        for offset, size in facts.long
        if size >= _COPY_MINIMUM
    )


def _runtime_files(files: dict[str, File], facts: dict[str, check.Facts]) -> dict[str, File]:
    """Keep what a launch reads: each group's binaries and metadata, and a group file that names just those."""
    kept: dict[str, File] = {}
    for name, fact in facts.items():
        if fact.group is None:
            continue
        chosen = set(check.binaries(fact.group.members))
        members = [m for m in fact.group.members if m in chosen or m.endswith(".json")]
        group = make_group(members)
        kept[name] = File(
            name,
            hashlib.sha256(group.data).digest(),
            len(group.data),
            files[name].disk_size,
            tuple,  # made, not read: nothing to reopen
            group.relocation,
            group.data,
        )
        kept.update((member, files[member]) for member in members)
    return kept


def read_file(path: str) -> bytes | None:
    """Return the bytes of a regular file; None when it changed while it was read (size or time of change).

    A FIFO does not block, and a symbolic link in the last part is not followed.

    Raises:
        OSError: It cannot be opened or read; ENOENT when it has vanished.
    """
    return _read_stamped(path, limit=None)[0]


def _read_stamped(path: str, directory: int | None = None, *, limit: int | None) -> tuple[bytes | None, _Stamp]:
    """Return the bytes of a regular file and its stamp; None for the bytes when they change, or are above ``limit``."""
    fd = open_unseen(path, READ_FLAGS, directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        size, stamp = status.st_size, _stamp_of(status)
        if limit is not None and size > limit:
            return None, stamp
        data = _read_all(fd, size)
        return data if len(data) == size and _stamp_of(os.fstat(fd)) == stamp else None, stamp
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)  # one byte more than there should be shows growth, and the end, in one call
    if len(data) >= size:
        return data
    parts = [data]
    while part := os.read(fd, _CHUNK):
        parts.append(part)
    return b"".join(parts)


def _read_large(full: str, name: str, unit: Unit, root: str, path: str) -> tuple[File, check.Facts]:
    """Hash a file that is too large to hold; its edges alone are checked."""
    hasher, size, nul_only, head, tail = hashlib.sha256(), 0, True, b"", b""
    for chunk in stream_file(full):
        hasher.update(chunk)
        size += len(chunk)
        nul_only = nul_only and chunk.count(0) == len(chunk)
        head = head or chunk[:_EDGE]
        tail = (tail + chunk[-_EDGE:])[-_EDGE:]
    if os.lstat(full).st_size != size:
        raise ChangedError(root, path)
    facts = check.examine_large(name, head, tail, unit, nul_only=nul_only)
    return File(name, hasher.digest(), size, size, _OnDisk(*os.path.split(full))), facts


def stream_file(path: str) -> Iterator[bytes]:
    """Yield a regular file in chunks of at most 1 MiB, not following a link in the last part.

    Raises:
        OSError: It cannot be opened or read.
    """
    fd = open_unseen(path, READ_FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        size = min(_CHUNK, status.st_size + 1)  # room for a whole chunk is made, whatever comes
        while chunk := os.read(fd, size):
            yield chunk
    finally:
        os.close(fd)
