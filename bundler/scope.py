"""What one compile left behind, and the blob that is made of it."""

from __future__ import annotations

import io
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bundler.collect import Collected, Draft, Options, collect_files, collect_kernels, takes
from bundler.errors import LocalIOError
from bundler.host_binaries import beside
from bundler.model import Index, Profile, Unit
from bundler.packing import retried, write_collected
from bundler.roots import Root
from bundler.winners import drop_losers

__all__ = ["Packed", "Scope", "pack"]

log = logging.getLogger("bundler")


@dataclass(slots=True)
class Scope:
    """One compile: kernels in the order of their ``put``, each with the compile time that it stands for.

    ``places`` has the directory that each lay in when it was put: a library may point the cache elsewhere later on.
    ``host_binaries`` and ``helpers`` are absolute paths, wherever they are; helpers are those of the process.
    """

    kernels: dict[tuple[int, str], float] = field(default_factory=dict)
    places: dict[tuple[int, str], str] = field(default_factory=dict)
    winners: set[str] = field(default_factory=set)
    required: set[str] = field(default_factory=set)
    host_binaries: set[str] = field(default_factory=set)
    helpers: tuple[str, ...] = ()


@dataclass(slots=True)
class Packed:
    """What was made of a scope; the counts are of what is in the blob, and of what was left out of it."""

    blob: bytes | None = None
    kernels: int = 0
    kernels_skipped: int = 0
    host_binaries: int = 0
    host_binaries_skipped: int = 0


def pack(
    scope: Scope,
    sources: Mapping[Root, Sequence[str]],
    *,
    profile: Profile,
    level: int,
    look: Callable[[Index], None],
    warn: Callable[[str], None],
) -> Packed:
    """Make one blob of the kernels of a scope, and of the host binaries that launch them.

    Args:
        scope: Over and done with.
        sources: Where to look for its kernels: roots, and paths inside them.
        profile: What of each kernel.
        level: zstd level.
        look: Shown the index of the blob, when there is one.
        warn: Told what is left out, and why.

    Raises:
        BundlerError: As ``write_collected``; LocalIOError too where there is no room for a temporary file.
    """
    # Winners are told from losers by what their IR says of its source.
    options = Options(profile=profile, launch_only=profile is Profile.RUNTIME and not scope.winners)
    roots = list({root.name: root for root in sources}.values())

    def attempt(options: Options) -> Packed:
        collected, packed = _collected(scope, sources, options, warn)
        if packed.kernels:
            out = io.BytesIO()
            try:
                written = write_collected(out, roots, collected, profile=profile, level=level, facts=_facts(scope))
            except OSError as error:  # no room for the temporary file
                place = tempfile.tempdir or "temporary file"
                raise LocalIOError.from_os_error(error, "write the blob", place) from error
            look(written.index)
            packed.blob = out.getvalue()
        return packed

    return retried(attempt, options)


def _facts(scope: Scope) -> dict[str, int]:
    seconds = sum(scope.kernels.values())
    return {"compile_milliseconds": round(seconds * 1000)} if seconds else {}


def _collected(
    scope: Scope, sources: Mapping[Root, Sequence[str]], options: Options, warn: Callable[[str], None]
) -> tuple[Collected, Packed]:
    kernels = Collected()
    for root, paths in sources.items():
        collect_kernels(root, paths, options, kernels)
    kernels.drafts = _without_losers(kernels.drafts, scope)
    packed = Packed(kernels=len(kernels.drafts), kernels_skipped=len(kernels.skipped))
    binaries = Collected()
    if packed.kernels:
        for root, paths in sources.items():
            collect_files(root, beside(root.path, paths, scope.host_binaries), options, binaries)
            for path in scope.helpers:
                _collect_helper(root, paths, path, options, binaries)
        found = _apart(binaries.drafts, kernels.drafts)
        drafts = [draft for draft in found if _tells_needs(draft)]
        packed.host_binaries = len(drafts)
        packed.host_binaries_skipped = len(binaries.skipped) + len(found) - len(drafts)
        kernels.drafts += drafts
        kernels.bytes_in += sum(file.disk_size for draft in drafts for file in draft.files)
    kernels.skipped += binaries.skipped
    for skipped in kernels.skipped:
        warn(f"left out of the bundle: {skipped.path}: {skipped.reason}")
    return kernels, packed


def _collect_helper(root: Root, kernels: Sequence[str], path: str, options: Options, into: Collected) -> None:
    """Take a helper from the cache that Triton found it in, to beside the kernels of a root.

    One that is gone is no loss to speak of: it was loaded, so Triton can make it again.
    """
    directory, name = os.path.split(path)
    cache, key = os.path.split(directory)
    if not os.path.isfile(path):
        return
    for parent in sorted({kernel.rpartition("/")[0] for kernel in kernels}):
        found = Collected()
        collect_files(replace(root, path=cache), [f"{key}/{name}"], options, found)
        for draft in found.drafts:
            draft.path = f"{parent}/{draft.path}" if parent else draft.path
            if takes(root, draft.path, options):
                into.drafts.append(draft)
        into.skipped += found.skipped


def _apart(binaries: Sequence[Draft], kernels: Sequence[Draft]) -> list[Draft]:
    """Return each host binary once, and none that a kernel takes along with all files of its directory.

    A bundle that holds a file twice is refused.
    """
    inside = {(draft.root, f"{draft.path}/{file.name}") for draft in kernels for file in draft.files}
    apart: dict[tuple[str, str], Draft] = {}
    for draft in binaries:
        apart.setdefault((draft.root, draft.path), draft)
    return [draft for identity, draft in apart.items() if identity not in inside]


def _tells_needs(draft: Draft) -> bool:
    if draft.unit is Unit.HOST_BINARY and draft.needs:
        return True
    log.debug("left out of the bundle: %s/%s: what it needs of a host is not known", draft.root, draft.path)
    return False


def _without_losers(drafts: list[Draft], scope: Scope) -> list[Draft]:
    """Leave out what autotuning did not choose, on purpose and without a warning; what is required stays."""
    _, losers = drop_losers(drafts, scope.winners)
    lost = {skipped.path for skipped in losers}
    return [
        draft
        for draft in drafts
        if f"{draft.root}/{draft.path}" not in lost or draft.path.rpartition("/")[2] in scope.required
    ]
