"""Emulated labs that this program writes: of the families that somebody names, and copies of a lab
on free ports.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from optics.errors import Missing
from orchestrator.emulated import (
    PortTaken,
    Started,
    is_emulated,
    is_running,
    start_emulated_lab,
    state_dir,
    stop_emulated_lab,
)

PLAN = "ring.json"
MAX_LOSS_DB = 14.0
"""What a ring may lose (dB): two wavelength-selective switches one after the other, and their
fibres, lose about 10.
"""
TRIES = 3
"""Lists of free ports that are tried; another program may take one of them before the lab does."""

LONGEST = 63
"""Letters of a lab's name, which is that of its directory."""

_KEPT = "made-for.json"
_PORT = re.compile(r"(\bansible_port:\s*|\b127\.0\.0\.1:)(\d+)\b")
"""Where an inventory of an emulated lab has its loopback ports."""


def start_family(
    state: Path, drivers: Sequence[str], hosts: int | None, timeout_s: float
) -> tuple[Path, Started]:
    """Start the lab of `drivers` and return its inventory; if a port was taken since it was
    written, it is written again.

    Raises: as `family_lab`, `start_emulated_lab`.
    """
    for _ in range(TRIES):
        folder = family_lab(state, drivers, hosts)
        try:
            return folder, start_emulated_lab(folder, timeout_s)
        except PortTaken as error:
            taken = error
            (folder / _KEPT).unlink()
    raise taken


def start_on_free_ports(inventory: Path, state: Path, timeout_s: float) -> tuple[Path, Started]:
    """Start the lab, or where other programs have its ports a copy of it on free ones; return the
    inventory of what runs.

    inventory: one that `settings.load` trusts, for the copy is this user's. Raises: as
    `start_emulated_lab`.
    """
    inventory = inventory.resolve()
    copy = state / "labs" / f"{inventory.name}-{_digest(str(inventory))}"
    if is_emulated(copy) and is_running(copy):
        return copy, start_emulated_lab(copy, timeout_s)
    try:
        return inventory, start_emulated_lab(inventory, timeout_s)
    except PortTaken as error:
        taken = error
    for _ in range(TRIES):
        with _rewritten(copy) as fresh:
            _copy_to_free_ports(inventory, fresh, copy / "state")
        try:
            return copy, start_emulated_lab(copy, timeout_s)
        except PortTaken as error:
            taken = error
    raise taken


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:6]


def _copy_to_free_ports(inventory: Path, fresh: Path, state: Path) -> None:
    """Copy an inventory; its loopback ports become free ones, `state` the directory of its keys and
    its control socket.
    """
    from conformance.lab import free_ports

    old, at = state_dir(inventory), {"~": Path.home(), "${HOME}": Path.home()}
    shutil.copytree(inventory, fresh, dirs_exist_ok=True)
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in (fresh / f"{stem}.yml" for stem in ("hosts", "devices", "fibres"))
    }
    ports = sorted({port for text in texts.values() for _, port in _PORT.findall(text)})
    free = dict(zip(ports, map(str, free_ports(len(ports))), strict=True))
    for path, text in texts.items():
        for short, home in at.items():
            if old.is_relative_to(home):
                text = text.replace(f"{short}/{old.relative_to(home)}/", f"{old}/")
        text = text.replace(f"{old}/", f"{state}/")
        path.write_text(_PORT.sub(lambda found: found[1] + free[found[2]], text), encoding="utf-8")


@contextmanager
def _rewritten(folder: Path) -> Iterator[Path]:
    """An empty directory that takes the place of `folder` when the block ends without an error."""
    fresh = folder.parent / ".new" / folder.name  # a lab takes its name from the folder
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True, mode=0o700)
    try:
        yield fresh
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def family_folder(state: Path, drivers: Sequence[str]) -> Path:
    """The inventory directory of the lab of `drivers`, whether it exists or not."""
    name = "_".join(drivers)
    return state / "labs" / (name if len(name) <= LONGEST else f"mixed-{_digest(name)}")


def family_lab(state: Path, drivers: Sequence[str], hosts: int | None) -> Path:
    """The inventory directory of the lab of `drivers`; the same one as last time if it had as many
    hosts. 0 hosts: devices alone.

    Port p of every host is at a device of the p-th driver. A running lab with another number of
    hosts is stopped first. Raises: Missing - a driver has no emulator, or its device cannot serve
    so many hosts; with the generator's message.
    """
    folder = family_folder(state, drivers)
    asked = {"driver": "_".join(drivers), "hosts": hosts}
    if _made_for(folder) == asked:
        return folder
    if is_emulated(folder):
        stop_emulated_lab(folder)
    with _rewritten(folder) as fresh:
        _generate(fresh, folder / "state", drivers, hosts)
        (fresh / PLAN).write_text(ring(fresh), encoding="utf-8")
        (fresh / _KEPT).write_text(json.dumps(asked), encoding="utf-8")
    return folder


def made(state: Path, drivers: Sequence[str]) -> Path:
    """The existing inventory directory of the lab of `drivers`. Raises: Missing - it was never
    generated.
    """
    folder = family_folder(state, drivers)
    if not is_emulated(folder):
        hint = f"testbed lab start --driver {' --driver '.join(drivers)}"
        raise Missing(f"there is no lab of {' and '.join(drivers)}", hint=hint)
    return folder


def ring(inventory: Path) -> str:
    """A plan that sends every host's light to the next one, in a ring at each port: one-way links,
    since a host has few ports.
    """
    import yaml

    fibres = yaml.safe_load((inventory / "fibres.yml").read_text(encoding="utf-8"))["fibres"]
    hosts, ports = (list(dict.fromkeys(fibre[end] for fibre in fibres)) for end in ("host", "port"))
    pairs = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
    links = [
        {"a": f"{a}:p{port}", "b": f"{b}:p{port}", "kind": "simplex"}
        for port in ports
        for a, b in pairs
    ]
    plan = {
        "schema": "testbed.plan/1",
        "name": f"ring-{len(hosts)}",
        "links": links if len(hosts) > 1 else [],
        "acceptance": {"max_loss_db": MAX_LOSS_DB},
    }
    return json.dumps(plan, indent=2) + "\n"


def _generate(out: Path, state: Path, drivers: Sequence[str], hosts: int | None) -> None:
    from conformance.lab import generate

    generate(out, state, drivers, hosts)
    if hosts == 0:
        page = out / "emulator.yml"
        page.write_text(
            page.read_text(encoding="utf-8").replace("hosts: true", "hosts: false"),
            encoding="utf-8",
        )


def _made_for(folder: Path) -> object:
    try:
        return json.loads((folder / _KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
