"""What is done with the attachments of a job (`orchestrator/extensions.py`): they are looked at
before anything moves, given before the ranks start, adjusted while they run, and taken away once
they have ended, however that was."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from optics import HostName, Missing, TestbedError, Unreachable
from optics.plan import Job
from orchestrator.extensions import extension_parts
from orchestrator.hosts.launch import Extra, identity
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.decision import JobDecision
from orchestrator.jobs.keep import is_same
from orchestrator.session import Session
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store

CONNECT_S, AGAIN_S = 3.0, 15.0
"""How long (s) the host of an attachment is waited for; one that did not answer is asked again so
much later, for many looks would wait.
"""
V = TypeVar("V")
Figures = Mapping[str, int | float | str]
"""What is known of an attachment, by name; `missing`: in words, what it has not of what it should
have.
"""
Given = Mapping[str, Any]
"""What a job was given, as JSON; `missing`: why it was launched without."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a job. latest: the job before it. resume: it goes on from checkpoints. restore:
    from an attachment's alone.

    left_out: it is launched without what cannot be started and is not needed. reports: given what
    is waited for.
    """

    session: Session
    job: Job
    run: str
    latest: JobRecord | None
    resume: bool = False
    restore: bool = False
    left_out: bool = False
    reports: Callable[[str], object] = lambda _: None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A look at a job. alive: its ranks are there. asked: what this look has learned already, by
    whoever wants to know it twice.
    """

    session: Session
    store: Store
    record: JobRecord
    run_dir: Path
    alive: bool
    asked: dict[object, Any] = field(default_factory=dict)


class Attachment(Generic[V]):
    """One kind; `V`: what a plan says of it. A method that a kind does not need does nothing."""

    key: ClassVar[str]
    noun: ClassVar[str] = ""
    """What a job that was launched without it is said to lack."""
    restores: ClassVar[bool] = False
    """Whether it keeps checkpoints that a job can begin from."""

    async def check(self, value: V, job: Job, lab: Lab, held: Given | None) -> None:
        """Look, before anything moves, whether the job can have it, once `held`, of the job that
        runs, is given back.
        """

    async def ready(self, value: V, job: Job, session: Session) -> None:
        """Look whether the hosts of the job can have it. Raises: Refused - with their names."""

    async def reserve(self, value: V, job: Job, lab: Lab, run: str) -> Given:
        """Take what has to be known before the job is recorded; it ends by itself soon, unless it
        has begun.
        """
        return {}

    async def begin(self, value: V, given: Given, launch: Launch) -> Given:
        """Give it to a recorded job whose ranks are about to start. Returns what is kept of it;
        raises: the job is not launched.
        """
        return given

    def extra(
        self, value: V, given: Given, lab: Lab, host: HostName
    ) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """What ranks on a host are started with: variables, and fields of the request to the
        agent.
        """
        return {}, {}

    async def adjust(self, session: Session, record: JobRecord, value: V | None) -> str:
        """Have a running job take over another value (`Planned.adjusts`); what there is to say.
        Raises: Refused, Unreachable.
        """
        return ""

    def neglected(self, given: Given) -> bool:
        """Whether what keeps a job in what it was given is gone, by what this machine knows; `tend`
        mends it.
        """
        return False

    async def tend(self, given: Given, look: Inspection) -> Sequence[str]:
        """Keep a job that has not ended in what it was given. Returns what of it is lost."""
        return ()

    async def status(self, value: V, given: Given, look: Inspection) -> Sequence[Figures]:
        """What is known of it; what is new since the last look goes into the run's directory and
        journal.
        """
        return ()

    async def stop(self, value: V, given: Given, session: Session, record: JobRecord) -> None:
        """End what may still run of it; the job's ranks have been stopped, or had ended."""

    async def release(self, given: Given) -> None:
        """Give back what a job had that has ended. It may be called again."""

    def trouble(self, job: str, found: Figures) -> str:
        """What `status` says of a running job whose figures have `missing`."""
        return f"job {job} was {found['missing']}"

    def followed(self, value: V, job: Job, record: JobRecord, hint: str) -> None:
        """Raises: Missing - what it kept of `record`, the latest job, is not of this one's
        training.
        """

    def restorable(self, value: V, record: JobRecord, found: Sequence[Figures], hint: str) -> None:
        """Raises: Missing - `record`, the latest job, left no checkpoint there. found: what
        `status` says.
        """

    async def elsewhere(
        self, lab: Lab, own: Sequence[Figures], asked: dict[object, Any]
    ) -> Sequence[str]:
        """What other jobs have of the lab, in words. own: figures of the owner's job. asked: as
        `Inspection.asked`.
        """
        return ()


def attachments() -> tuple[Attachment[Any], ...]:
    """Every kind, in order."""
    return extension_parts("operator", "ATTACHMENT")


def attachment(key: str) -> Attachment[Any]:
    """The kind with this key."""
    return next(kind for kind in attachments() if kind.key == key)


def _of(job: Job) -> list[tuple[Attachment[Any], Any]]:
    return [(kind, job.attached[kind.key]) for kind in attachments() if kind.key in job.attached]


async def check_attachments(
    job: Job | None, lab: Lab, latest: JobRecord | None, *, again: bool = False
) -> None:
    """See that a job can have what its plan says, once the latest one has given back what it has;
    nothing is changed.

    again: it is launched even if it runs. Raises: as `Attachment.check`.
    """
    if job is None or (
        not again and latest is not None and latest.ended is None and is_same(latest, job)
    ):
        return
    for kind, value in _of(job):
        await kind.check(
            value,
            job,
            lab,
            latest.spec.given.get(kind.key)
            if latest is not None and latest.ended is None
            else None,
        )


async def check_attachment_hosts(job: Job, session: Session) -> None:
    """See that the hosts of a job can have what its plan says. Raises: Refused - with their
    names.
    """
    for kind, value in _of(job):
        await kind.ready(value, job, session)


async def reserve(job: Job, lab: Lab, run: str) -> dict[str, Given]:
    """Take what has to be known before the job is recorded. Raises: as `Attachment.reserve`;
    nothing is kept then.
    """
    given: dict[str, Given] = {}
    try:
        for kind, value in _of(job):
            given[kind.key] = await kind.reserve(value, job, lab, run)
    except BaseException:
        await release(given)
        raise
    return given


async def begin_attachments(
    launch: Launch, spec: JobSpec, note: Callable[[JobSpec], None]
) -> JobSpec:
    """Give a recorded job what its plan says, and have each `note`d at once. Raises: as
    `Attachment.begin`.
    """
    # one after the other: what was reserved waits for nothing slow
    for kind, value in _of(launch.job):
        await kind.ready(value, launch.job, launch.session)
        given = await kind.begin(value, spec.given[kind.key], launch)
        if given != spec.given[kind.key]:
            spec = replace(spec, given={**spec.given, kind.key: given})
            note(spec)
    return spec


def extra(job: Job, spec: JobSpec, lab: Lab) -> Extra:
    """What the ranks of a job are started with beside what every job has."""

    def on(host: HostName) -> tuple[dict[str, str], dict[str, Any]]:
        env: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for kind, value in _of(job):
            own, more = kind.extra(value, spec.given.get(kind.key, {}), lab, host)
            env |= own
            fields |= more
        return env, fields

    return on


def missing_attachments(spec: JobSpec) -> list[str]:
    """What a job was launched without, and why."""
    return [
        f"no {kind.noun}: {spec.given[kind.key]['missing']}"
        for kind, _ in _of(spec.wanted)
        if without_attachment(spec.given, kind.key)
    ]


def without_attachment(given: Mapping[str, Given], key: str) -> bool:
    """Whether a job was launched without this."""
    return bool(given.get(key, {}).get("missing"))


async def adjust(
    session: Session, decision: JobDecision, record: JobRecord | None, job: Job | None
) -> list[str]:
    """Give a job that goes on what the plan wants now, as far as that can change; return what there
    is to say.

    record: the job as it ran before. Raises: as `Attachment.adjust`; all is as it was then, as far
    as hosts answer.
    """
    if record is None or job is None or decision.kind not in ("keep", "rings"):
        return []
    lines = []
    for kind in attachments():
        was, now = (each.attached.get(kind.key) for each in (record.spec.wanted, job))
        if was == now:
            continue
        try:
            text = await kind.adjust(session, record, now)
        except BaseException:
            with suppress(TestbedError):  # some hosts may have done it
                await kind.adjust(session, record, was)
            raise
        lines += [text] if text else []
    return lines


def neglected(spec: JobSpec) -> bool:
    """Whether a job that has not ended needs `tend`, which asks others than this machine."""
    return any(kind.neglected(spec.given.get(kind.key, {})) for kind, _ in _of(spec.wanted))


async def tend(look: Inspection) -> list[str]:
    """Keep a job that has not ended in what it was given; what of it is lost."""
    spec = look.record.spec
    return [
        line
        for kind, _ in _of(spec.wanted)
        for line in await kind.tend(spec.given.get(kind.key, {}), look)
    ]


async def attachment_figures(look: Inspection) -> dict[str, tuple[Figures, ...]]:
    """What is known of a job's attachments, as `JobStatus.attached`."""
    spec = look.record.spec
    found = {
        kind.key: tuple(await kind.status(value, spec.given.get(kind.key, {}), look))
        for kind, value in _of(spec.wanted)
    }
    return {key: figures for key, figures in found.items() if figures}


async def stop_attachments(session: Session, record: JobRecord | None) -> None:
    """End what may still run of a job's attachments, its ranks having been stopped."""
    for kind, value in _of(record.spec.wanted) if record is not None else ():
        if record is not None and not without_attachment(record.spec.given, kind.key):
            await kind.stop(value, record.spec.given.get(kind.key, {}), session, record)


async def release(given: Mapping[str, Given]) -> None:
    """Give back what a job had that has ended, or was not recorded."""
    for kind in attachments():
        if kind.key in given:
            await kind.release(given[kind.key])


def troubles(job: str, attached: Mapping[str, Sequence[Figures]]) -> list[str]:
    """What a running job lacks of its attachments."""
    return [
        kind.trouble(job, each)
        for kind in attachments()
        for each in attached.get(kind.key, ())
        if "missing" in each
    ]


def launched_without(job: str, attached: Mapping[str, Sequence[Figures]]) -> list[tuple[str, str]]:
    """What a job was launched without, by its noun, and why."""
    found = [
        (kind, each) for kind in attachments() if kind.noun for each in attached.get(kind.key, ())
    ]
    return [
        (kind.noun, f"{job} was {each['missing']}") for kind, each in found if "missing" in each
    ]


async def reach_host(session: Session, host: HostName) -> None:
    """Raises: Unreachable - it does not answer, or did not a moment ago."""
    if host not in session.hosts.channels.attached():
        if time.monotonic() >= session.away.get(host, 0.0):
            await session.hosts.channels.connect([host], CONNECT_S)
            session.away[host] = time.monotonic() + AGAIN_S
        if host not in session.hosts.channels.attached():
            raise Unreachable(f"{host}: does not answer")


def same_training(key: str, job: Job, record: JobRecord | None) -> bool:
    """Whether a record is of the same training as a job, with this attachment on the same host:
    what that kept is of this training.
    """
    if record is None or ((was := record.spec.wanted).name, identity(was)) != (
        job.name,
        identity(job),
    ):
        return False
    now, before = job.attached.get(key), was.attached.get(key)
    return now is not None and before is not None and now.host == before.host


def restoring(job: Job) -> list[tuple[Attachment[Any], Any]]:
    """What of a job keeps checkpoints that it can begin from."""
    return [(kind, value) for kind, value in _of(job) if kind.restores]


def followers(job: Job, record: JobRecord, hint: str) -> list[tuple[Attachment[Any], Any]]:
    """What kept checkpoints of the latest job that this one could begin from. Raises: Missing -
    nothing did.
    """
    having = restoring(job)
    if not having:
        nouns = " or ".join(kind.noun for kind in attachments() if kind.restores)
        raise Missing(f"job {job.name} has no {nouns} in this plan", hint=hint)
    return willing(having, lambda kind, value: kind.followed(value, job, record, hint))


def willing(
    having: Sequence[tuple[Attachment[Any], Any]], ask: Callable[[Attachment[Any], Any], None]
) -> list[tuple[Attachment[Any], Any]]:
    """Those that do not refuse. Raises: Missing - as the last, where all do."""
    found, why = [], None
    for kind, value in having:
        try:
            ask(kind, value)
            found.append((kind, value))
        except Missing as error:
            why = error
    if why is not None and not found:
        raise why
    return found


async def elsewhere(
    lab: Lab, attached: Mapping[str, Sequence[Figures]], asked: dict[object, Any]
) -> list[str]:
    """What other jobs have of the lab, in words. attached: of the owner's job."""
    return [
        line
        for kind in attachments()
        for line in await kind.elsewhere(lab, attached.get(kind.key, ()), asked)
    ]
