"""The dictionary store, and every promise that the base class keeps for all: retries, proofs, faults."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from bundler.errors import ObjectExistsError, ObjectNotFoundError, StoreError, UsageError
from bundler.stores import Retry, Store, Version, is_url, key_problem, open_store, split_url
from bundler.stores._retry import DAMAGED_ATTEMPTS, TransientError
from bundler.stores.memory import MemoryStore
from bundler.testing.stores import BAD_KEYS, GOOD_KEYS, FailingStore, Fault, StoreTests, pattern, quick


class TestMemoryStore(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(retry=quick())


class TestFlakyStore(StoreTests):
    """Every third call of each kind fails once: nothing of it shows."""

    @pytest.fixture
    def store(self) -> Store:
        faults = [
            Fault(kind, after=after, lose_answer=kind == "put" and after % 2 == 0)
            for kind in ("get_range", "put", "head", "list", "delete")
            for after in range(0, 60, 3)
        ]
        return FailingStore(MemoryStore(), *faults, retry=quick())


class TestNoisyReads(StoreTests):
    """Answers that are cut short now and then."""

    @pytest.fixture
    def store(self) -> Store:
        return FailingStore(MemoryStore(), *(Fault("get_range", after=after, cut=3) for after in range(0, 40, 4)))


# -- retries -----------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def retry(self, deadline: float, spread: float = 1.0) -> Retry:
        return Retry(deadline, clock=lambda: self.now, sleep=self.sleep, spread=lambda: spread)


def test_pauses_double_up_to_a_limit_and_end_at_the_deadline() -> None:
    clock = Clock()
    store = FailingStore(MemoryStore(), Fault("get_range", times=None), retry=clock.retry(20.0))
    with pytest.raises(StoreError, match="as the test asked"):
        store.get("key")
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert clock.now <= 20.0


def test_half_of_a_pause_is_random() -> None:
    assert Clock().retry(1.0, spread=0.0).pause(0) == 0.05
    assert Clock().retry(1.0, spread=1.0).pause(0) == 0.1
    assert all(0.05 <= Retry().pause(0) <= 0.1 for _ in range(100))


def test_the_deadline_counts_from_the_first_failure() -> None:
    """The loss: an upload of ten minutes that is given up after its first failure."""
    clock = Clock()
    attempts = []

    def slow() -> str:
        attempts.append(clock.now)
        clock.now += 600.0
        if len(attempts) == 1:
            raise TransientError("once")
        return "done"

    assert clock.retry(60.0).run(slow) == "done"


def test_no_deadline_is_one_attempt() -> None:
    store = FailingStore(MemoryStore(), Fault("head"), retry=quick(0.0))
    with pytest.raises(StoreError):
        store.head("key")
    assert store.calls == {"head": 1}


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("boom"), OSError(5, "boom"), ValueError("boom")])
@pytest.mark.parametrize("kind", ["get_range", "put", "head", "list", "delete"])
def test_whatever_an_adapter_raises_leaves_as_a_store_error(kind: str, error: Exception) -> None:
    store = FailingStore(MemoryStore("memory://name"), Fault(kind, error=error))
    calls = {
        "get_range": lambda: store.get("key"),
        "put": lambda: store.put("key", b""),
        "head": lambda: store.head("key"),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete("key"),
    }
    with pytest.raises(StoreError, match="boom") as caught:
        calls[kind]()
    assert caught.value.store == "memory://name"
    assert caught.value.__cause__ is error
    assert store.calls[kind] == 1, "an error that nothing is known of is not tried again"


def test_interrupts_are_let_through() -> None:
    class Interrupting(MemoryStore):
        def _head(self, key: str):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupting().head("key")


# -- proofs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["overwrite", "create"])
@pytest.mark.parametrize(
    "fault", [{"drop": True}, {"cut": 3}, {"cut": 0}, {"flip": 0}, {"flip": 5}], ids=lambda fault: str(fault)
)
def test_a_store_that_lies_once_is_told_again(mode: str, fault: dict[str, int]) -> None:
    store = FailingStore(MemoryStore(), Fault("put", **fault))  # type: ignore[arg-type]
    version = store.put("key", b"value!", mode=mode)  # type: ignore[arg-type]
    assert store.get("key") == b"value!"
    head = store.head("key")
    assert head is not None and head.version == version


def test_a_version_is_replaced_through_a_lie() -> None:
    store = FailingStore(MemoryStore(), Fault("put", after=1, flip=0))
    first = store.put("key", b"first")
    store.put("key", b"second", mode=first)
    assert store.get("key") == b"second"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"drop": True}, "there is no object"),
        ({"cut": 3}, "holds 3 bytes, 6 were sent"),
        ({"flip": 1}, "other bytes than were sent"),
    ],
)
def test_a_store_that_goes_on_lying_is_an_error(fault: dict[str, int], reason: str) -> None:
    store = FailingStore(MemoryStore(), Fault("put", times=None, **fault))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=reason):
        store.put("key", b"value!")
    assert store.calls["put"] == DAMAGED_ATTEMPTS


@pytest.mark.parametrize("flip", [0, 999_999, 1 << 20, (1 << 20) + 5, 4_999_999])
def test_both_ends_of_a_large_object_are_read_back(flip: int) -> None:
    store = FailingStore(MemoryStore(), Fault("put", flip=flip))
    data = pattern(5_000_000)
    store.put("key", data)
    at_an_end = flip < 1 << 20 or flip >= 5_000_000 - (1 << 20)
    assert (store.get("key") == data) == at_an_end


@pytest.mark.parametrize("mode", ["create", "version"])
def test_an_upload_whose_answer_was_lost_is_known_again(mode: str) -> None:
    """The loss: a saver that takes its own object for somebody else's."""
    store = FailingStore(MemoryStore(), Fault("put", after=mode == "version", lose_answer=True))
    wanted = store.put("key", b"old") if mode == "version" else "create"
    version = store.put("key", b"value", mode=wanted)  # type: ignore[arg-type]
    assert store.get("key") == b"value"
    head = store.head("key")
    assert head is not None and head.version == version
    assert store.calls["put"] == 2 + (mode == "version")


def test_a_lost_request_is_not_mistaken_for_a_lost_answer() -> None:
    inner = MemoryStore()
    store = FailingStore(inner, Fault("put"))
    inner.put("key", b"theirs")
    with pytest.raises(ObjectExistsError):
        store.put("key", b"ours", mode="create")
    assert store.get("key") == b"theirs"


def test_reading_stops_with_an_error_when_the_store_always_cuts() -> None:
    inner = MemoryStore()
    inner.put("key", b"value")
    store = FailingStore(inner, Fault("get_range", times=None, cut=2), retry=quick(0.1))
    with pytest.raises(StoreError, match="2 bytes came, 5 were due"):
        store.get("key")


def test_a_download_repeats_one_chunk_only() -> None:
    inner = MemoryStore()
    data = pattern(20 << 20)
    inner.put("key", data)
    store = FailingStore(inner, Fault("get_range", after=1))
    told: list[int] = []
    file = io.BytesIO()
    store.download("key", file, progress=told.append)
    assert file.getvalue() == data
    assert store.calls["get_range"] == 4
    assert sum(told) == len(data)


def test_a_download_begins_again_when_the_object_is_replaced() -> None:
    class Replacing(MemoryStore):
        count = 0

        def _get_range(self, key: str, start: int, size: int):  # type: ignore[no-untyped-def]
            self.count += 1
            if self.count == 2:
                self.put(key, pattern(9 << 20, 1))
            return super()._get_range(key, start, size)

    store = Replacing(retry=quick())
    store.put("key", pattern(20 << 20))
    assert store.get("key") == pattern(9 << 20, 1)


def test_few_requests_open_and_read_an_object() -> None:
    inner = MemoryStore()
    data = pattern(40 << 20)
    inner.put("key", data)
    store = FailingStore(inner)
    file = store.open("key")
    assert file is not None
    assert file.read(80) == data[:80] and file.read(100_000) == data[80:100_080]
    assert store.calls == {"get_range": 1}
    file.seek(0)
    while file.read(1 << 20):
        pass
    assert store.calls["get_range"] <= 11
    file.seek(30 << 20)
    file.prefetch(30 << 20, 33 << 20)
    assert file.read(1000) == data[30 << 20 :][:1000]


def test_the_object_of_an_open_file_may_go_away() -> None:
    store = MemoryStore()
    store.put("key", pattern(1 << 20))
    file = store.open("key")
    assert file is not None
    store.delete("key")
    with pytest.raises(StoreError, match="removed while it was read"):
        file.read()


# -- addresses and keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", GOOD_KEYS)
def test_good_keys_have_no_problem(key: str) -> None:
    assert key_problem(key) is None


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys_have_one(key: str) -> None:
    assert BAD_KEYS[key] in (key_problem(key) or "")


@pytest.mark.parametrize("prefix", ["/", "a//", "../", "a b", "x" * 600, ".tb-"])
def test_a_prefix_that_no_key_has_is_refused(prefix: str) -> None:
    with pytest.raises(StoreError, match="prefix"):
        list(MemoryStore().list(prefix))


@pytest.mark.parametrize(
    ("url", "store", "key"),
    [
        ("s3://bucket/key", "s3://bucket", "key"),
        (
            "s3://bucket/a/b/key.tbundle?region=r&endpoint=http://h:1",
            "s3://bucket/a/b?region=r&endpoint=http://h:1",
            "key.tbundle",
        ),
        ("https://host/dir/k%2Bx?sig=1", "https://host/dir?sig=1", "k+x"),
        ("memory://name/key", "memory://name", "key"),
        ("file:///dir/key", "file:///dir", "key"),
    ],
)
def test_the_url_of_an_object_is_split(url: str, store: str, key: str) -> None:
    assert split_url(url) == (store, key)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "https://host/dir/"])
def test_the_url_of_no_object_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="names no object"):
        split_url(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://host/x", "ftp:// is no store"),
        ("file://host/x", "names the host 'host'"),
        ("file://", "names no directory"),
        ("memory://x?deadline=soon", "deadline=soon"),
        ("memory://x?deadline=-1", "deadline=-1"),
        ("memory://x?colour=red", "no option colour=red"),
        ("/path?x", None),
    ],
)
def test_addresses_that_cannot_be_opened(url: str, reason: str | None) -> None:
    if reason is None:
        assert open_store(url).url.endswith(url)
        return
    with pytest.raises(UsageError, match=reason.replace("(", r"\(")):
        open_store(url)


def test_a_deadline_is_read_from_the_address() -> None:
    assert open_store("memory://deadline?deadline=2.5").retry.deadline == 2.5


@pytest.mark.parametrize(("text", "expected"), [("s3://b", True), ("/a/b", False), ("a:b", False), ("C://x", True)])
def test_urls_are_told_from_paths(text: str, expected: bool) -> None:
    assert is_url(text) == expected


# -- against a dictionary ----------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "a-1", "a-2", "dir/a", "dir/b", "dir/sub/c", "x=1,y@2"])
VALUES = st.binary(max_size=40)


class StoreMachine(RuleBasedStateMachine):
    """A store and a dictionary, changed alike, hold the same. The dictionary is not made of the store's own parts."""

    versions: Bundle = Bundle("versions")

    def make(self) -> Store:
        random.seed(0)
        faults = [Fault(kind, after=after) for kind in ("get_range", "put", "head") for after in range(1, 50, 5)]
        return FailingStore(
            MemoryStore(), *faults, Fault("put", after=7, flip=0), Fault("put", after=9, lose_answer=True)
        )

    @initialize()
    def begin(self) -> None:
        self.store = self.make()
        self.model: dict[str, tuple[bytes, Version]] = {}

    @rule(target=versions, key=KEYS, value=VALUES)
    def put(self, key: str, value: bytes) -> tuple[str, Version]:
        version = self.store.put(key, value)
        self.model[key] = (value, version)
        return key, version

    @rule(key=KEYS, value=VALUES)
    def create(self, key: str, value: bytes) -> None:
        try:
            version = self.store.put(key, value, mode="create")
        except ObjectExistsError:
            assert key in self.model
        else:
            # After a failure, the same bytes cannot be told from our own.
            assert key not in self.model or self.model[key] == (value, version)
            self.model[key] = (value, version)

    @rule(known=versions, value=VALUES)
    def replace(self, known: tuple[str, Version], value: bytes) -> None:
        key, version = known
        current = self.model.get(key)
        try:
            new = self.store.put(key, value, mode=version)
        except ObjectExistsError:
            assert current is None or current[1] != version
        else:
            assert current is not None
            assert current[1] == version or current == (value, new)
            self.model[key] = (value, new)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(key=KEYS, start=st.integers(0, 50), size=st.integers(0, 50))
    def get_range(self, key: str, start: int, size: int) -> None:
        found = self.store.get_range(key, start, size)
        assert found == (self.model[key][0][start : start + size] if key in self.model else None)

    @rule(prefix=st.sampled_from(["", "a", "a-", "dir/", "dir/s", "zz"]))
    def list(self, prefix: str) -> None:
        found = {info.key: info.size for info in self.store.list(prefix)}
        assert found == {key: len(value) for key, (value, _) in self.model.items() if key.startswith(prefix)}

    @invariant()
    def same(self) -> None:
        for key, (value, version) in getattr(self, "model", {}).items():
            assert self.store.get(key) == value
            head = self.store.head(key)
            assert head is not None and head.version == version


TestAgainstADictionary = StoreMachine.TestCase
TestAgainstADictionary.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_errors_name_the_store_and_the_key() -> None:
    error = ObjectNotFoundError("s3://bucket", "key")
    assert "s3://bucket" in str(error) and "key" in str(error)
