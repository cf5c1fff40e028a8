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
from bundler.host_binaries import unusable
from bundler.model import Entry, Index, Unit
from bundler.ready import is_ready
from bundler.roots import Root

__all__ = ["HitReport", "restore"]

log = logging.getLogger("bundler")


@dataclass(slots=True)
class HitReport(EmitReport):
    """What was done on a hit: the fields of ``EmitReport`` are of the kernels alone.

    Attributes:
        host_binaries: The same, of the host binaries.
        host_binaries_unusable: How many were left out, since they would not run here, or nobody would look for them.
        host_binaries_failed: How many could not be written.
        host_binaries_error: Why; None when all went well.
    """

    host_binaries: EmitReport = field(default_factory=EmitReport)
    host_binaries_unusable: int = 0
    host_binaries_failed: int = 0
    host_binaries_error: BundlerError | None = None


def restore(reader: Reader, places: Mapping[str, Root], *, by_device: bool) -> HitReport:
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
    emitted = _emit(reader, kernels, places)
    report = HitReport(**{each.name: getattr(emitted, each.name) for each in fields(emitted)})
    report.host_binaries_unusable = len(index.entries) - len(kernels) - len(binaries)
    try:
        report.host_binaries = _emit(reader, binaries, places)
    except BundlerError as error:
        report.host_binaries_failed, report.host_binaries_error = len(absent), error
    return report


def _usable(index: Index, by_device: bool) -> list[Entry]:
    isa = index.facts.get("cpu_isa")
    known = [str(flag) for flag in isa] if isinstance(isa, list) else []
    usable = []
    for entry in index.entries:
        if entry.unit is Unit.HOST_BINARY:
            reason = unusable(entry, known, for_device=by_device)
            if reason is None:
                usable.append(entry)
            else:  # not worth a warning: without us it would be compiled as well
                log.debug("host binary not restored: %s: %s", entry, reason)
    return usable


def _not_ready(index: Index, entries: Sequence[Entry], places: Mapping[str, Root]) -> list[Entry]:
    return [entry for entry in entries if not is_ready(entry, index.contents, places[entry.root].path)]


def _emit(reader: Reader, wanted: Sequence[Entry], places: Mapping[str, Root]) -> EmitReport:
    """Emit the entries that are not installed. Where all of them are, equal or equivalent, nothing is staged."""
    entries = _not_ready(reader.index, wanted, places)
    options = EmitOptions(on_conflict=OnConflict.KEEP, sync=False)
    report = EmitReport(restored=len(entries))
    if any(os.path.lexists(os.path.join(places[entry.root].path, entry.path)) for entry in entries):
        report = emit(reader, entries, places, replace(options, dry_run=True))
    if report.restored or report.repaired:
        report = emit(reader, entries, places, options)
    report.unchanged += len(wanted) - len(entries)
    return report
