"""Schedules of slots: the operations `slots.load`, `slots.tick`, `slots.turn`, `slots.stop` and `slots`.

A loaded schedule is a list of staged generations: per slot its routes, and its hold, in which the pairs that are about to lose
their path have no route. `slotmachine.py` decides when each becomes active; this module lets it act on the host, keeps the
schedule for the next daemon, and tells programs and whoever watches.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from agent.basics import RUN, Failure, bad, integer, number, read_json, refused, write
from agent.slots.clock import SlotClock
from agent.slots.machine import SlotMachine
from agent.slots.notice import Notices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from agent.routes.generations import Generations
    from agent.shapes import Daemon, Json, Link

    class Host(Daemon, Protocol):
        """A daemon whose generations a schedule makes active."""

        @property
        def generations(self) -> Generations: ...


SLOTS = 64
MOST = 1 << 53  # of slots since the first
STATE = RUN + "/slots.json"
LATER_NS = 1_000_000  # what can wait does, until the commits of hosts that share a machine are done
SEARCH_NS = 3_000_000
PERIOD_S = (0.05, 3600.0)


class Slots:
    """The schedule that is loaded on this host, if one is. committed: called with each slot that becomes active."""

    def __init__(self, server: Host) -> None:
        self.server, self.generations = server, server.generations
        self.request: Json | None = None
        self.machine: SlotMachine | None = None
        self.reach: list[dict[str, int | None]] = []
        self.committed: Callable[[int], None] = lambda slot: None
        self.notices = Notices(server, self.boundary)
        self.restore()

    # -- what the machine does

    def now(self) -> int:
        return time.monotonic_ns()

    def link(self, interface: str) -> Link:
        none: Link = {}
        return self.server.interfaces.get(interface, none)

    def timer(self, at_ns: int, function: Callable[[], object]) -> int:
        return self.server.timer(at_ns, function)

    def cancel(self, handle: int) -> None:
        self.server.cancelled.add(handle)

    def commit(self, slot: int) -> None:
        wanted = self.slots()[slot]["generation"]
        if self.generations.active != wanted:
            self.try_(lambda: self.generations.commit(wanted, quiet=True))
        elif self.generations.pending:
            self.try_(lambda: self.generations.confirm(wanted))
        self.try_(lambda: self.committed(slot))

    def hold(self, slot: int, lease_ns: int) -> None:
        """Take the routes of pairs that are about to lose their path; which sockets wait is looked up afterwards."""
        of, onto = self.slots()[slot], self.slots()[(slot + 1) % len(self.slots())]["generation"]
        if of["hold"] is None:
            return
        self.generations.mark(of["hold"], True)
        self.try_(lambda: self.generations.commit(of["hold"], max(lease_ns, 0) / 1e9, quiet=True))
        self.timer(self.now() + SEARCH_NS, lambda: self.search(of["hold"], onto))

    def search(self, hold: int, onto: int) -> None:
        if self.generations.active == hold:
            self.generations.prepare_kick(hold, onto)

    def changed(self, **fields: object) -> None:
        """Tell programs at once, others and the disk a little later."""
        machine = self.machine
        if machine is None:
            return
        self.notices.say(self.notice(machine))
        state = {"slot": machine.slot, "count": machine.count, "state": machine.state, "late": machine.late}
        event: Json = {"event": "slot", "t_ns": self.now(), **state, "ends_ns": machine.end_ns(), **fields}
        self.timer(self.now() + LATER_NS, lambda: self.tell(event))

    def tell(self, event: Json) -> None:
        if event["why"] != "hold":
            self.server.broadcast(event)
        self.save()

    def try_(self, act: Callable[[], object]) -> None:
        """A schedule goes on where one commit fails: the next slot is another one."""
        try:
            act()
        except (Failure, OSError) as e:
            sys.stderr.write(f"agent: slots: {e}\n")
            sys.stderr.flush()

    # -- what programs are told

    def notice(self, machine: SlotMachine) -> Json:
        """until_ns, and of each address in reach: when it ends (CLOCK_MONOTONIC), null where no end is known."""
        count = len(self.slots())
        end, period = machine.end_ns(), machine.clock.period_ns
        until = None if end is None else end - machine.guard_ns
        head = {"slot": machine.slot, "cycle": machine.count // count, "until_ns": until}
        if machine.state in ("held", "dark"):
            head["until_ns"] = 0
            kept = self.generations.addresses(self.slots()[machine.slot]["hold"])
            return dict(head, reach=dict.fromkeys(kept))
        reach = self.reach[machine.slot]
        ends = {a: None if n is None or until is None else until + n * period for a, n in reach.items()}
        return dict(head, reach=ends)

    def ends(self) -> list[dict[str, int | None]]:
        """Per slot and address that it reaches: after how many slots more that ends, None if it never does."""
        slots = self.slots()
        day = [self.generations.addresses(s["generation"]) for s in slots]
        night = [self.generations.addresses(s["hold"]) if s["hold"] is not None else day[i] for i, s in enumerate(slots)]
        found: list[dict[str, int | None]] = []
        for k in range(len(slots)):
            reach: dict[str, int | None] = {}
            for address in day[k]:
                lasting = (i for i in range(len(slots)) if address not in night[(k + i) % len(slots)])
                reach[address] = next(lasting, None)
            found.append(reach)
        return found

    def boundary(self, name: str, ended: int) -> None:
        """The processes of a job ended an iteration: who turns by the job's phases waits for that."""
        if self.machine is not None and not self.machine.by_clock:
            self.server.broadcast({"event": "boundary", "t_ns": self.now(), "name": name, "iteration": ended})

    # -- state

    def slots(self) -> list[Json]:
        return self.request["slots"] if self.request is not None else []

    def save(self) -> None:
        machine = self.machine
        if machine is None or self.request is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(STATE)
            return
        clock = {"edges": machine.clock.edges, "coarse": machine.clock.coarse}
        write(STATE, json.dumps({"request": self.request, "count": machine.count, "lease_ns": machine.lease_ns, **clock}))

    def restore(self) -> None:
        """Go on with the schedule of the daemon before this one, in the slot that the clock says if its light is there."""
        kept = read_json(STATE)
        if not kept:
            return
        try:
            self.resume(kept)
        except Exception as e:  # of another version, perhaps: the daemon starts all the same
            sys.stderr.write(f"agent: slots: what was kept is no schedule: {e!r}\n")
            self.leave()
            self.request, self.generations.kept, self.generations.kick.keep = None, set(), False
            self.save()

    def resume(self, kept: Json) -> None:
        self.start(kept["request"], SlotClock(period(kept["request"]), kept["edges"], kept["coarse"]), kept["count"])
        machine, now = self.loaded(), self.now()
        machine.lease_ns = integer(kept, "lease_ns", 0)
        if not machine.by_clock or not machine.clock.known or machine.lease_ns < now:
            return
        passed = max(0, (now - machine.clock.end_ns(kept["count"])) // machine.clock.period_ns + 1)
        lit = self.slots()[(kept["count"] + passed) % len(self.slots())]["rising"]
        if passed < len(self.slots()) and all(self.link(n).get("carrier") for n in lit):
            machine.tick(kept["count"] + passed, None, machine.lease_ns)

    def start(self, request: Json, clock: SlotClock, count: int) -> None:
        self.request = request
        times = {key: int(request[key] * 1e9) for key in ("guard_s", "night_s", "late_s")}
        named: Json = {key.replace("_s", "_ns"): value for key, value in times.items()}
        self.generations.kept = {g for s in request["slots"] for g in (s["generation"], s["hold"]) if g is not None}
        self.generations.kick.keep = True
        self.reach = self.ends()
        named.update(follow=request["follow"], kind=request["kind"])
        self.machine = SlotMachine(self, request["slots"], named, clock, count)

    # -- operations

    def load(self, request: Json) -> Json:
        """Take up a schedule; nothing changes on the host before the first tick."""
        wanted, count = self.checked(request), counted(request) if "count" in request else 0
        self.leave()
        self.start(wanted, SlotClock(period(wanted)), count)
        self.save()
        return {"slots": len(wanted["slots"]), "generations": sorted(self.generations.kept)}

    def checked(self, request: Json) -> Json:
        """The fields of a request to load. Raises: Failure."""
        slots = request.get("slots")
        if not isinstance(slots, list) or not 2 <= len(slots) <= SLOTS or not all(isinstance(s, dict) for s in slots):
            raise bad(f"slots: a list of 2 to {SLOTS} is needed")
        found = []
        for i, slot in enumerate(slots):
            generation = integer(slot, "generation", 1)
            hold = None if slot.get("hold") is None else integer(slot, "hold", 1)
            for each in (generation, hold):
                if each is not None and each not in self.generations.staged:
                    raise refused(f"slots[{i}]: generation {each} is not staged here")
            if self.generations.holds(generation):
                raise refused(f"slots[{i}]: generation {generation} is a hold; stage it anew")
            if generation == hold:
                raise bad(f"slots[{i}]: its hold needs a generation of its own")
            row: Json = {"generation": generation, "hold": hold}
            for key in ("falling", "rising"):
                names = slot.get(key, [])
                if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(names) > 1024:
                    raise bad(f"slots[{i}].{key}: a list of interfaces is needed")
                if unknown := [n for n in names if n not in self.server.interfaces]:
                    raise refused("slots[{}].{}: no interface {} on this host".format(i, key, ", ".join(unknown[:8])))
                row[key] = sorted(set(names))
            found.append(row)
        holds = {row["hold"] for row in found}
        if any(row["generation"] in holds for row in found):
            raise bad("slots: a generation is a slot's and a hold")
        dwell_s, night_s = number(request, "dwell_s", 0.0), number(request, "night_s", 0.0)
        guard_s, late_s = number(request, "guard_s", 0.0), number(request, "late_s", 0.0)
        if not PERIOD_S[0] <= dwell_s + night_s <= PERIOD_S[1]:
            raise bad("dwell_s, night_s: a slot takes from {:g} to {:g} s".format(*PERIOD_S))
        if guard_s >= dwell_s:
            raise bad("guard_s: must be shorter than dwell_s")
        words = {"follow": request.get("follow", "light"), "kind": request.get("kind", "clock")}
        for key, allowed in (("follow", ("light", "clock")), ("kind", ("clock", "phase"))):
            if words[key] not in allowed:
                raise bad("{}: {} is needed, got {!r}".format(key, " or ".join(allowed), words[key]))
        times = {"dwell_s": dwell_s, "night_s": night_s, "guard_s": guard_s, "late_s": late_s}
        return {"slots": found, **times, **words}

    def loaded(self) -> SlotMachine:
        if self.machine is None:
            raise refused("no schedule is loaded here")
        return self.machine

    def tick(self, request: Json) -> Json:
        """Renew the lease, and be in the slot that whoever turns says."""
        machine, now = self.loaded(), self.now()
        count, lease_s = counted(request), number(request, "lease_s", 0.0)
        ends_s = number(request, "ends_s", None)
        machine.tick(count, None if ends_s is None else now + int(ends_s * 1e9), now + int(lease_s * 1e9))
        return {"count": machine.count, "slot": machine.slot, "state": machine.state}

    def turn(self, request: Json) -> Json:
        """The slot `count` ends now."""
        machine = self.loaded()
        if counted(request) != machine.count:
            raise refused("slot {} of this host is not over: it is in slot {}".format(request["count"], machine.count))
        machine.turn()
        return {"count": machine.count, "slot": machine.slot, "state": machine.state}

    def stop(self) -> Json:
        """Drop the schedule; the host stays in the slot where it is, confirmed."""
        found = self.status()
        if self.leave():
            self.save()
        return found

    def status(self) -> Json:
        machine = self.machine
        if machine is None:
            return {"loaded": False}
        known: Json = {"loaded": True, "slots": len(self.slots()), "state": machine.state, "slot": machine.slot}
        left_s = round((machine.lease_ns - self.now()) / 1e9, 3)
        return dict(known, count=machine.count, late=machine.late, ends_ns=machine.end_ns(), lease_s=max(0.0, left_s))

    def leave(self) -> bool:
        """Forget the schedule, if there is one. A hold that is on ends in a slot."""
        if self.machine is None:
            return False
        self.machine.stop()
        self.request = self.machine = None
        self.generations.kept = set()
        self.generations.kick.keep = False
        self.notices.say({"slot": None})
        return True

    def overtaken(self) -> None:
        """A newer run came, or the host is cleared: what was loaded does not turn any more."""
        if self.leave():
            self.save()


def counted(request: Json) -> int:
    count = integer(request, "count", 0)
    if count > MOST:
        raise bad(f"count: {MOST} at most")
    return count


def period(request: Json) -> int:
    return int((request["dwell_s"] + request["night_s"]) * 1e9)
