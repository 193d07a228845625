"""Start a generated emulated lab for a benchmark, and stop it whatever happens."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write(folder: Path, hosts: int, ports: int, *options: str) -> Path:
    """Write an inventory with free ports; its keys are made at the first start."""
    inventory = folder / f"lab{hosts}"
    words = [
        "--hosts",
        str(hosts),
        "--ports",
        str(ports),
        "--free-ports",
        "--state",
        str(folder / f"state{hosts}"),
        "--out",
        str(inventory),
    ]
    subprocess.run([sys.executable, "-m", "emulators.generate", *words, *options], check=True, stdout=subprocess.DEVNULL)
    return inventory


@contextmanager
def running(inventory: Path) -> Iterator[float]:
    """Run a lab in the foreground; yields the seconds from starting Python to the lab's own word that it is ready."""
    here, there = os.pipe()
    began = time.monotonic()
    lab = subprocess.Popen(
        [sys.executable, "-m", "emulators", inventory, "--foreground", "--ready-fd", str(there)],
        pass_fds=(there,),
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(there)
    try:
        ready = select.select([here], [], [], 60)[0] and os.read(here, 16) == b"ready\n"
        seconds = time.monotonic() - began
        if not ready:
            lab.kill()
            raise SystemExit(f"the lab did not start: {lab.communicate()[1]}")
        yield seconds
    finally:
        os.close(here)
        lab.terminate()
        lab.communicate()


def ask(state: Path, op: str, **values: object) -> dict[str, Any]:
    """Ask the lab's control socket."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(state / "control.sock"))
        control.sendall(json.dumps({"op": op, **values}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(control.makefile().readline())
    return answer
