"""``triton-bundler verify``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bundler.cli._command import command as _command
from bundler.cli._command import parsed
from bundler.cli._fields import Field
from bundler.cli._files import content_bytes, source
from bundler.cli._output import Console, counted
from bundler.digest import Digest
from bundler.errors import BundlerError, DigestMismatchError, FormatError, UnsafePathError, UsageError

if TYPE_CHECKING:
    from bundler.verifying import EntryProblem, VerifyReport

__all__ = ["FIELDS", "PROBLEM", "command"]

PROBLEM = {"code": str, "entry": str, "file": str, "detail": str}
"""Shape of a problem; ``file`` is "" where it concerns the whole entry, and ``entry`` where it concerns the bundle."""

CODES = (
    "missing_member",
    "empty",
    "nul_filled",
    "bad_json",
    "bad_elf",
    "bad_pickle",
    "bad_python",
    "target_mismatch",
    "points_away",
    "digest",
    "format",
)

FIELDS = {
    "ok": Field(bool, "Whether nothing is wrong."),
    "entries": Field(int, "Entries that were looked at; 0 when the index cannot be read."),
    "problems": Field(
        [PROBLEM],
        f"What is wrong. The code is one of {', '.join(f'`{code}`' for code in CODES)}; "
        "the file is empty where the whole entry is meant, and the entry where the whole bundle is.",
    ),
    "files_in_base": Field(
        int, "Files of a delta that lie in its base, or copy from there, and were not looked at without `--base`."
    ),
    "content_digest": Field((str, None), "Of a bundle whose index can be read; null otherwise, and for a root."),
}


@_command("verify", FIELDS)
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--root", metavar="PATH", help="Check an installed root, as PATH or KIND=PATH, in place of a bundle.")
@click.option(
    "--expect-digest",
    metavar="DIGEST",
    callback=parsed(Digest.parse),
    help="Content digest that the bundle must have, as pack and inspect print it.",
)
@click.option("--base", metavar="OLD", help="The bundle that FILE is a delta of; it is checked too.")
def command(
    console: Console, file: str | None, root: str | None, expect_digest: Digest | None, base: str | None
) -> int:
    """Check a bundle, or an installed root with no bundle at hand.

    Of a bundle, every digest is computed, and every file examined; FILE may be - for stdin. Of a root, each entry has
    to be whole, and what holds paths has to point where it lies. Neither needs torch, Triton or a GPU.

    A delta alone is checked as far as it goes: what lies in its base is not looked at without --base.

    The exit code is that of the worst problem: 4 for a digest, 3 for the format, 6 for an entry that is not whole.
    """
    if (file is None) == (root is None):
        raise UsageError("give one of the two: a bundle, or --root PATH")
    if root is not None and expect_digest is not None:
        raise UsageError("--expect-digest is for a bundle: a root has no digest")
    if root is not None and base is not None:
        raise UsageError("--base is for a bundle: a root has none")
    console.report = {"ok": False, "entries": 0, "problems": [], "content_digest": None, "files_in_base": 0}
    try:
        report = _check(console, file, root, expect_digest, base)
    except (FormatError, DigestMismatchError, UnsafePathError) as error:
        console.report["problems"] = [_whole(error)]
        raise
    console.report = {**asdict(report), "content_digest": report.content_digest or None}
    if report.ok:
        console.say(f"ok: {counted(report.entries, 'entry')}, nothing wrong")
    else:
        wrong = len({problem.entry for problem in report.problems})
        console.say(f"not ok: {wrong} of {counted(report.entries, 'entry')} with {_count(report)}")
    if report.files_in_base:
        console.say(
            f"not looked at: {counted(report.files_in_base, 'file')} in the base of this delta; name it with --base"
        )
    if report.content_digest:
        console.say(f"content digest: {report.content_digest}")
    console.listing("problem", _rows(report))
    return report.exit_code


def _check(
    console: Console, file: str | None, root: str | None, digest: Digest | None, base: str | None
) -> VerifyReport:
    from bundler.verifying import verify, verify_root

    if file is None:
        return verify_root(root or "")
    with (
        source(file, again=base is not None) as bundle,
        console.progress("verifying", lambda: content_bytes(bundle) + (content_bytes(base) if base else 0)) as progress,
    ):
        return verify(bundle, base=base, expect_digest=digest, progress=progress)


def _whole(error: BundlerError) -> dict[str, Any]:
    code = "digest" if isinstance(error, DigestMismatchError) else "format"
    return {"code": code, "entry": "", "file": "", "detail": str(error)}


def _rows(report: VerifyReport) -> list[tuple[str, str, str, str]]:
    """Return a row for each problem, and one for all files that a damaged frame takes with it."""
    alike: dict[tuple[str, str], list[EntryProblem]] = {}
    for problem in report.problems:
        alike.setdefault((problem.code, problem.detail), []).append(problem)
    rows = []
    for (code, detail), problems in alike.items():
        first, more = problems[0], len(problems) - 1
        rows.append(
            (code, first.entry, f"{first.file} and {counted(more, 'more file')}" if more else first.file, detail)
        )
    return rows


def _count(report: VerifyReport) -> str:
    return counted(len(report.problems), "problem")
