"""`testbed lab`: start and stop the emulated lab, look at it; import the inventory of a lab."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.faults import faults, fibres
from orchestrator.cli.listing import VERBS
from orchestrator.cli.netbox import app as imports

if TYPE_CHECKING:
    from orchestrator.results import Json

Driver = Annotated[
    list[str] | None,
    typer.Option(
        "--driver",
        metavar="NAME",
        help="The lab of this driver's devices; given several times: of a device of each.",
    ),
]
Hosts = Annotated[
    int | None,
    typer.Option(
        "--hosts", metavar="N", min=0, help="With --driver: number of hosts; 0: only the device."
    ),
]


FreePorts = Annotated[
    bool,
    typer.Option(
        "--free-ports",
        help="Where other programs have the lab's ports, start a copy of it on free ones.",
    ),
]


def _lab_of(call: Call, driver: Sequence[str] | None) -> Path:
    """The chosen inventory, or the one made for the drivers."""
    from orchestrator.made_labs import made

    return made(call.settings.state_dir, driver) if driver else call.settings.inventory


app = typer.Typer(
    name="lab",
    help=VERBS["lab"][1],
    no_args_is_help=True,
    rich_markup_mode=None,
)


@verb(
    app,
    "start",
    "Start the emulated lab in the background.",
    examples="""
testbed lab start
testbed lab start --inventory inventory/emulated
testbed lab start --free-ports                      beside other labs of this machine
testbed lab start --driver rome-cli --hosts 4       devices of one driver, with a plan
testbed lab start --driver polatis-scpi --driver rome-cli
""",
    more="With several --driver, port 1 of every host is at a device of the first, port 2 at one of the second, and so on.",
)
def start(
    call: Call, driver: Driver = None, hosts: Hosts = None, free_ports: FreePorts = False
) -> Result:
    from drivers.registry import known_drivers
    from optics.plain import did_you_mean, seconds_text
    from orchestrator import emulated as labproc
    from orchestrator.cli.call import Usage
    from orchestrator.made_labs import PLAN, start_family, start_on_free_ports
    from orchestrator.results import path_text

    if hosts is not None and not driver:
        raise Usage("--hosts can only be used with --driver", hint="add --driver NAME")
    for name in driver or ():
        if name not in (known := known_drivers()) and (meant := did_you_mean(name, known)):
            raise Usage(
                f"--driver {name}: there is no such driver{meant}",
                hint="testbed devices driver list",
            )
    call.note("starting the emulated lab ...")
    inventory, timeout_s = call.settings.inventory, call.settings.timeout_s
    if driver:  # its ports are always free ones
        inventory, started = start_family(call.settings.state_dir, driver, hosts, timeout_s)
    elif free_ports:
        inventory, started = start_on_free_ports(inventory, call.settings.state_dir, timeout_s)
    else:
        started = labproc.start_emulated_lab(inventory, timeout_s)
    about = labproc.ask(inventory, "status")
    message = (
        "already running" if started.already else f"started in {seconds_text(started.seconds)}"
    )
    data: dict[str, Json] = {
        "pid": started.pid,
        "seconds": started.seconds,
        "already": started.already,
        "state_dir": str(started.state_dir),
        "inventory": str(inventory),
    }
    text = f"lab      {labproc.about(about)} {message}, pid {started.pid}, log {path_text(started.state_dir / 'lab.log')}"
    if inventory.resolve() == call.settings.inventory.resolve():
        return Result(data, text)
    call.inventory = str(inventory)  # the next command is for this lab
    text += f"\nexport TESTBED_INVENTORY={shlex.quote(str(inventory))}"
    if not driver:
        return Result(data, text, hint="testbed up --topology PLAN")
    if not about["hosts"]:
        device, facts = next(iter(about["devices"].items()))
        return Result(
            data, text, hint=f"testbed devices driver conform {facts['driver']} --device {device}"
        )
    return Result(
        data | {"plan": str(inventory / PLAN)},
        text,
        hint=f"testbed up --topology {inventory / PLAN}",
    )


@verb(
    app,
    "stop",
    "Stop the emulated lab; no process and no network namespace remains.",
    examples="testbed lab stop\ntestbed lab stop --driver rome-cli",
)
def stop(call: Call, driver: Driver = None) -> Result:
    from orchestrator import emulated as labproc

    stopped = labproc.stop_emulated_lab(
        _lab_of(call, driver), min(labproc.STOP_S, call.settings.timeout_s)
    )
    return Result(
        {"stopped": stopped}, "lab      stopped" if stopped else "lab      was not running"
    )


@verb(
    app,
    "status",
    "Show the emulated lab: its devices, hosts and lit circuits.",
    examples="testbed lab status\ntestbed lab status --json | jq .data.light",
    more="Without --inventory and --driver it also lists other emulated labs running on this machine.",
)
def status(call: Call, driver: Driver = None) -> Result:
    from orchestrator import emulated as labproc
    from orchestrator.cli.text import columns, listed
    from orchestrator.inventory.folders import absent

    inventory = _lab_of(call, driver)
    if (wrong := absent(inventory)) is not None:
        raise wrong
    named = bool(driver or call.inventory)
    others = (
        []
        if named
        else [lab for lab in labproc.running() if lab[1].resolve() != inventory.resolve()]
    )
    listed_too: dict[str, Json] = (
        {} if named else {"others": [{"pid": pid, "inventory": str(at)} for pid, at in others]}
    )
    also = [f"also     {at}, pid {pid}" for pid, at in others]
    if not labproc.is_emulated(inventory):
        text = "\n".join([f"lab      {inventory} is not an emulated lab", *also])
        return Result({"running": False, "emulated": False} | listed_too, text)
    if not labproc.is_running(inventory):
        text = "\n".join(
            [f"lab      {inventory.name} is not running" if also else "lab      not running", *also]
        )
        again = (
            f"testbed lab start --driver {' --driver '.join(driver)}"
            if driver
            else "testbed lab start"
        )
        return Result({"running": False, "emulated": True} | listed_too, text, hint=again)
    about = labproc.ask(inventory, "status")
    light = labproc.ask(inventory, "light")
    about.pop("ok", None)
    lit = light["light"]
    lines = [f"lab      {labproc.about(about)}, pid {about.get('pid', '-')}"]
    at = {name: device["address"] for name, device in about["devices"].items()}
    kind = {name: device["driver"] for name, device in about["devices"].items()}
    lines += columns(
        (f"  {name}", lit_text(kind[name], each), at[name]) for name, each in lit.items()
    )
    lines += columns(
        functions_text(name, each) for name, each in about.get("functions", {}).items()
    )
    dark = [name for name, host in about["hosts"].items() if not host["sshd"]]
    if dark:
        lines.append(f"  no sshd  {listed(dark)}")
    cut = [
        *(cable["name"] for kind in ("fibres", "trunks") for cable in about[kind] if cable["cut"]),
        *about["unplugged"],
    ]
    if cut:
        lines.append(f"  cut      {listed(cut)}")
    data: dict[str, Json] = {"running": True, "emulated": True, "lab": about, "light": lit}
    return Result(data | listed_too, "\n".join([*lines, *also]))


def functions_text(segment: str, about: Mapping[str, Any]) -> tuple[str, str, str]:
    """What the functions of a packet switch are and who uses them."""
    if not about["running"]:
        return f"  {segment}", f"functions: {about['error']}", ""
    lost = f", {about['loss'] * 100:g} % of their packets lost" if about["loss"] else ""
    jobs = sorted({each["job"] for each in about["allocations"]})
    used = f"used by {', '.join(jobs)}" if jobs else "free"
    return (
        f"  {segment}",
        f"{', '.join(about['functions'])}: {used}{lost}",
        f"{about['address']}:{about['port']}",
    )


def lit_text(driver: str, lit: Sequence[object]) -> str:
    """How many cross-connects of a device carry light, or wavelengths of a wavelength-selective
    switch.
    """
    from drivers.registry import driver_class, known_drivers
    from optics.plain import counted

    spectral = driver in known_drivers() and driver_class(driver).TRAITS.spectral
    return f"{counted(len(lit), 'wavelength' if spectral else 'cross-connect')} lit"


app.add_typer(faults)
app.add_typer(fibres)
app.add_typer(imports)
