"""Relocation: paths that must follow the tree are found by parsing, and nothing else in a file is touched."""

from __future__ import annotations

import ast
import json
import pprint
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler import relocate
from bundler.errors import RelocationError
from bundler.model import Base, Relocation, Spelling
from bundler.relocate import PLACEHOLDERS, make_group, parse_group, parse_literal, restore, spell, unrestore
from bundler.testing.trees import (
    VLLM_CACHE_FILE,
    kernel_directories,
    synthetic_inductor_root,
    synthetic_kernel,
    synthetic_vllm_root,
)

KEY = "KEY"
JSON, PYTHON = Spelling.JSON, Spelling.PYTHON

# Directories that a tree may be moved to.
PLACES = {
    "plain": "/tmp/t",
    "root": "/",
    "short": "/x",
    "a placeholder": "/[REPLACE]/[ROOT]",
    "quotes": "/a'b\"c/\"\"\"/'''",
    "backslashes": "/a\\b\\/n\\x41\\u0041\\N{DIGIT ONE}\\",
    "blanks": "/my cache/ with  blanks ",
    "control characters": "/tab\there/line\nend\r/\x00\x1f\x7f",
    "not ASCII": "/é/データ/\N{GRINNING FACE}/\u2028",
    "not UTF-8": "/caf\udce9/\udcff",
    "3,500 bytes": "/" + "/".join(["d" * 99] * 35),
    "percent and braces": "/%s/{user}/$HOME",
}


# --- placeholder <-> path --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spelling", Spelling)
def test_a_path_stands_between_quotes_of_either_kind_and_reads_as_itself(spelling: Spelling, place: str) -> None:
    path = PLACES[place]
    spelled = spell(path, spelling).decode("ascii")
    assert "\n" not in spelled and "\r" not in spelled
    if spelling is JSON:
        assert json.loads(f'"{spelled}"') == path
    else:
        assert ast.literal_eval(f"'{spelled}'") == ast.literal_eval(f'"{spelled}"') == path


@given(path=st.text(max_size=60))
def test_every_text_can_be_spelled(path: str) -> None:
    assert json.loads(b'"' + spell(path, JSON) + b'"') == path
    spelled = spell(path, PYTHON).decode("ascii")
    assert ast.literal_eval(f"'{spelled}'") == ast.literal_eval(f'"{spelled}"') == path


pieces = st.lists(st.binary(max_size=20), min_size=1, max_size=5)
rows = st.sampled_from([(base, spelling) for base in Base for spelling in Spelling])


@given(pieces=pieces, row=rows, path=st.text(max_size=40).map(lambda text: "/" + text))
def test_unrestore_undoes_restore(pieces: list[bytes], row: tuple[Base, Spelling], path: str) -> None:
    mark = PLACEHOLDERS[row[0]]
    offsets, at = [], 0
    for piece in pieces[:-1]:
        offsets.append(at + len(piece))
        at += len(piece) + len(mark)
    data = mark.join(pieces)
    relocation = Relocation(*row, tuple(offsets))
    restored = restore(data, relocation, path)
    assert restored == spell(path, row[1]).join(pieces)
    assert unrestore(restored, relocation, path) == data


def test_text_that_looks_like_a_placeholder_is_kept() -> None:
    data = b"[REPLACE]/[REPLACE] [REPLACE]/x [ROOT]"
    relocation = Relocation(Base.ENTRY, JSON, (20,))
    assert restore(data, relocation, "/t") == b"[REPLACE]/[REPLACE] /t/x [ROOT]"


@pytest.mark.parametrize(
    "offsets",
    [(1,), (9,), (11,), (0, 0), (0, 5), (12, 0), (0, 12, 20), (100,), (0, -9)],
    ids=str,
)
def test_a_placeholder_that_is_not_where_the_index_says_is_refused(offsets: tuple[int, ...]) -> None:
    data = b"[REPLACE]/a [REPLACE]/b"
    with pytest.raises(RelocationError) as error:
        restore(data, Relocation(Base.ENTRY, JSON, offsets), "/t", name="triton/KEY/__grp__a.json")
    fields = error.value.fields()
    assert fields["name"] == "triton/KEY/__grp__a.json" and fields["offset"] in offsets
    assert "no placeholder [REPLACE]" in fields["reason"]


def test_the_placeholder_of_the_other_base_is_refused() -> None:
    with pytest.raises(RelocationError, match="no placeholder \\[ROOT\\]"):
        restore(b"[REPLACE]/a", Relocation(Base.ROOT, PYTHON, (0,)), "/t")


def test_a_file_that_names_another_place_is_not_undone() -> None:
    relocation = Relocation(Base.ENTRY, JSON, (1, 14))
    data = b'"[REPLACE]/a" [REPLACE]/b'
    installed = restore(data, relocation, "/tmp/t")
    assert unrestore(installed, relocation, "/tmp/t") == data
    for other in ("/tmp/u", "/tmp/t2", "/tmp/", "/tmp/tt/x"):
        assert unrestore(installed, relocation, other) is None
    assert unrestore(installed[:9], relocation, "/tmp/t") is None


# --- group files -----------------------------------------------------------------------------------------------------


def group(directory: str, *members: str, **more: Any) -> bytes:
    return json.dumps({"child_paths": {member: f"{directory}/{member}" for member in members}, **more}).encode()


def paths_of(data: bytes) -> dict[str, str]:
    paths: dict[str, str] = json.loads(data)["child_paths"]
    return paths


@pytest.mark.parametrize("place", PLACES)
def test_a_group_file_moves_to_any_place(place: str) -> None:
    found = parse_group(group(f"/old/{KEY}", "add.json", "add.cubin"), KEY)
    assert (found.members, found.directory) == (("add.json", "add.cubin"), f"/old/{KEY}")
    assert found.data == group("[REPLACE]", "add.json", "add.cubin")
    directory = f"{PLACES[place].rstrip('/')}/{KEY}"
    moved = restore(found.data, found.relocation, directory)
    assert paths_of(moved) == {member: f"{directory}/{member}" for member in found.members}
    # And from there as well: a tree that was restored is packed to the same bytes.
    again = parse_group(moved, KEY)
    assert (again.data, again.relocation, again.directory) == (found.data, found.relocation, directory)


@pytest.mark.parametrize("seed", range(3))
def test_group_files_of_synthetic_kernels_round_trip(seed: int, tmp_path: Path) -> None:
    kernel = synthetic_kernel(tmp_path, "add", seed=seed)
    data = (kernel / "__grp__add.json").read_bytes()
    found = parse_group(data, kernel.name)
    assert found.directory == str(kernel) and set(found.members) < {path.name for path in kernel.iterdir()}
    assert found.data == data.replace(str(kernel).encode(), b"[REPLACE]")
    assert restore(found.data, found.relocation, str(kernel)) == data
    assert unrestore(data, found.relocation, str(kernel)) == found.data


def test_group_files_that_triton_wrote_round_trip(triton_tree: Path) -> None:
    kernels = kernel_directories(triton_tree)
    assert len(kernels) == 6
    for kernel in kernels:
        (file,) = kernel.glob("__grp__*.json")
        data = file.read_bytes()
        found = parse_group(data, kernel.name, name=file.name)
        assert found.directory == str(kernel)
        assert set(found.members) == {path.name for path in kernel.iterdir()} - {file.name}
        # torch's own bundler makes these very bytes, and a group file inside an FX graph entry is stored once.
        assert found.data == data.replace(str(kernel).encode(), b"[REPLACE]")
        assert restore(found.data, found.relocation, str(kernel)) == data


PRETTY = """\r
\t{ "version" : [1, {"child_paths": {"x": "/no/KEY/x"}}, "child_paths"],
    "child_paths"\t:\r {
        "a.json" : "/old/KEY/a.json" ,
        "a.cubin": "/old/KEY/a.cubin"},
    "note": "[REPLACE]/a.json", "deep": {"child_paths": {"a.json": "/old/KEY/a.json"}, "none": null}
} """

# case -> (file as it lies on disk, its members, the directory it names, the file with placeholders)
GROUPS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "compact": ('{"child_paths":{"a":"/x/KEY/a"}}', ("a",), "/x/KEY", '{"child_paths":{"a":"[REPLACE]/a"}}'),
    "no members": ('{"child_paths": {}}', (), "", '{"child_paths": {}}'),
    "white space and other keys": (
        PRETTY,
        ("a.json", "a.cubin"),
        "/old/KEY",
        PRETTY.replace(' "/old/KEY/a.json" ,', ' "[REPLACE]/a.json" ,').replace(
            "/old/KEY/a.cubin", "[REPLACE]/a.cubin"
        ),
    ),
    "escaped slashes": (
        r'{"child_paths": {"a": "\/x\/KEY\/a"}}',
        ("a",),
        "/x/KEY",
        '{"child_paths": {"a": "[REPLACE]/a"}}',
    ),
    "letters as escapes": (
        r'{"child_paths": {"\u0061.b": "\u002fx/K\u0045Y\u002F\u0061.b"}}',
        ("a.b",),
        "/x/KEY",
        r'{"child_paths": {"\u0061.b": "[REPLACE]/\u0061.b"}}',
    ),
    "an escaped key": (
        r'{"\u0063hild_paths": {"a": "/x/KEY/a"}}',
        ("a",),
        "/x/KEY",
        r'{"\u0063hild_paths": {"a": "[REPLACE]/a"}}',
    ),
    "surrogate pairs, and one alone": (
        r'{"child_paths": {"\ud83d\ude00": "/\uD83D\uDE00\ud83d/KEY/\ud83d\ude00"}}',
        ("\N{GRINNING FACE}",),
        "/\N{GRINNING FACE}\ud83d/KEY",
        r'{"child_paths": {"\ud83d\ude00": "[REPLACE]/\ud83d\ude00"}}',
    ),
    "raw UTF-8": (
        '{"child_paths": {"é": "/データ/\N{GRINNING FACE}/KEY/é"}}',
        ("é",),
        "/データ/\N{GRINNING FACE}/KEY",
        '{"child_paths": {"é": "[REPLACE]/é"}}',
    ),
    "quotes and backslashes": (
        r'{"child_paths": {"a\\\"b": "/\"x\\/KEY/a\\\"b"}}',
        ('a\\"b',),
        '/"x\\/KEY',
        r'{"child_paths": {"a\\\"b": "[REPLACE]/a\\\"b"}}',
    ),
    "doubled slashes": (
        '{"child_paths": {"a": "//x//KEY//a", "b": "//x//KEY/b"}}',
        ("a", "b"),
        "//x//KEY",
        '{"child_paths": {"a": "[REPLACE]/a", "b": "[REPLACE]/b"}}',
    ),
    "a relative cache": ('{"child_paths": {"a": "c/KEY/a"}}', ("a",), "c/KEY", '{"child_paths": {"a": "[REPLACE]/a"}}'),
    "the key below itself": (
        '{"child_paths": {"a": "/KEY/KEY/a"}}',
        ("a",),
        "/KEY/KEY",
        '{"child_paths": {"a": "[REPLACE]/a"}}',
    ),
    "Windows": (
        r'{"child_paths": {"a": "C:\\x\\KEY\\a", "b": "C:\\x\\KEY\\b"}}',
        ("a", "b"),
        "C:\\x\\KEY",
        '{"child_paths": {"a": "[REPLACE]/a", "b": "[REPLACE]/b"}}',
    ),
    "Windows, forward": (
        '{"child_paths": {"a": "d:/x/KEY/a"}}',
        ("a",),
        "d:/x/KEY",
        '{"child_paths": {"a": "[REPLACE]/a"}}',
    ),
    "member names with blanks and brackets": (
        '{"child_paths": {"[REPLACE]": "/x/KEY/[REPLACE]", "a b": "/x/KEY/a b"}}',
        ("[REPLACE]", "a b"),
        "/x/KEY",
        '{"child_paths": {"[REPLACE]": "[REPLACE]/[REPLACE]", "a b": "[REPLACE]/a b"}}',
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_the_directory_is_replaced_and_every_other_byte_kept(case: str) -> None:
    text, members, directory, expected = GROUPS[case]
    found = parse_group(text.encode("utf-8", "surrogatepass"), KEY)
    assert (found.members, found.directory, found.data.decode()) == (members, directory, expected)
    assert len(found.relocation.offsets) == len(members)
    moved = restore(found.data, found.relocation, "/new/KEY")
    assert list(json.loads(moved)["child_paths"].values()) == [f"/new/KEY/{member}" for member in members]
    assert parse_group(moved, KEY).data == found.data


# case -> (file, words of the refusal)
NO_GROUPS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a group file: Expecting value"),
    "cut off": (group("/x/KEY", "a", "b")[:20], "not a group file"),
    "NULs": (bytes(40), "not a group file"),
    "not UTF-8": (b'{"child_paths": {"\xff": "/x/KEY/\xff"}}', "not a group file: 'utf-8' codec"),
    "UTF-16": ('{"child_paths": {}}'.encode("utf-16"), "not a group file"),
    "a byte order mark": (b'\xef\xbb\xbf{"child_paths": {}}', "BOM"),
    "an array": (b'[{"child_paths": {}}]', 'no object "child_paths" of strings'),
    "a string": (b'"child_paths"', 'no object "child_paths" of strings'),
    "another key": (b'{"children": {}}', 'no object "child_paths" of strings'),
    "children in an array": (b'{"child_paths": ["/x/KEY/a"]}', 'no object "child_paths" of strings'),
    "children null": (b'{"child_paths": null}', 'no object "child_paths" of strings'),
    "a number among the paths": (b'{"child_paths": {"a": "/x/KEY/a", "b": 1}}', 'no object "child_paths" of strings'),
    "an object among the paths": (b'{"child_paths": {"a": {"b": "/x/KEY/b"}}}', 'no object "child_paths" of strings'),
    "a member twice": (b'{"child_paths": {"a": "/x/KEY/a", "a": "/x/KEY/a"}}', "a key stands twice"),
    "a member twice, spelled apart": (b'{"child_paths": {"a": "/x/KEY/a", "\\u0061": "/y/KEY/a"}}', "stands twice"),
    "children twice": (b'{"child_paths": {}, "child_paths": {"a": "/x/KEY/a"}}', "a key stands twice"),
    "a key twice elsewhere": (b'{"child_paths": {}, "x": [{"a": 1, "a": 2}]}', "a key stands twice"),
    "deep nesting": (b'{"child_paths": {}, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not a group file"),
    "a number of 5,000 digits": (b'{"child_paths": {}, "x": ' + b"9" * 5000 + b"}", "not a group file"),
    "a path of another name": (b'{"child_paths": {"a": "/x/KEY/b"}}', "member 'a' is recorded as '/x/KEY/b'"),
    "a member with a directory": (b'{"child_paths": {"d/a": "/x/KEY/d/a"}}', "of another name"),
    "a bare name": (b'{"child_paths": {"a": "a"}}', "of another name"),
    "an empty path": (b'{"child_paths": {"a": ""}}', "of another name"),
    "a network path": (rb'{"child_paths": {"a": "\\\\s\\share\\KEY\\a"}}', "of another name"),
    "another key's directory": (b'{"child_paths": {"a": "/x/OTHER/a"}}', "recorded in '/x/OTHER', but it lies in"),
    "a longer key": (b'{"child_paths": {"a": "/x/KEY2/a"}}', "recorded in '/x/KEY2'"),
    "below the key": (b'{"child_paths": {"a": "/x/KEY/sub/a"}}', "recorded in '/x/KEY/sub'"),
    "in the root of the system": (b'{"child_paths": {"a": "/a"}}', "recorded in '/'"),
    "a placeholder already": (b'{"child_paths": {"a": "[REPLACE]/a"}}', "recorded in '[REPLACE]'"),
    "two directories": (
        b'{"child_paths": {"a": "/tmp/t/KEY/a", "b": "/tmp/t2/KEY/b"}}',
        "members in different directories: /tmp/t/KEY, /tmp/t2/KEY",
    ),
    "two spellings of a directory": (
        b'{"child_paths": {"a": "/tmp/t/KEY/a", "b": "/tmp/./t/KEY/b"}}',
        "members in different directories",
    ),
}


@pytest.mark.parametrize("case", NO_GROUPS)
def test_what_is_no_group_file_of_this_directory_is_refused(case: str) -> None:
    data, words = NO_GROUPS[case]
    with pytest.raises(RelocationError) as error:
        parse_group(data, KEY, name="__grp__a.json")
    assert error.value.name == "__grp__a.json" and words in error.value.reason


def test_a_refused_member_is_named_with_its_place() -> None:
    data = b'{"child_paths": {"a": "/x/KEY/a", "b": "/x/KEY/c"}}'
    with pytest.raises(RelocationError) as error:
        parse_group(data, KEY)
    assert error.value.offset == data.index(b"/x/KEY/c")


def test_a_group_of_made_members_is_what_triton_would_write() -> None:
    members = ["add.cubin", 'a"b\\c é\N{GRINNING FACE}', "add.json"]
    made = make_group(members)
    assert made.data == group("[REPLACE]", *members)
    assert made.members == tuple(members)
    moved = restore(made.data, made.relocation, f"/x/{KEY}")
    assert moved == group(f"/x/{KEY}", *members)
    assert parse_group(moved, KEY).data == made.data and parse_group(moved, KEY).relocation == made.relocation


@given(members=st.lists(st.text(st.characters(exclude_characters="/"), min_size=1), unique=True, max_size=4))
def test_make_group_and_parse_group_agree(members: list[str]) -> None:
    made = make_group(members)
    found = parse_group(restore(made.data, made.relocation, f"/x/{KEY}"), KEY)
    assert (found.members, found.data, found.relocation) == (made.members, made.data, made.relocation)


def test_a_long_string_in_a_group_file_costs_no_more_than_its_bytes() -> None:
    # The loss: 100 bytes of memory for each byte, so that one odd file ended the pack of a whole cache.
    data = b'{"x": "' + b"\\u00e9a" * (1 << 18) + b'", "child_paths": {"a": "/x/KEY/a"}}'
    tracemalloc.start()
    started = time.perf_counter()
    assert parse_group(data, KEY).directory == "/x/KEY"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * len(data) and time.perf_counter() - started < 5


# --- Python literals -------------------------------------------------------------------------------------------------

PLACE = "torch_compile_cache/abc/rank_0_0/backbone"


def table(root: str, graphs: int = 2, artifact: str = "artifact_shape_None_subgraph_{}") -> dict[Any, Any]:
    """A handle table as vLLM makes it: (range, graph, compiler) -> (key, absolute path)."""
    names = [artifact.format(n) for n in range(graphs)]
    return {((1, 8192), n, "inductor"): (name, f"{root}/{PLACE}/{name}") for n, name in enumerate(names)}


def pretty(value: Any) -> bytes:
    return pprint.PrettyPrinter(indent=4).pformat(value).encode()


@pytest.mark.parametrize("old", PLACES)
@pytest.mark.parametrize("new", ["plain", "quotes", "backslashes", "not UTF-8", "3,500 bytes"])
def test_a_handle_table_moves_from_any_place_to_any_other(old: str, new: str) -> None:
    source, target = PLACES[old].rstrip("/") + "/v", PLACES[new]
    # repr, not pprint, which would split a path at its blanks.
    data = repr(table(source)).encode("utf-8", "backslashreplace")
    found = parse_literal(data, PLACE)
    assert found.root == source and found.relocation is not None
    assert ast.literal_eval(found.data.decode()) == table("[ROOT]")
    moved = restore(found.data, found.relocation, target)
    assert ast.literal_eval(moved.decode()) == table(target)
    assert unrestore(moved, found.relocation, target) == found.data
    again = parse_literal(moved, PLACE)
    assert (again.root, again.data, again.relocation) == (target, found.data, found.relocation)


@pytest.mark.parametrize("compiler", ["inductor_standalone", "inductor"])
def test_handle_tables_of_synthetic_roots_round_trip(compiler: str, tmp_path: Path) -> None:
    root = synthetic_vllm_root(tmp_path / "vllm", compiler=compiler)
    (file,) = root.rglob(VLLM_CACHE_FILE)
    data, directory = file.read_bytes(), file.parent.relative_to(root).as_posix()
    found = parse_literal(data, directory)
    assert found.root == str(root) and found.relocation is not None
    assert found.data == data.replace(str(root).encode(), b"[ROOT]")
    assert restore(found.data, found.relocation, str(root)) == data


def test_every_byte_but_the_root_is_kept() -> None:
    data = f"""# paths: '/old/{PLACE}/x' is a comment\r
{{ 'a' :"/old/{PLACE}/a",\r
       '[ROOT]': '[ROOT]/x',  # '
       "b": ['/old/{PLACE}/b' , '/usr/lib/x.so', '/old2/y', "it's /old/{PLACE}/c", b'/old/{PLACE}/d', '/old'],
       'n': (1.50, 0x1f, -1j, None, True, ..., {{1}}, set(), '\\x41'), }} # end
""".encode()
    expected = data
    for name in (b"a", b"b"):
        for quote in (b"'", b'"'):
            path = quote + f"/old/{PLACE}/".encode() + name
            expected = expected.replace(path, path.replace(b"/old", b"[ROOT]"))
    found = parse_literal(data, PLACE)
    assert found.root == "/old" and found.data == expected
    assert found.relocation is not None and len(found.relocation.offsets) == 2
    for offset in found.relocation.offsets:
        assert found.data[offset : offset + 6] == b"[ROOT]"


# case -> (literal, directory, root, the literal with placeholders)
LITERALS: dict[str, tuple[str, str, str, str]] = {
    "one": ("'/r/d/x'", "d", "/r", "'[ROOT]/d/x'"),
    "the directory itself": ("'/r/d'", "d", "/r", "'[ROOT]/d'"),
    "part of the place": ("'/r/a/b/x'", "a/b/c", "/r", "'[ROOT]/a/b/x'"),
    "part, elsewhere": ("'/r/a/b2/x'", "a/b/c", "/r", "'[ROOT]/a/b2/x'"),
    "the longest part wins": ("'/r/a/x/a/b/x'", "a/b", "/r/a/x", "'[ROOT]/a/b/x'"),
    "the last of equal ones": ("'/r/d/s/d/x'", "d", "/r/d/s", "'[ROOT]/d/x'"),
    "nested directories of one name": ("'/r/a/a/x'", "a/a", "/r", "'[ROOT]/a/a/x'"),
    "beside the place": ("('/r/d/x', '/r/e/y', '/r/z')", "d", "/r", "('[ROOT]/d/x', '[ROOT]/e/y', '[ROOT]/z')"),
    "a sibling of the root": ("('/r/d/x', '/r2/y', '/rd/z')", "d", "/r", "('[ROOT]/d/x', '/r2/y', '/rd/z')"),
    "the bare root": ("('/r/d/x', '/r')", "d", "/r", "('[ROOT]/d/x', '/r')"),
    "a name that begins alike": ("'/r/d2/x'", "d", "", "'/r/d2/x'"),
    "nothing below the root": ("('/usr/lib/x', 'd/x', 1)", "d", "", "('/usr/lib/x', 'd/x', 1)"),
    "in the root of the system": ("'/d/x'", "d", "", "'/d/x'"),
    "a file in the root itself": ("'/r/d/x'", "", "", "'/r/d/x'"),
    "blanks in front": (" \t '/r/d/x'", "d", "/r", " \t '[ROOT]/d/x'"),
    "escapes in the root": (r"'/\x72\u0065\U00000061\N{DIGIT ONE}\060\'\"\\/d/x'", "d", "/rea10'\"\\", "'[ROOT]/d/x'"),
    "two pieces": ("('/r/d/a ' 'b')", "d", "/r", "('[ROOT]/d/a ' 'b')"),
    "two pieces, the root in both": ("('/my '\n   'r/d/x')", "d", "/my r", "('[ROOT]/d/x')"),
    "two pieces, the root ends the first": ("('/my r' '/d/x', 1)", "d", "/my r", "('[ROOT]' '/d/x', 1)"),
    "two pieces, the first one empty": ("('' '/r/d/x')", "d", "/r", "('[ROOT]/d/x')"),
    "three pieces, not ASCII": ("('/é ' '\\xe9 ' 'é/d/x')", "d", "/é é é", "('[ROOT]/d/x')"),
    "two pieces of different quotes": ("""('/r/d/it ' "isn't")""", "d", "/r", """('[ROOT]/d/it ' "isn't")"""),
    "quotes of the other kind": ("\"/it'''s/d/x'\"", "d", "/it'''s", '"[ROOT]/d/x\'"'),
    "unknown escapes": (r"'/r\q/d/x\z'", "d", r"/r\q", r"'[ROOT]/d/x\z'"),
    "an unknown escape that is not ASCII": (r"'/r\é/d/x'", "d", r"/r\é", "'[ROOT]/d/x'"),
    "an unknown escape at the end of the root": (r"'/r\/d/x'", "d", "/r\\", "'[ROOT]/d/x'"),
    "a line goes on in the root": ("'/r\\\noot/d/x'", "d", "/root", "'[ROOT]/d/x'"),
    "a line goes on, CR LF": ("'/r\\\r\noot/d\\\r\n/x'", "d", "/root", "'[ROOT]/d\\\r\n/x'"),
    "lines that end in CR": ("('a',\r'/r/d/x',\r\n'/r/d/y')", "d", "/r", "('a',\r'[ROOT]/d/x',\r\n'[ROOT]/d/y')"),
    "form feeds": ("(\f'/r/d/x',\n\f'/r/d/y')", "d", "/r", "(\f'[ROOT]/d/x',\n\f'[ROOT]/d/y')"),
    "not ASCII before it": ("{'é\N{GRINNING FACE}': '/ré/d/é'}", "d", "/ré", "{'é\N{GRINNING FACE}': '[ROOT]/d/é'}"),
    "another encoding, said in a comment": (
        "# -*- coding: latin-1 -*-\n('é', '/ré/d/é')",
        "d",
        "/ré",
        "# -*- coding: latin-1 -*-\n('é', '[ROOT]/d/é')",
    ),
    "keys": ("{'/r/d/x': '/r/d/x'}", "d", "/r", "{'[ROOT]/d/x': '[ROOT]/d/x'}"),
    "parentheses": ("((('/r/d/x')))", "d", "/r", "((('[ROOT]/d/x')))"),
    "a path inside a longer text": ("('see ' '/r/d/x', '/r/d/y')", "d", "/r", "('see ' '/r/d/x', '[ROOT]/d/y')"),
    "bytes": ("(b'/r/d/x', '/r/d/y')", "d", "/r", "(b'/r/d/x', '[ROOT]/d/y')"),
    "texts of other kinds that are no paths": (
        "(r'x', u'y', '''z''', 'a' 'b')",
        "d",
        "",
        "(r'x', u'y', '''z''', 'a' 'b')",
    ),
}


def _with_root(value: Any, old: str, new: str) -> Any:
    """Move a value as a reader of the literal would see it."""
    if isinstance(value, str):
        return new + value[len(old) :] if value.startswith(old + "/") else value
    if isinstance(value, (tuple, list)):
        return type(value)(_with_root(item, old, new) for item in value)
    if isinstance(value, dict):
        return {_with_root(key, old, new): _with_root(item, old, new) for key, item in value.items()}
    return value


@pytest.mark.parametrize("case", LITERALS)
def test_the_root_of_a_literal_is_worked_out_and_replaced(case: str) -> None:
    text, directory, root, expected = LITERALS[case]
    found = parse_literal(text.encode(), directory)
    assert (found.root, found.data.decode()) == (root, expected)
    assert (found.relocation is None) == (not root)
    if found.relocation is not None:
        assert found.relocation[:2] == (Base.ROOT, Spelling.PYTHON)
        restored = restore(found.data, found.relocation, "/new")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old, new = (ast.literal_eval(data.decode()) for data in (text.encode(), restored))
        assert new == _with_root(old, root, "/new")
        assert parse_literal(restored, directory).data == found.data


# case -> (literal, words of the refusal)
NO_LITERALS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a Python literal"),
    "cut off": (b"{'a': '/r/d/x", "not a Python literal"),
    "code": (b"__import__('os').system('touch /tmp/canary')", "not a Python literal: malformed"),
    "a statement": (b"import os", "not a Python literal"),
    "an f-string": (b"(f'/r/d/{1}', '/r/d/x')", "not a Python literal"),
    "an f-string without braces": (b"f'/r/d/x'", "not a Python literal"),
    "not UTF-8": (b"'/r/d/\xff'", "not a Python literal: 'utf-8' codec"),
    "a byte order mark": (b"\xef\xbb\xbf'/r/d/x'", "not a Python literal"),
    "a NUL": (b"'/r/d/x'\0", "not a Python literal"),
    "NULs": (bytes(40), "not a Python literal"),
    "a list as a key": (b"{[1]: 2}", "not a Python literal: unhashable type"),
    "a set of sets": (b"{{1}, {2}}", "not a Python literal: unhashable type"),
    "a complex number out of range": (b"1" + b"0" * 400 + b"+1j", "not a Python literal: int too large"),
    "a number of 5,000 digits": (b"9" * 5000, "not a Python literal"),
    "deep nesting": (b"(" * 5000 + b")" * 5000, "not a Python literal"),
    "many signs": (b"-" * 100_000 + b"1", "not a Python literal"),
    "an unknown character name": (rb"'\N{no such name}'", "not a Python literal"),
    "an indented line": (b"1\n '/r/d/x'", "not a Python literal"),
    "two roots": (b"('/r/d/x', '/s/d/y')", "paths of several roots: /r, /s"),
    "a raw string": (b"r'/r/d/x'", "not spelled in plain strings"),
    "a raw string in capitals": (b'(1, R"/r/d/x")', "not spelled in plain strings"),
    "a prefix of old": (b"u'/r/d/x'", "not spelled in plain strings"),
    "three quotes": (b"'''/r/d/x'''", "not spelled in plain strings"),
    "three quotes of the other kind": (b'"""/r/d/x"""', "not spelled in plain strings"),
    "two pieces with a comment between": (b"('/r/d/a '\n  # comment\n  \"b\")", "the path '/r/d/a b' is not spelled"),
    "two pieces without a blank between": (b"('/r/d/a''b')", "not spelled in plain strings"),
    "a root in two quotes": (b"('/it ' \"isn't/d/x\")", "spelled over strings of different quotes"),
    "two pieces, the second one raw": (b"('/r/d/a ' r'b')", "not spelled in plain strings"),
}


@pytest.mark.parametrize("case", NO_LITERALS)
def test_what_is_no_literal_or_cannot_be_cut_is_refused(case: str) -> None:
    data, words = NO_LITERALS[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RelocationError) as error:
            parse_literal(data, "d", name="vllm_compile_cache.py")
    assert error.value.name == "vllm_compile_cache.py" and words in error.value.reason
    assert not Path("/tmp/canary").exists()


def test_a_path_that_pprint_splits_at_its_blanks_is_put_together() -> None:
    long = "/data/" + " ".join(["my own cache directory"] * 5)
    data = pretty(table(long))
    assert b"'\n" in data and ast.literal_eval(data.decode()) == table(long)
    found = parse_literal(data, PLACE)
    assert found.root == long and found.relocation is not None
    moved = restore(found.data, found.relocation, "/new")
    assert ast.literal_eval(moved.decode()) == table("/new")
    assert parse_literal(moved, PLACE).data == found.data


def test_an_escape_that_python_does_not_know_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_literal(rb"'/r\q/d/x\z'", "d").root == "/r\\q"


@pytest.mark.parametrize("source", ["'/r/d/x'", "('a', '/r/d/x')"])
def test_what_parse_literal_says_fits_what_it_returns(source: str) -> None:
    found = parse_literal(source.encode(), "d")
    assert found.relocation is not None
    assert len(found.relocation.offsets) == found.data.count(PLACEHOLDERS[Base.ROOT])


# --- laws ------------------------------------------------------------------------------------------------------------

texts = st.text(st.sampled_from("ab/KEYd\\\"' \n\t[]é\N{GRINNING FACE}\ud83d\u2028{}:,u0041"), max_size=12)


values = texts | st.lists(texts, max_size=2) | st.dictionaries(texts, st.lists(texts, max_size=1), max_size=2)


@st.composite
def group_files(draw: st.DrawFn) -> bytes:
    directory = "/" + draw(texts) + f"/{KEY}"
    members = draw(st.lists(texts.map(lambda text: "m" + text.replace("/", "")), unique=True, max_size=3))
    items = list(draw(st.dictionaries(texts, values, max_size=2)).items())
    paths = {member: f"{directory}/{member}" for member in members}
    items.insert(draw(st.integers(0, len(items))), ("child_paths", paths))
    ascii_only, indent, slashes = draw(st.tuples(st.booleans(), st.sampled_from([None, 0, "\t"]), st.booleans()))
    text = json.dumps(dict(items), ensure_ascii=ascii_only or "\ud83d" in str(items), indent=indent)
    return (text.replace("/", "\\/") if slashes else text).encode("utf-8", "backslashreplace")


@given(data=group_files(), place=st.sampled_from(sorted(PLACES.values())) | texts.map("/".__add__))
def test_a_group_file_is_the_same_wherever_it_was_restored(data: bytes, place: str) -> None:
    found = parse_group(data, KEY)
    directory = f"{place.rstrip('/')}/{KEY}"
    moved = restore(found.data, found.relocation, directory)
    again = parse_group(moved, KEY)
    assert (again.data, again.members, again.relocation) == (found.data, found.members, found.relocation)
    before, after = json.loads(data), json.loads(moved)
    assert after.pop("child_paths") == {member: f"{directory}/{member}" for member in found.members}
    assert before.pop("child_paths").keys() == set(found.members) and before == after


@given(
    roots=st.tuples(*(texts.map(lambda text: "/" + text.rstrip("/") + "/v"),) * 2),
    others=st.lists(texts, max_size=3),
    indent=st.booleans(),
)
def test_a_literal_is_the_same_wherever_it_was_restored(
    roots: tuple[str, str], others: list[str], indent: bool
) -> None:
    # Texts that lie below one of the roots follow the tree, so none of these may.
    kept = [text for text in others if not text.startswith(tuple(f"{root}/" for root in roots))]
    value = [table(roots[0]), kept]
    spelled = pprint.pformat(value, width=100_000) if indent else repr(value)
    found = parse_literal(spelled.encode("utf-8", "backslashreplace"), PLACE)
    assert found.root == roots[0] and found.relocation is not None
    moved = restore(found.data, found.relocation, roots[1])
    assert ast.literal_eval(moved.decode()) == [table(roots[1]), kept]
    again = parse_literal(moved, PLACE)
    assert (again.data, again.relocation, again.root) == (found.data, found.relocation, roots[1])


@given(data=st.binary(max_size=80) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    for parse in (lambda: parse_group(data, KEY), lambda: parse_literal(data, "d")):
        try:
            parse()
        except RelocationError as error:
            assert error.reason


@given(data=group_files(), cut=st.integers(0, 200), put=st.binary(max_size=3))
def test_a_damaged_group_file_parses_or_is_refused(data: bytes, cut: int, put: bytes) -> None:
    damaged = data[:cut] + put + data[cut + 1 :]
    try:
        found = parse_group(damaged, KEY)
    except RelocationError:
        return
    assert parse_group(restore(found.data, found.relocation, f"/n/{KEY}"), KEY).data == found.data


def test_groups_of_a_whole_tree_stay_apart(tmp_path: Path) -> None:
    """Two roots of which one name begins with the other: each file names its own."""
    short = synthetic_inductor_root(tmp_path / "t", kernels=1)
    long = synthetic_inductor_root(tmp_path / "t2", kernels=1)
    for root in (short, long):
        for kernel in kernel_directories(root):
            (file,) = kernel.glob("__grp__*")
            assert parse_group(file.read_bytes(), kernel.name).directory == str(kernel)


def test_both_placeholders_are_readable_and_differ() -> None:
    assert set(PLACEHOLDERS) == set(Base) and len(set(PLACEHOLDERS.values())) == len(Base)
    assert relocate.PLACEHOLDERS[Base.ENTRY] == b"[REPLACE]"  # torch: _inductor/triton_bundler.py
