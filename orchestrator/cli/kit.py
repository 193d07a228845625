"""`testbed devices driver new | record | replay`: tools for writing a driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optics.errors import Missing
from optics.plain import counted
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.shared import require_running_lab

if TYPE_CHECKING:
    from drivers.api import CircuitSwitch
    from optics import DeviceConfig
    from orchestrator.inventory.lab import Lab


app = typer.Typer()


def device_config(lab: Lab, name: str) -> DeviceConfig:
    """A device of the inventory, with its password. Raises: Missing - there is none of that
    name.
    """
    from optics.plain import did_you_mean
    from orchestrator.credentials import with_secret

    if name not in lab.devices:
        raise Missing(
            f"there is no device {name!r} in this lab{did_you_mean(name, lab.devices)}",
            hint="testbed devices",
        )
    return with_secret(lab, lab.devices[name])


def write(path: Path, text: str) -> None:
    """Write a file as a whole. Raises: Missing - it cannot be written there."""
    from orchestrator.files.atomic import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        raise Missing(
            f"{path} cannot be written: {error.strerror}", hint="choose another file"
        ) from error


@verb(
    app,
    "new",
    "Create a new driver: skeletons of driver, emulator, transcript, page and tests.",
    examples="""
testbed devices driver new acme-scpi --protocol scpi
testbed devices driver new acme-box --protocol http --out ../acme
""",
    more="The skeleton can be installed and identifies its device; all other conformance checks fail until it is written.",
)
def new(
    call: Call,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The driver's name, such as acme-scpi.")
    ],
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="P", help="scpi, tl1, http or cli.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Directory; default ./NAME.")
    ] = None,
) -> Result:
    from conformance.scaffold import scaffold
    from drivers.registry import known_drivers

    if name in known_drivers():
        raise Usage(f"there is a driver {name!r} already", hint="testbed devices driver list")
    folder = out or Path(name)
    try:
        files = scaffold(name, protocol, folder)
    except OSError as error:
        raise Missing(
            f"{folder} cannot be written: {error.strerror}",
            hint="choose another directory: --out DIR",
        ) from error
    lines = [
        *(f"  {path}" for path in files),
        "",
        f"next: pip install -e {folder}",
        f"      testbed devices driver conform {name}",
    ]
    return Result({"files": [str(path) for path in files]}, "\n".join(lines))


@verb(
    app,
    "record",
    "Record a device's answers in a transcript; the device is only read.",
    examples="""
testbed devices driver record ocs1 --out ocs1.txt
testbed devices driver record ocs1 --out ocs1.txt --source "own S320, lab 4"
""",
    more="It reads the identity, all circuits, power readings and port states. Credentials are masked.",
)
def record(
    call: Call,
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="A device of the inventory.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The transcript; the file must not exist.")
    ],
    source: Annotated[
        str, typer.Option("--source", metavar="TEXT", help="Where the device comes from.")
    ] = "",
) -> Result:
    from conformance.transcript import Recorder
    from drivers.link.recorder import listening
    from drivers.registry import open_device
    from orchestrator import emulated as labproc
    from orchestrator.session import load_lab

    if out.exists():
        raise Usage(f"{out} already exists", hint="choose another file, or remove it")
    lab = load_lab(call.settings.inventory)
    config = device_config(lab, device)
    emulated = labproc.is_emulated(call.settings.inventory)
    require_running_lab(call.settings.inventory)
    recorder = Recorder([config.password], [(config.username, config.password)])
    with listening(device, recorder.hear):
        asked, identity = call._run(_ask(open_device(config)))
    whose = source or ("emulated device" if emulated else "own device")
    text = recorder.text(
        f"{whose}; {identity}; driver {config.driver}; credentials masked",
        "constructed" if emulated else "REAL",
        asked,
    )
    write(out, text)
    grade = " (recorded from an emulator, so not evidence: grade constructed)" if emulated else ""
    message = f"{out}: {counted(recorder.exchanges, 'question')}{grade}"
    return Result(
        {"file": str(out), "questions": recorder.exchanges, "asked": list(asked)}, message
    )


@verb(
    app,
    "replay",
    "Replay a transcript as a device on a loopback port, until Ctrl-C.",
    examples="testbed devices driver replay ocs1.txt\ntestbed devices driver replay ocs1.txt --port 15025 --seconds 60",
)
def replay(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The transcript.")],
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65535, help="TCP port; 0: any free one."),
    ] = 0,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="S", min=0.1, help="Stop after this many seconds."),
    ] = None,
) -> Result:
    import asyncio

    from conformance.replay import Replay
    from conformance.transcript import read_transcript

    transcript = read_transcript(file)
    device = Replay(transcript, port)
    scheme = "http" if transcript.kind == "http" else "tcp"

    async def serve() -> None:
        try:
            async with device:
                note = f"{transcript.name}: {scheme}://127.0.0.1:{device.port}  ({transcript.grade}: {transcript.source})"
                call.note(note + ("" if seconds else "; Ctrl-C stops it"))
                await asyncio.sleep(seconds if seconds is not None else 1e9)
        except OSError as error:
            raise Missing(
                f"port {port}: {error.strerror}", hint="choose another; --port 0 takes any free one"
            ) from error

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        pass
    return Result(
        {"asked": list(device.asked)}, f"{counted(len(device.asked), 'question')} answered"
    )


async def _ask(device: CircuitSwitch) -> tuple[list[str], str]:
    """Send every query that changes nothing. Returns the names of the queries, and the identity of
    the device.
    """
    from drivers.api import Persistence, PortControl, PowerMeter
    from optics import Port, TestbedError

    asked = ["identify"]
    try:
        identity = await device.identify()
        await device.read()
        asked.append("read")
        labels = list(dict.fromkeys([*identity.ingress, *identity.egress]))
        ports = [Port(device.name, label) for label in labels]
        for name, able, question in (
            ("power", PowerMeter, lambda: device.power(ports)),  # type: ignore[attr-defined]
            ("port states", PortControl, lambda: device.port_states(ports)),  # type: ignore[attr-defined]
            ("persistence", Persistence, lambda: device.persistence()),  # type: ignore[attr-defined]
        ):
            if isinstance(device, able):
                try:
                    await question()
                    asked.append(name)
                except TestbedError as error:
                    asked.append(f"{name}: {error.line}")
    finally:
        await device.close()
    return asked, f"{identity.vendor} {identity.model} {identity.firmware}"
