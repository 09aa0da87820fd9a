"""Tables of per-rank programs, right and wrong: what running them shows, and what the checker has
to say of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import quick
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from jaxcc import _compat
from jaxcc.layout import Partial, Replicated, Sliced, check, flatten_layouts, to_spec
from jaxcc.testing import raises_layout

R, S0, S1, S2, P = Replicated, Sliced(0), Sliced(1), Sliced(2), Partial()
SEEDS = (0, 1)


@dataclass(frozen=True)
class Whole:
    """The whole shape and dtype of an argument; its integers are below `below`."""

    shape: tuple[int, ...]
    dtype: Any = jnp.float32
    below: int = 1

    def random(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Fresh random values."""
        kind = np.dtype(self.dtype).kind
        if kind == "f":
            return rng.standard_normal(self.shape).astype(self.dtype)
        if kind == "b":
            # Ranks' blocks hold other numbers of True, and each holds one.
            density = rng.uniform(0.2, 0.9, (*self.shape[:-1], 1))
            return (rng.random(self.shape) < density) | (np.arange(self.shape[-1]) == 0)
        return rng.integers(0, self.below, self.shape).astype(self.dtype)


def f32(*shape: int) -> Whole:
    """An argument of random normal numbers."""
    return Whole(shape)


def i32(*shape: int, below: int) -> Whole:
    """An argument of random integers from 0 to `below` - 1."""
    return Whole(shape, jnp.int32, below)


def mask(*shape: int) -> Whole:
    """An argument of random booleans, unevenly many along the first dimensions."""
    return Whole(shape, jnp.bool_)


@dataclass(frozen=True)
class Case:
    """A program, its arguments and layouts, and the verdict that is right of it.

    Attributes:
      f: the per-rank function.
      args: pytrees of `Whole`.
      ins: the layout of each argument.
      outs: the layouts of the result.
      check_vma: the mode of shard_map that it is run and checked with.
      code: of the finding that the checker has to make; empty for a program that is right.
      line: a part of the source line that the finding has to point at.
      cure: a part of a fix that the finding has to name.
      sizes: the mesh.
      truth: whether it computes the same on one rank and on n; None where running cannot show it.
      grad: the arguments whose gradient `check` is asked to cover; the program is then the loss.
      grads: the promise about the gradients of Replicated arguments.
      structure: `"rank-dependent"` for what is tested and not proved.
    """

    f: Callable[..., Any]
    args: tuple[Any, ...]
    ins: tuple[Any, ...]
    outs: Any
    check_vma: bool = True
    code: str = ""
    line: str = ""
    cure: str = ""
    sizes: tuple[tuple[str, int], ...] = (("tp", 4),)
    truth: bool | None = True
    grad: tuple[int, ...] | None = None
    grads: Any = "summed"
    structure: Any = "rank-invariant"

    def __str__(self) -> str:
        asked = "" if self.grad is None else f"-{self.grads}"
        asked += "" if self.structure == "rank-invariant" else "-tested"
        return f"{self.f.__name__}{asked}-vma{'' if self.check_vma else '-off'}"

    def verify(self) -> None:
        """Asserts that the checker accepts or refuses it as it should."""
        asked: Any = {} if self.grad is None else {"grad": self.grad, "grads": self.grads}

        def checked() -> Any:
            return check(
                self.f,
                *self.args,
                mesh=AbstractMesh(*zip(*((n, axis) for axis, n in self.sizes), strict=True)),
                in_layouts=self.ins,
                out_layouts=self.outs,
                check_vma=self.check_vma,
                structure=self.structure,
                **asked,
            )

        if not self.code:
            report = checked()
            assert report.sizes[0] == dict(self.sizes)
            assert report.proved == (self.structure == "rank-invariant")
            return
        with raises_layout(self.code, line=self.line or None) as findings:
            checked()
        fixes = [fix for finding in findings for fix in finding.fixes]
        assert not self.cure or any(self.cure in fix for fix in fixes), fixes

    def run(self) -> None:
        """Asserts that it computes the same on four ranks as on one, or really something else on
        four or on two."""
        apart = self.deviation(4)
        if self.truth:
            assert apart < 2e-3, f"it differs, by {apart}"
        else:
            apart = apart if apart > 2e-2 else self.deviation(2)
            assert apart > 2e-2, f"it computes the same, up to {apart}"

    def deviation(self, ranks: int) -> float:
        """How far the result on a number of ranks is from that of one rank, for several seeds, in
        units of its largest value; infinite if not even the shapes agree."""
        f, outs = self._with_gradients()
        several = len(self.sizes) > 1
        sizes = {axis: n if several else ranks for axis, n in self.sizes}
        one = _compiled(f, self.ins, self.args, dict.fromkeys(sizes, 1), self.check_vma)
        given = [self._arrays(seed) for seed in SEEDS]
        expected = [one(*arrays) for arrays in given]
        return self._deviation(f, outs, sizes, given, expected)

    def _arrays(self, seed: int) -> Any:
        rng = np.random.default_rng([seed, *self.f.__name__.encode()])
        return jax.tree.map(lambda whole: whole.random(rng), self.args)

    def _deviation(self, f: Any, outs: Any, sizes: Any, given: Any, expected: Any) -> float:
        try:
            ranks = _compiled(f, self.ins, self.args, sizes, self.check_vma)
            worst = 0.0
            for arrays, wants in zip(given, expected, strict=True):
                layouts = _flat(outs, wants, sizes)
                leaves = jax.tree.leaves(ranks(*arrays)), jax.tree.leaves(wants), layouts
                for got, want, layout in zip(*leaves, strict=True):
                    worst = max(worst, _apart(np.asarray(got), np.asarray(want), layout, sizes))
            return worst
        except (TypeError, ValueError):
            if self.truth:
                raise
            return math.inf

    def _with_gradients(self) -> tuple[Callable[..., Any], Any]:
        """The loss with the gradients that are asked for, and the layouts of both."""
        if self.grad is None:
            return self.f, self.outs
        summed = self.grads == "summed"
        layouts = [
            jax.tree.map(lambda one: P if one == R and not summed else one, self.ins[i])
            for i in self.grad
        ]
        return jax.value_and_grad(self.f, self.grad), (self.outs, tuple(layouts))


class Programs:
    """A table of programs, filled by decorators.

    One function may stand in it several times, for the modes of check_vma in which the verdicts
    differ.
    """

    def __init__(self, **common: Any) -> None:
        self.cases: list[Case] = []
        self._common = common

    def right(self, args: Any, ins: Any, outs: Any, **more: Any) -> Callable[[Any], Any]:
        """Computes the same on every group, and is accepted."""
        return self._add(args, ins, outs, more)

    def wrong(
        self, args: Any, ins: Any, outs: Any, code: str, line: str, **more: Any
    ) -> Callable[[Any], Any]:
        """Computes something else on n ranks, and is refused with `code` at `line`."""
        return self._add(args, ins, outs, {"truth": False, "code": code, "line": line, **more})

    def unproved(
        self, args: Any, ins: Any, outs: Any, code: str, line: str, cure: str, **more: Any
    ) -> Callable[[Any], Any]:
        """Computes the same, but by a path that is not followed; the refusal names the cure."""
        return self._add(args, ins, outs, {"code": code, "line": line, "cure": cure, **more})

    def _add(self, args: Any, ins: Any, outs: Any, more: Mapping[str, Any]) -> Callable[[Any], Any]:
        given = {**self._common, **more}
        modes = given.pop("modes", (True, False))

        def add(f: Any) -> Any:
            one = Case(f, tuple(args), tuple(ins), outs, **given)
            self.cases += [replace(one, check_vma=check_vma) for check_vma in modes]
            return f

        return add

    def runs(self) -> list[Case]:
        """The cases to run: one for each program, and one for each mode if what it computes
        depends on the mode."""
        chosen: dict[Any, Case] = {}
        for case in self.cases:
            if case.truth is None:
                continue
            truths = {c.truth for c in self.cases if c.f is case.f}
            both = len(truths) > 1 or case.grad is not None
            chosen.setdefault((case.f, case.grads, both and case.check_vma), case)
        return list(chosen.values())


def _flat(layouts: Any, tree: Any, sizes: Mapping[str, int]) -> Sequence[Any]:
    return flatten_layouts(layouts, tree, tuple(sizes), "layouts")


def _compiled(
    f: Callable[..., Any], ins: Any, args: Any, sizes: Mapping[str, int], check_vma: bool
) -> Callable[..., Any]:
    """`f` on the ranks of real devices: the arguments are whole, and every rank's result is stacked
    along leading dimensions, one for each axis."""
    axes = tuple(sizes)
    devices = np.asarray(jax.devices()[: math.prod(sizes.values())])
    mesh = Mesh(
        devices.reshape(tuple(sizes.values())), axes, axis_types=(AxisType.Auto,) * len(axes)
    )
    leaves, tree = jax.tree.flatten(args)
    layouts = _flat(ins, args, sizes)
    specs = [to_spec(layout, len(x.shape)) for x, layout in zip(leaves, layouts, strict=True)]

    def per_rank(*given: Any) -> Any:
        own = [
            x.reshape(x.shape[len(layout.stacked_axes()) :])
            for x, layout in zip(given, layouts, strict=True)
        ]
        return jax.tree.map(
            lambda y: _varying(y, axes, check_vma)[(None,) * len(axes)],
            f(*jax.tree.unflatten(tree, own)),
        )

    mapped = jax.shard_map(
        per_rank,
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs=PartitionSpec(*axes),
        check_vma=check_vma,
    )

    def global_call(*whole: Any) -> Any:
        flat = zip(jax.tree.leaves(whole), layouts, strict=True)
        return mapped(*(_terms(x, layout, sizes) for x, layout in flat))

    return quick.jit(global_call)


def _terms(x: Any, layout: Any, sizes: Mapping[str, int]) -> Any:
    """An argument as it enters shard_map: of a pending sum over one axis, terms of other sizes."""
    stacked = layout.stacked_axes()
    if not stacked:
        return x
    (axis,) = stacked
    weights = jnp.arange(1.0, sizes[axis] + 1) ** 2
    return jnp.stack([x * weight for weight in weights / weights.sum()])


def _varying(y: Any, axes: Sequence[str], check_vma: bool) -> Any:
    y = jnp.asarray(y)
    missing = tuple(axis for axis in axes if axis not in _compat.varying_axes(y))
    return jax.lax.pcast(y, missing, to="varying") if check_vma and missing else y


def _apart(got: Any, want: Any, layout: Any, sizes: Mapping[str, int]) -> float:
    """How far the stacked results of all ranks are from the one rank's `want`."""
    want = np.asarray(want, np.float64).reshape(want.shape[len(sizes) :])
    scale = max(1e-2, float(np.abs(want).max(initial=0)))
    worst = 0.0
    for rank in np.ndindex(*sizes.values()):
        own = _own_part(want, layout, sizes, dict(zip(sizes, rank, strict=True)))
        # Ranks along an axis of pending sums are added up.
        place = tuple(
            slice(None) if isinstance(layout[axis], Partial) else at
            for axis, at in zip(sizes, rank, strict=True)
        )
        pending = sum(isinstance(layout[axis], Partial) for axis in sizes)
        mine = np.asarray(got, np.float64)[place].sum(tuple(range(pending)))
        if mine.shape != own.shape:
            return math.inf
        apart = np.abs(mine - own).max(initial=0) / scale
        worst = max(worst, math.inf if np.isnan(apart) else float(apart))
    return worst


def _own_part(
    want: Any, layout: Any, sizes: Mapping[str, int], rank: Mapping[str, int]
) -> np.ndarray[Any, Any]:
    for axis, one in layout.items_:
        if isinstance(one, Sliced):
            want = np.split(want, sizes[axis], one.dim)[rank[axis]]
    return want
