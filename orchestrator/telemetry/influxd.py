"""A private influxd on loopback: started when wanted, found again by later commands, alone in a
folder of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from optics.errors import Missing, TestbedError, TimedOut
from orchestrator.processes import Daemon, lock_holder, process_mark, try_lock

PORT = 28086
# as long as a command may take: one that starts is waited for, one that dies is not
START_S = 300.0
STOP_S = 20.0

# Loopback, no usage reports to the vendor (reporting-disabled), no limit on series: `run` is a tag
# and every run adds some.
_CONFIG = """\
reporting-disabled = true
bind-address = "127.0.0.1:0"
[meta]
  dir = {meta}
[data]
  dir = {data}
  wal-dir = {wal}
  index-version = "tsi1"
  query-log-enabled = false
  max-series-per-database = 0
  max-values-per-tag = 0
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
  auth-enabled = {auth}
[monitor]
  store-enabled = false
"""


@dataclass(frozen=True, slots=True)
class Private(Daemon):
    """The server as its state file records it: process, mark, port on loopback."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def program() -> str | None:
    """The path of influxd; None if it is not installed."""
    return shutil.which(
        "influxd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/bin:/usr/bin"
    )


def running_influxd(folder: Path) -> Private | None:
    """The server that runs in this folder; None if there is none."""
    present = _noted(folder)
    return present if present is not None and present.alive else None


def start_influxd(folder: Path, *, port: int = PORT, auth: bool = False) -> Private:
    """Start influxd in `folder` and wait until it answers; one that runs there is left alone. It
    outlives this process.

    port: tried after the last one used; if both are taken, any free one. Raises: Missing - influxd
    is not installed. TestbedError, TimedOut - it does not start, in its own words.
    """
    binary = program()
    if binary is None:
        raise Missing(
            "influxd is not installed", hint="apt-get install -y --no-install-recommends influxdb"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(folder):
        if (existing := running_influxd(folder)) is not None and _answers(
            existing.port, START_S, existing.pid
        ):
            return existing
        last = _noted(folder)
        give_up = time.monotonic() + START_S
        wanted = _free(*([last.port] if last else []), port)
        # another process may take the port between this check and influxd's bind
        for choice in (wanted, _free()):
            process = _launch(binary, folder, choice, auth)
            if _answers(choice, give_up - time.monotonic(), process):
                break
            ended = process.poll()
            process.kill()
            process.wait()
            text = _last_lines(folder)
            if ended is None:
                raise TimedOut(
                    f"influxd: no answer on port {choice} after {START_S:.0f} s{text}",
                    hint=f"see {_log(folder)}",
                )
            if "address already in use" not in text:
                raise TestbedError(
                    f"influxd exited immediately (exit {ended}){text}", hint=f"see {_log(folder)}"
                )
        else:
            raise TestbedError(f"influxd finds no free port{text}", hint=f"see {_log(folder)}")
        daemon = Daemon.detach(process)
        private = Private(daemon.pid, daemon.mark, choice)
        fresh = folder / "influxd.new"
        fresh.write_text(json.dumps(asdict(private)), encoding="utf-8")
        fresh.replace(folder / "influxd.json")
        return private


def stop_influxd(folder: Path) -> bool:
    """Stop the server of this folder and wait until it is gone; its data stay. False if none runs.

    Raises: TestbedError - it is still there after SIGKILL.
    """
    existing = running_influxd(folder)
    if existing is None:
        return False
    if existing.end(STOP_S) or existing.end(5.0, signal.SIGKILL):
        return True
    raise TestbedError(f"influxd (pid {existing.pid}) does not end", hint=f"see {_log(folder)}")


def _log(folder: Path) -> Path:
    return folder / "influxd.log"


def _launch(binary: str, folder: Path, port: int, auth: bool) -> subprocess.Popen[bytes]:
    inside = folder.resolve()
    places = {name: json.dumps(str(inside / name)) for name in ("meta", "data", "wal")}
    config = folder / "influxd.conf"
    config.write_text(_CONFIG.format(port=port, auth=str(auth).lower(), **places), encoding="utf-8")
    log = os.open(_log(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [binary, "run", "-config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=inside,
        )
    finally:
        os.close(log)


def _answers(port: int, timeout_s: float, process: subprocess.Popen[bytes] | int) -> bool:
    """Wait until the server answers /ping; False when the process ends or the timeout expires."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if (
            (process_mark(process) == "")
            if isinstance(process, int)
            else (process.poll() is not None)
        ):
            return False
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
        try:
            link.request("GET", "/ping")
            if link.getresponse().status == 204:
                return True
        except (OSError, http.client.HTTPException):
            pass
        finally:
            link.close()
        time.sleep(0.01)
    return False


def _last_lines(folder: Path) -> str:
    try:
        lines = _log(folder).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    reports = [line for line in lines if line.startswith("run:") or "lvl=error" in line] or lines[
        -1:
    ]
    return f": {reports[-1][:300]}" if reports else ""


def _noted(folder: Path) -> Private | None:
    try:
        reply = json.loads((folder / "influxd.json").read_text(encoding="utf-8"))
        return Private(int(reply["pid"]), str(reply["mark"]), int(reply["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _free(*wanted: int) -> int:
    """The first of these loopback ports that is free, else any free one."""
    for port in (*wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise TestbedError("no free port on 127.0.0.1")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two simultaneous commands start one server, not two. Raises: TimedOut - the other does not
    get on with it, as if stopped.
    """
    fd = os.open(folder / "influxd.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(fd, patience_s=START_S):
            holder = lock_holder(fd)
            who = f"process {holder.pid}" if holder else "another command"
            text = f"influxd: {who} has been starting it for over {START_S:.0f} s"
            raise TimedOut(text, hint="it may be stopped: let it go on (kill -CONT), or end it")
        yield
    finally:
        os.close(fd)
