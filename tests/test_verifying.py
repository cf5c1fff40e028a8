"""``verify``: it names what is wrong, with the code of the command contract, and is silent on what is whole."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

import bundler
from bundler.digest import Digest
from bundler.errors import DigestMismatchError, FormatError, LocalIOError, NotABundleError
from bundler.formats import open_bundle
from bundler.testing.trees import kernel_directories, synthetic_inductor_root, synthetic_kernel


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return synthetic_inductor_root(tmp_path / "root")


@pytest.fixture
def bundle(root: Path, tmp_path: Path) -> Path:
    bundler.pack([f"inductor={root}"], tmp_path / "it.tbundle")
    return tmp_path / "it.tbundle"


def _binary(root: Path) -> Path:
    return next(kernel_directories(root)[0].glob("*.cubin"))


def _group(root: Path) -> Path:
    return next(kernel_directories(root)[0].glob("__grp__*"))


def test_a_bundle_as_it_was_packed_has_no_problem(bundle: Path) -> None:
    report = bundler.verify(bundle)
    assert report.ok and report.problems == () and report.exit_code == 0
    assert report.content_digest == bundler.inspect(bundle)["content_digest"]
    assert report.entries == len(bundler.inspect(bundle)["entries"])


def test_a_flipped_byte_in_the_payload_is_named_with_the_entries_it_spoils(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[-10] ^= 0x40
    report = bundler.verify(bytes(data))
    assert not report.ok and report.exit_code == 4
    assert {problem.code for problem in report.problems} == {"digest"}
    assert all(problem.entry.startswith("inductor/") and problem.file for problem in report.problems)


def test_a_bundle_is_checked_from_a_pipe_to_its_very_end(bundle: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    assert bundler.verify(Pipe(bundle.read_bytes())).ok
    with pytest.raises(FormatError, match="follow the last frame"):
        bundler.verify(Pipe(bundle.read_bytes() + b"x"))


def test_the_expected_digest_is_compared_before_anything_else(bundle: Path) -> None:
    digest = bundler.verify(bundle).content_digest
    assert bundler.verify(bundle, expect_digest=digest).ok
    assert bundler.verify(bundle, expect_digest=Digest.parse(digest)).ok
    with pytest.raises(DigestMismatchError) as error:
        bundler.verify(bundle, expect_digest="sha256:" + "0" * 64)
    assert (error.value.expected, error.value.actual) == ("sha256:" + "0" * 64, digest)


def test_what_is_no_bundle_is_an_error_not_a_problem(tmp_path: Path) -> None:
    with pytest.raises(NotABundleError):
        bundler.verify(b"PK\x03\x04" + bytes(100))
    with pytest.raises(LocalIOError) as error:
        bundler.verify(tmp_path / "absent.tbundle")
    assert "absent.tbundle" in error.value.path


def test_an_index_that_names_another_gpu_than_the_files_is_found(bundle: Path, tmp_path: Path) -> None:
    """The loss: kernels restored for a GPU that cannot load them, because a bundle said so."""
    from dataclasses import replace

    from bundler.formats import Source, write
    from bundler.model import Target

    with open(bundle, "rb") as file:
        reader = open_bundle(file)
        index = reader.index
        contents = [reader.read(number) for number in range(len(index.contents))]
    lying = tuple(entry._replace(target=Target("cuda", "80", 32)) if entry.target else entry for entry in index.entries)
    sources = []
    for number, content in enumerate(index.contents):
        own = content._replace(copies=(), foreign=0)
        sources.append(Source(own, lambda number=number: [contents[number]]))  # type: ignore[misc]
    out = io.BytesIO()
    write(out, replace(index, entries=lying, contents=(), frames=(), foreign=((),)), sources)
    codes = {problem.code for problem in bundler.verify(out.getvalue()).problems}
    assert codes == {"target_mismatch"}


# Each row: the code, and how a whole kernel or entry comes to it on a disk. A full disk, a power cut, a killed writer.
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a member that was never written": ("missing_member", lambda root: _binary(root).unlink()),
    "a binary cut off at nothing": ("empty", lambda root: _binary(root).write_bytes(b"")),
    "a group file cut off at nothing": ("empty", lambda root: _group(root).write_bytes(b"")),
    "a binary of the right size without data": (
        "nul_filled",
        lambda root: _binary(root).write_bytes(bytes(_binary(root).stat().st_size)),
    ),
    "a group file of the right size without data": (
        "nul_filled",
        lambda root: _group(root).write_bytes(bytes(_group(root).stat().st_size)),
    ),
    "a group file cut off at ten bytes": (
        "bad_json",
        lambda root: _group(root).write_bytes(_group(root).read_bytes()[:10]),
    ),
    "a binary with another magic": (
        "bad_elf",
        lambda root: _binary(root).write_bytes(b"\x00ELF" + _binary(root).read_bytes()[4:]),
    ),
    "a binary cut off in the middle": (
        "bad_elf",
        lambda root: _binary(root).write_bytes(_binary(root).read_bytes()[: _binary(root).stat().st_size // 2]),
    ),
    "an FX graph entry cut off in the middle": (
        "bad_pickle",
        lambda root: _cut(next(path for path in (root / "fxgraph").rglob("*") if path.is_file())),
    ),
    "a module cut off in the middle": ("bad_python", lambda root: _cut(next(root.glob("??/*.py")))),
    "an autotune result cut off": ("bad_json", lambda root: _cut(next(root.rglob("*.best_config")))),
}


def _cut(path: Path) -> None:
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b"(") + 1] if path.suffix == ".py" else text[: len(text) // 2])


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_in_an_installed_root_is_found_without_a_bundle(case: str, root: Path, bundle: Path) -> None:
    code, damage = DAMAGE[case]
    assert bundler.verify_root(f"inductor={root}").ok
    damage(root)
    report = bundler.verify_root(f"inductor={root}")
    assert {problem.code for problem in report.problems} == {code}
    assert len({problem.entry for problem in report.problems}) == 1 and report.exit_code == 6
    # What verify complains about is exactly what repair replaces.
    repaired = bundler.repair(bundle, f"inductor={root}")
    assert (repaired.repaired, repaired.restored) == (1, 0)
    assert bundler.verify_root(f"inductor={root}").ok


def test_a_kernel_whose_json_and_binary_name_two_gpus_is_damaged(tmp_path: Path) -> None:
    hopper = synthetic_kernel(tmp_path / "triton", "k", key="A" * 52)
    ampere = synthetic_kernel(tmp_path / "other", "k", key="A" * 52, target=("cuda", 80, 32))
    (hopper / "k.cubin").write_bytes((ampere / "k.cubin").read_bytes())
    problems = bundler.verify_root(f"triton={tmp_path / 'triton'}").problems
    assert [problem.code for problem in problems] == ["target_mismatch"]
    assert "cuda:80" in problems[0].detail and "cuda:90" in problems[0].detail


def test_a_tree_that_was_moved_points_away(root: Path, clone: Callable[..., Path]) -> None:
    """The loss: a copied cache that misses on every look-up, and nothing says why."""
    moved = clone(root)
    report = bundler.verify_root(f"inductor={moved}")
    kernels = len(kernel_directories(moved))
    assert [problem.code for problem in report.problems] == ["points_away"] * kernels
    assert str(root) in report.problems[0].detail and str(moved) in report.problems[0].detail


def test_a_root_that_is_reached_through_a_link_does_not_point_away(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert bundler.verify_root(f"inductor={tmp_path / 'link'}").ok


def test_a_root_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalIOError):
        bundler.verify_root(f"inductor={tmp_path / 'absent'}")
