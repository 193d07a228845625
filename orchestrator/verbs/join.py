"""A host joins the plan that is up, and its ranks the job that runs: `up` of a rewritten plan."""

from __future__ import annotations

from optics import HostName, Infeasible, Interlock, Locked, Missing, TestbedError, Unreachable
from orchestrator.change.expiry import settled
from orchestrator.change.report import UpReport
from orchestrator.change.run import ChangeRun
from orchestrator.hosts.launch import check_launch, why_fixed
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import hosts_of_job
from orchestrator.jobs.report import ALIVE
from orchestrator.plan.avoid import avoiding
from orchestrator.plan.join import plan_with_host
from orchestrator.plan.reader import read_plan
from orchestrator.services.guard.recover import evict, silent_hosts, tagged_out
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.tagouts import Tagouts


@settled
async def job_join(command: Command, host: HostName) -> UpReport:
    """Bring the plan that is up up with one more host, whose ranks join the running job.

    A host that the plan has and the job does not, as it could not join before, is tried again.
    One that falls silent meanwhile leaves the plan again: rings go through it.
    Raises: Missing, Infeasible - as `plan_with_host`; no job runs, or it is one that cannot grow.
    Interlock - the host is tagged out, or carries another owner's plan. Unreachable - it does not
    answer. Nothing is changed then. As `up`.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    key = tenancy_of(lab, settings)
    current, record = store.current(key), store.latest_job(key)
    none = Missing(
        f"no job runs on {lab.name} that {host} could join", hint="testbed up; testbed job launch"
    )
    if current is None or record is None or record.state not in ALIVE:
        raise none
    running = record.spec.wanted
    if why := why_fixed(running, record.spec.backend):
        raise Infeasible(
            f"{host} cannot join {running.name} while it runs: {why}",
            hint="testbed up with a plan of more hosts restarts it",
        )
    text, plan = current.plan_text, read_plan(current.plan_text, current.plan_name, lab)
    if plan.job is None or host not in plan.job.hosts or host in running.hosts:
        text = plan_with_host(text, plan, lab, host)
        plan = read_plan(text, current.plan_name, lab)
    if plan.job is not None:
        check_launch(plan.job, lab)
    tags = Tagouts(store, key_of(lab), who(settings)).listed()
    if lines := tagged_out(host, lab, tags):
        raise Interlock(
            "\n".join(lines), hint="once the work there is finished: testbed tagout remove"
        )
    if silent := await silent_hosts(command, lab, settings, [host], "another host"):
        raise Unreachable(
            f"{host} does not answer, so it cannot join {running.name}: {silent[host]}",
            hint="testbed doctor says what is wrong there",
        )
    async with command.opened(lab, "job join") as session:
        await session.hosts.channels.connect(hosts_of_job(record, lab))
        status = await Jobs(session, store, key, settings.runs_dir).status(record)
    if status.state not in ALIVE:  # its end had not been noticed
        raise none

    def still() -> None:
        now, job = store.current(key), store.latest_job(key)
        if now is None or (now.run, now.generation) != (current.run, current.generation):
            raise Locked("another plan came up while this command waited", hint="testbed status")
        if job is None or job.id != record.id or job.state not in ALIVE:
            raise Locked("the job has ended or was launched meanwhile", hint="testbed job status")

    run = store.get(current.run)
    plan = avoiding(plan, run.avoid if run is not None else (), lab)
    asked = UpOptions(job="live", avoid=plan.avoid.message)
    options = RunOptions(asked, why=f"{host} joins {running.name}", joins=host)
    try:
        return await ChangeRun("up", lab, command, still).up(plan, text, options)
    except Locked:
        raise
    except TestbedError as error:
        now = store.current(key)
        if now is not None and (now.run, now.generation) != (current.run, current.generation):
            await _taken_out(command, host, error)
        raise


async def _taken_out(command: Command, host: HostName, error: TestbedError) -> None:
    """Close the rings without a host that is up and fell silent, and say so in the error."""
    lab, settings = load_lab(command.inventory), command.settings
    try:
        if not await silent_hosts(command, lab, settings, [host]):
            return
        await evict(command, {host: ""}, why=f"{host} fell silent as it joined", lost=[host])
        text, error.hint = (
            "so the rings are closed without it again",
            "once it answers: the same command",
        )
    except TestbedError as failed:
        text, error.hint = f"and cannot be left out: {failed}", f"testbed job evict {host}"
    error.args = (f"{error}\n{host} does not answer any more, {text}", *error.args[1:])
