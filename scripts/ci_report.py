#!/usr/bin/env python3
"""Turn what ``restore --json`` and ``save --json`` printed into outputs, variables and the summary of a CI job.

scripts/ci_report.py restore|save REPORT EXIT_CODE

Reads the names of the files to write from GITHUB_OUTPUT, GITHUB_ENV and GITHUB_STEP_SUMMARY, as GitHub has them; any
that is not set is passed over. A store that fails is a warning and not a failed job, unless TB_STRICT is "true".
Returns the exit code that the step shall have.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

STORE_FAILED = 10


def append(variable: str, text: str) -> None:
    path = os.environ.get(variable)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)


def row(name: str, value: object) -> str:
    text = " ".join(str(value).split()).replace("|", "\\|")
    return f"| {name} | {text} |\n"


def annotate(level: str, text: str) -> None:
    print(f"::{level} title=triton-bundler::{text.replace('%', '%25').replace(chr(10), ' ')}")


def restored(report: dict[str, Any]) -> str:
    hit = report.get("hit", False)
    outputs = {
        "hit": str(hit).lower(),
        "matched-key": report.get("matched_key") or "",
        "seconds-saved": report.get("seconds_saved", 0.0),
    }
    append("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in outputs.items()))
    if os.environ.get("TB_ROOTS", "").strip():  # not where the tools look by themselves: tell them
        lines = (f"{name}={value}\n" for name, value in report.get("env", {}).items() if "\n" not in value)
        append("GITHUB_ENV", "".join(lines))
    summary = row("hit", ("yes" if report.get("exact") else "by prefix") if hit else "no")
    if hit:
        summary += row("matched key", f"`{report['matched_key']}`")
        summary += row("entries restored", report["restored"] + report["repaired"])
        summary += row("entries there already", report["unchanged"] + report["kept"])
        summary += row("seconds of compiling saved", f"{report['seconds_saved']:.1f}")
    return summary


def saved(report: dict[str, Any]) -> str:
    append("GITHUB_OUTPUT", f"uploaded={str(report.get('uploaded', False)).lower()}\n")
    append("GITHUB_OUTPUT", f"entries={report.get('entries', 0)}\nadded={report.get('added', 0)}\n")
    append("GITHUB_OUTPUT", f"content-digest={report.get('content_digest') or ''}\n")
    would = "no, read-only" if report.get("would_upload") else "no, nothing new"
    summary = row("uploaded", "yes" if report.get("uploaded") else would)
    for name in ("entries", "added", "bytes_stored"):
        summary += row(name.replace("_", " "), report.get(name, 0))
    for name in ("conflicts", "dropped", "skipped"):
        if report.get(name):
            summary += row(name, len(report[name]))
    return summary


def main(verb: str, path: str, code: int) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            report: dict[str, Any] = json.load(file)
    except (OSError, ValueError):  # the command did not come so far as to print one; it said why on stderr
        report = {"error": {"message": f"{verb} ended with {code} and printed no report"}} if code else {}
    rows = (restored if verb == "restore" else saved)(report)
    for warning in report.get("warnings", []):
        annotate("warning", warning)
    strict = os.environ.get("TB_STRICT") == "true"
    if "error" in report:
        forgiven = code == STORE_FAILED and not strict
        annotate("warning" if forgiven else "error", report["error"]["message"])
        rows += row("failed", report["error"]["message"])
        code = 0 if forgiven else code
    key = os.environ.get("TB_KEY", "")
    append("GITHUB_STEP_SUMMARY", f"### Compile cache: {verb} `{key}`\n\n| | |\n| --- | --- |\n{rows}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
