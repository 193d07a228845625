"""The command line under test: run in this process, with the engine replaced at its boundary and
directories of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.change.report import ConfirmReport, DownReport, JobChange, UpReport, WatchReport
from orchestrator.cli import main
from orchestrator.hosts.by_hand import ByHand, RankEnvironment
from orchestrator.jobs.report import JobLogs, JobStatus
from orchestrator.plan.report import CircuitRow, DeviceDiff, PlanReport
from orchestrator.session import Command
from orchestrator.store.records import StallPoint
from orchestrator.telemetry.phases import PartTime, PhaseTime
from orchestrator.verbs.report import (
    DevicesReport,
    DeviceStatus,
    DeviceView,
    HostStatus,
    StatusReport,
)
from orchestrator.verify.report import (
    CircuitLight,
    LevelResult,
    LossChange,
    PowerReport,
    StallReport,
    VerifyReport,
)
from tests.jsondata import fits

GOLDEN = Path(__file__).parent / "golden"

JOB = JobStatus(
    "ddp-mlp", "running", "train", "gloo", 12, 40, 41.2, 118.0, 122.0, run="2026-11-21-0007"
)
DIFF = (
    DeviceDiff("ocs1", ("1->17",), ("2->18", "3->19"), ("2->19", "3->18"), ("8->24",), 50.0),
    DeviceDiff("ocs2", ("1->17", "2->18"), dark_ms_expected=None),
)
STALLS = tuple(
    StallPoint(
        at, run, "gpu01:p1--gpu02:p1", "ocs1", mode, asked, asked + 55.0 + extra, lost + extra, 0.0
    )
    for run, at in (("2026-11-20-0003", 1_795_000_000.0), ("2026-11-21-0011", 1_795_090_000.0))
    for asked, by_mode in ((0.0, (2.0, 91.0, 56.0)), (200.0, (2.0, 412.0, 258.0)))
    for mode, lost in zip(("drained", "sending", "held"), by_mode, strict=True)
    for extra in (0.0, 1.0, 4.0)
)
REPORTS: dict[str, Any] = {
    "stall": StallReport(
        "emulated",
        "ring-12",
        "2026-11-21-0011",
        "gpu01:p1--gpu02:p1",
        ("ocs1",),
        STALLS[18:],
        notes=("drained: a note",),
    ),
    "stall_curves": StallReport("emulated", earlier=STALLS),
    "up": UpReport(
        "2026-11-21-0007",
        "topoopt-12",
        "emulated",
        phases=(
            PhaseTime("plan", 0.05, "24 circuits: 0 kept, 0 broken, 24 made"),
            PhaseTime("stage", 1.1, "132 routes on 12 hosts", 0.05),
            PhaseTime("verify", 0.4, "neighbours 48/48, pairs 132/132 at planned hop counts", 1.3),
        ),
        parts=(PartTime("device", "ocs1", "switch", 31.0, "", 1150.0),),
        diff=DIFF,
        writes=8,
        dark_ms_expected=50.0,
        dark_ms=52.4,
        link_ms=1.2,
        commit_ms=3.9,
        pairs_ok=132,
        pairs_total=132,
        job=JOB,
        ring_change=JobChange(7, "send", 40, 96.2, 60.1, 3.9, 32.2, 212.4, 171.6, 75.0, 640.0),
        journal="/var/lib/testbed/runs/2026-11-21-0007/telemetry",
        undo="testbed rollback",
    ),
    "rollback": UpReport(
        "2026-11-21-0009",
        "ring-12",
        "emulated",
        phases=(PhaseTime("plan", 0.05, "12 links: 20 cross-connects kept, 4 broken, 4 made"),),
        diff=DIFF,
        writes=8,
        pairs_ok=132,
        pairs_total=132,
        undo="testbed rollback",
        verb="rollback",
        of="2026-11-21-0007",
    ),
    "confirm": ConfirmReport("2026-11-21-0012", "2026-11-21-0007", "topoopt-12", "emulated", 12),
    "watch": WatchReport("2026-11-21-0007", "reverted", 1),
    "resume": UpReport(
        "2026-11-21-0010", "topoopt-12", "emulated", diff=DIFF, writes=4, undo="testbed rollback"
    ),
    "restore": UpReport(
        "2026-11-21-0011", "topoopt-12", "emulated", diff=DIFF, writes=48, verb="restore"
    ),
    "plan": PlanReport(
        "topoopt-12",
        "emulated",
        DIFF,
        (
            CircuitRow("gpu01:p1->gpu02:p1", ("ocs1:1->17",), 2.7, "made"),
            CircuitRow("gpu02:p1->gpu01:p1", ("ocs1:2->18",), 2.4, "kept"),
        ),
        24,
        12,
        132,
        50.0,
        ("ddp-mlp",),
        ("lane 3 of gpu07 has no second path: it will stall while dark",),
        "f00d",
    ),
    "down": DownReport(
        "2026-11-21-0008",
        "emulated",
        diff=DIFF,
        hosts_restored=12,
        hosts_total=12,
        job_stopped="ddp-mlp",
    ),
    "status": StatusReport(
        "emulated",
        "/srv/lab",
        "topoopt-12",
        "2026-11-21-0007",
        None,
        7,
        24,
        (
            DeviceStatus(
                "ocs1", "polatis-scpi", "tcp://127.0.0.1:1", True, "Polatis OST-16x16 SN1", 12
            ),
            DeviceStatus(
                "ocs3",
                "calient-tl1",
                "tcp://127.0.0.1:2",
                True,
                "Calient S160",
                12,
                ("1.1.8->1.2.8",),
                ("1.1.1->1.1.2",),
                holders={
                    "1.1.4->1.2.4": "AS=UMA,OS=RDY,OC=OK in group 'LABX'",
                    "1.1.6": "unknown, its row is not understood: 'x:SRCPORT=1.1.6'",
                },
            ),
        ),
        (
            HostStatus("gpu01", "127.0.0.1:22101", True, 7, 4, 4),
            HostStatus("gpu02", "127.0.0.1:22102", True, 7, 3, 4, site="east"),
        ),
        JOB,
        drift=("ocs3: 1.1.1->1.1.2 is missing",),
    ),
    "verify": VerifyReport(
        "emulated",
        "topoopt-12",
        (
            LevelResult("map", True, "48 cross-connects on 4 devices", 0.03),
            LevelResult("link", True, "48/48 ports with carrier", 0.001),
        ),
    ),
    "devices": DevicesReport(
        "emulated",
        (
            DeviceView(
                "wss1",
                "lumentum-netconf",
                "netconf://127.0.0.1:1",
                True,
                "Lumentum ROADM-20 SN1 1.0",
                ("4101", "4102", "5101"),
                ("4201", "5201", "5202"),
                4,
                ("routes by wavelength", "power meters"),
                5.0,
                metered=6,
                lit=4,
                min_dbm=-9.3,
                max_dbm=-0.6,
            ),
            DeviceView(
                "rome1",
                "rome-cli",
                "ssh://127.0.0.1:2",
                True,
                "Wave2Wave ROME 500 SN2 2.1",
                ("E1",),
                ("W1",),
                settle_s=1.0,
                time_scale=60.0,
            ),
        ),
    ),
    "devices_power": PowerReport(
        "emulated",
        (
            CircuitLight(
                "gpu01:p1->gpu02:p1",
                ("wss1:4101->4201", "wss1:5101->5202"),
                -0.6,
                -10.1,
                9.5,
                8.7,
                0.8,
                0.0,
                19.9,
                0.5,
            ),
            CircuitLight(
                "gpu02:p1->gpu01:p1",
                ("wss1:4102->4201", "wss1:5101->5201"),
                -0.6,
                -12.2,
                11.6,
                8.7,
                2.9,
                0.0,
                17.8,
                0.5,
            ),
            CircuitLight(
                "gpu03:p1->gpu04:p1",
                ("wss1:4103->4201", "wss1:5101->5204"),
                None,
                None,
                None,
                10.2,
                None,
                1.5,
                None,
                0.5,
                "no light arrives at wss1:4103: the transmitter of gpu03:p1, or fibre f-gpu03-p1",
            ),
            CircuitLight(
                "gpu04:p1->gpu03:p1", ("ocs1:4->19",), None, None, None, 1.5, None, 0.0, None, 0.0
            ),
        ),
        (
            LossChange(
                "gpu01:p1->gpu02:p1",
                "wss1:4101->4201",
                1.7e9,
                1.8e9,
                12,
                9.48,
                9.52,
                0.04,
                0.2,
                0.5,
                False,
                False,
                ((1.7e9, 9.48), (1.8e9, 9.52)),
            ),
            LossChange(
                "gpu02:p1->gpu01:p1",
                "wss1:4102->4201",
                1.7e9,
                1.8e9,
                12,
                9.50,
                9.90,
                0.40,
                0.2,
                0.5,
                True,
                False,
                ((1.7e9, 9.50), (1.8e9, 9.90)),
            ),
            LossChange(
                "gpu03:p1->gpu04:p1",
                "wss1:4103->4201",
                1.7e9,
                1.8e9,
                12,
                9.50,
                12.0,
                2.50,
                0.2,
                0.5,
                True,
                True,
                ((1.7e9, 9.50), (1.8e9, 12.0)),
            ),
        ),
    ),
    "job_launch": JOB,
    "job_status": JOB,
    "job_pause": JobStatus(
        "ddp-mlp",
        "paused",
        "train",
        "gloo",
        12,
        44,
        41.2,
        detail="until 14:03:20; to go on: testbed job resume",
    ),
    "job_resume": JOB,
    "job_stop": JobStatus("ddp-mlp", "stopped", "train", "gloo", 12, 44),
    "job_env": ByHand(
        "ddp-mlp",
        (
            RankEnvironment(0, "gpu01", {"RANK": "0", "MASTER_PORT": "29500"}),
            RankEnvironment(1, "gpu02", {"RANK": "1", "X": "a b"}),
        ),
        ("python", "train.py", "--name=it's"),
        rings=False,
    ),
    "job_logs": JobLogs(
        "ddp-mlp",
        {"rank 0 (gpu01)": ("iteration 1", "iteration 2"), "rank 1 (gpu02)": ("iteration 1",)},
    ),
}


@dataclass
class Printed:
    """What one command line printed and returned."""

    code: int
    out: str
    err: str
    argv: tuple[str, ...] = ()

    @property
    def json(self) -> dict[str, Any]:
        body = json.loads(self.out)
        assert (
            list(body) == ["api", "ok", "code", "message", "hint", "data"]
            and body["api"] == "testbed/v1"
        )
        fits(self.argv, body)
        return dict(body)


@dataclass
class Bench:
    """A command line with a fake engine: `answers` by function name, a report or an error; `calls`
    as they came.
    """

    capsys: pytest.CaptureFixture[str]
    home: Path
    answers: dict[str, Any] = field(default_factory=lambda: dict(REPORTS))
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def __call__(self, *argv: object) -> Printed:
        code = main.run([str(a) for a in argv])
        printed = self.capsys.readouterr()
        return Printed(code, printed.out, printed.err, tuple(str(a) for a in argv))

    def function(self, name: str) -> Callable[..., Any]:
        async def answer(command: Command, *arguments: Any, **options: Any) -> Any:
            self.calls.append((name, (command, *arguments), options))
            await asyncio.sleep(0)
            command.progress.done("plan", "computed", 0.05)
            answer = self.answers[name]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return answer


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TESTBED_INVENTORY", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    # A lab of hardware: no emulator.yml, so nothing is started.
    (tmp_path / "inventory" / "emulated").mkdir(parents=True)
    (tmp_path / "plan.json").write_text('{"name": "topoopt-12"}')
    bench = Bench(capsys, tmp_path)
    monkeypatch.setitem(
        sys.modules,
        "orchestrator.verbs.change",
        SimpleNamespace(**{n: bench.function(n) for n in REPORTS}),
    )  # type: ignore[arg-type]
    return bench


def check_golden(name: str, text: str) -> None:
    """Compare with golden/NAME; TESTBED_GOLDEN=write accepts what is printed now."""
    path = GOLDEN / name
    if os.environ.get("TESTBED_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"golden/{name} differs; TESTBED_GOLDEN=write accepts"
    )


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Compares what is printed in UTC; wherever this machine is."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield check_golden
    time.tzset()
