"""Targets: files that users and their programs write."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent.jobs import demand, heartbeats
from conformance.transcript import transcript_of
from optics import BadFile, Garbled, Infeasible
from optics.plan import Job
from orchestrator.change.standstill import standstill
from orchestrator.experiments.files.scenario.reader import read_scenario
from orchestrator.inventory.cabling import cabling_of
from orchestrator.inventory.from_netbox import file_text, taken_over
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.losses import losses_text, read_factory, read_losses
from orchestrator.inventory.netbox import Answers, read_rows
from orchestrator.inventory.positions import Problems
from orchestrator.inventory.programs import read_programs
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.jobs.iterations import ends_of, iteration_point, median_ms, saves, sent
from orchestrator.jobs.rank_records import sound
from orchestrator.plan.interchange.containerlab import read_containerlab
from orchestrator.plan.interchange.graph import Graph
from orchestrator.plan.interchange.graphml import read_graphml
from orchestrator.plan.interchange.importing import imported
from orchestrator.plan.reader import read_plan
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.lineprotocol import parse
from orchestrator.verify.rdma import read_tables, tables_probe
from planner.formats.importers import chakra
from tests.fuzz.targets import pieces, target
from tests.netbox.served import LISTS
from tests.properties.labs import lab


@target("transcript")
def transcript(data: bytes) -> None:
    with suppress(BadFile, UnicodeDecodeError):
        found = transcript_of(data.decode(), Path("x.txt"))
        assert found.source and found.exchanges and found.kind


@target("inventory")
def inventory(data: bytes) -> None:
    hosts, devices, fibres = [
        *(part.decode("utf-8", "replace") for part in pieces(data)),
        "",
        "",
        "",
    ][:3]
    with suppress(BadFile):
        read_lab(hosts, devices, fibres)


@target("netbox")
def netbox(data: bytes) -> None:
    """The five lists of NetBox, by name, in one JSON object."""
    try:
        lists = json.loads(data)
    except (ValueError, RecursionError):
        return
    rows = [lists.get(name) for name in LISTS] if isinstance(lists, dict) else []
    if len([each for each in rows if isinstance(each, list)]) < len(LISTS):
        return
    with suppress(BadFile):
        found = taken_over(cabling_of(read_rows(Answers(*rows), "netbox")), "lab")
        read_lab(*(file_text(name, value) for name, value in found.files.items()))


@target("rdma-tables")
def rdma_tables(data: bytes) -> None:
    with suppress(Garbled):
        found = read_tables(data.decode("utf-8", "replace"))
        tables_probe(lab(1, 1, forwarding="npar-rdma").hosts["gpu01"], found, {})


@target("factory-losses")
def factory_losses(data: bytes) -> None:
    with suppress(BadFile):
        found = read_factory(data.decode("utf-8", "replace"), "x")
        text = losses_text({("ocs1", *path): db for path, db in found.items()})
        assert len(read_losses(text, "y", ("ocs1",))) == len(found) > 0


@target("programs")
def programs(data: bytes) -> None:
    with suppress(BadFile):
        document = read_yaml(data.decode("utf-8", "replace"), "programs.yml")
        problems = Problems(document)
        found = read_programs(document, problems)
        assert problems or all(program.version for program in found.values())


@target("scenario")
def scenario(data: bytes) -> None:
    text, plan = [*(part.decode("utf-8", "replace") for part in pieces(data)), "", ""][:2]
    with suppress(BadFile):
        found = read_scenario(text, "scenario.yaml", lambda _: plan)
        assert found.arms and all(compared.of in found.arms for compared in found.compared)


@cache
def _journal() -> tuple[Journal, TemporaryDirectory[str]]:
    folder = TemporaryDirectory(prefix="testbed-fuzz-")
    return Journal(Path(folder.name), "r1", "lab", compress=False), folder


WANTED = Job("j", "train", ("gpu01", "gpu02"), args={"sync_every": 8})
RECORD = JobRecord(1, "lab", "r1", "j", JobSpec(WANTED, "j.1", "gloo"), "running", 0.0, None, "")


@target("iterations")
def iterations(data: bytes) -> None:
    """What is taken of it fits the journal, and what is in the journal can be read."""
    journal = _journal()[0]
    before = journal.path.stat().st_size
    found = sound(data.splitlines())
    for record in found:
        assert (
            all(isinstance(record[name], int) for name in ("iter", "t_wall_ns"))
            and record["iter_ms"] >= 0
        )
        iteration_point(journal, RECORD, record, 0)
    journal.flush()
    with journal.path.open("rb") as file:
        file.seek(before)
        points = [parse(line.decode().rstrip("\n")) for line in file]
    assert len([p for p in points if p.measurement == "iteration"]) == len(found)
    assert all(0 <= p.time_ns < 1 << 63 for p in points)
    standstill(found, ends_of(found, 0), 0, 1)
    sent(WANTED, found), saves(found), median_ms(found)
    assert bool(found.bad) == bool(found.why)


@target("heartbeat")
def heartbeat(data: bytes) -> None:
    with suppress(ValueError):
        found = heartbeats.parsed(
            data.ljust(heartbeats.SIZE, b"\0")[: heartbeats.SIZE], -1, 1 << 60
        )
        numbers = [row[0] for row in found["times"]]
        assert numbers == sorted(set(numbers)) and all(
            0 <= number <= 1 << 62 for row in found["times"] for number in row
        )
        assert len(json.dumps(found)) < 64 << 10 and found["heartbeat"]["age_s"] >= 0


@target("demand")
def demanded(data: bytes) -> None:
    with suppress(ValueError):
        found = demand.parsed(data.ljust(demand.SIZE, b"\0")[: demand.SIZE], -1, 1 << 60)
        numbers = [row[0] for row in found["rows"]]
        assert numbers == sorted(set(numbers)) and all(
            0 < row[1] <= row[2] for row in found["rows"]
        )
        assert all(len(row[4]) == found["world"] for row in found["rows"])


@target("chakra")
def traces(data: bytes) -> None:
    ranks = list(pieces(data))
    with suppress(Infeasible):
        found = chakra.demand(ranks)
        assert found.n == len(ranks) and found.compute_s < 86_401


@cache
def _lab() -> Lab:
    return lab(12, 4)


@target("plan")
def plan(data: bytes) -> None:
    with suppress(BadFile):
        found: Any = read_plan(data.decode("utf-8", "replace"), "plan.json", _lab())
        assert found.name


def _imported(graph: Graph) -> None:
    with suppress(Infeasible):
        found = imported(graph, _lab(), "p")
        assert read_plan(found.text, "p", _lab()).links or found.plan.get("segments")


@target("graphml")
def graphml(data: bytes) -> None:
    with suppress(BadFile):
        _imported(read_graphml(data, "x.graphml"))


@target("containerlab")
def containerlab(data: bytes) -> None:
    with suppress(BadFile):
        _imported(read_containerlab(data.decode("utf-8", "replace"), "x.clab.yml"))
