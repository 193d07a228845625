"""S20: on a host, root alone speaks to the committer and reads what it keeps for this boot."""

from __future__ import annotations

import sys

from tests.agent.space import AGENT, ENV, Space

KNOCK = """
import os, socket, sys
for path in sys.argv[1:]:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX).connect(path)
        else:
            os.listdir(path) if os.path.isdir(path) else open(path).close()
        print("open", path)
    except PermissionError:
        print("closed", path)
"""


def test_another_user_of_a_host_neither_speaks_to_the_agent_nor_reads_its_state(
    host: Space,
) -> None:
    run = ENV["TESTBED_RUN"]
    listeners = [
        f"{run}/committer.sock",
        run,
        f"{run}/generations",
        f"{run}/committer.lock",
        f"{run}/start.lock",
    ]
    python = [sys.executable, "-S", "-E", "-c", KNOCK]
    assert host.run(*python, *listeners).stdout.splitlines() == [
        f"open {listener}" for listener in listeners
    ]
    stranger = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "/usr/bin/env",
        "python3",
        "-S",
        "-E",
    ]
    assert host.run(*stranger, "-c", KNOCK, *listeners).stdout.splitlines() == [
        f"closed {listener}" for listener in listeners
    ]
    result = host.run(*stranger, str(AGENT), "call", stdin='{"op": "clear"}')
    assert result.returncode != 0 and '"cleared": true' not in result.stdout
