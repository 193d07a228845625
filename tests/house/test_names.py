"""Names that cross a language: what playbooks read is given, what the engine records is declared,
and the reverse.
"""

from __future__ import annotations

import ast
import base64
import re
import struct
import zlib
from collections import defaultdict
from pathlib import Path

import yaml

from agent.daemon import OPERATIONS
from extensions.adapt.plan import Region
from extensions.adapt.record import Look, record_look
from extensions.adapt.region import Proposal
from extensions.adapt.region_change import RegionChanged
from optics import Outcome
from orchestrator.change.port_counters import Counters, record_clocks
from orchestrator.change.stall import record_stall
from orchestrator.change.timeline import Timeline, record_levels, record_timeline
from orchestrator.fabric.circuits import settings
from orchestrator.hosts import ClockReading, Committed, HostEvent
from orchestrator.hosts.facts import PLAYBOOKS
from orchestrator.jobs.attachments import attachments
from orchestrator.jobs.keeper import CheckpointKeeper
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.services.schedule.points import record_host, record_slot_change
from orchestrator.store.light import light_history
from orchestrator.store.records import StallPoint
from orchestrator.store.store import Store
from orchestrator.telemetry import MEASUREMENTS, Journal, Silent, read_points
from orchestrator.telemetry.recorder import Recorder
from orchestrator.telemetry.reference import rewrite_tables
from orchestrator.verify.power import MeterPoint, Reading, keep
from orchestrator.verify.report import LevelResult, PairSample
from tests.house.repository import ROOT, nodes
from tests.kit.labs import lab_of

HOSTS = sorted((ROOT / "orchestrator" / "hosts").glob("*.py"))
PLAYED = sorted(path for path in PLAYBOOKS.glob("*.yml") if path.name != "provision.yml")
"""The program's own plays; provision.yml is for whoever calls Ansible
(tests/hosts/test_role.py).
"""
VARIABLE = re.compile(r"\btestbed_[a-z_]+")

# --- playbooks


def given() -> dict[str, set[str]]:
    """The variables each playbook gets, from the calls of `Plays.play` in the program."""
    found: dict[str, set[str]] = {}
    for node in (node for path in HOSTS for node in nodes(path)):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="play"),
                args=[ast.Constant(value=str(name)), _, ast.Dict(keys=keys)],
            ):
                found.setdefault(name, set()).update(
                    key.value for key in keys if isinstance(key, ast.Constant)
                )  # type: ignore[misc]
    return found


def test_every_variable_a_playbook_reads_is_given_and_every_one_given_is_read() -> None:
    wanted = {
        path.name: set(VARIABLE.findall(str(yaml.safe_load(path.read_text())))) for path in PLAYED
    }
    assert wanted == given()


def test_every_playbook_explains_its_variables_at_its_head() -> None:
    for path in PLAYED:
        head = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert {m[0] for line in head if (m := VARIABLE.findall(line[:40]))} == given()[
            path.name
        ], path.name


def test_no_playbook_thinks() -> None:
    assert [path.name for path in PLAYED] == [
        "collect.yml",
        "install.yml",
        "launch.yml",
        "stage_rules.yml",
        "stop_job.yml",
    ]
    for path in PLAYED:
        (play,) = yaml.safe_load(path.read_text())
        assert play["gather_facts"] is False and play["hosts"] == "all", path.name
        for task in play["tasks"]:
            modules = set(task) - {"name", "register", "changed_when", "loop", "loop_control"}
            assert modules == {"ansible.builtin.raw"}, f"{path.name}: {task['name']}: {modules}"


def test_the_answers_the_program_reads_are_those_of_tasks_there_are() -> None:
    read_ = {
        task
        for path in HOSTS
        for task in re.findall(r'play\.reported\[.+?\]\["([a-z ]+)"\]', path.read_text())
    }
    tasks = {
        task["name"] for path in PLAYED for task in yaml.safe_load(path.read_text())[0]["tasks"]
    }
    assert read_ and read_ <= tasks


# --- what a host is asked


def test_every_request_sent_to_an_agent_is_one_it_knows() -> None:
    sent: set[str] = set()
    for path in HOSTS:
        for node in nodes(path):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="ask" | "send" | "notify"),
                    args=[ast.Constant(value=str(op)), *_],
                ):
                    sent.add(op)
                case ast.Call(
                    func=ast.Attribute(attr="ask" | "ask_all" | "failures"),
                    args=[_, ast.Constant(value=str(op)), *_],
                ):
                    sent.add(op)
                case ast.Call(
                    func=ast.Attribute(attr="ask_ranks"),
                    args=[_, _, ast.Constant(value=str(op)), *_],
                ):
                    sent.add(op)
                case ast.Dict(
                    keys=[ast.Constant(value="op"), *_], values=[ast.Constant(value=str(op)), *_]
                ):
                    sent.add(op)
    assert {"hello", "arm", "commit", "probe", "job.start"} <= sent
    assert sent <= set(OPERATIONS), sorted(sent - set(OPERATIONS))


# --- telemetry

# Names that no run in an emulated lab can record; everything else one does
# (tests/end_to_end/test_telemetry.py).
ELSEWHERE = {
    "gpu": "emulated hosts have no GPUs; tests/agent/measure/test_gpus.py reads them where there are some"
}
BY_JOBS = {
    "iteration",
    "rank",
    "collective",
    "ring_change",
    "ring_change_rank",
    "shadow",
    "storage",
    "function",
    "requests",
    "serving",
}


class Ticking:
    """A clock that is set."""

    at = 10**12

    def monotonic_ns(self) -> int:
        return self.at

    def time_ns(self) -> int:
        return self.at


def batch(host: str, ports: list[int], times: list[int]) -> HostEvent:
    """A batch of samples as an agent sends it."""
    rows = b"".join(
        struct.pack(f"=qQ{8 * len(ports)}Q", at, 3, *[at // 1000] * (8 * len(ports)))
        for at in times
    )
    packed = base64.b64encode(zlib.compress(rows)).decode()
    return HostEvent(
        host,
        "counters",
        times[-1],
        {"t_ns": times[-1], "numbers": ports, "rows": packed, "missed": 0},
    )


def test_what_the_engine_records_is_declared_and_what_is_declared_is_recorded(
    tmp_path: Path,
) -> None:
    lab = lab_of("emulated")
    ring, torus = (
        read_plan((ROOT / "examples" / f"{n}.json").read_text(), n, lab)
        for n in ("topoopt-12", "parallel-ring-12")
    )
    held = target(ring, lab, dict.fromkeys(lab.devices, frozenset()), ())
    goal = target(
        torus, lab, held.wanted, [s for settings_ in held.wanted.values() for s in settings_]
    )
    with Journal(tmp_path, "2026-11-21-0001", lab.name, clock=Ticking()) as journal:
        recorder = Recorder(Silent(), journal)
        recorder.reconfig_id = "2026-11-21-0001/1"
        with recorder.phase("switch", "all"):
            at = journal.now_ns()
        outcomes = {
            d: Outcome(d, goal.wanted[d], at, at + 1, at + 2, at + 3, 2)
            for d in goal.change.changes
        }
        committed = {h: Committed(h, 2, 1, at + 6, at + 5) for h in goal.rising()}
        crossed = dict.fromkeys(committed, at + 7)
        times = Timeline(
            outcomes, committed, at + 9, dict.fromkeys(outcomes, at + 4), crossed, at + 12, 1500, 17
        )
        figures = record_timeline(recorder, lab, goal, torus, times)
        assert None not in (figures.dark_ms, figures.link_ms, figures.commit_ms)
        record_levels(
            recorder,
            [
                LevelResult(
                    "link", True, "48/48 ports up", 0.001, pairs=PairSample(4, 132, "ab12cd34-7")
                )
            ],
        )
        counters = Counters(journal, goal.circuits)
        for n in range(2):
            for host in lab.hosts:
                ports = sorted(port.number for port in lab.fibres if port.host == host)
                counters.add(batch(host, ports, [at + (2 * n + k) * 10**9 for k in range(2)]))
            journal.clock.at += 2 * 10**9  # type: ignore[attr-defined]
        record_clocks(journal, {"gpu01": ClockReading(5, 9)})
        record_stall(
            journal,
            StallPoint(0.0, "r", "gpu01:p1--gpu02:p1", "ocs1", "held", 0.0, 55.5, 56.5, 0.25),
            at,
        )
        region = Region("r", ("gpu01", "gpu02"), (), "")
        look = Look(7, {("gpu01", "gpu02"): 5.0}, Proposal(region, 0.2, 0.1, ()))
        record_look(
            journal,
            "plan",
            "changed",
            "",
            look,
            RegionChanged(at, at + 9, 65.0, 55.0, 4),
            {"planned_ms": 5.0, "exposed_ms": 0.0},
        )
        record_slot_change(journal, "round", 1, 2, outcomes, 1, 2, 0.9)
        seen_by_host = {"slot": 1, "error_ns": 5, "dark_ns": 6, "lit_ns": 7}
        record_host(journal, "round", HostEvent("gpu01", "slot", at, seen_by_host))
        path = goal.circuits[0]
        ends = (("in", path.path[0].ingress, 0.0), ("out", path.path[0].egress, -1.5))
        reading = Reading(
            path, path.path, tuple(MeterPoint(*end, alone=True) for end in ends), 1.5, 1.0
        )
        with Store(tmp_path / "store.sqlite3", durable=False) as store:
            keep([reading], store, "lab", "2026-11-21-0001", journal)
            assert [p.loss_db for p in light_history(store, "lab")] == [1.5]
    trouble: list[str] = []
    seen: dict[str, set[str]] = defaultdict(set)
    for point in read_points(tmp_path, trouble=trouble):
        assert set(point.tags) == set(MEASUREMENTS[point.measurement].tags)
        assert set(point.fields) <= set(MEASUREMENTS[point.measurement].fields)
        seen[point.measurement] |= set(point.fields)
    assert not trouble and settings(goal.circuits) == goal.wanted
    for name, known in MEASUREMENTS.items():
        if name in ELSEWHERE or name in BY_JOBS:
            assert name not in seen
        else:
            assert seen[name] == set(known.fields), name


def test_every_measurement_the_source_names_is_declared_and_every_one_declared_is_written_somewhere() -> (
    None
):
    named: set[str] = set()
    fields: dict[str, set[str]] = defaultdict(set)
    for path in (*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "extensions").rglob("*.py")):
        for node in nodes(path):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="samples"), args=[ast.Constant(value=str(name)), *_]
                ):
                    named.add(name)
                case ast.Call(
                    func=ast.Attribute(attr="point"), args=[ast.Constant(value=str(name)), *rest]
                ):
                    named.add(name)
                    for part in rest[1:2]:
                        if isinstance(part, ast.Dict):
                            fields[name] |= {
                                k.value for k in part.keys if isinstance(k, ast.Constant)
                            }  # type: ignore[misc]
    for kind in attachments():
        if isinstance(kind, CheckpointKeeper):  # orchestrator/jobs/keeper.py names it by this key
            named.add(kind.key)
            fields[kind.key] |= {*kind.fields}
    assert named <= set(MEASUREMENTS)
    assert all(written <= set(MEASUREMENTS[name].fields) for name, written in fields.items())
    assert set(MEASUREMENTS) == named


def test_the_telemetry_page_has_the_tables_of_the_declared_names() -> None:
    page = (ROOT / "docs" / "reference" / "telemetry.md").read_text()
    assert page == rewrite_tables(page), (
        "run: python -m orchestrator.telemetry.reference docs/reference/telemetry.md"
    )
    assert all(f"### {name}\n" in page for name in MEASUREMENTS)
