"""A device misbehaves during a change, in the ways that the stories by seed (`tests.sim`) do not
have or do not judge to the word.

What comes of it must be success, everything exactly as before, or an exit 7 whose list names what
is really wrong; the emulated devices and the hosts themselves are the judges. After an exit 7 the
fault is taken away and `testbed rollback` must mend the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulators.devices.faults import COMMAND_FAULTS
from optics import HandsNeeded, NotVerified, Port, RolledBack, TestbedError
from orchestrator.verbs import change as engine
from tests.drills.bench import BOOT_S, Bench, opened, plan_text
from tests.drills.switches import Pair

STAY = (("gpu01:p3", "gpu03:p3"), ("gpu01:p4", "gpu03:p4"))
HERE = (
    ("gpu01:p1", "gpu02:p1"),
    ("gpu03:p1", "gpu04:p1"),
    ("gpu02:p2", "gpu03:p2"),
    ("gpu01:p2", "gpu04:p2"),
    *STAY,
)
OTHER = (
    ("gpu01:p1", "gpu03:p1"),
    ("gpu02:p1", "gpu04:p1"),
    ("gpu01:p2", "gpu02:p2"),
    ("gpu03:p2", "gpu04:p2"),
    *STAY,
)
"""On each of the two devices four circuits move, two more stay, and one is somebody else's."""
HOSTS = 4
LIMIT_S = 60.0
SUCCESS, BACK, UNCHANGED, HANDS, WRONG = "success", "rolled back", "unchanged", "exit 7", "WRONG"


@dataclass(frozen=True)
class Case:
    """A fault of a device. at: the command that it strikes ("write 3"), or when one that stands
    begins ("the beginning").
    """

    device: str
    kind: str
    at: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        more = "".join(f", {name} {value}" for name, value in self.more.items())
        return f"{self.kind} of {self.device}{more}, at {self.at}"


@dataclass(frozen=True)
class State:
    """Everything that a change may change."""

    held: Mapping[str, set[Pair]]
    routes: Mapping[str, Any]
    lit: Mapping[str, frozenset[Pair]]
    plan: str


def state(bench: Bench) -> State:
    with bench.store() as store:
        current = store.current(bench.tenancy())
    return State(
        bench.held(), bench.routes(), dict(bench.lit), current.plan_name if current else ""
    )


@dataclass(frozen=True)
class Judgement:
    """What came of a case. problems: what is not as that means; message: the program's own."""

    outcome: str
    problems: list[str] = field(default_factory=list)
    message: str = ""


async def tried(folder: Path, case: Case) -> Judgement:
    """Carry out a change on a lab of its own while the fault strikes."""
    async with opened(folder, hosts=HOSTS) as bench:
        await bench.up(plan_text("here", HERE))
        was = state(bench)
        assert was.held == bench.wanted(HERE)
        arm(bench, case)
        error: BaseException | None = None
        try:
            async with asyncio.timeout(LIMIT_S):
                await bench.up(plan_text("there", OTHER))
        except Exception as problem:
            error = problem
        return await judged(bench, was, error, case)


def arm(bench: Bench, case: Case) -> None:
    """Arm the fault, or have it armed at the moment it is to begin."""
    server = bench.servers[case.device]
    on, _, place = case.at.partition(" ")
    if case.kind in COMMAND_FAULTS:
        server.add_fault(case.kind, on=on, after=int(place) - 1, count=1, **case.more)
        return
    if on != "write":
        server.add_fault(case.kind, **case.more)
        return
    writes, seen = server.dialect.writes, 0
    execute = server.dialect.execute

    def counted(session: Any, command: str, now: float) -> bytes:
        nonlocal seen
        if writes.search(command):
            seen += 1
            if seen == int(place):
                server.dialect.inject(now, case.kind, **case.more)
        return execute(session, command, now)

    server.dialect.execute = counted  # type: ignore[method-assign]


async def judged(bench: Bench, was: State, error: BaseException | None, case: Case) -> Judgement:
    await asyncio.sleep(
        BOOT_S if any(s.dialect.down(s.loop.time()) for s in bench.servers.values()) else 0.02
    )
    now = state(bench)
    text = "" if error is None else f"{type(error).__name__}: {error}"
    # A Calient that says it deleted a connection is believed, for its table takes long to read; it
    # refuses the port by itself.
    found = [] if case.kind == "silent-failure" and case.device == "ocs2" else bench.violations()
    if error is None:
        found += differences(now, bench.wanted(OTHER), None, "there", bench)
        return Judgement(WRONG if found else SUCCESS, found, text)
    if not isinstance(error, TestbedError):
        return Judgement(WRONG, [f"no error of the program: {error!r}"], text)
    if isinstance(error, HandsNeeded):
        found += unnamed(was, now, error.left, bench)
        found += await mended(bench, was)
        return Judgement(WRONG if found else HANDS, found, text)
    with bench.store() as store:
        found += [f"run {r.id} counts as unfinished" for r in store.unfinished(bench.key, "ann")]
    if isinstance(error, RolledBack):
        found += differences(now, was.held, was, was.plan, bench)
        return Judgement(WRONG if found else BACK, found, text)
    if struck := [
        name for name in was.held if now.held[name] != was.held[name] and f"{name}:" in str(error)
    ]:
        # it lost its circuits by itself, before anything was begun
        found += await shown(bench, was, struck)
    else:
        found += differences(now, was.held, was, was.plan, bench)
    return Judgement(WRONG if found else UNCHANGED, found, text)


async def shown(bench: Bench, was: State, struck: list[str]) -> list[str]:
    """Devices lost circuits, and not by us: `status` must say which, and `restore` must bring ours
    back.
    """
    status = await bench.status()
    found = []
    for device in (d for d in status.devices if d.name in struck):
        lost = {
            f"{a}->{b}"
            for a, b in was.held[device.name]
            - bench.held()[device.name]
            - {bench.foreign(device.name)}
        }
        if {
            m.partition(":")[2] if m.startswith(f"{device.name}:") else m for m in device.missing
        } != lost:
            found.append(
                f"status says of {device.name} that {device.missing} is missing; it is {sorted(lost)}"
            )
    await heal(bench)
    await bench.verb(engine.restore)
    return found + [
        f"after restore: {line}"
        for line in differences(state(bench), was.held, was, was.plan, bench)
    ]


async def heal(bench: Bench) -> None:
    """Take the faults away; whose the foreign circuits are makes them again."""
    for server in bench.servers.values():
        for armed in server.list_faults():
            server.remove_fault(int(str(armed["id"])))
    await asyncio.sleep(2 * BOOT_S)
    for name in bench.servers:
        if bench.foreign(name) not in bench.held()[name]:
            bench.make_foreign(name)


async def mended(bench: Bench, was: State) -> list[str]:
    """Take the faults away and roll back once more: then everything must be as before."""
    await heal(bench)
    try:
        await bench.verb(engine.rollback, None)
    except NotVerified as error:
        # A circuit that the device says it holds, and whose light it lost: said, and made again by
        # taking it down first.
        dark = [str(port) for port in bench.dark(HERE)]
        if not dark or not all(port in str(error) for port in dark):
            return [f"with the fault gone, rollback says: {error}; dark are {dark}"]
        await bench.verb(engine.down)
        await bench.up(plan_text("here", HERE))
    except TestbedError as error:
        return [f"with the fault gone, rollback says: {type(error).__name__}: {error}"]
    return [
        f"after a second rollback: {line}"
        for line in differences(state(bench), was.held, was, was.plan, bench)
    ]


def differences(
    now: State, held: Mapping[str, set[Pair]], was: State | None, plan: str, bench: Bench
) -> list[str]:
    """What is not as it must be."""
    found = []
    for name, pairs in held.items():
        found += [f"{name}: {a}->{b} is missing" for a, b in sorted(pairs - now.held[name])]
        found += [
            f"{name}: {a}->{b} should not be there" for a, b in sorted(now.held[name] - pairs)
        ]
    if was is None:  # a success: every circuit carries light
        found += [
            f"{name}: {a}->{b} is dark"
            for name, pairs in held.items()
            for a, b in sorted(pairs - now.lit[name])
        ]
        if len({str(r) for r in now.routes.values() if r is None}):
            found.append(f"hosts without routes: {[h for h, r in now.routes.items() if r is None]}")
    elif now.routes != was.routes:
        found.append(f"other routes on {[h for h in now.routes if now.routes[h] != was.routes[h]]}")
    if now.plan != plan:
        found.append(f"the store says {now.plan!r} is up")
    if owing := bench.owing():
        found.append(f"routes of {owing} will not stay")
    with bench.store() as store:
        current = store.current(bench.tenancy())
        owned = {
            (s.ingress.device, (s.ingress.label, s.egress.label))
            for s in store.owned(bench.tenancy())
        }
    active = {host.active for host in bench.fleet.all.values()}
    if current is not None and active != {current.generation}:
        found.append(f"hosts run {active}, the store says {current.generation}")
    ours = {
        (name, pair)
        for name, pairs in held.items()
        for pair in pairs
        if pair != bench.foreign(name)
    }
    found += [
        f"the store owns {name}:{pair}, and nobody wants it" for name, pair in sorted(owned - ours)
    ]
    found += [f"the store does not own {name}:{pair}" for name, pair in sorted(ours - owned)]
    return found


_CIRCUIT = re.compile(r"(\S+): (\S+)->(\S+?) (was there and is not|is there and was not)")


def unnamed(was: State, now: State, left: Iterable[str], bench: Bench) -> list[str]:
    """What is wrong and not on the list, and what is on the list and not so."""
    lines = list(left)
    silent = {line.partition(":")[0] for line in lines if "does not answer" in line}
    notices = {(m[1], (m[2], m[3]), m[4]) for line in lines if (m := _CIRCUIT.match(line))}
    found = []
    true = set()
    for name, pairs in was.held.items():
        true |= {(name, pair, "was there and is not") for pair in pairs - now.held[name]}
        true |= {(name, pair, "is there and was not") for pair in now.held[name] - pairs}
    # What a device reports and does not do is known by the light alone: the port it does not reach
    # is named instead.
    dark = {
        f.leaves: str(p)
        for p, f in bench.lab.fibres.items()
        if str(p) in {line.partition(": had light")[0] for line in lines}
    }
    true = {
        one
        for one in true
        if one in notices or one[2] != "was there and is not" or Port(one[0], one[1][1]) not in dark
    }
    found += [
        f"not on the list: {name}: {pair} {what}"
        for name, pair, what in sorted(true - notices)
        if name not in silent
    ]
    found += [
        f"on the list and not so: {name}: {pair} {what}"
        for name, pair, what in sorted(notices - true)
    ]
    named = {line.partition(":")[0] for line in lines}
    hosts = {h for h in now.routes if now.routes[h] != was.routes[h]} | set(bench.owing())
    found += [f"not on the list: {host} has other routes" for host in sorted(hosts - named)]
    return found or ([] if lines else ["an exit 7 without a list"])
