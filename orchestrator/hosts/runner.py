"""Runs Ansible: one playbook on some hosts, the results per host, and all output kept in the run's
folder. Blocking.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from optics import HostName, Missing, Refused, TestbedError, Unreachable
from orchestrator.credentials import KNOWN_HOSTS
from orchestrator.hosts.channel import refusal
from orchestrator.hosts.facts import PLAYBOOKS
from orchestrator.hosts.workplace import Workplace
from orchestrator.settings import BOUNDS


@dataclass(slots=True)
class Play:
    """The result of a playbook: what each host printed per task, and the hosts that failed."""

    reported: dict[HostName, dict[str, str]] = field(default_factory=dict)
    failed: dict[HostName, TestbedError] = field(default_factory=dict)


class Ansible:
    """Runs the project's playbooks with the user's own inventory. SSH connections stay open between
    plays, until `close`.

    `withheld`: environment variables that Ansible must not get, because they hold passwords of
    devices. forks: hosts at a time.
    """

    def __init__(
        self,
        inventory: Path,
        artefacts: Path,
        withheld: Collection[str] = (),
        forks: int = BOUNDS.at_once,
    ) -> None:
        self._inventory = inventory / "hosts.yml"
        self._artefacts = artefacts
        self._withheld, self._forks = withheld, forks
        self._count = 0
        self._work: Workplace | None = None
        self._waiting: _Started | None = None

    def expect(self, playbook: str) -> None:
        """Start Ansible, which takes a second, for a play that is likely to come; it contacts
        nothing yet. Raises: Missing.
        """
        self._waiting = self._waiting or self._start(playbook)

    def play(
        self,
        playbook: str,
        names: Collection[HostName],
        variables: Mapping[str, Any],
        timeout_s: float = 300.0,
    ) -> Play:
        """Run `playbook` on `names`; per-host failures are returned, not raised.

        Raises: Missing - ansible-playbook is not there. Refused - the play failed as a whole.
        """
        if self._waiting is not None and self._waiting.playbook == playbook:
            started, self._waiting = self._waiting, None
        else:
            started = self._start(playbook)
        code, late = started.run(names, variables, timeout_s)
        found, folder = started.found, started.folder
        missing = sorted(
            name for name in names if name not in found.reported and name not in found.failed
        )
        if (code != 0 and not found.failed) or missing:
            text = (folder / "artifacts").glob("*/stdout")
            message = next((p.read_text(errors="replace").strip()[-600:] for p in text), "")
            sentence = f"{playbook}: ansible-playbook {_ending(code, late, timeout_s)}"
            if missing:
                sentence += f"; no result of {', '.join(missing[:6])}" + (
                    f" and {len(missing) - 6} more" if missing[6:] else ""
                )
            raise Refused(
                f"{sentence}: {message}" if message else f"{sentence} and printed nothing",
                hint=f"all of it is in {folder}",
            )
        return found

    def _start(self, playbook: str) -> _Started:
        if find_spec("ansible") is None:
            raise Missing("ansible-playbook is not installed here", hint="pip install ansible-core")
        folder = self._folder(Path(playbook).stem)
        if self._work is None:
            self._work = Workplace()
        environment = {
            "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
            "ANSIBLE_FORKS": str(self._forks),
            "ANSIBLE_HOST_KEY_CHECKING": "True",  # whatever the operator's shell says
            **self._known_hosts(),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self._work.path),
            "ANSIBLE_LOCAL_TEMP": str(self._work.path),
            # it refuses to start under a locale that this machine lacks, and SSH brings the user's
            # along
            "LC_ALL": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        }
        return _Started(
            playbook,
            folder,
            self._work.path / f"words{self._count}",
            self._inventory,
            environment,
            self._withheld,
        )

    def _folder(self, name: str) -> Path:
        """A new folder for a play; those of other commands may be beside it."""
        while True:
            self._count += 1
            folder = self._artefacts / "ansible" / f"{self._count:02d}-{name}"
            with suppress(FileExistsError):
                folder.mkdir(parents=True, mode=0o700)
                return folder

    def _known_hosts(self) -> dict[str, str]:
        """The lab's own known_hosts, if its folder has one; after the inventory's arguments, as the
        first one counts.
        """
        file = (self._inventory.parent / KNOWN_HOSTS).resolve()
        if not file.is_file():
            return {}
        quoted = str(file).replace("\\", "\\\\").replace('"', '\\"')
        return {"ANSIBLE_SSH_EXTRA_ARGS": f"-o 'UserKnownHostsFile=\"{quoted}\"'"}

    def close(self) -> None:
        """End the SSH connections Ansible kept open, and an Ansible that waits."""
        if self._waiting is not None:
            self._waiting.forget()
            self._waiting = None
        if self._work is None:
            return
        folder = self._work.path
        asked = [
            link
            for path in sorted(folder.iterdir())
            if path.is_socket() and (link := _asked_to_end(path))
        ]
        for link in asked:
            with suppress(OSError), link:
                while link.recv(4096):  # its greeting and its consent; it hangs up when it ends
                    pass
        give_up = time.monotonic() + 1.0
        while folder.exists() and time.monotonic() < give_up:
            self._work.close()  # the masters are removing their sockets at the same time
            time.sleep(0.002)
        self._work = None


def _asked_to_end(path: Path) -> socket.socket | None:
    """A link to the ssh(1) of this control socket, which is asked to end as by `ssh -O exit`
    (OpenSSH's PROTOCOL.mux); None: it is gone.
    """
    hello, version, terminate, number = 0x00000001, 4, 0x10000005, 0
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(1.0)
        link.connect(str(path))
        link.sendall(struct.pack(">6I", 8, hello, version, 8, terminate, number))
    except OSError:
        link.close()
        return None
    return link


class _Started:
    """An Ansible that waits for its words: the hosts and the variables of its play. `found` grows
    while it runs.
    """

    def __init__(
        self,
        playbook: str,
        folder: Path,
        text: Path,
        inventory: Path,
        environment: Mapping[str, str],
        withheld: Collection[str],
    ) -> None:
        self.playbook, self.folder, self.found = playbook, folder, Play()
        self._inventory, self._environment, self._withheld = inventory, environment, withheld
        os.mkfifo(text, mode=0o600)
        self._text = text
        # neither waits for a reader nor loses what nobody has read yet
        self._fd = os.open(text, os.O_RDWR | os.O_CLOEXEC)
        self._give_up: float | None = None
        self._code: int | None = None
        self._late = False
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(
            target=self._carry_out, name=f"ansible {playbook}", daemon=True
        )
        self._thread.start()

    def run(
        self, names: Collection[HostName], variables: Mapping[str, Any], timeout_s: float
    ) -> tuple[int | None, bool]:
        """Give it its words and wait; return its exit code (None: a signal ended it), and whether
        it had to be stopped.
        """
        given = self.folder / "variables.json"
        text = json.dumps(
            ["--limit", ",".join(sorted(names)), "-e", f"@{given}", str(PLAYBOOKS / self.playbook)]
        )
        try:
            given.write_text(json.dumps(dict(variables)), encoding="utf-8")
            (self.folder / "words.json").write_text(text, encoding="utf-8")
        except BaseException:  # no room for them
            self.forget()
            raise
        self._end(f"{self.folder / 'words.json'}\n".encode(), timeout_s)
        if self._trouble is not None:
            raise self._trouble
        return self._code, self._late

    def forget(self) -> None:
        """End it; its play does not come."""
        self._end(b"\n", 5.0)
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # those of other plays are beside it
            self.folder.parent.rmdir()

    def _end(self, text: bytes, timeout_s: float) -> None:
        """Say this to it, and wait for its end, or end it."""
        self._give_up = time.monotonic() + timeout_s
        os.write(self._fd, text)
        self._thread.join()
        os.close(self._fd)
        self._text.unlink(missing_ok=True)

    def _carry_out(self) -> None:
        try:
            import ansible_runner

            runner = ansible_runner.interface.init_runner(
                private_data_dir=str(self.folder),
                binary=sys.executable,
                cmdline=shlex.join(["-P", str(PLAYBOOKS / "ansible_playbook.py"), str(self._text)]),
                inventory=str(self._inventory),
                envvars=dict(self._environment),
                settings={"pexpect_timeout": 1, "suppress_env_files": False},
                event_handler=self._heard,
                status_handler=_began,
                cancel_callback=lambda: (
                    self._give_up is not None and time.monotonic() >= self._give_up
                ),
                quiet=True,
            )
            for name in self._withheld:
                runner.config.env.pop(name, None)
            runner.run()
            self._code, self._late = runner.rc, runner.status == "canceled"
        except BaseException as why:
            self._trouble = why

    def _heard(self, event: Mapping[str, Any]) -> bool:
        _hear(event, self.found)
        return True


def _began(status: Mapping[str, Any], runner_config: Any) -> None:
    if status.get("status") == "running":
        _forget_environment(Path(runner_config.artifact_dir) / "command")


def _ending(code: int | None, late: bool, timeout_s: float) -> str:
    """How the program ended, as ansible-runner reports it: there is no exit code if a signal ended
    it.
    """
    if late:
        return f"was stopped, as it had not ended after {timeout_s:g} s"
    if code is None:
        return "was killed before it ended (by hand, or for lack of memory: see dmesg)"
    return f"ended with exit code {code}"


def _forget_environment(record: Path) -> None:
    """ansible-runner keeps the command of a play with the operator's whole environment; secrets in
    it must not be kept.
    """
    try:
        kept = json.loads(record.read_text(encoding="utf-8")) | {"env": {}}
        record.write_text(json.dumps(kept), encoding="utf-8")
    except (OSError, ValueError):
        record.unlink(missing_ok=True)


def _hear(event: Mapping[str, Any], found: Play) -> None:
    kind = event.get("event")
    data = event.get("event_data") or {}
    host, result = str(data.get("host")), data.get("res") or {}
    if kind == "runner_on_ok":
        found.reported.setdefault(host, {})[data.get("task", "")] = str(result.get("stdout", ""))
    elif kind == "runner_on_unreachable":
        text = " ".join(str(result.get("msg", "")).split())
        found.failed[host] = Unreachable(
            f"{host}: Ansible cannot reach it: {text}", hint=f"ansible -i inventory {host} -m ping"
        )
    elif kind == "runner_on_failed":
        text = str(result.get("stdout") or result.get("stderr") or result.get("msg") or "").strip()
        found.failed[host] = _refused_by_agent(host, text) or Refused(
            f"{host}: {data.get('task')}: {text[-800:]}"
        )


def _refused_by_agent(host: HostName, text: str) -> TestbedError | None:
    """The first refusal among the JSON lines that an agent printed: its words are for people, its
    JSON is not.
    """
    for line in text.splitlines():
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict) and answer.get("ok") is False and answer.get("error"):
            return refusal(host, answer)
    return None
