"""What a hit does with a blob: the kernels appear, then the host binaries that launch them, as far as they run here.

Nothing is brought to the disk by force, and what is different is kept: this runs inside a training process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from bundler.emit import EmitOptions, EmitReport, OnConflict, emit
from bundler.errors import BundlerError
from bundler.formats import Reader
from bundler.host import recorded_isa
from bundler.host_binaries import unusable
from bundler.model import Entry, Index, Unit
from bundler.ready import is_ready
from bundler.roots import Root

__all__ = ["HitReport", "compile_seconds", "emit_blob"]

log = logging.getLogger("bundler")


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


def emit_blob(reader: Reader, places: Mapping[str, Root], *, by_device: bool) -> HitReport:
    """Emit the entries of a blob.

    Args:
        reader: Of the blob.
        places: Where each root goes, by its name in the blob.
        by_device: Each root is the directory of a device; see ``host_binaries.unusable``.

    Raises:
        BundlerError: As ``emit``. What is wrong with the place of a host binary is in the report: it costs no kernel.
    """
    index = reader.index
    kernels = [entry for entry in index.entries if entry.unit is not Unit.HOST_BINARY]
    binaries = _usable(index, by_device)
    absent = _not_ready(index, binaries, places)
    if absent:  # looked at before the first kernel appears: of a blob that is damaged, nothing does
        contents = {artifact.content for entry in absent for artifact in entry.artifacts}
        reader.check_frames(reader.frames_of(contents))
    emitted = _emit(reader, _not_ready(index, kernels, places), places, len(kernels))
    report = HitReport(**{each.name: getattr(emitted, each.name) for each in fields(emitted)})
    report.stands_for = compile_seconds(index)
    report.host_binaries_unusable = len(index.entries) - len(kernels) - len(binaries)
    try:
        report.host_binaries = _emit(reader, absent, places, len(binaries))
    except BundlerError as error:
        report.host_binaries_failed, report.host_binaries_error = len(absent), error
    return report


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
