"""This process's rank, rings and addresses, read from the launcher's environment. No torch here:
bad input is reported at once.

RANK, WORLD_SIZE            this rank and the number of ranks
MASTER_ADDR, MASTER_PORT    where rank 0 keeps the store: an address of the management network
TESTBED_RINGS               JSON list of rank orders, each naming every rank once; one ring per order
                            (default: one ring, 0 1 2 ...)
TESTBED_LANES               JSON list of this host's own addresses, which all its ranks share; ring k talks over lane k modulo
                            their number (without NCCL; default: the one address from which
                            MASTER_ADDR is reached)
TESTBED_SITES               JSON list of the site of each rank (default: none is known)
TESTBED_BACKEND             auto | gloo | nccl (auto: nccl where this process sees a GPU)
TESTBED_JOB_DIR             where records, checkpoints and the summary go (default: the working directory)
TESTBED_HANDOFF             Unix socket of the host's agent, over which the ranks are asked to use other rings or to pause
                            (see handoff.py; default: none)
TESTBED_FUNCTIONS           JSON object of what packet switches gave the job, by function (see aggregate.py; default: none)
TESTBED_RING_CHANGES               JSON list of {"after": K, "rings": [...], "traffic"?: {...}}: the ranks use these rings from the end of
                            iteration K on. The lines of a job's `ring_changes.jsonl` are such
                            entries: with them its run can be repeated bit by bit (default: none;
                            not with NCCL)
TESTBED_TIMEOUT_S           how long to wait for a silent peer, seconds (default 60)
TESTBED_STORAGE_MBPS        the rate (Mb/s) at which this rank writes checkpoints (default: as fast as its storage takes them)
TESTBED_DILATION            how many times longer modelled computing takes than a plan says, and protocols of ranks wait (default 1)
TESTBED_JOINING             1: the others run already, and this rank joins them when they are asked to have so many
                            (see growing.py; default: all ranks start together)
TESTBED_OBSERVER_NAME       words for the part of the extension NAME beside the ranks (see observers.py; default: none)
LOCAL_RANK                  which of the host's ranks this is, and so which of its GPUs it uses (default 0)
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .grants import Grant

BACKENDS = ("auto", "gloo", "nccl")


class BadPlace(ValueError):
    """The environment does not describe a rank. `problems` has everything that is wrong with it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class PlannedRingChange:
    """Other rings, and where the program has it other traffic (JSON), from the end of iteration
    `after` on.
    """

    after: int
    rings: tuple[tuple[int, ...], ...]
    traffic: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's place among the others. `timeout_s` bounds every wait for a peer."""

    rank: int
    world: int
    master_address: str
    master_port: int
    rings: tuple[tuple[int, ...], ...]
    lanes: tuple[str, ...]
    backend: str
    job_dir: Path
    timeout_s: float
    gpu: int
    handoff: str = ""
    ring_changes: tuple[PlannedRingChange, ...] = ()
    functions: Mapping[str, Grant] = field(default_factory=dict)
    storage_mbps: float = 0.0
    dilation: float = 1.0
    joining: bool = False
    sites: tuple[str, ...] = ()

    @property
    def site(self) -> str:
        """This rank's site; empty: not known."""
        return self.sites[self.rank] if self.sites else ""

    def lab_s(self) -> float:
        """Monotonic seconds of a lab in which all is `dilation` times slower: the clock of protocols
        whose times belong to the network.
        """
        return time.monotonic() / self.dilation

    def lane(self, ring: int) -> str:
        """Return this host's own address for ring number `ring`."""
        return self.lanes[ring % len(self.lanes)]


def read_place(env: Mapping[str, str]) -> Place:
    """Return the place `env` describes. Raises BadPlace with everything that is wrong."""
    problems: list[str] = []
    rank = _integer(env, "RANK", None, problems)
    world = _integer(env, "WORLD_SIZE", None, problems)
    port = _integer(env, "MASTER_PORT", None, problems)
    gpu = _integer(env, "LOCAL_RANK", 0, problems)
    if "MASTER_ADDR" not in env:
        problems.append("MASTER_ADDR: missing")
    if world < 1 and "WORLD_SIZE" in env:
        problems.append(f"WORLD_SIZE: {world}: a job has at least one rank")
    elif not 0 <= rank < world and not problems:
        problems.append(f"RANK: {rank}: not among the {world} ranks 0..{world - 1}")
    orders = _json_list(env, "TESTBED_RINGS", problems)
    rings = ring_orders(orders, world, "TESTBED_RINGS", problems) or (tuple(range(max(world, 0))),)
    ring_changes = _ring_changes(env, world, problems)
    lanes = _words(env, "TESTBED_LANES", "an address", problems)
    sites = _words(env, "TESTBED_SITES", "the name of a site", problems)
    if sites and len(sites) != world:
        problems.append(f"TESTBED_SITES: {len(sites)} sites for {world} ranks: wanted one for each")
    functions = _functions(env, problems)
    backend = env.get("TESTBED_BACKEND", "auto")
    if backend not in BACKENDS:
        problems.append(f"TESTBED_BACKEND: {backend!r}: not one of {', '.join(BACKENDS)}")
    try:
        timeout_s = float(env.get("TESTBED_TIMEOUT_S", "60"))
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < 86400:
        problems.append(f"TESTBED_TIMEOUT_S: {env['TESTBED_TIMEOUT_S']!r}: not a number of seconds")
    try:
        dilation = float(env.get("TESTBED_DILATION", "1"))
    except ValueError:
        dilation = 0.0
    if not 1 <= dilation < math.inf:
        problems.append(f"TESTBED_DILATION: {env['TESTBED_DILATION']!r}: not a number of 1 or more")
    try:
        storage_mbps = storage_rate(env)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise BadPlace(problems)
    address = env["MASTER_ADDR"]
    return Place(
        rank=rank,
        world=world,
        master_address=address,
        master_port=port,
        rings=rings,
        lanes=lanes or (own_address(address),),
        backend=backend,
        job_dir=Path(env.get("TESTBED_JOB_DIR", ".")),
        timeout_s=timeout_s,
        gpu=gpu,
        handoff=env.get("TESTBED_HANDOFF", ""),
        ring_changes=ring_changes,
        functions=functions,
        storage_mbps=storage_mbps,
        dilation=dilation,
        joining=env.get("TESTBED_JOINING") == "1",
        sites=sites,
    )


def storage_rate(env: Mapping[str, str]) -> float:
    """The rate (Mb/s) at which checkpoints are written, 0: as fast as storage takes them. Raises:
    ValueError - it is none.
    """
    text = env.get("TESTBED_STORAGE_MBPS")
    try:
        rate = float(text) if text is not None else 0.0
    except ValueError:
        rate = math.nan
    if text is not None and not 0 < rate < math.inf:
        raise ValueError(f"TESTBED_STORAGE_MBPS: {text!r}: not a number of Mb/s")
    return rate


def _integer(env: Mapping[str, str], name: str, default: int | None, problems: list[str]) -> int:
    text = env.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        problems.append(
            f"{name}: {text!r}: not a whole number" if name in env else f"{name}: missing"
        )
        return -1


def ring_orders(
    orders: Sequence[object], world: int, name: str, problems: list[str]
) -> tuple[tuple[int, ...], ...]:
    """The orders among these values; what is wrong with others is added to `problems`, as the value
    of `name`.
    """
    natural = list(range(max(world, 0)))
    rings: list[tuple[int, ...]] = []
    for k, order in enumerate(orders):
        if (
            not isinstance(order, list)
            or any(type(rank) is not int for rank in order)
            or sorted(order) != natural
        ):
            problems.append(
                f"{name}[{k}]: {json.dumps(order)}: does not name each of the {world} ranks once"
            )
        else:
            rings.append(tuple(order))
    return tuple(rings)


def _ring_changes(
    env: Mapping[str, str], world: int, problems: list[str]
) -> tuple[PlannedRingChange, ...]:
    ring_changes: dict[int, PlannedRingChange] = {}
    for k, entry in enumerate(_json_list(env, "TESTBED_RING_CHANGES", problems)):
        name = f"TESTBED_RING_CHANGES[{k}]"
        after, rings = (
            (entry.get("after"), entry.get("rings")) if isinstance(entry, dict) else (None, None)
        )
        if (
            type(after) is not int
            or after < 1
            or after in ring_changes
            or not isinstance(rings, list)
            or not rings
        ):
            problems.append(
                f'{name}: {json.dumps(entry)}: needs "after", an iteration of its own from 1 up, and "rings"'
            )
            continue
        assert isinstance(entry, dict)
        traffic = json.dumps(entry["traffic"], sort_keys=True) if "traffic" in entry else None
        ring_changes[after] = PlannedRingChange(
            after, ring_orders(rings, world, f"{name}.rings", problems), traffic
        )
    return tuple(ring_changes[after] for after in sorted(ring_changes))


def _functions(env: Mapping[str, str], problems: list[str]) -> dict[str, Grant]:
    try:
        return {
            name: Grant.of(given)
            for name, given in json.loads(env.get("TESTBED_FUNCTIONS") or "{}").items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"TESTBED_FUNCTIONS: not what packet switches give: {error!r}")
        return {}


def _words(env: Mapping[str, str], name: str, wanted: str, problems: list[str]) -> tuple[str, ...]:
    words = _json_list(env, name, problems)
    problems += [
        f"{name}[{k}]: {word!r}: not {wanted}"
        for k, word in enumerate(words)
        if not isinstance(word, str)
    ]
    return tuple(str(word) for word in words)


def _json_list(env: Mapping[str, str], name: str, problems: list[str]) -> list[object]:
    try:
        value = json.loads(env.get(name) or "[]")
    except ValueError as error:
        problems.append(f"{name}: not JSON: {error}")
        return []
    if not isinstance(value, list):
        problems.append(f"{name}: not a JSON list")
        return []
    return value


def own_address(other: str) -> str:
    """Return the local address from which `other` is reached; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))
        except OSError as error:
            raise BadPlace([f"MASTER_ADDR: {other!r}: {error}"]) from error
        return str(probe.getsockname()[0])
