"""Writing runs and their steps: an effect is committed as begun before it happens, and its outcome
after.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from types import TracebackType

from optics.errors import HandsNeeded, Interrupted, RolledBack, StoreFailed, TestbedError
from orchestrator.results import Json, to_json
from orchestrator.store.database import Database, Fence


class Step:
    """One effect of a run. Entering commits `doing` before the effect; leaving commits `done`, or
    `failed` with the error.
    """

    __slots__ = ("_began_ns", "_result", "_store", "run", "seq")

    def __init__(self, store: Database, run: str, seq: int) -> None:
        self._store, self.run, self.seq = store, run, seq
        self._result: Json = None
        self._began_ns = 0

    def result(self, value: object) -> None:
        """Set the result of the effect (any type that `to_json` accepts); written when the step
        ends.
        """
        self._result = to_json(value)

    def begin(self) -> None:
        """Commit that the effect may happen from now on."""
        _begin(self._store, [self])

    def end(self, error: BaseException | str | None = None) -> None:
        """Commit how it ended."""
        seconds = (time.monotonic_ns() - self._began_ns) / 1e9 if self._began_ns else None
        text = _text(error) if isinstance(error, BaseException) else error or ""
        self._store.write(
            "UPDATE steps SET state=?, ended=?, seconds=?, result=?, error=? WHERE run=? AND seq=?",
            (
                "failed" if error is not None else "done",
                time.time(),
                seconds,
                json.dumps(self._result),
                text,
                self.run,
                self.seq,
            ),
        )

    def __enter__(self) -> Step:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(error)


class Run:
    """The run being written. Use as a context manager, or call `finish` on every exit."""

    def __init__(self, store: Database, run: str, token: int = 0) -> None:
        self._store = store
        self.id = run
        self.token = token
        self.finished = False
        self.unchanged = False
        """Set when it failed before it changed anything: nothing needs repair."""
        self._began_ns = time.monotonic_ns()

    def found(self, before: object, target: object) -> None:
        """Commit the state found and the target (any type that `to_json` accepts); call before the
        first step begins.
        """
        self._store.write(
            "UPDATE runs SET before=?, target=? WHERE id=?",
            (json.dumps(to_json(before)), json.dumps(to_json(target)), self.id),
        )

    def fence(self, check: Fence) -> None:
        """Call `check` in the transaction of every later step before it begins: an exception keeps
        the step from beginning.
        """
        self._store.fences[self.id] = check

    def plan(
        self, kind: str, subject: str, what: str, intent: object = None, inverse: object = None
    ) -> Step:
        """Record a planned effect without beginning it. kind: device, host, job. intent, inverse:
        as `to_json` accepts.
        """
        return self.plan_all([(kind, subject, what, intent, inverse)])[0]

    def plan_all(self, effects: Iterable[tuple[str, str, str, object, object]]) -> list[Step]:
        """Record many planned effects in one commit: (kind, subject, what, intent, inverse)
        each.
        """
        now = time.time()
        steps = []
        with self._store.transaction() as db:
            seq = int(
                db.execute(
                    "SELECT coalesce(max(seq),0) FROM steps WHERE run=?", (self.id,)
                ).fetchone()[0]
            )
            for kind, subject, what, intent, inverse in effects:
                seq += 1
                db.execute(
                    "INSERT INTO steps(run,seq,kind,subject,what,intent,inverse,state,planned) VALUES(?,?,?,?,?,?,?,'planned',?)",
                    (
                        self.id,
                        seq,
                        kind,
                        subject,
                        what,
                        json.dumps(to_json(intent)),
                        json.dumps(to_json(inverse)),
                        now,
                    ),
                )
                steps.append(Step(self._store, self.id, seq))
        return steps

    def begin_all(self, steps: Sequence[Step]) -> None:
        """Begin several steps in one commit: parallel steps wait for the disk once."""
        _begin(self._store, steps)

    def step(
        self, kind: str, subject: str, what: str, intent: object = None, inverse: object = None
    ) -> Step:
        """One effect, to be used as `with run.step(...) as step:`; committed as begun before the
        body runs.
        """
        return self.plan(kind, subject, what, intent, inverse)

    def finish(
        self,
        status: str,
        exit_code: int = 0,
        message: str = "",
        summary: Mapping[str, object] | None = None,
        *,
        plan_name: str | None = None,
    ) -> None:
        """Close the run. status: ok, failed, rolled-back, hands-needed or interrupted. summary:
        small numbers for the history.
        """
        self.finished = True
        seconds = (time.monotonic_ns() - self._began_ns) / 1e9
        self._store.write(
            "UPDATE runs SET ended=?, seconds=?, status=?, exit_code=?, message=?, summary=?, plan_name=coalesce(?, plan_name),"
            " resolved_by=coalesce(?, resolved_by) WHERE id=?",
            (
                *(
                    time.time(),
                    seconds,
                    status,
                    exit_code,
                    message,
                    json.dumps(to_json(summary or {})),
                    plan_name,
                ),
                *(self.id if self.unchanged else None, self.id),
            ),
        )
        self._store.fences.pop(self.id, None)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.finished:
            return
        with (
            suppress(StoreFailed) if error is not None else nullcontext()
        ):  # its status becomes `died`, and the next command reports it
            self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if error is None:
            self.finish("ok")
        elif isinstance(error, TestbedError):
            self.finish(_STATUS.get(type(error), "failed"), error.exit_code, str(error))
        elif isinstance(error, Exception):
            self.finish("failed", 1, f"{type(error).__name__}: {error}")
        else:  # KeyboardInterrupt, CancelledError: the operator stopped it
            self.finish("interrupted", 130, "interrupted")


_STATUS: Mapping[type[TestbedError], str] = {
    RolledBack: "rolled-back",
    Interrupted: "rolled-back",
    HandsNeeded: "hands-needed",
}


def _begin(store: Database, steps: Sequence[Step]) -> None:
    now = time.time()
    with store.transaction() as db:
        for run in {step.run for step in steps}:
            store.check_fence(db, run)
        db.executemany(
            "UPDATE steps SET state='doing', began=? WHERE run=? AND seq=?",
            [(now, s.run, s.seq) for s in steps],
        )
    for step in steps:
        step._began_ns = time.monotonic_ns()


def _text(error: BaseException) -> str:
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return "interrupted"
    return f"{type(error).__name__}: {error}"
