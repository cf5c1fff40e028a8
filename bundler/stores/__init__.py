"""Where bundles live: objects under keys, in a directory, an object store or on a web server.

``open_store(url)`` gives the store that a URL names. A kind of store is one module here; what it needs beyond the core
is an extra, and is imported only when such a URL is opened.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from bundler.errors import UsageError
from bundler.stores._base import Mode, ObjectInfo, ReplacedError, Source, Store, Version
from bundler.stores._file import RemoteFile
from bundler.stores._keys import MAX_KEY_SIZE, check_key, key_problem
from bundler.stores._retry import DEADLINE, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DEADLINE",
    "MAX_KEY_SIZE",
    "Mode",
    "ObjectInfo",
    "RemoteFile",
    "ReplacedError",
    "Retry",
    "Source",
    "Store",
    "Version",
    "check_key",
    "is_url",
    "key_problem",
    "open_store",
    "split_url",
]

# scheme -> (module, its function (url, options, retry) -> Store)
_HOMES: dict[str, tuple[str, str]] = {
    "memory": ("bundler.stores", "_memory"),
    "file": ("bundler.stores", "_file_store"),
    **dict.fromkeys(("s3", "gs", "az", "http", "https"), ("bundler.stores.obstore", "open_url")),
}

# The query of these is part of the address (a signed URL); options of ours are read from all others.
_QUERY_IS_ADDRESS = ("http", "https")


def is_url(text: str) -> bool:
    """Whether ``text`` is written as the URL of a store or of an object in one, rather than as a path."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum() and not scheme[:1].isdigit()


def open_store(url: str | os.PathLike[str], *, retry: Retry | None = None) -> Store:
    """Open the store that ``url`` names; nothing is asked of it yet.

    Args:
        url: ``file:///directory`` or a plain path, ``s3://bucket/prefix``, ``gs://bucket/prefix``,
            ``az://container/prefix``, ``http(s)://host/directory``, ``memory://name``. Options follow as a query, as in
            ``s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-west-1``; ``deadline`` (seconds of trying
            again) goes with all but ``http(s)``, whose query is sent on as it is. Credentials come from the
            environment, as each service has it.
        retry: When to try again; wins over ``deadline``.

    Raises:
        UsageError: Not such a URL, or an option is unknown.
        StoreError: The service is configured in a way that cannot work.
    """
    text = os.fspath(url)
    if not is_url(text):
        return _file_store(text, {}, retry)
    scheme = text.partition("://")[0].lower()
    if scheme not in _HOMES:
        raise UsageError(f"{scheme}:// is no store: a path, or {', '.join(f'{known}://' for known in _HOMES)} is")
    options: dict[str, str] = {}
    if scheme not in _QUERY_IS_ADDRESS:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        text = urlunsplit(parts._replace(query="", fragment=""))
        asked = _retry(options.pop("deadline", None))
        retry = retry or asked
    module, name = _HOMES[scheme]
    opener: Callable[[str, dict[str, str], Retry | None], Store] = getattr(import_module(module), name)
    return opener(text, options, retry)


def split_url(url: str) -> tuple[str, str]:
    """Split the URL of an object into that of its store and its key: the part behind the last slash.

    Raises:
        UsageError: There is no such part.

    Example:
        >>> split_url("s3://bucket/ci/main.tbundle?region=eu-west-1")
        ('s3://bucket/ci?region=eu-west-1', 'main.tbundle')
    """
    parts = urlsplit(url)
    directory, slash, key = parts.path.rpartition("/")
    if not slash or not key:
        raise UsageError(f"{_without_query(url)} names no object: add its key, as in s3://bucket/main.tbundle")
    return urlunsplit(parts._replace(path=directory)), unquote(key)


def _without_query(url: str) -> str:
    return url.partition("?")[0]


def _retry(deadline: str | None) -> Retry | None:
    if deadline is None:
        return None
    try:
        seconds = float(deadline)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"deadline={deadline}: give a number of seconds, such as deadline=60")
    return Retry().with_deadline(seconds)


def _refuse_options(url: str, options: dict[str, str], known: tuple[str, ...] = ()) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        allowed = ", ".join(sorted({*known, "deadline"}))
        raise UsageError(f"{url} has no option {urlencode({unknown[0]: options[unknown[0]]})}; known: {allowed}")


def _file_store(url: str, options: dict[str, str], retry: Retry | None) -> Store:
    from bundler.stores.local import LocalStore

    _refuse_options(url, options, ("sync",))
    if not is_url(url):
        return LocalStore(url, retry=retry)
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{url} names the host {parts.netloc!r}: write file:///directory, with three slashes")
    if not parts.path:
        raise UsageError(f"{url} names no directory: write file:///directory")
    return LocalStore(unquote(parts.path), sync=options.get("sync", "1") != "0", retry=retry)


def _memory(url: str, options: dict[str, str], retry: Retry | None) -> Store:
    from bundler.stores.memory import MemoryStore

    _refuse_options(url, options)
    return MemoryStore.named(url, retry=retry)
