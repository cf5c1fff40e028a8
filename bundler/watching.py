"""What lies in the roots of a run, before it and after it: by names and stamps alone, no file is opened.

Which entries a run read is told by access times. They are set to an hour ago before the run; what is different after it
was read. That works with ``relatime``, which is what most file systems are mounted with, because the change of the
access time is itself a change that is younger than it. Where it does not work, a probe says so.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bundler import check
from bundler.kinds import excluded, takes_file, unit_of
from bundler.model import GROUP_PREFIX, Unit
from bundler.roots import Root

__all__ = ["Aged", "Identity", "Seen", "age", "changed", "look", "wait_until_quiet"]

Identity = tuple[str, str]

_HOUR = 3600
_POLL = 0.1  # seconds between two looks while files may still change


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry as it lies in a root.

    Attributes:
        root: Name of the root.
        path: Inside the root, with ``/``.
        unit: What it is.
        place: Its directory, for a kernel; its file else.
        stamps: What changes when a file of it is written or replaced, by name: inode, size, time of change.
    """

    root: str
    path: str
    unit: Unit
    place: str
    stamps: Mapping[str, tuple[int, int, int]]

    @property
    def name(self) -> str:
        """What a person knows it by: a kernel's name, a cache key, or the path inside the root."""
        parts = self.path.split("/")
        if self.unit is Unit.KERNEL:
            groups = [name for name in self.stamps if check.is_group(name)]
            return groups[0][len(GROUP_PREFIX) :].removesuffix(".json")
        if self.unit in (Unit.FXGRAPH, Unit.AOTAUTOGRAD) and len(parts) > 1:
            return parts[-2]
        return self.path

    @property
    def files(self) -> Iterator[str]:
        """Paths of the files that whoever uses it is sure to read one of: a kernel's group file and its binary."""
        if self.unit is not Unit.KERNEL:
            yield self.place
            return
        for name in {*filter(check.is_group, self.stamps), *check.binaries(tuple(self.stamps))}:
            yield os.path.join(self.place, name)


def look(roots: Iterable[Root]) -> dict[Identity, Seen]:
    """Return what lies in the roots. A root inside another one is its own, and no part of the outer one."""
    listed = list(roots)
    homes = {os.path.realpath(root.path) for root in listed}
    return {(seen.root, seen.path): seen for root in listed for seen in _entries(root, homes)}


def _entries(root: Root, homes: Collection[str]) -> Iterator[Seen]:
    top = os.path.realpath(root.path)
    pending = [""]
    while pending:
        path = pending.pop()
        directory = os.path.join(top, *path.split("/")) if path else top
        if path and directory in homes:
            continue
        files, below = _listed(root, directory, path)
        pending += below
        if path and any(check.is_group(name) for name in files):
            yield Seen(root.name, path, Unit.KERNEL, directory, files)
            continue
        for name, stamp in files.items():
            single = f"{path}/{name}" if path else name
            yield Seen(root.name, single, unit_of(single), os.path.join(directory, name), {name: stamp})


def _listed(root: Root, directory: str, path: str) -> tuple[dict[str, tuple[int, int, int]], list[str]]:
    """Return the files of a directory with their stamps, and the paths of the directories in it."""
    files: dict[str, tuple[int, int, int]] = {}
    below = []
    try:
        with os.scandir(directory) as listing:
            for item in listing:
                inside = f"{path}/{item.name}" if path else item.name
                if excluded(root.kind, inside):
                    continue
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:  # gone in the meantime
                    continue
                if stat.S_ISDIR(status.st_mode):
                    below.append(inside)
                elif stat.S_ISREG(status.st_mode) and takes_file(root.kind, inside):
                    files[item.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError:  # absent, or not ours to read
        pass
    return files, below


def changed(before: Mapping[Identity, Seen], after: Mapping[Identity, Seen]) -> list[Seen]:
    """Return the entries that are new in ``after``, or were written since ``before``, sorted by identity."""
    return [seen for identity, seen in sorted(after.items()) if identity not in before or before[identity] != seen]


def wait_until_quiet(
    roots: Iterable[Root], before: Mapping[Identity, Seen], seconds: float, deadline: float
) -> tuple[dict[Identity, Seen], bool]:
    """Wait until nothing of what a run wrote has changed for some time.

    Args:
        roots: The roots.
        before: What lay in them before the run: it does not count.
        seconds: How long nothing may change.
        deadline: Seconds after which to give up.

    Returns:
        What lies in the roots, and whether it was quiet.
    """
    listed = list(roots)
    started = time.monotonic()
    now = look(listed)
    newest = max((stamp[2] for seen in changed(before, now) for stamp in seen.stamps.values()), default=0)
    # A clock of a server may be ahead of ours: then wait the whole time.
    idle = max(0.0, time.time() - newest / 1e9)
    since = started - idle
    while time.monotonic() - since < seconds:
        if time.monotonic() - started >= deadline:
            return now, False
        time.sleep(min(_POLL, seconds))
        later = look(listed)
        if later != now:
            now, since = later, time.monotonic()
    return now, True


# -- access times ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Aged:
    """Entries whose files carry an access time that only a read changes.

    ``reason`` says why there are none; "" when there are.
    """

    entries: dict[Identity, Seen]
    time_ns: int
    reason: str = ""

    def read(self, after: Mapping[Identity, Seen]) -> set[Identity] | None:
        """Return which of the entries were read; None when that cannot be told.

        What was written anew does not count: it was made, not used.
        """
        if self.reason:
            return None
        same = [seen for identity, seen in self.entries.items() if after.get(identity) == seen]
        return {(seen.root, seen.path) for seen in same if any(map(self._is_read, seen.files))}

    def _is_read(self, path: str) -> bool:
        try:
            return os.lstat(path).st_atime_ns != self.time_ns
        except OSError:
            return False


def age(roots: Iterable[Root], entries: Mapping[Identity, Seen]) -> Aged:
    """Set the access times of entries to an hour ago, so that a read of them shows; other times stay as they are."""
    aged = Aged(dict(entries), (int(time.time()) - _HOUR) * 10**9)
    used = {seen.root for seen in entries.values()}
    for root in roots:
        if root.name in used and not aged.reason and not _shows_reads(root.path, aged):
            aged.reason = f"the file system of {root.path} does not keep access times (noatime?)"
    try:
        for seen in entries.values():
            if aged.reason:
                break
            for path in seen.files:
                _set_time(path, aged.time_ns)
    except OSError as error:
        aged.reason = f"the access time of {error.filename} cannot be set: {error.strerror}"
    return aged


def _set_time(path: str, time_ns: int) -> None:
    status = os.lstat(path)
    os.utime(path, ns=(time_ns, status.st_mtime_ns), follow_symlinks=False)


def _shows_reads(directory: str, aged: Aged) -> bool:
    """Try it with a file of our own. Where none can be made, the entries cannot be aged either."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".tb-probe-", dir=directory) as file:
            file.write(b"probe")
            file.flush()
            _set_time(file.name, aged.time_ns)
            before = os.lstat(file.name).st_atime_ns
            _read(file.name)
            # Whole seconds: what a file system rounds, it rounds alike.
            return before == aged.time_ns != os.lstat(file.name).st_atime_ns
    except OSError as error:
        aged.reason = f"no file can be made in {directory}: {error.strerror}"
        return True


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
