"""What every store must do, as tests: subclass ``StoreTests``, give it a store, and run it with pytest.

::

    class TestMyStore(StoreTests):
        @pytest.fixture
        def store(self):
            return MyStore(...)

``FailingStore`` stands in front of a store and makes chosen calls fail.
"""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from bundler.errors import ObjectExistsError, StoreError
from bundler.stores import MAX_KEY_SIZE, ObjectInfo, Retry, Store, Version
from bundler.stores._base import Body, Mode
from bundler.stores._retry import TransientError

__all__ = ["BAD_KEYS", "GOOD_KEYS", "FailingStore", "Fault", "StoreTests", "quick"]


def quick(deadline: float = 5.0) -> Retry:
    """Return a policy for tests: short pauses, none of them random."""
    return Retry(deadline, first_pause=0.001, longest_pause=0.05, spread=lambda: 1.0)


GOOD_KEYS = (
    "a",
    "main.tbundle",
    "linux-x86_64-cuda90-py3.11-torch2.11",
    "v=1+2,3@home",
    "one/two/three",
    "-leading-dash",
    ".hidden",
    "..two-dots",
    "UPPER/lower",
    "k" * 255,
    "/".join(["p" * 100] * 5),
)

# key -> a part of the reason for which it is refused
BAD_KEYS = {
    "": "empty",
    "/a": "empty part",
    "a/": "empty part",
    "a//b": "empty part",
    ".": "leads elsewhere",
    "..": "leads elsewhere",
    "a/../b": "leads elsewhere",
    "./a": "leads elsewhere",
    "a b": "' '",
    "a\n": "'\\n'",
    "a\0b": "'\\x00'",
    "a\x7f": "'\\x7f'",
    "a%2fb": "'%'",
    "a?b": "'?'",
    "a#b": "'#'",
    "a*": "'*'",
    "a\\b": "'\\\\'",
    "a:b": "':'",
    "~a": "'~'",
    "schlüssel": "'ü'",
    "a\u202eb": "'\\u202e'",
    "x" * 256: "255 are allowed",
    "/".join(["x" * 200] * 3): f"{MAX_KEY_SIZE} are allowed",
    ".tb-staging/x": "'.tb-'",
    "a/.tb-1.tmp": "'.tb-'",
}


class StoreTests:
    """The promises of ``bundler.stores.Store``. Override ``store``; say what yours cannot do."""

    can_list = True
    can_condition = True
    can_delete = True
    can_nest_below_objects = True
    """Whether ``a`` and ``a/b`` can both be objects; a directory cannot hold both."""

    large_size = 9 << 20
    """Bytes of the largest object that is tried; more than one chunk of a download."""

    savers = 10
    """Writers at once."""

    @pytest.fixture
    def store(self) -> Store:
        """Return an empty store."""
        raise NotImplementedError

    def again(self, store: Store) -> Store:
        """Return another client of the same store, as another process would have it."""
        return store

    # -- a key ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("key", GOOD_KEYS)
    def test_a_good_key_holds_what_was_put(self, store: Store, key: str) -> None:
        store.put(key, b"value of " + key.encode())
        assert store.get(key) == b"value of " + key.encode()
        if self.can_list:
            assert [info.key for info in store.list()] == [key]

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_bad_key_is_refused_with_the_reason_by_every_method(self, store: Store, key: str) -> None:
        for call in (
            lambda: store.put(key, b""),
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.head(key),
            lambda: store.open(key),
            lambda: store.download(key, io.BytesIO()),
            lambda: store.delete(key),
        ):
            with pytest.raises(StoreError) as caught:
                call()
            assert BAD_KEYS[key] in caught.value.reason
            assert caught.value.exit_code == 10

    # -- reading -------------------------------------------------------------------------------------------------------

    def test_what_is_missing_is_none(self, store: Store) -> None:
        assert store.get("missing") is None
        assert store.get_range("missing", 0, 10) is None
        assert store.head("missing") is None
        assert store.open("missing") is None
        assert store.get("missing/below") is None
        file = io.BytesIO()
        assert store.download("missing", file) is None
        assert file.getvalue() == b""

    @pytest.mark.parametrize("size", [0, 1, 255, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3 << 20])
    def test_every_size_comes_back(self, store: Store, size: int) -> None:
        data = pattern(size)
        store.put("key", data)
        info = store.head("key")
        assert info is not None and info.size == size
        assert store.get("key") == data
        file = store.open("key")
        assert file is not None and file.read() == data

    def test_a_large_object_comes_back(self, store: Store) -> None:
        data = pattern(self.large_size)
        store.put("key", io.BytesIO(data))
        assert store.get("key") == data

    @pytest.mark.parametrize(("start", "size"), [(0, 0), (0, 1), (0, 10), (5, 5), (9, 1), (9, 9), (10, 1), (99, 1)])
    def test_a_range_is_what_a_slice_is(self, store: Store, start: int, size: int) -> None:
        store.put("key", b"0123456789")
        assert store.get_range("key", start, size) == b"0123456789"[start : start + size]

    def test_an_open_object_reads_and_seeks_as_a_file_does(self, store: Store) -> None:
        data = pattern((1 << 20) + 77)
        store.put("key", data)
        model, file = io.BytesIO(data), store.open("key")
        assert file is not None
        for offset, whence, size in (
            (0, 0, 80),
            (-100, 2, 200),
            (300_000, 0, 5),
            (10, 1, 600_000),
            (0, 2, 1),
            (7, 0, -1),
        ):
            assert file.seek(offset, whence) == model.seek(offset, whence)
            assert file.read(size) == model.read(size)
            assert file.tell() == model.tell()

    def test_a_download_begins_where_the_file_stands(self, store: Store) -> None:
        store.put("key", b"value")
        file = io.BytesIO(b"before and after")
        file.seek(7)
        info = store.download("key", file)
        assert file.getvalue() == b"before value"
        assert info is not None and info.size == 5

    def test_an_open_object_is_one_version(self, store: Store) -> None:
        old, new = pattern(1 << 20), pattern(1 << 20, 1)
        store.put("key", old)
        file = store.open("key")
        assert file is not None
        first = file.read(1000)
        self.again(store).put("key", new + b"more")
        assert first == old[:1000]
        with pytest.raises(StoreError, match="replaced"):
            file.read()

    # -- listing -------------------------------------------------------------------------------------------------------

    def test_a_list_is_sorted_and_by_any_prefix(self, store: Store) -> None:
        if not self.can_list:
            pytest.skip("this store cannot be listed")
        keys = ["main-1", "main-2", "main/1", "mai", "other", "main/sub/x"]
        for key in keys:
            store.put(key, key.encode())
        for prefix in ("", "m", "mai", "main", "main-", "main/", "main/s", "main/sub/", "other", "z", "main-1"):
            assert [info.key for info in store.list(prefix)] == sorted(k for k in keys if k.startswith(prefix))
        assert {info.key: info.size for info in store.list()} == {key: len(key) for key in keys}

    def test_a_list_agrees_with_head(self, store: Store) -> None:
        if not self.can_list:
            pytest.skip("this store cannot be listed")
        store.put("a/b", b"1")
        (listed,) = store.list()
        head = store.head("a/b")
        assert head is not None
        assert (listed.key, listed.size, listed.version) == (head.key, head.size, head.version)

    # -- writing -------------------------------------------------------------------------------------------------------

    def test_put_takes_bytes_a_path_and_a_file_and_reads_them_from_the_start(self, store: Store, tmp_path: Any) -> None:
        path = tmp_path / "source"
        path.write_bytes(b"value")
        with open(path, "rb") as file:
            file.read(3)
            for source in (b"value", bytearray(b"value"), memoryview(b"value"), path, str(path), file):
                store.put("key", source)
                assert store.get("key") == b"value"
                store.put("key", b"other")
            assert not file.closed

    def test_overwriting_replaces(self, store: Store) -> None:
        store.put("key", b"a much longer value")
        store.put("key", b"short")
        assert store.get("key") == b"short"

    def test_put_returns_the_version_that_head_shows(self, store: Store) -> None:
        versions = []
        for number in range(3):
            version = store.put("key", b"same size %d" % number)
            head = store.head("key")
            assert head is not None and head.version == version
            versions.append(version.tag)
        if self.can_condition:
            assert len(set(versions)) == 3

    def test_create_is_for_one(self, store: Store) -> None:
        self._require_conditions()
        store.put("key", b"first", mode="create")
        with pytest.raises(ObjectExistsError) as caught:
            store.put("key", b"second", mode="create")
        assert caught.value.exit_code == 10
        assert store.get("key") == b"first"

    def test_a_version_is_replaced_once(self, store: Store) -> None:
        self._require_conditions()
        first = store.put("key", b"first")
        second = store.put("key", b"second", mode=first)
        with pytest.raises(ObjectExistsError):
            store.put("key", b"third", mode=first)
        assert store.get("key") == b"second"
        store.put("key", b"third", mode=second)
        assert store.get("key") == b"third"

    def test_a_version_of_what_is_gone_is_not_replaced(self, store: Store) -> None:
        self._require_conditions()
        version = store.put("key", b"first")
        store.delete("key")
        with pytest.raises(ObjectExistsError):
            store.put("key", b"second", mode=version)
        assert store.get("key") is None

    def test_a_listed_version_can_be_replaced(self, store: Store) -> None:
        self._require_conditions()
        store.put("key", b"first")
        (listed,) = store.list()
        store.put("key", b"second", mode=listed.version)
        assert store.get("key") == b"second"

    def test_delete_removes_and_is_no_error_twice(self, store: Store) -> None:
        if not self.can_delete:
            pytest.skip("this store cannot delete")
        store.put("a/b", b"1")
        store.put("a/c", b"2")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("never/there")
        assert store.get("a/b") is None
        assert store.get("a/c") == b"2"

    def test_an_object_below_an_object(self, store: Store) -> None:
        store.put("a", b"1")
        if self.can_nest_below_objects:
            store.put("a/b", b"2")
            assert store.get("a/b") == b"2"
        else:
            with pytest.raises(StoreError, match="choose another key"):
                store.put("a/b", b"2")
            store.put("c/d", b"3")
            with pytest.raises(StoreError, match="choose another key"):
                store.put("c", b"4")
            assert store.get("c") is None and store.get("a/b") is None
        assert store.get("a") == b"1"

    # -- many at once --------------------------------------------------------------------------------------------------

    def test_one_of_many_creators_wins(self, store: Store) -> None:
        self._require_conditions()
        barrier = threading.Barrier(self.savers)

        def create(number: int) -> int | None:
            client = self.again(store)
            barrier.wait()
            try:
                client.put("key", b"value %d" % number, mode="create")
            except ObjectExistsError:
                return None
            return number

        winners = [number for number in self._at_once(create) if number is not None]
        assert len(winners) == 1
        assert store.get("key") == b"value %d" % winners[0]

    def test_many_savers_at_once_lose_nothing(self, store: Store) -> None:
        """The loss: a job's kernels, gone because another job saved at the same moment."""
        self._require_conditions()

        def save(number: int) -> None:
            client = self.again(store)
            while True:
                info = client.head("key")
                there = client.get("key") if info else None
                if info and there is None:
                    continue
                if b"%d" % number in (there or b"").split(b","):
                    return  # it was stored, though no answer said so
                mode: Mode = info.version if info else "create"
                try:
                    client.put("key", (there or b"") + b"%d," % number, mode=mode)
                    return
                except ObjectExistsError:
                    continue

        self._at_once(save)
        saved = store.get("key") or b""
        assert sorted(map(int, saved.rstrip(b",").split(b","))) == list(range(self.savers))

    def test_readers_see_whole_objects_while_writers_replace_them(self, store: Store) -> None:
        values = {pattern(300_000 + 1000 * number, number) for number in range(4)}
        store.put("key", min(values))
        done = threading.Event()

        def read(_: int) -> None:
            client = self.again(store)
            while not done.is_set():
                assert client.get("key") in values

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read, number) for number in range(2)]
            try:
                for value in list(values) * 3:
                    store.put("key", value)
            finally:
                done.set()
            for reader in readers:
                reader.result()

    def _at_once(self, call: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.savers) as pool:
            return list(pool.map(call, range(self.savers)))

    def _require_conditions(self) -> None:
        if not self.can_condition:
            pytest.skip("this store cannot replace on a condition")


def pattern(size: int, seed: int = 0) -> bytes:
    """Return bytes of which no block is like another, the same for the same ``seed``."""
    return random.Random(seed).randbytes(size)


# -- faults ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fault:
    """What goes wrong in calls of one kind: ``get_range``, ``put``, ``head``, ``list`` or ``delete``.

    Attributes:
        call: The kind of call.
        times: How many; None for all.
        after: Calls of the kind that go well first.
        error: Raised in place of an answer; ``TransientError`` by default, where nothing else is asked for.
        lose_answer: Do what was asked for, then raise.
        drop: ``put``: store nothing, and report success.
        cut: Bytes that are delivered (``get_range``) or stored (``put``), and success reported.
        flip: This byte is inverted on the way, and success reported.
    """

    call: str
    times: int | None = 1
    after: int = 0
    error: Exception | None = None
    lose_answer: bool = False
    drop: bool = False
    cut: int | None = None
    flip: int | None = None

    def due(self) -> bool:
        """Count a call of the kind; whether it goes wrong."""
        if self.after:
            self.after -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0

    def spoil(self, data: bytes) -> bytes:
        """Return the bytes as the fault has them."""
        if self.cut is not None:
            data = data[: self.cut]
        if self.flip is not None and self.flip < len(data):
            data = data[: self.flip] + bytes([data[self.flip] ^ 0xFF]) + data[self.flip + 1 :]
        return data


class FailingStore(Store):
    """A store before another one, in which chosen calls fail; ``calls`` counts them all, by kind.

    It fails selectively: what is not named in ``faults`` goes through, so that a test shows what one failure does.
    """

    def __init__(self, inner: Store, *faults: Fault, retry: Retry | None = None) -> None:
        super().__init__(inner.url, retry=retry or quick())
        self.inner = inner
        self.faults = list(faults)
        self.calls: dict[str, int] = {}

    def _fault(self, call: str) -> Fault | None:
        self.calls[call] = self.calls.get(call, 0) + 1
        for fault in self.faults:
            if fault.call == call and fault.due():
                lies = fault.drop or fault.cut is not None or fault.flip is not None
                if fault.error is not None or not (lies or fault.lose_answer):
                    raise fault.error or TransientError("the connection was broken, as the test asked")
                return fault
        return None

    def _get_range(self, key: str, start: int, size: int) -> tuple[bytes, ObjectInfo]:
        fault = self._fault("get_range")
        data, info = self.inner._get_range(key, start, size)
        return (fault.spoil(data) if fault else data), info

    def _put(self, key: str, body: Body, mode: Mode) -> Version:
        fault = self._fault("put")
        if fault is None:
            return self.inner._put(key, body, mode)
        if fault.drop:
            return Version("reported, and not stored")
        data = fault.spoil(b"".join(body.chunks()))
        version = self.inner._put(key, Body(io.BytesIO(data), len(data)), mode)
        if fault.lose_answer:
            raise TransientError("the answer was lost, as the test asked")
        return version

    def _head(self, key: str) -> ObjectInfo:
        self._fault("head")
        return self.inner._head(key)

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._fault("list")
        return self.inner._list(prefix)

    def _delete(self, key: str) -> None:
        self._fault("delete")
        self.inner._delete(key)
