"""Four ranks that are started once and carry out one case after another: functions of
`tests.backend.cases`, asked for by name.

A rank answers with what its case returns. A case that hangs or breaks leaves the ranks in the midst
of something: the crew is then killed, and the next case starts another.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.hosts.facts import TORCH_PACKAGE, workload_files
from tests.workloads.ranks import LANES, free_port

ROOT = Path(__file__).resolve().parents[2]
WORLD = 4
START_S, CASE_S = 200.0, 90.0
"""How long starting the ranks, and a case, may take before it counts as hanging; importing torch
four times takes a busy machine a minute and more."""


@functools.cache
def installed() -> Path:
    """What hosts have in their PYTHONPATH: the workloads, and what makes `import torch` register
    the back-end.
    """
    folder = Path(tempfile.mkdtemp(prefix="testbed-backend-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in workload_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / TORCH_PACKAGE).symlink_to("workloads")
    return folder


def environment(rank: int, world: int, port: int, directory: Path) -> dict[str, str]:
    """What a launcher such as torchrun gives a rank, and lanes of its own on loopback."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TESTBED_LANES": json.dumps([f"127.0.{rank + 1}.{lane + 1}" for lane in range(LANES)]),
        "TESTBED_JOB_DIR": str(directory),
        "TESTBED_TIMEOUT_S": "30",
        "OMP_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(installed()),
        "HOME": str(directory),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
    }


class Broken(AssertionError):
    """A case that some rank did not finish well; the message has what each rank said."""


class Crew:
    """The ranks, started with the first case."""

    def __init__(
        self,
        directory: Path,
        backend: str = "testbed",
        env: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """env: further environment of a rank."""
        self._directory, self._backend, self._env = directory, backend, env
        self._links: list[socket.socket] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the ranks; they join the default group by themselves."""
        port = free_port()
        for rank in range(WORLD):
            mine, its = socket.socketpair()
            env = environment(rank, WORLD, port, self._directory) | self._env(rank)
            argv = [sys.executable, "-m", "tests.backend.rank", str(its.fileno()), self._backend]
            with (self._directory / f"rank{rank}.log").open("ab") as log:
                process = subprocess.Popen(
                    argv, env=env, cwd=ROOT, stdout=log, stderr=log, pass_fds=[its.fileno()]
                )
            its.close()
            self._links.append(mine)
            self.processes.append(process)
        if bad := [answer["error"] for answer in self.answers(START_S) if "error" in answer]:
            self.stop()
            raise Broken("\n".join(bad))

    def __call__(self, case: str, within_s: float = CASE_S, **arguments: object) -> list[Any]:
        """What each rank's case returned. Raises: Broken - a rank failed, ended, or did not answer
        in time.
        """
        self.ask(case, **arguments)
        answers = self.answers(within_s)
        if bad := [
            f"rank {rank}: {answer['error']}"
            for rank, answer in enumerate(answers)
            if "error" in answer
        ]:
            self.stop()
            raise Broken("\n".join([case, *bad]))
        return [answer["value"] for answer in answers]

    def ask(self, case: str, **arguments: object) -> None:
        """Have all ranks begin a case."""
        if not self.processes:
            self.start()
        line = json.dumps({"case": case, "arguments": arguments}).encode() + b"\n"
        for link in self._links:
            with suppress(OSError):  # the rank has ended: its answer says so
                link.sendall(line)

    def answers(self, within_s: float = CASE_S) -> list[dict[str, Any]]:
        """What each rank says to the case that was asked for: {"value": ...} or {"error":
        words}.
        """
        deadline_s = time.monotonic() + within_s
        return [self._answer(rank, deadline_s) for rank in range(WORLD)]

    def _answer(self, rank: int, deadline_s: float) -> dict[str, Any]:
        received = b""
        while not received.endswith(b"\n"):
            self._links[rank].settimeout(max(0.001, deadline_s - time.monotonic()))
            try:
                piece = self._links[rank].recv(65536)
            except TimeoutError:
                return {"error": f"no answer in time\n{self.log(rank)}"}
            except OSError:
                piece = b""
            if not piece:
                return {"error": f"ended\n{self.log(rank)}"}
            received += piece
        answer: dict[str, Any] = json.loads(received)
        return answer

    def log(self, rank: int) -> str:
        """The end of what a rank printed."""
        return (self._directory / f"rank{rank}.log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """End all ranks, with force after a while."""
        for link in self._links:
            link.close()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(3)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self._links, self.processes = [], []
