"""The ROOT of the command line, and where each root of a bundle goes on this host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bundler.errors import UsageError
from bundler.kinds import KINDS
from bundler.model import RootRecord
from bundler.roots import Root, environment, match_roots, parse, place_roots, present_roots, resolve
from bundler.testing.trees import synthetic_inductor_root, synthetic_kernel

HERE = os.getcwd()

# text -> (name, kind, path, mega)
PARSED: dict[str, tuple[str, str, str, bool]] = {
    "triton=/c": ("triton", "triton", "/c", False),
    "triton=c": ("triton", "triton", f"{HERE}/c", False),
    "other:triton=/c": ("other", "triton", "/c", False),
    "9.a_b-C:vllm=/c": ("9.a_b-C", "vllm", "/c", False),
    "generic=/a=b": ("generic", "generic", "/a=b", False),
    "inductor=a b/\n'é": ("inductor", "inductor", f"{HERE}/a b/\n'é", False),
    "mega=/m.bin": ("inductor", "inductor", "/m.bin", True),
    "m:mega=/m.bin": ("m", "inductor", "/m.bin", True),
    "/nowhere": ("generic", "generic", "/nowhere", False),
    "/triton=/x": ("generic", "generic", "/triton=/x", False),
    "./triton=x": ("generic", "generic", f"{HERE}/triton=x", False),
    "a/b:triton=x": ("generic", "generic", f"{HERE}/a/b:triton=x", False),
    "-x:triton=/c": ("generic", "generic", f"{HERE}/-x:triton=/c", False),
    "no kind at all": ("generic", "generic", f"{HERE}/no kind at all", False),
    "triton=/c/../d/": ("triton", "triton", "/d", False),
}


@pytest.mark.parametrize("text", PARSED)
def test_a_root_is_read_from_its_text(text: str) -> None:
    root = parse(text)
    assert (root.name, root.kind.name, root.path, root.mega) == PARSED[text]


@pytest.mark.parametrize("text", ["", "triton=", "other:triton=", "mega=", "unknown="])
def test_a_root_without_a_path_is_refused(text: str) -> None:
    # The loss: `unpack --root triton=$UNSET` restored into a directory named "triton=".
    with pytest.raises(UsageError, match="needs a path"):
        parse(text)


@pytest.mark.parametrize("text", ["cuda=/c", "a:b=/c", "x=y"])
def test_an_unknown_kind_is_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(UsageError, match=r"unknown; known are generic, inductor, pycache, triton, vllm, mega") as error:
        parse(text)
    assert f"./{text}" in str(error.value)


def test_a_bare_path_gets_its_kind_from_what_lies_in_it(tmp_path: Path) -> None:
    assert parse(str(synthetic_inductor_root(tmp_path / "i"))).kind is KINDS["inductor"]
    kernel = synthetic_kernel(tmp_path / "t", "add")
    assert parse(str(kernel.parent)).kind is KINDS["triton"]
    (tmp_path / "deep" / "a" / "fxgraph").mkdir(parents=True)
    assert parse(str(tmp_path / "deep")).kind is KINDS["generic"]


def test_byte_code_is_found_however_deep_it_lies(tmp_path: Path) -> None:
    below = tmp_path / "usr" / "local" / "lib" / "python3.11" / "site-packages" / "torch"
    below.mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (below / "a.cpython-311.pyc").touch()
    assert parse(str(tmp_path)).kind is KINDS["pycache"]
    (below / "link").symlink_to(tmp_path)  # is not followed, and is nothing that Python writes
    assert parse(str(tmp_path)).kind is KINDS["generic"]


def test_a_thousand_things_are_enough_to_tell_byte_code(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04}.cpython-311.pyc").touch()
    (tmp_path / "notes").touch()
    assert parse(str(tmp_path)).kind is KINDS["pycache"]


def test_roots_come_sorted_by_name_from_text_paths_and_roots() -> None:
    given = Root("a", KINDS["vllm"], "/v")
    roots = resolve(["triton=/t", Path("/nowhere"), given])
    assert [root.name for root in roots] == ["a", "generic", "triton"]
    assert roots[0] is given


def test_two_roots_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two roots are named 'triton' \(/a and /b\).*OTHER:triton=/b"):
        resolve(["triton=/a", "triton=/b"])
    assert len(resolve(["triton=/a", "b:triton=/b"])) == 2


# --- where roots go ------------------------------------------------------------------------------------------------

TRITON, INDUCTOR = RootRecord("triton", "triton", "/packed/t"), RootRecord("inductor", "inductor", "/packed/i")
SECOND = RootRecord("second", "triton", "/packed/s")
HOST = {"TRITON_CACHE_DIR": "/host/t", "TORCHINDUCTOR_CACHE_DIR": "/host/i"}

# case -> (roots of the bundle, --root, --into, name -> path)
PLACED: dict[str, tuple[list[RootRecord], list[str], str | None, dict[str, str]]] = {
    "where the host keeps them": ([INDUCTOR, TRITON], [], None, {"inductor": "/host/i", "triton": "/host/t"}),
    "one into a directory": ([TRITON], [], "/x", {"triton": "/x"}),
    "several into a directory": ([INDUCTOR, TRITON], [], "/x", {"inductor": "/x/inductor", "triton": "/x/triton"}),
    "a relative directory": ([TRITON], [], "x", {"triton": f"{HERE}/x"}),
    "one given by kind": ([INDUCTOR, TRITON], ["triton=/t"], None, {"inductor": "/host/i", "triton": "/t"}),
    "given wins over into": ([INDUCTOR, TRITON], ["triton=/t"], "/x", {"inductor": "/x/inductor", "triton": "/t"}),
    "two of a kind by name": ([SECOND, TRITON], ["second:triton=/s"], None, {"second": "/s", "triton": "/host/t"}),
    "the other of two by name": ([SECOND, TRITON], ["triton=/t"], "/x", {"second": "/x/second", "triton": "/t"}),
    "another name, one of its kind": ([SECOND], ["triton=/t"], None, {"second": "/t"}),
    "a bare path for a lone root": ([TRITON], ["/nowhere"], None, {"triton": "/nowhere"}),
    "by name though the kind differs": ([TRITON], ["triton:generic=/t"], None, {"triton": "/t"}),
}


@pytest.mark.parametrize("case", PLACED)
def test_each_root_has_its_place_and_never_the_recorded_one(case: str) -> None:
    records, given, into, expected = PLACED[case]
    placed = place_roots(records, given, into, HOST)
    assert {name: root.path for name, root in placed.items()} == expected
    kinds = {record.name: record.kind for record in records}
    assert all(root.name == name and root.kind.name == kinds[name] for name, root in placed.items())


# case -> (roots of the bundle, --root, --into, words of the refusal)
REFUSED: dict[str, tuple[list[RootRecord], list[str], str | None, str]] = {
    "a root that the bundle lacks": ([TRITON], ["vllm=/v"], None, "fits none of the bundle's roots"),
    "a kind that it has twice": ([SECOND, RootRecord("third", "triton")], ["triton=/t"], "/x", "second:triton, third"),
    "another name of its kind": ([TRITON], ["mine:triton=/t"], None, "'mine' of kind triton fits none"),
    "a bare path for two": ([INDUCTOR, TRITON], ["/nowhere"], None, "'generic' of kind generic fits none"),
    "two given for one": ([TRITON], ["triton=/t", "/nowhere"], None, "'generic' of kind generic fits none"),
    "an unknown kind": ([RootRecord("x", "tpu")], [], "/x", "of kind 'tpu'; this package knows generic"),
    "two in one place": ([SECOND, TRITON], [], None, "would both go to /host/t"),
    "two given one place": ([INDUCTOR, TRITON], ["triton=/t", "inductor=/t"], None, "would both go to /t"),
    "no place": ([RootRecord("g", "generic")], [], None, "generic root lies nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_fits_no_root_or_has_no_place_is_refused(case: str) -> None:
    records, given, into, words = REFUSED[case]
    with pytest.raises(UsageError) as error:
        place_roots(records, given, into, HOST)
    assert words in str(error.value)


def test_roots_without_an_entry_need_no_place() -> None:
    records = [RootRecord("g", "generic"), TRITON]
    assert list(place_roots(records, [], None, HOST, used={"triton"})) == ["triton"]
    assert list(place_roots(records, ["generic=/g"], None, HOST, used={"triton"})) == ["triton"]


def test_roots_are_matched_as_they_are_placed_and_others_are_passed_over() -> None:
    for records, given, _, expected in PLACED.values():
        matched = match_roots(records, resolve(given))
        assert {name: root.path for name, root in matched.items()}.items() <= expected.items()
    assert match_roots([INDUCTOR, TRITON], resolve(["vllm=/v", "triton=/t"])) == {
        "triton": Root("triton", KINDS["triton"], "/t")
    }


def test_the_roots_of_this_host_are_those_that_are_there_and_in_no_other(tmp_path: Path) -> None:
    places = {"TORCHINDUCTOR_CACHE_DIR": "i", "TRITON_CACHE_DIR": "t", "VLLM_CACHE_ROOT": "v"}
    variables = {name: str(tmp_path / path) for name, path in places.items()}
    assert present_roots(variables) == []
    for path in ("i", "t2", "i2/triton", "v/inner"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "v" / "file").touch()

    def present(**changes: str) -> set[tuple[str, str]]:
        found = present_roots(variables | {name: str(tmp_path / path) for name, path in changes.items()})
        return {(root.name, os.path.relpath(root.path, tmp_path)) for root in found}

    assert present() == {("vllm", "v"), ("inductor", "i")}
    assert present(TRITON_CACHE_DIR="t2", VLLM_CACHE_ROOT="v/file") == {("inductor", "i"), ("triton", "t2")}
    # A name that only begins alike is not inside; a root below another is a part of it, also through a link.
    assert present(TORCHINDUCTOR_CACHE_DIR="i2", TRITON_CACHE_DIR="i2/triton") == {("vllm", "v"), ("inductor", "i2")}
    (tmp_path / "link").symlink_to("v/inner")
    assert present(TRITON_CACHE_DIR="link") == {("vllm", "v"), ("inductor", "i")}


def test_byte_code_of_this_host_is_no_root_unless_it_is_named(tmp_path: Path) -> None:
    """The loss: whoever keeps byte code in one place finds that of all programs in the bundle of one job."""
    absent = str(tmp_path / "absent")
    places = {"PYTHONPYCACHEPREFIX": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": absent, "HOME": absent}
    assert present_roots(places) == []


def test_a_kind_without_a_place_on_this_host_is_not_present(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert present_roots({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}) == [
        Root("inductor", KINDS["inductor"], str(tmp_path))
    ]


def _placed(*roots: Sequence[str]) -> dict[str, Root]:
    return {name: Root(name, KINDS[kind], path) for name, kind, path in roots}


def test_the_environment_points_at_each_root() -> None:
    placed = _placed(("vllm", "vllm", "/v"), ("t", "triton", "/t"), ("g", "generic", "/g"))
    assert list(environment(placed).items()) == [("TRITON_CACHE_DIR", "/t"), ("VLLM_CACHE_ROOT", "/v")]


def test_of_two_roots_of_a_kind_the_one_that_bears_its_name_has_the_variable() -> None:
    assert environment(_placed(("a", "triton", "/a"), ("triton", "triton", "/t"))) == {"TRITON_CACHE_DIR": "/t"}
    assert environment(_placed(("b", "triton", "/b"), ("a", "triton", "/a"))) == {"TRITON_CACHE_DIR": "/a"}


def test_a_string_is_one_root_not_one_for_each_character(tmp_path: Path) -> None:
    assert [root.path for root in resolve(f"generic={tmp_path}")] == [str(tmp_path)]
    assert [root.path for root in resolve(tmp_path)] == [str(tmp_path)]
