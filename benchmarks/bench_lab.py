"""A private emulated lab for one benchmark: its own ports, state and run store; gone when the
benchmark ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.truth import Truth

ROOT = Path(__file__).resolve().parents[1]
TESTBED = Path(sys.executable).with_name("testbed")


def against(argv: list[str]) -> list[Path]:
    """The trees to measure in turn: this one, and that of `--against PATH`, another checkout with
    its environment in `.venv`.

    Raises: SystemExit - it has none.
    """
    if not argv:
        return [ROOT]
    other = Path(argv[-1]).resolve()
    if (
        len(argv) != 2
        or argv[0] != "--against"
        or not (other / ".venv" / "bin" / "testbed").is_file()
    ):
        sys.exit("--against PATH: another checkout, with .venv/bin/testbed")
    return [ROOT, other]


def programs(tree: Path) -> Path:
    """The directory with `python` and `testbed` of a tree."""
    return Path(sys.executable).parent if tree == ROOT else tree / ".venv" / "bin"


def environment() -> dict[str, str]:
    """The environment, in which Python keeps byte code as it does for users: without it every start
    compiles the program again.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def write(
    inventory: Path, state: Path, hosts: int, ports: int = 4, *options: str, tree: Path = ROOT
) -> None:
    """Write an inventory with free ports; its keys are made at the first start."""
    size = ["--hosts", str(hosts), "--ports", str(ports), "--free-ports"]
    where: list[str | Path] = ["--state", state, "--out", inventory]
    subprocess.run(
        [programs(tree) / "python", "-m", "emulators.generate", *size, *where, *options],
        check=True,
        cwd=tree,
        stdout=subprocess.DEVNULL,
    )


class BenchLab:
    """One running lab. `call` runs a `testbed` verb as an operator would; `ask` puts a question to
    the lab's control socket.
    """

    def __init__(self, folder: Path, tree: Path = ROOT) -> None:
        self.folder, self.tree = folder, tree
        self.inventory = folder / "inventory"
        self.state = folder / "state"
        self.env = environment() | {
            "TESTBED_INVENTORY": str(self.inventory),
            "TESTBED_DATA_DIR": str(folder / "data"),
            "TESTBED_STATE_DIR": str(folder / "runs"),
            "TESTBED_LOCK_DIR": str(folder / "locks"),
        }

    def call(self, *arguments: str | Path, check: bool = True) -> dict[str, Any]:
        """Run `testbed ... --json` and return the envelope's data. Raises: RuntimeError - it
        failed; its message.
        """
        done = subprocess.run(
            [programs(self.tree) / "testbed", *map(str, arguments), "--json"],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        try:
            envelope: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise RuntimeError(
                f"testbed {arguments[0]}: exit {done.returncode}: {done.stdout}{done.stderr}"
            ) from None
        if check and not envelope["ok"]:
            raise RuntimeError(f"testbed {' '.join(map(str, arguments))}: {envelope['message']}")
        data = envelope["data"]
        return data if isinstance(data, dict) else {}

    def job_figures(self, path: Path, quiet_s: float, within_s: float) -> dict[str, dict[str, Any]]:
        """Bring the plan `path` up, run its job, and return the rows of `testbed design compare` by
        figure.

        quiet_s: nobody asks for the job for so long, as that takes time from it. Raises:
        RuntimeError - as `job_output`.
        """
        self.call("up", "--topology", path, "--no-job")
        self.call("job", "launch")
        time.sleep(quiet_s)
        status = self.ended(within_s)
        if status["state"] != "finished":
            raise RuntimeError(f"job {status['name']}: {status['state']}: {status['detail']}")
        return {row["figure"]: row for row in self.call("design", "compare")["figures"]}

    def ended(self, within_s: float) -> dict[str, Any]:
        """The state of the job once it has ended. Raises: RuntimeError - it still runs after
        `within_s`.
        """
        deadline_s = time.monotonic() + within_s
        while (status := self.call("job", "status", check=False))["state"] in (
            "starting",
            "running",
        ):
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"job {status['name']}: still {status['state']} after {within_s:g} s"
                )
            time.sleep(0.5)
        return status

    def job_output(self, path: Path, within_s: float, lines: int = 200) -> list[str]:
        """Bring the plan `path` up, wait for its job to finish and return the last `lines` lines of
        rank 0.

        Raises: RuntimeError - the job failed, or still runs after `within_s`.
        """
        self.call("up", "--topology", path)
        status = self.ended(within_s)
        logs = self.call("job", "logs", "--lines", str(lines))["lines"]
        if status["state"] != "finished":
            raise RuntimeError(
                f"job {status['name']}: {status['state']}: {status['detail']}: {logs}"
            )
        (mine,) = (found for who, found in logs.items() if who.split()[:2] == ["rank", "0"])
        return list(mine)

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        """One request to the lab itself. Raises: NoTruth - it refuses."""
        return Truth(self.state / "control.sock").ask(op, **arguments)

    def settle(self, seconds: float) -> None:
        """Give every emulated switch this switching time (s)."""
        for device in self.ask("status")["devices"]:
            self.ask("settle", device=device, s=seconds)

    def plan(self, name: str, links: list[tuple[str, str]], **more: object) -> Path:
        """Write a plan of these links, host ports such as gpu01:p1, and return its path."""
        path = self.folder / f"{name}.json"
        body = {
            "schema": "testbed.plan/1",
            "name": name,
            "links": [{"a": a, "b": b} for a, b in links],
            **more,
        }
        path.write_text(json.dumps(body))
        return path


def ring_links(stride: int, ports: tuple[int, int], hosts: int = 12) -> list[tuple[str, str]]:
    """The links of the ring of this stride over gpu01.., its steps using the two ports in turn
    (hosts even, stride coprime).
    """
    names = [f"gpu{number:0{max(2, len(str(hosts)))}d}" for number in range(1, hosts + 1)]
    order = [names[(k * stride) % hosts] for k in range(hosts)]
    return [
        (f"{order[k]}:p{ports[k % 2]}", f"{order[(k + 1) % hosts]}:p{ports[k % 2]}")
        for k in range(hosts)
    ]


@contextmanager
def bench_lab(hosts: int = 12, *options: str, tree: Path = ROOT) -> Iterator[BenchLab]:
    """Start a lab of `hosts` hosts with four ports each; `options` of its generator. Raises:
    RuntimeError - it does not start.

    tree: the checkout whose program, emulators and agents it is made of.
    """
    with tempfile.TemporaryDirectory(prefix="testbed-bench-") as name:
        lab = BenchLab(Path(name), tree)
        # whoever ends a benchmark ends its lab
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        write(lab.inventory, lab.state, hosts, 4, *options, tree=tree)
        lab.call("lab", "start")
        try:
            yield lab
        finally:
            lab.call("lab", "stop", check=False)
