"""One lab process with 64 switches of 320 ports, each asked by a session of its own at the same
time: reply time and memory.

    python benchmarks/emulator_scale.py [QUESTIONS] Half the switches speak SCPI, half TL1; each
carries 320 circuits. Every session asks for its switch's whole map again and again, as drivers do
that watch a change. The figure is the 99th percentile of all replies; each is read whole and its
circuits are counted. Memory is the proportional set size (PSS) of the process when all have been
asked.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import undisturbed, verdict
from conformance.lab import Running, free_ports, running

SWITCHES, PORTS, QUESTIONS = 64, 320, 20
LIMIT_MS = 1000.0
"""A round of 64 whole maps: a driver's own patience begins at 2 s (drivers/watch.py)."""
LIMIT_MB = 256.0
SCPI, TL1 = "polatis-scpi", "calient-tl1"


def write(folder: Path) -> list[tuple[str, int]]:
    """Write the inventory of the switches; return what each speaks and its port."""
    switches = [(SCPI if n % 2 else TL1, port) for n, port in enumerate(free_ports(SWITCHES))]
    (folder / "state").mkdir(mode=0o700)
    host = {
        "ansible_port": 1,
        "testbed_host_id": 1,
        "testbed_mgmt_address": "10.254.0.1",
        "testbed_ports": {1: {"interface": "opt1"}},
        "ansible_ssh_private_key_file": str(folder / "state" / "id_ed25519"),
        "ansible_user": "root",
    }
    devices = {
        f"ocs{n}": {
            "driver": driver,
            "address": f"tcp://127.0.0.1:{port}",
            "username": "admin",
            "password": "emulated",
        }
        for n, (driver, port) in enumerate(switches)
    }
    aid = [f"1.{1 + n // 8}.{1 + n % 8}" for n in range(PORTS)]
    lit = {
        SCPI: [[n + 1, PORTS + n + 1] for n in range(PORTS)],
        TL1: [{"in": aid[n], "out": aid[(n + 1) % PORTS], "type": "1WAY"} for n in range(PORTS)],
    }
    emulated = {
        f"ocs{n}": {"size": f"{PORTS}x{PORTS}", "preset": lit[driver]}
        | ({"row_delay_s": 0.0} if driver == TL1 else {})
        for n, (driver, _) in enumerate(switches)
    }
    files = {
        "hosts": {"all": {"hosts": {"unused": host}}},
        "devices": {"lab": "scale", "devices": devices},
        "fibres": {"fibres": []},
        "emulator": {"hosts": False, "devices": emulated},
    }
    for name, content in files.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content))
    return switches


async def session(
    speaks: str, port: int, questions: int, all_present: asyncio.Barrier
) -> list[float]:
    """Ask one switch so many times; return the seconds each answer took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    question, end = (
        (b":oxc:swit:conn:stat?\n", b"\n") if speaks == SCPI else (b"RTRV-CRS:::7::ALL;", b";")
    )
    if speaks == TL1:
        writer.write(b"ACT-USER::admin:1::emulated;")
        assert b"COMPLD" in await reader.readuntil(end)
    await all_present.wait()
    took = []
    for _ in range(questions):
        began = time.perf_counter()
        writer.write(question)
        answer = await reader.readuntil(end)
        took.append(time.perf_counter() - began)
        found = answer.count(b"SRCPORT=") if speaks == TL1 else answer.count(b",") // 2 + 1
        assert abs(found - PORTS) < 2, answer[:200]
    writer.close()
    await writer.wait_closed()
    return took


async def ask_all(
    switches: list[tuple[str, int]], questions: int
) -> tuple[list[list[float]], float]:
    """Ask all at once; return the seconds of every answer and of the whole."""
    all_present = asyncio.Barrier(len(switches) + 1)
    asking = [asyncio.create_task(session(*switch, questions, all_present)) for switch in switches]
    await all_present.wait()
    began = time.perf_counter()
    return await asyncio.gather(*asking), time.perf_counter() - began


def pss_mb(lab: Running) -> float:
    """Memory of a process (MB) as the kernel shares it out."""
    found = re.search(
        r"^Pss:\s+(\d+) kB", Path(f"/proc/{lab.pid}/smaps_rollup").read_text(), re.MULTILINE
    )
    assert found
    return int(found[1]) / 1000


def main() -> int:
    undisturbed()
    questions = int(sys.argv[1]) if len(sys.argv) > 1 else QUESTIONS
    with tempfile.TemporaryDirectory(prefix="emulator-scale-") as name:
        folder = Path(name)
        switches = write(folder)
        with running(folder, "--devices-only") as lab:
            idle_mb = pss_mb(lab)
            asyncio.run(ask_all(switches, 2))
            replies, seconds = asyncio.run(ask_all(switches, questions))
            busy_mb = pss_mb(lab)
    every = sorted(took for one in replies for took in one)
    each = list(zip(switches, replies, strict=True))
    by_kind = {
        kind: [t for (speaks, _), one in each if speaks == kind for t in one]
        for kind in (SCPI, TL1)
    }
    p99 = every[int(0.99 * (len(every) - 1))] * 1e3
    print(f"  {SWITCHES} switches of {PORTS} ports, a session each, up in {lab.ready_s:.2f} s")
    print(f"  {len(every)} whole maps in {seconds:.2f} s")
    for kind, took in by_kind.items():
        print(
            f"  {kind:<14} median {statistics.median(took) * 1e3:7.1f} ms   worst {max(took) * 1e3:7.1f} ms"
        )
    print(f"  memory {idle_mb:.0f} MB before, {busy_mb:.0f} MB after")
    return verdict(
        "emulator_scale",
        p99,
        "ms",
        LIMIT_MS,
        "at most",
        also=busy_mb <= LIMIT_MB,
        median_ms=round(statistics.median(every) * 1e3, 1),
        maps_per_s=round(len(every) / seconds),
        pss_mb=round(busy_mb),
        pss_limit_mb=LIMIT_MB,
        ready_s=round(lab.ready_s, 2),
    )


if __name__ == "__main__":
    sys.exit(main())
