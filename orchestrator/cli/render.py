"""Reports of the engine as text."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from optics.plain import counted, seconds_text
from orchestrator.change.report import DownReport, JobChange, PrewireReport, UpReport
from orchestrator.change.standstill import pause_text
from orchestrator.cli.text import (
    columns,
    expected_ms_text,
    flat,
    listed,
    mark,
    ms_text,
    page,
    paint,
    phase_line,
    scaled_ms_text,
    when,
)
from orchestrator.jobs.report import JobLogs, JobStatus
from orchestrator.plan.report import DeviceDiff, PlanReport
from orchestrator.results import path_text
from orchestrator.store.confirmations import Awaiting
from orchestrator.telemetry.phases import PhaseTime
from orchestrator.verbs.report import StatusReport
from orchestrator.verify.report import VerifyReport
from orchestrator.views.carried import attached_text, lost_text, save_text, sent_text

_DETAIL, _LONG = 55, 80
"""Least and greatest width of the details of phases; a longer text moves only its own time out of
the column.
"""


def _phases(phases: Iterable[PhaseTime], lines: Container[str]) -> list[str]:
    rows = [
        (p.name, p.detail if p.ok else f"FAILED {p.detail}", p.seconds)
        for p in phases
        if not p.ok or p.name not in lines
    ]
    width = max([_DETAIL, *(len(detail) for _, detail, _ in rows if len(detail) <= _LONG)])
    return [phase_line(name, detail, seconds, width) for name, detail, seconds in rows]


def _counts(report: PlanReport | UpReport | DownReport) -> str:
    text = f"{report.kept} kept, {report.removed} broken, {report.made} made"
    return text + (f", {report.foreign} foreign left alone" if report.foreign else "")


def _diff(diff: Iterable[DeviceDiff], colour: bool) -> list[str]:
    lines = []
    for device in diff:
        dark = ""
        if device.dark_ms_expected is not None:
            dark = f"   dark {scaled_ms_text(device.dark_ms_expected, device.time_scale)} expected"
        if device.dark_port_s_expected:
            dark += f" ({scaled_ms_text(device.dark_port_s_expected * 1e3, device.time_scale)} summed over ports)"
        if device.ahead_s_expected:
            dark = f"   {scaled_ms_text(device.ahead_s_expected * 1e3, device.time_scale)} ahead, in the dark{dark}"
        foreign = f" !{len(device.foreign)}" if device.foreign else ""
        lines.append(
            f"  {device.device:<8} ={len(device.kept)} -{len(device.removed)} +{len(device.made)}{foreign}{dark}"
        )
        for sign, tone, names in (
            ("-", "red", device.removed),
            ("+", "green", device.made),
            ("!", "yellow", device.foreign),
        ):
            # routes by wavelength are long
            neighbour = max(1, min(6, 110 // (max(map(len, names), default=0) + 2)))
            for start in range(0, len(names), neighbour):
                lines.append(
                    paint(f"    {sign} {'  '.join(names[start : start + neighbour])}", tone, colour)
                )
    return lines


def _segments(report: PlanReport | UpReport) -> list[str]:
    return [f"  segments   {', '.join(report.segments)}"] if report.segments else []


def up(
    report: UpReport,
    colour: bool,
    started: PhaseTime | None = None,
    here: Callable[[str], str] = str,
    reports: Container[str] = (),
) -> str:
    """The phase table and the last line of `up`.

    started: the start of the emulated lab, if `up` started it. here: adds the options that choose
    the lab to commands in a text. reports: phases and notes that were printed before.
    """
    lines = _phases([*([started] if started else []), *report.phases], reports)
    lines += [*_segments(report), *(here(note) for note in report.notes if note not in reports)]
    if report.relabel is not None:
        lines.append(f"  {report.relabel}")
    if report.dry_run:
        lines += [
            *_diff(report.diff, colour),
            *([f"  job        {report.job_change}"] if report.job_change else []),
        ]
        return page([*lines, f"Dry run: {report.plan}: {_counts(report)}; nothing was written"])
    if report.nothing_to_do:
        return page(
            [
                *lines,
                f"Nothing to do: {report.plan} is up on {report.lab} ({report.kept} circuits kept, 0 writes)",
            ]
        )
    if report.dark_ms is not None:
        dark = expected_ms_text(report.dark_ms, report.dark_ms_expected, report.dark_time_scale)
        lines.append(
            f"  measured   dark {dark}, link {ms_text(report.link_ms)}, commit {ms_text(report.commit_ms)}"
        )
    if report.equalise is not None and report.equalise.circuits:
        powers = [c.out_dbm for c in report.equalise.circuits if c.out_dbm is not None]
        spread = f", {min(powers):.1f} to {max(powers):.1f} dBm" if powers else ""
        share = f"{report.equalise.within}/{len(report.equalise.circuits)} circuits"
        wish = f"within {report.equalise.tolerance_db:g} dB of {report.equalise.target_dbm:g} dBm"
        lines.append(f"  power      {share} {wish}{spread}")
    if report.pairs_total:
        unasked = f", {report.pairs_unasked} others not asked" if report.pairs_unasked else ""
        lines.append(
            f"  reach      {report.pairs_ok}/{report.pairs_total} host pairs at planned hop counts{unasked}"
        )
    if report.job is not None:
        lines += [f"  {line}" for line in job(report.job).splitlines()]
    if report.ring_change is not None:
        lines += _change_rings(report.ring_change)
    if report.pause_ms is not None and any(
        p.name == "job" and p.detail.startswith("stopped ") for p in report.phases
    ):
        how_long = f"paused for {seconds_text(report.pause_ms / 1e3)}"
        lines.append(
            f"  training   {how_long}: the job was stopped and relaunched (up --job keep keeps it running)"
        )
    if report.journal:
        lines.append(f"  journal    {path_text(report.journal)}")
    if report.confirm is not None:
        lines.append(f"  confirm    {here(awaiting(report.confirm))}")
    undo = f"   undo: {here(report.undo)}" if report.undo else ""
    word = {"rollback": "Rolled back", "restore": "Restored"}.get(report.verb, "Up")
    if report.confirm is not None:
        word = f"Up until {when(report.confirm.due)}, unless confirmed"
    return page([*lines, f"{paint(word, 'green', colour)}: {report.plan}   run {report.run}{undo}"])


def _change_rings(ring_change: JobChange) -> list[str]:
    """How the job came through:
    `job lost 96 ms: 60 dark, 4 commit, 32 boundary; iteration 212 -> 172 ms`.
    """
    lines = []
    if ring_change.paused_ms is not None:
        lines.append(
            f"  training   {pause_text(ring_change.paused_ms, ring_change.dark_ms, ring_change.commit_ms, ring_change.mode)}"
        )
        if ring_change.before_ms is not None and ring_change.after_ms is not None:
            lines[-1] += f"; iteration {ring_change.before_ms:.0f} -> {ring_change.after_ms:.0f} ms"
    if ring_change.note:
        lines.append(f"  training   {ring_change.note.splitlines()[0]}")
    return lines


def plan(report: PlanReport, colour: bool) -> str:
    """The changes by device, and their cost."""
    lines = [*_diff(report.diff, colour), *_segments(report)]
    if report.circuits:
        worst = max(report.circuits, key=lambda c: c.loss_db)
        lines.append(f"  loss       at most {worst.loss_db:.1f} dB expected ({worst.circuit})")
    if report.routes:
        lines.append(f"  routes     {report.routes} on {counted(report.hosts, 'host')}")
    if report.job_change:
        lines.append(f"  job        {report.job_change}")
    elif report.jobs_affected:
        lines.append(f"  jobs       affected: {listed(report.jobs_affected)}")
    lines += [f"  note       {note}" for note in report.notes]
    if report.relabel is not None:
        lines.append(f"  {report.relabel}")
    if report.nothing_to_do and report.segments:
        return page(
            [
                *lines,
                f"Plan: {report.plan} on {report.lab}: no light moves ({counted(report.kept, 'circuit')} kept)",
            ]
        )
    if report.nothing_to_do:
        return page(
            [
                *lines,
                f"Nothing to do: {report.plan} is up on {report.lab} ({counted(report.kept, 'circuit')})",
            ]
        )
    dark = ""
    if report.dark_ms_expected is not None:
        dark = f"; dark {scaled_ms_text(report.dark_ms_expected, report.dark_time_scale)} expected"
    return page([*lines, f"Plan: {report.plan} on {report.lab}: {_counts(report)}{dark}"])


def prewire(report: PrewireReport, colour: bool, reports: Container[str] = ()) -> str:
    """The pre-wired circuits, and those left for `up`. reports: as for `up`."""
    lines = [
        *_phases(report.phases, reports),
        *_diff(report.diff, colour),
        *(note for note in report.notes if note not in reports),
    ]
    if report.relabel is not None:
        lines.append(f"  {report.relabel}")
    left = f"{counted(report.flips, 'setting')} to make" if report.flips else "nothing to make"
    if report.dark_ms_expected is not None:
        left += f", dark {scaled_ms_text(report.dark_ms_expected, report.dark_time_scale)} expected"
    lines.append(f"  up         {left}")
    if report.waiting:
        lines.append(
            f"  waits      {counted(report.waiting, 'robot move')}: their ports carry light until `up`"
        )
    if report.nothing_to_do:
        return page([*lines, f"Nothing to do: {report.plan} is pre-wired as far as possible"])
    done = f"{counted(report.made, 'cross-connect')}, {report.removed} taken out"
    return page(
        [*lines, f"{paint('Pre-wired', 'green', colour)}: {report.plan}: {done}   run {report.run}"]
    )


def down(
    report: DownReport, colour: bool, here: Callable[[str], str] = str, reports: Container[str] = ()
) -> str:
    """The removed and the remaining circuits. here, reports: as for `up`."""
    lines = [
        *_phases(report.phases, reports),
        *(here(note) for note in report.notes if note not in reports),
    ]
    if report.nothing_to_do and report.verb == "rollback":
        return page([*lines, f"Nothing to undo on {report.lab}   run {report.run}"])
    if report.nothing_to_do:
        return page([*lines, f"Nothing to do: no plan of yours is up on {report.lab}"])
    if report.job_stopped:
        lines.append(f"  job        {report.job_stopped} stopped")
    if report.left:
        lines += [
            paint("Manual repair is needed:", "red", colour),
            *(f"  {i}. {here(what)}" for i, what in enumerate(report.left, 1)),
        ]
    foreign = f", {report.foreign} foreign left alone" if report.foreign else ""
    hosts = f"{report.hosts_restored}/{report.hosts_total} hosts restored"
    word = "Rolled back to no plan" if report.verb == "rollback" else "Down"
    return page(
        [
            *lines,
            f"{word}: {counted(report.removed, 'circuit')} taken down{foreign}, {hosts}   run {report.run}",
        ]
    )


def status(report: StatusReport, colour: bool, here: Callable[[str], str] = str) -> str:
    """Devices, hosts, job and differences from the plan. here: as for `up`."""
    lines = [f"lab      {report.lab} ({path_text(report.inventory)})"]
    if report.loose:
        shown = listed(tuple(name.removeprefix(f"{report.inventory}/") for name in report.loose))
        text = f"warning  {shown} can be written by every user, who could redirect passwords: chmod -R o-w {report.inventory}"
        lines.append(paint(text, "yellow", colour))
    if report.plan:
        since = f", since {when(report.since)}" if report.since is not None else ""
        lines.append(
            f"plan     {report.plan}, {counted(report.links, 'link')}, generation {report.generation}, run {report.run}{since}"
        )
        lines += [f"segment  {segment}" for segment in report.segments]
    else:
        lines.append("plan     none is up")
    if report.locked_by:
        lines.append(f"locked   by {report.locked_by}")
    lines += [f"booked   {one}" for one in report.booked[:SHOWN_BOOKED]]
    if (more := len(report.booked) - SHOWN_BOOKED) > 0:
        lines.append(f"booked   {more} more: testbed lock calendar")
    lines += [f"tagged   {tag}" for tag in report.tagged]
    if report.slots:
        lines.append(f"slots    {report.slots}")
    lines += [f"{name:<8} {text}" for name, text in report.services.items()]
    if report.guard:
        lines.append(f"guard    {report.guard}")
    lines += [f"recovery {text}" for text in report.recoveries[:SHOWN_RECOVERIES]]
    if report.confirm is not None:
        lines.append(paint(f"confirm  {here(awaiting(report.confirm))}", "yellow", colour))
    devices: list[Sequence[str]] = [
        ("device", "", "driver", "owned", "foreign", "missing", "identity")
    ]
    for d in report.devices:
        counts = (
            (str(d.ours), str(len(d.foreign)), str(len(d.missing))) if d.ok else ("-", "-", "-")
        )
        speed = f" x{d.time_scale:g}" if d.time_scale != 1 else ""
        devices.append(
            (
                d.name,
                "ok" if d.ok else "FAIL",
                d.driver + speed,
                *counts,
                d.identity if d.ok else d.error,
            )
        )
    hosts: list[Sequence[str]] = [("host", "", "generation", "ports up")]
    for h in report.hosts:
        generation = "-" if h.generation is None else str(h.generation)
        hosts.append(
            (
                f"{h.name} ({h.site})" if h.site else h.name,
                "ok" if h.ok else "FAIL",
                generation,
                f"{'-' if h.up is None else h.up}/{h.planned}",
                h.error,
            )
        )
    for table in (devices, hosts):
        if len(table) > 1:
            lines += columns(table)
    ahead = [d for d in report.devices if d.prewired]
    lines += [
        f"ahead    {d.name}: {len(d.prewired)} pre-wired, dark: {listed(d.prewired, 6)}"
        for d in ahead
    ]
    for d in report.devices:
        idle = [f"{setting} ({text})" for setting, text in d.holders.items() if "->" in setting]
        lines += (
            [f"held     {d.name}: ports in use without light: {listed(idle, 6)}"] if idle else []
        )
        strange = [f"{port} ({text})" for port, text in d.holders.items() if "->" not in port]
        lines += (
            [f"unknown  {d.name}: ports, which are used for nothing new: {listed(strange, 6)}"]
            if strange
            else []
        )
    lines += report.elsewhere
    if report.job is not None:
        lines += job(report.job).splitlines()
    for run in report.unfinished:
        first, *rest = run.lines()
        lines += [paint(first, "yellow", colour), *map(here, rest)]
    if report.drift:
        text = "Differs from the plan:" if report.plan else "No plan is up, but:"
        lines += [paint(text, "yellow", colour), *(f"  {what}" for what in report.drift)]
    elif report.plan and report.ok:
        stopped = report.job is not None and report.job.state == "stopped"
        lines.append(
            paint(
                "As planned, but its job is stopped" if stopped else "As planned", "green", colour
            )
        )
    return page(lines)


def awaiting(report: Awaiting) -> str:
    """The fate of an unconfirmed change, and the command that decides it."""
    if report.left_s <= 0:
        now = f"your next change first rolls back to {report.to}; to do it now: testbed rollback {report.run}"
        return f"overdue since {when(report.due)}: {now}"
    text = f"within {seconds_text(report.left_s)}, or it is rolled back to {report.to}: testbed confirm"
    return (
        text
        if report.watched
        else f"{text}; no process watches the deadline: testbed confirm --watch"
    )


SHOWN_RECOVERIES = 3
SHOWN_BOOKED = 5
SHOWN = 12
"""Lines of a rung's evidence that are printed; `--json` has them all."""


def verify(report: VerifyReport, colour: bool) -> str:
    """The ladder, one rung per line, with code and evidence below each rung that failed."""
    lines = []
    for level in report.levels:
        lines.append(
            f"  {mark(level.ok, colour)} {phase_line(level.name, level.detail, level.seconds).lstrip()}"
        )
        if not level.ok:
            lines += [f"         {line}" for line in (level.code, *level.evidence[:SHOWN])]
            if len(level.evidence) > SHOWN:
                lines.append(
                    f"         ... and {len(level.evidence) - SHOWN} more (--json has all)"
                )
        lines += [f"         note: {line}" for line in level.notes[:SHOWN]]
    lines += report.notes
    passed = sum(r.ok for r in report.levels)
    return page(
        [
            *lines,
            f"{'Verified' if report.ok else 'Not verified'}: {report.plan}, {passed}/{len(report.levels)} rungs",
        ]
    )


def job(report: JobStatus) -> str:
    """One job in one or two lines."""
    if report.state == "none":
        return "job        none"
    argv = [f"{report.name}: {report.state}"]
    if report.ranks:
        several = f" on {counted(report.hosts, 'host')}" if 0 < report.hosts < report.ranks else ""
        argv.append(counted(report.ranks, "rank") + several)
    argv += [word for word in (report.workload, report.backend) if word]
    line = f"job        {', '.join(argv)}"
    if report.iterations:
        line += f"   {counted(report.iterations, 'iteration')}"
        line += f" after iteration {report.resumed_from}" if report.resumed_from else ""
        line += (
            f" (the checkpoint of iteration {report.damaged} is damaged: passed over)"
            if report.damaged
            else ""
        )
    if report.iteration_ms is not None:
        line += f"   iteration {ms_text(report.iteration_ms)}"
        if report.iteration_expected_ms:
            off = report.iteration_ms / report.iteration_expected_ms - 1
            line += f" of {ms_text(report.iteration_expected_ms)} predicted ({off:+.1%})"
    if report.busbw_mbps is not None:
        line += f"   busbw {report.busbw_mbps:.0f} MB/s"
        if report.busbw_expected_mbps is not None:
            line += f" of {report.busbw_expected_mbps:.0f} expected"
    if report.time_scale != 1 and report.iteration_ms is not None:
        line += f"\n           multiply times here by {1 / report.time_scale:.3g} for those on the workload's own links"
    if report.limit:
        line += f"\n           {report.limit}"
    failed = {rank: code for rank, code in report.exit_codes.items() if code != 0}
    if failed:
        line += "\n           exit codes: " + ", ".join(
            f"rank {rank}: {code}" for rank, code in sorted(failed.items())
        )
    found = attached_text(report.attached)
    found += [sent_text(report.sent), lost_text(report.sent)] if report.sent is not None else []
    found += [save_text(report.saves)] if report.saves is not None else []
    if report.bad_record:
        left_out = (
            f"{counted(report.bad_records, 'line')} of its records left out"
            if report.bad_records
            else "its records are not read"
        )
        found.append(f"{left_out}: {report.bad_record}")
    line += "".join(f"\n           {flat(text)}" for text in found if text)
    return line + "".join(
        f"\n           {text}" for text in (*report.late, *report.detail.splitlines())
    )


def logs(report: JobLogs) -> str:
    """Every rank's last lines, each preceded by its rank."""
    return page(f"{rank}: {line}" for rank, lines in report.lines.items() for line in lines)
