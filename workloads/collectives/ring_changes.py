"""Ring changes: the ranks of a running job use another set of connections from the end of an iteration on,
or pause, all at once.

A *set* is all that carries one layout's bulk traffic. A *move*, numbered upwards, is one attempt to
change the set, or to pause, or both. It is asked for over the hand-off socket (handoff.py), rank by
rank, and messages may be lost, late or repeated. What happens is decided among the ranks, once for
each move, by a compare-and-set in their own store:

    move/N        "" -> K: change after iteration K | "void": do not | "stop": do not, and the iteration held at is the last
    layout/N      a digest of the layout that the first rank was asked for; a rank that is asked for another refuses
    prepared/N    how many ranks are ready; only when all are may a rank write K, or hold
    go/N          how many ranks were asked to go
    hold/N        "K LEASE_S": all ranks wait after iteration K until move/N is there

Why all ranks obey the same decision: no rank can finish iteration K without the part in its sums of
the rank that wrote K, and K was written before that iteration of its began. So every rank finds the
entry at the end of K, and no rank is further. A rank that holds may write K at any time, as all
wait after K or have yet to come to it. Every wait ends with the move's lease: then a rank writes
"void". Nothing here needs torch; a store is what torch calls one.

Where a rank may have begun an iteration before the ones before it are finished, at most `ahead` of
them, K is so many later than the iteration that the writer begins: that one no other has finished,
so no rank has begun one after K. A rank that finds K does not begin the next before K has ended
(`limit`).
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..host.place import PlannedRingChange
from ..transport.accord import appears
from .moves import STOP, VOID, Agreed, Move, Refused, lease_of
from .sets import Layout, Sets

CHECK_S = 0.2
"""How often (s) a rank that holds looks whether it is asked to stop or has lost a peer."""


class RingChanges:
    """A rank's part in moves. `before` and `after` are called by the main thread, `receive` by the
    one that listens.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        store: Any,
        client: Callable[[], Any],
        sets: Sets,
        read: Callable[[Mapping[str, Any], Layout], Layout],
        *,
        timeout_s: float,
        ahead: int = 0,
        planned: tuple[PlannedRingChange, ...] = (),
        asked_to_stop: Callable[[], bool] = lambda: False,
        on_ring_change: Callable[[dict[str, Any]], None] = lambda _: None,
        on_hold: Callable[[bool], None] = lambda _: None,
        stall: Any = None,
    ) -> None:
        """`store` is the main thread's, `client` gives further clients of it. `read` gives the
        layout a message asks for.

        ahead: how many further iterations a rank may have begun before it has finished one.
        on_ring_change: called with the ring change's record (see program.py) at its boundary.
        on_hold: True as a pause begins, False as it ends. stall: a wires.Stall, to be reported.
        """
        self._rank, self._world, self._agreed, self._client = (
            rank,
            world,
            Agreed(store),
            client,
        )
        self._sets, self._read, self._timeout_s, self._ahead = sets, read, timeout_s, ahead
        self._planned = {entry.after: entry for entry in planned}
        self._asked_to_stop, self._on_ring_change, self._on_hold, self._stall = (
            asked_to_stop,
            on_ring_change,
            on_hold,
            stall,
        )
        self.send: Callable[[dict[str, Any]], None] = lambda _: None
        self._lock = threading.Lock()
        self._move: Move | None = None
        self._last = 0
        self._iteration = 0
        self._state: dict[str, Any] = {"move": 0, "state": "idle"}
        self._others: Agreed | None = None
        self._boundary: int | None = None

    # the main thread

    def before(self, iteration: int) -> None:
        """Announce, before `iteration` begins, that it ends with a hold or a ring change, if this
        rank was asked to.
        """
        if not self._iteration:
            self._resume_planned(iteration)
        self._iteration = iteration
        move = self._move
        if (
            move is None
            or move.changed_after is not None
            or not (move.decide or (move.hold_s and not move.hold_written))
        ):
            return
        if not self._agreed.all_ready(move):
            return
        last = iteration + self._ahead
        if move.decide:
            self._agreed.decide(move.number, str(last))
        else:
            self._agreed.hold(move.number, last, max(0.0, move.until_s - time.monotonic()))
            move.hold_written = True

    def after(self, iteration: int) -> bool:
        """Hold or change rings, if that was agreed for the end of `iteration`. True: all ranks stop
        here, as one was asked to at a hold.

        Raises: RuntimeError - a peer or the store was lost.
        """
        self._change_as_planned(iteration)
        move = self._move
        if move is None:
            return False
        if move.changed_after is not None:
            self._report_changed(move, iteration)
            return False
        if move.ready and move.state == "preparing":
            if self._stall is not None:
                self._stall.mark()
            self._answer(move, "prepared", took_ms=move.took_ms)
        decision = self._agreed.decision(move.number) if self._agreed.decided(move.number) else None
        if decision is None and time.monotonic() >= move.until_s:
            decision = self._agreed.decide(move.number, VOID)
        if decision is None and self._agreed_hold(move, iteration):
            decision = self._hold(move, iteration)
        if decision is None:
            return False
        if isinstance(decision, int) and decision > iteration:
            self._boundary = decision
            return False
        if isinstance(decision, int):
            if decision < iteration:
                raise RuntimeError(
                    f"move {move.number} was decided for iteration {decision} and seen at {iteration}"
                )
            self._change_rings(move, iteration)
            return False
        self._abandon(move)
        return decision == STOP

    @property
    def limit(self) -> int | None:
        """The iteration after which none may begin before `after` was called for it."""
        known = [*self._planned, *([] if self._boundary is None else [self._boundary])]
        return min(known, default=None)

    def close(self) -> None:
        """The job ends: so does its move."""
        move = self._move
        if move is None:
            return
        if move.changed_after is not None:
            self._report_changed(move, self._iteration)
        else:
            self._abandon(move)

    def _agreed_hold(self, move: Move, iteration: int) -> bool:
        held = self._agreed.held(move.number)
        if held is None:
            return False
        at, lease_s = held
        if at > iteration:
            self._boundary = at
            return False
        if not move.hold_s:  # this rank was not asked itself
            move.until_s = min(move.until_s, time.monotonic() + lease_s)
        return True

    def _hold(self, move: Move, iteration: int) -> int | str:
        """Wait until the move is decided, no longer than its lease. Raises: RuntimeError - a peer
        or the store was lost.
        """
        began_ns = time.monotonic_ns()
        move.held_at = iteration
        self._answer(move, "held")
        self._on_hold(True)
        try:
            decision = self._held(move, iteration)
        finally:
            self._on_hold(False)
        move.held_ms = round((time.monotonic_ns() - began_ns) / 1e6, 3)
        return decision

    def _held(self, move: Move, iteration: int) -> int | str:
        while True:
            left_s = move.until_s - time.monotonic()
            if self._asked_to_stop():
                self._agreed.decide(move.number, STOP)
            elif left_s <= 0:
                self._agreed.decide(move.number, VOID)
            elif move.decide and self._agreed.all_ready(move):
                self._agreed.decide(move.number, str(iteration))
            if appears(self._agreed.store, f"move/{move.number}", min(CHECK_S, max(0.001, left_s))):
                return self._agreed.decision(move.number)
            if lost := self._sets.lost():
                raise RuntimeError(lost)

    def _change_rings(self, move: Move, iteration: int) -> None:
        self._boundary = None
        with self._lock:
            formed, move.formed, move.changed_after = move.formed, None, iteration
        self._sets.change_rings(move.layout, formed)
        self._on_ring_change(self._record(move.number, iteration, move.held_ms))

    def _record(self, number: int, after: int, held_ms: float) -> dict[str, Any]:
        layout = self._sets.layout
        traffic = {"traffic": json.loads(layout.traffic)} if layout.traffic else {}
        return {
            "move": number,
            "after": after,
            "rings": layout.rings,
            **traffic,
            "t_wall_ns": time.time_ns(),
            "held_ms": held_ms,
        }

    def _report_changed(self, move: Move, iteration: int) -> None:
        stall = {} if self._stall is None else {"stall_ms": round(self._stall.longest_ns / 1e6, 3)}
        with self._lock:
            move.over, self._move = True, None
        self._answer(
            move,
            "changed",
            iteration,
            after=move.changed_after,
            took_ms=move.took_ms,
            held_ms=move.held_ms,
            **stall,
        )

    def _abandon(self, move: Move) -> None:
        self._boundary = None
        with self._lock:
            move.over, self._move = True, None
            formed, move.formed = move.formed, None
        if formed is not None:
            formed.close()
        if move.error:
            self._answer(move, "cannot", error=move.error)
        else:
            self._answer(move, "void", held_ms=move.held_ms)

    # planned ring changes

    def _resume_planned(self, first: int) -> None:
        """A resumed job begins with what the last ring change before its first iteration made it
        use."""
        if earlier := [after for after in self._planned if after < first]:
            self._planned = {
                after: entry for after, entry in self._planned.items() if after >= max(earlier)
            }
            self._planned_change(self._planned.pop(max(earlier)))

    def _change_as_planned(self, iteration: int) -> None:
        if entry := self._planned.pop(iteration, None):
            self._planned_change(entry)
            self._on_ring_change(self._record(self._last, iteration, 0.0))

    def _planned_change(self, entry: PlannedRingChange) -> None:
        """Connect a set and turn to it. Raises: RuntimeError, ValueError - as Make."""
        self._last += 1
        layout = Layout(
            entry.rings, self._sets.layout.traffic if entry.traffic is None else entry.traffic
        )
        formed = None
        if not self._sets.known(layout):
            if self._sets.make is None:
                raise ValueError(
                    "TESTBED_RING_CHANGES: with NCCL a job's rings do not change while it runs"
                )
            formed = self._sets.make(
                layout, f"set/planned {entry.after}", self._agreed.store, self._timeout_s, None
            )
        self._sets.change_rings(layout, formed)

    # the thread that listens

    def greeting(self) -> dict[str, Any]:
        """What the agent is sent first on a connection: this rank's last state."""
        return {
            "rank": self._rank,
            "world": self._world,
            "iteration": self._iteration,
        } | self._state

    def receive(self, message: Mapping[str, Any]) -> None:
        """Do what a message of the agent asks, or send why not. Repeated and late ones do no
        harm.
        """
        try:
            verb, number = message.get("do"), message.get("move")
            if type(number) is not int or number < 1:
                raise Refused(f"move: {number!r}: not a whole number from 1 up", 0)
            if verb not in ("prepare", "hold", "go", "drop"):
                raise Refused(f"do: {verb!r}: not one of prepare, hold, go, drop", number)
            move = self._move
            if number == self._last and (move is None or verb == "prepare"):
                self.send(self.greeting())  # asked before
            elif verb == "prepare":
                self._prepare(number, message)
            elif move is None or move.number != number:
                raise Refused(
                    f"move {number} is not under way here, the last was {self._last}", number
                )
            elif verb == "hold" and move.changed_after is None:
                move.until_s = time.monotonic() + lease_of(message, number)
                move.hold_s = lease_of(message, number)
            elif verb == "go":
                self._go(move, decide=message.get("decide") is True)
            elif verb == "drop" and move.changed_after is None:
                self._heard().decide(number, VOID)
        except Refused as refused:
            self.send(
                self._message(refused.move, "cannot", self._iteration, {"error": str(refused)})
            )
        # the store; if it is gone for good, the main thread ends the rank
        except RuntimeError as error:
            self._others = None
            print(f"# rank {self._rank}: move {message.get('move')}: {error}", file=sys.stderr)
        except (OverflowError, TypeError, KeyError, MemoryError, RecursionError) as error:
            self.send(
                self._message(
                    0, "cannot", self._iteration, {"error": f"{type(error).__name__}: {error}"}
                )
            )

    def _heard(self) -> Agreed:
        """What the ranks agree on, for the thread that listens."""
        if self._others is None:
            self._others = Agreed(self._client())
        return self._others

    def _prepare(self, number: int, message: Mapping[str, Any]) -> None:
        if self._move is not None:
            raise Refused(f"move {self._move.number} is under way", number)
        if number <= self._last:
            raise Refused(f"move number {number} is not above the last, {self._last}", number)
        if self._planned:
            raise Refused("TESTBED_RING_CHANGES has ring changes that are yet to come", number)
        lease_s = lease_of(message, number)
        try:
            layout = self._read(message, self._sets.layout)
        except ValueError as error:
            raise Refused(str(error), number) from error
        if not self._sets.known(layout) and self._sets.make is None:
            raise Refused("with NCCL a job's rings do not change while it runs", number)
        digest = hashlib.sha256(json.dumps([layout.rings, layout.traffic]).encode()).hexdigest()
        if not self._heard().one_layout(number, digest):
            raise Refused(
                f"another rank was asked to prepare move {number} with another layout", number
            )
        move = Move(number, layout, time.monotonic() + lease_s)
        self._last = number
        self._answer(move, "preparing")
        with self._lock:
            self._move = move
        if self._sets.known(layout):
            self._ready(move, self._heard())
        else:
            threading.Thread(
                target=self._form, args=(move, lease_s), name=f"move {number}", daemon=True
            ).start()

    def _form(self, move: Move, lease_s: float) -> None:
        """Connect a move's set, in a thread of its own."""
        began_ns = time.monotonic_ns()
        agreed = formed = None
        try:
            agreed = Agreed(self._client())
            assert self._sets.make is not None
            formed = self._sets.make(
                move.layout,
                f"set/{move.number}",
                agreed.store,
                min(lease_s, self._timeout_s),
                lambda: self._given_up(move, agreed),
            )
            with self._lock:
                if not move.over:
                    move.formed, formed = formed, None
            if formed is not None:  # the move ended meanwhile
                formed.close()
                return
            move.took_ms = round((time.monotonic_ns() - began_ns) / 1e6, 3)
            self._ready(move, agreed)
        except Exception as error:  # a thread: what it does not report nobody would see
            try:
                # reported by the main thread once the move is over here
                if agreed is None or not self._given_up(move, agreed):
                    move.error, move.until_s = f"forming failed: {error}", 0.0
                if agreed is not None:
                    agreed.decide(move.number, VOID)  # else the others wait for the lease
            except RuntimeError as lost:
                print(f"# rank {self._rank}: move {move.number}: {lost}", file=sys.stderr)

    def _given_up(self, move: Move, agreed: Agreed) -> bool:
        return move.over or agreed.decided(move.number)

    def _ready(self, move: Move, agreed: Agreed) -> None:
        agreed.ready(move.number)
        move.ready = True

    def _go(self, move: Move, *, decide: bool) -> None:
        agreed = self._heard()
        if not move.go:
            move.go = True
            decide = agreed.asked(move) or decide
        if decide:
            # before held_at is looked at: the main thread sets that first and then looks at this
            move.decide = True
            if move.held_at is not None and agreed.all_ready(move):
                agreed.decide(move.number, str(move.held_at))

    # both

    def _answer(self, move: Move, state: str, iteration: int | None = None, **more: Any) -> None:
        """Note a change of state and send it."""
        move.state = state
        message = self._message(
            move.number, state, self._iteration if iteration is None else iteration, more
        )
        self._state = {
            name: value for name, value in message.items() if name not in ("rank", "iteration")
        }
        self.send(message)

    def _message(
        self, number: int, state: str, iteration: int, more: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "move": number,
            "state": state,
            "iteration": iteration,
            "t_ns": time.monotonic_ns(),
            **more,
        }
