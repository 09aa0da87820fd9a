"""How long a collective takes: latency of its hops and bytes over bandwidth, by NCCL's formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcc.schedule.tuner._profile import Profile, Protocol

# Rings between nodes reach a plateau from 64 B for each rank and channel, of which there are eight
# or more. NCCL counts it for all-reduces, where trees compete with rings; it is the rings' own.
_PLATEAU_BYTES = 64 * 8


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: `ranks` of them, `stride` apart in the machine's order."""

    ranks: int
    stride: int = 1

    def per_node(self, profile: Profile) -> int:
        """How many of them share a node."""
        return max(1, min(self.ranks, profile.ranks_per_node // self.stride))

    def nodes(self, profile: Profile) -> int:
        """How many nodes they are on."""
        return -(-self.ranks // self.per_node(profile))


def collective_us(
    kind: str, nbytes: float, group: Group, profile: Profile, protocols: Sequence[Protocol]
) -> tuple[float, str]:
    """Microseconds of an `all_reduce`, `reduce_scatter` or `all_gather` of a whole array of
    `nbytes`, by the protocol that is the fastest, and that one's name.
    """
    if group.ranks == 1 or not nbytes:
        return 0.0, "nothing"
    usable = [one for one in protocols if one.algorithm != "tree" or kind == "all_reduce"]
    return min((_us(kind, nbytes, group, profile, one), one.name) for one in usable)


def _us(kind: str, nbytes: float, group: Group, profile: Profile, protocol: Protocol) -> float:
    n, nodes = group.ranks, group.nodes(profile)
    bandwidth = profile.intra_gbps
    if nodes > 1:
        # Groups with neighbouring ranks share the node's links.
        sharing = min(group.stride, profile.ranks_per_node)
        bandwidth = min(bandwidth, profile.inter_gbps / sharing)
    bandwidth *= protocol.efficiency
    caps = (protocol.cap_gbps, protocol.inter_cap_gbps if nodes > 2 else None)
    bandwidth = min([bandwidth, *(cap for cap in caps if cap is not None)])
    rounds = 2 if kind == "all_reduce" else 1
    latency, share = protocol.base_us, rounds * (n - 1) / n
    if protocol.algorithm == "direct":
        latency += rounds * (protocol.inter_us if nodes > 1 else protocol.intra_us)
    elif protocol.algorithm == "ring":
        hops, between = rounds * (n - 1), rounds * (nodes - 1)
        if profile.network_hops and nodes > 1:
            between = hops
        latency += (hops - between) * protocol.intra_us + between * protocol.inter_us
        if nodes > 1 and nbytes >= _PLATEAU_BYTES * n:
            latency *= protocol.plateau
    else:
        within = group.per_node(profile) - 1
        latency += 2 * (within * protocol.intra_us + math.log2(nodes) * protocol.inter_us)
        step = int(math.log2(max(1.0, nbytes / 64)))
        if step < len(protocol.corrections):
            bandwidth *= protocol.corrections[step]
        share = 2
    return latency + nbytes * share / (bandwidth * 1e3)
