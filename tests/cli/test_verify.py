"""``verify`` of bundles and roots, ``repair`` of what it finds, ``diff`` and ``inspect``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.testing import trees


@pytest.fixture
def installed(cli: Any, bundle: Path, tmp_path: Path) -> Path:
    assert cli("unpack", bundle, "--into", tmp_path / "installed").code == 0
    return tmp_path / "installed"


def add(root: Path, target: tuple[str, str, int] = ("cuda", "90", 32)) -> Path:
    return next(path for path in root.glob("*/add.cubin")).parent


# --- verify --------------------------------------------------------------------------------------------------------


def test_a_sound_bundle_is_ok(cli: Any, bundle: Path) -> None:
    run = cli("verify", bundle, "--json")
    assert (run.code, run.json["ok"], run.json["entries"], run.json["problems"]) == (0, True, 3, [])
    assert run.json["content_digest"] == bundler.inspect(bundle)["content_digest"]
    assert cli("verify", bundle).text.startswith("ok: 3 entries")


def test_the_expected_digest_may_have_its_prefix_or_not(cli: Any, bundle: Path) -> None:
    digest = bundler.inspect(bundle)["content_digest"]
    for spelled in (digest, digest.removeprefix("sha256:"), digest.removeprefix("sha256:").upper()):
        assert cli("verify", bundle, "--expect-digest", spelled).code == 0


def test_a_damaged_bundle_names_every_entry_that_it_hurts(cli: Any, flipped: Path) -> None:
    run = cli("verify", flipped, "--json")
    assert (run.code, run.json["ok"], run.json["entries"]) == (4, False, 3)
    assert {problem["code"] for problem in run.json["problems"]} == {"digest"}
    assert len({problem["entry"] for problem in run.json["problems"]}) == 3
    words = cli("verify", flipped)
    assert words.code == 4 and words.text.startswith("not ok: 3 of 3 entries") and "problem\tdigest\t" in words.text


DAMAGE = {
    "missing_member": lambda kernel: (kernel / "add.cubin").unlink(),
    "empty": lambda kernel: (kernel / "add.cubin").write_bytes(b""),
    "nul_filled": lambda kernel: (kernel / "add.json").write_bytes(bytes(100)),
    "bad_json": lambda kernel: (kernel / "__grp__add.json").write_bytes(b'{"child'),
    "bad_elf": lambda kernel: (kernel / "add.cubin").write_bytes(b"\x7fELF" + bytes(3)),
    "target_mismatch": lambda kernel: (kernel / "add.json").write_text(
        json.dumps({**json.loads((kernel / "add.json").read_text()), "target": {"backend": "cuda", "arch": 80}})
    ),
    "points_away": lambda kernel: (kernel / "__grp__add.json").write_text(
        (kernel / "__grp__add.json").read_text().replace(str(kernel), f"/elsewhere/{kernel.name}")
    ),
}


@pytest.mark.parametrize("code", DAMAGE)
def test_damage_of_a_root_is_found_and_repaired(
    cli: Any, bundle: Path, installed: Path, triton: Path, code: str
) -> None:
    kernel = add(installed)
    before = trees.snapshot(installed)
    DAMAGE[code](kernel)
    found = cli("verify", "--root", f"triton={installed}", "--json")
    assert found.code == 6 and not found.json["ok"]
    assert [(p["code"], p["entry"]) for p in found.json["problems"]] == [(code, f"triton/{kernel.name}")]
    dry = cli("repair", bundle, "--root", f"triton={installed}", "--dry-run", "--json")
    assert (dry.code, dry.json["repaired"], dry.json["remaining"]) == (0, 1, [])
    assert cli("verify", "--root", f"triton={installed}").code == 6
    run = cli("repair", bundle, "--root", f"triton={installed}", "--json")
    assert (run.code, run.json["repaired"], run.json["unchanged"], run.json["remaining"]) == (0, 1, 2, [])
    assert trees.snapshot(installed) == before


def test_a_root_without_a_kind_is_verified_too(cli: Any, installed: Path) -> None:
    assert cli("verify", "--root", installed).code == 0


# --- repair --------------------------------------------------------------------------------------------------------


def test_what_the_bundle_does_not_hold_remains(cli: Any, bundle: Path, installed: Path) -> None:
    other = trees.synthetic_kernel(installed, "other")
    (other / "other.cubin").write_bytes(b"")
    (add(installed) / "add.cubin").write_bytes(b"")
    for more in (["--dry-run"], []):
        run = cli("repair", bundle, "--root", f"triton={installed}", "--json", *more)
        assert (run.code, run.json["repaired"]) == (6, 1)
        assert [(p["code"], p["entry"]) for p in run.json["remaining"]] == [("empty", f"triton/{other.name}")]
    assert "remaining\tempty\ttriton/" in cli("repair", bundle, "--root", f"triton={installed}").text


def test_repair_adds_nothing_and_keeps_what_differs(cli: Any, bundle: Path, installed: Path) -> None:
    kernel = add(installed)
    shutil.rmtree(kernel)
    trees.synthetic_kernel(installed, "softmax", key=trees.default_key("softmax"), seed=5)
    before = trees.snapshot(installed)
    run = cli("repair", bundle, "--root", f"triton={installed}", "--json")
    assert (run.code, run.json["restored"], run.json["repaired"]) == (0, 0, 0)
    assert trees.snapshot(installed) == before


def test_repair_from_a_changed_bundle_is_refused(cli: Any, flipped: Path, installed: Path) -> None:
    (add(installed) / "add.cubin").write_bytes(b"")
    before = trees.snapshot(installed)
    assert cli("repair", flipped, "--root", f"triton={installed}").code == 4
    assert trees.snapshot(installed) == before


def test_a_vllm_table_that_points_away_is_repaired(cli: Any, tmp_path: Path) -> None:
    root = trees.synthetic_vllm_root(tmp_path / "v", compiler="inductor")
    assert cli("pack", f"vllm={root}", "-o", tmp_path / "v.tbundle", "--strict").code == 0
    assert cli("unpack", tmp_path / "v.tbundle", "--into", tmp_path / "there").code == 0
    table = next((tmp_path / "there").rglob(trees.VLLM_CACHE_FILE))
    table.write_text(table.read_text().replace(str(tmp_path / "there"), "/gone/there"))
    spec = f"vllm={tmp_path / 'there'}"
    assert [p["code"] for p in cli("verify", "--root", spec, "--json").json["problems"]] == ["points_away"]
    run = cli("repair", tmp_path / "v.tbundle", "--root", spec, "--json")
    assert (run.code, run.json["repaired"], run.json["remaining"]) == (0, 1, [])


# --- diff ----------------------------------------------------------------------------------------------------------


def test_a_bundle_is_the_same_as_itself(cli: Any, bundle: Path) -> None:
    run = cli("diff", bundle, bundle, "--json")
    assert run.json == {"added": [], "removed": [], "changed": [], "equivalent": [], "same": True}
    assert cli("diff", bundle, bundle).text == "result: the same entries\n"


def test_diff_tells_what_came_went_and_changed_and_ends_with_0(
    cli: Any, triton: Path, bundle: Path, tmp_path: Path
) -> None:
    gone, changed = add(triton), triton / trees.default_key("softmax")
    shutil.rmtree(gone)
    shutil.rmtree(changed)
    trees.synthetic_kernel(triton, "softmax", key=changed.name, seed=5)
    came = trees.synthetic_kernel(triton, "matmul")
    assert cli("pack", f"triton={triton}", "-o", tmp_path / "b.tbundle").code == 0
    run = cli("diff", bundle, tmp_path / "b.tbundle", "--json")
    assert run.code == 0 and not run.json["same"]
    assert (run.json["added"], run.json["removed"]) == ([f"triton/{came.name}"], [f"triton/{gone.name}"])
    assert [each["entry"] for each in run.json["changed"]] == [f"triton/{changed.name}"]
    assert "softmax.cubin" in run.json["changed"][0]["files"]
    words = cli("diff", bundle, tmp_path / "b.tbundle").lines
    assert f"added\ttriton/{came.name}" in words
    assert words[-1] == "result: 1 entry added, 1 entry removed, 1 entry changed"


# --- inspect -------------------------------------------------------------------------------------------------------


def test_inspect_says_what_is_inside(cli: Any, both: Path, triton: Path) -> None:
    lines = cli("inspect", both).lines
    assert "format: 1" in lines and "targets: cuda:90, hip:gfx942" in lines and "profile: full" in lines
    rows = [line.split("\t") for line in lines if "\t" in line]
    assert ["root", "triton", "triton", "3"] in [row[:4] for row in rows]
    assert {row[1] for row in rows if row[0] == "target"} == {"-", "cuda:90", "hip:gfx942"}
    assert {row[1] for row in rows if row[0] == "unit"} == {"aotautograd", "autotune", "fxgraph", "kernel", "module"}
    assert [row for row in rows if row[0] == "fact" and row[1] == "recorded_roots.triton"] == [
        ["fact", "recorded_roots.triton", str(triton)]
    ]
    assert not [row for row in rows if row[0] == "entry"]


def test_inspect_lists_every_entry_on_request(cli: Any, both: Path) -> None:
    rows = [line.split("\t") for line in cli("inspect", both, "--entries").lines]
    listed = {row[-1] for row in rows if row[0] == "entry"}
    assert listed == {f"{entry['root']}/{entry['path']}" for entry in bundler.inspect(both)["entries"]}


def test_inspect_counts_foreign_paths_by_directory(cli: Any, both: Path) -> None:
    counts: dict[str, int] = {}
    for each in bundler.inspect(both)["foreign_paths"]:
        counts[each["path"]] = counts.get(each["path"], 0) + 1
    rows = [line.split("\t")[1:] for line in cli("inspect", both).lines if line.startswith("foreign path\t")]
    assert {path: int(count) for count, path in rows} == counts
    assert [int(count) for count, _ in rows] == sorted(counts.values(), reverse=True)


def test_inspect_flattens_facts(cli: Any, triton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"gpus": [{"name": "A", "target": "cuda:90"}, {"name": "B", "target": "cuda:90"}], "empty": [], "n": 3}
    monkeypatch.setattr("bundler.host.facts", lambda: facts)
    assert cli("pack", triton, "-o", tmp_path / "x.tbundle").code == 0
    rows = [line.split("\t")[1:] for line in cli("inspect", tmp_path / "x.tbundle").lines if line.startswith("fact\t")]
    assert ["gpus.0.name", "A"] in rows and ["gpus.1.target", "cuda:90"] in rows and ["n", "3"] in rows


def test_inspect_reads_the_index_alone(cli: Any, flipped: Path) -> None:
    assert cli("inspect", flipped).code == 0


def test_inspect_shows_what_was_skipped_at_pack(cli: Any, triton: Path, tmp_path: Path) -> None:
    (add(triton) / "add.cubin").write_bytes(b"")
    cli("pack", triton, "-o", tmp_path / "x.tbundle")
    assert any(
        line.startswith(f"skipped\ttriton/{add(triton).name}\t")
        for line in cli("inspect", tmp_path / "x.tbundle").lines
    )
