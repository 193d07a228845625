"""A host joins the plan that is up, and its ranks the job that runs: `up` of a rewritten plan."""

from __future__ import annotations

from optics import HostName, Infeasible, Interlock, Locked, Missing, Unreachable
from orchestrator.change.expiry import settled
from orchestrator.change.report import UpReport
from orchestrator.change.run import ChangeRun
from orchestrator.hosts.launch import check_launch, why_fixed
from orchestrator.jobs.report import ALIVE
from orchestrator.plan.avoid import avoiding
from orchestrator.plan.join import plan_with_host
from orchestrator.plan.reader import read_plan
from orchestrator.services.guard.recover import silent_hosts, tagged_out
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.tagouts import Tagouts


@settled
async def job_join(command: Command, host: HostName) -> UpReport:
    """Bring the plan that is up up with one more host, whose ranks join the running job.

    A host that the plan has and the job does not, as it could not join before, is tried again.
    Raises: Missing, Infeasible - as `plan_with_host`; no job runs, or it is one that cannot grow.
    Interlock - the host is tagged out, or carries another owner's plan. Unreachable - it does not
    answer. Nothing is changed then. As `up`.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    key = tenancy_of(lab, settings)
    current, record = store.current(key), store.latest_job(key)
    if current is None or record is None or record.state not in ALIVE:
        raise Missing(
            f"no job runs on {lab.name} that {host} could join",
            hint="testbed up; testbed job launch",
        )
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
    if silent := await silent_hosts(command, lab, settings, [host]):
        raise Unreachable(
            f"{host} does not answer, so it cannot join {running.name}: {silent[host]}",
            hint="testbed doctor says what is wrong there",
        )

    def still() -> None:
        now, job = store.current(key), store.latest_job(key)
        if now is None or (now.run, now.generation) != (current.run, current.generation):
            raise Locked("another plan came up while this command waited", hint="testbed status")
        if job is None or job.id != record.id:
            raise Locked("another job was launched meanwhile", hint="testbed job status")

    run = store.get(current.run)
    plan = avoiding(plan, run.avoid if run is not None else (), lab)
    asked = UpOptions(job="live", avoid=plan.avoid.message)
    options = RunOptions(asked, why=f"{host} joins {running.name}")
    return await ChangeRun("up", lab, command, still).up(plan, text, options)
