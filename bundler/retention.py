"""The verbs for what a store holds: ``ls``, ``rm`` and ``gc``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bundler.errors import FormatError, NotABundleError, UsageError
from bundler.formats import HEADER_SIZE, payload_offset
from bundler.remote import StoreLike, opened_store
from bundler.stores import ObjectInfo, Store

__all__ = ["GcReport", "Removal", "RmReport", "gc", "ls", "rm"]

_DAY = 86400.0  # seconds


@dataclass(frozen=True, slots=True)
class RmReport:
    """Keys by what happened to them; ``foreign`` are no bundles and were left alone."""

    store: str
    removed: tuple[str, ...]
    missing: tuple[str, ...]
    foreign: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """A bundle that ``gc`` removed, or would: its size in bytes, its age in seconds since it was last used, and why."""

    key: str
    size: int
    age: float
    reason: str


@dataclass(frozen=True, slots=True)
class GcReport:
    """What ``gc`` did. ``foreign`` are objects that are no bundles, or changed meanwhile: they were left alone."""

    store: str
    removed: tuple[Removal, ...]
    kept: int
    foreign: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    dry_run: bool


def ls(store: StoreLike, prefix: str = "") -> tuple[ObjectInfo, ...]:
    """Return the objects whose keys begin with ``prefix``, sorted by key.

    Raises:
        StoreError: The store cannot be listed.
    """
    return tuple(opened_store(store).list(prefix))


def rm(store: StoreLike, keys: Iterable[str], *, force: bool = False) -> RmReport:
    """Remove bundles.

    Args:
        store: A store, or its URL.
        keys: Which.
        force: Remove what is no bundle, too.

    Raises:
        StoreError: One cannot be removed; those before it are.
    """
    target = opened_store(store)
    removed, missing, foreign = [], [], []
    for key in keys:
        if target.head(key) is None:
            missing.append(key)
        elif not force and not _is_bundle(target, key):
            foreign.append(key)
        else:
            target.delete(key)
            removed.append(key)
    return RmReport(target.url, tuple(removed), tuple(missing), tuple(foreign))


def _is_bundle(store: Store, key: str) -> bool:
    """Whether the object begins as a bundle does; a damaged one is still a bundle."""
    try:
        head = store.get_range(key, 0, HEADER_SIZE)
        payload_offset(head or b"")
    except NotABundleError:
        return False
    except FormatError:
        return True
    return True


def gc(
    store: StoreLike,
    *,
    prefix: str = "",
    max_size: int | None = None,
    max_age: float | None = None,
    keep: Sequence[str] = (),
    dry_run: bool = False,
    now: float | None = None,
) -> GcReport:
    """Remove whole bundles: those that nobody used for long, then the least recently used until the rest fits.

    A store that does not know when an object was read counts from when it was written.

    Args:
        store: A store, or its URL.
        prefix: Look only at keys that begin like this; ``max_size`` counts only those.
        max_size: Bytes that may stay.
        max_age: Seconds since the last use after which a bundle goes.
        keep: Glob patterns of keys that stay, whatever the limits.
        dry_run: Say what would go, and remove nothing.
        now: Seconds since the epoch; the time of the call by default.

    Raises:
        UsageError: Neither limit is given, or one is negative.
        StoreError: The store cannot be listed, or an object not be removed.
    """
    if max_size is None and max_age is None:
        raise UsageError("gc needs a limit: give a maximal size, a maximal age, or both")
    if (max_size or 0) < 0 or (max_age or 0) < 0:
        raise UsageError("a limit of gc is negative: give 0 or more")
    target = opened_store(store)
    now = time.time() if now is None else now
    objects = sorted(target.list(prefix), key=lambda info: (_used(info), info.key))
    size = total = sum(info.size for info in objects)
    removed, foreign = [], []
    for info in objects:
        age = max(0.0, now - _used(info))
        reason = _reason_to_go(age, size, max_size, max_age)
        if reason is None or any(fnmatchcase(info.key, pattern) for pattern in keep):
            continue
        if not _is_bundle(target, info.key) or _changed(target, info):
            foreign.append(info.key)
            continue
        if not dry_run:
            target.delete(info.key)
        size -= info.size
        removed.append(Removal(info.key, info.size, age, reason))
    return GcReport(target.url, tuple(removed), len(objects) - len(removed), tuple(foreign), total, size, dry_run)


def _used(info: ObjectInfo) -> float:
    return max(info.used, info.modified)


def _reason_to_go(age: float, size: int, max_size: int | None, max_age: float | None) -> str | None:
    if max_age is not None and age > max_age:
        return f"not used for {age / _DAY:.1f} days, {max_age / _DAY:.1f} are allowed"
    if max_size is not None and size > max_size:
        return f"{size} bytes are stored, {max_size} are allowed, and nothing older is left"
    return None


def _changed(store: Store, info: ObjectInfo) -> bool:
    """Whether somebody replaced or removed an object since it was listed."""
    now = store.head(info.key)
    return now is None or now.version != info.version
