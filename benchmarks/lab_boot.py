"""How long the emulated lab takes to be usable: every device listening, every fibre laid, every
sshd showing its banner.

    python benchmarks/lab_boot.py [RUNS] Compared with Mininet (Debian `mininet`) building the same
hosts and links, rate-shaped by its own means (the ratio) and plain, without switches, devices,
management network or sshd; in namespaces of its own so that nothing is left behind.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import write
from conformance.lab import running

LIMITS_S = {12: 4.0, 64: 10.0}
PORTS = 4
MININET = """
import sys
from mininet.net import Mininet
from mininet.link import Link, TCLink
Mininet.inited = True  # its init changes limits of the whole machine
hosts, ports, shaped = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == 'shaped'
net = Mininet(controller=None, build=False, link=TCLink if shaped else Link)
glass = net.addHost('ocs')
for n in range(1, hosts + 1):
    host = net.addHost('gpu%02d' % n)
    for p in range(ports):
        net.addLink(host, glass, **({'bw': 250, 'use_htb': True} if shaped else {}))
net.build()
net.start()
print('ready', flush=True)
sys.stdin.read()
"""


def lab_s(inventory: Path, runs: int) -> list[float]:
    seconds = []
    for _ in range(runs + 1):  # the first run makes the keys
        with running(inventory) as lab:
            seconds.append(lab.ready_s)
        time.sleep(0.3)  # the kernel frees namespaces in the background
    print(f"  first start, keys made: {seconds[0]:.2f} s")
    return seconds[1:]


def mininet_s(hosts: int, links: str, runs: int) -> list[float]:
    seconds = []
    contained = [
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--ipc",
        "--uts",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    for _ in range(runs):
        began = time.monotonic()
        with subprocess.Popen(
            [*contained, "/usr/bin/python3", "-c", MININET, str(hosts), str(PORTS), links],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as builder:
            assert builder.stdout is not None and builder.stderr is not None
            ready = builder.stdout.readline() == "ready\n"
            seconds.append(time.monotonic() - began)
            if not ready:
                raise SystemExit(f"Mininet did not build: {builder.stderr.read()[-500:]}")
            builder.kill()
        time.sleep(0.3)
    return seconds


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    result: dict[str, object] = {"name": "lab_boot", "unit": "s"}
    met = True
    has_mininet = (
        shutil.which("mn") is not None and Path("/usr/lib/python3/dist-packages/mininet").exists()
    )
    with tempfile.TemporaryDirectory(prefix="lab-boot-") as folder:
        for hosts, limit in LIMITS_S.items():
            print(
                f"{hosts} hosts, {hosts * PORTS} fibres, {PORTS} devices, {hosts} sshd", flush=True
            )
            inventory = Path(folder) / f"lab{hosts}"
            write(inventory, Path(folder) / f"state{hosts}", hosts, PORTS)
            lab_times_s = lab_s(inventory, runs if hosts == 12 else min(runs, 3))
            value = statistics.median(lab_times_s)
            met &= value <= limit
            print(
                f"  lab     {value:6.2f} s   {[round(s, 2) for s in lab_times_s]}   limit {limit} s",
                flush=True,
            )
            figures: dict[str, object] = {"value": round(value, 3), "limit": limit}
            if has_mininet:
                for links in ("plain", "shaped"):
                    mininet = statistics.median(mininet_s(hosts, links, 3 if hosts == 12 else 1))
                    figures[f"mininet_{links}_s"] = round(mininet, 3)
                    figures["ratio" if links == "shaped" else "ratio_plain"] = round(
                        value / mininet, 3
                    )
                    print(
                        f"  Mininet {mininet:6.2f} s   {links} links, no sshd, no devices: ratio {value / mininet:.2f}",
                        flush=True,
                    )
            else:
                print("  Mininet is not installed (Debian package mininet): no ratio")
            if hosts == 12:
                result |= {"ratio": None, **figures}
            else:
                result |= {f"{key}_{hosts}": figure for key, figure in figures.items()}
    print(json.dumps({**result, "pass": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
