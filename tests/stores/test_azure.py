"""Azure Blob Storage: the promises of all stores, by an emulator where it is at hand, and what is peculiar to Azure.

``scripts/test-azure`` installs the emulator and runs this file; ``AZURITE`` names its program ``azurite-blob``.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from bundler.stores import Store, Version, open_store
from bundler.stores import obstore as module
from bundler.testing.stores import StoreTests, quick
from tests.conftest import wait_for

pytest.importorskip("obstore", reason="obstore is not installed")

# The account that every emulator has, published by Microsoft as not a secret.
ACCOUNT = "devstoreaccount1"
SECRET = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_CONTAINERS = count()


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator."""
    program = os.environ.get("AZURITE")
    if not program:
        pytest.skip("no emulator: scripts/test-azure installs one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = tmp_path_factory.mktemp("azure")
    command = [program, "--blobPort", str(port), "--location", str(place), "--silent", "--skipApiVersionCheck"]
    with subprocess.Popen(command) as server:
        try:
            wait_for(port)
            yield f"http://127.0.0.1:{port}/{ACCOUNT}"
        finally:
            server.terminate()


def make_container(address: str, name: str) -> None:
    """Make a container, as ``az storage container create`` does: obstore itself cannot."""
    date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(SECRET), text.encode(), hashlib.sha256)).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    request = urllib.request.Request(f"{address}/{name}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request):
        pass


class TestAzureStore(StoreTests):
    savers = 10

    @pytest.fixture
    def store(self, azure: str, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
        name = f"container-{next(_CONTAINERS)}"
        make_container(azure, name)
        return open_store(f"az://{name}/p?endpoint={azure}&allow_http=true", retry=quick())


# What the emulator showed, without it.


def _store(kind: str) -> module.ObstoreStore:
    return module.ObstoreStore("az://c", kind, None, None)


def test_a_tag_is_the_same_in_a_listing_and_in_an_answer() -> None:
    """The loss: a version that was listed, and can never be replaced."""
    for kind, tag, shown in [
        ("az", "0x1D26C62F3CDF490", '"0x1D26C62F3CDF490"'),
        ("az", '"0x1D26C62F3CDF490"', '"0x1D26C62F3CDF490"'),
        ("s3", '"abc"', '"abc"'),
        ("s3", "abc", "abc"),
        ("az", "", ""),
    ]:
        assert _store(kind)._version({"e_tag": tag}) == Version(shown)


def test_a_range_behind_the_end_is_empty_whoever_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words that obstore had when the emulator was asked; whether it has them still, TestAzureStore tells."""
    from datetime import datetime, timezone

    import obstore

    def get(*_: Any, **__: Any) -> Any:
        text = "Generic MicrosoftAzure error: Wanted range starting at 10, but object was only 10 bytes long"
        raise obstore.exceptions.GenericError(text)

    def head(*_: Any) -> Any:
        return {"e_tag": '"t"', "size": 10, "last_modified": datetime.fromtimestamp(5, timezone.utc)}

    fake = SimpleNamespace(get=get, head=head, exceptions=obstore.exceptions)
    monkeypatch.setattr(module, "_obstore", lambda: fake)
    assert _store("az")._get_range("key", 10, 5)[0] == b""
