"""`jaxcc.tune_malloc`: large results keep their memory, counted in page faults."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcc
from jaxcc.codegen import find_compiler

PAGES = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
CALLS = f"""
import resource
import jax, jax.numpy as jnp

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def main():
    mesh = jax.make_mesh((2,), ("r",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.arange({64 << 18}, dtype=jnp.float32)
    all_reduce = lambda x: jax.lax.psum(jax.lax.pcast(x, "r", to="varying"), "r")
    total = jax.jit(jax.shard_map(all_reduce, mesh=mesh, in_specs=jax.P(), out_specs=jax.P()))
    for call in range(20):
        before = faults()
        y = jax.block_until_ready(total(x))
        print(faults() - before)
    assert y[-1] == 2 * x[-1]

main()
"""


def run(code: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def faults_of_a_call(code: str, **variables: str) -> float:
    """Page faults of one call with two results of 64 MiB, once it has been made often."""
    return statistics.median(map(int, run(code, **variables).split()[10:]))


def test_large_results_keep_their_memory() -> None:
    assert faults_of_a_call(CALLS) > PAGES
    assert faults_of_a_call("import jaxcc; jaxcc.tune_malloc()" + CALLS) < PAGES / 16
    assert faults_of_a_call(CALLS, **jaxcc.malloc_environment({})) < PAGES / 16


def test_a_call_needs_no_jax() -> None:
    run("import sys, jaxcc; jaxcc.tune_malloc(); assert not {'jax', 'numpy'} & set(sys.modules)")


def test_a_call_that_is_too_late_is_an_error_and_a_second_one_is_not() -> None:
    late = """
import jax, jaxcc
if EARLY: jaxcc.tune_malloc()
jax.devices()
try:
    jaxcc.tune_malloc()
except jaxcc.BackendError as error:
    print(error)
"""
    told = run(late.replace("EARLY", "False"))
    assert "[BACKEND_MALLOC]" in told and "before the first line that asks for devices" in told
    assert "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=" in told
    assert run(late.replace("EARLY", "True")) == ""
    assert run(late.replace("EARLY", "False"), **jaxcc.malloc_environment({})) == ""


def test_another_allocator_is_told(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    source = """
extern "C" void* __libc_malloc(decltype(sizeof 0));
extern "C" void* malloc(decltype(sizeof 0) size) { return __libc_malloc(size); }
"""
    command = [*find_compiler(), "-x", "c++", "-shared", "-fPIC", "-o", str(other), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    told = run(
        "import jaxcc\ntry: jaxcc.tune_malloc()\nexcept jaxcc.BackendError as e: print(e)",
        LD_PRELOAD=str(other),
    )
    assert "[BACKEND_MALLOC]" in told and "libother.so" in told


@pytest.mark.parametrize(
    "given", ["", "glibc.malloc.arena_max=2", "glibc.cpu.hwcaps=-AVX512F:glibc.malloc.hugetlb=2"]
)
def test_the_environment_keeps_what_the_user_has_set(given: str) -> None:
    tuned = jaxcc.malloc_environment({"GLIBC_TUNABLES": given})["GLIBC_TUNABLES"]
    assert tuned.startswith(given)
    names = [setting.partition("=")[0] for setting in tuned.split(":")]
    assert len(set(names)) == len(names)
    assert {"glibc.malloc.mmap_threshold", "glibc.malloc.hugetlb"} <= set(names)
    assert jaxcc.malloc_environment({"GLIBC_TUNABLES": tuned}) == {}
