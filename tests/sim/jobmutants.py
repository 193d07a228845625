"""Mutants of what becomes of jobs and of the queue, as `tests.sim.mutants` has those of all
else.
"""

from __future__ import annotations

from tests.sim.mutant import Mutant

JOBS, ONLAB = "orchestrator/jobs/jobs.py", "orchestrator/queue/onlab.py"
QUEUE = "orchestrator/store/queue.py"
RECOVER, POLICY = "orchestrator/services/guard/recover.py", "orchestrator/services/guard/policy.py"
CHANGES_RINGS = "extensions/adapt/region_change.py"
PACE, COORDINATE = "workloads/host/pace.py", "extensions/pacing/coordinator.py"

OF_JOBS = (
    Mutant(
        "down-leaves-ranks",
        "after `down` no rank of its owner's runs, whoever first saw that its job failed",
        (
            (
                JOBS,
                "                    await self.stop_left(self.store.job(record.id))\n                    phase",
                "                    phase",
            ),
        ),
        plot="jobs",
    ),
    Mutant(
        "pause-without-end",
        "whatever dies, nobody is left paused: a pause ends with its lease",
        (
            (
                "workloads/collectives/ring_changes.py",
                "            elif left_s <= 0:\n",
                "            elif left_s <= -1e6:\n",
            ),
        ),
        plot="jobs",
    ),
    Mutant(
        "turn-not-noted",
        "a job's record says that a turn of its ranks may have come about",
        (
            (
                "orchestrator/change/ring_change.py",
                "            self._record(replace(self.record.spec, changing=self.attempt.move))",
                "            self._record(self.record.spec)",
            ),
        ),
        most=600,
        plot="jobs",
    ),
    Mutant(
        "job-of-anybody",
        "ranks are started, moved and stopped for their owner alone",
        (
            (
                "orchestrator/store/store.py",
                "FROM jobs WHERE lab=? ORDER BY",
                "FROM jobs WHERE lab=? OR 1 ORDER BY",
            ),
        ),
        plot="jobs",
    ),
    Mutant(
        "finished-job-again",
        "a job of the queue is done once",
        (
            (
                QUEUE,
                '        if state == "waiting" and finished:\n            state, why = "done", finished\n',
                "",
            ),
        ),
        plot="queue",
    ),
    Mutant(
        "host-given-twice",
        "a host is given to one job of the queue at a time",
        (
            (
                QUEUE,
                "if len(compatible_hosts(hosts, {host for row in held for host",
                "if len(compatible_hosts(hosts, {host for row in () for host",
            ),
        ),
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
        (
            (
                "orchestrator/hosts/plays.py",
                "                    await asyncio.wait([playing])\n",
                "",
            ),
        ),
        plot="queue",
        most=600,
    ),
    Mutant(
        "stopped-job-again",
        "no guard launches a job again that a user has stopped",
        (
            (
                "orchestrator/verbs/job.py",
                "                if ended.state not in FINISHED:\n",
                "                if False:\n",
            ),
        ),
        plot="recover",
    ),
    Mutant(
        "recovered-from-its-start",
        "a guard launches a job from the newest checkpoint that its ranks have in common",
        ((RECOVER, "resume=resumable(job), sample=sample", "resume=False, sample=sample"),),
        plot="recover",
        most=100,
    ),
    Mutant(
        "ranks-beside-ranks",
        "what is left of a job is stopped before it is launched again",
        ((RECOVER, "                        await jobs.write_off((), why)\n", ""),),
        plot="recover",
    ),
    Mutant(
        "attempts-without-pause",
        "a guard pauses after an attempt, whatever came of it",
        (
            (
                POLICY,
                "min(attempt.idle_s for attempt in recent)) > 0\n",
                "min(attempt.idle_s for attempt in recent)) > 1e6\n",
            ),
        ),
        plot="recover",
    ),
    Mutant(
        "turn-unconfirmed",
        "hosts keep the routes of a turn that was done",
        (
            (
                CHANGES_RINGS,
                "        await hosts.routes.confirm(self.generation, sorted(self.wanted))\n",
                "",
            ),
        ),
        plot="adapt",
    ),
    Mutant(
        "adapter-outlives-its-plan",
        "whoever is to move light stops the owner's adapter first",
        (("extensions/adapt/service.py", "moves_light=True", "moves_light=False"),),
        plot="adapt",
    ),
    Mutant(
        "pace-without-end",
        "whatever becomes of its coordinator, a rank waits no longer than its lease",
        ((PACE, "self.period_ns, self.until_ns - now_ns))", "self.period_ns))"),),
        plot="pacing",
    ),
    Mutant(
        "pace-not-taken-back",
        "a coordinator that ends takes back what it said",
        (
            (
                COORDINATE,
                "                await work.release()\n            return",
                "                pass\n            return",
            ),
        ),
        plot="pacing",
    ),
    Mutant(
        "coordinator-goes-on",
        "a coordinator ends when fewer than two jobs run",
        (
            (
                COORDINATE,
                "                if len(found) < 2:\n",
                "                if len(found) < 1:\n",
            ),
        ),
        plot="pacing",
    ),
)
