"""Mutants of what becomes of jobs and of the queue, as `tests.sim.mutants` has those of all else."""

from __future__ import annotations

from tests.sim.mutant import Mutant

JOBS, ONLAB = "orchestrator/engine/change/jobs.py", "orchestrator/engine/queue/onlab.py"
QUEUE = "orchestrator/store/queue.py"

OF_JOBS = (
    Mutant(
        "down-leaves-ranks",
        "after `down` no rank of its owner's runs, whoever first saw that its job failed",
        (
            (
                JOBS,
                "                    await self.stop_left(self.store.job(record.id))  # this look",
                "                    pass  # this look",
            ),
        ),
        plot="jobs",
    ),
    Mutant(
        "pause-without-end",
        "whatever dies, nobody is left paused: a pause ends with its lease",
        (("workloads/collectives/turns.py", "            elif left_s <= 0:\n", "            elif left_s <= -1e6:\n"),),
        plot="jobs",
    ),
    Mutant(
        "turn-not-noted",
        "a job's record says that a turn of its ranks may have come about",
        (
            (
                "orchestrator/engine/change/turn.py",
                "            self._record(replace(self.record.spec, turning=self.attempt.move))",
                "            self._record(self.record.spec)",
            ),
        ),
        plot="jobs",
    ),
    Mutant(
        "job-of-anybody",
        "ranks are started, moved and stopped for their owner alone",
        (("orchestrator/store/store.py", "FROM jobs WHERE lab=? ORDER BY", "FROM jobs WHERE lab=? OR 1 ORDER BY"),),
        plot="jobs",
    ),
    Mutant(
        "finished-job-again",
        "a job of the queue is done once",
        ((QUEUE, '        if state == "waiting" and finished:\n            state, why = "done", finished\n', ""),),
        plot="queue",
    ),
    Mutant(
        "host-given-twice",
        "a host is given to one job of the queue at a time",
        ((QUEUE, "if len(beside(hosts, {host for row in held for host", "if len(beside(hosts, {host for row in () for host"),),
        plot="queue",
    ),
    Mutant(
        "ended-before-it-is-down",
        "a job of the queue that has ended has no light and no rank",
        (
            (
                ONLAB,
                "        report = await verbs.down(command)\n",
                "        if current is None:\n            return done, finished\n        report = await verbs.down(command)\n",
            ),
        ),
        plot="queue",
    ),
    Mutant(
        "stop-not-noted",
        "a job whose stop died has not finished",
        ((JOBS, "        record = stopping(self.store, record, why)\n", ""),),
        plot="queue",
        most=600,
    ),
    Mutant(
        "play-not-awaited",
        "nothing of an interrupted command comes about after whoever goes on has looked",
        (("orchestrator/hosts/plays.py", "                    await asyncio.wait([playing])\n", ""),),
        plot="queue",
        most=600,
    ),
)
