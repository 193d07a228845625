"""Signals to ranks on hosts of an emulated lab, for tests and benchmarks of what happens then."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_SEND = """import glob, json, os, sys
newest = max(glob.glob("/var/lib/testbed/started/*.json"), key=os.path.getmtime)
os.killpg(json.load(open(newest))["pid"], int(sys.argv[1]))"""


def send(env: Mapping[str, str], host: str, what: signal.Signals) -> None:
    """Send a signal to every process of the newest rank on a host. env: of `testbed`, which chooses
    the lab.

    Raises: CalledProcessError - there is none.
    """
    testbed = Path(sys.executable).with_name("testbed")
    subprocess.run(
        [testbed, "host", "exec", host, "--", "python3", "-c", _SEND, str(int(what))],
        env=env,
        check=True,
        capture_output=True,
    )
