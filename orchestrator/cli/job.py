"""`testbed job`: launch, inspect, pause, profile, join, evict and stop the job of the current plan;
its environment; the queue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import queue
from orchestrator.cli.call import Call, Result, Usage, engine, verb
from orchestrator.cli.completing import hosts
from orchestrator.cli.groups import family
from orchestrator.cli.listing import added
from orchestrator.cli.shared import Wait, seconds, write_file
from orchestrator.jobs.report import JobStatus


def _result(report: JobStatus) -> Result:
    from orchestrator.cli import render

    text = render.job(report)
    if report.state == "failed":
        return Result(
            report.to_json(),
            text,
            "E-JOB-FAILED",
            1,
            f"job {report.name} failed",
            "testbed job logs",
            ok=False,
        )
    return Result(report.to_json(), text)


app = family("job")
app.add_typer(queue.app)


@verb(app, "launch", "Launch the job of the current plan.", examples="testbed job launch")
def launch(call: Call) -> Result:
    return _result(call.work(engine.job_launch))


@verb(
    app,
    "restore",
    "Launch the job that ended again, from the newest checkpoint of what followed it.",
    examples="testbed job restore",
    more="testbed up goes on from the newest checkpoint, whoever kept it.",
)
def restore(call: Call) -> Result:
    return _result(call.work(engine.job_restore))


@verb(
    app,
    "status",
    "Show the state of the job, as its ranks report it.",
    examples="testbed job status\ntestbed job status --json",
)
def status(call: Call) -> Result:
    return _result(call.work(engine.job_status))


@verb(
    app,
    "diagnose",
    "Name the component at fault when the job slows down, stands or dies.",
    examples="""
testbed job diagnose
testbed job diagnose --no-traffic        only read; load no link
testbed job diagnose --json | jq .data.verdict
""",
    more="""
Reads devices, hosts and the job's ranks, and changes nothing. Where that does not explain what the job does, it sends test traffic
over suspect links, which slows the job for some seconds; where no job runs, over all links, and runs short all-reduces. The exit
code is 0 only if nothing is wrong; 8 if a fault is named (E-FAULT-FOUND), and if it cannot be determined, which is not guessed
(E-CANNOT-TELL).
""",
)
def diagnose(
    call: Call,
    no_traffic: Annotated[bool, typer.Option("--no-traffic", help="Send no test traffic.")] = False,
) -> Result:
    from orchestrator.cli import diagnosistext

    report = call.work(engine.job_diagnose, traffic=not no_traffic)
    verdict, text = report.verdict, diagnosistext.text(report)
    if verdict.wrong:
        message = f"{verdict.component}: {verdict.kind}"
        return Result(
            report.to_json(), text, "E-FAULT-FOUND", 8, message, verdict.next_command, ok=False
        )
    if verdict.kind == "unknown":
        message = "it cannot be determined which component is at fault"
        return Result(
            report.to_json(), text, "E-CANNOT-TELL", 8, message, verdict.next_command, ok=False
        )
    return Result(report.to_json(), text, hint=verdict.next_command)


@verb(
    app,
    "logs",
    "Print the last lines of each rank's log.",
    examples="testbed job logs\ntestbed job logs --host gpu03 --lines 200\ntestbed job logs --rank 0",
)
def logs(
    call: Call,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines per rank.")] = 20,
    host: Annotated[
        str | None, typer.Option("--host", help="Only ranks of this host.", autocompletion=hosts)
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
) -> Result:
    from orchestrator.cli import render

    report = call.work(engine.job_logs, lines=lines, host=host, rank=rank)
    return Result(report.to_json(), render.logs(report), verbatim=True)


@verb(
    app,
    "env",
    "Print the environment of the ranks of the current plan's job, to launch them yourself.",
    examples="""
testbed job env                   shell commands that set the variables of every rank
testbed job env --rank 2          those of one rank, as in: eval "$(testbed job env --rank 2)"
testbed job env --srun            a command line for Slurm; likewise --mpirun (Open MPI) and --torchrun
""",
    more="No host is asked, and nothing is started. The program does not watch ranks that you launch: `status` does not show them.",
)
def env(
    call: Call,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", min=0, help="Only this rank.")
    ] = None,
    srun: Annotated[bool, typer.Option("--srun", help="A command line for Slurm.")] = False,
    mpirun: Annotated[bool, typer.Option("--mpirun", help="A command line for Open MPI.")] = False,
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="A command line of torchrun for each host.")
    ] = False,
) -> Result:
    from orchestrator.hosts import by_hand

    chosen = [
        name
        for name, given in (("srun", srun), ("mpirun", mpirun), ("torchrun", torchrun))
        if given
    ]
    if len(chosen) + (rank is not None) > 1:
        raise Usage("job env: --rank, --srun, --mpirun and --torchrun exclude each other")
    found = call.work(engine.job_env)
    lines = {"srun": by_hand.srun, "mpirun": by_hand.mpirun, "torchrun": by_hand.torchrun}
    reports = lines[chosen[0]](found) if chosen else by_hand.exports(found, rank)
    data = found.to_json()
    return Result(
        {**data, "lines": [*reports]} if chosen else data, "\n".join(reports), verbatim=True
    )


@verb(
    app,
    "pause",
    "Pause the job at the end of an iteration; its ranks keep their state.",
    examples="testbed job pause\ntestbed job pause --for 30m    it goes on by itself after that time",
    more="A change of the lab, `up` or `down`, ends the pause.",
)
def pause(
    call: Call,
    for_: Annotated[
        str,
        typer.Option("--for", metavar="TIME", help="Go on by itself after this time, at most 1h."),
    ] = "10m",
) -> Result:
    return _result(call.work(engine.job_pause, for_s=seconds("--for", for_, "10m")))


@verb(app, "resume", "Have a paused job go on.", examples="testbed job resume")
def resume(call: Call) -> Result:
    return _result(call.work(engine.job_resume))


@verb(app, "stop", "Stop the job.", examples="testbed job stop")
def stop(call: Call) -> Result:
    return _result(call.work(engine.job_stop))


@verb(
    app,
    "evict",
    "Move the plan and its job off a host, onto a spare or the other hosts.",
    examples="""
testbed job evict gpu07 --spare gpu12     gpu12 takes its place in links, rings and ranks
testbed job evict gpu07                   one rank fewer; its neighbours close the rings
""",
    more="""
The host need not answer. The job goes on from the newest checkpoint of the other ranks, which hold the same weights.
`testbed rollback` moves it back.
""",
)
def evict(
    call: Call,
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="The host to leave.", autocompletion=hosts)
    ],
    spare: Annotated[
        str,
        typer.Option(
            "--spare",
            metavar="HOST",
            help="A host like it, which the plan does not use.",
            autocompletion=hosts,
        ),
    ] = "",
    wait: Wait = None,
) -> Result:
    from orchestrator.cli.shared import changed

    call.wait = wait
    return changed(call.work(engine.evict, {host: spare}), call)


@verb(
    app,
    "join",
    "Have a host's ranks join the running job at the end of an iteration.",
    examples="testbed job join gpu07     one rank more, with the weights of the others",
    more="""
The plan that is up is brought up with the host in every ring, then its ranks join those that run. If they cannot, the
job goes on with the ranks that it had. An evicted host comes back the same way.
""",
)
def join(
    call: Call,
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="The host to take in.", autocompletion=hosts)
    ],
    wait: Wait = None,
) -> Result:
    from orchestrator.cli.shared import changed

    call.wait = wait
    return changed(call.work(engine.job_join, host), call)


@verb(
    app,
    "profile",
    "Measure the traffic per iteration of the running job from its hosts' port counters.",
    examples="testbed job profile\ntestbed job profile --iterations 20 --out measured.yaml    a workload to design for",
    more="Forwarded traffic is counted on every link it crosses: port counters do not show its destination.",
)
def profile(
    call: Call,
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="Number of iterations to measure.")
    ] = 5,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the result as a workload."),
    ] = None,
) -> Result:
    from orchestrator.cli import designtext
    from orchestrator.verbs.profile import as_workload, job_profile

    report = call.work(job_profile, iterations=iterations)
    if out is not None:
        import yaml

        write_file(out, yaml.safe_dump(as_workload(report), sort_keys=False))
    return Result(
        report.to_json(),
        designtext.profile(report),
        hint="" if out is None else f"testbed design topoopt --workload {out}",
    )


for more in added("job"):
    app.add_typer(more)
