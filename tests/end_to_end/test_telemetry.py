"""What real runs leave behind: every name that is declared, and in a private InfluxDB every point
of the journals.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from orchestrator.telemetry import MEASUREMENTS, Point, influxd, read_points
from orchestrator.telemetry.influx import Influx
from orchestrator.telemetry.influx_api import InfluxTarget
from tests.end_to_end.conftest import Lab, ring
from tests.house.test_names import ELSEWHERE
from tests.telemetry.servers import needed

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

RANKS = ["gpu01", "gpu02"]
JOB = {
    "name": "small",
    "workload": "train",
    "ranks": RANKS,
    "rings": [RANKS],
    "args": {"iterations": 0, "hidden": 64},
}


def written(reports: list[dict[str, object]]) -> list[Point]:
    """Every point of these runs."""
    return [
        point for report in reports for point in read_points(Path(str(report["journal"])).parent)
    ]


@pytest.mark.long
def test_a_move_under_a_job_records_every_name_and_a_private_influxd_gets_every_point(
    lab: Lab,
) -> None:
    needed("influxd", "influxdb")
    env = {"TESTBED_INFLUX_URL": "auto", "TESTBED_SAMPLE_HZ": "100"}
    changed = {**JOB, "rings": [RANKS, RANKS[::-1]]}  # the job goes on, over two rings
    plans = [
        lab.plan("ring", ring((1, 2)), job=JOB),
        lab.plan("moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")], job=changed),
    ]
    try:
        reports = [lab.up(plan, **env).must() for plan in plans]
        looked = lab.testbed("telemetry", "sample", "--hz", "200", "--for", "1200ms").must()
        lab.testbed("job", "stop").must()
        points = written(reports)
        found: dict[str, set[str]] = defaultdict(set)
        for point in points:
            found[point.measurement] |= set(point.fields)
        assert found == {
            name: set(known.fields)
            - {"resent_bytes", "lost_share", "loss_bound"}  # of datagrams
            - {"wide_bytes"}  # of sites
            for name, known in MEASUREMENTS.items()
            if name
            not in {
                *ELSEWHERE,
                "stall",
                "slot",
                "slot_host",
                "adapt",
                "shadow",
                "storage",
                "function",
                "requests",
                "serving",
            }
        }  # test_stall.py, test_schedule.py, test_shadow.py, test_storage.py, test_functions.py

        phases = {phase["name"]: phase for phase in reports[1]["phases"]}
        assert {"drain", "switch", "link", "resume"} <= phases.keys()
        (moved,) = [
            p for p in points if p.measurement == "reconfig" and p.tags["run"] == reports[1]["run"]
        ]
        assert (
            moved.fields["resume_ns"] > 0
            and moved.fields["lost_bytes"] >= 0
            and moved.fields["first_packet_ns"] > 0
        )
        dark = range(moved.time_ns, moved.time_ns + int(moved.fields["total_ns"]))
        samples = Counter(
            p.tags["host"] for p in points if p.measurement == "port" and p.time_ns in dark
        )
        assert set(samples) == {f"gpu{n:02d}" for n in range(1, 7)}, (
            "the dark interval is sampled, too"
        )
        over = moved.time_ns + int(moved.fields["total_ns"])
        later = [
            p.tags["host"]
            for p in points
            if p.measurement == "port" and p.tags["run"] == moved.tags["run"] and p.time_ns > over
        ]
        assert {host for host, count in Counter(later).items() if count > 8} >= set(RANKS), (
            "and so is the job's going on"
        )

        assert (looked["hosts"], looked["ports"], looked["notes"]) == (6, 24, [])
        assert looked["samples"] + 24 * looked["missed"] >= 24 * 200 and looked["light"] > 0
        closely = Counter(p.measurement for p in written([looked]))
        assert (
            closely["port"] == looked["samples"]
            and closely["clock"] >= 6
            and closely["circuit"] >= 12
        )
        listed = {run["id"]: run["status"] for run in lab.testbed("run", "list").must()["runs"]}
        assert (
            listed[looked["run"]] == "ok"
            and lab.testbed("telemetry", "sample", "--hz", "5000").exit_code == 2
        )

        server = influxd.running_influxd(lab.folder / "state" / "influx")
        assert server is not None, "nobody started the private influxd"
        influx, give_up = Influx(InfluxTarget(server.url, "testbed")), time.monotonic() + 20
        wanted = Counter(p.measurement for p in points if "value" in p.fields or "oper" in p.fields)
        while True:
            arrived = {
                name: int(series[0]["values"][0][1])
                for name, field in (("reconfig", "value"), ("port", "oper"))
                for runs in ["|".join(str(report["run"]) for report in reports)]
                if (
                    series := influx.query(
                        f'SELECT COUNT("{field}") FROM "{name}" WHERE "run" =~ /^({runs})$/'
                    )
                )
            }
            if arrived == wanted:
                break
            assert time.monotonic() < give_up, f"{arrived} of {wanted} arrived"
            time.sleep(0.1)
    finally:
        lab.testbed("service", "stop", "sink", **env)
