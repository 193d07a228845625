"""The fingerprint of the environment in which a scenario was measured: kernel, cores, load,
congestion control, offloads.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import optical_testbed_home
from optics.errors import TestbedError
from orchestrator.hosts.openssh import run
from orchestrator.hosts.render import CONGCTL
from orchestrator.inventory.lab import Lab
from orchestrator.telemetry.environment import versions

ASK_S = 20.0
# ETHTOOL_GTSO, GGSO, GGRO, GSG by SIOCETHTOOL (linux/ethtool.h, linux/sockios.h): the tool itself
# is not installed everywhere.
_OFFLOADS = """
import array, fcntl, json, socket, struct, sys
found = {}
for name, command in (("tso", 0x1E), ("gso", 0x23), ("gro", 0x2B), ("scatter_gather", 0x18)):
    value = array.array("B", struct.pack("II", command, 0))
    request = struct.pack("16sP8x", sys.argv[1].encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        fcntl.ioctl(link, 0x8946, request)
    found[name] = bool(struct.unpack("II", value)[1])
print(json.dumps(found))
"""


def commit() -> str:
    """The commit of the program, `+` behind it where files differ from it; its version where it was
    installed without one.
    """
    home = optical_testbed_home.HOME
    git = ["git", "-C", str(home), "-c", f"safe.directory={home}"]
    try:
        if not (home / ".git").exists():  # installed, if need be inside another repository
            raise FileNotFoundError(home)
        head = subprocess.run(
            [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return versions().get("optical-testbed", "")
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def environment_fingerprint(lab: Lab, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of the environment may change what is measured; what cannot be read is left out.

    before: that of the first measurements of a record that is continued: all commits are named.
    """
    commits = [*str((before or {}).get("commit", "")).split(", "), commit()]
    found: dict[str, Any] = {
        "versions": versions(),
        "commit": ", ".join(dict.fromkeys(filter(None, commits))),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "congestion_control": {
            "of the plan's routes": CONGCTL,
            "rto_min_ms": next(iter(lab.hosts.values())).rto_min_ms,
        },
    }
    with suppress(OSError):
        own = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
        found["congestion_control"]["otherwise"] = own
    host = next(iter(lab.hosts.values()))
    port = next(iter(host.ports.values()))
    with suppress(TestbedError, ValueError):
        code, out, _ = run(
            host, ["python3", "-c", _OFFLOADS, port.interface], capture=True, timeout_s=ASK_S
        )
        if code == 0:
            found["offloads"] = {"of": f"{host.name}:{port.interface}", **json.loads(out)}
    return found
