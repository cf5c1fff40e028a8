"""Who may import whom. The tables are the rule; the code is parsed, never imported.

A module imports from layers further down, or from its own layer where that makes no circle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "bundler"

# Top first. A new module of the package goes into one of these rows.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"testing"}),
    frozenset({"cli", "integrations"}),
    frozenset({"__init__"}),
    frozenset(
        {"bundle", "packing", "caching", "difference", "exporting", "keys", "listing", "merging", "outcome", "remote"}
    )
    | frozenset({"remote", "retention", "running", "saving", "scope", "triton_bundler", "union", "verifying"}),
    # Reading trees and writing them, in parts; which part may see which, the test for circles keeps in order.
    frozenset({"collect", "mega", "builds", "delta", "payload", "winners", "roots", "host", "stores", "host_binaries"})
    | frozenset({"emit", "hit", "stage", "publish", "installed", "ready", "staging", "reading"})
    | frozenset({"child", "pinning", "places", "watching"}),
    frozenset(
        {"formats", "relocate", "check", "compare", "kinds", "foreign", "_atomic", "_opening", "_owner", "switch"}
    ),
    frozenset({"model", "digest"}),
    frozenset({"errors"}),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# (importer, imported) that the order of the layers would refuse, or would allow and should not.
# The facade loads integrations on first use of enable(); the demo shows synthetic trees.
ALLOWED_UPWARDS = {("__init__", "integrations"), ("cli/demo", "testing")}
FORBIDDEN_DOWNWARDS = {("testing", "cli"), ("testing", "integrations"), ("integrations", "cli")}

# Third-party package -> where it may be imported: prefixes of a module's path inside the package.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "boto3": ("stores/",),
    "click": ("cli/",),
    "cryptography": ("trust",),
    "elftools": ("check", "compare", "cli/"),
    "filelock": ("",),
    "jinja2": ("cli/",),
    "msgpack": ("formats/",),
    "obstore": ("stores/",),
    "oras": ("stores/",),
    "pytest": ("testing/stores",),
    "redis": ("stores/",),
    "rich": ("cli/",),
    "torch": ("integrations/", "testing/programs/"),
    "triton": ("integrations/", "testing/programs/"),
    "zstandard": ("formats/",),
}

# Programs that are run, never imported; they import each other by bare name.
PROGRAMS = "testing/programs/"


class Import(NamedTuple):
    """One import: where it stands, and the dotted name that it asks for."""

    module: str  # path of the importer inside the package, without .py: "stores/local"
    line: int
    name: str
    typing_only: bool

    def __str__(self) -> str:
        return f"bundler/{self.module}.py:{self.line}: import of {self.name}"

    @property
    def importer(self) -> str:
        return self.module.split("/")[0]

    @property
    def imported(self) -> str | None:
        """The part of our package that is asked for; None for anybody else's."""
        first, _, rest = self.name.partition(".")
        if first != "bundler":
            return None
        part = rest.partition(".")[0]
        return part if part in RANK or part in PARTS else "__init__"


PARTS = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def imports_of(source: str, module: str) -> Iterator[Import]:
    """Every import in ``source``: statements at any depth, and ``import_module`` or ``__import__`` of a literal."""
    tree = ast.parse(source)
    typing_only = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and ast.unparse(test.test).endswith("TYPE_CHECKING")
        for body in test.body
        for node in ast.walk(body)
    }
    for node in ast.walk(tree):
        for name in _names(node, module):
            yield Import(module, getattr(node, "lineno", 0), name, id(node) in typing_only)


def _names(node: ast.AST, module: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _absolute(node, module)
        # ``from bundler import x`` may ask for a module or for a name of the facade: x tells.
        return [f"{base}.{alias.name}" for alias in node.names] if base == "bundler" else [base]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = ("bundler", *PurePosixPath(module).parent.parts)
    parts = package[: len(package) - node.level + 1]
    return ".".join((*parts, node.module) if node.module else parts)


def violation(found: Import) -> str | None:
    """Say what is wrong with an import, or None."""
    imported = found.imported
    if imported is None:
        return _third_party_violation(found)
    if found.importer not in RANK:
        return f"{found.importer} is in no layer: put it into LAYERS"
    if imported not in RANK:
        return f"{imported} is in no layer: put it into LAYERS"
    if imported == found.importer or (found.importer, imported) in ALLOWED_UPWARDS:
        return None
    if (found.module, imported) in ALLOWED_UPWARDS:
        return None
    if RANK[imported] < RANK[found.importer] or (found.importer, imported) in FORBIDDEN_DOWNWARDS:
        return f"{found.importer} must not import {imported}"
    return None


def _third_party_violation(found: Import) -> str | None:
    package = found.name.partition(".")[0]
    if package in sys.stdlib_module_names or package == "__future__":
        return None
    if found.module.startswith(PROGRAMS) and (PACKAGE / PROGRAMS / f"{package}.py").exists():
        return None
    if package not in THIRD_PARTY:
        return f"{package} is no dependency: declare it, and put it into THIRD_PARTY"
    # "bundler/stores.py" and "bundler/stores/": both are stores.
    if not f"{found.module}/".startswith(THIRD_PARTY[package]):
        return f"{package} may be imported in {', '.join(THIRD_PARTY[package])} only"
    return None


def circles(found: list[Import]) -> str | None:
    """Say which parts of one layer import each other in a circle, or None."""
    graph: dict[str, set[str]] = {}
    for each in found:
        imported = each.imported
        if imported is None or imported == each.importer or each.typing_only:
            continue
        if RANK.get(imported, -1) == RANK.get(each.importer):
            graph.setdefault(each.importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return None


def package_imports() -> list[Import]:
    found: list[Import] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        found.extend(imports_of(path.read_text(encoding="utf-8"), module))
    return found


def test_imports_go_only_further_down() -> None:
    wrong = [f"{found}: {reason}" for found in package_imports() if (reason := violation(found))]
    assert not wrong, "\n" + "\n".join(wrong)


def test_parts_of_one_layer_make_no_circle() -> None:
    assert circles(package_imports()) is None


def test_every_module_is_in_a_layer() -> None:
    assert PARTS - RANK.keys() == set()


VIOLATIONS = {
    "a layer above": ("emit", "import bundler.bundle", "emit must not import bundle"),
    "a layer above, from": ("model", "from bundler.formats import decode", "model must not import formats"),
    "a layer above, relative": ("formats/v1", "from ..collect import collect", "formats must not import collect"),
    "a layer above, in a function": ("errors", "def f():\n    from .model import A", "errors must not import model"),
    "a layer above, for types": (
        "digest",
        "if TYPE_CHECKING:\n    from bundler.formats import v1",
        "digest must not import formats",
    ),
    "a layer above, by name": ("kinds", "importlib.import_module('bundler.cli')", "kinds must not import cli"),
    "the facade": ("collect", "from bundler import pack", "collect must not import __init__"),
    "the package, whole": ("collect", "import bundler", "collect must not import __init__"),
    "a sibling through the package": ("digest", "from bundler import emit", "digest must not import emit"),
    "testing": ("bundle", "from bundler.testing import trees", "bundle must not import testing"),
    "testing, in a command": ("cli/pack", "from bundler.testing import trees", "cli must not import testing"),
    "commands, in testing": ("testing/trees", "from bundler.cli import main", "testing must not import cli"),
    "integrations, in testing": (
        "testing/trees",
        "import bundler.integrations.inductor",
        "testing must not import integrations",
    ),
    "torch": ("collect", "import torch._inductor", "torch may be imported in integrations/, testing/programs/ only"),
    "torch, in testing": ("testing/trees", "import torch", "torch may be imported in"),
    "triton, lazily": ("bundle", "def f():\n    import triton.knobs", "triton may be imported in"),
    "triton, by name": ("bundle", "__import__('triton')", "triton may be imported in"),
    "msgpack": ("model", "import msgpack", "msgpack may be imported in formats/ only"),
    "zstandard": ("emit", "from zstandard import ZstdDecompressor", "zstandard may be imported in formats/ only"),
    "an SDK": ("bundle", "import obstore", "obstore may be imported in stores/ only"),
    "click": ("bundle", "import click", "click may be imported in cli/ only"),
    "no dependency": ("host", "import numpy", "numpy is no dependency"),
    "a module without a layer": ("drawer", "from bundler import errors", "drawer is in no layer"),
    "a package that only begins alike": ("formats_extra", "import msgpack", "msgpack may be imported in formats/ only"),
}


@pytest.mark.parametrize(("module", "source", "expected"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_violation_is_caught(module: str, source: str, expected: str) -> None:
    reasons = [violation(found) for found in imports_of(source, module)]
    assert any(reason is not None and expected in reason for reason in reasons), reasons


ALLOWED = {
    "a layer below": ("bundle", "from bundler.emit import emit"),
    "two layers below, relative": ("stores/local", "from ..errors import StoreError"),
    "its own package": ("formats/v1", "from bundler.formats._header import Header"),
    "the same layer": ("emit", "from bundler.collect import collect"),
    "the facade, in a command": ("cli/pack", "import bundler"),
    "torch, in integrations": ("integrations/inductor", "from torch._inductor import config"),
    "torch, in a program": ("testing/programs/compile_torch", "import torch"),
    "a program's neighbour": ("testing/programs/compile_triton", "from kernels import KERNELS"),
    "msgpack, in formats": ("formats/_index", "import msgpack"),
    "an SDK, in its store": ("stores/obstore", "def f():\n    import obstore.store"),
    "trees, in the demo": ("cli/demo", "from bundler.testing import programs"),
    "the standard library": ("errors", "import os.path, errno"),
    "a call with another name": ("errors", "open_module('torch')"),
}


@pytest.mark.parametrize(("module", "source"), ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed_is_not_caught(module: str, source: str) -> None:
    assert [violation(found) for found in imports_of(source, module) if violation(found)] == []


def test_a_circle_is_caught() -> None:
    found = [*imports_of("import bundler.emit", "collect"), *imports_of("from bundler import collect", "emit")]
    assert circles(found) in ("collect -> emit -> collect", "emit -> collect -> emit")


def test_an_import_for_types_alone_makes_no_circle() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bundler import collect"
    assert circles([*imports_of("import bundler.emit", "collect"), *imports_of(source, "emit")]) is None
