"""Stores and objects in them as a command line names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from bundler.errors import UsageError

__all__ = ["object_options", "one_object", "one_store", "store_option"]

_STORE = "The store: a directory, or a URL: file://, s3://, gs://, az://, http(s)://."


def store_option(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return ``--store`` as a decorator."""
    return click.option("--store", metavar="URL", required=required, help=_STORE)


def object_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--store`` and ``--key``, which together name an object."""
    return store_option(required=False)(click.option("--key", metavar="K", help="Its name in the store.")(function))


def one_object(url: str | None, store: str | None, key: str | None) -> tuple[str, str]:
    """Return store and key of an object that is named by a URL, or by ``--store`` and ``--key``.

    Raises:
        UsageError: By neither, or by both.
    """
    from bundler.stores import is_url, split_url

    if url is not None and store is None and key is None:
        if not is_url(url):
            raise UsageError(f"{url} is no URL: write file:///directory/{url}, or give --store and --key")
        return split_url(url)
    if url is not None or not store or key is None:
        raise UsageError("name one bundle in a store: as URL, or by --store URL --key K")
    return store, key


def one_store(url: str | None, store: str | None) -> str:
    """Return the store that is named by an argument, or by ``--store``.

    Raises:
        UsageError: By neither, or by both.
    """
    if (not url) == (not store):
        raise UsageError("name the store, once: as STORE, or by --store URL")
    return url or store or ""
