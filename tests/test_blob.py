"""What stands in the pickles of FX graph entries all over: a name and an argument that never change. No torch here."""

from __future__ import annotations

import pickle
import sys

import pytest

from bundler.integrations.blob import KernelArtifacts, kernel_artifacts

# Written on the day of the first release. A pickle like this lies in caches, and must load for ever.
GOLDEN = (
    b"\x80\x02cbundler.integrations.blob\nkernel_artifacts\nq\x00c_codecs\nencode\nq\x01X\x04\x00\x00\x00blobq\x02"
    b"X\x06\x00\x00\x00latin1q\x03\x86q\x04Rq\x05\x85q\x06Rq\x07."
)
GOLDEN_4 = (
    b"\x80\x04\x95=\x00\x00\x00\x00\x00\x00\x00\x8c\x19bundler.integrations.blob\x94\x8c\x10kernel_artifacts\x94\x93"
    b"\x94C\x04blob\x94\x85\x94R\x94."
)


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_4], ids=["protocol 2", "protocol 4"])
def test_what_was_ever_pickled_loads(golden: bytes) -> None:
    loaded = pickle.loads(golden)
    assert type(loaded) is KernelArtifacts and loaded.blob == b"blob"


def test_the_name_and_the_argument_are_the_frozen_ones() -> None:
    assert pickle.dumps(kernel_artifacts(b"blob"), protocol=4) == GOLDEN_4
    assert kernel_artifacts.__module__ == "bundler.integrations.blob"
    assert kernel_artifacts.__qualname__ == "kernel_artifacts"


def test_loading_decodes_nothing() -> None:
    assert pickle.loads(pickle.dumps(kernel_artifacts(b"not a bundle"))).blob == b"not a bundle"
    assert repr(kernel_artifacts(b"1234")) == "<KernelArtifacts: 4 bytes>"


def test_what_cannot_be_read_is_no_kernels_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert list(kernel_artifacts(b"not a bundle")) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_what_cannot_be_decoded_here_is_no_kernels_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Half an installation, say: without msgpack. torch iterates inside the user's compile.
    monkeypatch.setitem(sys.modules, "bundler.triton_bundler", None)
    assert list(kernel_artifacts(b"a bundle")) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_switched_off_it_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_BUNDLER", "0")
    assert len(kernel_artifacts(b"not a bundle")) == 0
