"""Cores are shared out by sockets, cores and hyperthreads."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcc.launch import shares


def machine(folder: Path, sockets: int, cores: int, threads: int) -> list[int]:
    """A machine's CPUs: as on most, a core's second thread comes behind all first threads."""
    count = sockets * cores * threads
    for cpu in range(count):
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        place = cpu % (sockets * cores)
        (topology / "physical_package_id").write_text(f"{place // cores}\n")
        (topology / "core_id").write_text(f"{place % cores}\n")
    return list(range(count))


@pytest.mark.parametrize("shape", [(1, 2, 1), (1, 4, 2), (2, 3, 2), (2, 8, 1)])
@pytest.mark.parametrize("ranks", range(1, 26))
def test_ranks_share_nothing_where_there_is_enough(
    shape: tuple[int, int, int], ranks: int, tmp_path: Path
) -> None:
    sockets, cores, threads = shape
    cpus = machine(tmp_path, *shape)
    found = shares(ranks, cpus, tmp_path)
    if ranks > len(cpus):
        assert found == []
        return
    assert len(found) == ranks and sorted(cpu for share in found for cpu in share) == cpus
    physical = [{cpu % (sockets * cores) for cpu in share} for share in found]
    if ranks <= sockets * cores:
        assert sum(map(len, physical)) == sockets * cores
        sizes = [len(share) for share in physical]
        assert max(sizes) - min(sizes) <= 1
    if ranks == sockets:
        assert [{core // cores for core in share} for share in physical] == [
            {socket} for socket in range(sockets)
        ]


def test_a_cpu_whose_place_is_not_told_is_a_core(tmp_path: Path) -> None:
    assert shares(2, [3, 5, 8, 9], tmp_path) == [{3, 5}, {8, 9}]
