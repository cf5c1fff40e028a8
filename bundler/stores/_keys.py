"""Which keys a store takes. One table for all stores, so that what one holds can be copied to any other."""

from __future__ import annotations

import re

from bundler.errors import KeyNameError
from bundler.kinds import STAGING_PREFIX

__all__ = ["MAX_KEY_SIZE", "MAX_PART_SIZE", "check_key", "check_prefix", "key_problem"]

MAX_KEY_SIZE = 512
"""Bytes of a key. S3 takes 1,024, a prefix of the store included."""

MAX_PART_SIZE = 255
"""Bytes between two slashes: what file systems take as one name."""

_ODD = re.compile(r"[^A-Za-z0-9._=+@,/-]")


def key_problem(key: str) -> str | None:
    """Return why ``key`` is refused; None when it is fine."""
    if not key:
        return "the key is empty: it names no object"
    if odd := _ODD.search(key):
        # Blanks, quotes, percent signs and the like are spelled differently by each service, in URLs and in shells.
        return f"the key has {odd.group()!r} at character {odd.start()}: letters, digits and ._=+@,-/ are allowed"
    if len(key) > MAX_KEY_SIZE:
        return f"the key has {len(key)} bytes, {MAX_KEY_SIZE} are allowed"
    for part in key.split("/"):
        if problem := _part_problem(part):
            return problem
    return None


def _part_problem(part: str) -> str | None:
    if not part:
        return "the key has an empty part (a slash at an end, or two in a row): file systems drop those"
    if part in (".", ".."):
        return f"the key has the part {part!r}, which leads elsewhere in a file system and in a URL"
    if len(part) > MAX_PART_SIZE:
        return f"a part of the key has {len(part)} bytes, {MAX_PART_SIZE} are allowed: file systems take no more"
    if part.startswith(STAGING_PREFIX):
        return f"a part of the key begins with {STAGING_PREFIX!r}, which is kept for uploads that are not finished"
    return None


def check_key(store: str, key: str) -> None:
    """Refuse a key that not every store can hold.

    Raises:
        StoreError: ``key`` is refused, and why.
    """
    if problem := key_problem(key):
        raise KeyNameError(store, key, problem)


def check_prefix(store: str, prefix: str) -> None:
    """Refuse what cannot be the beginning of a key; "" is the beginning of all.

    Raises:
        StoreError: No key begins like this.
    """
    if prefix and (problem := key_problem(prefix + "x")):
        raise KeyNameError(store, prefix, problem.replace("the key", "the prefix"))
