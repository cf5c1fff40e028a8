"""A torch that cannot be joined is told by what it lacks, before it is changed. No torch here."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bundler.integrations.seams import missing


def torch_with(**changes: Any) -> SimpleNamespace:
    """Return the dataclasses of torch's bundler, with fields that ``changes`` gives another ``dataclasses.field``."""
    names = {
        "TritonBundle": ("kernel_artifacts", "static_autotuners"),
        "TritonBundlerMetadata": ("cached_kernel_names",),
        "TritonKernelArtifacts": ("kernel_hash", "device", "artifacts"),
        "TritonKernelArtifact": ("filename", "payload"),
    }
    classes = {
        name: make_dataclass(name, [(each, Any, changes.get(each, field(default=None))) for each in fields])
        for name, fields in names.items()
    }
    return SimpleNamespace(**classes)


def test_its_dataclasses_pass() -> None:
    assert missing(torch_with()) == "triton_cache_dir()"  # the next thing that is looked at


def test_a_dataclass_that_is_gone_is_named() -> None:
    torch = torch_with()
    del torch.TritonKernelArtifact
    assert missing(torch) == "TritonKernelArtifact.filename"


@pytest.mark.parametrize("name", ["kernel_artifacts", "cached_kernel_names", "payload"])
def test_a_field_that_cannot_be_given_is_named(name: str) -> None:
    # dataclasses.replace() would raise, in the middle of a compile.
    assert missing(torch_with(**{name: field(init=False, default=None)})).endswith(f".{name}")
