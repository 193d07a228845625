"""Starts the ranks of a job as local processes, each host's lanes being loopback addresses of its
own (127.0.<host>.<lane>).
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.workloads.forked import Forked

LANES = 4
ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[bytes] | Forked


def free_port() -> int:
    """Return a TCP port nobody listens on, below those that the kernel gives to connections: nobody
    takes it meanwhile.
    """
    for port in random.sample(range(10000, 20000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise RuntimeError("no port of a hundred is free")


class Ranks:
    """The running ranks of one job."""

    def __init__(
        self, processes: Sequence[Process], output: Sequence[tuple[IO[str], IO[str]]]
    ) -> None:
        self.processes, self._output = processes, output

    def finish(self, within_s: float = 100.0) -> list[tuple[int, str, str]]:
        """Return (exit code, stdout, stderr) of each rank."""
        ended = []
        for process, (out, err) in zip(self.processes, self._output, strict=True):
            code = process.wait(within_s)
            out.seek(0), err.seek(0)
            ended.append((code, out.read(), err.read()))
        return ended

    def reported(self) -> list[str]:
        """What each rank has written to stderr so far."""
        return [Path(f"/proc/self/fd/{err.fileno()}").read_text() for _, err in self._output]

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
    """Start `python command` on `world` ranks, rank r with the job directory `directory`/r; kill
    what is left at the end. `python -m` and `python -c` are forks of a process that has torch.

    more: further environment of a rank. inside: start it in its job directory, as hosts do, not in
    the repository's.
    """
    with ExitStack() as started:
        output = [
            (started.enter_context(TemporaryFile("w+")), started.enter_context(TemporaryFile("w+")))
            for _ in range(world)
        ]
        processes: list[Process] = []
        started.callback(_end, processes)
        port = free_port()
        # files: a pipe nobody reads would be full after some 1000 iterations
        for rank, (out, err) in enumerate(output):
            (directory / str(rank)).mkdir(parents=True, exist_ok=True)
            env = {
                "PATH": os.environ["PATH"],
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TESTBED_RINGS": json.dumps([list(ring) for ring in rings]),
                "TESTBED_LANES": json.dumps(
                    [f"127.0.{rank + 1}.{lane + 1}" for lane in range(LANES)]
                ),
                "TESTBED_PORTS": json.dumps(["lo"]),
                "TESTBED_JOB_DIR": str(directory / str(rank)),
                "TESTBED_TIMEOUT_S": str(timeout_s),
                **more(rank),
            }
            cwd = directory / str(rank) if inside else ROOT
            if command[0] in ("-m", "-c"):
                processes.append(Forked(command[0], command[1], command[2:], env, cwd, out, err))
            else:
                line = [sys.executable, *command]
                processes.append(subprocess.Popen(line, env=env, cwd=cwd, stdout=out, stderr=err))
        yield Ranks(processes, output)


def _end(processes: Sequence[Process]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def records(directory: Path) -> list[dict[str, object]]:
    """Return the iteration records that rank 0 has written."""
    path = directory / "0" / "iterations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
