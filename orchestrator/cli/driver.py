"""`testbed devices driver list | conform | matrix`: the drivers, their conformance checks, and the
tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optics.errors import BadFile, Interlock, Missing
from optics.plain import counted, did_you_mean, reason
from orchestrator.cli import kit
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import drivers
from orchestrator.cli.groups import family
from orchestrator.cli.shared import Junit, require_running_lab

if TYPE_CHECKING:
    from conformance.run import Report
    from conformance.run import Result as Found
    from conformance.subject import Subject
    from optics import DeviceConfig
    from orchestrator.inventory.lab import Lab
    from orchestrator.store.store import Store

DRIVERS_PAGE = "docs/reference/drivers.md"


app = family("driver", short="List, check and develop drivers.")
app.add_typer(kit.app)


@verb(
    app,
    "list",
    "List the drivers: devices, addresses, abilities.",
    examples=f"""
testbed devices driver list
testbed devices driver list --markdown
testbed devices driver list --update {DRIVERS_PAGE}
""",
)
def list_(
    call: Call,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables of the reference page.")
    ] = False,
    update: Annotated[
        Path | None, typer.Option("--update", help="Update the tables in this page.")
    ] = None,
) -> Result:
    from conformance.present import evidence_table, options_table, traits_table
    from drivers.registry import built_in_drivers, evidence, known_drivers
    from orchestrator.cli.text import columns

    if markdown or update:
        own = built_in_drivers()
        tables = {
            "evidence": evidence_table(own),
            "traits": traits_table(own),
            "options": options_table(own),
        }
        if update:
            return _update(update, tables)
        return Result({"tables": dict(tables)}, "\n\n".join(tables.values()))
    rows: list[Sequence[str]] = [("driver", "address", "abilities", "devices")]
    data: list[Any] = []
    for name in known_drivers():
        evidence_of, able = evidence(name), _abilities(name)
        rows.append(
            (name, ", ".join(evidence_of.schemes), ", ".join(able) or "-", evidence_of.family)
        )
        data.append(
            {
                "driver": name,
                "schemes": list(evidence_of.schemes),
                "abilities": able,
                "devices": evidence_of.family,
            }
        )
    return Result({"drivers": data}, "\n".join(columns(rows)))


@verb(
    app,
    "conform",
    "Check a driver against its emulator, or against a device.",
    examples="""
testbed devices driver conform polatis-scpi                             its own emulator
testbed devices driver conform polatis-scpi --only executed-but-no-reply
testbed devices driver conform calient-tl1 --junit conformance.xml
testbed devices driver conform polatis-scpi --device ocs1               a device of the inventory
""",
    more="A real device also needs --hardware. It is only read at first; you are asked before anything is switched. Only unused\n"
    "ports are switched, and the device is left as it was.",
)
def conform(
    call: Call,
    driver: Annotated[
        str, typer.Argument(metavar="NAME", help="The driver.", autocompletion=drivers)
    ],
    device: Annotated[
        str | None, typer.Option("--device", "-d", metavar="D", help="A device of the inventory.")
    ] = None,
    hardware: Annotated[
        bool, typer.Option("--hardware", help="Confirm that it is a real device.")
    ] = False,
    junit: Junit = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", help="Only this check; may be repeated."),
    ] = None,
) -> Result:
    from drivers.registry import driver_class, known_drivers

    if driver not in known_drivers():
        raise Missing(
            f"there is no driver {driver!r}{did_you_mean(driver, known_drivers())}",
            hint="testbed devices driver list",
        )
    driver_class(driver)
    _known(only or [])
    report = (
        _on_device(call, driver, device, hardware, only or [])
        if device
        else _on_emulator(call, driver, only or [])
    )
    if junit:
        from conformance.present import junit as as_junit

        kit.write(junit, as_junit([report]))
    return _result(call, report, part=bool(only))


@verb(
    app,
    "matrix",
    "Check all drivers against their emulators; print the support matrix.",
    examples=f"testbed devices driver matrix\ntestbed devices driver matrix --update {DRIVERS_PAGE}",
)
def matrix(
    call: Call,
    update: Annotated[
        Path | None, typer.Option("--update", help="Update the matrix in this page.")
    ] = None,
    junit: Junit = None,
) -> Result:
    from conformance.lab import devices_lab, families, name_of
    from conformance.present import as_json
    from conformance.present import junit as as_junit
    from conformance.present import matrix as table
    from conformance.run import run_many
    from conformance.subject import Subject
    from drivers.registry import known_drivers

    names = [name for name in known_drivers() if name in families()]
    with devices_lab(names) as lab:
        subjects = [Subject(lab.devices[name_of(name)], lab.truth(name_of(name))) for name in names]
        reports = call._run(
            run_many(
                subjects, notify=lambda subject, found: _notify(call, found, subject.config.driver)
            )
        )
    text = table(reports.values())
    if junit:
        kit.write(junit, as_junit(reports.values()))
    data: dict[str, Any] = {
        "matrix": text,
        "drivers": [as_json(report) for report in reports.values()],
    }
    if update:
        data |= _update(update, {"matrix": text}).data
    failed = [name for name, report in reports.items() if not report.ok]
    if failed:
        message = f"{counted(len(failed), 'driver')} failed: {', '.join(failed)}"
        return Result(
            data,
            text,
            "E-NOT-VERIFIED",
            7,
            message,
            f"testbed devices driver conform {failed[0]}",
            ok=False,
        )
    return Result(data, text)


def _on_emulator(call: Call, driver: str, only: Sequence[str]) -> Report:
    from conformance.lab import devices_lab, name_of
    from conformance.run import chosen, run
    from conformance.subject import Subject

    with devices_lab([driver]) as lab:
        subject = Subject(lab.devices[name_of(driver)], lab.truth(name_of(driver)))
        return call._run(
            _closing(
                subject, run(subject, chosen(subject, only), lambda found: _notify(call, found))
            )
        )


def _on_device(call: Call, driver: str, name: str, hardware: bool, only: Sequence[str]) -> Report:
    """Check a device of the inventory, under the lab's lock. Raises: Usage, Missing, Locked,
    Interlock.
    """
    from conformance.hardware import run_on_hardware
    from conformance.subject import Subject
    from conformance.truth import Truth
    from orchestrator import emulated as labproc
    from orchestrator.change.locking import holding
    from orchestrator.session import Command, load_lab
    from orchestrator.store.scope import Scope
    from orchestrator.telemetry.progress import Silent

    settings = call.settings
    lab = load_lab(settings.inventory)
    config = _config(lab, name, driver)
    emulated = labproc.is_emulated(settings.inventory)
    require_running_lab(settings.inventory)
    if not emulated and not hardware:
        raise Interlock(
            f"{name} is a real device",
            hint="add --hardware; it is only read until you confirm more",
        )
    truth = (
        Truth(labproc.state_dir(settings.inventory) / "control.sock", name) if emulated else None
    )
    subject = Subject(config, truth)

    async def agreed(text: str) -> None:
        if emulated and not subject.foreign:
            return
        call.note(f"next: {text}" + ("; and faults of all kinds" if emulated else ""))
        call.confirm("Continue?")

    async def checked(store: Store) -> Report:
        async with holding(
            lab,
            Command(Silent(), store, settings),
            Scope(devices=frozenset({name})),
            "devices driver conform",
            name,
        ):
            return await _closing(
                subject,
                run_on_hardware(subject, agreed, lambda found: _notify(call, found), tuple(only)),
            )

    with call.store() as store:
        return call._run(checked(store))


def _config(lab: Lab, name: str, driver: str) -> DeviceConfig:
    """The device of the inventory, with its password. Raises: Missing, Usage."""
    config = kit.device_config(lab, name)
    if config.driver != driver:
        raise Usage(
            f"{name} uses the driver {config.driver}, not {driver}",
            hint=f"testbed devices driver conform {config.driver} --device {name}",
        )
    return config


async def _closing(subject: Subject, work: Coroutine[Any, Any, Report]) -> Report:
    try:
        return await work
    finally:
        await subject.device.close()


def _known(only: Sequence[str]) -> None:
    from conformance.check import all_checks

    names = [check.name for check in all_checks()]
    for name in only:
        if name not in names:
            raise Usage(f"there is no check {name!r}{did_you_mean(name, names)}", hint="--help")


def _notify(call: Call, found: Found, driver: str = "") -> None:
    """Print one line per check as it ends."""
    from conformance.run import Verdict
    from optics.plain import seconds_text

    mark = {Verdict.PASSED: "ok  ", Verdict.FAILED: "FAIL", Verdict.NOT_TRIED: "-   "}[
        found.verdict
    ]
    whose = f"{driver:<18} " if driver else ""
    call.note(
        f"  {mark} {whose}{found.check.name:<34} {seconds_text(found.seconds):>8}   {found.message or found.check.sentence}"
    )


def _result(call: Call, report: Report, *, part: bool = False) -> Result:
    """The result of a run. part: of some checks only, so that the others are not listed and there
    is no row of the matrix.
    """
    from conformance.present import MATRIX_HEAD, as_json, markdown, matrix_row, statuses
    from orchestrator.cli.text import columns, paint

    tones = {"confirmed": "green", "not confirmed": "red", "not tried": "yellow"}
    rows = [row for row in statuses(report) if not part or row[1] != "not tried"]
    lines = [f"{report.driver} on {report.device}: {report.identity}"]
    lines += columns(
        (f"  {name}", paint(status, tones[status], call.colour), means)
        for name, status, means in rows
    )
    if report.emulated and not part:
        lines += ["", markdown(MATRIX_HEAD, [matrix_row(report)])]
    data: Any = as_json(report)
    if report.ok:
        return Result(data, "\n".join(lines))
    first = report.failed[0]
    lines += [
        "",
        *(
            f"FAIL {found.check.name}: {found.check.sentence}\n     {found.message}"
            for found in report.failed
        ),
    ]
    text = f"{len(report.failed)} of {counted(len(report.results), 'check')} failed"
    again = f"testbed devices driver conform {report.driver} --only {first.check.name}"
    return Result(data, "\n".join(lines), "E-NOT-VERIFIED", 7, text, again, ok=False)


def _abilities(driver: str) -> list[str]:
    from conformance.capability import CAPABILITIES
    from conformance.run import declared, imagined

    return [name for name in declared(imagined(driver)) if not CAPABILITIES[name].core]


def _update(page: Path, tables: dict[str, str]) -> Result:
    """Replace the tables between their markers in a page. Raises: BadFile."""
    from conformance.present import NoMarkers, replaced
    from orchestrator.files.reading import text_of

    try:
        text = text_of(page)
        new = replaced(text, tables)
    except (OSError, NoMarkers) as error:
        raise BadFile([f"{page}: {reason(error)}"]) from error
    if new != text:
        kit.write(page, new)
    return Result(
        {"page": str(page), "changed": new != text},
        f"{page}: {'updated' if new != text else 'already up to date'}",
    )
