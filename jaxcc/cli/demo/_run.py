"""The three parts of the demo, in order, with what each one shows."""

from __future__ import annotations

import time

import jax
import numpy as np

from jaxcc.cli._output import Output
from jaxcc.cli.demo import attention, model, optimizer, training
from jaxcc.cli.demo.ranks import group
from jaxcc.cli.demo.report import Report, Row, loss_table
from jaxcc.cli.demo.settings import Settings


def run(settings: Settings, *, as_json: bool) -> bool:
    """Runs the demo and says whether every result agreed with its reference."""
    output = Output(as_json)
    report = Report(settings.ranks)
    start = time.perf_counter()
    with output.warnings_as_lines() as report.warnings:
        _attention(settings, output, report)
        _training(settings, output, report)
        _optimizer(settings, output, report)
    report.seconds = time.perf_counter() - start
    output.show("3. All times, and the optimizer alone:", style="bold")
    output.show(report.table())
    if not report.clean:
        output.show("some results do not agree with their references", style="red")
    output.document(report.as_json())
    return report.clean


def _attention(settings: Settings, output: Output, report: Report) -> None:
    with output.working("attention tail") as tell:
        found = attention.run(settings, tell)
    output.show("1. An attention tail with its bias on the wrong line is refused:", style="bold")
    output.show(found.error + "\n")
    output.show("The right one, checked:", style="bold")
    output.show(found.source + "\n")
    output.show(
        'After split("total"), reorder("total.gather", after="out") and fuse:', style="bold"
    )
    output.show(found.schedule + "\n")
    report.fused = found.fused
    report.attention = {
        "error": found.error,
        "source": found.source,
        "schedule": found.schedule,
    }
    size = _mebibytes(found.bytes)
    for work, one in (
        (f"all-reduce + epilogue, {size}", found.epilogue),
        (f"x @ w, all-reduce + epilogue, {size}", found.whole),
    ):
        report.rows.append(Row(work, one.times, one.differences, 1e-4))


def _training(settings: Settings, output: Output, report: Report) -> None:
    mesh = group(settings.ranks, optimizer.AXIS)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0), settings.model))
    leaves = jax.tree.leaves(params)
    count = sum(leaf.size for leaf in leaves)
    what = f"{count / 1e6:.1f} M parameters in {len(leaves)} arrays"
    with output.working(f"training, {what}") as tell:
        found = training.train(params, mesh, settings, tell)
        tell("the optimizer alone")
        times, differences = optimizer.against_xla(
            params, mesh, learning_rate=settings.learning_rate, rounds=settings.rounds, seed=1
        )
    output.show(f"2. A byte-level transformer, {what}, learns CPython's help topics:", style="bold")
    output.show(loss_table(found.losses))
    report.losses = found.losses
    report.rows += [
        Row("training, whole step", found.step, found.differences(), 1e-3),
        Row("training, Adam on all its arrays", times, differences, 1e-5),
    ]


def _optimizer(settings: Settings, output: Output, report: Report) -> None:
    mesh = group(settings.ranks, optimizer.AXIS)
    random = np.random.default_rng(0)
    params = {"w": random.standard_normal(settings.elements, dtype=np.float32)}
    size = _mebibytes(params["w"].nbytes)
    with output.working(f"Adam on {size} of gradients"):
        times, differences = optimizer.against_xla(
            params, mesh, learning_rate=settings.learning_rate, rounds=settings.rounds, seed=2
        )
    report.rows.append(Row(f"Adam on {size} of gradients", times, differences, 1e-5))


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.3g} MiB"
