"""Emulated labs of one family of devices: an inventory below the state directory, written by the emulators' own generator."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import optical_testbed
from optics.errors import Missing
from orchestrator import labproc

GENERATE_S = 60.0
PLAN = "ring.json"
MAX_LOSS_DB = 14.0
"""What a ring may lose (dB): two wavelength-selective switches one after the other, and their fibres, lose about 10."""
_KEPT = "made-for.json"


def family_lab(state_dir: Path, driver: str, hosts: int | None) -> Path:
    """The inventory directory of the lab of `driver`; the same one as last time if it had as many hosts. 0 hosts: the device alone.

    A lab that runs with another number of hosts is stopped first. Raises: Missing - the driver has no emulator, or its device
    cannot serve so many hosts, in the generator's words.
    """
    folder = state_dir / "labs" / driver
    asked = {"driver": driver, "hosts": hosts}
    if _made_for(folder) == asked:
        return folder
    if labproc.is_emulated(folder):
        labproc.stop(folder)
    fresh = folder.parent / ".new" / driver  # the lab takes its name from the folder
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True, mode=0o700)
    try:
        _generate(fresh, folder / "state", driver, hosts)
        (fresh / PLAN).write_text(ring(fresh), encoding="utf-8")
        (fresh / _KEPT).write_text(json.dumps(asked), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def made(state_dir: Path, driver: str) -> Path:
    """The inventory directory of the lab of `driver` as it was made. Raises: Missing - it never was."""
    folder = state_dir / "labs" / driver
    if not labproc.is_emulated(folder):
        raise Missing(f"there is no lab of {driver}", hint=f"testbed lab start --driver {driver}")
    return folder


def ring(inventory: Path) -> str:
    """A plan that sends every host's light to the next one, in a ring: one-way links, since a host has one port here."""
    import yaml

    fibres = yaml.safe_load((inventory / "fibres.yml").read_text(encoding="utf-8"))["fibres"]
    hosts = list(dict.fromkeys(fibre["host"] for fibre in fibres))
    links = [{"a": f"{host}:p1", "b": f"{hosts[(at + 1) % len(hosts)]}:p1", "kind": "simplex"} for at, host in enumerate(hosts)]
    plan = {
        "schema": "testbed.plan/1",
        "name": f"ring-{len(hosts)}",
        "links": links if len(hosts) > 1 else [],
        "acceptance": {"max_loss_db": MAX_LOSS_DB},
    }
    return json.dumps(plan, indent=2) + "\n"


def _generate(out: Path, state: Path, driver: str, hosts: int | None) -> None:
    words = [*("--driver", driver), "--free-ports", *("--out", str(out)), *("--state", str(state))]
    if hosts:
        words += ["--hosts", str(hosts)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "emulators.generate", *words],
        env=optical_testbed.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=GENERATE_S,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        words_of_it = said[-1].partition("error: ")[2] or said[-1] if said else f"ended with {done.returncode}"
        raise Missing(f"no lab of {driver}: {words_of_it}", hint="testbed driver list")
    if hosts == 0:
        page = out / "emulator.yml"
        page.write_text(page.read_text(encoding="utf-8").replace("hosts: true", "hosts: false"), encoding="utf-8")


def _made_for(folder: Path) -> object:
    try:
        return json.loads((folder / _KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
