"""Route generations: staged in tables that no rule selects, made active by one rule."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time

from agent.basics import RUN, Failure, bad, execute, integer, read_json, refused, rows, text, write
from agent.host.netlink import (
    CREATE,
    DELNEIGH,
    DELROUTE,
    NEWNEIGH,
    NEWROUTE,
    REPLACE,
    metrics_attribute,
    must,
    neighbour_message,
    route_message,
    routes_of,
)
from agent.host.partitions import chosen
from agent.routes.prefixes import expanded, first_and_bits
from agent.tcp.controls import control_here
from agent.tcp.flush import Flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agent.host.netlink import Rtnl
    from agent.shapes import Armed, Daemon, Json, Pending

# the event of a commit and the probes behind it wait this long: hosts that share a machine all
# commit first
LATER_NS = 2_000_000
AGAIN_NS = 1_000_000_000  # between two attempts to leave a hold, should the kernel refuse the first


class Generations:
    """Route generations in kernel tables; the kernel's rule decides which one is active, the state
    file adds the history.
    """

    def __init__(self, server: Daemon, nl: Rtnl) -> None:
        self.nl, self.interfaces, self.events = nl, server.interfaces, server.broadcast
        self.timer, self.cancel = server.timer, server.cancelled.add
        self.rule = chosen()
        # generation -> request, with "order" = how many were staged before it
        self.staged: dict[int, Json] = {}
        self.active: int | None = None
        self.previous: int | None = None
        self.pending: Pending | None = None
        self.handle: int | None = None
        self.armed: Armed | None = None
        self.flush: Flush = Flush()
        self.kept: set[int] = set()  # of a schedule: not dropped, whatever is active
        self.lanes: Callable[[], list[str]] = lambda: server.facts.get("lanes", [])
        self.changed: Callable[[], None] = lambda: None  # what the kernel's rule selects
        # what `congctl` may name, and what the kernel calls it here
        self.controls: dict[str, str] = {}
        # What jobs prepared for a generation waits for these: it became active; it was left, or
        # will not become active by itself.
        self.activated: Callable[[int], None] = lambda generation: None
        self.abandoned: Callable[[int], None] = lambda generation: None

    # -- state

    def path(self, generation: int) -> str:
        return f"{RUN}/generations/{generation}.json"

    def save(self, owed: Pending | None = None) -> None:
        """owed: the revert that was pending before a commit, which a daemon restores that finds the
        commit not done.
        """
        state = {"active": self.active, "previous": self.previous, "pending": self.pending}
        write(RUN + "/state.json", json.dumps(dict(state, owed=owed)))

    def load(self) -> None:
        """Take up what an earlier daemon of this boot left, trusting the kernel over the file; a
        revert that is due is done.
        """
        for name in os.listdir(RUN + "/generations"):
            request = read_json(RUN + "/generations/" + name) if name.endswith(".json") else None
            if request:
                self.staged[request["generation"]] = request
        state = read_json(RUN + "/state.json") or {}
        self.active, self.previous = state.get("active"), state.get("previous")
        self.pending = state.get("pending")
        selected = self.rule.active(self.nl, {self.table(g) for g in self.staged})
        actual = next((g for g in self.staged if self.table(g) == selected), None)
        # died between writing the file and asking the kernel: the change did not happen
        if actual != self.active:
            wanted, self.active, self.pending = self.active, actual, state.get("owed")
            if self.holds(actual):  # died on the way out of a hold, which always ends
                self.pending = {"to": self.pending["to"] if self.pending else wanted, "at_ns": 0}
            self.previous = None if self.previous == actual else self.previous
        self.previous = self.previous if self.previous in self.staged else None
        if self.holds(self.active) and not self.pending:
            self.pending = {"to": self.previous, "at_ns": 0}
        if self.pending:
            self.schedule()
        if self.active is not None and self.holds(self.active):
            self.timer(0, lambda: self.prepare_flush(self.active))  # the facts are not read yet
        self.save()

    def holds(self, generation: int | None) -> bool:
        """Whether this generation was committed as a hold: one that is left again soon, and never
        confirmed.
        """
        return generation in self.staged and bool(self.staged[generation].get("hold"))

    def prepare_flush(self, generation: int | None, onto: int | None = None) -> Json:
        """List the sockets that a hold keeps from sending: those to addresses that it has no route
        to.

        onto: the generation that will follow it, if that is known: only sockets to addresses that
        it has routes to.
        """
        reached = self.addresses(generation)
        return self.flush.prepare(
            self.lanes(), reached, None if onto is None else self.addresses(onto)
        )

    def addresses(self, generation: int | None) -> set[str]:
        """The addresses that a staged generation has a route to."""
        return (
            set(expanded(self.staged[generation]["routes"])) if generation in self.staged else set()
        )

    def hold(self, generation: int, revert_after_s: float | None, flush: bool) -> Json:
        """Commit a generation that leaves pairs without a route for a short time. It is never
        confirmed.

        flush: the commit that follows, or the revert, pushes the sockets that waited.
        """
        self.must_be_committable(generation, revert_after_s, hold=True)
        marked = self.holds(generation)
        if generation == self.active and not marked:
            raise refused(
                f"generation {generation} is active and not a hold; stage the hold under a number of its own"
            )
        self.flush.forget()
        found = self.prepare_flush(generation) if flush else None
        self.mark(generation, True)
        try:
            return dict(self.commit(generation, revert_after_s), waiting=found)
        except Exception:
            self.mark(generation, marked)
            raise

    def must_be_committable(
        self, generation: int, revert_after_s: float | None = None, hold: bool = False
    ) -> None:
        """Raises: Failure - nothing is staged under this number, or it is a hold without an end."""
        if generation not in self.staged:
            raise refused(
                "generation {} is not staged here (staged: {})".format(
                    generation, sorted(self.staged) or "none"
                )
            )
        if hold and revert_after_s is None:
            raise bad(
                "revert_after_s: a hold needs a time after which the host goes back by itself"
            )

    def mark(self, generation: int, hold: bool) -> None:
        """Note, also for the next daemon, whether a staged generation is a hold."""
        if hold != self.holds(generation):
            self.staged[generation]["hold"] = hold
            write(self.path(generation), json.dumps(self.staged[generation]))

    def schedule(self) -> None:
        if self.handle is not None:
            self.cancel(self.handle)
            self.handle = None
        if self.pending:
            self.handle = self.timer(
                self.pending["at_ns"], lambda: self.revert("nobody confirmed in time")
            )

    def table(self, generation: int) -> int:
        return self.rule.base + generation % self.rule.tables

    def summary(self) -> Json:
        pending: Json | None = None
        if self.pending:
            left = max(0.0, (self.pending["at_ns"] - time.monotonic_ns()) / 1e9)
            pending = {"generation": self.active, "to": self.pending["to"], "in_s": round(left, 3)}
        return {
            "active": self.active,
            "previous": self.previous,
            "pending": pending,
            "staged": sorted(self.staged),
            "armed": None if not self.armed else self.armed["generation"],
        }

    # -- staging

    def stage(self, request: Json) -> Json:
        generation = integer(request, "generation", 1)
        routes, neighbours = rows(request, "routes", 4), rows(request, "neighbours", 3)
        commands = request.get("commands", [])
        if not isinstance(commands, list) or not all(
            isinstance(c, dict) and text(c.get("do")) for c in commands
        ):
            raise bad("commands: a list of {do: words, undo: words} is needed")
        kept = {
            "generation": generation,
            "routes": routes,
            "neighbours": neighbours,
            "commands": commands,
        }
        kept.update({k: request[k] for k in ("rto_min_ms", "congctl") if k in request})
        table = self.table(generation)
        reply: Json = {"generation": generation, "table": table, "routes": len(routes)}
        if generation == self.active:
            if {
                k: v for k, v in self.staged[generation].items() if k not in ("order", "hold")
            } == kept:
                return dict(reply, unchanged=True)
            raise refused(
                f"generation {generation} is active; stage other rules under another number"
            )
        for other in (*self.used(), *self.kept):
            if other not in (None, generation) and self.table(other) == table:
                raise refused(
                    f"generation {generation} needs table {table}, which generation {other} in use occupies"
                )
        named = {r[2] for r in routes if r[2] or r[1]} | {n[2] for n in neighbours}
        unknown = sorted(named - {*self.interfaces})
        if unknown:
            raise refused(
                "no interface {} on this host (it has {})".format(
                    ", ".join(unknown), ", ".join(sorted(self.interfaces))
                )
            )
        for other in [g for g in self.staged if g != generation and self.table(g) == table]:
            self.drop(other)
        index = {"": 0, **{name: v["ifindex"] for name, v in self.interfaces.items()}}
        control = control_here(request.get("congctl"), self.controls)
        metrics = metrics_attribute(request.get("rto_min_ms"), control)
        try:
            for row in routes:
                first_and_bits(row[0])
            self.empty(table)
            put = CREATE | REPLACE
            messages = [
                (NEWROUTE, put, route_message(table, d, via, index[i], source, metrics))
                for d, via, i, source in routes
            ]
            near = [
                (NEWNEIGH, put, neighbour_message(a, mac, index[i])) for a, mac, i in neighbours
            ]
        except (OSError, ValueError, struct.error) as e:
            raise bad(f"rules of generation {generation}: {e}") from None
        with self.rule.shared():
            must(
                self.nl.send(near), lambda i: "neighbour {} {} dev {}".format(*tuple(neighbours[i]))
            )
            must(
                self.nl.send(messages),
                lambda i: "route {} via {} dev {} src {}".format(*tuple(routes[i])),
            )
            existing = {(d, v, i) for d, v, i in routes_of(self.nl, table)}
            absent = [r for r in routes if (r[0], r[1] or "", index[r[2]]) not in existing]
            if absent or len(existing) != len(routes):
                raise Failure(
                    "failed",
                    f"table {table} reads back {len(existing)} routes of {len(routes)}; missing {absent[:3]}",
                )
            kept["order"] = 1 + max([r.get("order", 0) for r in self.staged.values()], default=0)
            self.staged[generation] = kept
            write(self.path(generation), json.dumps(kept))
        self.collect()
        return dict(reply, neighbours=len(neighbours), congctl=control)

    def used(self) -> tuple[int | None, ...]:
        """What is active or may become so by itself."""
        return (
            self.active,
            self.previous,
            self.armed and self.armed["generation"],
            self.pending and self.pending["to"],
        )

    def empty(self, table: int) -> None:
        """Remove all routes of a kernel table. Raises: OSError - the kernel does not list them."""
        self.nl.send([(DELROUTE, 0, body) for body in routes_of(self.nl, table).values()])

    def drop(self, generation: int) -> None:
        """Remove a generation from the kernel: its table, and the neighbours no other generation
        uses.
        """
        removed = self.staged.pop(generation)
        kept = {(n[0], n[2]) for r in self.staged.values() for n in r["neighbours"]}
        index = {name: v["ifindex"] for name, v in self.interfaces.items()}
        self.empty(self.table(generation))
        with self.rule.shared():
            kept |= self.rule.neighbours_of_others()
            stale = [n for n in removed["neighbours"] if (n[0], n[2]) not in kept and n[2] in index]
            self.nl.send([(DELNEIGH, 0, neighbour_message(n[0], None, index[n[2]])) for n in stale])
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(generation))

    def collect(self) -> None:
        """Drop what can no longer become active: all but the active, the previous, the armed, and
        those staged after the active.
        """
        kept = {*self.used(), *self.kept}
        floor = self.staged[self.active]["order"] if self.active in self.staged else 0
        for generation in [
            g for g, r in self.staged.items() if g not in kept and r["order"] < floor
        ]:
            self.drop(generation)

    # -- committing

    def commit(
        self,
        generation: int,
        revert_after_s: float | None = None,
        t_link_ns: int | None = None,
        quiet: bool = False,
    ) -> Json:
        """Make a staged generation active; go back by itself after `revert_after_s` unless
        confirmed. quiet: without an event.
        """
        self.must_be_committable(generation, revert_after_s, self.holds(generation))
        started = time.monotonic_ns()
        before, was, owed = self.active, self.previous, self.pending
        left = self.holds(before) and generation != before
        if generation != before:
            self.previous, self.active = was if left else before, generation
            self.previous = None if self.previous == generation else self.previous
        if revert_after_s is not None:
            # Through a hold the host keeps the generation that it owes going back to.
            carried = owed if generation == before or left or self.holds(generation) else None
            to = carried["to"] if carried else self.previous
            at_ns = started + int(revert_after_s * 1e9)
            self.pending = None if to == generation else {"to": to, "at_ns": at_ns}
        elif generation != before:
            self.pending = None
        # before the kernel changes: a daemon that takes over must know of a revert that is pending
        self.save(owed)
        if generation != before:
            try:
                self.flip(before, generation)
            except Exception:
                self.active, self.previous, self.pending = before, was, owed
                self.save()
                raise
        done = time.monotonic_ns()
        self.activated(generation)
        self.schedule()
        if self.armed and self.armed["generation"] == generation:
            self.unarm()
        event: Json = {"generation": generation, "previous": self.previous}
        event.update(t_commit_ns=done, took_us=(done - started) // 1000)
        if t_link_ns is not None:
            event["t_link_ns"] = t_link_ns
        if left:
            event["flush"] = self.flush.push()
        if generation != before and not quiet:
            self.timer(done + LATER_NS, lambda: self.events(dict(event, event="committed")))
        return event

    def flip(self, old: int | None, new: int | None) -> None:
        """Point the selecting rule at another table. Adding before deleting: at no instant is there
        no rule.
        """
        if old == new:  # adding would fail and deleting succeed
            return
        leave = self.staged[old]["commands"] if old in self.staged else []
        enter = self.staged[new]["commands"] if new is not None else []
        removed = [c for c in leave if c not in enter]
        made = []
        for command in reversed(removed):
            execute(command.get("undo"), tolerate=True)
        try:
            for command in [c for c in enter if c not in leave]:
                execute(command.get("undo"), tolerate=True)
                made.append(command)
                execute(command["do"])
        except Exception:
            for command in reversed(made):  # half a generation is worse than the old one
                execute(command.get("undo"), tolerate=True)
            for command in removed:
                execute(command["do"], tolerate=True)
            raise
        self.rule.exchange(self.nl, self.table, old, new)
        self.changed()

    def confirm(self, generation: int) -> Json:
        if generation != self.active:
            raise refused(f"generation {generation} is not active; {self.active} is")
        if self.holds(generation):
            raise refused(
                f"generation {generation} is a hold, which is never confirmed: commit the one that follows it, or revert"
            )
        had, self.pending = self.pending is not None, None
        self.schedule()
        self.save()
        self.collect()
        return {"generation": generation, "was_pending": had}

    def revert(self, reason: str = "asked") -> Json:
        """Go back to the generation that was active before the last commit."""
        to = self.pending["to"] if self.pending else self.previous
        if not self.pending and self.previous is None:
            raise refused(
                f"nothing to go back to: generation {self.active} is active and none before it is kept"
            )
        came_from, owed = self.active, self.pending
        self.active, self.previous, self.pending = to, None, None
        self.schedule()
        self.save(owed)
        try:
            self.flip(came_from, to)
        except Exception as e:
            self.active, self.previous = came_from, to
            if self.holds(came_from):  # no host stays in a hold: it is tried again
                self.pending = {"to": to, "at_ns": time.monotonic_ns() + AGAIN_NS}
                self.schedule()
            self.save()
            error = f"going back from {came_from} ({reason}): {e}"
            self.events({"event": "failed", "generation": to, "error": error})
            if owed is None:
                raise
            return {"generation": came_from}
        if came_from is not None:
            self.abandoned(came_from)
        event: Json = {"generation": to, "from": came_from, "reason": reason}
        event["t_commit_ns"] = time.monotonic_ns()
        if self.holds(came_from):
            event["flush"] = self.flush.push()
        self.events(dict(event, event="reverted"))
        return event

    def clear(self, only: Collection[int] | None = None) -> Json:
        """Remove every generation and the selecting rule: the host no longer forwards by them.

        only: these generations; what others staged, armed or use stays. Nothing is gone back to
        when one of them was active.
        """
        removed = sorted(self.staged if only is None else self.staged.keys() & set(only))
        if self.armed and self.armed["generation"] in removed:
            self.disarm()
        if self.active is None or self.active in removed:
            self.flush.forget()
            self.flip(self.active, None)
            self.active = self.previous = self.pending = None
        elif self.previous in removed:
            self.previous = None
            if self.pending and self.pending["to"] in removed:
                self.pending["to"] = None
        self.schedule()
        self.save()
        for generation in removed:
            self.drop(generation)
            self.abandoned(generation)
        return {"dropped": removed}

    # -- arming

    def unarm(self) -> int | None:
        """Forget the armed commit, because it is done or replaced; returns its generation."""
        if self.armed:
            self.cancel(self.armed["handle"])
        was, self.armed = self.armed, None
        return was["generation"] if was else None

    def disarm(self) -> Json:
        was = self.unarm()
        if was is not None:
            self.abandoned(was)
        return {"generation": was}
