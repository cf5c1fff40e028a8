"""Every error can be sent to another process, shown to a person, and read by a program."""

from __future__ import annotations

import copy
import errno
import inspect
import json
import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from bundler import errors
from bundler.errors import BundlerError, LocalIOError

CLASSES: list[type[BundlerError]] = sorted(
    (value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, BundlerError)),
    key=lambda each: each.__name__,
)

# class -> arguments, each of which must be told apart in the sentence; one row for every class
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "BundlerError": ("what happened",),
    "ConflictError": ("triton/KEY", ("a.tbundle", "b.tbundle")),
    "DigestMismatchError": ("frame 3", "sha256:11aa", "sha256:22bb", 4242),
    "EntryExistsError": ("/cache/triton/KEY",),
    "FormatError": ("the index is not canonical", 4242, "a.tbundle"),
    "IncompatibleTargetError": (("cuda:90", "hip:gfx942"), ("cuda:75",)),
    "IncompleteEntryError": ("triton/KEY", "add.cubin is missing"),
    "LimitExceededError": ("number of entries", 4242, 4000, "a.tbundle"),
    "LocalIOError": ("/cache/triton/KEY", errno.ENOSPC, "write the staged files", 4242, 4000),
    "MissingBaseError": ("delta.tbundle", "sha256:11aa"),
    "NotABundleError": ("the file begins with 50 4b", 7, "a.tbundle"),
    "NothingToPackError": ("inductor, triton", "the directories are empty"),
    "KeyNameError": ("s3://bucket", "../main", "a part of the key is '..'"),
    "NoHitError": ("s3://bucket", "main-1", "no bundle is there"),
    "ObjectExistsError": ("s3://bucket", "main-1"),
    "ObjectNotFoundError": ("s3://bucket", "main-1"),
    "OtherBundleError": ("a.tbundle", "sha256:11aa", "sha256:22bb"),
    "RelocationError": ("triton/KEY/__grp__add.json", "the members lie apart", 4242),
    "RequirementError": ("inductor, triton", "fxgraph, triton"),
    "SkippedError": ("triton/KEY", "add.cubin is empty", 4242),
    "StoreError": ("s3://bucket", "main-1", "timed out"),
    "TruncatedError": (4242, 512, 17, "the index", "a.tbundle"),
    "UnsafePathError": ("../etc/passwd", "leads out of the root"),
    "UnsupportedVersionError": (9, (1, 2), 4242, "a.tbundle"),
    "UntrustedError": ("the signature does not fit", "ed25519:ab12"),
    "UsageError": ("give --key or --facts",),
    "WrongBaseError": ("delta.tbundle", "sha256:11aa", "sha256:22bb"),
}

# Documented exit codes: the family -> its code. A class has the code of its nearest family.
EXIT_CODES = {
    "BundlerError": 1,
    "UsageError": 2,
    "FormatError": 3,
    "DigestMismatchError": 4,
    "UnsafePathError": 5,
    "IncompleteEntryError": 6,
    "RelocationError": 7,
    "IncompatibleTargetError": 8,
    "EntryExistsError": 9,
    "ConflictError": 9,
    "StoreError": 10,
    "UntrustedError": 11,
    "LocalIOError": 12,
}

# Those that people catch already under a name of Python's own, with the errno that belongs to it.
BUILTINS: dict[str, tuple[type[OSError], int]] = {
    "EntryExistsError": (FileExistsError, errno.EEXIST),
    "LocalIOError": (OSError, errno.ENOSPC),
    "ObjectExistsError": (FileExistsError, errno.EEXIST),
    "ObjectNotFoundError": (FileNotFoundError, errno.ENOENT),
}

each_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


def example(kind: type[BundlerError]) -> BundlerError:
    return kind(*EXAMPLES[kind.__name__])


def same(one: BaseException, other: BaseException) -> bool:
    return type(one) is type(other) and one.args == other.args and vars(one) == vars(other) and str(one) == str(other)


def test_every_class_has_an_example_and_is_exported() -> None:
    names = {kind.__name__ for kind in CLASSES}
    assert names == EXAMPLES.keys()
    assert names == set(errors.__all__)
    assert errors.__all__ == sorted(errors.__all__)


@each_class
def test_name_ends_in_error_and_the_class_says_when(kind: type[BundlerError]) -> None:
    assert kind.__name__.endswith("Error")
    assert kind.__doc__ and (kind is BundlerError or kind.__doc__ != BundlerError.__doc__)


@each_class
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_gives_the_same_error(kind: type[BundlerError], protocol: int) -> None:
    error = example(kind)
    assert same(pickle.loads(pickle.dumps(error, protocol)), error)


@each_class
def test_copy_gives_the_same_error(kind: type[BundlerError]) -> None:
    error = example(kind)
    assert same(copy.copy(error), error)
    assert same(copy.deepcopy(error), error)


@each_class
def test_pickle_keeps_the_cause_out_and_the_fields_in(kind: type[BundlerError]) -> None:
    error = example(kind)
    error.__cause__ = OSError("not ours to send")
    assert pickle.loads(pickle.dumps(error)).fields() == error.fields()


def _words(value: object) -> Iterator[str]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _words(each)
    else:
        yield str(value)


@each_class
def test_the_sentence_holds_every_field(kind: type[BundlerError]) -> None:
    error = example(kind)
    for name, value in error.fields().items():
        words = [errno.errorcode[value]] if name == "errno" else list(_words(value))
        assert not [word for word in words if word not in str(error)], name


@each_class
def test_the_sentence_is_one_line_without_a_class_name(kind: type[BundlerError]) -> None:
    text = str(example(kind))
    assert text and "\n" not in text and "Error" not in text
    assert text == text.strip() and not text.endswith(".")


@each_class
def test_fields_are_json_and_are_attributes(kind: type[BundlerError]) -> None:
    error = example(kind)
    assert json.loads(json.dumps(error.fields())).keys() == error.fields().keys()
    assert all(getattr(error, name) == value for name, value in error.fields().items())


@each_class
def test_every_argument_is_a_field(kind: type[BundlerError]) -> None:
    parameters = list(inspect.signature(kind.__init__).parameters)[1:]
    if kind.__init__ is not Exception.__init__ and parameters not in (["args", "kwargs"], []):
        renamed = {"code": "errno"}
        assert {renamed.get(name, name) for name in parameters} <= set(kind.field_names)


@each_class
def test_exit_code_is_that_of_the_nearest_family(kind: type[BundlerError]) -> None:
    family = next(base for base in kind.__mro__ if base.__name__ in EXIT_CODES)
    assert kind.exit_code == EXIT_CODES[family.__name__]


def test_exit_codes_of_families_differ_except_for_conflicts() -> None:
    codes = sorted(EXIT_CODES.values())
    assert codes == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11, 12]


@each_class
def test_builtin_bases_and_errno(kind: type[BundlerError]) -> None:
    builtin = BUILTINS.get(kind.__name__)
    assert isinstance(example(kind), OSError) == (builtin is not None)
    if builtin is not None:
        base, code = builtin
        with pytest.raises(base) as caught:
            raise example(kind)
        assert caught.value.errno == code
        assert caught.value.filename == EXAMPLES[kind.__name__][-1 if kind.__name__.startswith("Object") else 0]
        assert pickle.loads(pickle.dumps(caught.value)).errno == code


@each_class
def test_an_error_is_no_value_error(kind: type[BundlerError]) -> None:
    assert not issubclass(kind, (ValueError, AssertionError, KeyError))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.FormatError("the index is cut"), "the index is cut"),
        (errors.FormatError("the index is cut", 0), "at byte 0"),
        (errors.DigestMismatchError("frame 3", "sha256:11", "sha256:22"), "frame 3: digest is sha256:22"),
        (errors.RelocationError("a.json", "no path"), "a.json: no path"),
        (errors.UntrustedError("no signature"), "not trusted: no signature; "),
        (LocalIOError("/x", errno.EACCES, "read the file"), "/x: cannot read the file: EACCES ("),
        (LocalIOError("/x", 12345, "read the file"), "/x: cannot read the file: 12345 ("),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_sentence_leaves_out_what_is_not_known(error: BundlerError, expected: str) -> None:
    assert expected in str(error)
    assert "-1" not in str(error) and "  " not in str(error) and "()" not in str(error)


OS_ERRORS = {
    "a path of its own": (OSError(errno.EROFS, "x", "/cache/file"), "/given", "/cache/file", errno.EROFS),
    "bytes": (OSError(errno.ENOENT, "x", b"/cache/file"), "/given", "/cache/file", errno.ENOENT),
    "no path": (OSError(errno.ENOSPC, "x"), "/given", "/given", errno.ENOSPC),
    "a descriptor": (OSError(errno.EIO, "x", 7), "/given", "/given", errno.EIO),
    "a path below a descriptor": (OSError(errno.EEXIST, "x", "name"), "/given", "/given", errno.EEXIST),
    "a relative path alone": (OSError(errno.EEXIST, "x", "name"), "", "name", errno.EEXIST),
    "no errno": (OSError("short read"), "/given", "/given", errno.EIO),
}


@pytest.mark.parametrize(("cause", "given", "path", "code"), OS_ERRORS.values(), ids=OS_ERRORS.keys())
def test_from_os_error_names_the_path_and_the_errno(cause: OSError, given: str, path: str, code: int) -> None:
    error = LocalIOError.from_os_error(cause, "read the file", given, needed=3)
    assert (error.path, error.errno, error.action, error.needed) == (path, code, "read the file", 3)
    assert path in str(error) and errno.errorcode[code] in str(error) and os.strerror(code) in str(error)


@pytest.mark.parametrize("code", sorted(errors._REMEDIES), ids=lambda code: errno.errorcode[code])
def test_every_common_errno_has_a_remedy_of_its_own(code: int) -> None:
    assert errors._REMEDIES[code] in str(LocalIOError("/x", code, "read the file"))
    assert errors._remedy(code) != errors._remedy(0)
