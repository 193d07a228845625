"""A patch-panel robot: one gripper, one queue, fibres that stay where they are when the power goes.

Connecting takes a parked fibre to its new socket: light at the end of the move only. Disconnecting
parks it: dark from its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from emulators.devices.faults import Faults
from emulators.optics.plant import Pair, Plant

# one move of the gripper; no public number (U). Clients allow 120 s per move
# (cloudshell-L1-w2w-rome, CODE)
MOVE_S = 60.0
MEAN_LOSS_DB, MAX_LOSS_DB = 0.5, 1.0  # of two connectors in a panel (U)

fibres = partial(Plant, mean_loss_db=MEAN_LOSS_DB, max_loss_db=MAX_LOSS_DB)
"""The plant of a patch panel."""


@dataclass(slots=True)
class Job:
    """The request of one command. connects: make `moves`, otherwise break them. outcome: one word
    per finished move.
    """

    number: int
    first: str
    second: str
    connects: bool
    moves: list[Pair]
    user: str = "admin"
    asked_s: float = 0.0
    outcome: list[str] = field(default_factory=list)

    @property
    def duplex(self) -> bool:
        return len(self.moves) > 1


Report = Callable[[str, Job | None, Pair | None, float], None]
"""Called with each event and its time (s): "start", "done", "failed", "skipped", "end" of a job,
"invalid", "stalled", "homed".
"""


class Robot:
    """Works off jobs in the order they came, one move at a time; `plant.settle_s` is the time of
    one move.

    valid: asked when a job's turn comes; it returns why the job cannot be done, or None.
    """

    def __init__(
        self, plant: Plant, faults: Faults, report: Report, valid: Callable[[Job], str | None]
    ) -> None:
        self.plant, self.faults, self._emit, self._valid = plant, faults, report, valid
        self.queue: deque[Job] = deque()
        self.current: Job | None = None
        self.enabled = True
        # the gripper stopped somewhere with or without a fibre: nothing moves until it is homed
        self.stalled = False
        self.count = 0
        self.homed_at_s: float | None = None
        self._ends_s = 0.0
        self._idle_s = 0.0  # when the last move ended
        self._fate = "done"

    def add(self, job: Job, now: float) -> None:
        job.asked_s = now
        self.queue.append(job)

    def home(self, now: float, seconds: float) -> None:
        """Start a homing run; the job in the works is given up when it ends."""
        self.homed_at_s = now + seconds

    def cut_power(self, now: float) -> None:
        """Lose power now: the queue is forgotten, an unfinished move leaves its fibre in the
        gripper.
        """
        self.queue.clear()
        self.homed_at_s = None
        if self.current is not None:
            self._drop(now)
            self.current, self.stalled = None, True

    def next_event(self) -> float | None:
        """Return when something ends by itself (s), None when only a command can change
        anything.
        """
        if self.homed_at_s is not None:
            return self.homed_at_s
        return self._ends_s if self.current is not None and not self.stalled else None

    def work(self, now: float) -> None:
        """Do everything that is due."""
        while True:
            if self.homed_at_s is not None:
                if self.homed_at_s > now:
                    return
                self._homed(self.homed_at_s)
            elif self.stalled:
                return
            elif self.current is None:
                if not self.queue or not self.enabled:
                    return
                self._take(self.queue.popleft())
            elif self._ends_s > now:
                return
            else:
                self._finish()

    # ---- inside

    def _take(self, job: Job) -> None:
        at = max(job.asked_s, self._idle_s)
        if self._valid(job) is not None:
            self._emit("invalid", job, None, at)
            return
        self.current = job
        self._emit("start", job, None, at)
        self._begin(at)

    def _begin(self, at: float) -> None:
        """Begin the next move of the current job that is one; a job without any ends here."""
        assert self.current is not None
        job = self.current
        while len(job.outcome) < len(job.moves):
            pair = job.moves[len(job.outcome)]
            if (self.plant.since(pair) is not None) is not job.connects:
                self._fate, self._ends_s = self._start(job, pair, at), at + self.plant.settle_s
                if self._fate == "stalled":
                    self.stalled = True
                    self._emit("stalled", job, pair, at)
                return
            job.outcome.append("skipped")
            self._emit("skipped", job, pair, at)
        self.current, self._idle_s = None, at
        self._emit("end", job, None, at)

    def _start(self, job: Job, pair: Pair, at: float) -> str:
        """Move the light path as far as the beginning of a move moves it; return how the move will
        end.
        """
        half = job.duplex and len(job.outcome) == len(job.moves) - 1
        if self.faults.strike("robot-stalled"):
            if not job.connects:
                self.plant.disconnect([pair], at)
            return "stalled"
        if half and self.faults.strike("half-duplex"):
            return "failed"
        if self.faults.strike("silent-failure"):
            return "done"
        refused = (
            self.plant.connect([pair], at) if job.connects else self.plant.disconnect([pair], at)
        )
        return "failed" if refused else "done"

    def _finish(self) -> None:
        assert self.current is not None
        job, at = self.current, self._ends_s
        pair = job.moves[len(job.outcome)]
        self.count += 1
        job.outcome.append(self._fate)
        self._emit(self._fate, job, pair, at)
        self._begin(at)

    def _drop(self, now: float) -> None:
        """Abandon the current move: its fibre is in no socket."""
        assert self.current is not None
        pair = self.current.moves[len(self.current.outcome)]
        circuit = self.plant.circuit(("in", pair[0]))
        if self.current.connects and circuit is not None and not circuit.settled(now):
            self.plant.disconnect([pair], now)

    def _homed(self, at: float) -> None:
        self.homed_at_s, self.stalled, self._idle_s = None, False, at
        job, self.current = self.current, None
        self._emit("homed", job, None, at)
