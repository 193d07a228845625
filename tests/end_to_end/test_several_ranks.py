"""Several ranks on a host: they train together, change their rings while they run and back, and
each is its own job on its host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from optics.plan import Job
from optics.ranks import host_of_rank, ranks_on
from orchestrator.hosts.launch import layout
from orchestrator.session import load_lab
from tests.drills.job_truth import Job as Truth
from tests.end_to_end.conftest import ROOT, Lab, ring
from tests.end_to_end.test_living_job import records
from tests.workloads.ranks import ranks as on_loopback

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(480),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

ARGS = {"hidden": 64, "batch": 4, "checkpoint_every": 20}
PAIR = ["gpu01", "gpu02"]


def job(
    hosts: Sequence[str], count: int, rings: Sequence[Sequence[str]], **args: object
) -> dict[str, Any]:
    ranks = [rank for host in hosts for rank in ranks_on(host, count)]
    return {
        "name": "many",
        "workload": "train",
        "ranks": ranks,
        "rings": list(rings),
        "args": {"iterations": 0, **ARGS, **args},
    }


def cables(*ports: int) -> list[tuple[str, str]]:
    return [(f"gpu01:p{port}", f"gpu02:p{port}") for port in ports]


class Many(Truth):
    """The records of rank 0, which is one of several on its host."""

    def folder(self, host: str = PAIR[0]) -> Path:
        jobs = Path(f"/proc/{self.host(host)}/root/var/lib/testbed/jobs")
        return max(jobs.glob("many.*.0"), key=lambda each: each.stat().st_ctime_ns)


def forth_and_back(lab: Lab, one: Path, two: Path, count: int) -> Many:
    """A turn to other rings and one back by rollback, the same processes; then the job is stopped,
    and all weights are the same.
    """
    started = lab.testbed("up", "--topology", one, within_s=300).must()["job"]
    assert (started["state"], started["ranks"]) == ("running", count)
    other = lab.testbed("up", "--topology", two, "--job", "live", within_s=300).must()
    assert (
        other["job"]["run"] == started["run"]
        and other["ring_change"]["after"] > 0
        and other["ring_change"]["note"] == ""
    )
    assert any(
        phase["detail"].startswith(f"{count} ranks connected their next rings")
        for phase in other["phases"]
    )
    back = lab.testbed("rollback", within_s=300).must()
    assert (
        back["job"]["run"] == started["run"]
        and back["ring_change"]["after"] > other["ring_change"]["after"]
    )
    truth = Many(lab, "many")
    assert truth.advances(2)
    stopped = lab.testbed("job", "stop").must()
    found = records(lab, started["run"])
    assert [r["iter"] for r in found] == list(range(1, len(found) + 1)), (
        "no iteration is lost or repeated"
    )
    assert not truth.gapless() and len(truth.lines("ring_changes.jsonl")) == 2
    reply = truth.summary()
    assert reply["weights_identical"] and (reply["world"], reply["iterations"]) == (
        count,
        stopped["iterations"],
    )
    return truth


@pytest.mark.long
def test_two_hosts_of_two_ranks_train(lab: Lab) -> None:
    started = lab.up(lab.plan("pair", cables(1, 2), job=job(PAIR, 2, [PAIR, PAIR[::-1]]))).must()[
        "job"
    ]
    assert (started["state"], started["ranks"]) == ("running", 4)
    logs = lab.testbed("job", "logs", "--rank", "3").must()
    (name,) = logs["lines"]
    assert name == "rank 3 (gpu02/1)" and "4 ranks met" in logs["lines"][name][0]
    assert lab.testbed("job", "stop").must()["state"] == "stopped"
    assert Many(lab, "many").summary()["weights_identical"]


@pytest.mark.long
def test_two_hosts_of_four_ranks_live_through_a_change_and_the_weights_are_those_of_a_replay(
    lab: Lab, tmp_path: Path
) -> None:
    rings = [PAIR, PAIR[::-1]] * 2
    one = lab.plan("one", cables(1, 2), job=job(PAIR, 4, rings[:2]))
    two = lab.plan("two", cables(1, 2, 3, 4), job=job(PAIR, 4, rings))
    truth = forth_and_back(lab, one, two, 8)
    reply = truth.summary()
    first = Job(
        "many", "train", tuple(job(PAIR, 4, rings)["ranks"]), (tuple(PAIR), tuple(PAIR[::-1]))
    )
    ring_changes = json.dumps(
        [{k: t[k] for k in ("after", "rings")} for t in truth.lines("ring_changes.jsonl")]
    )
    argv = [
        word for key, value in ARGS.items() for word in (f"--{key.replace('_', '-')}", str(value))
    ]
    command = ("-m", "workloads.programs.train", *argv, "--iterations", str(reply["iterations"]))
    order = layout(first, load_lab(lab.inventory))["rings"]
    with on_loopback(
        8,
        *command,
        directory=tmp_path,
        rings=order,
        more=lambda _: {"TESTBED_RING_CHANGES": ring_changes},
    ) as local:
        ended = local.finish(200)
    assert [code for code, _, _ in ended] == [0] * 8, ended
    assert (
        json.loads((tmp_path / "0" / "summary.json").read_text())["weights_sha256"]
        == reply["weights_sha256"]
    )


@pytest.mark.long
def test_a_job_of_several_ranks_pauses_is_verified_and_names_the_rank_that_died(lab: Lab) -> None:
    plan = lab.plan("pair", cables(1, 2), job=job(PAIR, 2, [PAIR, PAIR[::-1]]))
    started = lab.up(plan).must()["job"]
    paused = lab.testbed("job", "pause", "--for", "5m").must()
    assert paused["state"] == "paused"
    assert lab.testbed("job", "resume").must()["state"] == "running"
    lab.testbed("job", "stop").must()
    # on a busy machine an all-reduce may be too slow
    ran = lab.testbed("verify", "--collective").envelope["data"]
    levels = {level["name"]: level for level in ran["levels"]}
    figures = levels["collective"]["collective"]
    assert (figures["ranks"], figures["rings"]) == (4, 2) and figures["busbw_mbps"] > 0
    again = lab.up(plan).must()["job"]
    assert again["run"] != started["run"] and again["resumed_from"] > 0
    victims = Many(lab, "many").ranks("gpu02")
    assert len(victims) == 2
    os.kill(victims[-1], 9)
    until = time.monotonic() + 90
    while (status := lab.testbed("job", "status").envelope["data"])[
        "state"
    ] == "running" and time.monotonic() < until:
        time.sleep(0.5)
    assert status["state"] == "failed" and "gpu02/" in status["detail"]


@pytest.fixture
def twelve(tmp_path: Path) -> Iterator[Lab]:
    """A lab of twelve hosts."""
    lab = Lab(tmp_path)
    generate = [
        sys.executable,
        "-m",
        "emulators.generate",
        "--hosts",
        "12",
        "--ports",
        "4",
        "--free-ports",
    ]
    subprocess.run(
        [*generate, "--out", lab.inventory, "--state", lab.folder / "lab"],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    lab.testbed("lab", "start").must()
    yield lab
    lab.testbed("lab", "stop")


@pytest.mark.long
def test_twelve_hosts_of_two_ranks_live_through_a_change(twelve: Lab) -> None:
    hosts = [f"gpu{n:02d}" for n in range(1, 13)]
    fifth = [hosts[5 * k % 12] for k in range(12)]
    one = twelve.plan("one", ring((1, 2), hosts=12), job=job(hosts, 2, [hosts, hosts[::-1]]))
    links = ring((1, 2), hosts=12) + ring((3, 4), stride=5, hosts=12)
    two = twelve.plan("two", links, job=job(hosts, 2, [hosts, hosts[::-1], fifth, fifth[::-1]]))
    truth = forth_and_back(twelve, one, two, 24)
    used = truth.lines("ring_changes.jsonl")[0]["rings"]
    host = [host_of_rank(rank) for rank in job(hosts, 2, [])["ranks"]]
    assert len(used) == 4 and all(sorted(order) == list(range(24)) for order in used)
    for order, ring_of_hosts in zip(used, (hosts, hosts[::-1], fifth, fifth[::-1]), strict=True):
        assert list(dict.fromkeys(host[rank] for rank in order)) == ring_of_hosts
