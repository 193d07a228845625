"""Commands of this program that outlive the one that starts them: a guard, the watch over a change that waits to be confirmed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import optical_testbed
from orchestrator.settings import Settings

LOWLY = 10
"""Niceness of what must not disturb: a tenth of the share of an ordinary process (sched(7)), and never nothing, as 19 would be."""


def spawn(settings: Settings, words: Sequence[str], said: Path, *, lowly: bool = False) -> subprocess.Popen[bytes]:
    """Start `testbed WORDS` on the same lab and store, in a session of its own; what it says on stderr goes to the file `said`.

    lowly: at a low priority from its first instruction on. Nobody waits for it: whoever leaves it running sets its
    `returncode`.
    """
    said.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # -P: -m would look for modules in the current directory first, which may be anybody's.
    command = [sys.executable, "-P", "-m", "orchestrator.cli.main", *words, "--no-color"]
    command += ["--inventory", str(settings.inventory), "--as", settings.owner or settings.user]
    if lowly and (nice := shutil.which("nice")) is not None:
        command = [nice, "-n", str(LOWLY), *command]
    places = {"DATA_DIR": settings.data_dir, "STATE_DIR": settings.state_dir, "LOCK_DIR": settings.lock_dir}
    places |= {} if settings.store is None else {"STORE": settings.store}
    environment = optical_testbed.environment() | {f"TESTBED_{name}": str(value) for name, value in places.items()}
    words_fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words_fd, start_new_session=True, env=environment
        )
    finally:
        os.close(words_fd)
