"""Private labs and a command line for a test session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import optical_testbed_home
from conformance.lab import Lab, devices_lab, hosts_lab

COMMAND_S = 300.0


class CommandFailed(AssertionError):
    """A command of `testbed` ended with an error; `answer` is its JSON, `code` its exit code."""

    def __init__(self, text: str, code: int, answer: dict[str, Any]) -> None:
        super().__init__(text)
        self.code, self.answer = code, answer


class Labs:
    """Labs by driver and number of hosts: each is started when first requested; all are stopped
    together.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._labs: dict[tuple[str, int], Lab] = {}

    def __call__(self, driver: str, hosts: int = 0) -> Lab:
        if (driver, hosts) not in self._labs:
            started = devices_lab([driver]) if not hosts else hosts_lab(driver, hosts)
            self._labs[driver, hosts] = self._stack.enter_context(started)
        return self._labs[driver, hosts]

    def __enter__(self) -> Labs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._labs.clear()
        self._stack.close()


class CommandLine:
    """The command `testbed` for one inventory, with its own store and logs below `home`."""

    def __init__(self, inventory: Path, home: Path) -> None:
        self.inventory, self.home = inventory, home

    def __call__(self, *parts: object, timeout_s: float = COMMAND_S) -> dict[str, Any]:
        """Run `testbed WORDS --json`; return the `data` of its answer. Raises: CommandFailed - any
        exit code but 0.
        """
        own = {
            f"TESTBED_{kind}_DIR": str(self.home / kind.lower())
            for kind in ("DATA", "STATE", "LOCK")
        }
        own |= {
            "TESTBED_INVENTORY": str(self.inventory),
            "TMPDIR": os.environ.get("TMPDIR", tempfile.gettempdir()),
        }
        done = subprocess.run(
            [sys.executable, "-P", "-m", "orchestrator.cli.main", *map(str, parts), "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**optical_testbed_home.environment(), **own},
            timeout=timeout_s,
            check=False,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise CommandFailed(
                f"testbed {parts}: {done.stdout}{done.stderr}", done.returncode, {}
            ) from None
        if done.returncode:
            raise CommandFailed(
                f"{answer['code']}: {answer['message']}; {answer['hint']}", done.returncode, answer
            )
        return dict(answer["data"])
