"""A mega cache file -> entries of an Inductor root, laid out as ``torch.compiler.load_cache_artifacts`` would do it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from bundler import check
from bundler.collect import Collected, Draft, File, Options, long_strings, takes
from bundler.errors import LocalIOError, UnsafePathError
from bundler.formats import megacache
from bundler.kinds import unit_of
from bundler.model import Skipped
from bundler.roots import Root

__all__ = ["collect_mega"]


def collect_mega(root: Root, options: Options, into: Collected) -> None:
    """Read ``mega=FILE`` into ``into``; ``root.path`` is the file.

    What torch alone can lay out, and what fails its check, is skipped with the reason.

    Raises:
        LocalIOError: The file cannot be read.
        FormatError, DigestMismatchError: It is not a mega cache, or is damaged.
    """
    try:
        with open(root.path, "rb") as file:
            cache = megacache.read(file, name=root.path)
            digests = [megacache.artifact_digest(file, artifact) for artifact in cache.artifacts]
    except OSError as error:
        if isinstance(error, LocalIOError):
            raise
        raise LocalIOError.from_os_error(error, "read the mega cache", root.path) from error
    drafts: dict[str, Draft] = {}
    for artifact, digest in zip(cache.artifacts, digests):
        shown = f"{root.name}/{artifact.kind}:{artifact.key}"
        try:
            placed = megacache.place(artifact, digest)
        except UnsafePathError as error:
            into.skipped.append(Skipped(shown, error.reason))
            continue
        if isinstance(placed, megacache.LeftOut):
            into.skipped.append(Skipped(shown, placed.reason))
            continue
        if not takes(root, placed.path, options):
            continue
        draft = _draft(root, placed.path, artifact, digest.value, into)
        if draft is not None:
            drafts[placed.path] = draft  # the later one of two wins, as it does in torch
    into.drafts += drafts.values()
    into.bytes_in += sum(file.disk_size for draft in drafts.values() for file in draft.files)


def _draft(root: Root, path: str, artifact: megacache.MegaArtifact, digest: bytes, into: Collected) -> Draft | None:
    unit, name = unit_of(path), path.rpartition("/")[2]
    reopen = partial(_chunks, root.path, artifact)
    long: tuple[tuple[int, int, bytes], ...] = ()
    if artifact.size <= check.WHOLE_LIMIT:
        data = b"".join(reopen())
        facts = check.examine(name, data, unit)
        if facts.problems:
            reason = "; ".join(map(str, facts.problems))
            into.skipped.append(Skipped(f"{root.name}/{path}", reason))
            into.damaged += [(f"{root.name}/{path}", problem) for problem in facts.problems]
            return None
        long = long_strings(data, facts)
    return Draft(root.name, path, unit, [File(name, digest, artifact.size, artifact.size, reopen, long=long)])


def _chunks(path: str, artifact: megacache.MegaArtifact) -> Iterator[bytes]:
    with open(os.fspath(path), "rb") as file:
        yield from megacache.chunks(file, artifact)
