"""Runs a rank of a program of the lab's owner:
`python -m workloads.programs.supervise --program NAME [options] -- COMMAND...`.

The command runs in the job's directory with the environment it finds here. On rank 0 this process
stays between: it passes the program's output on, and records an iteration whenever the program
shows one, in the files that records.py describes. On other ranks it becomes the program.

Options: --directory: the program's files, first in PYTHONPATH; words of the command that are files
there are given their full path. --venv: its bin/ comes first in PATH. One of --pattern: matched
against each line of output, its groups `iter` and others are the record; --file: a file of JSON
lines in the job's directory, with --key NAME=KEY for each field; neither: the program writes
iterations.jsonl itself. SIGTERM, SIGINT and SIGHUP are passed on to the program's process group.
Exit code: that of the program (75: it lost a peer), 128 + N after signal N, 126 or 127 where it
cannot be started.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..progress.heartbeat import FILE, Heartbeat
from ..progress.records import SUMMARY, Clock, Records
from ..progress.waits import Unknown

LONGEST_LINE = 1000
"""Characters of a line of output that are looked at: what a pattern may take grows with the square
of it.
"""
LONGEST_JSON = 64 << 10
"""Bytes of one JSON line of a file; longer ones are skipped."""
MOST_RECORDS = 1_000_000
"""Iterations that are recorded: some 100 MB."""
HIGHEST = 1 << 53
LOOK_S = 0.01
"""How often a file is looked at (s): the resolution of times taken from it."""
TICK_S = 0.1
LINGER_S = 2.0
"""How long (s) output is still read after the program's end: a process that it left behind may hold
the pipe.
"""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_PDEATHSIG = 1


class Progress:
    """Turns what a program shows of its iterations into records. An iteration takes from the one
    before (the first: from the program's start) until it shows; where only every n-th shows, each
    of the n took an equal part."""

    def __init__(
        self, records: Records, clock: Clock, started_ns: int, directory: Path | None = None
    ) -> None:
        """directory: of the job, for the heartbeat of a program whose own back-end writes none
        (heartbeat.py).
        """
        self._records, self._clock, self._before_ns = records, clock, started_ns
        self._directory = directory
        self._beat: Heartbeat | None = None
        self.count, self.last = 0, -1
        self.first: dict[str, Any] = {}
        self.latest: dict[str, Any] = {}
        self._took_ms: list[float] = []

    def note(self, values: Mapping[str, object], now_ns: int) -> None:
        """Record an iteration that shows now; one that is no number, or not after the last one, is
        left out.
        """
        number = _number(values.get("iter"))
        if (
            number is None
            or number != int(number)
            or not self.last < number <= HIGHEST
            or self.count >= MOST_RECORDS
        ):
            return
        steps = int(number) - self.last if self.count else 1
        took_ns = (now_ns - self._before_ns) / steps
        record: dict[str, Any] = {
            "iter": int(number),
            "t_wall_ns": self._clock.wall_ns(int(now_ns - took_ns)),
            "iter_ms": round(took_ns / 1e6, 3),
        }
        record |= {
            name: found
            for name, value in values.items()
            if name != "iter" and (found := _number(value)) is not None
        }
        if steps > 1:
            record["steps"] = steps
        self._records.iteration(record, aloud=False)
        if self._directory is not None and not self.count and not (self._directory / FILE).exists():
            self._beat = Heartbeat(self._directory, 0, Unknown())
        if self._beat is not None:
            self._beat.shown(int(number), int(took_ns))
        self.first, self.latest = self.first or record, record
        self.count, self.last, self._before_ns = self.count + 1, int(number), now_ns
        self._took_ms = [*self._took_ms[-999:], record["iter_ms"]]

    def summary(self) -> dict[str, Any]:
        """What the job's summary says of them."""
        took = sorted(self._took_ms[1:] or self._took_ms)
        return {
            "iterations": max(self.last, 0),
            "shown": self.count,
            "first_loss": self.first.get("loss"),
            "last_loss": self.latest.get("loss"),
            "median_iter_ms": took[len(took) // 2] if took else None,
        }


def _number(value: object) -> float | int | None:
    """A finite number, also one written as text; None for anything else."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, str))
        or (isinstance(value, str) and len(value) > 40)
    ):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(found):
        return None
    return int(found) if found == int(found) and abs(found) <= HIGHEST else found


class Lines:
    """Splits what comes in pieces into lines of at most `longest` bytes; the rest of a longer line
    is dropped.

    A carriage return ends a line too: progress bars write nothing else until they are done.
    """

    def __init__(self, longest: int, take: Callable[[bytes], None]) -> None:
        self._longest, self._take, self._held = longest, take, b""

    def feed(self, data: bytes) -> None:
        *whole, rest = data.replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            self._take((self._held + line)[: self._longest])
            self._held = b""
        self._held = (self._held + rest)[: self._longest]


class Follower:
    """Reads what is appended to a file of JSON lines."""

    def __init__(
        self, path: Path, keys: Mapping[str, str], note: Callable[[Mapping[str, object]], None]
    ) -> None:
        self._path, self._keys, self._note = path, keys, note
        self._offset, self._lines = 0, Lines(LONGEST_JSON, self._line)

    def look(self) -> None:
        """Take the lines that were added; a file that became shorter is read from its start. What
        is no plain file is not read.
        """
        with (
            contextlib.suppress(OSError),
            open(self._path, "rb", buffering=0, opener=_at_once) as file,
        ):
            size = os.fstat(file.fileno()).st_size
            if size < self._offset:
                self._offset, self._lines = 0, Lines(LONGEST_JSON, self._line)
            file.seek(self._offset)
            while self._offset < size and (piece := file.read(1 << 16)):
                self._offset += len(piece)
                self._lines.feed(piece)

    def _line(self, line: bytes) -> None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict):
            self._note({name: found.get(key) for name, key in self._keys.items()})


def _at_once(path: str, flags: int) -> int:
    """Opens without waiting for the writer of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


class Run:
    """The program, running below this process."""

    def __init__(self, command: list[str], env: Mapping[str, str], *, piped: bool) -> None:
        self.signalled = 0
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)
        self._child: subprocess.Popen[bytes] | None = None
        self._child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else None,
            stderr=subprocess.STDOUT if piped else None,
            preexec_fn=_below,
        )
        if self.signalled:  # it came while the program was started
            self._pass_on(self.signalled, None)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.signalled = number
        if self._child is not None and self._child.poll() is None:
            try:
                os.killpg(self._child.pid, number)
            except ProcessLookupError:
                pass

    def attend(self, take: Callable[[bytes], None], look: Callable[[], None], tick_s: float) -> int:
        """Until the program ends: pass its output on and to `take`, and `look` every `tick_s`.
        Return its exit code.
        """
        assert self._child is not None
        pipe = self._child.stdout
        poll = select.poll()
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            poll.register(pipe.fileno(), select.POLLIN)
        ended_s = None
        while True:
            now_s = time.monotonic()
            code = self._child.poll()
            if code is not None:
                ended_s = ended_s or now_s
                if pipe is None or now_s > ended_s + LINGER_S:
                    break
            if poll.poll(tick_s * 1000) and pipe is not None:
                try:
                    data = os.read(pipe.fileno(), 1 << 16)
                except BlockingIOError:
                    continue
                if not data:
                    poll.unregister(pipe.fileno())
                    pipe = None
                take(data)
                _write(data)
            look()
        look()
        return code if code >= 0 else 128 - code


def _below() -> None:
    """In the child: a process group of its own, which ends with this process."""
    os.setpgid(0, 0)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


PRCTL = ctypes.CDLL(None, use_errno=True).prctl


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def prepared(
    command: list[str], directory: str, venv: str, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command with full paths for the program's own files, and its environment."""
    env = dict(env)
    tokens = list(command)
    if directory:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, env.get("PYTHONPATH", ""))))
        tokens = [
            f"{directory}/{word}" if _names_a_file(word, directory) else word for word in tokens
        ]
    if venv:
        env["PATH"] = os.pathsep.join(filter(None, (f"{venv}/bin", env.get("PATH", os.defpath))))
        env["VIRTUAL_ENV"] = venv
    return tokens, env


def _names_a_file(word: str, directory: str) -> bool:
    """Whether a word of the command is a relative path of one of the program's files; options and
    NAME=VALUE never are.
    """
    if word.startswith(("-", "/")) or "=" in word:
        return False
    return os.path.isfile(f"{directory}/{word}")  # noqa: PTH113 - Path.is_file raises for a word too long to be a name


def supervise(arguments: argparse.Namespace, command: list[str], env: Mapping[str, str]) -> int:
    """Run the program as rank 0 and record its iterations; return its exit code. Raises: OSError -
    it cannot be started.
    """
    where = Path(os.environ.get("TESTBED_JOB_DIR", "."))
    started_ns, started_s = time.monotonic_ns(), time.monotonic()
    reports = not arguments.pattern and not arguments.file
    records = Records(where, 1 if reports else 0)
    progress = Progress(records, Clock(), started_ns, where)
    run = Run(command, env, piped=bool(arguments.pattern))

    def line(text: bytes) -> None:
        match = pattern.search(text.decode("utf-8", "replace")) if pattern else None
        if match:
            progress.note(match.groupdict(), time.monotonic_ns())

    pattern = re.compile(arguments.pattern) if arguments.pattern else None
    lines = Lines(LONGEST_LINE, line)
    keys = dict(pair.split("=", 1) for pair in arguments.key)
    follower = Follower(
        where / arguments.file, keys, lambda values: progress.note(values, time.monotonic_ns())
    )
    code = run.attend(
        lines.feed,
        follower.look if arguments.file else lambda: None,
        LOOK_S if arguments.file else TICK_S,
    )
    if not reports or not (where / SUMMARY).exists():
        Records(where, 0).summary(
            {
                "workload": arguments.program,
                "ok": code == 0,
                "exit_code": code,
                "stopped": bool(run.signalled),
                "world": int(env.get("WORLD_SIZE", "1")),
                "trained_s": round(time.monotonic() - started_s, 3),
                **({} if reports else progress.summary()),
            }
        )
    return code


def main() -> NoReturn:
    tokens = sys.argv[1:]
    if "--" not in tokens:
        sys.exit("workloads.programs.supervise: -- and the program's command are missing")
    at = tokens.index("--")
    parser = argparse.ArgumentParser(prog="workloads.programs.supervise", allow_abbrev=False)
    for option in ("--program", "--directory", "--venv", "--pattern", "--file"):
        parser.add_argument(option, default="")
    parser.add_argument("--key", action="append", default=[])
    arguments = parser.parse_args(tokens[:at])
    command, env = prepared(tokens[at + 1 :], arguments.directory, arguments.venv, os.environ)
    try:
        if os.environ.get("RANK", "0") != "0":
            os.execvpe(command[0], command, env)
        code = supervise(arguments, command, env)
    except OSError as error:
        print(
            f"{arguments.program}: {command[0]}: {error.strerror} (PATH={env.get('PATH', '')})",
            file=sys.stderr,
            flush=True,
        )
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
