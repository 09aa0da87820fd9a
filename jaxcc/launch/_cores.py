"""Which cores a rank runs on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def shares(ranks: int, cpus: Iterable[int], topology: Path = _TOPOLOGY) -> list[frozenset[int]]:
    """The CPUs of each rank: neighbouring cores, as many for each as for any other, or one more.

    Ranks share no core if there are enough, and no CPU (a core's hyperthread) if there are enough
    of those. Else they cannot be told apart, and the result is empty.

    Args:
      ranks: how many.
      cpus: numbers of the CPUs that this process may use.
      topology: the system's folder of CPUs.
    """
    placed = sorted((_place(cpu, topology), cpu) for cpu in cpus)
    cores = [[cpu for _, cpu in core] for _, core in groupby(placed, key=lambda entry: entry[0])]
    parts = cores if ranks <= len(cores) else [[cpu] for _, cpu in placed]
    if ranks > len(parts):
        return []
    first = [rank * len(parts) // ranks for rank in range(ranks + 1)]
    return [
        frozenset(cpu for part in parts[low:high] for cpu in part)
        for low, high in zip(first, first[1:], strict=False)
    ]


def _place(cpu: int, topology: Path) -> tuple[int, int]:
    """Socket and core; a CPU whose place is not told is a core of its own."""
    folder = topology / f"cpu{cpu}" / "topology"
    try:
        package, core = (
            int((folder / name).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        return (0, cpu)
    return package, core
