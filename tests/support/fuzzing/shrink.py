"""Smaller programs of which the same is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzzing.recipe import Body, Recipe, Step


def shrunk(recipe: Recipe, still: Callable[[Recipe], bool]) -> Recipe:
    """The smallest program found, step by step, for which `still` holds."""
    while True:
        for smaller in _smaller(recipe):
            if still(smaller):
                recipe = smaller
                break
        else:
            return recipe


def _smaller(recipe: Recipe) -> Iterator[Recipe]:
    body = recipe.body
    for k in range(len(body.outputs)):
        if len(body.outputs) > 1:
            one = replace(body, outputs=(body.outputs[k],))
            yield replace(recipe, body=_without_dead(one), outputs=(recipe.outputs[k],))
    for smaller in _bodies(body):
        yield replace(recipe, body=_without_dead(smaller))


def _bodies(body: Body) -> Iterator[Body]:
    """With one step less, whose readers read one of its operands; or with a smaller inner body."""
    for k, step in enumerate(body.steps):
        value = body.arity + k
        for other in dict.fromkeys(step.reads):
            steps = [
                replace(s, reads=tuple(other if r == value else r for r in s.reads))
                for s in body.steps
            ]
            outputs = tuple(other if r == value else r for r in body.outputs)
            yield replace(body, steps=tuple(steps), outputs=outputs)
        for at, inner in enumerate(step.params):
            if isinstance(inner, Body):
                for smaller in _bodies(inner):
                    params = (*step.params[:at], _without_dead(smaller), *step.params[at + 1 :])
                    steps = (*body.steps[:k], replace(step, params=params), *body.steps[k + 1 :])
                    yield replace(body, steps=steps)


def _without_dead(body: Body) -> Body:
    """Without the steps that no result comes from."""
    needed = set(body.outputs)
    for k in reversed(range(len(body.steps))):
        if body.arity + k in needed:
            needed |= set(body.steps[k].reads)
    names = {k: k for k in range(body.arity)}
    steps: list[Step] = []
    for k, step in enumerate(body.steps):
        if body.arity + k in needed:
            steps.append(replace(step, reads=tuple(names[r] for r in step.reads)))
            names[body.arity + k] = body.arity + len(steps) - 1
    return replace(body, steps=tuple(steps), outputs=tuple(names[r] for r in body.outputs))
