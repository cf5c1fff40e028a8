"""Laws of the host's facts, on a fake NVML library, fake kernel files, and this host itself."""

from __future__ import annotations

import importlib.machinery
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler import host
from bundler.formats import elf
from bundler.model import Target

# NVML as far as it is asked. Its devices are in FAKE_GPUS: "name:major:minor,...", an empty name standing for one that
# has no name and "lost" for one that gives no handle. FAKE_BROKEN names a function that fails.
FAKE_NVML = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>

static int inits;
static int broken(const char *name) {
    const char *list = getenv("FAKE_BROKEN");
    return (list && strstr(list, name)) || !inits ? 999 : 0;
}
static int field(unsigned index, int number, char *out, size_t size) {
    char copy[4096], *save = 0, *part;
    const char *gpus = getenv("FAKE_GPUS");
    snprintf(copy, sizeof copy, "%s", gpus ? gpus : "");
    for (part = strtok_r(copy, ",", &save); part && index; index--) part = strtok_r(0, ",", &save);
    if (!part) return 999;
    while (number--) { part = strchr(part, ':'); if (!part) return 999; part++; }
    snprintf(out, size, "%s", part);
    out[strcspn(out, ":")] = 0;
    return 0;
}
int nvmlInit_v2(void) { if (getenv("FAKE_NO_DRIVER")) return 9; inits++; return 0; }
int nvmlShutdown(void) {
    const char *log = getenv("FAKE_LOG");
    if (log) { FILE *f = fopen(log, "a"); fprintf(f, "shutdown %d\n", inits); fclose(f); }
    inits--;
    return 0;
}
#ifndef WITHOUT_DRIVER_VERSION
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "570.86.15");
    return broken("DriverVersion");
}
#endif
int nvmlDeviceGetCount_v2(unsigned *count) {
    char text[100];
    for (*count = 0; !field(*count, 0, text, sizeof text); ++*count) ;
    return broken("Count");
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    char name[100];
    *handle = (void *)(0x7f0000000000 + (unsigned long)index);  /* more than 32 bits, as real ones have */
    return field(index, 0, name, sizeof name) || !strcmp(name, "lost") ? 999 : broken("Handle");
}
int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    return field((unsigned long)handle - 0x7f0000000000, 0, out, size) || !*out ? 999 : broken("Name");
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    char text[100];
    if (field((unsigned long)handle - 0x7f0000000000, 1, text, sizeof text)) return 999;
    *major = atoi(text);
    if (field((unsigned long)handle - 0x7f0000000000, 2, text, sizeof text)) return 999;
    *minor = atoi(text);
    return broken("Capability");
}
"""

Nvml = Callable[..., None]


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("no C compiler to make a fake NVML with")
    place = tmp_path_factory.mktemp("nvml")
    source = place / "nvml.c"
    source.write_text(FAKE_NVML)
    libraries = {"whole": place / "libnvidia-ml.so.1", "old": place / "libnvidia-ml-old.so.1"}
    for name, option in (("whole", "-DWHOLE"), ("old", "-DWITHOUT_DRIVER_VERSION")):
        subprocess.run([compiler, "-shared", "-fPIC", option, "-o", libraries[name], source], check=True)
    return libraries


@pytest.fixture
def nvml(nvml_libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """``nvml("NVIDIA H200:9:0", FAKE_BROKEN="Name")``: what the fake library answers from now on."""

    def set_up(*gpus: str, library: str = "whole", **variables: str) -> None:
        monkeypatch.setattr(host, "NVML_LIBRARY", str(nvml_libraries[library]))
        monkeypatch.setenv("FAKE_GPUS", ",".join(gpus))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_up


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No GPU, whatever this host has; the kernel files of the test's own directory."""
    monkeypatch.setattr(host, "NVML_LIBRARY", str(tmp_path / "no-such-library.so"))
    monkeypatch.setattr(host, "KFD_NODES", str(tmp_path / "nodes"))
    monkeypatch.setattr(host, "AMD_DRIVER", str(tmp_path / "amdgpu_version"))
    for names in host._HIDING_VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)


def kfd(tmp_path: Path, *versions: str, name: str = "aqua_vanjaram") -> None:
    for i, version in enumerate(versions):
        node = tmp_path / "nodes" / str(i)
        node.mkdir(parents=True)
        (node / "name").write_text(f"{name}\n")
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count 304\n{version}\nmax_waves_per_simd 8\n")


# --- GPUs ----------------------------------------------------------------------------------------------------------


def test_without_a_gpu_there_are_no_targets_and_no_gpu_facts() -> None:
    assert host.gpu_targets() == ()
    assert not {"gpus", "device_count", "driver"} & set(host.facts())


@pytest.mark.parametrize(
    ("gpus", "targets"),
    [
        (["NVIDIA H200:9:0"], ["cuda:90"]),
        (["NVIDIA H200:9:0"] * 8, ["cuda:90"]),
        (["Tesla T4:7:5", "NVIDIA H200:9:0", "NVIDIA A100:8:0"], ["cuda:75", "cuda:80", "cuda:90"]),
        (["NVIDIA B200:10:0"], ["cuda:100"]),
        (["NVIDIA GeForce RTX 5090:12:0"], ["cuda:120"]),
        ([], []),
    ],
)
def test_nvidia_targets_come_from_nvml_each_once(nvml: Nvml, gpus: list[str], targets: list[str]) -> None:
    nvml(*gpus)
    assert host.gpu_targets() == tuple(sorted(map(Target.parse, targets)))


def test_nvidia_facts_name_every_gpu_and_the_driver(nvml: Nvml) -> None:
    nvml("NVIDIA H200:9:0", "NVIDIA H200:9:0", "Tesla T4:7:5")
    facts = host.facts()
    h200 = {"name": "NVIDIA H200", "target": "cuda:90"}
    assert facts["gpus"] == [h200, h200, {"name": "Tesla T4", "target": "cuda:75"}]
    assert (facts["device_count"], facts["driver"]) == (3, "570.86.15")


def test_a_lost_gpu_does_not_hide_the_others(nvml: Nvml) -> None:
    nvml("lost:9:0", "Tesla T4:7:5")
    assert host.gpu_targets() == (Target("cuda", "75"),)


@pytest.mark.parametrize(
    ("broken", "targets"),
    [
        ("Count", ()),
        ("Handle", ()),
        ("Capability", ()),
        ("Name", (Target("cuda", "90"),)),
        ("DriverVersion", (Target("cuda", "90"),)),
    ],
)
def test_a_failing_call_costs_its_own_fact_only(nvml: Nvml, broken: str, targets: tuple[Target, ...]) -> None:
    nvml("NVIDIA H200:9:0", FAKE_BROKEN=broken)
    assert host.gpu_targets() == targets
    assert ("driver" in host.facts()) == (broken != "DriverVersion")


def test_a_library_without_a_driver_means_no_gpu(nvml: Nvml) -> None:
    nvml("NVIDIA H200:9:0", FAKE_NO_DRIVER="1")
    assert host.gpu_targets() == ()


def test_a_library_without_a_function_means_no_gpu_and_is_still_shut_down(nvml: Nvml, tmp_path: Path) -> None:
    nvml("NVIDIA H200:9:0", library="old", FAKE_LOG=str(tmp_path / "log"))
    assert host.gpu_targets() == ()
    assert (tmp_path / "log").read_text() == "shutdown 1\n"


def test_every_init_has_its_shutdown(nvml: Nvml, tmp_path: Path) -> None:
    # A process that asks and goes on must not keep the driver's library initialised.
    nvml("NVIDIA H200:9:0", FAKE_LOG=str(tmp_path / "log"))
    host.gpu_targets()
    host.facts()
    assert (tmp_path / "log").read_text() == "shutdown 1\n" * 2


@pytest.mark.parametrize(
    ("line", "targets"),
    [
        ("gfx_target_version 90402", ("gfx942",)),
        ("gfx_target_version 90010", ("gfx90a",)),
        ("gfx_target_version 90012", ("gfx90c",)),
        ("gfx_target_version 90500", ("gfx950",)),
        ("gfx_target_version 100306", ("gfx1036",)),
        ("gfx_target_version 110000", ("gfx1100",)),
        ("gfx_target_version 110501", ("gfx1151",)),
        ("gfx_target_version 120500", ("gfx1250",)),
        ("gfx_target_version 0", ()),  # a CPU
        ("gfx_target_version what", ()),
        ("gfx_target_version ", ()),
        ("vendor_id 4098", ()),
    ],
)
def test_amd_targets_come_from_the_topology_in_sysfs(tmp_path: Path, line: str, targets: tuple[str, ...]) -> None:
    kfd(tmp_path, "gfx_target_version 0", line)
    assert host.gpu_targets() == tuple(Target("hip", arch) for arch in targets)


def test_amd_facts_name_every_gpu_in_order_and_the_driver(tmp_path: Path) -> None:
    kfd(tmp_path, *["gfx_target_version 0"] * 2, *["gfx_target_version 90402"] * 9)
    (tmp_path / "nodes" / "notes").mkdir()
    (tmp_path / "nodes" / "5" / "properties").unlink()
    (tmp_path / "nodes" / "6" / "name").unlink()
    (tmp_path / "amdgpu_version").write_text("6.10.5\n")
    facts = host.facts()
    assert [gpu["name"] for gpu in facts["gpus"]] == ["aqua_vanjaram"] * 3 + [""] + ["aqua_vanjaram"] * 4
    assert {gpu["target"] for gpu in facts["gpus"]} == {"hip:gfx942"}
    assert (facts["device_count"], facts["driver"]) == (8, "6.10.5")


@pytest.mark.parametrize(
    ("name", "value", "targets"),
    [
        ("CUDA_VISIBLE_DEVICES", "", ()),
        ("CUDA_VISIBLE_DEVICES", "-1", ()),
        ("CUDA_VISIBLE_DEVICES", "1", ("cuda:90", "hip:gfx942")),
        ("HIP_VISIBLE_DEVICES", "", ("cuda:90",)),
        ("ROCR_VISIBLE_DEVICES", "-1", ("cuda:90",)),
    ],
)
def test_a_variable_that_hides_every_gpu_counts(
    nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, targets: tuple[str, ...]
) -> None:
    nvml("NVIDIA H200:9:0")
    kfd(tmp_path, "gfx_target_version 90402")
    monkeypatch.setenv(name, value)
    assert host.gpu_targets() == tuple(map(Target.parse, targets))


@pytest.mark.gpu
def test_the_gpu_of_this_host_has_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    targets = host.gpu_targets()
    assert targets
    assert len(host.facts()["gpus"]) == host.facts()["device_count"] >= len(targets)


# --- CPU and libc --------------------------------------------------------------------------------------------------


def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> list[str] | None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(host, "CPU_INFO", str(tmp_path / "cpuinfo"))
    found = host.facts().get("cpu_isa")
    return None if found is None else list(found)


def test_instruction_sets_are_the_known_flags_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor\t: 0\nflags\t\t: fpu sse2 avx2 fma avx512f amx_tile aes avx512_vnni\nbugs\t\t: spectre_v1\n"
    assert cpuinfo(tmp_path, monkeypatch, text) == ["amx_tile", "avx2", "avx512_vnni", "avx512f", "fma"]
    assert cpuinfo(tmp_path, monkeypatch, "CPU implementer\t: 0x41\nFeatures\t: fp asimd evtstrm bf16\n") == [
        "asimd",
        "bf16",
    ]
    assert cpuinfo(tmp_path, monkeypatch, "isa : rv64imafdc\n") is None
    assert cpuinfo(tmp_path, monkeypatch, "") is None


def test_the_vector_length_of_sve_is_an_instruction_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Code for SVE of 256 bits computes wrong results, without a fault, where SVE has 128.
    monkeypatch.setattr(host, "SVE_LENGTH", str(tmp_path / "sve"))
    assert cpuinfo(tmp_path, monkeypatch, "Features : asimd sve\n") == ["asimd", "sve"]
    for bytes_, name in ((16, "sve128"), (32, "sve256"), (64, "sve512")):
        (tmp_path / "sve").write_text(f"{bytes_}\n")
        assert cpuinfo(tmp_path, monkeypatch, "Features : asimd sve\n") == ["asimd", "sve", name]
    assert host.runs_here((), ["sve", "sve256"], host_isa=["sve", "sve128"]) == (
        "needs sve256, which this CPU does not have"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/cpuinfo")
def test_this_host_knows_its_machine_libc_and_python() -> None:
    facts = host.facts()
    assert facts["machine"] == platform.machine()
    assert facts["python"] == platform.python_version()
    assert facts["libc"].split()[0] in ("glibc", "musl")
    assert facts["cpu_count"] == os.cpu_count()


def test_musl_is_known_from_how_python_was_built_where_platform_does_not_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: "x86_64-alpine-linux-musl")
    assert host.facts()["libc"] == "musl"
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: None)
    assert "libc" not in host.facts()


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ((), None),
        (("glibc:2.34", "machine:x86_64"), None),
        (("glibc:2.36",), None),
        (("glibc:2.2.5",), None),
        (("glibc:2.38",), "needs glibc 2.38, this host has 2.36"),
        (("glibc:3.0",), "needs glibc 3.0, this host has 2.36"),
        (("glibc:new",), "needs glibc new, this host has 2.36"),
        (("machine:aarch64",), "needs machine aarch64, this host is x86_64"),
        (("musl",), "needs musl, this host has glibc 2.36"),
        (("kernel:6",), "needs kernel:6, which this version does not know"),
    ],
)
def test_a_binary_runs_where_its_needs_are_met(needs: tuple[str, ...], reason: str | None) -> None:
    assert host.runs_here(needs, machine="x86_64", libc="glibc 2.36", host_isa=[]) == reason


@pytest.mark.parametrize(
    ("libc", "need", "reason"),
    [
        ("musl", "musl", None),
        ("musl 1.2.5", "musl", None),
        ("musl", "glibc:2.34", "needs glibc 2.34, this host has musl"),
        ("", "glibc:2.34", "needs glibc 2.34, this host has an unknown libc"),
        ("", "musl", "needs musl, this host has an unknown libc"),
        ("glibc", "glibc:2.34", "needs glibc 2.34, this host has another"),
        ("glibc 2.34", "machine:x86_64", "needs machine x86_64, this host is unknown"),
    ],
)
def test_another_or_an_unknown_libc_or_machine_is_a_reason(libc: str, need: str, reason: str | None) -> None:
    assert host.runs_here((need,), machine="", libc=libc, host_isa=[]) == reason


@pytest.mark.parametrize(("ours", "theirs"), [("AMD64", "x86_64"), ("arm64", "aarch64"), ("i686", "i386")])
def test_one_machine_has_several_names(ours: str, theirs: str) -> None:
    assert host.runs_here((f"machine:{theirs}",), machine=ours, libc="") is None


known = st.sets(st.sampled_from(sorted(host.INSTRUCTION_SETS)))


@given(compiled=known, more=known)
def test_a_binary_runs_on_a_cpu_that_has_more_and_not_the_other_way_round(compiled: set[str], more: set[str]) -> None:
    both = sorted(compiled | more)
    assert host.runs_here((), sorted(compiled), host_isa=both) is None
    reason = host.runs_here((), both, host_isa=sorted(compiled))
    assert (reason is None) == (more <= compiled)
    assert reason is None or all(name in reason for name in more - compiled)


@given(st.lists(st.text(max_size=10).filter(lambda name: name not in host.INSTRUCTION_SETS)))
def test_instruction_sets_that_are_not_known_do_not_count(names: list[str]) -> None:
    assert host.runs_here((), names, host_isa=[]) is None


@given(needs=st.lists(st.text(max_size=20)).map(tuple), machine=st.text(max_size=9), libc=st.text(max_size=12))
def test_runs_here_has_an_answer_for_any_text(needs: tuple[str, ...], machine: str, libc: str) -> None:
    assert isinstance(host.runs_here(needs, machine=machine, libc=libc), str | None)


@pytest.mark.skipif(sys.platform != "linux", reason="no ELF on this system")
def test_what_this_python_loads_runs_here() -> None:
    directory = Path(str(sysconfig.get_config_var("DESTSHARED") or sysconfig.get_path("platstdlib")))
    modules = sorted(directory.rglob(f"*{importlib.machinery.EXTENSION_SUFFIXES[0]}"))[:20]
    if not modules:
        pytest.skip("this Python has all its modules built in")
    isa = host.facts().get("cpu_isa", [])
    for module in modules:
        assert host.runs_here(elf.host_needs(module.read_bytes()), isa) is None


# --- packages, variables, and the whole ----------------------------------------------------------------------------


def test_packages_are_those_installed() -> None:
    found = host.facts().get("packages", {})
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
    assert found == {name: version for name, version in sorted(installed.items()) if name in host.PACKAGES}


def test_variables_are_recorded_by_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "")
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "TRITON_REDIS_HOST", "TORCHINDUCTOR_REDIS_HOST", "MY_TRITON_DIR"):
        monkeypatch.setenv(name, "secret")
    environment = host.facts()["environment"]
    assert environment["TRITON_F32_DEFAULT"] == "ieee"
    assert environment["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert environment["TORCHINDUCTOR_FREEZING"] == "", "set to nothing is not unset"
    assert set(environment) <= host.ENVIRONMENT
    assert "secret" not in json.dumps(host.facts())


def test_no_name_on_the_allow_list_looks_like_a_secret() -> None:
    words = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH_", "API", "REDIS", "HOST", "URL", "_PORT", "USER_NAME")
    assert not [name for name in host.ENVIRONMENT if any(word in name for word in words)]


@pytest.mark.torch
def test_the_allow_list_has_every_variable_that_this_triton_hashes() -> None:
    # Asked of the library itself, with every name set that it might look for.
    program = """
import json, os, pathlib, re, sys
import triton._C.libtriton as library
names = re.findall(rb"(?:ALLOW|AMDGCN|DISABLE|ENABLE|LLVM|MLIR|NVPTX|PTXAS|TRITON|USE)_[A-Z0-9_]{3,60}",
                   pathlib.Path(library.__file__).read_bytes())
for name in set(names) | {name.encode() for name in sys.argv[1:]}:
    os.environ.setdefault(name.decode(), "1")
print(json.dumps(sorted(library.get_cache_invalidating_env_vars())))
"""
    output = subprocess.run([sys.executable, "-c", program, *sorted(host.ENVIRONMENT)], capture_output=True, check=True)
    hashed = set(json.loads(output.stdout))
    assert len(hashed) > 20
    assert hashed <= host.ENVIRONMENT


@pytest.mark.skipif(sys.platform == "win32", reason="variables are text there")
def test_values_that_are_long_or_no_text_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DYNAMIC_SOURCES", "x" * 4097)
    monkeypatch.setenv("TORCH_COMPILE_UNBACKED_SOURCES", "x" * 4096)
    monkeypatch.setenv("TRITON_CACHE_DIR", os.fsdecode(b"/caf\xe9"))
    monkeypatch.setenv("TRITON_HOME", "/caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    environment = host.facts()["environment"]
    assert len(environment["TORCH_COMPILE_UNBACKED_SOURCES"]) == 4096
    assert environment["TRITON_HOME"].startswith("/caf")
    assert not {"TORCH_COMPILE_DYNAMIC_SOURCES", "TRITON_CACHE_DIR"} & set(environment)


def test_facts_are_json_without_floats_or_empty_values(nvml: Nvml) -> None:
    nvml("NVIDIA H200:9:0")
    facts = host.facts()
    assert json.loads(json.dumps(facts)) == facts
    assert list(leaves(facts))
    assert all(type(leaf) in (str, int) for leaf in leaves(facts))
    assert all(facts.values())


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_nothing_is_raised_when_nothing_can_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A library that is none, directories where files should be, and a Python whose own answers fail.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    (tmp_path / "nodes" / "0" / "properties").mkdir(parents=True)

    def fails(*_: Any) -> Any:
        raise RuntimeError("no answer")

    monkeypatch.setattr(host, "NVML_LIBRARY", str(tmp_path / "libnvidia-ml.so.1"))
    monkeypatch.setattr(host, "CPU_INFO", str(tmp_path))
    monkeypatch.setattr(metadata, "version", fails)
    for name in ("machine", "python_version", "libc_ver"):
        monkeypatch.setattr(platform, name, fails)
    for name in host.ENVIRONMENT & set(os.environ):
        monkeypatch.delenv(name)
    assert set(host.facts()) <= {"os", "cpu_count", "libc"}
    assert host.gpu_targets() == ()
    assert host.runs_here(("machine:x86_64",), ["avx2"]) == "needs machine x86_64, this host is unknown"
    assert host.runs_here((), ["avx2"]) == "needs avx2, but the instruction sets of this host are not known"


def test_asking_imports_neither_torch_nor_triton_and_importing_no_ctypes() -> None:
    program = (
        "import sys; from bundler import host; early = 'ctypes' in sys.modules; host.facts(); host.gpu_targets();"
        "print(early, sorted({'torch', 'triton'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.split() == ["False", "[]"]


def test_byte_code_is_for_the_python_that_it_names() -> None:
    needs = ("python:cpython-311",)
    assert host.imported_by(needs, "cpython-311") is None
    assert host.imported_by(needs, "") is None  # not known: Python finds its own
    assert host.imported_by((), "cpython-312") is None
    assert host.imported_by(("glibc:2.36",), "cpython-312") is None
    assert host.imported_by(needs, "cpython-312") == "it is byte code of cpython-311, and the command runs cpython-312"
