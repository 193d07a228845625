"""Starts the ranks of a job as local processes, each host's lanes being loopback addresses of its own (127.0.<host>.<lane>)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

LANES = 4
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """Return a TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ranks:
    """The running ranks of one job."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def finish(self, within_s: float = 40.0) -> list[tuple[int, str, str]]:
        """Return (exit code, stdout, stderr) of each rank."""
        ended = []
        for process in self.processes:
            out, err = process.communicate(timeout=within_s)
            ended.append((process.returncode, out, err))
        return ended

    def signal(self, number: signal.Signals, only: Sequence[int] | None = None) -> None:
        for rank in only if only is not None else range(len(self.processes)):
            self.processes[rank].send_signal(number)


@contextmanager
def ranks(
    world: int,
    *command: str,
    directory: Path,
    rings: Sequence[Sequence[int]] = (),
    timeout_s: float = 20.0,
    more: Callable[[int], Mapping[str, str]] = lambda _: {},
    inside: bool = False,
) -> Iterator[Ranks]:
    """Start `python command` on `world` ranks, rank r with the job directory `directory`/r; kill what is left at the end.

    more: further environment of a rank. inside: start it in its job directory, as hosts do, not in the repository's.
    """
    port = free_port()
    processes = []
    for rank in range(world):
        (directory / str(rank)).mkdir(parents=True, exist_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TESTBED_RINGS": json.dumps([list(ring) for ring in rings]),
            "TESTBED_LANES": json.dumps([f"127.0.{rank + 1}.{lane + 1}" for lane in range(LANES)]),
            "TESTBED_PORTS": json.dumps(["lo"]),
            "TESTBED_JOB_DIR": str(directory / str(rank)),
            "TESTBED_TIMEOUT_S": str(timeout_s),
            **more(rank),
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, *command],
                env=env,
                cwd=directory / str(rank) if inside else ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield Ranks(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def records(directory: Path) -> list[dict[str, object]]:
    """Return the iteration records that rank 0 has written."""
    path = directory / "0" / "iterations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
