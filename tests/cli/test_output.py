"""What people and logs see: words and tables, nothing raw, nothing on the wrong stream."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundler.cli import _output, main
from bundler.cli._output import Bytes, Console, counted, printable, size_text

SIZES = {
    0: "0 bytes",
    1: "1 byte",
    1023: "1023 bytes",
    1024: "1.0 KiB",
    1536: "1.5 KiB",
    1023 * 1024: "1023.0 KiB",
    1024 * 1024 - 1: "1.0 MiB",
    (5 << 30): "5.0 GiB",
    (3 << 40): "3.0 TiB",
}


@pytest.mark.parametrize(("size", "text"), SIZES.items())
def test_a_size_is_readable(size: int, text: str) -> None:
    assert size_text(size) == text


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(n, "entry") for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert counted(2, "file") == "2 files"


PRINTABLE = {
    "plain text": "plain text",
    "ядро 核 🚀": "ядро 核 🚀",
    "a\nb": "a\\nb",
    "a\tb": "a\\tb",
    "\x1b[2J": "\\x1b[2J",
    "\x9b2J": "\\x9b2J",
    "\x7f": "\\x7f",
    "\u202egpj.exe": "\\u202egpj.exe",
    "\u2028": "\\u2028",
    "\udcff": "\\udcff",
    "\U000e0001": "\\U000e0001",
}


@pytest.mark.parametrize(("text", "shown"), PRINTABLE.items())
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


# --- a log ---------------------------------------------------------------------------------------------------------


def test_a_log_gets_lines_with_keys_and_rows_with_tabs(cli: Any, both: Path) -> None:
    for line in cli("inspect", both).lines:
        assert re.fullmatch(r"[a-z ]+: .+|[a-z ]+(\t[^\t]+)+", line), line


def test_quiet_prints_nothing(cli: Any, triton: Path, bundle: Path, flipped: Path, tmp_path: Path) -> None:
    for argv, code in (
        (["pack", triton, "-o", tmp_path / "x"], 0),
        (["unpack", bundle, "--into", tmp_path / "r"], 0),
        (["verify", bundle], 0),
        (["verify", flipped], 4),
        (["inspect", bundle], 0),
        (["diff", bundle, bundle], 0),
        (["repair", bundle, "--root", f"triton={tmp_path / 'r'}"], 0),
    ):
        run = cli(*argv, "--quiet")
        assert (run.code, run.out, run.err) == (code, b"", ""), argv


def test_quiet_leaves_errors_and_json(cli: Any, bundle: Path, tmp_path: Path) -> None:
    assert cli("verify", tmp_path / "absent", "--quiet").err.startswith("triton-bundler: error:")
    assert cli("verify", bundle, "--quiet", "--json").json["ok"]


def test_warnings_go_to_stderr_whatever_else_is_printed(
    cli: Any, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundler.staging.sweep", lambda *_: ["left \x1b behind"])
    for more in ([], ["--json"], ["--quiet"]):
        run = cli("unpack", bundle, "--into", tmp_path / "r", *more)
        assert run.err == "triton-bundler: warning: left \\x1b behind\n"


def test_a_name_cannot_forge_a_line(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "x\nok: 7 entries\t\x1b[2J").write_text("x")
    assert cli("pack", f"generic={tmp_path / 'g'}", "-o", tmp_path / "g.tbundle").code == 0
    run = cli("inspect", tmp_path / "g.tbundle", "--entries")
    assert "\x1b" not in run.text and "ok: 7 entries" not in run.lines
    assert "x\\nok: 7 entries\\t\\x1b[2J" in run.text
    failed = cli("verify", tmp_path / "no\nway\x1b")
    assert failed.err.count("\n") == 1 and "\x1b" not in failed.err


def test_a_stream_that_cannot_spell_a_name_gets_it_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console = Console()
    console.say("ядро")
    console.finish()
    assert raw.getvalue() == b"\\u044f\\u0434\\u0440\\u043e\n"


def test_a_closed_stdout_is_not_written_to(monkeypatch: pytest.MonkeyPatch, bundle: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["verify", str(bundle)]) == 0
    assert main(["verify", str(bundle), "--json"]) == 0
    assert main(["pack", str(tmp_path), "-o", "-"]) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["words", "json"])
def test_a_full_disk_under_stdout_is_told(
    process: Any, bundle: Path, more: list[str], process_environment: Any
) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "bundler", "verify", str(bundle), *more]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=process_environment, check=False)
    assert done.returncode == 12
    assert b"Traceback" not in done.stderr


# --- a terminal ----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Terminal, Terminal]]:
    """``terminal()``: make stdout and stderr terminals."""

    def make() -> tuple[Terminal, Terminal]:
        out, err = Terminal(), Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return make


def test_a_terminal_gets_tables_with_columns_under_each_other(
    terminal: Callable[[], tuple[Terminal, Terminal]], both: Path
) -> None:
    out, _ = terminal()
    assert main(["inspect", str(both)]) == 0
    text = out.getvalue()
    assert "\t" not in text
    lines = text.splitlines()
    at = lines.index("root")
    header, first, second = lines[at + 1 : at + 4]
    assert header.split()[:5] == ["name", "kind", "entries", "files", "size"]
    assert (first.split()[0], second.split()[0]) == ("inductor", "triton")
    assert header.index("packed from") == first.index(str(both.parent)) == second.index(str(both.parent))
    assert " KiB" in first


def test_a_terminal_gets_the_first_rows_and_a_log_all(
    terminal: Callable[[], tuple[Terminal, Terminal]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = terminal()
    rows = [(f"entry {number}", number) for number in range(50)]
    console = Console()
    console.listing("skipped", rows)
    console.table("units", ("name", "count"), rows)
    console.table("facts", ("name", "count"), rows, whole=True)
    text = out.getvalue()
    assert text.count("skipped: entry") == 20 and "skipped: and 30 more" in text
    assert text.count("entry 49") == 1
    log = io.StringIO()
    monkeypatch.setattr(sys, "stdout", log)
    console.listing("skipped", rows)
    console.table("units", ("name", "size"), [("x", Bytes(2048))])
    assert len(log.getvalue().splitlines()) == 51
    assert log.getvalue().endswith("units\tx\t2048\n")


def test_progress_is_drawn_on_stderr_and_wiped(
    terminal: Callable[[], tuple[Terminal, Terminal]], triton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_output, "_REDRAWN", 0.0)
    out = tmp_path / "x.tbundle"
    for argv, word in (
        (["pack", str(triton), "-o", str(out)], "packing "),
        (["verify", str(out)], "verifying ["),
        (["unpack", str(out), "--into", str(tmp_path / "r")], "restoring ["),
    ):
        _, err = terminal()
        assert main(argv) == 0
        drawn = err.getvalue()
        assert word in drawn and "\n" not in drawn
        assert drawn.rpartition("\r")[2] == "" and drawn.split("\r")[-2].strip() == ""


@pytest.mark.parametrize("more", [["--quiet"], ["--json"]], ids=["quiet", "json"])
def test_no_progress_where_it_is_not_wanted(
    terminal: Callable[[], tuple[Terminal, Terminal]], bundle: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_output, "_REDRAWN", 0.0)
    _, err = terminal()
    assert main(["verify", str(bundle), *more]) == 0
    assert err.getvalue() == ""


def test_progress_of_a_bundle_that_cannot_be_read_is_its_error_alone(
    terminal: Callable[[], tuple[Terminal, Terminal]], tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"nothing")
    _, err = terminal()
    assert main(["verify", str(tmp_path / "x")]) == 3
    assert err.getvalue().startswith("triton-bundler: error: ") and err.getvalue().count("\n") == 1


def test_stderr_that_is_closed_does_not_change_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert main(["verify", str(tmp_path / "absent")]) == 12
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["verify", str(tmp_path / "absent")]) == 12


def test_a_bundle_is_not_written_to_a_terminal(terminal: Callable[[], tuple[Terminal, Terminal]], triton: Path) -> None:
    _, err = terminal()
    assert main(["pack", str(triton), "-o", "-"]) == 2
    assert "terminal" in err.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_real_terminal_gets_a_table(
    both: Path, process_environment: dict[str, str], drain: Callable[[int], str]
) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bundler", "inspect", str(both)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=process_environment) as child:
        os.close(theirs)
        text = drain(ours)
    assert child.returncode == 0
    assert "packed from" in text and "\t" not in text


@pytest.fixture
def drain() -> Callable[[int], str]:
    def read(descriptor: int) -> str:
        parts = []
        while True:
            try:
                part = os.read(descriptor, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            parts.append(part)
        os.close(descriptor)
        return b"".join(parts).decode()

    return read
