"""`assert_assumptions`: what the checker takes on trust, tested by running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxcc import _compat
from jaxcc.layout import ASSUME, LayoutMap, difference, group_text
from jaxcc.testing._runs import runs_of


def assert_assumptions(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    in_layouts: Any = None,
    check_vma: bool = True,
    sizes: Sequence[Mapping[str, int]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Asserts that every `jaxcc.unsafe_assume` in `f` claims what is so, by running it.

    It runs for the same groups as `assert_rank_invariant`, with the same arguments. The values that
    the ranks have at each claim must be the parts, by its layout, of the value that a group of one
    has there.

    Raises:
      AssertionError: a claim does not hold, or there is none.
      LayoutError: the program cannot be traced, or a claim stands in a `while` loop or a branch.
    """
    runs = runs_of(f, args, mesh, in_layouts, None, check_vma)
    alone = runs.trace(runs.one)
    expected = [x.reshape(x.shape[len(runs.sizes) :]) for _, x in runs.runner(alone, ASSUME)(0)[1]]
    if not expected:
        raise AssertionError(f"{runs.name} has no unsafe_assume")
    for group, _, run, limits in runs.on_groups(alone, sizes, rtol, atol, ASSUME):
        local = runs.local_over(group)
        for seed in runs.seeds(seeds):
            found = run(seed)[1]
            if len(found) != len(expected):
                raise AssertionError(
                    f"{runs.name} comes to {len(found)} assumptions on {group_text(group)}, and to "
                    f"{len(expected)} on one rank"
                )
            for (eqn, parts), whole in zip(found, expected, strict=True):
                layout: LayoutMap = eqn.params["layout"]
                off = difference(parts, None if local else whole, layout, group, **limits)
                if off is not None:
                    raise AssertionError(
                        f"{runs.name} assumes {layout.describe()}{_at(eqn)}, but on "
                        f"{group_text(group)} {off}\n"
                        f"  rtol={limits['rtol']:g}, atol={limits['atol']:g}, seed {seed}"
                    )


def _at(eqn: Any) -> str:
    line = _compat.source_line(eqn)
    return "" if line is None else f" at {line}"
