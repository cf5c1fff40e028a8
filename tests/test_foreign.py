"""Foreign paths: found where compilers write them, given as directories, in time that grows with the data alone."""

from __future__ import annotations

import json
import marshal
import pickle
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler.foreign import prefixes
from bundler.testing.artifacts import Recipe, host_binary
from bundler.testing.trees import synthetic_kernel

# case -> (bytes, directories)
FOUND: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "nothing": (b"", ()),
    "JSON": (b'{"a": "/opt/venv/lib/libdevice.10.bc"}', ("/opt/venv/lib",)),
    "Python": (b"f = '/opt/venv/lib/x.py'", ("/opt/venv/lib",)),
    "debug section": (b"x\0/opt/venv/lib\0/usr/include/c++/11/vector\0", ("/opt/venv", "/usr/include/c++/11")),
    "DWARF line table": (b"\0\0\1/tmp/t/ab\0/usr/include\0\0", ("/tmp/t", "/usr")),
    "short pickled string": (pickle.dumps("/opt/venv/x.py", 4), ("/opt/venv",)),
    "long pickled string": (pickle.dumps("/opt/" + "v" * 250 + "/x.py", 4), ("/opt/" + "v" * 250,)),
    "byte code": (marshal.dumps(compile("def f(): pass", "/opt/venv/lib/x.py", "exec")), ("/opt/venv/lib",)),
    "blanks in a directory": (b'"/opt/my venv/x.py"', ("/opt/my venv",)),
    "two, each once, sorted": (b'"/b/c/x" "/a/x" "/b/c/y"', ("/a", "/b/c")),
    "a doubled slash": (b'"/opt//venv/x.py"', ("/opt//venv",)),
    "a name that is not ASCII": ('"/opt/venv/é.py"'.encode(), ("/opt/venv",)),
    "a directory that is not ASCII": ('"/opt/é/x.py"'.encode(), ("/opt",)),
    "no directory": (b'"/vmlinuz"', ()),
    "only a directory": (b'"/opt/venv/"', ("/opt",)),
    "a relative path": (b'"opt/venv/x.py"', ()),
    "an address": (b'"https://example.org/opt/x.py"', ()),
    "a comment of slashes": (b'"' + b"/" * 79 + b'"', ()),
    "no quote before it": (b"see /opt/venv/x.py", ()),
    "65 parts": (b'"' + b"/a" * 65 + b'/x"', ("/a" * 64,)),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_directories_of_absolute_paths_are_found(case: str) -> None:
    data, expected = FOUND[case]
    assert prefixes(data) == expected
    assert prefixes(bytearray(data)) == prefixes(memoryview(data)) == expected


def test_paths_below_the_recorded_root_are_given_as_the_root() -> None:
    data = b'"/tmp/t/ab/x.py" "/tmp/t/fxgraph/cd/y" "/tmp/t2/z" "/tmp/t/w"'
    assert prefixes(data, "/tmp/t") == ("/tmp/t", "/tmp/t2")
    assert prefixes(data, "") == ("/tmp/t", "/tmp/t/ab", "/tmp/t/fxgraph/cd", "/tmp/t2")


def test_a_list_of_many_directories_is_cut_to_two_parts_and_to_64() -> None:
    few = b"".join(b'"/usr/include/d%d/x.h"' % n for n in range(64))
    assert len(prefixes(few)) == 64
    many = b"".join(b'"/usr/include/d%d/x.h"' % n for n in range(65))
    assert prefixes(many) == ("/usr/include",)
    wide = b"".join(b'"/u%d/include/x.h"' % n for n in range(100))
    assert len(prefixes(wide)) == 64


def test_the_files_of_a_kernel_name_their_source_and_their_libraries(tmp_path: Path) -> None:
    kernel = synthetic_kernel(tmp_path, "add", source_file="/home/somebody/project/k.py")
    recipe = Recipe("add")
    found = {file.suffix: prefixes(file.read_bytes()) for file in kernel.iterdir() if "__grp__" not in file.name}
    assert f"{recipe.packages}/triton/backends/nvidia/lib" in found[".json"]
    assert "/home/somebody/project" in found[".ttir"]
    # A debug section has the directory alone, so what is shown is where that lies.
    assert found[".cubin"] == ("/home/somebody",)
    assert prefixes(host_binary(directory="/build/kernels")) == ("/build",)


@pytest.mark.parametrize("lead", [b'"', b"'", b"\0", b"\1", b"\x8c\xff"], ids=repr)
@pytest.mark.parametrize("unit", [b"/", b"/a", b"a/", b"/\0", b'/a"', b"/ ", b"\0/a/", b'"/'], ids=repr)
def test_time_grows_with_the_data_alone(lead: bytes, unit: bytes) -> None:
    # The loss: pack hung for ever on a generated C++ file with a line of slashes in a string.
    data = lead + unit * 10_000 + b"\n"
    started = time.perf_counter()
    prefixes(data)
    assert time.perf_counter() - started < 3


@given(data=st.binary(max_size=400) | st.text("/ab\"'\0\x8c\n.").map(str.encode), root=st.sampled_from(["", "/a", "/"]))
def test_any_bytes_give_sorted_directories_that_stand_in_them(data: bytes, root: str) -> None:
    found = prefixes(data, root)
    assert list(found) == sorted(set(found)) and len(found) <= 64
    assert all(path == root or (path.startswith("/") and path.encode() in data) for path in found)
    json.dumps(found)
