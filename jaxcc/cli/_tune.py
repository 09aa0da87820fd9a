"""`jaxcc tune`: finds the fastest schedule of a function on this machine."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

import jaxcc
from jaxcc.cli._check import bound_arrays, find_target, typed_target
from jaxcc.cli._output import Output
from jaxcc.cli._usage import CLEAN, UsageError
from jaxcc.schedule.tuner import profile_this_machine, save_profile


@dataclass(frozen=True)
class Options:
    """How to tune; see `TypedFunction.autotune`."""

    budget_s: float
    slice: Sequence[str]
    dead: Sequence[str]
    donate: Sequence[str]
    cache: bool
    profile: bool
    machine: str | None
    plot: str | None


def tune(
    target: str | None,
    arrays: Sequence[str],
    sizes: Mapping[str, int] | None,
    options: Options,
    *,
    as_json: bool,
) -> int:
    """Tunes `module:function` for arguments such as `f32[8,1024]`, whole shapes, in order."""
    if target is None and not options.profile:
        raise UsageError("name a MODULE:FUNCTION to tune, or give --profile")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'jaxcc[plot]'")
    output = Output(as_json)
    document: dict[str, Any] = {}
    with output.warnings_as_lines():
        if options.profile:
            document["profile"] = _profile(output)
        if target is not None:
            document |= _tuned(target, arrays, sizes, options, output)
    output.document(document)
    return CLEAN


def _profile(output: Output) -> Any:
    with output.working("measuring this machine") as tell:
        profile = profile_this_machine(progress=tell)
    path = save_profile(profile)
    output.show(profile.source)
    kernel, xla = profile.fused[0], profile.protocols[0]
    link = profile.intra_gbps
    output.show(f"memory of a rank  {profile.memory_gbps:.3g} GB/s")
    output.show(f"a step            {profile.launch_us:.3g} us")
    output.show(f"products          {1e3 * profile.tflops[0]:.3g} Gflop/s")
    for name, one in (("all-reduce, XLA", xla), ("all-reduce, fused", kernel)):
        output.show(f"{name:17} {one.base_us:.3g} us + {link * one.efficiency:.3g} GB/s")
    output.note(f"kept in {path}" if path else "not kept")
    return profile.to_json()


def _tuned(
    target: str,
    arrays: Sequence[str],
    sizes: Mapping[str, int] | None,
    options: Options,
    output: Output,
) -> dict[str, Any]:
    function = typed_target(target, find_target(target), sizes)
    function = function.over(_devices(target, dict(function.mesh.shape)))
    bound = bound_arrays(target, function, arrays)
    layouts = iter(function.check(*bound.args, **bound.kwargs).in_layouts)
    random = np.random.default_rng(0)
    group = dict(function.mesh.shape)

    def drawn(x: jax.ShapeDtypeStruct) -> Any:
        stacked = [group[axis] for axis in next(layouts).stacked_axes()]
        return _random(random, (*stacked, *x.shape), x.dtype)

    given = [drawn(x) for x in bound.args]
    named = {name: drawn(x) for name, x in bound.kwargs.items()}
    with output.working(f"tuning {target} for {options.budget_s:g} s") as tell:
        tuned = function.autotune(
            *given,
            budget_s=options.budget_s,
            slice=options.slice,
            dead=options.dead,
            donate=options.donate,
            profile=options.machine,
            cache=options.cache,
            progress=tell,
            **named,
        )
    output.show(tuned.table)
    if tuned.cached:
        output.note("from an earlier run on this machine; --no-cache tunes anew")
    if options.plot:
        try:
            tuned.plot(options.plot)
        except (OSError, ValueError) as error:
            if isinstance(error, jaxcc.JaxccError):
                raise
            raise UsageError(f"cannot draw {options.plot}: {error}") from None
        output.note(f"drawn to {options.plot}")
    return tuned.to_json()


def _devices(target: str, sizes: Mapping[str, int]) -> Any:
    """A mesh of these sizes over this machine's devices."""
    wanted, there = math.prod(sizes.values()), jax.devices()
    if wanted > len(there):
        raise UsageError(
            f"{target} wants {wanted} devices, and there are {len(there)}; --ranks {wanted} makes "
            "CPU devices"
        )
    types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=types, devices=there[:wanted]
    )


def _random(random: np.random.Generator, shape: Sequence[int], dtype: Any) -> Any:
    """Numbers from 0 to 1, of which roots and logarithms exist, too; or random keys."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        key = jax.random.key(0, impl=jax.random.key_impl(jax.numpy.empty((), dtype)))
        return jax.random.split(key, tuple(shape)) if shape else key
    if jax.numpy.issubdtype(dtype, jax.numpy.inexact):
        return random.random(shape, np.float32).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)
