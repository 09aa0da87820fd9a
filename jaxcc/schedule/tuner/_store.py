"""Winners on disk: a JSON file for each program, shapes, group and machine.

Files lie in the folder of compiled kernels, which is refused if others can write to it; so is a
file of theirs. What is read are steps, which are verified, and run against the reference, as any
other's.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import stat
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from jaxcc import codegen
from jaxcc._version import __version__
from jaxcc.layout import CodegenError
from jaxcc.schedule._saved import step_content, step_of
from jaxcc.schedule._step import Step
from jaxcc.schedule.tuner._tuned import Trial

SCHEMA = 1


@dataclass(frozen=True)
class Stored:
    """A winner.

    Attributes:
      steps: of its schedule.
      trials: all that was tried.
      budget_s: seconds that it was found within.
      complete: whether all candidates were tried; if not, a larger budget may find a better one.
    """

    steps: tuple[Step, ...]
    trials: tuple[Trial, ...]
    budget_s: float
    complete: bool


def machine() -> str:
    """This machine, as far as speed depends on it."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.partition(":")[2].strip() for x in lines if x[:10] == "model name"), model)
    kinds = sorted({device.device_kind for device in jax.devices()})
    return f"{model}, {os.cpu_count()} cores, {jax.device_count()} x {'/'.join(kinds)}"


def key_of(program_digest: str, **options: Any) -> dict[str, Any]:
    """What a winner depends on; the digest holds shapes, layouts and group sizes."""
    return {
        "program": program_digest,
        "machine": machine(),
        "jaxcc": __version__,
        "jax": jax.__version__,
        **options,
    }


def path_of(stem: str, key: Mapping[str, Any]) -> Path | None:
    """The file for a key; None, with a warning, where there is no folder to trust."""
    name = hashlib.sha256(_canonical(key).encode()).hexdigest()[:32]
    try:
        return codegen.cache_folder() / f"{stem}-{name}.json"
    except CodegenError as error:
        _warn(str(error))
        return None


@functools.cache
def _warn(why: str) -> None:
    warnings.warn(f"jaxcc keeps no tuning results: {why}", stacklevel=2)


def read_json(path: Path) -> Any:
    """The content of a file that `write_json` wrote and nobody else can write; else None."""
    try:
        info = path.stat()
        if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
        content = document["content"]
        whole = document["sha256"] == hashlib.sha256(_canonical(content).encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return content if whole else None


def write_json(path: Path, content: Any) -> bool:
    """Writes a file in one step; False if the folder takes none, which costs only the next run's
    time.
    """
    text = json.dumps(
        {"content": content, "sha256": hashlib.sha256(_canonical(content).encode()).hexdigest()},
        indent=1,
    )
    try:
        file = codegen.new_cache_file(path.parent)
        try:
            file.write_text(text, encoding="utf-8")
            file.replace(path)
        finally:
            file.unlink(missing_ok=True)
    except (CodegenError, OSError) as error:
        _warn(str(error))
        return False
    return True


def load(path: Path, key: Mapping[str, Any]) -> Stored | None:
    """The winner stored for the key; None if there is none, or what is there is not one."""
    content = read_json(path)
    try:
        if content["schema"] != SCHEMA or content["key"] != json.loads(_canonical(key)):
            return None
        return Stored(
            tuple(map(step_of, content["steps"])),
            tuple(Trial(**{**row, "steps": tuple(row["steps"])}) for row in content["trials"]),
            float(content["budget_s"]),
            bool(content["complete"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def save(path: Path, key: Mapping[str, Any], found: Stored) -> None:
    """Stores a winner."""
    steps = list(map(step_content, found.steps))
    rows = [asdict(trial) for trial in found.trials]
    rest = {"trials": rows, "budget_s": found.budget_s, "complete": found.complete}
    write_json(path, {"schema": SCHEMA, "key": dict(key), "steps": steps, **rest})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def profile_path() -> Path | None:
    """Where this machine's measured profile is kept."""
    return path_of("profile", {"machine": machine(), "jaxcc": __version__})
