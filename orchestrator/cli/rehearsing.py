"""What `plan --rehearse` and `up --rehearse` share: the rehearsal, its text, and rehearsed figures
beside measured ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.call import Call, Result

if TYPE_CHECKING:
    from orchestrator.change.report import UpReport
    from orchestrator.experiments.rehearsal.report import ComparedFigure, RehearsalReport
    from orchestrator.store.options import UpOptions

FEW = 6
"""Links, pairs and the like that are listed; `--json` has them all."""


def reported(path: Path, options: UpOptions) -> str:
    """The plan and the options that a rehearsal takes as well, as on the command line of `up` and
    `plan --rehearse`.
    """
    argv = ["-t", str(path)]
    for option, values in (("--avoid", options.avoid), ("--adopt", options.adopt)):
        argv += [word for value in values for word in (option, value)]
    argv += ["--job", options.job] if options.job is not None else []
    return shlex.join(argv if options.launch_job else [*argv, "--no-job"])


def rehearse(
    call: Call, path: Path, options: UpOptions, *, start: bool = False, devices_only: bool = False
) -> RehearsalReport:
    """Make the change on a twin. start: an emulated lab that does not run is started first, as `up`
    starts it.

    devices_only: on one without hosts.
    """
    from orchestrator.experiments.rehearsal.verb import rehearse as verb

    return (call.work_on_lab if start else call.work)(
        verb, path, options, devices_only=devices_only
    )


def rehearsed_first(call: Call, path: Path, options: UpOptions, expected: str) -> RehearsalReport:
    """Rehearse, show the result and ask whether to go on; without a terminal that is refused before
    anything is done.

    Raises: Usage - nobody to ask. NotVerified - it failed on the twin.
    """
    from optics.errors import NotVerified
    from orchestrator.change.goal import as_saved
    from orchestrator.cli.tones import coloured

    call.must_be_able_to_ask()
    report = rehearse(call, path, options, start=True)
    if expected:
        as_saved(expected, report.fingerprint)
    call.note(coloured(text(report, call)))
    if report.failed:
        raise NotVerified(
            f"the change failed on the twin of {report.lab}, so it was not made:\n{report.failed}",
            hint=f"to repeat it: testbed plan --rehearse {reported(path, options)}; without --rehearse the change is made anyway",
        )
    call.confirm(f"Make this change on {report.lab}?")
    return report


def next_to(result: Result, rehearsed: RehearsalReport, report: UpReport, call: Call) -> Result:
    """The result of `up` with the rehearsed figures beside the measured ones, which are kept with
    the run.
    """
    from contextlib import suppress

    from orchestrator.experiments.rehearsal.report import compare_rehearsal, save_comparison
    from orchestrator.results import to_json

    rows = compare_rehearsal(rehearsed, report)
    # the change is made: that its prediction could not be kept must not fail it
    with suppress(OSError):
        save_comparison(call.settings.run_dir(report.run), rehearsed, rows)
    data = {**result.data, "rehearsed": rehearsed.to_json(), "comparison": to_json(rows)}
    return replace(result, data=data, text="\n".join([*comparison_lines(rows), result.text]))


def comparison_lines(rows: Iterable[ComparedFigure]) -> list[str]:
    """A table: what, as rehearsed, as measured, and by how much it was off."""
    from orchestrator.cli.text import columns, ms_text

    table = [("  rehearsed", "rehearsed", "measured", "off")]
    for row in rows:
        off = "-" if row.off is None else f"{row.off:+.0%}"
        table.append((f"    {row.what}", ms_text(row.rehearsed_ms), ms_text(row.measured_ms), off))
    return columns(table) if len(table) > 1 else []


def text(report: RehearsalReport, call: Call) -> str:
    """The change as it went on the twin: waterfall, dark time, who is cut off, the job, going back,
    and what this does not show.
    """
    import shutil

    from optics.plain import counted, seconds_text
    from orchestrator.cli import waterfall
    from orchestrator.cli.text import listed, ms_text, page, paint, scaled_ms_text
    from orchestrator.views.waterfall import Bar

    width = shutil.get_terminal_size((100, 24)).columns
    bars = [
        Bar("run", "", p.name, p.begin_s * 1e3, p.seconds * 1e3, p.ok, p.detail)
        for p in report.phases
    ]
    bars += [Bar(p.kind, p.name, p.phase, p.begin_ms, p.ms, True, p.detail) for p in report.parts]
    alone = report.devices_alone
    lines = [
        f"Rehearsal of {report.plan} on a twin of {report.lab}"
        + (", of its devices alone" if alone else ""),
        "",
    ]
    drawn = waterfall.draw(bars, width, unicode=call.unicode) if bars else []
    whole = "" if alone else f"; in all {seconds_text(report.total_s)}"
    if report.dark_ms is not None:
        lines.append(
            f"  dark       {scaled_ms_text(report.dark_ms, report.dark_time_scale)}{whole}"
        )
    elif not report.failed:
        lines.append(f"  dark       nothing{whole}")
    dark = [f"{row.link} {ms_text(row.dark_ms)}" for row in report.links if row.dark_ms is not None]
    if dark:
        lines.append(f"  links      dark longest: {listed(dark, FEW)}")
    if report.cut_off:
        lines.append(
            f"  cut off    {counted(len(report.cut_off), 'pair')} without a path meanwhile: {listed(report.cut_off, FEW)}"
        )
    if report.ring_change is not None and report.ring_change.paused_ms is not None:
        lines.append(f"  training   the job lost {ms_text(report.ring_change.paused_ms)}")
    if report.job_change:
        lines.append(f"  job        {report.job_change}")
    if report.stall is not None:
        how = f"by {counted(report.stall.points, 'point')} of this lab's stall curve ({report.stall.mode})"
        lines.append(f"  stall      traffic stands {ms_text(report.stall.lost_ms)} {how}")
    elif report.dark_ms is not None and not alone:
        lines.append(
            "  stall      this lab has no stall curve for it: testbed verify --stall measures one"
        )
    if report.back is not None and not report.back.failed:
        again = "" if report.back.dark_ms is None else f", dark {ms_text(report.back.dark_ms)}"
        by = " on the devices" if alone else ""
        lines.append(
            f"  rollback   before the switch: no light moves; after it: {seconds_text(report.back.seconds)}{by}{again}"
        )
    elif report.back is not None:
        lines.append(
            paint(f"  rollback   FAILED: {report.back.failed.splitlines()[0]}", "red", call.colour)
        )
    lines += [f"  switching  {name}: {message}" for name, message in report.switching.items()]
    lines += [paint(f"  by hand    {what}", "red", call.colour) for what in report.left]
    lines += [f"  note       {note}" for note in report.notes]
    lines += [f"  not shown  {what}" for what in report.missing]
    last = f"Rehearsed in {seconds_text(report.took_s)}: {report.plan}; nothing on {report.lab} was written"
    if report.failed:
        lines.append(paint(f"It failed there: {report.failed.splitlines()[0]}", "red", call.colour))
        lines += [f"  {line}" for line in report.failed.splitlines()[1:]]
    return "\n".join([page(lines[:1]), *([] if not drawn else ["", *drawn]), page(lines[1:]), last])
