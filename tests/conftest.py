"""Isolation, Hypothesis profiles, options, and real cache trees made once for all tests and workers.

The trees of the session fixtures are shared: copy one before changing it (``clone``). That nobody did is checked when
the session ends.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import shutil
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from bundler.testing import programs, trees

# --- options, profiles, markers ------------------------------------------------------------------------------------

# A shell starts what it puts into the background with the first two ignored, and nohup with the third; so would be all
# that the tests start.
for number in {getattr(signal, name, signal.SIGINT) for name in ("SIGINT", "SIGQUIT", "SIGHUP")}:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))

# Tests that use one of these need what the marker says; they are marked when they are collected.
_TORCH_FIXTURES = {"inductor_tree", "torch_run"}
_TRITON_FIXTURES = {"triton_tree", "triton_compile"}

# Beginnings of the environment variables that say where caches lie and how compilers behave.
_CLEARED = ("TRITON", "TORCH", "INDUCTOR", "VLLM", "XDG_", "BUNDLER", "PYTORCH", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files in place of comparing them")


def pytest_configure() -> None:
    # Also for what session fixtures start, which no test's own isolation reaches.
    for name in [name for name in os.environ if name.startswith(_CLEARED)]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if used & (_TORCH_FIXTURES | _TRITON_FIXTURES):
            item.add_marker("torch")
        if item.get_closest_marker("torch") and not item.get_closest_marker("timeout"):
            # Whoever comes first makes the trees: half a minute of C++ compiler, and several on a busy machine.
            item.add_marker(pytest.mark.timeout(400))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("torch"):
        for package in ("torch", "triton"):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed; scripts/env installs it")
    if item.get_closest_marker("gpu") and not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))):
        pytest.skip("no NVIDIA or AMD GPU on this host")


@pytest.fixture(scope="session")
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written (``--update-goldens``)."""
    return bool(request.config.getoption("--update-goldens"))


# --- isolation -----------------------------------------------------------------------------------------------------


def isolated_environment(home: Path) -> dict[str, str]:
    """What a test's environment has on top of the rest: every cache of every tool is under ``home``."""
    return {
        "HOME": str(home),
        "USERPROFILE": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_RUNTIME_DIR": str(home / ".run"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "TRITON_CACHE_DIR": str(home / "triton"),
        "TRITON_HOME": str(home),
        "VLLM_CACHE_ROOT": str(home / "vllm"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        # Triton 3.9 warns when it is unset; the value is the default of that version.
        "TRITON_DEFAULT_FP_FUSION": "1",
    }


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # Counted here: mktemp reads through all earlier directories each time.
    base = tmp_path_factory.mktemp("homes")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of this test: empty, and where every cache that is not told otherwise goes."""
    place = next(_homes)
    place.mkdir()
    for name in list(os.environ):
        if name.startswith(_CLEARED):
            monkeypatch.delenv(name)
    for name, value in isolated_environment(place).items():
        monkeypatch.setenv(name, value)
    return place


# --- an object store -------------------------------------------------------------------------------------------------

_BUCKETS = itertools.count()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server that holds its objects in memory."""
    server_module = pytest.importorskip("moto.server", reason="moto[server,s3] is not installed")
    pytest.importorskip("obstore", reason="obstore is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def wait_for(port: int, *, seconds: float = 30) -> None:
    """Wait until somebody listens on a port of this host."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                pytest.fail(f"nothing listens on port {port} after {seconds:.0f} s")
            time.sleep(0.1)


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new bucket; credentials are in the environment, as users have them."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{next(_BUCKETS)}"
    with urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{name}", method="PUT")):
        return name


@pytest.fixture
def s3_url(s3_server: str, bucket: str) -> str:
    """The URL of a store in a new bucket."""
    return f"s3://{bucket}/some/prefix?endpoint={s3_server}&deadline=5"


# --- real caches ---------------------------------------------------------------------------------------------------


class Compile(Protocol):
    """Run a program that compiles, with its cache in ``cache_dir``; return what it reports."""

    def __call__(self, cache_dir: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]: ...


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this session share."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "shared"
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture(scope="session")
def triton_compile(shared: Path) -> Compile:
    """Compile the kernels of ``bundler.testing.programs.kernels`` for cuda:90 and hip:gfx942, in a process of its own.

    Arguments such as ``"--targets=cuda:80"`` and ``"--kernels=add"`` go to the program. The report has ``kernels``
    (``"add@cuda:90"`` -> ``hit``, ``hash``, ``key``, ``name``, ``seconds``), ``hits`` and ``compiled``.
    """

    def run(cache_dir: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        variables = {**isolated_environment(shared / "home"), "TRITON_CACHE_DIR": str(cache_dir), **(env or {})}
        return programs.run(programs.COMPILE_TRITON, arguments, env=variables)

    return run


@pytest.fixture(scope="session")
def torch_run(shared: Path) -> Compile:
    """Take a training step of a small model under ``torch.compile`` on the CPU, in a process of its own.

    Arguments such as ``"--width=64"`` go to the program. The report has ``fxgraph_hits``, ``fxgraph_misses``,
    ``autograd_hits``, ``autograd_misses``, ``checksum``, ``cpp_compiled`` and ``cpp_headers``.

    The temporary directory is one for all runs: torch keeps a precompiled header there, outside of its cache, which
    takes ten seconds to make.
    """
    temporary = shared / "tmp"
    temporary.mkdir(exist_ok=True)

    def run(cache_dir: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        places = {"TORCHINDUCTOR_CACHE_DIR": str(cache_dir), "TRITON_CACHE_DIR": "", "TMPDIR": str(temporary)}
        variables = {**isolated_environment(shared / "home"), **places, **(env or {})}
        return programs.run(programs.COMPILE_TORCH, arguments, env=variables)

    return run


@pytest.fixture(scope="session")
def triton_tree(shared: Path, triton_compile: Compile) -> Iterator[Path]:
    """A Triton cache with six real kernels: three for cuda:90, three for hip:gfx942. Not to be changed."""
    yield from _made_once(shared / "triton_tree", lambda place: triton_compile(place))


@pytest.fixture(scope="session")
def inductor_tree(shared: Path, torch_run: Compile) -> Iterator[Path]:
    """The ``TORCHINDUCTOR_CACHE_DIR`` of one real training step on the CPU. Not to be changed."""
    yield from _made_once(shared / "inductor_tree", lambda place: torch_run(place))


@pytest.fixture
def clone(tmp_path: Path) -> Callable[..., Path]:
    """``clone(tree, name="clone")``: copy a tree into ``tmp_path``. What the copy records is still the old place."""

    def copy(tree: Path, name: str = "clone") -> Path:
        return Path(shutil.copytree(tree, tmp_path / name, symlinks=True))

    return copy


@pytest.fixture
def rehomed(clone: Callable[..., Path]) -> Callable[..., Path]:
    """``rehomed(tree, name="clone")``: copy a tree into ``tmp_path``, as if it had been compiled there."""

    def copy(tree: Path, name: str = "clone") -> Path:
        return trees.rehome(clone(tree, name), str(tree))

    return copy


def _made_once(place: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """Yield ``place``, made by whichever worker comes first; complain in the end if anybody changed it."""
    done = place.with_suffix(".done")
    with FileLock(str(place.with_suffix(".lock"))):
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            make(place)
            done.touch()
    before = _listing(place)
    yield place
    assert _listing(place) == before, f"a test changed {place.name}, which is shared: work on a clone"


def _listing(root: Path) -> dict[str, tuple[int, int]]:
    statuses = {path: path.lstat() for path in root.rglob("*")}
    return {str(path): (status.st_size, status.st_mtime_ns) for path, status in statuses.items() if path.is_file()}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove torch's precompiled header (150 MB); pytest keeps the directories of its last three sessions."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is not None and not hasattr(session.config, "workerinput") and sys.platform != "win32":
        shutil.rmtree(factory.getbasetemp() / "shared" / "tmp", ignore_errors=True)
