"""What is true of this host: its GPUs, libc, instruction sets, packages and the variables that caches depend on.

Asked without torch, Triton or a GPU library's Python package, and without starting a process. Nothing here raises: a
restore must not fail because a fact could not be had, so such a fact is left out, and who needs it says so.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from bundler.model import Target

if TYPE_CHECKING:
    import ctypes

__all__ = ["facts", "gpu_targets", "imported_by", "recorded_isa", "runs_here"]

# Where the host is asked. Tests point these elsewhere.
NVML_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
AMD_DRIVER = "/sys/module/amdgpu/version"
CPU_INFO = "/proc/cpuinfo"
SVE_LENGTH = "/proc/sys/abi/sve_default_vector_length"  # bytes

MAX_VALUE = 4096  # characters of one environment variable
_MAX_READ = 65536  # bytes of one file below /proc or /sys: the flags stand in the first block

# Distributions whose version decides what a cache holds. PyTorch has shipped Triton under five names.
PACKAGES = (
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "pytorch-triton-xpu",
    "torch",
    "triton",
    "triton-rocm",
    "triton-windows",
    "triton-xpu",
    "vllm",
)

# Instruction sets, as /proc/cpuinfo names them. Inductor asks for the vector ones by name, and compiles with
# -march=native besides, so whatever a compiler uses unasked is here too; what needs an intrinsic (aes, sha) is not.
_X86_AND_ARM_SETS = """
    abm amx_bf16 amx_complex amx_fp16 amx_int8 amx_tile avx avx2 avx512_bf16 avx512_bitalg avx512_fp16 avx512_vbmi2
    avx512_vnni avx512_vpopcntdq avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl avx_vnni bmi1 bmi2
    f16c fma fma4 gfni movbe popcnt sse4_1 sse4_2 ssse3 tbm xop
    asimd asimddp asimdfhm asimdhp asimdrdm atomics bf16 fcma fphp i8mm jscvt lrcpc neon sve sve2 svebf16 svei8mm
    sve128 sve256 sve512
"""  # the last three are ours: code that Inductor makes for SVE is right for one vector length only
INSTRUCTION_SETS = frozenset(_X86_AND_ARM_SETS.split())

# Environment variables that are recorded: those that a cache key is made from, or that choose a cache. Nothing else
# is ever read, so no token, address or password can end in a bundle.
_INDUCTOR_VARIABLES = """
    ALIGNMENT_ASSERTS ANNOTATE_TRAINING APPLY_GUMBEL_MAX_TRICK ASSUME_UNALIGNED_FALLBACK_OUTPUT AUTOGRAD_CACHE
    AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD AUTOGRAD_REMOTE_CACHE AUTOHEURISTIC_COLLECT AUTOHEURISTIC_USE
    AUTOTUNE_AT_COMPILE_TIME AUTOTUNE_CHOICE_DESC_REGEX AUTOTUNE_CHOICE_NAME_REGEX AUTOTUNE_IN_SUBPROC
    AUTOTUNE_MULTI_DEVICE AUTOTUNE_NUM_CHOICES_DISPLAYED AUTOTUNE_REMOTE_CACHE AUTO_CHUNKER BATCH_INVARIANT
    BENCHMARK_EPILOGUE_FUSION BENCHMARK_FUSION BENCHMARK_KERNEL BUNDLED_AUTOTUNE_REMOTE_CACHE
    BUNDLE_TRITON_INTO_FX_GRAPH_CACHE CACHE_DIR CACHE_SDPA_CONSTRAINT CHUNKER_NUM_CHUNKS
    COALESCE_TILING_ANALYSIS COLLECTIVE_BENCHMARK_NRUNS COLLECTIVE_BENCHMARK_TIMEOUT COMPREHENSIVE_PADDING
    COOPERATIVE_REDUCTIONS COORDINATE_DESCENT_CHECK_ALL_DIRECTIONS COORDINATE_DESCENT_RADIUS
    COORDINATE_DESCENT_TUNING CPP_CACHE_PRECOMPILE_HEADERS CPP_DYNAMIC_THREADS
    CPP_ENABLE_FLOATING_POINT_CONTRACT_FLAG CPP_ENABLE_KERNEL_PROFILE CPP_ENABLE_TILING_HEURISTIC
    CPP_ENABLE_UNSAFE_MATH_OPT_FLAG CPP_FALLBACK_SCATTER_REDUCE_SUM CPP_FORCE_INLINE_KERNEL
    CPP_GEMM_CACHE_BLOCKING CPP_GEMM_MAX_K_SLICES CPP_GEMM_THREAD_FACTORS CPP_MARCH
    CPP_MAX_HORIZONTAL_FUSION_SIZE CPP_MIN_CHUNK_SIZE CPP_NO_REDUNDANT_LOOPS CPP_USE_CONSTEXPR_FOR_INT_ARRAY
    CPP_USE_DECOMPOSE_TANH CPP_WEIGHT_PREPACK CPP_WRAPPER CPP_WRAPPER_BUILD_SEPARATE CUDAGRAPHS
    CUDAGRAPH_OR_ERROR CUTLASS_ALLOWLIST CUTLASS_DENYLIST CUTLASS_DYNAMIC_CLUSTER_FALLBACK
    CUTLASS_DYNAMIC_CLUSTER_SHAPE CUTLASS_ENABLED_OPS CUTLASS_HASH_WITH_COMPILE_CMD CUTLASS_INSTANTIATION_LEVEL
    CUTLASS_PRESCREENING DEBUG_COMPILE DEBUG_FUSION DEBUG_SYMBOL DECOMPOSE_K_THRESHOLD DECOMPOSE_SORT_OPS
    DEFAULT_AUTOTUNE_REP DEFAULT_AUTOTUNE_WARMUP DELAY_REALIZE_CHEAP_OUTPUTS DETERMINISTIC DISABLED_PASSES
    DISTORT_BENCHMARKING_RESULT DISTRIBUTED_MAX_AUTOTUNE_GEMM DIVISIBLE_BY_16 DYNAMIC_SCALE_RBLOCK
    EMIT_POINTER_RANGE_32 EMULATE_DIVISION_ROUNDING EMULATE_PRECISION_CASTS
    EMULATE_PRECISION_CASTS_ON_SAVED_TENSORS ENABLED_METRIC_TABLES ENABLE_LINEAR_BINARY_FOLDING ENABLE_PDL
    FORCE_DISABLE_CACHES FORCE_FILTER_REDUCTION_CONFIGS FORCE_LAYOUT_OPT FREEZING FX_GRAPH_CACHE
    FX_GRAPH_CACHE_DEFAULT FX_GRAPH_REMOTE_CACHE FX_WRAPPER GRAPH_PARTITION INCREMENTAL_AUTOTUNE INPLACE_PADDING
    KEEP_OUTPUT_STRIDE KEEP_STATIC_CUBIN_RAW LAYOUT_OPTIMIZATION LOOP_ORDERING_AFTER_FUSION
    LOOP_REINDEXING_AFTER_FUSION MAX_AUTOTUNE MAX_AUTOTUNE_BWD_INPUT_CONV_BACKENDS
    MAX_AUTOTUNE_BWD_WEIGHT_CONV_BACKENDS MAX_AUTOTUNE_CONV_BACKENDS MAX_AUTOTUNE_FLEX_SEARCH_SPACE
    MAX_AUTOTUNE_GEMM MAX_AUTOTUNE_GEMM_BACKENDS MAX_AUTOTUNE_GEMM_SEARCH_SPACE MAX_AUTOTUNE_POINTWISE
    MAX_AUTOTUNE_PRUNE_CHOICES_BASED_ON_SHARED_MEM MAX_AUTOTUNE_REPORT_CHOICES_STATS MEMORY_PLANNING MEMORY_POOL
    MIN_NUM_SPLIT MIX_ORDER_REDUCTION MIX_ORDER_REDUCTION_ALLOW_MULTI_STAGES
    MIX_ORDER_REDUCTION_AUTOTUNE_SPLIT_SIZE MULTI_KERNEL NAN_ASSERTS NATIVE_MATMUL NESTED_REDUCTION
    NON_BLOCKING_REMOTE_CACHE_WRITE NUM_DECOMPOSE_K_SPLITS NVGEMM_MAX_PROFILING_CONFIGS
    NVGEMM_SUPPLEMENT_CONFIGS ONLINE_SOFTMAX OPTIMIZE_SCATTER_UPON_CONST_TENSOR ORIGAMI ORIGAMI_TOPK
    PARTITIONED_SCATTER_ENABLED PERMUTE_FUSION PERSISTENT_REDUCTIONS PIPELINE_GEMM_AUTOTUNING
    PRECOMPILATION_TIMEOUT_SECONDS PROFILE PROFILE_WITH_DO_BENCH_USING_PROFILING PROLOGUE_FUSION
    RUNTIME_TRITON_NAN_ASSERTS RUN_JIT_POST_COMPILE_HOOK SAVE_ARGS SCALAR_ASSERTS SHAPE_PADDING SIZE_ASSERTS
    SKIP_L1 SPLIT_REDUCTIONS STATIC_LAUNCH_USER_DEFINED_TRITON_KERNELS STRICT_STATIC_CUDA_LAUNCHER
    TRITON_DISABLE_DEVICE_DETECTION TRITON_PROTON_GROUP_BY_SM TRITON_PROTON_PER_CTA_OCCUPANCY
    TRITON_PROTON_PROFILING TRITON_PROTON_SPLIT_INVOCATIONS UNIQUE_KERNEL_NAMES UNIQUE_USER_KERNEL_NAMES
    USE_EXPERIMENTAL_BENCHMARKER USE_FAST_MATH USE_FAST_TRITON_LAUNCHER USE_LAUNCH_METADATA_SCHEMA
    USE_STATIC_CUDA_LAUNCHER USE_TORCH_PROFILER_BENCHMARKER VEC_ISA_OK WARN_MIX_LAYOUT
    WRITE_ARE_DETERMINISTIC_ALGORITHMS_ENABLED
"""  # torch 2.13, _inductor/config.py: all of it is hashed into the FX graph key, but for what only logs or waits
_TORCH_VARIABLES = """
    ATEN_CPU_CAPABILITY AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL AOT_INDUCTOR_DEBUG_COMPILE AOT_INDUCTOR_DEBUG_SYMBOLS
    AOT_INDUCTOR_ENABLE_FRAME_POINTER AOT_INDUCTOR_ENABLE_LINE_TABLES AOT_INDUCTOR_ENABLE_LTO CC CUDA_HOME CUDA_PATH
    CUTEDSL_ENABLE_AUTOTUNING CUTLASS_EPILOGUE_FUSION CXX ENABLE_PERSISTENT_TMA_MATMUL ENABLE_TEMPLATE_TMA_STORE
    ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE INDUCTOR_PROVENANCE MKL_NUM_THREADS OMP_NUM_THREADS OMP_PREFIX
    PYTORCH_ROCM_ARCH ROCM_HOME ROCM_PATH TORCHDYNAMO_AUTO_FUNCTIONALIZED_V2 TORCHDYNAMO_PREPARE_FREEZING
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CACHING_PRECOMPILE TORCH_COMPILE_CACHE_KEY_TAG TORCH_COMPILE_DEBUG
    TORCH_COMPILE_DYNAMIC_SOURCES TORCH_COMPILE_FORCE_DISABLE_CACHES TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS
    TORCH_COMPILE_UNBACKED_SOURCES TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES
    TORCH_STRICT_PRECOMPILE
"""  # the thread counts are in C++ kernels, and so in their keys
_TRITON_VARIABLES = """
    ALLOW_LHS_TMEM_LAYOUT_CONVERSION AMDGCN_ANALYZE_SMALL_TENSOR_RANGE AMDGCN_ENABLE_DUMP AMDGCN_SCALARIZE_PACKED_FOPS
    AMDGCN_USE_BUFFER_ATOMICS AMDGCN_USE_BUFFER_OPS DISABLE_LLVM_OPT DISABLE_MMA_V3 DISABLE_MMA_V5 DISABLE_PTXAS_OPT
    LLVM_ENABLE_TIMING LLVM_EXTRACT_DI_LOCAL_VARIABLES LLVM_IR_ENABLE_DUMP LLVM_PASS_PLUGIN_PATH
    MLIR_DISABLE_MULTITHREADING MLIR_DUMP_PATH MLIR_ENABLE_DIAGNOSTICS MLIR_ENABLE_DUMP MLIR_ENABLE_TIMING
    NVPTX_ENABLE_DUMP PTXAS_OPTIONS TRITON_ALWAYS_COMPILE TRITON_CACHE_AUTOTUNING TRITON_CACHE_DIR TRITON_CACHE_MANAGER
    TRITON_CONSAN_INIT_ALLOCATIONS TRITON_DEBUG TRITON_DEFAULT_FP_FUSION TRITON_DISABLE_LINE_INFO TRITON_DUMP_MIR
    TRITON_ENABLE_ASAN TRITON_ENABLE_EXPERIMENTAL_CONSAN TRITON_ENABLE_LLVM_DEBUG TRITON_F32_DEFAULT
    TRITON_FORCE_DISABLE_FP_FUSION TRITON_FPSAN_HOMOMORPHIC_CASTS TRITON_HIP_USE_ASYNC_COPY
    TRITON_HIP_USE_BLOCK_PINGPONG TRITON_HIP_USE_COEXEC_SCHEDULER TRITON_HIP_USE_EXPERT_SCHEDULING
    TRITON_HIP_USE_IN_THREAD_TRANSPOSE TRITON_HOME TRITON_INSTRUMENTATION_MODE TRITON_INTERPRET TRITON_KERNEL_OVERRIDE
    TRITON_LIBDEVICE_PATH TRITON_LLVM_DEBUG_ONLY TRITON_MOCK_PTX_VERSION TRITON_OVERRIDE_ARCH TRITON_OVERRIDE_DIR
    TRITON_PARTITION_SCHEDULING_DUMP_DATA_ONLY TRITON_PARTITION_SCHEDULING_DUMP_LOOP_ONLY
    TRITON_PARTITION_SCHEDULING_ENABLE_DUMP_DOT TRITON_PLUGIN_PATHS TRITON_PLUGIN_VERSION_CHECK
    TRITON_PTXAS_BLACKWELL_PATH TRITON_PTXAS_PATH TRITON_REMOTE_CACHE_BACKEND TRITON_STORE_BINARY_ONLY TRITON_SWAP_MIR
    USE_IR_LOC
"""  # Triton 3.9: get_cache_invalidating_env_vars() with every name of the library set, and knobs.py
_VLLM_VARIABLES = """
    VLLM_CACHE_ROOT VLLM_COMPILE_CACHE_SAVE_FORMAT VLLM_DISABLE_COMPILE_CACHE VLLM_USE_AOT_COMPILE
    VLLM_USE_STANDALONE_COMPILE
"""  # vLLM hashes nearly all of its own variables; these move or switch the cache
ENVIRONMENT = frozenset(
    ["TORCHINDUCTOR_" + name for name in _INDUCTOR_VARIABLES.split()]
    + (_TORCH_VARIABLES + _TRITON_VARIABLES + _VLLM_VARIABLES).split()
)

_HIDING_VARIABLES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
}

_MACHINE_NAMES = {
    "amd64": "x86_64",
    "x64": "x86_64",
    "arm64": "aarch64",
    "i486": "i386",
    "i586": "i386",
    "i686": "i386",
    "armv6l": "arm",
    "armv7l": "arm",
    "armv8l": "arm",
}

_T = TypeVar("_T")
_Gpu = tuple[str, Target]  # name as the driver gives it, and what binaries it runs


def facts() -> dict[str, Any]:
    """Return what is known of this host, as JSON values without floats. Keys whose fact cannot be had are absent.

    ``os`` (``linux``), ``machine`` (``x86_64``), ``python`` (``3.12.1``), ``libc`` (``glibc 2.36``, ``musl``),
    ``packages`` (distribution: version), ``gpus`` (list of ``{"name", "target"}``, one for each GPU), ``device_count``,
    ``driver`` (version of the GPU driver), ``cpu_count``, ``cpu_isa`` (sorted, see ``INSTRUCTION_SETS``),
    ``environment`` (name: value, of the names in ``ENVIRONMENT`` that are set, to at most 4096 characters of UTF-8).

    GPUs: as :func:`gpu_targets`.
    """
    driver, gpus = _gpus()
    found = {
        "os": sys.platform,
        "machine": _machine(),
        "python": _attempt(platform.python_version, ""),
        "libc": _libc(),
        "packages": _packages(),
        "gpus": [{"name": name, "target": str(target)} for name, target in gpus],
        "device_count": len(gpus),
        "driver": driver,
        "cpu_count": os.cpu_count(),
        "cpu_isa": list(_cpu_isa()),
        "environment": _environment(),
    }
    # No GPU found is not "no GPU": the driver may be out of reach. So zero is left out like any other missing fact.
    return {name: value for name, value in found.items() if value}


def gpu_targets() -> tuple[Target, ...]:
    """Return the target of every GPU of this host, each once, sorted; empty when there is none that can be asked.

    NVIDIA through NVML (``libnvidia-ml.so.1``, part of the driver), AMD through the topology that the kernel shows in
    sysfs. ``CUDA_VISIBLE_DEVICES`` (for AMD also ``HIP_`` and ``ROCR_VISIBLE_DEVICES``) counts when it hides all GPUs
    (empty, or -1); a selection of some is not followed. The warp size is 0: neither source is needed for it.
    """
    return tuple(sorted({target for _, target in _gpus()[1]}))


def runs_here(
    needs: tuple[str, ...],
    bundle_isa: Sequence[str] = (),
    *,
    machine: str | None = None,
    libc: str | None = None,
    host_isa: Sequence[str] | None = None,
) -> str | None:
    """Say whether a host binary runs on this host.

    Args:
        needs: What the binary asks for, as ``formats.elf.host_needs`` returns it. A kind of need that is not known here
            is a reason too: a later version wrote it because it matters.
        bundle_isa: ``cpu_isa`` of the host that it was compiled on, since a binary does not tell. One way only: what
            was compiled where there is AVX2 runs where there is AVX-512, and not the other way round. Names outside
            ``INSTRUCTION_SETS`` are not looked at.
        machine: This host's, as ``uname -m`` has it; None asks the host, "" stands for unknown.
        libc: This host's, such as ``glibc 2.36`` or ``musl``; None and "" as above.
        host_isa: This host's instruction sets; None asks the host, empty stands for unknown.

    Returns:
        None when it runs; else the first reason, such as ``needs glibc 2.38, this host has 2.36``. An unknown fact of
        the host is a reason: to compile once more costs seconds, an illegal instruction costs the process.
    """
    machine = _MACHINE_NAMES.get((machine or "").lower(), machine) if machine is not None else _machine()
    libc = _libc() if libc is None else libc
    for need in needs:
        reason = _unmet(need, machine or "", libc)
        if reason:
            return reason
    wanted = INSTRUCTION_SETS.intersection(bundle_isa)
    if not wanted:
        return None
    have = _cpu_isa() if host_isa is None else host_isa
    missing = sorted(wanted.difference(have))
    if not missing:
        return None
    lack = "this CPU does not have" if have else "the instruction sets of this host are not known"
    return f"needs {', '.join(missing)}, {'which ' if have else 'but '}{lack}"


def recorded_isa(recorded: Mapping[str, Any]) -> list[str]:
    """Return the instruction sets of the host that a bundle was made on, from its facts; none where it says none."""
    isa = recorded.get("cpu_isa")
    return [str(flag) for flag in isa] if isinstance(isa, list) else []


def imported_by(needs: tuple[str, ...], python: str) -> str | None:
    """Say why byte code is of no use to a Python, ``cpython-311`` by its tag; None when it is, or may be.

    Python looks for files with its own tag only, so that what was restored in vain costs room, and nothing else.
    """
    wanted = [need.partition(":")[2] for need in needs if need.startswith("python:")]
    if not python or not wanted or python in wanted:
        return None
    return f"it is byte code of {wanted[0]}, and the command runs {python}"


def _unmet(need: str, machine: str, libc: str) -> str:
    """Return why ``need`` is not met, or ""."""
    kind, _, value = need.partition(":")
    family, _, version = libc.partition(" ")
    if kind == "machine":
        return "" if value == machine else f"needs machine {value}, this host is {machine or 'unknown'}"
    if kind == "glibc" and family == "glibc":
        wanted, have = _version(value), _version(version)
        return "" if wanted and wanted <= have else f"needs glibc {value}, this host has {version or 'another'}"
    if kind == "glibc":
        return f"needs glibc {value}, this host has {libc or 'an unknown libc'}"
    if kind == "musl":
        return "" if family == "musl" else f"needs musl, this host has {libc or 'an unknown libc'}"
    return f"needs {need}, which this version does not know"


def _version(text: str) -> tuple[int, ...]:
    """Read ``2.36``; () for what is no version."""
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        return ()


def _attempt(read: Callable[[], _T], default: _T) -> _T:
    """Return what ``read`` returns, or ``default`` when it raises, whatever it raises.

    The one place that catches everything: the answers come through C libraries, kernel files and other packages'
    metadata, each with failures of its own (a symbol or a file is missing, a number is no number, bytes are not UTF-8),
    and none of them is worth more than the fact.
    """
    try:
        return read()
    except Exception:  # noqa: BLE001 (see above)
        return default


def _machine() -> str:
    name = _attempt(platform.machine, "")
    return _MACHINE_NAMES.get(name.lower(), name)


def _libc() -> str:
    # On glibc this is confstr(3), the libc of this process, not the one that Python was built against.
    name, version = _attempt(platform.libc_ver, ("", ""))
    if not name and "musl" in str(_attempt(lambda: sysconfig.get_config_var("HOST_GNU_TYPE"), "")):
        return "musl"  # older Pythons do not know musl at all; it has one ABI, so no version is needed
    return f"{name} {version}".strip()


def _packages() -> dict[str, str]:
    from importlib import metadata  # some 10 ms, and only packing needs it

    found = {name: _attempt(partial(metadata.version, name), "") for name in PACKAGES}
    return {name: version for name, version in found.items() if version}


def _environment() -> dict[str, str]:
    values = {name: os.environ[name] for name in sorted(ENVIRONMENT) if name in os.environ}
    return {name: value for name, value in values.items() if len(value) <= MAX_VALUE and _is_text(value)}


def _is_text(value: str) -> bool:
    """Whether the bytes behind ``value`` were UTF-8: others come in as lone surrogates, which JSON cannot hold."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _cpu_isa() -> tuple[str, ...]:
    """Return the known instruction sets of this CPU, sorted; empty where there is no /proc/cpuinfo."""
    for line in _attempt(partial(_read, CPU_INFO), "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86; Arm. The kernel lists what all cores of a mixed CPU have
            names = set(value.split())
            if "sve" in names:
                names.add(f"sve{8 * _attempt(lambda: int(_read(SVE_LENGTH)), 0)}")
            return tuple(sorted(INSTRUCTION_SETS & names))
    return ()


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MAX_READ).decode("utf-8", "replace")


def _gpus() -> tuple[str, list[_Gpu]]:
    """Return the driver version ("" when unknown) and the GPUs; NVIDIA's first, in the order of their drivers."""
    nvidia: tuple[str, list[_Gpu]] = ("", [])
    amd: tuple[str, list[_Gpu]] = ("", [])
    if not _hidden("cuda"):
        nvidia = _attempt(_nvidia, nvidia)
    if not _hidden("hip"):
        amd = _attempt(_amd, amd)
    return nvidia[0] or amd[0], nvidia[1] + amd[1]


def _hidden(backend: str) -> bool:
    return any(os.environ.get(name, "0").strip() in ("", "-1") for name in _HIDING_VARIABLES[backend])


def _nvidia() -> tuple[str, list[_Gpu]]:
    """Ask NVML. Raises what ctypes raises without the library or one of its functions."""
    import ctypes  # some 5 ms, and missing from some builds of Python

    nvml = ctypes.CDLL(NVML_LIBRARY)
    if nvml.nvmlInit_v2():
        return "", []  # a library without a driver behind it, as in an image built for GPUs on a host without
    try:
        driver = ctypes.create_string_buffer(80)  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
        failed = nvml.nvmlSystemGetDriverVersion(driver, 80)
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            count.value = 0
        gpus = [_nvidia_gpu(nvml, index) for index in range(count.value)]
        return "" if failed else driver.value.decode("utf-8", "replace"), [gpu for gpu in gpus if gpu]
    finally:
        nvml.nvmlShutdown()


def _nvidia_gpu(nvml: ctypes.CDLL, index: int) -> _Gpu | None:
    import ctypes

    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(96)  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
        return None  # one that has fallen off the bus; the others still count
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)):
        return None
    nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(96))  # on failure the name stays empty
    return name.value.decode("utf-8", "replace"), Target("cuda", f"{major.value}{minor.value}")


def _amd() -> tuple[str, list[_Gpu]]:
    """Read the topology of the kernel's compute driver. Raises OSError where there is none."""
    nodes = sorted((name for name in os.listdir(KFD_NODES) if name.isdigit()), key=int)
    gpus = [_attempt(partial(_amd_gpu, os.path.join(KFD_NODES, node)), None) for node in nodes]
    return _attempt(lambda: _read(AMD_DRIVER).strip(), ""), [gpu for gpu in gpus if gpu]


def _amd_gpu(node: str) -> _Gpu | None:
    for line in _read(os.path.join(node, "properties")).splitlines():
        name, _, value = line.partition(" ")
        if name == "gfx_target_version" and int(value):  # 0: a node of CPUs
            # 90402 is gfx942 and 90010 is gfx90a: decimal pairs, written as one hex digit each.
            version, stepping = divmod(int(value), 100)
            major, minor = divmod(version, 100)
            asic = _attempt(lambda: _read(os.path.join(node, "name")).strip(), "")
            return asic, Target("hip", f"gfx{major}{minor:x}{stepping:x}")
    return None
