"""Profiles of machines from published figures: nothing here is fitted to a measured program.

NCCL's numbers are those that its own choice of algorithms works with (src/graph/tuning.cc of its
2.6.4 and 2.19): base and hop latencies, the share of a link's bandwidth that each protocol carries,
the corrections for trees; and the bandwidth that it counts a link with, which is below the line's:
21 GB/s of a second generation NVLink's 25 in each direction. What a machine's whole network and its
memory give is below that again, and is taken from measurements that others published; each profile
names them.
"""

from __future__ import annotations

from jaxcc.schedule.tuner._profile import Profile, Protocol

# NCCL 2.6.4, which CoCoNet was built on; compute capability 7.0. It multiplies no ring's latency by
# a plateau: that is of 2.7, for the same rings. Trees have corrections for 64 B, 128 B ... 128 MiB.
_HALF = (0.5,) * 6
_TREE_LL_2_6 = (*[1] * 4, 0.9, 0.8, *[0.7] * 4, 0.6, *_HALF[:3], 0.6, 0.7, 0.8, *[0.9] * 2, 1, 1, 1)
_TREE_LL128_2_6 = (*[1] * 5, 0.9, *[0.8] * 4, *[0.7] * 3, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1)
_TREE_SIMPLE_2_6 = (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *_HALF, 0.6, 0.6, 0.7, 0.8, 0.9)
_RINGS_2_6 = (
    Protocol("ring LL", "ring", 3.6, 0.4, 0.9, 1 / 4),
    Protocol("ring LL128", "ring", 3.6, 2.5, 2.5, 120 / 128, 100),
    Protocol("ring Simple", "ring", 8.4, 5.7, 6.6, plateau=1.9),
)
_TREES_2_6 = (
    Protocol("tree LL", "tree", 4.4, 0.5, 5, 0.9 / 3, None, 80 / 3, corrections=_TREE_LL_2_6),
    Protocol(
        *("tree LL128", "tree", 4.4, 1.9, 7.5, 0.9 * 7 / 9),
        *(None, 80 * 7 / 9, 1, _TREE_LL128_2_6),
    ),
    Protocol("tree Simple", "tree", 0, 28, 50, 0.9, None, 80, corrections=_TREE_SIMPLE_2_6),
)

DGX2 = Profile(
    name="dgx2",
    source="16 V100 (SXM3, 6 NVLinks, NVSwitch) and 8 EDR InfiniBand ports per node. NCCL 2.6.4's "
    "tuning table; V100's data sheet (15.7 and 125 Tflop/s); 660 Gbit/s measured between 8 DGX-2 "
    "(Microsoft's Megatron-DeepSpeed, examples_deepspeed/rebase/README.md); 790 of 900 GB/s of "
    "memory bandwidth measured on a V100 (paranumal.com, Rough-n-Ready Roofline: NVIDIA V100 "
    "edition, 2018); launch of an empty kernel (8.9 us) of Zhang et al., A study of single and "
    "multi-device synchronization methods in NVIDIA GPUs, IPDPS 2020; 20 us from a call in "
    "PyTorch to its kernel's start (NVIDIA's developer blog, Understanding the Visualization of "
    "Overhead and Latency in Nsight Systems)",
    ranks_per_node=16,
    intra_gbps=6 * 21,
    inter_gbps=660 / 8,
    memory_gbps=790,
    launch_us=8.9,
    call_us=20,
    tflops=(15.7, 125),
    protocols=_RINGS_2_6 + _TREES_2_6,
    fused=_RINGS_2_6,
    network_hops=True,
    overlaps=True,
)

_TREE_LL = (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_TREE_LL128 = (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 6, 0.8, *[0.9] * 4)
_TREE_SIMPLE = (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9)

# NCCL 2.19 and later; compute capability 9.0.
_RINGS = (
    Protocol("ring LL", "ring", 6.6, 0.6, 2.7, 1 / 2, 87.7, 19),
    Protocol("ring LL128", "ring", 14, 1.9, 4, 0.92),
    Protocol("ring Simple", "ring", 8.4, 3.4, 14, plateau=1.4),
)
_TREES = (
    Protocol("tree LL", "tree", 6.8, 0.6, 5, 0.92 / 3.8, 87.7, 19, corrections=_TREE_LL),
    Protocol("tree LL128", "tree", 14, 1.25, 8.5, 0.92 * 7 / 9, corrections=_TREE_LL128),
    Protocol("tree Simple", "tree", 8.4, 4, 14, 0.92, corrections=_TREE_SIMPLE),
)

# BabelStream's Triad of f64: 3.315 of GH200's 4 TB/s (BabelStream's issue 194), the same memory.
_TRIAD = 3.315 / 4

H100 = Profile(
    name="h100",
    source="8 H100 SXM (18 NVLinks, NVSwitch, without NVLink SHARP) and 8 NDR InfiniBand ports per "
    "node. NCCL 2.19's tuning table, 20.6 GB/s for an NVLink and 48 for a port, of which its "
    "maintainers see 46 to 48 (nccl-tests' issue 290); H100's data sheet (67 and 989 Tflop/s, "
    "3.35 TB/s, of which 83 % can be had, as on GH200: BabelStream's issue 194); launches and "
    "calls as published for V100, for want of newer figures",
    ranks_per_node=8,
    intra_gbps=18 * 20.6,
    inter_gbps=8 * 48,
    memory_gbps=_TRIAD * 3350,
    launch_us=DGX2.launch_us,
    call_us=DGX2.call_us,
    tflops=(67, 989),
    protocols=_RINGS + _TREES,
    fused=_RINGS,
    overlaps=True,
)

H200 = Profile(
    **{
        **H100.__dict__,
        "name": "h200",
        "source": H100.source.replace("H100", "H200").replace("3.35", "4.8"),
        "memory_gbps": _TRIAD * 4800,
    }
)

_CPU = Protocol("memory", "direct", 100, 0, 0, 0.5)
_CPU_KERNEL = Protocol("kernel", "direct", 10, 0, 0)

CPU = Profile(
    name="cpu",
    source="round numbers for ranks that are cores of one machine; jaxcc tune --profile measures",
    ranks_per_node=1 << 20,
    intra_gbps=5,
    inter_gbps=1,
    memory_gbps=5,
    launch_us=5,
    call_us=100,
    tflops=(0.05, 0.02),
    protocols=(_CPU,),
    fused=(_CPU_KERNEL,),
)

MACHINES = {one.name: one for one in (DGX2, H100, H200, CPU)}
