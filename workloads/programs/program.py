"""What every workload does around its loop: read the environment, meet, run, leave; report a
failure in one line.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from ..collectives.aggregate import Aggregate
from ..collectives.growing import Growing, Held
from ..collectives.lossy import Datagrams
from ..collectives.ring_changes import RingChanges
from ..collectives.rings import Gloo
from ..collectives.sets import Layout, Make, Sets, read_layout
from ..collectives.spray import DatagramSet
from ..host.handoff import Handoff
from ..host.pace import Pace
from ..host.place import BadPlace, Place, read_place
from ..host.slots import shared
from ..progress.heartbeat import Heartbeat
from ..progress.records import Records
from ..transport.accord import Accord

# 75: EX_TEMPFAIL of sysexits.h: start all ranks again with --resume
OK, FAILED, USAGE, LOST_PEER = 0, 1, 2, 75


class Unused:
    """The connections of a layout that nothing is sent over."""

    def close(self) -> None:
        pass

    def lost(self) -> str:
        return ""


class Job:
    """A rank that has met the others."""

    def __init__(
        self,
        place: Place,
        torch: Any,
        rings: Any,
        accord: Accord,
        records: Records,
        heartbeat: Heartbeat,
        started: dict[str, Any],
    ) -> None:
        self.place, self.torch, self.rings, self.accord, self.records, self.heartbeat = (
            place,
            torch,
            rings,
            accord,
            records,
            heartbeat,
        )
        self.started = started
        self.iteration = 0  # the current one, for the message when it fails
        self._ring_changes: RingChanges | None = None
        self._handoff: Handoff | None = None
        self._pace, self._at_boundary = Pace(lambda: self.accord.asked), True

    def carry_on_rings(
        self,
        exchange: str = "wires",
        loss_bound: float = 0.0,
        held: Held | None = None,
        *,
        inside: bool = False,
    ) -> None:
        """Sum over rings, which may be replaced while the job runs (see ring_changes.py). Raises:
        RuntimeError - a peer does not come.

        exchange: `gloo` sums over torch's default group instead, `aggregate` has a packet switch
        add. They take no rings: a turn to others changes nothing. `datagrams` sums over the rings
        by datagrams, of which `loss_bound` says how many may be lost (see blocks.py). held: what new
        ranks are given, of a program that can have more (see growing.py); it is over `wires`. inside:
        as Rings.ring_set.
        """
        rings = self.rings
        by = Datagrams()

        def make(
            layout: Layout,
            name: str,
            store: Any,
            within_s: float,
            given_up: Callable[[], bool] | None,
        ) -> Any:
            return rings.ring_set(layout.rings, name, store, within_s, given_up, inside=inside)

        def spread(
            layout: Layout,
            name: str,
            store: Any,
            within_s: float,
            given_up: Callable[[], bool] | None,
        ) -> Any:
            place, stall, orders = self.place, rings.stall, layout.rings
            return DatagramSet(
                place,
                store,
                self.torch,
                orders,
                name,
                loss_bound,
                by.tally,
                within_s=within_s,
                given_up=given_up,
                stall=stall,
            )

        def nothing(*_: Any) -> Unused:
            return Unused()

        if exchange in ("gloo", "aggregate"):
            rings.exchange = (
                Gloo(self.place.rank, self.torch) if exchange == "gloo" else self._aggregate()
            )
            self.carry_on(Layout(self.place.rings), nothing, lambda _: None)
        elif exchange == "datagrams":
            rings.exchange = by
            self.carry_on(Layout(self.place.rings), spread, by.use)
        else:
            self.carry_on(Layout(self.place.rings), make, rings.use, held=held)

    def _aggregate(self) -> Aggregate:
        """Raises: ValueError - no packet switch adds for this job; OSError."""
        place, grant = self.place, self.place.functions.get("aggregate")
        if grant is None:
            raise ValueError(
                "exchange aggregate: TESTBED_FUNCTIONS names no packet switch that adds for this job"
            )
        epoch = self.accord.gather("epoch", int(time.time()))[0]
        own, timeout_s, k = place.lane(0), place.timeout_s, place.dilation
        return Aggregate(grant, own, place.rank, place.world, epoch, timeout_s, self.torch, k)

    def carry_on(
        self,
        layout: Layout,
        make: Make,
        use: Callable[[Any], None],
        check_traffic: Callable[[object], object] | None = None,
        held: Held | None = None,
    ) -> None:
        """Connect the set of `layout`; with NCCL the communicators are there already, and no other
        layout is taken.

        use: takes a set that `make` made, between iterations. check_traffic: raises ValueError for
        traffic that cannot be moved; without it a layout has none. Raises: RuntimeError - a peer
        does not come. ValueError - this rank joins, and the program cannot have more.
        """
        sets = Sets(
            Layout(()) if self.place.joining else layout,
            None if self.rings.backend == "nccl" else make,
            use,
        )
        if not self.place.joining:
            sets.begin(self.rings.store, self.place.timeout_s)
        elif held is None:
            raise ValueError(
                "TESTBED_JOINING: this program, with these options, has as many ranks as it began with"
            )
        else:
            sets.current = Unused()

        def read(message: Mapping[str, Any], current: Layout) -> Layout:
            world = self.place.world
            if held is not None:
                world = max(world, _ranks_named(message))
            return read_layout(message, current, world, check_traffic)

        self._ring_changes = (RingChanges if held is None else Growing)(
            self.place.rank,
            self.place.world,
            self.rings.store,
            self.rings.client,
            sets,
            read,
            timeout_s=self.place.timeout_s,
            planned=self.place.ring_changes,
            asked_to_stop=lambda: self.accord.asked,
            on_ring_change=self.records.note_ring_change,
            on_hold=self.heartbeat.hold,
            stall=self.rings.stall,
        )
        if held is not None and isinstance(self._ring_changes, Growing):
            self._ring_changes.held, self._ring_changes.torch = held, self.torch
            self._ring_changes.grown = self._grown

    def join(self) -> int:
        """Become a rank of the job that runs. Raises: as Growing.join."""
        assert isinstance(self._ring_changes, Growing)
        self._listen()
        return self._ring_changes.join()

    def _grown(self, layout: Layout, formed: Any) -> None:
        self.place = replace(
            self.place, world=len(layout.rings[0]), rings=layout.rings, joining=False
        )
        self.accord.world = self.place.world
        self.rings.grow(self.place, formed.group)

    def _listen(self) -> None:
        """Hear what the agent asks for, from now on."""
        if self.place.handoff and self._handoff is None and self._ring_changes is not None:
            self._handoff = Handoff(self.place.handoff, self._ring_changes.greeting, self._receive)
            self._ring_changes.send = self._handoff.send
            self._handoff.start()

    def before(self, iteration: int, end: int | None = None) -> None:
        """To be called before each iteration: what this rank was asked for is announced to all.

        end: the next iteration, this one or a later one, that no rank finishes without a part of
        every other, for which `last` will be called. It is what can be agreed on. By default every
        iteration is such a one.
        """
        self.iteration = iteration
        end = iteration if end is None else end
        self.accord.before(end)
        if self._ring_changes is not None:
            self._ring_changes.before(end)
            self._listen()  # now, as it takes a loop of iterations to do what is asked
        # not between iterations in which no rank waits for others
        self.records.paced_ms = self._pace.wait(self.heartbeat.hold) if self._at_boundary else 0.0
        self._at_boundary = False
        self.heartbeat.begin(iteration)

    def _receive(self, message: Mapping[str, Any]) -> None:
        assert self._ring_changes is not None
        if not self._pace.receive(message):
            self._ring_changes.receive(message)

    def last(self, iteration: int) -> bool:
        """To be called after each iteration that was the `end` of one, all sums being done: hold or
        change rings as agreed.

        Returns whether it was the last one. Raises: RuntimeError - a peer or the store was lost.
        """
        shared().ended(iteration)
        self._at_boundary = True
        return self.accord.last(iteration) or (
            self._ring_changes is not None and self._ring_changes.after(iteration)
        )

    def end(self) -> None:
        """No iteration follows: end a move that is under way."""
        if self._ring_changes is not None:
            self._ring_changes.close()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given, so that host time means something."""
        if self.rings.backend == "nccl":
            self.torch.cuda.synchronize(self.rings.device)


def _ranks_named(message: Mapping[str, Any]) -> int:
    """How many ranks the rings of a message name, as far as that can be read."""
    rings = message.get("rings")
    return len(rings[0]) if isinstance(rings, list) and rings and isinstance(rings[0], list) else 0


def run(name: str, work: Callable[[Job], dict[str, Any]]) -> NoReturn:
    """Run `work` as this rank of the job and end the process; `work` returns what the summary shall
    say.

    Ends by `os._exit`: communicators whose peers are gone must not be torn down in order, and a
    finished rank need not spend the second that unloading torch takes.
    """
    try:
        place = read_place(os.environ)
    except BadPlace as error:
        _end(USAGE, f"{name}: {error}")
    who = f"{name}: rank {place.rank} on {platform.node()}"
    started_s = time.monotonic()
    from ..training.eager import import_torch

    torch = import_torch()
    imported_s = time.monotonic()
    from ..collectives.rings import Rings

    job = None
    summary: dict[str, Any] = {"workload": name, "ok": False}
    records, heartbeat = Records(place.job_dir, place.rank), Heartbeat(place.job_dir, place.rank)
    try:
        rings = Rings(place, torch)
        heartbeat.follow(rings.stall)
        accord = Accord(rings.store, place.rank, place.world)
        hosts = accord.gather("hosts", platform.node())
        accord.handle_signals()
        started = {
            "import_s": round(imported_s - started_s, 3),
            "meet_s": round(time.monotonic() - imported_s, 3),
            "backend": rings.backend,
            "world": place.world,
            "rings": [list(order) for order in place.rings],
            "hosts": hosts,
            "torch": torch.__version__,
        }
        summary |= started
        print(
            f"# {who}: {len(hosts)} ranks met, {rings.backend}, {len(place.rings)} rings, torch {torch.__version__}",
            flush=True,
        )
        job = Job(place, torch, rings, accord, records, heartbeat, started)
        summary |= work(job)
        job.end()
        accord.leave()
        summary["ok"] = True
        records.summary(summary)
        _end(OK)
    except ValueError as error:
        code, message = USAGE, f"{who}: {error}"
        # where all ranks found the same fault, rank 0 must not leave first; the job that a rank
        # could not join does not end with it
        if job is not None and not job.place.joining:
            with contextlib.suppress(RuntimeError):
                job.accord.leave(within_s=2.0)
    except OSError as error:
        code, message = FAILED, f"{who}: {error}"
    except Exception as error:
        where = f"iteration {job.iteration}" if job is not None else "meeting the other ranks"
        if _about_a_peer(error, torch):
            code, message = (
                LOST_PEER,
                f"{who}: {where}: lost a peer, or waited {place.timeout_s:g} s for one: {_first_line(error)}",
            )
            if len(str(error).strip().splitlines()) > 1:
                print(f"{who}: {where}: {error}", file=sys.stderr)  # in full, in the log alone
        else:
            code, message = FAILED, f"{who}: {where}: {traceback.format_exc()}"
    records.summary(summary | {"error": message, "exit_code": code})
    _end(code, message)


def _about_a_peer(error: Exception, torch: Any) -> bool:
    """Say whether `error` is torch's error for a peer that is gone or silent; gloo raises plain
    RuntimeError.
    """
    if isinstance(error, torch.distributed.DistError):
        return True
    tokens = (
        "connection",
        "connect",
        "timed out",
        "timeout",
        "socket",
        "nccl",
        "broken pipe",
        "peer",
    )
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in tokens)


def _first_line(error: BaseException) -> str:
    """Return torch's words without its wrapping: where it was compiled, what it compared, who
    passed them on, what it advises.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    wrapping = r"^Got the following error when running the callback: \w+: |\[enforce fail at [^\]]*\] .*? vs \S+ |\[/[^\]]*\] "
    line = re.sub(wrapping, "", line)
    # an error in the place of a future's value
    line = re.sub(r"^Unable to cast (.*) to Tensor$", r"\1", line)
    return line.partition(". This is typically")[0]


def _end(code: int, message: str = "") -> NoReturn:
    if message:
        print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
