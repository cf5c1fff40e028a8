"""The verb ``inspect``: what a bundle (or a mega cache) holds, read from its index alone."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

from bundler.digest import Digest
from bundler.errors import LocalIOError, UnsafePathError
from bundler.formats import MAGIC, Reader
from bundler.model import Artifact, Entry, Index
from bundler.reading import Blob, opened

__all__ = ["inspect"]


def inspect(blob: Blob) -> dict[str, Any]:
    """Return what a bundle says of itself, as JSON values; the payload is neither read nor checked.

    The file of ``torch.compiler.save_cache_artifacts()`` is told by its first bytes and listed too: ``format_version``
    is then ``"mega"``.

    Raises:
        FormatError, DigestMismatchError, UnsafePathError: Neither of the two, or damaged.
        LocalIOError: The file cannot be read.
    """
    mega = _mega(blob)
    if mega is not None:
        return mega
    with opened(blob, alone=True) as reader:
        return _listing(reader)


def _listing(reader: Reader) -> dict[str, Any]:
    index = reader.index
    return {
        "format_version": 1,
        "content_digest": str(reader.content_digest),
        "index_digest": str(reader.index_digest),
        "bundle_size": reader.bundle_size,
        "content_size": index.content_size,
        "index_size": reader.header.index_size,
        "profile": index.profile.value,
        "targets": [str(target) for target in index.targets],
        "roots": [_root(index, root.name, root.kind, root.path) for root in index.roots],
        "facts": index.facts,
        "foreign_paths": list(_foreign_paths(index)),
        "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in index.skipped],
        "entries": [_entry(index, entry) for entry in index.entries],
        "base": _base(index),
        "signed_by": None,
    }


def _base(index: Index) -> dict[str, Any] | None:
    if index.base is None:
        return None
    in_base = sum(index.needs_base(a.content) for entry in index.entries for a in entry.artifacts)
    digest = str(Digest(index.base.digest))
    return {"content_digest": digest, "files": in_base, "lost": list(index.base.lost)}


def _root(index: Index, name: str, kind: str, path: str) -> dict[str, Any]:
    entries = [entry for entry in index.entries if entry.root == name]
    artifacts = [artifact for entry in entries for artifact in entry.artifacts]
    size = sum(index.contents[artifact.content].size for artifact in artifacts)
    return {"name": name, "kind": kind, "path": path, "entries": len(entries), "files": len(artifacts), "bytes": size}


def _entry(index: Index, entry: Entry) -> dict[str, Any]:
    return {
        "root": entry.root,
        "path": entry.path,
        "unit": entry.unit.value,
        "key": entry.key,
        "name": entry.name,
        "target": str(entry.target) if entry.target else None,
        "needs": list(entry.needs),
        "files": [_file(index, artifact) for artifact in entry.artifacts],
    }


def _file(index: Index, artifact: Artifact) -> dict[str, Any]:
    content = index.contents[artifact.content]
    return {
        "name": artifact.name,
        "size": content.size,
        "digest": str(Digest(content.digest)),
        "relocations": len(artifact.relocation.offsets) if artifact.relocation else 0,
    }


def _foreign_paths(index: Index) -> Iterator[dict[str, str]]:
    for entry in index.entries:
        for artifact in entry.artifacts:
            content = index.contents[artifact.content]
            rows = {content.foreign, *(index.contents[source].foreign for _, source in content.copies)}
            for path in sorted({path for row in rows for path in index.foreign[row]}):
                yield {"entry": str(entry), "file": artifact.name, "path": path}


def _mega(blob: Blob) -> dict[str, Any] | None:
    """List a mega cache; None when the bytes are not one."""
    if isinstance(blob, (bytes, bytearray, memoryview)):
        return _mega_listing(io.BytesIO(blob), "mega cache")
    if not isinstance(blob, (str, os.PathLike)):
        return None
    path = os.fspath(blob)
    try:
        with open(path, "rb") as file:
            return _mega_listing(file, path) if file.seekable() else None
    except OSError as error:
        raise LocalIOError.from_os_error(error, "read the bundle", path) from error


def _mega_listing(file: Any, name: str) -> dict[str, Any] | None:
    if file.read(len(MAGIC)) == MAGIC:
        return None
    # Not before it may be needed: to look into a bundle takes no longer than to start Python.
    from bundler.formats import megacache
    from bundler.kinds import unit_of

    file.seek(0)
    if not megacache.is_megacache(file.read(megacache.HEAD_BYTES)):
        return None
    size = file.seek(0, 2)
    file.seek(0)
    cache = megacache.read(file, name=name)
    listed: dict[str, dict[str, Any]] = {}
    skipped = []
    for artifact in cache.artifacts:
        digest = megacache.artifact_digest(file, artifact)
        try:
            placed = megacache.place(artifact, digest)
        except UnsafePathError as error:
            skipped.append({"path": f"{artifact.kind}:{artifact.key}", "reason": error.reason})
            continue
        if isinstance(placed, megacache.LeftOut):
            skipped.append({"path": f"{artifact.kind}:{artifact.key}", "reason": placed.reason})
            continue
        unit, base = unit_of(placed.path), placed.path.rpartition("/")[2]
        entry = Entry("inductor", placed.path, unit, (Artifact(base, 0),))
        listed[placed.path] = {  # the later one of two wins, as it does in torch
            "root": "inductor",
            "path": placed.path,
            "unit": unit.value,
            "key": entry.key,
            "name": entry.name,
            "target": None,
            "needs": [],
            "files": [{"name": base, "size": artifact.size, "digest": str(digest), "relocations": 0}],
        }
    entries = list(listed.values())
    total = sum(file["size"] for each in entries for file in each["files"])
    root = {
        "name": "inductor",
        "kind": "inductor",
        "path": "",
        "entries": len(entries),
        "files": len(entries),
        "bytes": total,
    }
    return {
        "format_version": "mega",
        "content_digest": None,
        "index_digest": None,
        "index_size": None,
        "bundle_size": size,
        "content_size": total,
        "profile": "full",
        "targets": [],
        "roots": [root],
        "facts": {},
        "foreign_paths": [],
        "base": None,
        "skipped": skipped,
        "entries": entries,
        "signed_by": None,
    }
