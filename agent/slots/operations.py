"""Schedules of slots: the operations `slots.load`, `slots.tick`, `slots.change`, `slots.stop`
and `slots`.

A loaded schedule is a list of staged generations: per slot its routes, and its hold, in which the
pairs that are about to lose their path have no route. `slotmachine.py` decides when each becomes
active; this module lets it act on the host, keeps the schedule for the next daemon, and tells
programs and whoever watches.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from agent.basics import RUN, Failure, integer, number, read_json, refused, write
from agent.slots.clock import SlotClock
from agent.slots.machine import SlotMachine
from agent.slots.notice import Notices
from agent.slots.reach import endings, notice
from agent.slots.requests import checked, counted, period

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from agent.routes.generations import Generations
    from agent.shapes import Daemon, Json, Link
    from agent.slots.reach import Reach

    class Host(Daemon, Protocol):
        """A daemon whose generations a schedule makes active."""

        @property
        def generations(self) -> Generations: ...


STATE = RUN + "/slots.json"
LATER_NS = 1_000_000  # what can wait does, until the commits of hosts that share a machine are done
SEARCH_NS = 3_000_000


class Slots:
    """The schedule that is loaded on this host, if one is. committed: called with each slot that
    becomes active.
    """

    def __init__(self, server: Host) -> None:
        self.server, self.generations = server, server.generations
        self.request: Json | None = None
        self.machine: SlotMachine | None = None
        self.reach: list[Reach] = []
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
        """Take the routes of pairs that are about to lose their path; which sockets wait is looked
        up afterwards.
        """
        of, onto = self.slots()[slot], self.slots()[(slot + 1) % len(self.slots())]["generation"]
        if of["hold"] is None:
            return
        self.generations.mark(of["hold"], True)
        self.try_(lambda: self.generations.commit(of["hold"], max(lease_ns, 0) / 1e9, quiet=True))
        self.timer(self.now() + SEARCH_NS, lambda: self.search(of["hold"], onto))

    def search(self, hold: int, onto: int) -> None:
        if self.generations.active == hold:
            self.generations.prepare_flush(hold, onto)

    def changed(self, **fields: object) -> None:
        """Tell programs at once, others and the disk a little later."""
        machine = self.machine
        if machine is None:
            return
        self.notices.emit(notice(machine, self.slots(), self.reach, self.generations.addresses))
        state = {
            "slot": machine.slot,
            "count": machine.count,
            "state": machine.state,
            "late": machine.late,
        }
        event: Json = {
            "event": "slot",
            "t_ns": self.now(),
            **state,
            "ends_ns": machine.end_ns(),
            **fields,
        }
        self.timer(self.now() + LATER_NS, lambda: self.notify(event))

    def notify(self, event: Json) -> None:
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

    def boundary(self, name: str, ended: int) -> None:
        """The processes of a job ended an iteration: the scheduler, by the job's phases, waits for
        that.
        """
        if self.machine is not None and not self.machine.by_clock:
            self.server.broadcast(
                {"event": "boundary", "t_ns": self.now(), "name": name, "iteration": ended}
            )

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
        write(
            STATE,
            json.dumps(
                {
                    "request": self.request,
                    "count": machine.count,
                    "lease_ns": machine.lease_ns,
                    **clock,
                }
            ),
        )

    def restore(self) -> None:
        """Go on with the schedule of the daemon before this one, in the slot that the clock says if
        its light is there.
        """
        kept = read_json(STATE)
        if not kept:
            return
        try:
            self.resume(kept)
        except Exception as e:  # of another version, perhaps: the daemon starts all the same
            sys.stderr.write(f"agent: slots: what was kept is no schedule: {e!r}\n")
            self.leave()
            self.request, self.generations.kept, self.generations.flush.keep = None, set(), False
            self.save()

    def resume(self, kept: Json) -> None:
        self.start(
            kept["request"],
            SlotClock(period(kept["request"]), kept["edges"], kept["coarse"]),
            kept["count"],
        )
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
        times = {key: int(request[key] * 1e9) for key in ("guard_s", "dark_window_s", "late_s")}
        named: Json = {key.replace("_s", "_ns"): value for key, value in times.items()}
        self.generations.kept = {
            g for s in request["slots"] for g in (s["generation"], s["hold"]) if g is not None
        }
        self.generations.flush.keep = True
        self.reach = endings(request["slots"], self.generations.addresses)
        named.update(follow=request["follow"], kind=request["kind"])
        self.machine = SlotMachine(self, request["slots"], named, clock, count)

    # -- operations

    def load(self, request: Json) -> Json:
        """Take up a schedule; nothing changes on the host before the first tick."""
        wanted, count = (
            checked(request, self.generations, self.server.interfaces),
            counted(request) if "count" in request else 0,
        )
        self.leave()
        self.start(wanted, SlotClock(period(wanted)), count)
        self.save()
        return {"slots": len(wanted["slots"]), "generations": sorted(self.generations.kept)}

    def loaded(self) -> SlotMachine:
        if self.machine is None:
            raise refused("no schedule is loaded here")
        return self.machine

    def tick(self, request: Json) -> Json:
        """Renew the lease, and be in the slot that the scheduler says."""
        machine, now = self.loaded(), self.now()
        count, lease_s = counted(request), number(request, "lease_s", 0.0)
        ends_s = number(request, "ends_s", None)
        machine.tick(
            count, None if ends_s is None else now + int(ends_s * 1e9), now + int(lease_s * 1e9)
        )
        return {"count": machine.count, "slot": machine.slot, "state": machine.state}

    def change_slot(self, request: Json) -> Json:
        """The slot `count` ends now."""
        machine = self.loaded()
        if counted(request) != machine.count:
            raise refused(
                "slot {} of this host is not over: it is in slot {}".format(
                    request["count"], machine.count
                )
            )
        machine.change_slot()
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
        known: Json = {
            "loaded": True,
            "slots": len(self.slots()),
            "state": machine.state,
            "slot": machine.slot,
        }
        left_s = round((machine.lease_ns - self.now()) / 1e9, 3)
        return dict(
            known,
            count=machine.count,
            late=machine.late,
            ends_ns=machine.end_ns(),
            lease_s=max(0.0, left_s),
        )

    def leave(self) -> bool:
        """Forget the schedule, if there is one. A hold that is on ends in a slot."""
        if self.machine is None:
            return False
        self.machine.stop()
        self.request = self.machine = None
        self.generations.kept = set()
        self.generations.flush.keep = False
        self.notices.emit({"slot": None})
        return True

    def overtaken(self) -> None:
        """A newer run came, or the host is cleared: what was loaded is not followed any more."""
        if self.leave():
            self.save()
