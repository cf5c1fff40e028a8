"""``triton-bundler inspect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import click

from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._files import source
from bundler.cli._output import Bytes, Console, counted, size_text
from bundler.cli._stores import one_object

__all__ = ["FIELDS", "command", "say"]

Row: TypeAlias = "tuple[str | int, ...]"

_SIZES = ("entries", "files", "size")
_FILE = {"name": str, "size": int, "digest": str, "relocations": int}

FIELDS = {
    "format_version": Field((int, str), 'Version of the format; `"mega"` for a file of torch\'s mega cache.'),
    "content_digest": Field((str, None), "Digest of what is in it, whatever the host, the compression and the order."),
    "index_digest": Field((str, None), "Digest of the index as it is stored: other facts, other digest."),
    "bundle_size": Field(int, "Bytes of the file."),
    "content_size": Field(int, "Bytes of all files that a full restore writes."),
    "index_size": Field((int, None), "Bytes of the index as it is stored."),
    "profile": Field(str, "`full` or `runtime`."),
    "targets": Field([str], "GPUs that it has kernels for, such as `cuda:90`."),
    "roots": Field(
        [{"name": str, "kind": str, "path": str, "entries": int, "files": int, "bytes": int}],
        "Its roots; the path is where the root lay when it was packed.",
    ),
    "facts": Field({str: object}, "What was true of the host that packed it."),
    "foreign_paths": Field(
        [{"entry": str, "file": str, "path": str}], "Directories of absolute paths that a restore leaves as they are."
    ),
    "skipped": Field([{"path": str, "reason": str}], "What the roots held and the bundle does not, and why."),
    "entries": Field(
        [
            {
                "root": str,
                "path": str,
                "unit": str,
                "key": str,
                "name": str,
                "target": (str, None),
                "needs": [str],
                "files": [_FILE],
            }
        ],
        "Every entry. The unit is one of `kernel`, `fxgraph`, `aotautograd`, `autotune`, `module`, `host_binary`, "
        "`file`; needs says what a host binary asks of the host; relocations counts the paths that a restore writes.",
    ),
    "base": Field(
        ({"content_digest": str, "files": int, "lost": [str]}, None),
        "Of a delta: the bundle that it needs, how many of its files lie there or copy from there, and the entries "
        "that it has and the packed tree had lost; null for a whole bundle.",
    ),
    "signed_by": Field((str, None), "Key that signed it; null without a signature."),
}


@_command("inspect", FIELDS)
@click.argument("file", metavar="FILE")
@click.option("--entries", "list_entries", is_flag=True, help="List every entry (the JSON always does).")
def command(console: Console, file: str, list_entries: bool) -> int:
    """Say what a bundle holds: roots, targets, sizes, facts, foreign paths, and what was skipped.

    FILE is a bundle, a file that torch.compiler.save_cache_artifacts() wrote, - for a bundle on stdin, or the URL of a
    bundle in a store. Only the index is read; verify checks the rest.
    """
    if "://" in file and _is_url(file):
        from bundler.remote import inspect_remote

        found = inspect_remote(*one_object(file, None, None))
    else:
        from bundler.listing import inspect

        with source(file, again=False) as bundle:
            found = inspect(bundle)
    console.report = found
    if not console.is_silent:
        say(console, console.report)
        if list_entries:
            header = ("unit", "target", "files", "size", "name", "entry")
            console.table("entry", header, map(_entry_row, found["entries"]), whole=True)
    return 0


def _is_url(file: str) -> bool:
    from bundler.stores import is_url  # with all that stores need, which a path does not

    return is_url(file)


def say(console: Console, found: Mapping[str, Any]) -> None:
    """Print what ``bundler.inspect`` found in words and tables."""
    files = sum(root["files"] for root in found["roots"])
    console.say(f"format: {found['format_version']}")
    console.say(f"content digest: {found['content_digest'] or 'none'}")
    sizes = f"{size_text(found['content_size'])} in {size_text(found['bundle_size'])}"
    console.say(f"holds: {counted(len(found['entries']), 'entry')}, {counted(files, 'file')}, {sizes}")
    console.say(f"profile: {found['profile']}")
    console.say(f"targets: {', '.join(found['targets']) or 'none'}")
    console.say(f"signed by: {found['signed_by'] or 'nobody'}")
    if found["base"]:
        base = found["base"]
        console.say(f"base: {base['content_digest']}, which {counted(base['files'], 'file')} of these need")
        console.listing("lost", [(entry, "in the base, and no longer in the packed tree") for entry in base["lost"]])
    console.table("root", ("name", "kind", *_SIZES, "packed from"), map(_root_row, found["roots"]))
    console.table("target", ("target", *_SIZES), _grouped(found["entries"], "target"))
    console.table("unit", ("unit", *_SIZES), _grouped(found["entries"], "unit"))
    facts = {name: value for name, value in found["facts"].items() if name != "last_used"}  # a row for each entry
    console.table("fact", ("name", "value"), _flat(facts), whole=True)
    prefixes = Counter(foreign["path"] for foreign in found["foreign_paths"])
    ranked = sorted(prefixes.items(), key=lambda item: (-item[1], item[0]))
    console.table("foreign path", ("files", "directory"), [(count, path) for path, count in ranked])
    console.listing("skipped", [(skipped["path"], skipped["reason"]) for skipped in found["skipped"]])


def _root_row(root: Mapping[str, Any]) -> Row:
    return (root["name"], root["kind"], root["entries"], root["files"], Bytes(root["bytes"]), root["path"] or "-")


def _grouped(entries: Iterable[Mapping[str, Any]], by: str) -> Iterator[Row]:
    """Yield a row for each value of a field: the value, entries, files, bytes."""
    groups: dict[str, list[list[int]]] = {}
    for entry in entries:
        groups.setdefault(entry[by] or "-", []).append([file["size"] for file in entry["files"]])
    for value, sizes in sorted(groups.items()):
        yield (value, len(sizes), sum(map(len, sizes)), Bytes(sum(map(sum, sizes))))


def _flat(facts: Any, name: str = "") -> Iterator[Row]:
    """Yield each fact as a name with dots, and a value in one line."""
    if isinstance(facts, dict):
        for key, value in facts.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    elif isinstance(facts, list) and facts and isinstance(facts[0], dict):
        for number, value in enumerate(facts):
            yield from _flat(value, f"{name}.{number}")
    else:
        yield (name, ", ".join(map(str, facts)) if isinstance(facts, list) else str(facts))


def _entry_row(entry: Mapping[str, Any]) -> Row:
    size = Bytes(sum(file["size"] for file in entry["files"]))
    place = f"{entry['root']}/{entry['path']}"
    return (entry["unit"], entry["target"] or "-", len(entry["files"]), size, entry["name"], place)
