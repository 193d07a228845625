"""Runs Ansible: one playbook on some hosts, the results per host, and all output kept in the run's folder. Blocking."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optics import HostName, Missing, Refused, TestbedError, Unreachable
from orchestrator.credentials import KNOWN_HOSTS
from orchestrator.hosts.facts import PLAYBOOKS
from orchestrator.hosts.workplace import Workplace


@dataclass(slots=True)
class Play:
    """The result of a playbook: what each host printed per task, and the hosts that failed."""

    said: dict[HostName, dict[str, str]] = field(default_factory=dict)
    failed: dict[HostName, TestbedError] = field(default_factory=dict)


class Ansible:
    """Runs the project's playbooks with the user's own inventory. SSH connections stay open between plays, until `close`.

    `withheld`: environment variables that Ansible must not get, because they hold passwords of devices.
    """

    def __init__(self, inventory: Path, artefacts: Path, withheld: Collection[str] = ()) -> None:
        self._inventory = inventory / "hosts.yml"
        self._artefacts = artefacts
        self._withheld = withheld
        self._count = 0
        self._work: Workplace | None = None

    def play(self, playbook: str, names: Collection[HostName], variables: Mapping[str, Any], timeout_s: float = 300.0) -> Play:
        """Run `playbook` on `names`; per-host failures are returned, not raised.

        Raises: Missing - ansible-playbook is not there. Refused - the play failed as a whole.
        """
        import ansible_runner

        self._count += 1
        folder = self._artefacts / "ansible" / f"{self._count:02d}-{Path(playbook).stem}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._work is None:
            self._work = Workplace()
        programs = Path(sys.executable).parent
        if not shutil.which("ansible-playbook", path=f"{programs}:{os.environ.get('PATH', '')}"):
            raise Missing("ansible-playbook is not installed here", hint="pip install ansible-core")
        found = Play()

        def record(event: Mapping[str, Any]) -> bool:
            _hear(event, found)
            return True

        def began(status: Mapping[str, Any], runner_config: Any) -> None:
            if status.get("status") == "running":
                _forget_environment(Path(runner_config.artifact_dir) / "command")

        result = ansible_runner.interface.init_runner(
            private_data_dir=str(folder),
            playbook=str(PLAYBOOKS / playbook),
            inventory=str(self._inventory),
            limit=",".join(sorted(names)),
            extravars=dict(variables),
            envvars={
                "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
                "ANSIBLE_HOST_KEY_CHECKING": "True",  # whatever the operator's shell says
                **self._known_hosts(),
                "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self._work.path),
                "ANSIBLE_LOCAL_TEMP": str(self._work.path),
                "PATH": f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            },
            settings={"idle_timeout": timeout_s, "job_timeout": timeout_s, "suppress_env_files": False},
            event_handler=record,
            status_handler=began,
            quiet=True,
        )
        for name in self._withheld:
            result.config.env.pop(name, None)
        result.run()
        missing = sorted(name for name in names if name not in found.said and name not in found.failed)
        if (result.rc != 0 and not found.failed) or missing:
            text = (folder / "artifacts").glob("*/stdout")
            said = next((p.read_text(errors="replace").strip()[-600:] for p in text), "")
            words = f"{playbook}: ansible-playbook {_ending(result.status, result.rc, timeout_s)}"
            if missing:
                words += f"; no result of {', '.join(missing[:6])}" + (f" and {len(missing) - 6} more" if missing[6:] else "")
            raise Refused(f"{words}: {said}" if said else f"{words} and printed nothing", hint=f"all of it is in {folder}")
        return found

    def _known_hosts(self) -> dict[str, str]:
        """The lab's own known_hosts, if its folder has one; after the inventory's arguments, as the first one counts."""
        file = (self._inventory.parent / KNOWN_HOSTS).resolve()
        if not file.is_file():
            return {}
        quoted = str(file).replace("\\", "\\\\").replace('"', '\\"')
        return {"ANSIBLE_SSH_EXTRA_ARGS": f"-o 'UserKnownHostsFile=\"{quoted}\"'"}

    def close(self) -> None:
        """End the SSH connections Ansible kept open."""
        if self._work is None:
            return
        folder = self._work.path
        ends = [
            subprocess.Popen(
                ["ssh", "-O", "exit", "-o", f"ControlPath={path}", "x"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for path in sorted(folder.iterdir())
            if path.is_socket()
        ]
        for process in ends:
            process.wait()
        give_up = time.monotonic() + 1.0
        while folder.exists() and time.monotonic() < give_up:
            self._work.close()  # the masters are removing their sockets at the same time
        self._work = None


def _ending(status: str, code: int | None, timeout_s: float) -> str:
    """How the program ended, as ansible-runner reports it: there is no exit code if a signal ended it."""
    if status == "timeout":
        return f"was stopped, as it had not ended after {timeout_s:g} s"
    if code is None:
        return "was killed before it ended (by hand, or for lack of memory: see dmesg)"
    return f"ended with exit code {code}"


def _forget_environment(record: Path) -> None:
    """ansible-runner keeps the command of a play with the operator's whole environment; secrets in it must not be kept."""
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
        found.said.setdefault(host, {})[data.get("task", "")] = str(result.get("stdout", ""))
    elif kind == "runner_on_unreachable":
        words = " ".join(str(result.get("msg", "")).split())
        found.failed[host] = Unreachable(f"{host}: Ansible cannot reach it: {words}", hint=f"ansible -i inventory {host} -m ping")
    elif kind == "runner_on_failed":
        words = str(result.get("stdout") or result.get("stderr") or result.get("msg") or "").strip()
        found.failed[host] = Refused(f"{host}: {data.get('task')}: {words[-800:]}")
