"""Which environment variables a plan may set for its job: those that tune NCCL, gloo, OpenMP and
torch, and to which values.

Plans are not trusted, so a variable is listed only if no value of its shape can name a file, a
library, a plugin, a program or a host. Sources: NCCL's user guide, "Environment Variables"; OpenMP
5.2, chapter 21; torch's "Distributed communication package" and "CUDA semantics". `testbed_job_env`
in the inventory opens more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.schema import LAUNCHERS, show


def _each(text: str) -> str:
    """A list as NCCL reads it: words with commas between them, ^ before those not wanted; perhaps
    one list a collective.
    """
    text = rf"\^?({text})(,({text})){{0,9}}"
    return rf"(?i:([a-z]{{1,16}}:)?{text}(;[a-z]{{1,16}}:{text}){{0,9}})"


_SHAPES: tuple[tuple[str, str, str], ...] = (
    (
        "a whole number",
        r"-?[0-9]{1,10}",
        "CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING MKL_NUM_THREADS NCCL_BUFFSIZE NCCL_CHECK_POINTERS"
        " NCCL_CHUNK_SIZE NCCL_COMM_BLOCKING NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DMABUF_ENABLE NCCL_GDRCOPY_ENABLE"
        " NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_AR_THRESHOLD NCCL_IB_DISABLE"
        " NCCL_IB_FIFO_TC NCCL_IB_GID_INDEX NCCL_IB_MERGE_NICS NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_QPS_PER_CONNECTION"
        " NCCL_IB_RETRY_CNT NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_TIMEOUT"
        " NCCL_IB_USE_INLINE NCCL_IGNORE_CPU_AFFINITY NCCL_LL_THRESHOLD NCCL_LOCAL_REGISTER NCCL_MAX_CTAS"
        " NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_NCHANNELS_PER_NET_PEER NCCL_NET_GDR_READ"
        " NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVB_DISABLE"
        " NCCL_NVLS_ENABLE NCCL_P2P_DIRECT_DISABLE NCCL_P2P_DISABLE NCCL_P2P_LL_THRESHOLD NCCL_P2P_NET_CHUNKSIZE"
        " NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_USE_CUDA_MEMCPY NCCL_PROGRESS_APPENDOP_FREQ"
        " NCCL_PXN_DISABLE NCCL_SET_STACK_SIZE NCCL_SHM_DISABLE NCCL_SINGLE_RING_THRESHOLD NCCL_SOCKET_NTHREADS"
        " NCCL_TREE_THRESHOLD NCCL_WORK_FIFO_DEPTH OMP_MAX_ACTIVE_LEVELS OMP_THREAD_LIMIT OPENBLAS_NUM_THREADS"
        " TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT"
        " TORCH_NCCL_HIGH_PRIORITY",
    ),
    (
        "whole numbers, with commas between them",
        r"[0-9]{1,6}(,[0-9]{1,6}){0,15}",
        "OMP_NUM_THREADS",
    ),
    (
        "algorithms such as Ring, ^Tree or allreduce:ring,tree",
        _each("ring|tree|collnet(direct|chain)?|nvls(tree)?|pat"),
        "NCCL_ALGO",
    ),
    ("protocols such as Simple, ^LL128 or allreduce:ll", _each("simple|ll(128)?"), "NCCL_PROTO"),
    ("IB or Socket", r"(?i:IB|Socket)", "NCCL_NET"),
    ("AF_INET or AF_INET6", r"AF_INET6?", "NCCL_SOCKET_FAMILY NCCL_IB_ADDR_FAMILY"),
    ("VERSION, WARN, INFO or TRACE", r"(?i:VERSION|WARN|INFO|TRACE)", "NCCL_DEBUG"),
    (
        "subsystems such as INIT,NET or ^COLL",
        r"\^?[A-Za-z]{1,12}(,[A-Za-z]{1,12}){0,20}",
        "NCCL_DEBUG_SUBSYS",
    ),
    (
        "LOC, NVL, PIX, PXB, PHB, SYS or a digit",
        r"LOC|NVL|PIX|PXB|PXN|PHB|P2C|SYS|[0-9]",
        "NCCL_NET_GDR_LEVEL NCCL_P2P_LEVEL",
    ),
    ("PARALLEL or GROUP", r"PARALLEL|GROUP", "NCCL_LAUNCH_MODE"),
    ("TCP or UV", r"TCP|UV", "GLOO_DEVICE_TRANSPORT"),
    (
        "true, false, primary, master, close or spread, with commas between them",
        r"(?i:(true|false|primary|master|close|spread)(,(true|false|primary|master|close|spread)){0,15})",
        "OMP_PROC_BIND",
    ),
    ("true or false", r"(?i:true|false)", "OMP_DYNAMIC OMP_NESTED"),
    ("active or passive", r"(?i:active|passive)", "OMP_WAIT_POLICY"),
    (
        "threads, cores, sockets or places such as {0:4},{4:4}",
        r"(threads|cores|sockets)(\([0-9]{1,6}\))?|[0-9{}:,]{1,1000}",
        "OMP_PLACES",
    ),
    (
        "static, dynamic, guided or auto, perhaps with a chunk",
        r"(?i:((non)?monotonic:)?(static|dynamic|guided|auto))(,[0-9]{1,9})?",
        "OMP_SCHEDULE",
    ),
    ("a size such as 512K or 16M", r"[0-9]{1,12} ?[BKMGbkmg]?", "OMP_STACKSIZE"),
    ("OFF, INFO or DETAIL", r"OFF|INFO|DETAIL", "TORCH_DISTRIBUTED_DEBUG"),
)
ALLOWED: Mapping[str, tuple[str, str]] = {
    name: (text, shape) for text, shape, names in _SHAPES for name in names.split()
}
"""Each variable a plan may set: its values in words and as a pattern."""


def check_env(
    given: Mapping[str, str], opened: Collection[str], path: Path, problems: Problems
) -> None:
    """Report every variable in `given` (at `path`) that a plan may not set, or not to its value.
    opened: allowed by the inventory."""
    for name, value in given.items():
        place: Path = (*path, name)
        if name in opened:
            continue
        if name not in ALLOWED:
            near = get_close_matches(name, ALLOWED, 1, 0.9)
            if re.fullmatch(LAUNCHERS, name):
                why = "it sets which program runs, as which user, or on which host; only the hosts and the launcher may"
            elif near:
                why = f"did you mean {near[0]}?"
            else:
                why = "the lab's owner may open it with testbed_job_env in hosts.yml"
            problems.add(place, f"a plan may not set {name}; {why}", key=True)
            continue
        text, shape = ALLOWED[name]
        if not re.fullmatch(shape, value):
            problems.add(place, f"wanted {text}, got {show(value)}")
