#!/usr/bin/env python3
"""Print the table of exit codes, made from the error classes; fail when two families share a code by mistake.

scripts/list_errors.py            the table, in Markdown
scripts/list_errors.py --check    nothing but the verdict
"""

from __future__ import annotations

import argparse
import inspect
import sys

from bundler import errors
from bundler.errors import BundlerError

# Codes that are not of an error class.
OTHERS = {
    0: "Done; also `diff` of bundles that differ, and host binaries that were skipped.",
    130: "Stopped by SIGINT (Ctrl-C); SIGTERM gives 143, SIGHUP 129. What was half written is removed.",
    141: "Nobody reads the output any more.",
}

# Families that mean to share a code: both are a conflict, once with what is installed, once between two sources.
SHARED = ({"ConflictError", "EntryExistsError"},)


def classes() -> list[type[BundlerError]]:
    """Every error class, in the order of the code, then as they stand in the file."""
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BundlerError)]
    return sorted(found, key=lambda kind: (kind.exit_code, inspect.getsourcelines(kind)[1]))


def family(kind: type[BundlerError]) -> str:
    """The class right below the root that a class comes from: a family has one code, and a code one family."""
    line = [base for base in kind.__mro__ if issubclass(base, BundlerError)]
    return line[-2].__name__ if len(line) > 1 else line[-1].__name__


def mistakes() -> list[str]:
    """What is wrong with the codes."""
    found = [f"{kind.__name__} has code {kind.exit_code}, outside 1 to 125" for kind in classes() if not _sound(kind)]
    codes: dict[int, set[str]] = {}
    families: dict[str, set[int]] = {}
    for kind in classes():
        codes.setdefault(kind.exit_code, set()).add(family(kind))
        families.setdefault(family(kind), set()).add(kind.exit_code)
    found += [
        f"code {code} is shared by {', '.join(sorted(names))}"
        for code, names in codes.items()
        if len(names) > 1 and names not in SHARED
    ]
    found += [f"{name} has the codes {sorted(given)}" for name, given in families.items() if len(given) > 1]
    return found


def _sound(kind: type[BundlerError]) -> bool:
    return 1 <= kind.exit_code <= 125  # what lies above has a meaning for a shell


def table() -> str:
    """The table, in Markdown."""
    rows = dict(OTHERS)
    kinds: dict[int, list[str]] = {}
    for kind in classes():
        first = (inspect.getdoc(kind) or "").partition("\n")[0]
        if kind is BundlerError:
            rows[1] = "Unexpected: a fault of this program; also `demo` when something does not hold."
            continue
        rows.setdefault(kind.exit_code, first)
        kinds.setdefault(kind.exit_code, []).append(f"`{kind.__name__}`")
    lines = ["| code | meaning | `error.type` |", "| --- | --- | --- |"]
    lines += [f"| {code} | {rows[code]} | {', '.join(kinds.get(code, []))} |" for code in sorted(rows)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="print no table")
    arguments = parser.parse_args()
    if not arguments.check:
        print(table(), end="")
    wrong = mistakes()
    for each in wrong:
        print(f"list_errors: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
