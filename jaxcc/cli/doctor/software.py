"""Which software is installed, and whether jaxcc can use it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import warnings
from ctypes.util import find_library
from itertools import takewhile
from pathlib import Path

import jaxcc
from jaxcc._version import SUPPORTED_JAX, __version__
from jaxcc.cli.doctor._probe import FAILS, OFF, OK, Answer, probe

ROOM = "software"
_MIB = 1 << 20


@probe(ROOM, "jaxcc")
def package() -> Answer:
    version = sys.version.split()[0]
    folder = str(Path(jaxcc.__file__).parent)
    what = f"{__version__} from {folder}, Python {version} at {sys.executable}"
    return Answer(OK, what, facts={"version": __version__, "python": version, "folder": folder})


@probe(ROOM, "JAX")
def jax_version() -> Answer:
    """Which version is installed, and whether jaxcc was made for it."""
    found = {name: _version(name) for name in ("jax", "jaxlib")}
    low, high = SUPPORTED_JAX
    fix = f"pip install 'jax>={low},<{high}'"
    missing = [name for name, version in found.items() if not version]
    if missing:
        return Answer(FAILS, f"{' and '.join(missing)} not installed", fixes=(fix,), facts=found)
    what = f"jax {found['jax']}, jaxlib {found['jaxlib']}"
    if _numbers(low) <= _numbers(found["jax"]) < _numbers(high):
        return Answer(OK, what, facts=found)
    why = f"jaxcc is made for and tested with {low} up to, without it, {high}"
    return Answer(FAILS, f"{what}: not supported", why, (fix,), facts=found)


@probe(ROOM, "devices", limit_s=90)
def devices() -> Answer:
    """What JAX finds here by itself."""
    import jax

    counts: dict[str, int] = {}
    for device in jax.devices():
        kind = device.platform
        if device.device_kind != kind:
            kind += f" ({device.device_kind})"
        counts[kind] = counts.get(kind, 0) + 1
    what = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return Answer(OK, what, facts={"devices": counts, "default": jax.default_backend()})


@probe(ROOM, "C++ compiler", limit_s=60, optional=("CODEGEN_NO_COMPILER",))
def compiler() -> Answer:
    from jaxcc.codegen import find_compiler

    command = find_compiler()
    version = _first_line(*command, "--version")
    return Answer(OK, f"{version} ({' '.join(command)})", facts={"command": command})


@probe(ROOM, "kernel cache", limit_s=60)
def cache() -> Answer:
    """Where kernels are kept, and whether jaxcc loads code from there."""
    from jaxcc.codegen import cache_folder

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        folder = cache_folder()
    kernels = [path.stat().st_size for path in folder.glob("*.so")]
    facts = {"folder": str(folder), "kernels": len(kernels), "bytes": sum(kernels)}
    if said:
        return Answer(OFF, str(said[0].message), facts=facts)
    what = f"{folder}: {len(kernels)} kernels, {sum(kernels) / _MIB:.1f} MiB, yours alone"
    return Answer(OK, what, facts=facts)


@probe(ROOM, "MPI")
def mpi() -> Answer:
    """The launcher, and the two packages that the mpi backend needs."""
    launcher = mpirun()
    found = {name: _version(name) for name in ("mpi4py", "mpi4jax")}
    told = [f"{name} {version or 'not installed'}" for name, version in found.items()]
    facts = {"mpirun": launcher, **found}
    told.insert(
        0, f"{_first_line(launcher, '--version')} ({launcher})" if launcher else "no mpirun"
    )
    if launcher and all(found.values()):
        return Answer(OK, ", ".join(told), facts=facts)
    why = "jaxcc.comm's backend 'mpi' needs all three; the others do not"
    fix = "pip install 'jaxcc[mpi]' && pip install --no-build-isolation mpi4jax"
    return Answer(OFF, ", ".join(told), why, (fix,), facts=facts)


@probe(ROOM, "CUDA", limit_s=30)
def cuda() -> Answer:
    """The driver, and the GPUs that it shows."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Answer(OFF, "no NVIDIA driver")
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    result = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    what = f"driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    if result:
        return Answer(OFF, f"{what}, without a GPU", f"the driver says error {result}")
    facts = {"version": version.value, "gpus": count.value}
    return Answer(OK, f"{what}, {count.value} GPUs", facts=facts)


@probe(ROOM, "NCCL", limit_s=30)
def nccl() -> Answer:
    spec = importlib.util.find_spec("nvidia")
    roots = (spec.submodule_search_locations or []) if spec else []
    wheels = [str(path) for root in roots for path in Path(root).glob("*/lib/libnccl.so.*")]
    path = next(iter(wheels), None) or find_library("nccl")
    if path is None:
        return Answer(OFF, "not installed", "only GPUs use it", ("pip install 'jax[cuda13]'",))
    version = ctypes.c_int()
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    major, rest = divmod(version.value, 10_000)
    return Answer(OK, f"{major}.{rest // 100}.{rest % 100} ({path})", facts={"path": path})


def mpirun() -> str | None:
    """MPI's launcher: that of this environment, else that on PATH."""
    return shutil.which("mpirun", path=sysconfig.get_path("scripts")) or shutil.which("mpirun")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version starts with."""
    parts = version.split(".")[:3]
    return tuple(int("".join(takewhile(str.isdecimal, part)) or 0) for part in parts)


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return (done.stdout or done.stderr).partition("\n")[0].strip()
