"""`testbed lab import netbox`: a lab's inventory from NetBox."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.groups import family
from orchestrator.cli.shared import ExitCode

if TYPE_CHECKING:
    from orchestrator.inventory.from_netbox import Inventory
    from orchestrator.inventory.lab import Lab
    from orchestrator.results import Json

SHOWN = 40
"""Differences of an inventory, and what was left out, that are printed; `--json` has all."""

app = family("import", short="Import a lab's inventory from where its cabling is documented.")


@verb(
    app,
    "netbox",
    "Write an inventory of NetBox's devices and cables, or show what changed.",
    examples="""
testbed lab import netbox --out mylab
testbed lab import netbox --out mylab --filter site=dc1
testbed lab import netbox --out mylab --write           take over what changed
testbed lab import netbox --out mylab --check           compare with the light
testbed lab import netbox --out mylab --write-circuits circuit
""",
    more="NetBox is only read, but for --write-circuits. An inventory that exists is changed by --write only.",
)
def netbox(
    call: Call,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Inventory to write.")
    ] = None,
    url: Annotated[
        str,
        typer.Option("--url", envvar="TESTBED_NETBOX_URL", metavar="URL", help="URL of NetBox."),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="TESTBED_NETBOX_TOKEN",
            metavar="TOKEN",
            help="API token; in the variable it does not appear in process listings.",
            show_envvar=True,
        ),
    ] = "",
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="KEY=VALUE", help="Only such devices: site=dc1, tag=gpu, rack_id=4."
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Change the inventory that exists.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the cabling with the light at the devices.")
    ] = False,
    write_circuits: Annotated[
        str,
        typer.Option(
            "--write-circuits",
            metavar="FIELD",
            help="Write the circuits on each cable to this custom field in NetBox.",
        ),
    ] = "",
    exit_code: ExitCode = False,
) -> Result:
    from optics.plain import counted, printable
    from orchestrator.inventory.cabling import cabling_of
    from orchestrator.inventory.from_netbox import taken_over
    from orchestrator.inventory.netbox import read_rows
    from orchestrator.verbs.netbox import TIMEOUT_S, NetBox

    if out is None:
        raise Usage(f"{call.verb}: no --out given", hint=f"testbed {call.verb} --out mylab")
    for given, flag in ((url, "--url"), (token, "--token")):
        if not given:
            raise Usage(
                f"{call.verb}: {flag} is missing",
                hint=f"or TESTBED_NETBOX_{flag[2:].upper()} in the environment",
            )
    if write_circuits and not re.fullmatch(r"[A-Za-z0-9_]{1,50}", write_circuits):
        raise Usage(f"--write-circuits {write_circuits}: wanted the name of a custom field")
    before = _existing(out)
    server = NetBox(url, token, timeout_s=min(TIMEOUT_S, call.settings.timeout_s))
    with call.timed():
        cabling = cabling_of(read_rows(server.answers(_filters(filters or ())), server.url))
        found = taken_over(cabling, out.resolve().name, *(before or (None, None)))
        texts, lab = _checked(out, found)
    lines = [
        f"  {each.how:<8} {each.what:<6} {each.name}"
        + (f": {', '.join(each.details)}" if each.details else "")
        for each in (found.differences if before else ())
    ]
    lines = _some(lines) + _some([f"  left out {printable(text)}" for text in cabling.left_out])
    wrong: tuple[str, ...] | None = None
    if check:
        wrong = _light(call, lab, lines)
    sent = _circuits(call, server, lab, found, cabling.fields, write_circuits, lines)
    # the files last: whatever fails before leaves them as they were
    written = before is None or (write and bool(found.changed))
    if written:
        _write(out, texts, found.changed if before else tuple(texts))
    size = ", ".join(
        counted(len(each), noun)
        for each, noun in (
            (lab.hosts, "host"),
            (lab.devices, "device"),
            (lab.fibres, "fibre"),
            (lab.trunks, "trunk"),
        )
    )
    waiting = before is not None and not written and bool(found.differences)
    state = (
        f"not written: {counted(len(found.differences), 'difference')}"
        if waiting
        else f"written to {out}"
        if written
        else f"{out} has no differences"
    )
    lines.append(f"NetBox {server.url}: {size}; {state}")
    data: dict[str, Json] = {
        "out": str(out),
        "written": [str(out / name) for name in (found.changed if before else texts)]
        if written
        else [],
        "hosts": len(lab.hosts),
        "devices": len(lab.devices),
        "fibres": len(lab.fibres),
        "trunks": len(lab.trunks),
        "differences": [
            {"what": d.what, "name": d.name, "how": d.how, "details": list(d.details)}
            for d in found.differences
        ],
        "left_out": list(cabling.left_out),
        "light": None if wrong is None else list(wrong),
        "cables_written": sent,
    }
    place = shlex.quote(str(out))
    differs = exit_code and bool(waiting or wrong)
    if waiting:
        hint = f"testbed lab import netbox --out {place} --write"
    else:
        hint = f"testbed {'verify' if wrong else 'doctor'} --inventory {place}"
    code = "DIFFERENCES" if differs else "OK"
    return Result(data, "\n".join(lines), code, 8 if differs else 0, hint=hint)


def _filters(given: Sequence[str]) -> dict[str, list[str]]:
    """Which devices. Raises: Usage - not KEY=VALUE, or a key that says which page."""
    found: dict[str, list[str]] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not value or not re.fullmatch(r"[a-z][a-z0-9_]*", key):
            raise Usage(f"--filter {text}: wanted KEY=VALUE", hint="--filter site=dc1")
        if key in ("limit", "offset", "start", "fields", "exclude", "strict_filters", "brief"):
            raise Usage(f"--filter {text}: this key does not choose devices")
        found.setdefault(key, []).append(value)
    return found


def _existing(out: Path) -> tuple[Lab, dict[str, Any]] | None:
    """The inventory that is there, and its files as values. Raises: BadFile - it is not one, or one
    that a rewriting would damage; Usage - one of an emulated lab.
    """
    from optics import BadFile
    from orchestrator import emulated
    from orchestrator.files.reading import text_of
    from orchestrator.inventory.from_netbox import FILES
    from orchestrator.inventory.yaml_reader import read_yaml
    from orchestrator.session import load_lab

    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if emulated.is_emulated(out):
        raise Usage(f"{out} is an emulated lab", hint="name another directory by --out")
    lab = load_lab(out)
    texts = {name: text_of(out / name) for name in FILES}
    if tagged := [
        name for name, text in texts.items() if re.search(r"^[^#\n]*[:\-]\s+[!&*]\w", text, re.M)
    ]:
        raise BadFile(
            [
                f"{out / name}: it has YAML tags or anchors, which rewriting would lose"
                for name in tagged
            ],
            hint="write the values themselves, or import into another directory and compare",
        )
    return lab, {name: read_yaml(text, str(out / name)).value for name, text in texts.items()}


def _checked(out: Path, found: Inventory) -> tuple[dict[str, str], Lab]:
    """The files' texts and the lab that they describe. Raises: BadFile - they are no inventory."""
    from optics import BadFile
    from orchestrator.inventory.from_netbox import file_text
    from orchestrator.session import lab_of_texts

    texts = {name: file_text(name, value) for name, value in found.files.items()}
    try:
        return texts, lab_of_texts(texts, out)
    except BadFile as error:
        error.hint = "correct it in NetBox, or in the inventory; nothing was written"
        raise


def _write(out: Path, texts: dict[str, str], names: Sequence[str]) -> None:
    from orchestrator.cli.shared import write_file

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Usage(f"{out}: {error.strerror or error}", hint="name another directory") from error
    for name in names:
        write_file(out / name, texts[name])


def _light(call: Call, lab: Lab, lines: list[str]) -> tuple[str, ...]:
    from orchestrator.verbs.netbox import cabling_by_light

    report = call.work(cabling_by_light, lab)
    lines += _some([f"  light    {text}" for text in report.wrong])
    lines.append(
        f"  light    {report.measured} of {report.cabled} fibres measured, {len(report.wrong)} wrong"
    )
    return report.wrong


def _circuits(
    call: Call,
    server: Any,
    lab: Lab,
    found: Inventory,
    fields: Any,
    field: str,
    lines: list[str],
) -> int | None:
    from optics.plain import counted
    from orchestrator.verbs.netbox import circuits_on_cables, to_write

    if not field:
        return None
    to_write(field, {}, fields)  # whether there is such a field, before devices are asked
    texts = to_write(field, call.work(circuits_on_cables, lab, found.cables), fields)
    server.write(field, texts)
    lines.append(f"  circuits {field} of {counted(len(texts), 'cable')} written to NetBox")
    return len(texts)


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"  and {more} more (--json has all)"]
