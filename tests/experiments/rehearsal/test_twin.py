"""The twin of a lab of devices alone: every family's twin holds what the family's device holds, and
the device was only read.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import optical_testbed_home
from conformance.lab import Lab as Private
from conformance.lab import devices_lab, families
from drivers.registry import known_drivers
from optics import Change, CrossConnect, FrequencySlot, Identity, Port, Setting, SpectralRoute
from orchestrator import processes
from orchestrator.experiments.rehearsal import twin
from orchestrator.experiments.rehearsal.reading import LabReading, read_running_lab
from orchestrator.experiments.rehearsal.seeding import seed_devices
from orchestrator.experiments.rehearsal.switching import Switching
from orchestrator.experiments.rehearsal.twin import FOLDER, running_twin
from orchestrator.inventory.lab import Lab
from orchestrator.processes import process_mark
from orchestrator.session import load_lab, open_session
from orchestrator.settings import Settings, load
from tests.experiments.rehearsal.test_findings import goal, link
from tests.experiments.rehearsal.test_refused import READ

ASKED_S = 5.0


def settings_of(inventory: Path, home: Path) -> Settings:
    places = {f"TESTBED_{name}_DIR": str(home / name.lower()) for name in ("DATA", "STATE", "LOCK")}
    return load({"inventory": str(inventory)}, env=places, cwd=home)


def first_step(lab: Lab, name: str, identity: Identity) -> Setting:
    """A setting that the device can make: between its first ports that may be joined."""
    traits = lab.traits_of(name)
    ingress, egress = next(
        (a, b)
        for a in identity.ingress
        for b in identity.egress
        if traits.joins(a, b) and (a != b or traits.spectral)
    )
    ports = Port(name, ingress), Port(name, egress)
    return (
        SpectralRoute(*ports, FrequencySlot.flexgrid(-280, 4))
        if traits.spectral
        else CrossConnect(*ports)
    )


async def read(
    private: Private, home: Path, *, make: bool
) -> tuple[Lab, LabReading, dict[str, Setting]]:
    lab = load_lab(private.inventory)
    made = {}
    async with open_session(lab, private.inventory, home) as session:
        if make:
            for name, device in session.devices.items():
                if held := await device.read():  # it has no state without light
                    made[name] = min(held, key=str)
                    continue
                made[name] = first_step(lab, name, await device.identify())
                outcome = await device.apply(Change(name, add=frozenset({made[name]})))
                assert not outcome.failed
    writes = {name: truth.writes for name, truth in private.truths.items()}
    async with open_session(replace(lab, hosts={}), private.inventory, home) as session:
        found = await read_running_lab(session, set(lab.devices))
    assert {name: truth.writes for name, truth in private.truths.items()} == writes, (
        "reading wrote to a device"
    )
    return lab, found, made


@pytest.mark.long
@pytest.mark.timeout(110)
async def test_the_twin_of_every_family_holds_what_the_device_holds_and_switches_as_slowly(
    tmp_path: Path,
) -> None:
    drivers = sorted(set(known_drivers()) & set(families()))
    with devices_lab(drivers) as private:
        lab, found, made = await read(private, tmp_path, make=True)
        settings = settings_of(private.inventory, tmp_path)
        with running_twin(lab, found.identities, families(), settings, hosts=False) as twin:
            changes = {
                name: Change(name, remove=frozenset({setting})) for name, setting in made.items()
            }
            async with open_session(twin.lab, twin.inventory, tmp_path) as session:
                missing = await seed_devices(
                    session, twin, found, changes, {n: Switching(ASKED_S, 1) for n in lab.devices}
                )
                held = {name: await device.read() for name, device in session.devices.items()}
                faces = {name: await device.identify() for name, device in session.devices.items()}
            assert missing == ()
            assert held == dict(found.settings)
            for name, identity in found.identities.items():
                assert (faces[name].ingress, faces[name].egress) == (
                    identity.ingress,
                    identity.egress,
                ), name
            reply = {
                name: device["settle_s"] for name, device in twin.ask("status")["devices"].items()
            }
            assert all(0 < seconds <= ASKED_S for seconds in reply.values()), reply
        assert not list((settings.state_dir / FOLDER).iterdir())


def test_files_of_a_twin_that_runs_elsewhere_stay_and_those_of_one_that_was_killed_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, _ = goal([], [link(1, 2)])
    settings, families = (
        settings_of(tmp_path, tmp_path),
        {"polatis-scpi": {"schemes": ["tcp"], "login": None}},
    )
    kept = settings.state_dir / FOLDER

    @contextmanager
    def running(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(twin, "running", running)
    with running_twin(lab, READ.identities, families, settings) as first:
        monkeypatch.setattr(processes, "boot_id", lambda: "of-another-machine")
        (kept / "left").mkdir()
        with running_twin(lab, READ.identities, families, settings) as second:
            assert {folder.name for folder in kept.iterdir()} == {
                first.inventory.parent.name,
                second.inventory.parent.name,
            }
        assert (first.inventory / "devices.yml").exists()
    assert not list(kept.iterdir())


def test_a_twin_is_gone_with_its_files_when_the_program_that_started_it_is_killed(
    tmp_path: Path,
) -> None:
    with devices_lab(["polatis-scpi"]) as private:
        program = f"""
import asyncio, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
from conformance.lab import families
from orchestrator.experiments.rehearsal.twin import running_twin
from orchestrator.session import load_lab
from optics import Identity
from tests.experiments.rehearsal.test_twin import settings_of
here = Path({str(private.inventory)!r})
ports = tuple(map(str, range(1, 17))), tuple(map(str, range(17, 33)))
identities = {{name: Identity("x", "x", "x", "x", *ports) for name in load_lab(here).devices}}
with running_twin(load_lab(here), identities, families(), settings_of(here, Path({str(tmp_path)!r})), hosts=False) as twin:
    print(twin.ask("status")["pid"], flush=True)
    time.sleep(60)
"""
        with subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env=optical_testbed_home.environment(),
        ) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            assert process_mark(pid)
            os.kill(process.pid, signal.SIGKILL)
        give_up = time.monotonic() + 20
        while process_mark(pid):
            assert time.monotonic() < give_up, "the twin lives on"
            time.sleep(0.05)
        left = list((tmp_path / "state" / FOLDER).iterdir())
        assert left, "the killed program could not remove the files"
        lab, found, _ = asyncio.run(read(private, tmp_path, make=False))
        with running_twin(
            lab, found.identities, families(), settings_of(private.inventory, tmp_path), hosts=False
        ):
            assert not left[0].exists()
