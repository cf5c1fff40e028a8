"""What stands in an FX graph entry of torch, where torch would have a list of raw files: one blob in format v1.

In the pickle it is one ``bytes`` argument of one function, ``bundler.integrations.blob.kernel_artifacts``. That name
and that argument are frozen for ever: entries that name it lie in caches all over. What may change is the format of the
blob, which has its own version.

A process that has this package but not the hook restores all the same: torch iterates over what the function returns,
and gets its own ``TritonKernelArtifacts``, made from the blob at that moment. Neither torch nor a decoder is imported
before. Host binaries of the blob are not among them: torch would write them to any host.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from bundler.model import Entry

__all__ = ["KernelArtifacts", "kernel_artifacts"]

log = logging.getLogger("bundler")

_SENTINEL = "[REPLACE]"  # torch/_inductor/triton_bundler.py: stands for the kernel's directory in every .json


def kernel_artifacts(blob: bytes) -> KernelArtifacts:
    """Return the kernels of a blob, not decoded yet. Never raises: what is wrong shows when they are asked for."""
    return KernelArtifacts(blob)


class KernelArtifacts(Sequence[Any]):
    """The kernels of a blob, as a sequence of torch's ``TritonKernelArtifacts`` that is made when it is iterated over.

    A blob that is damaged or too new is one warning, and no kernels: torch then compiles them.

    Attributes:
        blob: A bundle whose roots are devices, named by their ordinals.
    """

    __slots__ = ("_is_broken", "blob")

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self._is_broken = False

    def __reduce__(self) -> tuple[Any, ...]:
        return kernel_artifacts, (self.blob,)

    def __repr__(self) -> str:
        return f"<KernelArtifacts: {len(self.blob)} bytes>"

    def __len__(self) -> int:
        return len(self._decoded())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._decoded())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._decoded()[index]

    def _decoded(self) -> list[Any]:
        if self._is_broken:  # said already: list() asks for the length first
            return []
        try:
            from bundler.switch import SWITCH, is_switched_on

            if not is_switched_on():
                log.debug("%s is 0: the kernels of an FX graph entry are not restored", SWITCH)
                return []
            return _decode(self.blob)
        except Exception as error:  # noqa: BLE001  whoever iterates is inside the user's compile
            self._is_broken = True
            log.warning("the kernels of an FX graph entry cannot be read, and are compiled instead: %s", error)
            return []


def _decode(blob: bytes) -> list[Any]:
    """Return every kernel of a blob as torch has it; all is verified before the first is returned."""
    from bundler.model import Unit
    from bundler.reading import opened

    with opened(blob) as reader:
        contents: dict[int, bytearray] = {}
        for chunk in reader.deliver(range(len(reader.index.contents))):
            contents.setdefault(chunk.content, bytearray()).extend(chunk.data)
        kernels = (_kernel(entry, contents) for entry in reader.index.entries if entry.unit is Unit.KERNEL)
        return [kernel for kernel in kernels if kernel is not None]


def _kernel(entry: Entry, contents: dict[int, bytearray]) -> Any:
    from torch._inductor.triton_bundler import TritonKernelArtifact, TritonKernelArtifacts

    from bundler.relocate import restore

    artifacts = []
    for artifact in entry.artifacts:
        data = bytes(contents[artifact.content])
        placeholders = 0
        if artifact.relocation is not None:
            data = restore(data, artifact.relocation, _SENTINEL, name=f"{entry}/{artifact.name}")
            placeholders = len(artifact.relocation.offsets)
        if artifact.name.endswith(".json") and data.count(_SENTINEL.encode()) > placeholders:
            # torch would write the directory over it: a kernel that is wrong is worse than one that is compiled.
            log.warning("%s/%s holds %s itself: the kernel is compiled instead", entry, artifact.name, _SENTINEL)
            return None
        artifacts.append(TritonKernelArtifact(artifact.name, data))
    return TritonKernelArtifacts(entry.path, int(entry.root), artifacts)
