"""S3, Google Cloud Storage, Azure Blob Storage and plain web servers, through ``obstore`` (the extra ``store``).

Requests are single attempts, since the attempts are counted in one place, with two exceptions: the parts of a multipart
upload, each of which obstore tries again, and the requests for credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from bundler.errors import StoreError, UsageError
from bundler.stores._base import Body, Mode, ObjectInfo, PreconditionError, Store, Version
from bundler.stores._retry import Retry, TransientError

__all__ = ["ObstoreStore", "open_url"]

PART_SIZE = 8 << 20
"""Bytes of a part of a multipart upload; S3 takes parts of 5 MiB and more, and 10,000 of them (78 GiB)."""

MULTIPART_ABOVE = 32 << 20
"""Bytes above which an upload is made in parts. Below, one request is quicker, and its e-tag is a plain MD5."""

MAX_CONDITIONAL_SIZE = 5 << 30
"""Bytes of the largest conditional upload: it is one request, held in memory, and S3 takes no more in one."""

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a connection."""

READ_TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""

REQUEST_TIMEOUT = 600.0
"""Seconds that a request may take in all."""

_CONCURRENT_PARTS = 4

# What every service may be told in a URL; the rest goes to obstore under the same name.
_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_url",
    "read_timeout",
    "timeout",
)

# Statuses that say "later": RFC 9110 and 6585.
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
# S3 answers 400 to a body that arrived damaged, or not all of it.
_TRANSIENT_CODES = ("(BadDigest", "(XAmzContentSHA256Mismatch", "(IncompleteBody", "(RequestTimeout")
_STATUS = re.compile(r"status code: (\d{3})")
_S3_DETAIL = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?", re.IGNORECASE)
_NO_CONTAINER = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_BEYOND = "Wanted range starting at"  # obstore itself, of services that answer with all of the object (Azure)
_BODY = re.compile(": \ufeff?<")  # Azure's begin with a byte order mark, and may say what was signed
_CAUSE = re.compile(r"kind: (\w+)|message: \"([^\"]*)\"")
_DURATION = re.compile(r" in [\d.]+(?:ns|µs|ms|s)\b")
_QUERY = re.compile(r"\?[^\s)\"']*")
_USER = re.compile(r"//[^/\s@]+@")
_MD5_TAG = re.compile(r'"?([0-9a-f]{32})(?:-(\d+))?"?')


class ObstoreStore(Store):
    """A service that obstore knows.

    Args:
        url: What to call it in messages.
        kind: Its scheme: ``s3``, ``gs``, ``az`` or ``http``.
        once: The obstore store that makes each request once.
        parts: The same, trying requests again; for uploads in parts.
        retry: When to try again.
    """

    def __init__(self, url: str, kind: str, once: Any, parts: Any, *, retry: Retry | None = None) -> None:
        super().__init__(url, retry=retry)
        self.kind = kind
        self._once = once
        self._parts = parts
        self._stream: _Stream | None = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def _get_range(self, key: str, start: int, size: int) -> tuple[bytes, ObjectInfo]:
        obstore = _obstore()
        with self._errors(key):
            try:
                result = obstore.get(self._once, key, options={"range": (start, start + size)})
                return bytes(result.bytes()), self._info(key, result.meta)
            except (obstore.exceptions.BaseError, NotImplementedError) as error:
                if _status(error) == 416 or _BEYOND in str(error):  # nothing there: the object ends before
                    return b"", self._info(key, obstore.head(self._once, key))
                if not _ignores_ranges(error):
                    raise
            return self._from_stream(key, start, size)

    def _from_stream(self, key: str, start: int, size: int) -> tuple[bytes, ObjectInfo]:
        """Read a range from a server that has no ranges: on from the last one, else from the start."""
        obstore = _obstore()
        stream = self._stream
        if stream is None or stream.info.key != key or stream.at > start:
            result = obstore.get(self._once, key)
            stream = self._stream = _Stream(self._info(key, result.meta), iter(result))
        try:
            return stream.read(start, size), stream.info
        except BaseException:
            self._stream = None
            raise

    def _head(self, key: str) -> ObjectInfo:
        obstore = _obstore()
        with self._errors(key):
            try:
                return self._info(key, obstore.head(self._once, key))
            except FileNotFoundError:
                # An answer to HEAD has no body: only GET tells a bucket that is missing from an object that is.
                result = obstore.get(self._once, key)
                return self._info(key, result.meta)

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        obstore = _obstore()
        directory = prefix.rpartition("/")[0]  # obstore's prefix is whole parts of a key
        with self._errors(prefix):
            rows = [row for batch in obstore.list(self._once, directory or None) for row in batch]
        return (self._info(row["path"], row) for row in rows)

    def _info(self, key: str, meta: Any) -> ObjectInfo:
        version = self._version(meta)
        if not version.tag and self.kind == "http":
            # A server without e-tags: time and size tell versions apart as well as anything there.
            version = Version(f"{meta['last_modified'].timestamp():.0f}-{meta['size']}")
        return ObjectInfo(key, meta["size"], version, meta["last_modified"].timestamp())

    def _version(self, result: Any) -> Version:
        tag = result.get("e_tag") or ""
        if self.kind == "az" and tag and not tag.startswith('"'):
            tag = f'"{tag}"'  # Azure lists e-tags without the quotes that it answers and expects elsewhere
        return Version(tag, result.get("version") or "")

    # -- writing -------------------------------------------------------------------------------------------------------

    def _put(self, key: str, body: Body, mode: Mode) -> Version:
        obstore = _obstore()
        options: dict[str, Any] = {"mode": mode, "use_multipart": False}
        store = self._once
        if mode == "overwrite" and body.size > MULTIPART_ABOVE and self.kind != "http":
            store = self._parts
            options |= {"use_multipart": True, "chunk_size": PART_SIZE, "max_concurrency": _CONCURRENT_PARTS}
        elif mode != "overwrite":
            self._refuse_large(key, body)
        if isinstance(mode, Version):
            options["mode"] = self._update(key, mode)
        with self._errors(key, writing=True):
            try:
                return self._version(obstore.put(store, key, body.rewind(), **options))
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                raise PreconditionError(key) from None
            except FileNotFoundError as error:
                if isinstance(mode, Version) and not _lacks_container(error):
                    raise PreconditionError(key) from None  # the version is gone, and nothing is there
                raise StoreError(self.url, key, _reason(error)) from error
            except NotImplementedError as error:
                reason = "it cannot replace an object on a condition: use a store that can (file, s3, gs or az)"
                raise StoreError(self.url, key, reason) from error

    def _refuse_large(self, key: str, body: Body) -> None:
        if body.size > MAX_CONDITIONAL_SIZE:
            reason = f"{body.size} bytes are too many for a conditional upload, {MAX_CONDITIONAL_SIZE} are allowed"
            raise StoreError(self.url, key, reason)

    def _update(self, key: str, version: Version) -> dict[str, str]:
        """Return what obstore wants to see of a version. Google wants the generation, which listings leave out."""
        if self.kind == "gs" and not version.generation:
            try:
                now = self._head(key).version
            except FileNotFoundError:
                raise PreconditionError(key) from None
            if now != version:
                raise PreconditionError(key)
            version = now
        update = {"e_tag": version.tag}
        if self.kind != "s3" and version.generation:
            update["version"] = version.generation
        return update

    def _delete(self, key: str) -> None:
        with self._errors(key, writing=True):
            _obstore().delete(self._once, key)

    def _proves(self, version: Version, body: Body) -> bool | None:
        match = _MD5_TAG.fullmatch(version.tag)
        if self.kind != "s3" or match is None:
            return None
        # Objects encrypted with a key of the service have other e-tags, which look the same; those are read back.
        parted = match[2] is not None
        return body.md5(PART_SIZE if parted else 0) == f"{match[1]}-{match[2]}" if parted else body.md5() == match[1]

    # -- errors --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _errors(self, key: str, *, writing: bool = False) -> Iterator[None]:
        obstore = _obstore()
        try:
            yield
        except FileNotFoundError as error:
            if _lacks_container(error):
                raise StoreError(self.url, key, _reason(error)) from error
            raise
        except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError) as error:
            raise StoreError(self.url, key, f"access denied: {_reason(error)}") from error
        except NotImplementedError as error:
            raise StoreError(self.url, key, _reason(error)) from error
        except (obstore.exceptions.BaseError, OSError) as error:
            reason, status = _reason(error), _status(error)
            if "169.254.169.254" in reason or "metadata.google" in reason:
                reason = f"no credentials were found in the environment ({reason})"
                raise StoreError(self.url, key, reason) from error
            if status in (401, 403):  # listings are refused without a class of their own
                raise StoreError(self.url, key, f"access denied: {reason}") from error
            if self.kind == "http" and status in (405, 501):
                what = "written to" if writing else "listed"
                raise StoreError(self.url, key, f"this web server cannot be {what} ({reason})") from error
            if status is None or status in _TRANSIENT_STATUS or any(code in reason for code in _TRANSIENT_CODES):
                raise TransientError(reason) from error
            raise StoreError(self.url, key, reason) from error


class _Stream:
    """An object that is read from its start on, since its server knows no ranges."""

    def __init__(self, info: ObjectInfo, chunks: Iterator[Any]) -> None:
        self.info = info
        self.at = 0
        self._chunks = chunks
        self._rest = b""

    def read(self, start: int, size: int) -> bytes:
        parts, end = [], min(start + size, self.info.size)
        while self.at < end:
            if not self._rest:
                self._rest = bytes(next(self._chunks, b""))
                if not self._rest:
                    break
            skipped = min(max(0, start - self.at), len(self._rest))
            part = self._rest[skipped : max(skipped, end - self.at)]
            parts.append(part)
            taken = skipped + len(part)
            self._rest, self.at = self._rest[taken:], self.at + taken
        return b"".join(parts)


def _status(error: BaseException) -> int | None:
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def _ignores_ranges(error: BaseException) -> bool:
    text = str(error)
    return "range request not supported" in text.lower() or "Received non-partial response" in text


def _lacks_container(error: BaseException) -> bool:
    return any(text in str(error) for text in _NO_CONTAINER)


def _reason(error: BaseException) -> str:
    """Return what went wrong in one line, without what might be a secret."""
    text = str(error).partition("\n\nDebug source")[0]
    detail = _S3_DETAIL.search(text)
    text = _BODY.split(text, maxsplit=1)[0].strip()
    if detail:
        text += f" ({detail[1]}: {detail[2]})" if detail[2] else f" ({detail[1]})"
    if text.endswith("error sending request") and (cause := _CAUSE.search(str(error))):
        text += f" ({cause[2] or cause[1]})"
    return _public(" ".join(_DURATION.sub("", text).split()))


def _public(text: str) -> str:
    """Return a text with URLs cut before what signs them or names a user."""
    return _USER.sub("//", _QUERY.sub("", text))


def open_url(url: str, options: dict[str, str], retry: Retry | None) -> Store:
    """Open a ``s3``, ``gs``, ``az``, ``http`` or ``https`` URL; see ``bundler.stores.open_store``."""
    parts = urlsplit(url)
    kind = "http" if parts.scheme in ("http", "https") else parts.scheme
    shown = _public(urlunsplit(parts._replace(query="", fragment=""))).rstrip("/")
    if not parts.netloc:
        raise UsageError(f"{shown} names no {'host' if kind == 'http' else 'bucket'}")
    _obstore()
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT),
        "read_timeout": timedelta(seconds=READ_TIMEOUT),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT),
    }
    for name in [name for name in options if name in _CLIENT_OPTIONS]:
        value = options.pop(name)
        client[name] = value.lower() in ("1", "true", "yes") if name.startswith("allow_") else value
    retry = retry or Retry()
    once = {"max_retries": 0}
    often = {"max_retries": 8, "retry_timeout": timedelta(seconds=retry.deadline)}
    stores = [_make(kind, url, shown, options, client, config) for config in (once, often)]
    return ObstoreStore(shown, kind, *stores, retry=retry)


def _make(
    kind: str, url: str, shown: str, options: dict[str, str], client: dict[str, Any], retry: dict[str, Any]
) -> Any:
    store = import_obstore_store()
    parts = urlsplit(url)
    common: dict[str, Any] = {"client_options": client, "retry_config": retry}
    try:
        if kind == "http":
            client["allow_http"] = True
            return store.HTTPStore.from_url(url, **common)
        if kind == "s3":
            options = {"checksum_algorithm": "SHA256", **options}
            if options.get("endpoint"):
                # Servers of one's own (MinIO, Ceph) have buckets in the path, and often no certificate.
                options.setdefault("virtual_hosted_style_request", "false")
                client.setdefault("allow_http", options["endpoint"].startswith("http://"))
        prefix = parts.path.strip("/") or None
        maker = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[kind]
        return maker(parts.netloc, prefix=prefix, **common, **options)
    except (_obstore().exceptions.UnknownConfigurationKeyError, TypeError) as error:
        raise UsageError(f"{shown} was given an option that it does not have: {_reason(error)}") from error
    except (_obstore().exceptions.BaseError, ValueError) as error:
        raise StoreError(shown, "", _reason(error)) from error


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
    except ImportError as error:
        raise UsageError(
            "this store needs the package obstore, which is not installed: pip install 'triton-bundler[store]'"
        ) from error
    return obstore


def import_obstore_store() -> Any:
    """Return ``obstore.store``, or say which extra has it."""
    _obstore()
    import obstore.store

    return obstore.store
