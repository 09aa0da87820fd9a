"""What launchers say of a process, as their variables stand."""

from __future__ import annotations

import pytest

import jaxcc
from jaxcc.launch._clusters import find_place

# As mpirun of Open MPI 5 sets them, among many others.
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMIX_NAMESPACE": "prterun-host-29982@1",
    "PMIX_RANK": "3",
}
HYDRA = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMI_FD": "9",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[007-008]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
# A batch script has a job with tasks, but is no task itself.
BATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "node[007-008]",
}
TOLD = {"JAXCC_COORDINATOR": "login1:4000", "JAXCC_RANK": "2", "JAXCC_RANKS": "6"}


@pytest.mark.parametrize(
    ("variables", "rank", "ranks", "host", "local"),
    [
        (OPEN_MPI, 3, 4, "127.0.0.1", 3),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 3, 4, None, 3),
        (HYDRA, 1, 2, "127.0.0.1", 1),
        (HYDRA | {"PMI_SIZE": "4"}, 1, 4, None, 1),
        (SRUN, 5, 8, "node007", 1),
        (SRUN | {"SLURM_STEP_NUM_NODES": "1"}, 5, 8, "127.0.0.1", 1),
        (TOLD, 2, 6, "login1", None),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, 1, 3, None, None),
        # mpirun on machines that Slurm allots, which starts its daemons by srun.
        (SRUN | OPEN_MPI, 3, 4, "127.0.0.1", 3),
        (SRUN | HYDRA, 1, 2, "127.0.0.1", 1),
        (SRUN | {"PMI_RANK": "5", "PMI_SIZE": "8"}, 5, 8, "node007", 1),
        # The user's own word counts most.
        (SRUN | OPEN_MPI | TOLD, 2, 6, "login1", None),
    ],
)
def test_places(
    variables: dict[str, str], rank: int, ranks: int, host: str | None, local: int | None
) -> None:
    place = find_place({"PATH": "/bin", **variables})
    assert place is not None
    assert (place.rank, place.ranks, place.local_rank) == (rank, ranks, local)
    assert (place.coordinator and place.coordinator.rpartition(":")[0]) == host


@pytest.mark.parametrize(
    "variables", [{}, BATCH, SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}]
)
def test_alone(variables: dict[str, str]) -> None:
    assert find_place(variables) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("login1", "login1"),
        ("node07,node08", "node07"),
        ("node[07-12,20],login1", "node07"),
        ("rack2-node[3,5]", "rack2-node3"),
        ("gpu[001-004].example.org", "gpu001"),
    ],
)
def test_the_first_of_slurms_machines(nodes: str, first: str) -> None:
    place = find_place(SRUN | {"SLURM_STEP_NODELIST": nodes})
    assert place is not None and place.coordinator is not None
    assert place.coordinator.rpartition(":")[0] == first


def test_jobs_have_ports_of_their_own_which_a_variable_changes() -> None:
    ports = set()
    for job in range(50):
        places = [
            find_place(SRUN | {"SLURM_JOB_ID": str(job), "SLURM_PROCID": rank}) for rank in "025"
        ]
        assert len({place.coordinator for place in places if place}) == 1
        assert places[0] and places[0].coordinator
        ports.add(int(places[0].coordinator.rpartition(":")[2]))
    assert len(ports) > 40 and all(61440 <= port < 65536 for port in ports)
    place = find_place(SRUN | {"JAX_COORDINATOR_PORT": "1234"})
    assert place and place.coordinator == "node007:1234"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"JAXCC_COORDINATOR": "host:1"}, "JAXCC_RANK is not set"),
        ({"JAXCC_RANK": "0", "JAXCC_RANKS": "2"}, "set JAXCC_COORDINATOR=HOST:PORT"),
        ({"JAXCC_RANKS": "2"}, "JAXCC_RANKS is set, but not JAXCC_COORDINATOR"),
        (TOLD | {"JAXCC_COORDINATOR": "host"}, "JAXCC_COORDINATOR is 'host', not HOST:PORT"),
        (TOLD | {"JAXCC_RANK": "six"}, "JAXCC_RANK is 'six', not a number"),
        (TOLD | {"JAXCC_RANK": "6"}, "rank 6 of 6"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK is '-1'"),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is ''"),
    ],
)
def test_variables_that_contradict_are_refused(variables: dict[str, str], says: str) -> None:
    with pytest.raises(jaxcc.BackendError, match="BACKEND_SETTING") as raised:
        find_place(variables)
    assert says in str(raised.value)
