"""`testbed driver new | record | replay`: what somebody needs who brings a device of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optics.errors import BadFile, Missing, Unreachable
from orchestrator.cli.call import Call, Result, Usage, verb

if TYPE_CHECKING:
    from drivers.api import CircuitSwitch


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the group `testbed driver`."""

    @verb(
        app,
        "new",
        "Write the start of a driver: driver, emulator, transcript, page, tests.",
        examples="testbed driver new acme-scpi --protocol scpi\ntestbed driver new acme-box --protocol http --out ../acme",
        more="It installs, says who the device is, and fails the conformance check in everything else until it is written.",
    )
    def new(
        call: Call,
        name: Annotated[str, typer.Argument(metavar="NAME", help="The driver's name, such as acme-scpi.")],
        protocol: Annotated[str, typer.Option("--protocol", metavar="P", help="scpi, tl1, http or cli.")],
        out: Annotated[
            Path | None, typer.Option("--out", metavar="DIR", help="Folder; default ./NAME.", show_default=False)
        ] = None,
    ) -> Result:
        from conformance.scaffold import scaffold
        from drivers.registry import known_drivers

        if name in known_drivers():
            raise BadFile([f"there is a driver {name!r} already"], hint="testbed driver list")
        folder = out or Path(name)
        try:
            files = scaffold(name, protocol, folder)
        except OSError as error:
            raise Missing(f"{folder} cannot be written: {error.strerror}", hint="name another folder: --out DIR") from error
        lines = [*(f"  {path}" for path in files), "", f"next: pip install -e {folder}", f"      testbed driver conform {name}"]
        return Result({"files": [str(path) for path in files]}, "\n".join(lines))

    @verb(
        app,
        "record",
        "Record what a device says into a transcript; only questions are asked.",
        examples='testbed driver record ocs1 --out ocs1.txt\ntestbed driver record ocs1 --out ocs1.txt --source "own S320, lab 4"',
        more="Identity, the whole map, powers and port states are read. Credentials are masked.",
    )
    def record(
        call: Call,
        device: Annotated[str, typer.Argument(metavar="DEVICE", help="A device of the inventory.")],
        out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The transcript; must not exist.")],
        source: Annotated[str, typer.Option("--source", metavar="TEXT", help="Where it comes from.", show_default=False)] = "",
    ) -> Result:
        from conformance.transcript import Recorder
        from drivers.link.tap import listening
        from drivers.registry import open_device
        from optics.plain import did_you_mean
        from orchestrator import emulated as labproc
        from orchestrator.atomic import write_whole
        from orchestrator.credentials import with_secret
        from orchestrator.session import load_lab

        if out.exists():
            raise Usage(f"{out} is there already", hint="name another file, or remove it")
        lab = load_lab(call.settings.inventory)
        if device not in lab.devices:
            raise BadFile([f"devices.yml: there is no device {device}{did_you_mean(device, lab.devices)}"], hint="testbed devices")
        config = with_secret(lab, lab.devices[device])
        emulated = labproc.is_emulated(call.settings.inventory)
        if emulated and not labproc.is_running(call.settings.inventory):
            raise Unreachable("the emulated lab is not running", hint="testbed lab start")
        recorder = Recorder([config.password], [(config.username, config.password)])
        with listening(device, recorder.hear):
            asked, identity = call._run(_ask(open_device(config)))
        whose = source or ("emulated device" if emulated else "own device")
        text = recorder.text(
            f"{whose}; {identity}; driver {config.driver}; credentials masked", "constructed" if emulated else "REAL", asked
        )
        try:
            write_whole(out, text)
        except OSError as error:
            raise Missing(f"{out} cannot be written: {error.strerror}", hint="name another file") from error
        grade = " (an emulator's words are no evidence: grade constructed)" if emulated else ""
        words = f"{out}: {recorder.exchanges} questions{grade}"
        return Result({"file": str(out), "questions": recorder.exchanges, "asked": list(asked)}, words)

    @verb(
        app,
        "replay",
        "Serve a transcript as a device on a loopback port, until Ctrl-C.",
        examples="testbed driver replay ocs1.txt\ntestbed driver replay ocs1.txt --port 15025 --seconds 60",
    )
    def replay(
        call: Call,
        file: Annotated[Path, typer.Argument(metavar="FILE", help="The transcript.")],
        port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="TCP port; 0: any free one.")] = 0,
        seconds: Annotated[
            float | None, typer.Option("--seconds", metavar="S", min=0.1, help="Stop after so long.", show_default=False)
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
                raise Missing(f"port {port}: {error.strerror}", hint="name another: --port 0 takes any free one") from error

        try:
            asyncio.run(serve())
        except KeyboardInterrupt:
            pass
        return Result({"asked": list(device.asked)}, f"{len(device.asked)} questions were asked")


async def _ask(device: CircuitSwitch) -> tuple[list[str], str]:
    """Ask everything that changes nothing. Returns what was asked and who the device is."""
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
                    asked.append(f"{name}: {error}".splitlines()[0])
    finally:
        await device.close()
    return asked, f"{identity.vendor} {identity.model} {identity.firmware}"
