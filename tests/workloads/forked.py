"""Processes that begin with torch imported, as forks of one that has: a rank is `python -m MODULE`
or `python -c CODE` without two seconds of importing. What a rank does from its first line on is the
same; only its end passes through `multiprocessing`, which skips the interpreter's own finalization.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.workloads.preloaded"])
    return context


def _become(
    kind: str,
    program: str,
    words: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    output: tuple[str, str],
) -> None:
    """Be `python kind program words`, in `folder`, with this environment and these files."""
    for number, path in enumerate(output, 1):
        opened = os.open(path, os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.path[0] = str(folder)
    if kind == "-c":
        sys.argv = [kind, *words]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - the test's own
    else:
        sys.argv = [program, *words]
        runpy.run_module(program, run_name="__main__", alter_sys=True)


class Forked:
    """Such a process, with what the tests use of `subprocess.Popen`."""

    def __init__(
        self,
        kind: str,
        program: str,
        words: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        out: IO[str],
        err: IO[str],
    ) -> None:
        files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
        self._process = _context().Process(
            target=_become, args=(kind, program, words, env, folder, (files[0], files[1]))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
