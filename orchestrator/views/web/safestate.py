"""The safe state: a plan that one button brings up, as a run of its own, in a process that outlives
the page.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from optics.plain import printable
from orchestrator.processes import spawn
from orchestrator.results import Json, path_text
from orchestrator.settings import Settings

WAIT_S = 120
"""How long (s) to wait for another change in progress, unless the settings say otherwise."""
_MOST_CHARACTERS = 2000


class SafeState:
    """The state of the button. state: none (no plan is set), ready, running, done, failed."""

    def __init__(self, settings: Settings, plan: Path | None, name: str = "") -> None:
        self.settings, self.plan, self.name = settings, plan, name
        self.state = "none" if plan is None else "ready"
        self.message = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._reported = settings.state_dir / "ui" / "safe-state.err"

    def json(self) -> Mapping[str, Json]:
        """For the page."""
        return {
            "plan": self.name,
            "file": path_text(self.plan) if self.plan is not None else "",
            "state": self.state,
            "message": self.message,
        }

    def press(self) -> bool:
        """Start, unless it is already running or there is no plan to bring up; return whether it
        started.
        """
        if self.plan is None or self._process is not None:
            return False
        self._reported.unlink(missing_ok=True)
        wait = f"{self.settings.wait_s or WAIT_S:g}s"
        self._process = spawn(
            self.settings,
            ["up", "--topology", str(self.plan.absolute()), "--yes", "--wait", wait],
            self._reported,
        )
        self.state, self.message = "running", f"testbed up --topology {path_text(self.plan)}"
        return True

    def poll(self) -> bool:
        """Whether its state changed since the last call."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        self._process = None
        self.state = "failed" if code else "done"
        self.message = self._last_lines(code) if code else f"{self.name} is up"
        return True

    def leave(self) -> str:
        """Detach from a running change; return a message for the operator."""
        if self._process is None:
            return ""
        self._process.returncode = 0  # not waited for: it outlives this process
        self._process = None
        return f"The change to {self.name} continues: testbed status"

    def _last_lines(self, code: int) -> str:
        """The last message of the command: an error line with a code `E-...`, else how it ended."""
        try:
            lines = self._reported.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        begin = next((n for n, line in enumerate(lines) if line.startswith("E-")), None)
        text = "\n".join(lines[begin:] if begin is not None else lines[-3:])
        return printable(text, keep="\n")[:_MOST_CHARACTERS] or f"exit {code}"
