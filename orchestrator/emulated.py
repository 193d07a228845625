"""The emulated lab as a separate process: start it, query it, stop it, only by its command line and
its control socket.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optical_testbed_home
from optics.errors import (
    BadFile,
    Garbled,
    Locked,
    Missing,
    TestbedError,
    TimedOut,
    Unreachable,
    Untrusted,
)
from optics.plain import counted, reason
from orchestrator.files.trust import believed, require_own
from orchestrator.inventory.folders import absent
from orchestrator.processes import Daemon, process_mark

START_S = 300.0
"""As long as a command may take: a lab that starts is waited for, and one that dies says so
itself.
"""
STOP_S = 20.0
ASK_S = 5.0
_LOG_TAIL = 15


class PortTaken(Locked):
    """Another program, perhaps another lab, listens on a port of the emulated lab."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running lab. `seconds`: how long the start took, 0 if it was running already."""

    state_dir: Path
    pid: int
    seconds: float
    already: bool


def is_emulated(inventory: Path) -> bool:
    """Whether the inventory is one of an emulated lab."""
    return (inventory / "emulator.yml").is_file()


def state_dir(inventory: Path) -> Path:
    """Where the lab of this inventory keeps its key, log and control socket: the directory of the
    hosts' SSH key.

    Raises: BadFile - hosts.yml cannot be read. TimedOut - not in the time allowed.
    """
    from orchestrator.files.reading import attentive, text_of
    from orchestrator.inventory.yaml_reader import read_yaml

    if not inventory.exists() and (wrong := absent(inventory)) is not None:
        raise wrong
    path = inventory.resolve() / "hosts.yml"
    try:
        text = text_of(path)
        with attentive(str(path)):
            content = read_yaml(text, path.name).value
    except TimedOut:
        raise
    except (OSError, UnicodeDecodeError, BadFile) as error:
        raise BadFile(
            [f"{path}: {reason(error)}"],
            hint="an inventory directory has hosts.yml, devices.yml and fibres.yml",
        ) from error
    key = (
        _find(content, "ansible_ssh_private_key_file")
        or "~/.local/state/testbed/emulated/id_ed25519"
    )
    return (inventory.resolve() / Path(key).expanduser()).parent


class Conversation:
    """A connection to the running lab's control socket. What the lab grants to a connection ends
    with it.
    """

    def __init__(self, inventory: Path, timeout_s: float = ASK_S) -> None:
        """Raises: Unreachable - the lab does not run. Untrusted - its directory belongs to another
        user.
        """
        self._folder = state_dir(inventory)
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.settimeout(timeout_s)
        try:
            _connect(self._link, self._folder)
        except OSError as error:
            self.close()
            raise self._not_running() from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._link.close()

    def ask(self, op: str, timeout_s: float = ASK_S, **arguments: object) -> dict[str, Any]:
        """Send one request. Raises: as the function `ask`."""
        deadline = time.monotonic() + timeout_s
        try:
            self._link.settimeout(timeout_s)
            self._link.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
            received = b""
            while b"\n" not in received:
                self._link.settimeout(max(0.01, deadline - time.monotonic()))
                piece = self._link.recv(65536)
                if not piece:
                    break
                received += piece
        except TimeoutError as error:
            raise TimedOut(
                f"emulated lab: no answer to {op!r} within {timeout_s:.0f} s",
                hint=f"see {self._folder / 'lab.log'}",
            ) from error
        except OSError as error:
            raise self._not_running() from error
        try:
            answer = json.loads(received)
            fine = answer["ok"]
        except (ValueError, KeyError, TypeError) as error:
            raise Garbled(f"emulated lab: asked {op!r}, answered {received[:200]!r}") from error
        if not fine:
            kind = Missing if answer.get("bad_request") else TestbedError
            raise kind(f"emulated lab: {op}: {answer.get('error', 'refused')}")
        return dict(answer)

    def _not_running(self) -> Unreachable:
        return Unreachable(
            f"the emulated lab is not running ({self._folder / 'control.sock'})",
            hint="testbed lab start",
        )


def ask(inventory: Path, op: str, timeout_s: float = ASK_S, **arguments: object) -> dict[str, Any]:
    """Send the running lab one request on its control socket.

    Raises: Unreachable - it does not run. Untrusted - its directory belongs to another user.
    TimedOut, Garbled - no proper answer. Missing - it has no such thing, or cannot do what was
    asked. TestbedError - the request failed.
    """
    with closing(Conversation(inventory, timeout_s)) as conversation:
        return conversation.ask(op, timeout_s, **arguments)


def cables(status: Mapping[str, Any]) -> dict[str, str]:
    """Each name's kind of cable, from a lab's answer to `status`: `fibre`, `trunk`, or
    `cable of the packet switch NAME`.
    """
    found = {cable["name"]: kind for kind in ("fibre", "trunk") for cable in status[f"{kind}s"]}
    switches = {
        name: f"cable of the packet switch {s['name']}"
        for s in status["segments"]
        for name in s["cables"]
    }
    return found | switches


def running() -> list[tuple[int, Path]]:
    """The emulated labs of all users that run on this machine: the first process of each, and its
    inventory.
    """
    found = {
        pid: (parent, at)
        for pid, parent, text in processes()
        if (at := inventory_of(text)) is not None
    }
    return sorted((pid, at) for pid, (parent, at) in found.items() if parent not in found)


def processes() -> Iterator[tuple[int, int, list[str]]]:
    """Every visible process of this machine: its number, its parent's, and the words of its command
    line.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                tokens = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            # proc(5): the name may hold anything
            yield int(entry.name), int(stat[stat.rfind(")") + 2 :].split()[1]), tokens


def inventory_of(tokens: Sequence[str]) -> Path | None:
    """The inventory of an emulated lab's process, by its command line; None: another program's
    process.
    """
    at = next((i for i, word in enumerate(tokens[:6]) if word == "-m"), None)
    if at is None or tokens[at + 1 : at + 2] != ["emulators"]:
        return None
    folder = next((word for word in tokens[at + 2 :] if not word.startswith("-")), "")
    return Path(folder) if folder.startswith("/") else None


def is_running(inventory: Path) -> bool:
    """Whether the lab answers on its control socket."""
    try:
        ask(inventory, "status", 2.0)
    except Unreachable:
        return False
    except Untrusted:
        raise
    except TestbedError:
        return True
    return True


def why_not_started(inventory: Path) -> str:
    """Why the last attempt to start the lab failed, in its own message; empty if it did not.
    Raises: BadFile.
    """
    try:
        return (
            (state_dir(inventory) / "lab.failed")
            .read_text(encoding="utf-8", errors="replace")
            .strip()
        )
    except OSError:
        return ""


def about(status: Mapping[str, Any]) -> str:
    """A lab's size in words, from its answer to `status`."""
    size = ", ".join(
        counted(len(status.get(f"{what}s", ())), what) for what in ("host", "device", "fibre")
    )
    return f"emulated ({size})"


def start_emulated_lab(inventory: Path, timeout_s: float = START_S) -> Started:
    """Start the lab and wait until it is ready; it runs in the background and outlives this
    process.

    Raises: Missing - the inventory is not an emulated one, or this machine lacks something. BadFile
    - the inventory is wrong. PortTaken. Locked - it runs, and does not answer. TimedOut - not ready
    within `timeout_s` (s); it is stopped again. TestbedError - the lab's message.
    """
    inventory = inventory.resolve()
    if not inventory.exists() and (wrong := absent(inventory)) is not None:
        raise wrong
    if not is_emulated(inventory):
        raise Missing(
            f"{inventory} is not an emulated lab (it has no emulator.yml)",
            hint="choose one: --inventory inventory/emulated",
        )
    folder = state_dir(inventory)
    if is_running(inventory):
        return Started(folder, _pid(inventory), 0.0, True)
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "emulators", str(inventory)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,
            env=optical_testbed_home.environment(),
            timeout=timeout_s,
            check=False,
        )
    except BaseException as error:
        with suppress(TestbedError):
            stop_emulated_lab(inventory, 5.0)
        if isinstance(error, subprocess.TimeoutExpired):
            log = folder / "lab.log"
            raise TimedOut(
                f"emulated lab: not ready after {timeout_s:.0f} s\n{_tail(log)}", hint=f"see {log}"
            ) from None
        raise
    if ended.returncode == 0:
        return Started(folder, _pid(inventory), time.monotonic() - began, False)
    text = (
        ended.stderr.strip().removeprefix("error: ")
        or f"ended with {ended.returncode}\n{_tail(folder / 'lab.log')}"
    )
    if ended.returncode == 2:
        raise Missing(
            f"emulated lab: {text}",
            hint="testbed doctor says what this machine lacks and what still works",
        )
    if ended.returncode == 3:
        raise BadFile(text.splitlines())
    if ended.returncode == 4:
        raise Locked(f"emulated lab: {text}", hint="testbed lab stop")
    if ended.returncode == 5:
        raise PortTaken(f"emulated lab: {text}", hint="testbed lab start --free-ports")
    raise TestbedError(f"emulated lab: {text}", hint=f"see {folder / 'lab.log'}")


def stop_emulated_lab(inventory: Path, timeout_s: float = STOP_S) -> bool:
    """Stop the lab and wait until its process has ended; False if it did not run.

    Raises: TestbedError - it still runs after SIGKILL.
    """
    folder = state_dir(inventory)
    pid = _pid_from_file(folder)
    lab = Daemon(pid, process_mark(pid))
    try:
        ask(inventory, "stop", min(timeout_s, ASK_S))
    except Unreachable:
        if not pid:
            return False
    except TestbedError:
        pass  # it hangs, or refuses: the signal below ends it
    if not lab.ended(timeout_s) and not lab.end(5.0, signal.SIGKILL):
        raise TestbedError(
            f"emulated lab: process {pid} does not end", hint=f"see {folder / 'lab.log'}"
        )
    return True


def _connect(link: socket.socket, folder: Path) -> None:
    require_own(folder, believed())  # another user's directory could have a forged socket
    path = folder / "control.sock"
    if len(os.fsencode(path)) < 100:  # sun_path holds 108 bytes (unix(7))
        link.connect(str(path))
        return
    handle = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        link.connect(f"/proc/self/fd/{handle}/control.sock")
    finally:
        os.close(handle)


def _pid(inventory: Path) -> int:
    return int(ask(inventory, "status").get("pid") or _pid_from_file(state_dir(inventory)))


def _pid_from_file(folder: Path) -> int:
    """The lab's process by its pid file, 0 if that process has ended or is another one."""
    try:
        pid = int((folder / "lab.pid").read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if b"emulators" in command else 0


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
    except OSError:
        lines = []
    return "\n".join(f"  {line}" for line in lines) or "  (no output)"


def _find(content: object, key: str) -> str:
    """The first value of `key` anywhere in nested mappings."""
    if not isinstance(content, Mapping):
        return ""
    if isinstance(content.get(key), str):
        return str(content[key])
    return next((found for value in content.values() if (found := _find(value, key))), "")
