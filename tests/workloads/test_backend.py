"""The back-end for torch.distributed: programs of somebody's own between local processes, with the
test as every rank's agent.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.jobs import heartbeats
from orchestrator.hosts import facts
from tests.workloads.agents import Agents, agents
from tests.workloads.ranks import ROOT, Ranks, ranks, records
from tests.workloads.site import site

WORLD = 3
OLD, NEW = [[0, 1, 2], [2, 1, 0]], [[0, 2, 1]]
LOOP = str(ROOT / "tests" / "workloads" / "backend_loop.py")
COLLECTIVES = str(ROOT / "tests" / "workloads" / "backend_collectives.py")


@contextmanager
def program(directory: Path, *command: str, **env: str) -> Iterator[tuple[Ranks, Agents]]:
    found = site(directory / "site")
    with (
        agents(WORLD, directory) as (asked, own),
        ranks(
            WORLD,
            *command,
            directory=directory,
            rings=OLD,
            more=lambda rank: (
                own(rank) | {"PYTHONPATH": found, "TORCH_CPP_LOG_LEVEL": "ERROR"} | env
            ),
            inside=True,
        ) as running,
    ):
        yield running, asked


def ring_changes(directory: Path) -> list[dict[str, Any]]:
    path = directory / "0" / "ring_changes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stop(directory: Path, running: Ranks) -> None:
    """End the program; all ranks have the same weights."""
    (directory / "0" / "stop").touch()
    ended = running.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * WORLD
    assert len({out.splitlines()[-1] for _, out, _ in ended}) == 1


def test_a_program_lives_through_turns_and_a_hold(tmp_path: Path) -> None:
    with program(tmp_path, LOOP, "gloo", TESTBED_REPLACES="gloo") as (running, asked):
        assert {(each["state"], each["world"]) for each in asked.connect()} == {("idle", WORLD)}
        asked.ask("prepare", 1, lease_s=60, rings=NEW)
        assert {each["state"] for each in asked.until("prepared", "cannot", "void", move=1)} == {
            "prepared"
        }
        asked.ask("go", 1, decide=False)
        done = asked.until("changed", "void", move=1)
        assert {each["state"] for each in done} == {"changed"}, done
        assert len({each["after"] for each in done}) == 1
        asked.ask("prepare", 2, lease_s=60, rings=OLD)
        asked.until("prepared", move=2)
        asked[1].ask("hold", 2, lease_s=60)
        held = asked.until("held", move=2)
        give_up = time.monotonic() + 30  # the program computes on until it needs what is held
        while (
            phase := heartbeats.read(str(tmp_path / "0" / "heartbeat"), -1)["heartbeat"]["phase"]
        ) != "hold":
            assert time.monotonic() < give_up, phase
            time.sleep(0.02)
        assert len({each["iteration"] for each in held}) == 1
        asked.ask("go", 2, decide=True)
        done = asked.until("changed", "void", move=2)
        assert [(each["state"], each["after"]) for each in done] == [
            ("changed", held[0]["iteration"])
        ] * WORLD
        asked.ask("prepare", 3, lease_s=60, rings=NEW)
        asked.until("prepared", move=3)
        asked.ask("hold", 3, lease_s=60)
        asked.until("held", move=3)
        asked.ask("drop", 3)
        asked.until("void", move=3)
        stop(tmp_path, running)
    assert [
        (ring_change["move"], ring_change["rings"]) for ring_change in ring_changes(tmp_path)
    ] == [(1, NEW), (2, OLD)]


def run(
    directory: Path, *command: str, pythonpath: str = "", **env: str
) -> list[tuple[int, str, str]]:
    env |= {
        "PYTHONPATH": pythonpath or site(directory / "site"),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
    }
    with ranks(
        WORLD, *command, directory=directory, rings=OLD, more=lambda _: env, inside=True
    ) as running:
        return running.finish(100.0)


@pytest.mark.long
def test_every_collective_gives_what_it_must(tmp_path: Path) -> None:
    assert run(tmp_path, COLLECTIVES, "testbed", "collectives") == [(0, "", "")] * WORLD


def test_a_lost_rank_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, COLLECTIVES, "testbed", "lost")
    assert [code for code, _, _ in ended] == [0, 3, 0], ended
    for rank in (0, 2):
        assert (
            "all_reduce of 10 x float32: connection " in ended[rank][1] and "rank" in ended[rank][1]
        ), ended
    assert "rank 1" in ended[0][1] + ended[2][1]


@pytest.mark.long
def test_gradients_go_over_the_rings_under_another_process_group(tmp_path: Path) -> None:
    assert run(tmp_path, COLLECTIVES, "gloo", "hooked") == [(0, "", "")] * WORLD
    written = records(tmp_path)
    assert [(record["iter"], record["loss"]) for record in written] == [(1, 1.0), (2, 0.5)]
    assert all(
        isinstance(record["iter_ms"], float) and record["iter_ms"] >= 10 for record in written
    )
    assert not (tmp_path / "1" / "iterations.jsonl").exists()
    for rank in range(WORLD):
        heartbeat = heartbeats.read(str(tmp_path / str(rank) / "heartbeat"), -1)
        assert [row[0] for row in heartbeat["times"]] == [1, 2] and heartbeat["heartbeat"][
            "rank"
        ] == rank
        assert heartbeat["times"][0][4] > 0, "it waited for its gradients"


def test_the_host_gets_what_the_distribution_declares() -> None:
    project = tomllib.loads((ROOT / "backend" / "pyproject.toml").read_text())["project"]
    files = dict(facts.TORCH_BACKEND)
    ((name, entry),) = project["entry-points"]["torch.backends"].items()
    folder = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    assert files[f"{folder}/entry_points.txt"].decode() == f"[torch.backends]\n{name} = {entry}\n"
    assert (
        f"Name: {project['name']}\nVersion: {project['version']}\n"
        in files[f"{folder}/METADATA"].decode()
    )
    archive = tarfile.open(fileobj=io.BytesIO(base64.b64decode("".join(facts.provision_archive()))))  # noqa: SIM115
    link = archive.getmember(f"workloads/{facts.workload_digest()}/{facts.TORCH_PACKAGE}")
    assert link.issym() and link.linkname == "workloads"
    assert f"workloads/{facts.workload_digest()}/{folder}/entry_points.txt" in archive.getnames()


@pytest.mark.long
def test_the_wheel_alone_carries_a_training(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheels, alone = tmp_path / "wheels", tmp_path / "alone"
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(wheels),
        str(ROOT / "backend"),
    ]
    subprocess.run(build, check=True, timeout=100)
    (wheel,) = wheels.iterdir()
    subprocess.run(
        [*pip, "install", "--no-index", "--no-deps", "--target", str(alone), str(wheel)],
        check=True,
        timeout=100,
    )
    for rank in range(WORLD):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "stop").touch()
    ended = run(tmp_path, LOOP, "testbed", pythonpath=str(alone), TESTBED_RINGS="")
    assert [(code, err) for code, _, err in ended] == [(0, "")] * WORLD
    assert len({out for _, out, _ in ended}) == 1
