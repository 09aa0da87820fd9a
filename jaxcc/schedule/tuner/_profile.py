"""What a machine can do, in the numbers that the cost model takes; as JSON, too."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcc.layout import TableError

SCHEMA = 1
ALGORITHMS = ("ring", "tree", "direct")


@dataclass(frozen=True)
class Protocol:
    """One way to carry out collectives: NCCL's algorithms with its wire protocols, or a host's.

    Attributes:
      name: `ring LL128`, as reports show it.
      algorithm: `ring` and `tree` as NCCL counts their hops; `direct` has one hop: each rank reads
        its block of all others.
      base_us: of every call.
      intra_us, inter_us: for each hop within a node and between nodes.
      efficiency: the share of a link's bandwidth that is data.
      cap_gbps: the most bandwidth per rank, GB/s; None for what the links have.
      inter_cap_gbps: the same for groups of more than two nodes.
      plateau: what a ring's latency is multiplied by for large arrays between nodes.
      corrections: what a tree's bandwidth is multiplied by for messages from 64 B, 128 B, 256 B ...
    """

    name: str
    algorithm: str
    base_us: float
    intra_us: float
    inter_us: float
    efficiency: float = 1.0
    cap_gbps: float | None = None
    inter_cap_gbps: float | None = None
    plateau: float = 1.0
    corrections: tuple[float, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A machine.

    Attributes:
      name: what it is called.
      source: where its numbers come from.
      ranks_per_node: how many ranks share a node; the minor mesh axis fills it first.
      intra_gbps: bandwidth of one rank to the others of its node, GB/s in each direction.
      inter_gbps: bandwidth of one node to the others, GB/s in each direction.
      memory_gbps: memory bandwidth of one rank while all use theirs, GB/s.
      launch_us: of one kernel or other step of a program.
      call_us: of the host, from a call of a program to the start of its first step.
      tflops: multiplications and additions per second of a product, 1e12/s, for dtypes of 32 and of
        16 bits.
      protocols: what collectives can take.
      fused: the protocols that kernels with a collective in them can take.
      network_hops: every hop of a ring between nodes counts as one over the network, as NCCL did up
        to 2.8; otherwise only those that are.
      overlaps: it computes while it communicates; ranks that share cores do not.
    """

    name: str
    source: str
    ranks_per_node: int
    intra_gbps: float
    inter_gbps: float
    memory_gbps: float
    launch_us: float
    tflops: tuple[float, float]
    protocols: tuple[Protocol, ...]
    fused: tuple[Protocol, ...]
    network_hops: bool = False
    call_us: float = 0.0
    overlaps: bool = False

    def to_json(self) -> dict[str, Any]:
        """The profile as `parse_profile` takes it."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in a JSON file, by itself or as `jaxcc tune --profile --json` prints it.

    Raises:
      TableError: TABLE_MISSING, TABLE_PROFILE.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(
            "TABLE_MISSING", f"the machine profile {os.fspath(path)!r} cannot be read: {error}"
        ) from None
    except json.JSONDecodeError as error:
        raise _malformed(f"it is not JSON: {error}") from None
    if isinstance(content, dict) and "profile" in content:
        content = content["profile"]
    return parse_profile(content)


def parse_profile(content: Any) -> Profile:
    """The profile that `Profile.to_json` gave.

    Raises:
      TableError: TABLE_PROFILE.
    """
    top = dict(_mapping(content, "the profile"))
    if top.pop("schema", None) != SCHEMA:
        raise _malformed(f"its schema is not {SCHEMA}")
    for key in ("protocols", "fused"):
        rows = top.get(key)
        if not isinstance(rows, list | tuple) or not rows:
            raise _malformed(f"{key} is not a list of protocols")
        top[key] = tuple(_made(Protocol, dict(_mapping(row, key))) for row in rows)
    profile = _made(Profile, top)
    if len(profile.tflops) != 2:
        raise _malformed("tflops has not two numbers")
    return profile


def _made[T](kind: type[T], values: dict[str, Any]) -> T:
    fields = {field.name: field for field in dataclasses.fields(kind)}  # pyright: ignore
    for key, value in values.items():
        if key not in fields:
            raise _malformed(f"there is no {key!r} in a {kind.__name__.lower()}")
        values[key] = tuple(value) if isinstance(value, list) else value
        _check_number(key, str(fields[key].type), values[key])
    try:
        made = kind(**values)
    except TypeError as error:
        raise _malformed(str(error).partition(") ")[2] or str(error)) from None
    if isinstance(made, Protocol) and made.algorithm not in ALGORITHMS:
        raise _malformed(f"{made.algorithm!r} is none of {', '.join(ALGORITHMS)}")
    return made


def _check_number(key: str, kind: str, value: Any) -> None:
    """Rates and counts must be above zero, times not below."""
    numbers = value if kind.startswith("tuple[float") and isinstance(value, tuple) else (value,)
    if "None" in kind and value is None or "Protocol" in kind:
        return
    for one in numbers:
        if kind == "str" or kind == "bool":
            right = isinstance(one, str if kind == "str" else bool)
        else:
            wanted = int if kind == "int" else (int, float)
            right = isinstance(one, wanted) and not isinstance(one, bool)
            right = right and math.isfinite(one) and (one >= 0 if key.endswith("_us") else one > 0)
        if not right:
            raise _malformed(f"{key} is {value!r}")


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(f"{what} is {value!r}, not an object")
    return value


def _malformed(why: str) -> TableError:
    return TableError(
        "TABLE_PROFILE",
        f"not a machine profile: {why}",
        fixes=("measure this machine's: jaxcc tune --profile",),
    )
