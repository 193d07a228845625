"""Verdicts from made signals: every kind of fault, two at once, what only looks like one, and no
verdict on noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from optics import HostName, HostPort, Link
from optics.ranks import RankName
from orchestrator.hosts.api import ClockReading, Flow, Heartbeat, Load, Process, RankLoad, RankTimes
from orchestrator.verify.diagnosis import main_fault, open_question, resending, verdicts
from orchestrator.verify.pace import pace, suspects
from orchestrator.verify.qualification import Direction
from orchestrator.verify.report import LinkQuality
from orchestrator.verify.signals import KINDS, PlannedLink, Signals, Verdict

HOSTS: tuple[HostName, ...] = tuple(f"gpu{n:02d}" for n in range(1, 7))
RANKS: tuple[RankName, ...] = HOSTS
USUAL = 200.0


def port(n: int, number: int = 1) -> HostPort:
    return HostPort(f"gpu{n:02d}", number)


def wire(n: int) -> PlannedLink:
    """Link n of the ring: from port 1 of host n to port 2 of the next one, over ocs1."""
    a, b = port(n), port(n % 6 + 1, 2)
    return PlannedLink(
        Link(a, b),
        circuits={
            f"{a}->{b}": (f"ocs1:{n}->{20 + n}",),
            f"{b}->{a}": (f"ocs1:{10 + n}->{30 + n}",),
        },
    )


WIRES = tuple(wire(n) for n in range(1, 7))
LIT = {p: True for w in WIRES for p in w.ports}


def times(
    compute: Mapping[RankName, float] | None = None,
    *,
    slow_from: int = 10**9,
    longer: float = 0.0,
    noise: random.Random | None = None,
) -> dict[RankName, tuple[RankTimes, ...]]:
    """Forty iterations of every rank: 80 ms of computing and 120 of exchange; from `slow_from` on,
    `longer` (ms) and `compute`.
    """
    found: dict[RankName, list[RankTimes]] = {rank: [] for rank in RANKS}
    for i in range(1, 41):
        slow = i >= slow_from
        each = {r: (compute or {}).get(r, 80.0) if slow else 80.0 for r in RANKS}
        if noise is not None:
            each = {r: ms * noise.lognormvariate(0, 0.25) for r, ms in each.items()}
        span = max(each.values()) + (120.0 + (longer if slow else 0.0)) * (
            noise.lognormvariate(0, 0.15) if noise else 1.0
        )
        for rank, ms in each.items():
            wait = max(each.values()) - ms
            found[rank].append(RankTimes(i, i * 10**9, span, ms, span - ms, wait))
    return {rank: tuple(rows) for rank, rows in found.items()}


def heartbeats(
    rows: Mapping[RankName, tuple[RankTimes, ...]], **changes: Mapping[RankName, object]
) -> dict[RankName, Heartbeat]:
    """Running ranks in the exchange of iteration 41; changes: another value of a field, by rank."""
    made = {}
    for rank in RANKS:
        fields = {name: values[rank] for name, values in changes.items() if rank in values}
        made[rank] = replace(
            Heartbeat(rank, "running", None, 41, "exchange", 0.1, rows[rank]), **fields
        )  # type: ignore[arg-type]
    return made


def load(host: HostName, foreign: float = 0.05, state: str = "S", heartbeat: str = "") -> Load:
    return Load(
        host,
        1.0,
        2,
        1.0,
        {host: RankLoad(state, 0.8, heartbeat)},
        (Process(77, "stress", foreign),),
    )


HEALTHY = Signals(
    "ddp",
    "running",
    RANKS,
    heartbeats(times()),
    USUAL,
    wires=WIRES,
    carriers=LIT,
    deaf=frozenset(),
    loads={h: load(h) for h in HOSTS},
    clocks={h: ClockReading(200_000, 800_000) for h in HOSTS},
)
SLOW = replace(HEALTHY, heartbeats=heartbeats(times(slow_from=34, longer=200.0)))


def stuck(**changes: Mapping[RankName, object]) -> Signals:
    """All ranks have stood in iteration 41 for 5 s."""
    age_s = {**dict.fromkeys(RANKS, 5.0), **changes.pop("age_s", {})}
    return replace(HEALTHY, heartbeats=heartbeats(times(), age_s=age_s, **changes))


def quality(bad: Mapping[Direction, LinkQuality] | None = None) -> dict[Direction, LinkQuality]:
    found = {}
    for w in WIRES:
        for d in (Direction(w.link.a, w.link.b), Direction(w.link.b, w.link.a)):
            found[d] = LinkQuality(str(d), 240.0, None, 0.0, 80.0, 1000, 1000)
    return {**found, **(bad or {})}


THIRD = Direction(port(3), port(4, 2))


def flows(
    bad: Mapping[Direction, Flow] | None = None, *, seconds: float = 1.0
) -> dict[Direction, Flow]:
    """What the ring's one direction carries: 30 Mb/s on average, at 250 while it is busy."""
    found = {
        Direction(w.link.a, w.link.b): Flow(
            "", "", 1, seconds, round(3.75e6 * seconds), 0.12 * seconds, 400, 0
        )
        for w in WIRES
    }
    return {**found, **(bad or {})}


SLOW_FLOW = Flow("", "", 1, 1.0, 5_750_000, 0.92, 640, 0)
LOSSY_FLOW = Flow("", "", 1, 10.0, 37_500_000, 1.3, 4000, 40, 6)
SLOWING = heartbeats(times(slow_from=40, longer=200.0))


def clean(d: Direction, mbps: float, loss: float) -> LinkQuality:
    return LinkQuality(str(d), mbps, None, loss, mbps / 3, 1000, round(1000 * (1 - loss)))


def but(signals: Signals, **changes: object) -> Signals:
    return replace(signals, **changes)  # type: ignore[arg-type]


def without_host(n: int, signals: Signals = HEALTHY) -> Signals:
    """Host n is switched off: it does not answer, and its neighbours' ports are dark."""
    lost = f"gpu{n:02d}"
    dark = {far for w in WIRES if lost in {end.host for end in w.ports} for far in w.ports}
    carriers = {p: p not in dark for p in LIT if p.host != lost}
    left = {r: b for r, b in signals.heartbeats.items() if r != lost}
    return but(signals, silent={lost: f"{lost}: no answer"}, carriers=carriers, heartbeats=left)


CUT = {**LIT, port(3): False, port(4, 2): False}
LATE = heartbeats(times({"gpu05": 260.0}, slow_from=34))
ENDED = dict.fromkeys(RANKS, "exited")
SEGMENT = tuple(
    PlannedLink(Link(port(a, 3), port(b, 3)), "rack1") for a in range(1, 4) for b in range(a + 1, 4)
)
SEGMENT_LIT = {**LIT, **{p: True for w in SEGMENT for p in w.ports}}
PLANE = tuple(
    PlannedLink(
        Link(port(a, 3), port(b, 3)),
        "plane1",
        switches=(f"rack {1 + (a > 3)} of plane1", f"rack {1 + (b > 3)} of plane1"),
    )
    for a in range(1, 7)
    for b in range(a + 1, 7)
)
PLANE_LIT = {**LIT, **{p: True for w in PLANE for p in w.ports}}
RACK1 = frozenset(port(n, 3) for n in (1, 2, 3))

FAULTS: dict[str, tuple[Signals, str, str]] = {
    "a fibre is cut": (
        but(HEALTHY, carriers=CUT, lost={"gpu03:p1->gpu04:p2": "no light arrives at ocs1:3"}),
        "dark-circuit",
        "circuit ocs1:3->23",
    ),
    "a circuit is gone from the switch": (
        but(
            HEALTHY,
            carriers={**LIT, port(4, 2): False},
            missing={"gpu03:p1->gpu04:p2": ("ocs1:3->23",)},
        ),
        "dark-circuit",
        "circuit ocs1:3->23",
    ),
    "a rank is killed and its peers lose it": (
        but(
            HEALTHY,
            state="failed",
            heartbeats=heartbeats(
                times(), state=ENDED, code={**dict.fromkeys(RANKS, 75), "gpu05": 137}
            ),
        ),
        "dead-rank",
        "rank gpu05",
    ),
    "a rank crashes and its peers end as their program does": (
        but(
            HEALTHY,
            state="failed",
            heartbeats=heartbeats(
                times(), state=ENDED, code={**dict.fromkeys(RANKS, 1), "gpu05": 139}
            ),
        ),
        "dead-rank",
        "rank gpu05",
    ),
    "a rank is killed a moment ago": (
        but(HEALTHY, heartbeats=heartbeats(times(), state={"gpu05": "killed"})),
        "dead-rank",
        "rank gpu05",
    ),
    "a rank is stopped in its computing": (
        but(
            stuck(phase={"gpu02": "compute"}),
            loads={h: load(h, state="T" if h == "gpu02" else "S") for h in HOSTS},
        ),
        "hung-rank",
        "rank gpu02",
    ),
    "a rank is stopped in an exchange": (
        but(stuck(), loads={h: load(h, state="T" if h == "gpu06" else "S") for h in HOSTS}),
        "hung-rank",
        "rank gpu06",
    ),
    "a rank spins": (stuck(phase={"gpu02": "compute"}), "hung-rank", "rank gpu02"),
    "a rank is left behind": (
        stuck(iteration={"gpu04": 40}, phase={"gpu04": "end"}),
        "hung-rank",
        "rank gpu04",
    ),
    "a rank is stopped in writing a checkpoint": (
        stuck(
            iteration={"gpu04": 40},
            phase={"gpu04": "save"},
            save_s={"gpu04": 0.02},
            age_s={"gpu04": 20.0},
        ),
        "hung-rank",
        "rank gpu04",
    ),
    "a host is off, its peers stand": (without_host(4, stuck()), "dead-host", "host gpu04"),
    "a host is off, its peers have ended": (
        without_host(
            4,
            but(
                HEALTHY, heartbeats=heartbeats(times(), state=ENDED, code=dict.fromkeys(RANKS, 75))
            ),
        ),
        "dead-host",
        "host gpu04",
    ),
    "all hosts have started again": (
        but(HEALTHY, bare=frozenset(HOSTS), heartbeats={}, carriers={}, loads={}),
        "dead-host",
        "host gpu01, gpu02, gpu03, gpu04, gpu05, gpu06",
    ),
    "a packet switch is off": (
        but(
            HEALTHY,
            wires=(*WIRES, *SEGMENT),
            carriers={**SEGMENT_LIT, **{port(n, 3): False for n in (1, 2, 3)}},
        ),
        "dead-segment",
        "segment rack1",
    ),
    "a packet switch forwards nothing": (
        but(
            HEALTHY,
            wires=(*WIRES, *SEGMENT),
            carriers=SEGMENT_LIT,
            deaf=frozenset(port(n, 3) for n in (1, 2, 3)),
        ),
        "dead-segment",
        "segment rack1",
    ),
    "the switch of one rack is off": (
        but(HEALTHY, wires=(*WIRES, *PLANE), carriers={**PLANE_LIT, **dict.fromkeys(RACK1, False)}),
        "dead-segment",
        "segment rack 1 of plane1",
    ),
    "the switch of one rack forwards nothing": (
        but(HEALTHY, wires=(*WIRES, *PLANE), carriers=PLANE_LIT, deaf=RACK1),
        "dead-segment",
        "segment rack 1 of plane1",
    ),
    "the switches of all racks of a plane are off": (
        but(HEALTHY, wires=(*WIRES, *PLANE), carriers={p: p.number != 3 for p in PLANE_LIT}),
        "dead-segment",
        "segment plane1",
    ),
    "of a plane only one rack can be asked": (
        but(
            HEALTHY,
            wires=(*WIRES, *PLANE),
            carriers={**PLANE_LIT, **dict.fromkeys(RACK1, False)},
            silent={f"gpu{n:02d}": "no answer" for n in (4, 5, 6)},
        ),
        "dead-segment",
        "segment rack 1 of plane1",
    ),
    "processes take a host's processors": (
        but(
            HEALTHY,
            heartbeats=LATE,
            loads={h: load(h, 1.9 if h == "gpu05" else 0.05) for h in HOSTS},
        ),
        "busy-host",
        "host gpu05",
    ),
    "a host alone computes while processes take its processors": (
        but(
            HEALTHY,
            heartbeats=heartbeats(
                times(), phase={"gpu05": "compute"}, age_s=dict.fromkeys(RANKS, 0.2)
            ),
            loads={h: load(h, 0.9 if h == "gpu05" else 0.05, "R") for h in HOSTS},
        ),
        "busy-host",
        "host gpu05",
    ),
    "a host takes so long that a rank seems to hang while processes take its processors": (
        but(
            stuck(phase={"gpu05": "compute"}),
            loads={h: load(h, 0.9 if h == "gpu05" else 0.05, "R") for h in HOSTS},
        ),
        "busy-host",
        "host gpu05",
    ),
    "a host is late for a reason unknown": (
        but(HEALTHY, heartbeats=LATE),
        "busy-host",
        "host gpu05",
    ),
    "a host is late and the job hardly slower": (
        but(HEALTHY, heartbeats=heartbeats(times({"gpu05": 125.0}, slow_from=34))),
        "busy-host",
        "host gpu05",
    ),
    "processes of one of several hosts that share processors": (
        but(SLOW, loads={h: load(h, 1.9 if h == "gpu05" else 0.05) for h in HOSTS}),
        "busy-host",
        "host gpu05",
    ),
    "a link is slow": (
        but(
            SLOW,
            shared=True,
            quality=quality({THIRD: LinkQuality(str(THIRD), 48.0, None, 0.0, 16.0, 300, 300)}),
        ),
        "slow-link",
        "link gpu03:p1 - gpu04:p2",
    ),
    "a link is so slow that the job stands": (
        but(
            stuck(),
            shared=True,
            quality=quality({THIRD: LinkQuality(str(THIRD), 4.0, None, 0.0, 2.0, 60, 60)}),
        ),
        "slow-link",
        "link gpu03:p1 - gpu04:p2",
    ),
    "a link loses": (
        but(
            SLOW,
            shared=True,
            quality=quality({THIRD: LinkQuality(str(THIRD), 230.0, None, 0.012, 80.0, 2000, 1976)}),
        ),
        "lossy-link",
        "link gpu03:p1 - gpu04:p2",
    ),
    "a link is slow by what the job sends over it": (
        but(HEALTHY, heartbeats=SLOWING, carried=flows({THIRD: SLOW_FLOW})),
        "slow-link",
        "link gpu03:p1 - gpu04:p2",
    ),
    "a link has held up one exchange for longer than an iteration": (
        but(
            HEALTHY,
            heartbeats=heartbeats(times(), age_s=dict.fromkeys(RANKS, 0.3)),
            carried=flows({THIRD: SLOW_FLOW}),
        ),
        "slow-link",
        "link gpu03:p1 - gpu04:p2",
    ),
    "TCP sends again what goes over one link": (
        but(HEALTHY, past=flows({THIRD: LOSSY_FLOW}, seconds=10.0)),
        "lossy-link",
        "link gpu03:p1 - gpu04:p2",
    ),
    "two fibres are exchanged": (
        but(
            HEALTHY,
            strangers={
                port(1): port(4, 2),
                port(2, 2): port(3),
                port(3): port(2, 2),
                port(4, 2): port(1),
            },
        ),
        "crossed-fibres",
        "links gpu01:p1 - gpu02:p2 and gpu03:p1 - gpu04:p2",
    ),
    "a fibre is exchanged with one that the plan does not use": (
        but(HEALTHY, strangers={port(1): port(5, 4)}),
        "crossed-fibres",
        "link gpu01:p1 - gpu02:p2",
    ),
    "the cable of one of several hosts at a packet switch is out": (
        but(HEALTHY, wires=(*WIRES, *PLANE), carriers={**PLANE_LIT, port(2, 3): False}),
        "dark-circuit",
        "cable gpu02:p3 - rack 1 of plane1",
    ),
    "no frame arrives over the cable of one host": (
        but(stuck(), wires=(*WIRES, *SEGMENT), carriers=SEGMENT_LIT, deaf=frozenset([port(2, 3)])),
        "lossy-link",
        "cable gpu02:p3 - rack1",
    ),
    "all links over one cable are slow": (
        but(
            SLOW,
            wires=(*WIRES, *SEGMENT),
            carriers=SEGMENT_LIT,
            quality=quality(
                {
                    d: clean(d, 24.0 if port(2, 3) in w.ports else 240.0, 0.0)
                    for w in SEGMENT
                    for d in (Direction(*w.ports),)
                }
            ),
        ),
        "slow-link",
        "cable gpu02:p3 - rack1",
    ),
    "a host made the latest iteration long and goes on so": (
        but(
            HEALTHY,
            heartbeats=heartbeats(
                times({"gpu05": 400.0}, slow_from=40),
                phase={"gpu05": "compute"},
                age_s=dict.fromkeys(RANKS, 0.4),
            ),
        ),
        "busy-host",
        "host gpu05",
    ),
    "a link with light carries nothing": (
        but(stuck(), deaf=frozenset([port(4, 2)])),
        "lossy-link",
        "link gpu03:p1 - gpu04:p2",
    ),
    "a clock is wrong": (
        but(HEALTHY, clocks={**HEALTHY.clocks, "gpu02": ClockReading(-900_000_000, 800_000)}),
        "clock",
        "host gpu02",
    ),
    "a rank's clock is ahead": (
        but(
            HEALTHY,
            heartbeats=heartbeats(times(), phase={"gpu02": ""}, age_s={"gpu02": math.inf}),
            loads={
                h: load(
                    h, heartbeat="the file has a time that is yet to come" if h == "gpu02" else ""
                )
                for h in HOSTS
            },
        ),
        "clock",
        "host gpu02",
    ),
    "its launch failed": (
        Signals(
            "ddp",
            "failed",
            RANKS,
            {rank: Heartbeat(rank, "absent", None, 0, "", math.inf, ()) for rank in RANKS},
            wires=WIRES,
            carriers=LIT,
            why="the tap of job ddp could not begin\ngpu01: the shadow on gpu07 ended (exit 1)",
            unlaunched=True,
        ),
        "not-launched",
        "job ddp",
    ),
    "GIDs moved, and ranks fail to begin": (
        but(
            HEALTHY,
            state="failed",
            heartbeats=heartbeats(times(), state=ENDED, code=dict.fromkeys(RANKS, 1)),
            rdma={**dict.fromkeys(HOSTS, ()), "gpu03": ("p1: qedr0 has it at index 5",)},
        ),
        "rdma-ports",
        "host gpu03",
    ),
    "no job, one host sums slowly": (
        Signals(
            wires=WIRES,
            carriers=LIT,
            quality=quality(),
            collective={("gpu03",): "an all-reduce with gpu03 reaches 20 %"},
        ),
        "busy-host",
        "host gpu03",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_component_and_evidence_in_numbers(name: str) -> None:
    signals, kind, component = FAULTS[name]
    verdict = main_fault(signals)
    assert (verdict.kind, verdict.component) == (kind, component), verdict
    assert (
        verdict.kind in KINDS
        and 0.5 <= verdict.confidence <= 1
        and verdict.next_command.startswith("testbed ")
    )
    assert any(c.isdigit() for line in verdict.evidence for c in line)
    assert len(verdicts(signals)) == 1, "what a fault explains is no fault of its own"


def test_every_kind_of_fault_is_among_these() -> None:
    assert {kind for _, kind, _ in FAULTS.values()} == set(KINDS) - {"none", "unknown"}


def test_an_rdma_port_that_is_otherwise_is_no_fault_of_a_job_that_goes_on() -> None:
    rdma = {"gpu03": ("p1: qedr0 has it at index 5",)}
    assert main_fault(but(HEALTHY, rdma=rdma)).kind == "none"
    assert main_fault(but(SLOW, rdma=rdma)).kind == "unknown"
    assert main_fault(but(stuck(), rdma=rdma)).kind == "rdma-ports"


def test_a_rank_that_crashed_beside_an_rdma_port_that_is_otherwise_is_named_too() -> None:
    code = {**dict.fromkeys(RANKS, 75), "gpu03": 139}
    found = verdicts(
        but(
            HEALTHY,
            state="failed",
            heartbeats=heartbeats(times(), state=ENDED, code=code),
            rdma={"gpu03": ("p1: qedr0 has it at index 5",)},
        )
    )
    assert [verdict.kind for verdict in found] == ["rdma-ports", "dead-rank"]


CANNOT: dict[str, Signals] = {
    "all ranks wait for each other": stuck(),
    "the job is slow and nothing shows why": SLOW,
    "the job is slow and a busy machine measures all links worse": but(
        SLOW,
        shared=True,
        quality={d: clean(d, 60.0 + 5 * n, 0.01) for n, d in enumerate(quality())},
    ),
    "all ranks lost a peer": but(
        HEALTHY,
        state="failed",
        heartbeats=heartbeats(times(), state=ENDED, code=dict.fromkeys(RANKS, 75)),
    ),
    "all ranks end in the same way": but(
        HEALTHY,
        state="failed",
        heartbeats=heartbeats(times(), state=ENDED, code=dict.fromkeys(RANKS, 1)),
    ),
    "all ranks fail, one because its launcher ends it": but(
        HEALTHY,
        state="failed",
        heartbeats=heartbeats(times(), state=ENDED, code={**dict.fromkeys(RANKS, 1), "gpu05": 143}),
    ),
    "a host does not answer and its job goes on": but(
        HEALTHY, silent={"gpu04": "gpu04: connection refused"}
    ),
    "two ranks compute while the others wait": stuck(
        phase={"gpu02": "compute", "gpu05": "compute"}
    ),
    "all clocks differ from this one": but(
        HEALTHY, clocks={h: ClockReading(2_000_000_000, 800_000) for h in HOSTS}
    ),
    "a rank writes a checkpoint for longer than the others": stuck(
        iteration={"gpu04": 40},
        phase={"gpu04": "save"},
        save_s={"gpu04": 0.02},
        age_s={"gpu04": 9.0},
    ),
    "a change is under way": but(stuck(), moving="run 2026-11-21-0007 (up ring-12)"),
    "the job failed and no rank says how": but(
        HEALTHY, state="failed", heartbeats={}, why="gpu05: exit 1"
    ),
    "only two links were measured": but(SLOW, quality=dict(list(quality().items())[:2])),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_told_is_not_guessed(name: str) -> None:
    verdict = main_fault(CANNOT[name])
    assert (verdict.kind, verdict.component, verdict.confidence) == ("unknown", "", 0.0), verdict
    assert verdict.evidence and verdict.next_command


FINE: dict[str, Signals] = {
    "all is well": HEALTHY,
    "two slow iterations": but(
        HEALTHY, heartbeats=heartbeats(times({"gpu05": 600.0}, slow_from=39))
    ),
    "busy processors under a job at its usual pace": but(
        HEALTHY, loads={h: load(h, 1.9 if h == "gpu05" else 0.0) for h in HOSTS}
    ),
    "a slow link under a job at its usual pace": but(
        HEALTHY,
        shared=True,
        quality=quality({THIRD: LinkQuality(str(THIRD), 100.0, None, 0.0, 33.0, 300, 300)}),
    ),
    "the job pauses": but(stuck(phase=dict.fromkeys(RANKS, "hold")), state="paused"),
    "ranks end their last iteration": stuck(phase=dict.fromkeys(RANKS, "end")),
    "the job finished": but(
        HEALTHY,
        state="finished",
        heartbeats=heartbeats(times(), state=ENDED, code=dict.fromkeys(RANKS, 0)),
    ),
    "the job starts": but(
        HEALTHY,
        usual_ms=None,
        heartbeats=heartbeats(
            dict.fromkeys(RANKS, ()),
            phase=dict.fromkeys(RANKS, "start"),
            age_s=dict.fromkeys(RANKS, 30.0),
        ),
    ),
    "a host computes no longer than usual beside other processes": but(
        HEALTHY,
        heartbeats=heartbeats(times(), phase={"gpu05": "compute"}, age_s=dict.fromkeys(RANKS, 0.1)),
        loads={h: load(h, 0.9 if h == "gpu05" else 0.05) for h in HOSTS},
    ),
    "a slow flow under a job at its usual pace": but(HEALTHY, carried=flows({THIRD: SLOW_FLOW})),
    "a flow of which little is sent": but(
        HEALTHY,
        heartbeats=SLOWING,
        carried=flows({THIRD: replace(SLOW_FLOW, busy_s=0.2, bytes=10**6)}),
    ),
    "segments sent again until some seconds ago": but(
        HEALTHY, past=flows({THIRD: LOSSY_FLOW}), carried=flows()
    ),
    "segments sent again at one moment": but(
        HEALTHY, past=flows({THIRD: replace(LOSSY_FLOW, times=1)})
    ),
    "segments sent again everywhere": but(HEALTHY, past=dict.fromkeys(flows(), LOSSY_FLOW)),
    "one long iteration of a host that waits again": but(
        HEALTHY, heartbeats=heartbeats(times({"gpu05": 400.0}, slow_from=40))
    ),
    "a pause of two seconds less a moment": replace(
        HEALTHY, heartbeats=heartbeats(times(), age_s=dict.fromkeys(RANKS, 1.9))
    ),
    "one loss of few datagrams": but(
        SLOW, state="finished", quality=quality({THIRD: clean(THIRD, 230.0, 0.005)})
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_where_nothing_is_wrong_nothing_is_named(name: str) -> None:
    assert main_fault(FINE[name]).kind == "none", main_fault(FINE[name])


def test_the_next_command_moves_the_link_of_the_plan_that_is_up_and_keeps_what_is_avoided_already() -> (
    None
):
    signals, _, _ = FAULTS["a link with light carries nothing"]
    up = main_fault(
        but(signals, plan_file="'/runs of/plan.json'", avoid=("gpu01:p1", "gpu04:p2"))
    ).next_command
    assert up == "testbed up --topology '/runs of/plan.json' --avoid gpu01:p1 --avoid gpu04:p2"


def test_a_port_at_a_packet_switch_cannot_be_avoided() -> None:
    one = but(
        HEALTHY,
        wires=(*WIRES, *PLANE),
        carriers={**PLANE_LIT, port(2, 3): False},
        plan_file="plan.json",
    )
    assert main_fault(one).next_command == "testbed verify --rung link --rung identity"


def test_noise_alone_names_nobody() -> None:
    noise, wrong = random.Random(16), []
    for _ in range(300):
        rows = times(noise=noise)
        measured = {
            d: clean(d, 240 * noise.uniform(0.75, 1.0), noise.randrange(3) / 1000)
            for d in quality()
        }
        loads = {h: load(h, noise.uniform(0, 0.3)) for h in HOSTS}
        age = {r: noise.uniform(0, 1.5) for r in RANKS}
        verdict = main_fault(
            but(
                HEALTHY,
                heartbeats=heartbeats(rows, age_s=age),
                quality=measured,
                shared=True,
                loads=loads,
            )
        )
        wrong += [verdict] if verdict.wrong else []
    assert wrong == []


def test_a_late_host_is_found_in_the_same_noise() -> None:
    noise, found = random.Random(17), 0
    for _ in range(50):
        rows = times({"gpu05": 320.0}, slow_from=36, noise=noise)
        found += main_fault(but(HEALTHY, heartbeats=heartbeats(rows))).component == "host gpu05"
    assert found >= 45


def test_a_host_whose_tcp_sends_again_what_others_need_not_is_looked_at_closer() -> None:
    def sent(again: Mapping[HostName, int]) -> Signals:
        return but(
            HEALTHY, loads={h: replace(load(h), sent=1000, again=again.get(h, 1)) for h in HOSTS}
        )

    assert (
        not open_question(HEALTHY)
        and not open_question(sent({}))
        and not open_question(sent(dict.fromkeys(HOSTS, 60)))
    )
    assert open_question(sent({"gpu03": 14})) and resending(sent({"gpu03": 14}).loads) == ("gpu03",)
    assert main_fault(sent({"gpu03": 14})).kind == "none", (
        "segments sent again alone are no fault of any link"
    )


def test_two_faults_at_once_are_both_named_the_deeper_first() -> None:
    both = but(without_host(2, stuck()), carriers={**without_host(2).carriers, port(5): False})
    assert [v.component for v in verdicts(both)] == ["host gpu02", "circuit ocs1:15->35"]


def test_a_verdict_depends_on_nothing_but_the_signals() -> None:
    for signals, _, _ in FAULTS.values():
        assert verdicts(signals) == verdicts(signals)
        changed = but(
            signals,
            wires=tuple(reversed(signals.wires)),
            heartbeats=dict(reversed(signals.heartbeats.items())),
        )
        assert {v.component for v in verdicts(changed)} == {v.component for v in verdicts(signals)}


def test_the_links_on_whose_ends_bytes_move_longest_are_suspected_first() -> None:
    rows = times(slow_from=30, longer=100.0)
    moving = {"gpu03": 300.0, "gpu04": 280.0}
    rows |= {
        r: tuple(replace(t, exposed_ms=moving[r], wait_ms=0.0) for t in rows[r]) for r in moving
    }
    ends = [(w.link.a.host, w.link.b.host) for w in WIRES]
    assert suspects(pace(heartbeats(rows), USUAL), ends)[0] == 2


def test_a_verdict_says_whether_it_names_a_fault() -> None:
    assert Verdict("host gpu01", "busy-host").wrong and not Verdict("", "unknown").wrong
