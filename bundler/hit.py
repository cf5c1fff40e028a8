"""What a hit does with a blob: the kernels appear, then the host binaries that launch them, as far as they run here.

A helper of Triton's driver appears twice: beside the kernels, and where Triton looks at this moment. torch asks the
driver right after the first hit of a process, before it points Triton to its own cache.

Nothing is brought to the disk by force, and what is different is kept: this runs inside a training process.

Source: torch/_inductor/codecache.py, ``cache_hit_post_compile``, which hashes the name of Triton's backend.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bundler.emit import EmitOptions, EmitReport, OnConflict, emit
from bundler.errors import BundlerError
from bundler.formats import Reader
from bundler.host import recorded_isa
from bundler.host_binaries import is_helper, unusable
from bundler.kinds import KINDS
from bundler.model import Entry, Index, Unit
from bundler.ready import is_ready
from bundler.roots import Root

__all__ = ["HitReport", "compile_seconds", "emit_blob"]

log = logging.getLogger("bundler")

_ELSEWHERE = "triton cache"  # a root that no blob has


@dataclass(slots=True)
class HitReport(EmitReport):
    """What was done on a hit: the fields of ``EmitReport`` are of the kernels alone.

    Attributes:
        stands_for: Seconds that all kernels of the blob took to compile, as far as they are known.
        host_binaries: The same, of the host binaries.
        host_binaries_unusable: How many were left out: of no use here, as ``host_binaries.unusable`` has it.
        host_binaries_failed: How many were to be written when that failed.
        host_binaries_error: Why; None when all went well.
    """

    stands_for: float = 0.0

    host_binaries: EmitReport = field(default_factory=EmitReport)
    host_binaries_unusable: int = 0
    host_binaries_failed: int = 0
    host_binaries_error: BundlerError | None = None

    @property
    def written(self) -> int:
        """Kernels that are there, and were not, or not whole, before."""
        return self.restored + self.repaired

    @property
    def host_binaries_written(self) -> int:
        """The same, of the host binaries."""
        return self.host_binaries.restored + self.host_binaries.repaired

    @property
    def all_bytes_written(self) -> int:
        """Bytes of kernels and host binaries."""
        return self.bytes_written + self.host_binaries.bytes_written

    @property
    def seconds_saved(self) -> float:
        """Seconds of compiling that this saved: the share of the kernels that were not there before."""
        return self.stands_for * self.written / max(1, self.written + self.unchanged + self.kept)


def compile_seconds(index: Index) -> float:
    """Return the seconds that the kernels of a blob took to compile, as far as they are known."""
    milliseconds = index.facts.get("compile_milliseconds")
    return milliseconds / 1000 if isinstance(milliseconds, int) else 0.0


def emit_blob(
    reader: Reader, places: Mapping[str, Root], *, by_device: bool, triton_cache: str | None = None
) -> HitReport:
    """Emit the entries of a blob.

    Args:
        reader: Of the blob.
        places: Where each root goes, by its name in the blob.
        by_device: Each root is the directory of a device; see ``host_binaries.unusable``.
        triton_cache: Where Triton would look for a helper of its driver now; None where it does not need one.

    Raises:
        BundlerError: As ``emit``. What is wrong with the place of a host binary is in the report: it costs no kernel.
    """
    index = reader.index
    kernels = [entry for entry in index.entries if entry.unit is not Unit.HOST_BINARY]
    binaries = _usable(index, by_device)
    batches = [(binaries, dict(places))]
    if triton_cache is not None:
        elsewhere = Root(_ELSEWHERE, KINDS["triton"], triton_cache)
        batches.append((_helpers(binaries, places, elsewhere), {_ELSEWHERE: elsewhere}))
    absent = [_not_ready(index, entries, there) for entries, there in batches]
    contents = {artifact.content for entries in absent for entry in entries for artifact in entry.artifacts}
    if contents:  # looked at before the first kernel appears: of a blob that is damaged, nothing does
        reader.check_frames(reader.frames_of(contents))
    report = HitReport(
        stands_for=compile_seconds(index),
        host_binaries_unusable=len(index.entries) - len(kernels) - len(binaries),
    )
    report.add(_emit(reader, _not_ready(index, kernels, places), places, len(kernels)))
    for (entries, there), missing in zip(batches, absent):
        try:
            report.host_binaries.add(_emit(reader, missing, there, len(entries)))
        except BundlerError as error:
            report.host_binaries_failed += len(missing)
            report.host_binaries_error = report.host_binaries_error or error
    return report


def _helpers(binaries: Sequence[Entry], places: Mapping[str, Root], cache: Root) -> list[Entry]:
    """Return the helpers among host binaries as entries of Triton's cache; none that is restored there anyway."""
    found: dict[str, Entry] = {}
    for entry in binaries:
        path = "/".join(entry.path.split("/")[-2:])
        if is_helper(path):
            found.setdefault(path, entry._replace(root=cache.name, path=path))
    there = {os.path.join(places[entry.root].path, *entry.path.split("/")) for entry in binaries}
    return [entry for path, entry in found.items() if os.path.join(cache.path, *path.split("/")) not in there]


def _usable(index: Index, by_device: bool) -> list[Entry]:
    known, usable = recorded_isa(index.facts), []
    for entry in index.entries:
        if entry.unit is Unit.HOST_BINARY:
            reason = unusable(entry, known, by_device=by_device)
            if reason is None:
                usable.append(entry)
            else:  # not worth a warning: without us it would be compiled as well
                log.debug("host binary not restored: %s: %s", entry, reason)
    return usable


def _not_ready(index: Index, entries: Sequence[Entry], places: Mapping[str, Root]) -> list[Entry]:
    return [entry for entry in entries if not is_ready(entry, index.contents, places[entry.root].path)]


def _emit(reader: Reader, entries: Sequence[Entry], places: Mapping[str, Root], count: int) -> EmitReport:
    """Emit the entries that are not ready, of ``count`` in all. Where each is equivalent, nothing is staged."""
    options = EmitOptions(on_conflict=OnConflict.KEEP, sync=False)
    report = EmitReport(restored=len(entries))
    if any(os.path.lexists(os.path.join(places[entry.root].path, entry.path)) for entry in entries):
        report = emit(reader, entries, places, replace(options, dry_run=True))
    if report.restored or report.repaired:
        report = emit(reader, entries, places, options)
    report.unchanged += count - len(entries)
    return report
