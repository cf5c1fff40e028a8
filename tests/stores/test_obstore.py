"""S3 and web servers: the promises of all stores over real HTTP, and connections that break."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundler.caching import restore, save
from bundler.errors import ObjectExistsError, StoreError, UsageError
from bundler.stores import Store, open_store
from bundler.stores import obstore as module
from bundler.stores._retry import TransientError
from bundler.testing.proxy import Fault, Proxy
from bundler.testing.stores import BAD_KEYS, StoreTests, pattern, quick
from bundler.testing.trees import synthetic_kernel

pytest.importorskip("obstore", reason="obstore is not installed")

from tests.conftest import wait_for

from .conftest import WebServer


class TestS3Store(StoreTests):
    savers = 10

    @pytest.fixture
    def store(self, s3_url: str) -> Store:
        return open_store(s3_url, retry=quick())


class TestWebStore(StoreTests):
    can_list = False
    can_condition = False

    @pytest.fixture
    def store(self, web: WebServer) -> Store:
        return open_store(f"{web.url}/dir", retry=quick())


class TestWebStoreWithoutRanges(TestWebStore):
    """A server that sends the whole object, whatever was asked for, as ``python -m http.server`` does."""

    @pytest.fixture
    def store(self, web: WebServer) -> Store:
        web.ranges = False
        return open_store(f"{web.url}/dir", retry=quick())


# -- S3 ----------------------------------------------------------------------------------------------------------------


def through(proxy: Proxy, bucket: str, deadline: float = 5.0) -> Store:
    return open_store(f"s3://{bucket}/p?endpoint={proxy.url}", retry=quick(deadline))


def test_a_large_upload_goes_in_parts_and_is_proved_by_its_tag(proxy: Proxy, bucket: str) -> None:
    store = through(proxy, bucket)
    data = pattern(module.MULTIPART_ABOVE + 1000)
    store.put("key", io.BytesIO(data))
    uploads = [request for request in proxy.requests if request.method == "PUT"]
    assert len(uploads) == 5 and all("partNumber" in request.target for request in uploads)
    assert not [request for request in proxy.requests if request.method == "GET"], "nothing was read back"
    assert store.get("key") == data


def test_a_part_that_fails_is_sent_again_and_the_others_are_not(proxy: Proxy, bucket: str) -> None:
    store = through(proxy, bucket)
    data = pattern(module.MULTIPART_ABOVE + 1000)
    proxy.plan(Fault(method="PUT", path="partNumber=2", status=503))
    store.put("key", io.BytesIO(data))
    assert len([request for request in proxy.requests if request.method == "PUT"]) == 6
    assert store.get("key") == data


def test_a_flipped_part_is_noticed(proxy: Proxy, bucket: str) -> None:
    store = through(proxy, bucket)
    data = pattern(module.MULTIPART_ABOVE + 1000)
    proxy.plan(Fault(method="PUT", path="partNumber=3", flip_up=4_000_000))
    store.put("key", io.BytesIO(data))
    assert store.get("key") == data


def test_a_tag_that_is_no_checksum_has_the_object_read_back(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 tags objects that it encrypts with keys of its own by something else of the same form."""
    store = through(proxy, bucket)
    monkeypatch.setattr("bundler.stores._base.Body.md5", lambda *_: "0" * 32)
    store.put("key", b"value")
    assert [request.method for request in proxy.requests] == ["PUT", "HEAD", "GET"]


@pytest.mark.parametrize("code", ["BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody", "RequestTimeout"])
def test_a_refusal_of_a_damaged_upload_is_tried_again(code: str) -> None:
    from obstore.exceptions import GenericError

    store = open_store("s3://bucket?region=r")
    text = f"Server returned non-2xx status code: 400 Bad Request: <Error><Code>{code}</Code></Error>"
    with pytest.raises(TransientError, match=code), store._errors("key"):  # type: ignore[attr-defined]
        raise GenericError(text)


def test_an_upload_in_parts_that_never_ends_shows_nothing(proxy: Proxy, bucket: str) -> None:
    store = through(proxy, bucket, 0.0)
    store.put("key", b"old")
    proxy.plan(Fault(times=None, method="POST", path="uploadId", status=403))
    with pytest.raises(StoreError):
        store.put("key", io.BytesIO(pattern(module.MULTIPART_ABOVE + 1000)))
    proxy.plan()
    assert store.get("key") == b"old"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_service_is_asked_again(proxy: Proxy, bucket: str, status: int) -> None:
    store = through(proxy, bucket)
    proxy.plan(Fault(times=2, status=status))
    store.put("key", b"value")
    proxy.plan(Fault(times=2, status=status))
    assert store.get("key") == b"value"
    assert len(proxy.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refusal_is_not_tried_again(proxy: Proxy, bucket: str, status: int) -> None:
    store = through(proxy, bucket)
    proxy.plan(Fault(times=None, status=status))
    with pytest.raises(StoreError) as caught:
        store.get("key")
    assert caught.value.exit_code == 10
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("call", ["get", "put", "head", "list", "delete", "open"])
def test_a_bucket_that_does_not_exist_is_an_error_and_no_miss(s3_server: str, bucket: str, call: str) -> None:
    """The loss: a job that never hits, since a typo looks like an empty cache."""
    store = open_store(f"s3://no-such-bucket?endpoint={s3_server}", retry=quick())
    calls = {
        "get": lambda: store.get("key"),
        "put": lambda: store.put("key", b""),
        "head": lambda: store.head("key"),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete("key"),
        "open": lambda: store.open("key"),
    }
    with pytest.raises(StoreError, match="NoSuchBucket"):
        calls[call]()


@pytest.mark.parametrize(
    "url", ["s3://bucket?endpoint=http://127.0.0.1:9&region=us-east-1", "http://127.0.0.1:9/dir?token=secret"]
)
def test_a_store_that_cannot_be_reached_is_named_without_secrets(bucket: str, url: str) -> None:
    store = open_store(url, retry=quick(0.2))
    for call in (lambda: store.get("key"), lambda: store.put("key", b""), lambda: store.head("key")):
        with pytest.raises(StoreError, match=r"127\.0\.0\.1:9") as caught:
            call()
        assert "secret" not in str(caught.value)


def test_a_service_that_never_answers_is_given_up(proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT", 0.2)
    store = through(proxy, bucket, 0.5)
    proxy.plan(Fault(times=None, delay=3.0))
    with pytest.raises(StoreError):
        store.get("key")


@pytest.mark.parametrize("mode", ["overwrite", "create"])
def test_an_answer_that_is_lost_is_no_loss(proxy: Proxy, bucket: str, mode: str) -> None:
    store = through(proxy, bucket)
    proxy.plan(Fault(method="PUT", lose_answer=True))
    version = store.put("key", b"value", mode=mode)  # type: ignore[arg-type]
    head = store.head("key")
    assert head is not None and head.version == version
    assert store.get("key") == b"value"


def test_a_flipped_upload_is_sent_again(proxy: Proxy, bucket: str) -> None:
    store = through(proxy, bucket)
    first = store.put("key", b"first value")
    proxy.plan(Fault(method="PUT", flip_up=3))
    store.put("key", b"second value", mode=first)
    assert store.get("key") == b"second value"


VALUE = b"what is uploaded and downloaded, in a few bytes; " * 4


def _offsets(size: int) -> range:
    return range(0, size, 10)


def test_an_upload_cut_at_every_tenth_byte_shows_the_old_object(proxy: Proxy, bucket: str) -> None:
    """The loss: the bundle of yesterday, for half of today's."""
    once, store = through(proxy, bucket, 0.0), through(proxy, bucket)
    old = store.put("key", b"old")
    proxy.plan()
    once.put("probe", VALUE)
    sent = proxy.requests[0]
    for at in _offsets(sent.up + 900):
        proxy.plan(Fault(method="PUT", path="key", cut_up=at))
        try:
            once.put("key", VALUE, mode=old)
        except StoreError:
            assert store.get("key") == b"old", at
        else:
            assert at >= sent.up, "more than the whole request was allowed"
            break
    assert store.get("key") == VALUE


def test_an_upload_cut_at_every_tenth_byte_succeeds_when_it_may_try_again(proxy: Proxy, bucket: str) -> None:
    store = through(proxy, bucket)
    for at in _offsets(len(VALUE) + 600):
        proxy.plan(Fault(method="PUT", cut_up=at))
        store.put("key", VALUE)
        assert store.get("key") == VALUE, at


@pytest.mark.parametrize("fault", ["cut_down", "truncate"])
def test_a_download_cut_at_every_tenth_byte_is_an_error_or_whole(proxy: Proxy, bucket: str, fault: str) -> None:
    store, once = through(proxy, bucket), through(proxy, bucket, 0.0)
    store.put("key", VALUE)
    refused = 0
    for at in _offsets(len(VALUE) + (500 if fault == "cut_down" else 0)):
        proxy.plan(Fault(method="GET", **{fault: at}))  # type: ignore[arg-type]
        try:
            assert once.get("key") == VALUE
        except StoreError:
            refused += 1
        proxy.plan(Fault(method="GET", **{fault: at}))  # type: ignore[arg-type]
        assert store.get("key") == VALUE
    assert refused >= len(VALUE) // 10 - 1


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket?colour=red", "an option that it does not have"),
        ("s3:///key", "names no bucket"),
        ("http:///key", "names no host"),
    ],
)
def test_addresses_that_cannot_be_opened(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        open_store(url)


@pytest.mark.parametrize("url", ["gs://bucket/prefix", "az://container/prefix?account_name=name"])
def test_the_other_services_are_opened_without_asking_them(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(url)
    assert store.url == url.partition("?")[0]
    for key in BAD_KEYS:
        with pytest.raises(StoreError):
            store.get(key)


def test_a_configuration_that_cannot_work_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="Account must be specified"):
        open_store("az://container")


def test_a_web_server_that_cannot_be_written_says_so(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(web.url, retry=quick())
    monkeypatch.delattr(type(web.RequestHandlerClass), "do_PUT", raising=False)  # type: ignore[arg-type]
    monkeypatch.delattr(web.RequestHandlerClass, "do_PUT")
    with pytest.raises(StoreError, match="cannot be written to"):
        store.put("key", b"")
    with pytest.raises(StoreError, match="cannot be listed"):
        list(store.list())


def test_a_web_server_has_no_conditions(web: WebServer) -> None:
    store = open_store(web.url, retry=quick())
    with pytest.raises(StoreError, match="on a condition") as caught:
        store.put("key", b"", mode="create")
    assert not isinstance(caught.value, ObjectExistsError)


def test_a_signed_address_is_asked_as_it_is(web: WebServer) -> None:
    web.objects["/dir/key"] = b"value"
    store = open_store(f"{web.url}/dir?X-Signature=secret", retry=quick())
    assert store.get("key") == b"value"
    assert "secret" not in repr(store)


def test_without_the_extra_the_message_names_it(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['obstore'] = None\nfrom bundler.stores import open_store\n"
        "from bundler.errors import UsageError\n"
        "try:\n    open_store('s3://bucket')\nexcept UsageError as error:\n    print(error)\n"
    )
    package = Path(module.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=package, capture_output=True, text=True, check=True)
    assert "pip install 'triton-bundler[store]'" in done.stdout


def test_the_core_does_not_load_obstore(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom bundler.stores import open_store\nimport bundler.remote\n"
        "open_store(sys.argv[1])\nprint('obstore' in sys.modules)\n"
    )
    package = Path(module.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=package, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


# -- credentials -------------------------------------------------------------------------------------------------------


@pytest.fixture
def strict_s3() -> Iterator[str]:
    """An S3 server that looks at credentials: after one request without any, which makes the bucket ``strict``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "from moto.server import main; import sys; main(sys.argv[1:])"
    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", program, "-p", str(port)], env=environment, stderr=subprocess.DEVNULL
    ) as job:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(port)
            with urllib.request.urlopen(urllib.request.Request(f"{url}/strict", method="PUT")):
                pass
            yield url
        finally:
            job.terminate()


def test_wrong_credentials_are_an_error_that_says_so(strict_s3: str, bucket: str, tmp_path: Path) -> None:
    """The loss: a job that takes a refusal for a miss, and compiles for a year."""
    store = open_store(f"s3://strict?endpoint={strict_s3}", retry=quick())
    for call in (lambda: store.get("key"), lambda: store.head("key"), lambda: store.put("key", b"x"), store.list):
        with pytest.raises(StoreError, match="access denied"):
            list(call() or ())
    synthetic_kernel(tmp_path / "root", "k")
    for verb in (restore, save):
        with pytest.raises(StoreError, match="access denied"):
            verb(store, "key", [f"triton={tmp_path / 'root'}"])
