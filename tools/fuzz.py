"""Random programs against the layout checker, for as long as it takes.

    python tools/fuzz.py --programs 100000 --seed 0 --workers 2

Every accepted program is run on 1, 2, 3 and 4 ranks with three inputs, and every claim of the
checker on an intermediate value is held against the run. The state file keeps what is done, so that
a run that was stopped goes on; what failed is in it as recipes, which `--replay` judges again.

Exit status: 0 if nothing is wrong, 1 if something is, 2 if the command line is.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 100
# JAX keeps what it has traced: a worker is replaced before that fills the memory.
CHUNKS_PER_WORKER = 10

Chunk = tuple[int, int, int, bool, bool]
"""The campaign's seed, first program, how many, right by construction, on all sizes."""


def _work(chunk: Chunk) -> tuple[Chunk, dict[str, Any]]:
    from fuzzing.campaign import run

    seed, first, count, right, all_sizes = chunk
    tally = run(seed, first, count, right=right, all_sizes=all_sizes)
    return chunk, {
        "counts": dict(tally.counts),
        "reasons": dict(tally.reasons),
        "wrong": [dataclasses.asdict(failure) for failure in tally.wrong],
        "refused": [dataclasses.asdict(failure) for failure in tally.refused],
    }


def _start() -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
    gc.set_threshold(100_000, 50, 100)


class State:
    """What is done, in a file with a line for each chunk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[Chunk] = set()
        self.counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self.reasons: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self.wrong: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self._take(tuple(entry["chunk"]), entry["tally"])

    def _take(self, chunk: Chunk, tally: dict[str, Any]) -> None:
        self.done.add(chunk)
        self.counts[chunk[3]] += Counter(tally["counts"])
        self.reasons[chunk[3]] += Counter(tally["reasons"])
        self.wrong += tally["wrong"]
        self.refused += tally["refused"]

    def add(self, chunk: Chunk, tally: dict[str, Any]) -> None:
        """Takes a finished chunk, and writes it down."""
        self._take(chunk, tally)
        with self.path.open("a") as file:
            file.write(json.dumps({"chunk": chunk, "tally": tally}) + "\n")


def _rate(counts: Counter[str]) -> float:
    total = counts["accepted"] + counts["refused"] + counts["crash"]
    return counts["accepted"] / total if total else 0.0


def _progress(state: State, total: int, started: float, fresh: int) -> str:
    any_counts, right_counts = state.counts[False], state.counts[True]
    kinds = ("accepted", "refused", "crash", "untraceable")
    programs = sum(any_counts[kind] + right_counts[kind] for kind in kinds)
    claims = any_counts["claims"] + right_counts["claims"]
    each = (time.time() - started) / max(fresh, 1)
    return (
        f"{programs} of {total} programs, accepted {_rate(any_counts):.1%}, of right ones "
        f"{_rate(right_counts):.2%}, {len(state.wrong)} wrong, {claims} claims held, "
        f"{each * 1000:.0f} ms each, {(total - programs) * each / 60:.0f} min left"
    )


def campaign(options: argparse.Namespace, state: State) -> None:
    """Runs what is not done yet."""
    programs, seed, share = options.programs, options.seed, options.right
    chunks: list[Chunk] = []
    for k, first in enumerate(range(0, programs, CHUNK)):
        right = int(k * share) != int((k + 1) * share)
        chunks.append((seed, first, min(CHUNK, programs - first), right, not options.drawn))
    chunks = [chunk for chunk in chunks if chunk not in state.done]
    context = multiprocessing.get_context("spawn")
    started, fresh = time.time(), 0
    with context.Pool(options.workers, _start, maxtasksperchild=CHUNKS_PER_WORKER) as pool:
        for chunk, tally in pool.imap_unordered(_work, chunks):
            state.add(chunk, tally)
            fresh += chunk[2]
            print(_progress(state, programs, started, fresh), flush=True)
            for failure in tally["wrong"]:
                print(f"WRONG {failure['seed']} on {failure['sizes']}\n{failure['shown']}")
                print("\n".join(failure["why"]), flush=True)


def replay(state: State, which: str) -> int:
    """Judges again what failed, and makes it smaller; returns how many still fail."""
    failures = state.wrong if which == "wrong" else state.refused
    return sum(_still_fails(failure, which) for failure in failures)


def _still_fails(failure: dict[str, Any], which: str) -> bool:
    from fuzzing.recipe import Recipe, loads, show
    from fuzzing.shrink import shrunk
    from fuzzing.verdict import Verdict, judge

    right = failure["seed"].startswith("right")
    number = int(failure["seed"].rsplit("/", 1)[1])

    def verdict(program: Recipe) -> Verdict:
        return judge(program, failure["sizes"], seed=number, declared=right, all_sizes=True)

    def fails(program: Recipe, code: str = "") -> bool:
        now = verdict(program)
        refused = now.status == "refused" and now.error.startswith(code) and not now.mistaken
        return bool(now.problems) or (which == "refused" and refused)

    program = loads(failure["recipe"])
    if not fails(program):
        return False
    code = verdict(program).error.split(":")[0]
    small = shrunk(program, lambda smaller: fails(smaller, code))
    now = verdict(small)
    print(f"{failure['seed']} on {failure['sizes']}, made smaller:\n{show(small)}")
    print("\n".join([now.error, *now.problems[:3], *now.mistaken[:1]]), end="\n\n")
    return True


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Random programs against the layout checker")
    parser.add_argument("--programs", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the campaign (0)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument(
        "--right", type=float, default=0.1, help="share of programs that are right by construction"
    )
    parser.add_argument(
        "--drawn", action="store_true", help="run each only on the mesh that was drawn for it"
    )
    parser.add_argument("--state", type=Path, help="what is done (fuzz-SEED.jsonl)")
    parser.add_argument(
        "--replay", choices=["wrong", "refused"], help="judge again what failed, and do no more"
    )
    options = parser.parse_args()
    if options.programs < 1 or options.workers < 1 or not 0 <= options.right <= 1:
        parser.error("--programs and --workers have to be positive, --right between 0 and 1")
    state = State(options.state or Path(f"fuzz-{options.seed}.jsonl"))
    if options.replay:
        _start()
        return int(replay(state, options.replay) > 0)
    campaign(options, state)
    for right, counts in state.counts.items():
        kind = "right by construction" if right else "random"
        print(f"{kind}: {dict(counts)}, accepted {_rate(counts):.2%}")
        print(f"  refused for: {dict(state.reasons[right].most_common(12))}")
    return int(bool(state.wrong))


if __name__ == "__main__":
    sys.exit(main())
