"""From a workload and a lab to a plan: what it says, what it promises, what is refused, and that it
is the same every time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optics import BadFile, Infeasible, LinkKind
from optics.plan import Plan
from orchestrator.cli.design import exported as export
from orchestrator.cli.design import watched
from orchestrator.cli.designtext import text
from orchestrator.cli.explaining import routing
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import Design, Read, design
from orchestrator.plan.design.document import document
from orchestrator.plan.design.export import KINDS, after, before
from orchestrator.plan.design.replan import demand_of, reckon, repair_options, shape_of
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from orchestrator.verbs.design_files import read_workload, workload_of
from planner.topology.methods import METHODS, Wanted
from tests.kit.command_line import typed
from tests.planner.formats.test_exporters import reduced

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "examples" / "workloads"


def workload(name: str) -> Read:
    return read_workload(WORKLOADS / f"{name}.yaml")


def planned(found: Design, lab: Lab) -> Plan:
    return read_plan(json.dumps(document(found)), "plan.json", lab)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_plan_that_the_lab_takes(method: str, lab: Lab) -> None:
    found = design(workload("dlrm"), lab, Wanted(method))
    plan = planned(found, lab)
    assert len(assign_ports(plan.links, lab)) == len(plan.links) == len(found.shape.cables)
    assert not plan.warnings, "every ring has links of its own"
    assert plan.job is not None and plan.job.predicted["iteration_ms"] == pytest.approx(
        found.here.iteration_s * 1e3, abs=1e-3
    )
    assert found.here.iteration_s == pytest.approx(
        found.own.iteration_s * found.time_scale, rel=0.01
    )


def test_a_twisted_torus_is_a_plan_with_fewer_hops_and_a_shorter_all_to_all(lab: Lab) -> None:
    everybody = {
        "schema": "testbed.workload/1",
        "name": "a2a",
        "ranks": 12,
        "transfers": [{"among": "all", "bytes": 10**6}],
    }
    plain, twisted = (
        design(workload_of(everybody), lab, Wanted("torus", twisted=one)) for one in (False, True)
    )
    plan = planned(twisted, lab)
    assert len(assign_ports(plan.links, lab)) == 24 and plan.name == "a2a-twisted-torus"
    assert twisted.own.transfers_s == pytest.approx(plain.own.transfers_s * 5 / 6)
    assert twisted.found.why[1] == "a pair is 1.636 hops apart, 1.818 without the twist"


def test_the_testbed_s_dlrm_gets_the_testbed_s_strides_and_the_worked_time(lab: Lab) -> None:
    found = design(workload("dlrm"), lab, Wanted("topoopt"))
    assert [ring.stride for ring in found.shape.rings] == [1, 5]
    rate = 4 * 25e9 / 8 * 8948 / 9014
    assert found.own.allreduce_s == pytest.approx(2 * 11 / 12 * 4 * 129_104_897 / rate, rel=1e-6)


@pytest.mark.parametrize("domain", [2, 3, 4, 6])
def test_sums_of_all_ranks_go_round_all_links_of_domains_and_rails(domain: int, lab: Lab) -> None:
    found = design(workload("dlrm"), lab, Wanted("rail-only", domain=domain))
    assert len(found.orders["data"]) == 4 and not planned(found, lab).warnings, (
        "two rings, both ways round, on links of their own"
    )
    assert found.own.allreduce_s == pytest.approx(
        design(workload("dlrm"), lab, Wanted("topoopt")).own.allreduce_s
    )
    [(name, slower)] = found.others
    assert name == f"rail-only, domains of {domain}" and slower > 3 * found.own.iteration_s, (
        "one ring through both takes so long"
    )
    for a, b in found.shape.cables.tolist():
        assert a // domain == b // domain or a % domain == b % domain, (
            "still nothing else joins hosts"
        )


def test_four_rings_are_promised_only_to_a_back_end_that_runs_them(lab: Lab) -> None:
    groups = design(workload("vgg16"), lab, Wanted("topoopt"))
    single = design(workload("vgg16"), lab, Wanted("topoopt", backend="single-order"))
    assert len(groups.orders["data"]) == 4 and len(set(single.orders["data"])) == 1
    assert single.own.allreduce_s == pytest.approx(2 * groups.own.allreduce_s), (
        "links carry both ways, one order only one"
    )
    assert len(single.orders["data"]) == 2 and single.shape.adjacency.max() == 2, (
        "parallel links, which one order can fill"
    )


def test_one_order_fills_all_ports_where_links_carry_one_way(lab: Lab) -> None:
    found = design(workload("vgg16"), lab, Wanted("ring", backend="single-order", simplex=True))
    assert (
        len(found.orders["data"]) == 4
        and found.shape.adjacency[0, 1] == 4
        and found.shape.adjacency[1, 0] == 0
    )
    assert found.own.allreduce_s == pytest.approx(
        design(workload("vgg16"), lab, Wanted("topoopt")).own.allreduce_s
    )
    assert all(link.kind is LinkKind.SIMPLEX for link in planned(found, lab).links)


def test_a_back_end_of_schedules_takes_few_steps_where_steps_count(lab: Lab) -> None:
    given = workload("vgg16")
    rings = design(given, lab, Wanted("direct", alpha_s=1e-3))
    steps = design(given, lab, Wanted("direct", backend="msccl", alpha_s=1e-3))
    assert steps.schedules and not rings.schedules and not planned(steps, lab).warnings
    assert steps.own.allreduce_s == pytest.approx(
        rings.own.allreduce_s - (22 - 4) * 1e-3, rel=1e-3
    ), "4 steps, not 22"
    assert design(given, lab, Wanted("topoopt", backend="msccl")).schedules == {}, (
        "rings are as fast where steps cost nothing"
    )


def test_two_designs_of_one_seed_are_the_same_byte_for_byte(lab: Lab) -> None:
    for method in ("topoopt", "random", "exact"):
        one, other = (
            json.dumps(document(design(workload("moe"), lab, Wanted(method, seed=7))))
            for _ in range(2)
        )
        assert one == other
    seeds = [
        json.dumps(document(design(workload("moe"), lab, Wanted("random", seed=k)))["links"])
        for k in (1, 2)
    ]
    assert seeds[0] != seeds[1]


def test_transfers_arrive_whole_however_they_are_spread(lab: Lab) -> None:
    found = design(workload("dlrm"), lab, Wanted("exact"))
    sums: dict[tuple[int, int], int] = {}
    for t in found.transfers:
        sums[t.src, t.dst] = sums.get((t.src, t.dst), 0) + t.bytes
    assert all(
        size == pytest.approx(found.read.demand.mp[pair] * found.scale, abs=4)
        for pair, size in sums.items()
    )
    assert len(sums) == 132


def test_a_designed_plan_is_read_back_as_topology_and_demand(lab: Lab) -> None:
    for name in ("dlrm", "moe"):
        found = design(workload(name), lab, Wanted("topoopt", scale=1.0))
        plan = planned(found, lab)
        shape, given = shape_of(plan), demand_of(plan)
        assert sorted(map(tuple, map(sorted, shape.cables.tolist()))) == sorted(
            map(tuple, map(sorted, found.shape.cables.tolist()))
        )
        assert len(shape.rings) == len(found.shape.rings) and given.mp == pytest.approx(
            found.read.demand.mp, abs=4
        )
        assert {g.members: g.bytes for g in given.groups} == {
            g.members: g.bytes for g in found.read.demand.groups
        }
        again = reckon(plan, assign_ports(plan.links, lab), lab)
        assert again.iteration_s == pytest.approx(found.here.iteration_s, rel=1e-3)


def test_a_failed_link_can_be_gone_round_or_rewired_and_both_have_a_price(lab: Lab) -> None:
    plan = planned(design(workload("vgg16"), lab, Wanted("topoopt")), lab)
    found = repair_options(plan, lab, [("gpu01", "gpu02")], [], 5.67).options
    assert found.reroute is not None and found.rewire is not None
    assert found.before_s < min(found.reroute.iteration_s, found.rewire.iteration_s)
    assert found.reroute.dark_s == 0 and found.rewire.dark_s == pytest.approx(5.67 + 0.05)
    with pytest.raises(Infeasible, match="gpu13 is not a rank"):
        repair_options(plan, lab, [], ["gpu13"], 0.0)
    assert "gpu01 and gpu02 have no two model parallel links" in found.why_not
    for links in (
        [("gpu01", "gpu04")],
        [("gpu01", "gpu01")],
        [("gpu01", "gpu02"), ("gpu02", "gpu01")],
    ):
        with pytest.raises(
            Infeasible, match=f"no such link from {links[-1][0]} to {links[-1][1]}"
        ) as caught:
            repair_options(plan, lab, links, [], 0.0)
        assert "has links to gpu" in caught.value.hint


def test_a_design_is_exported_to_every_tool_that_can_take_it(lab: Lab, tmp_path: Path) -> None:
    written, refused = export(design(workload("dlrm"), lab, Wanted("topoopt")), lab, tmp_path)
    assert [line.partition(":")[0] for line in refused] == ["nccl", "astra-sim"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(written)
    single = design(workload("vgg16"), lab, Wanted("ring", backend="single-order"))
    written, refused = export(single, lab, tmp_path / "single")
    assert not refused and {"ranks.txt", "nccl.env", "astra-network.yml", "astra.11.et"} <= set(
        written
    )
    assert len(KINDS) == 9


def test_every_group_is_exported_for_msccl_with_the_hosts_of_its_ranks(
    lab: Lab, tmp_path: Path
) -> None:
    found = design(workload("moe"), lab, Wanted("topoopt"))
    assert any(len(group.members) < 12 for group in found.read.demand.groups)
    _, refused = export(found, lab, tmp_path / "moe")
    assert not [line for line in refused if line.startswith("msccl")]
    for group in found.read.demand.groups:
        program = (tmp_path / "moe" / f"allreduce-{group.id}.xml").read_text()
        hosts = (tmp_path / "moe" / f"allreduce-{group.id}.ranks.txt").read_text().split()
        assert hosts == [found.hosts[rank] for rank in sorted(group.members)]
        assert all(
            chunk == frozenset(range(len(hosts))) for rank in reduced(program) for chunk in rank
        )
    stepped = design(workload("vgg16"), lab, Wanted("direct", backend="msccl"))
    assert stepped.schedules and "allreduce-data.xml" in export(stepped, lab, tmp_path / "steps")[0]
    program = (tmp_path / "steps" / "allreduce-data.xml").read_text()
    assert all(chunk == frozenset(range(12)) for rank in reduced(program) for chunk in rank)


def test_what_is_carried_is_what_was_asked_for_times_hops(lab: Lab) -> None:
    found = design(workload("dlrm"), lab, Wanted("topoopt"))
    asked, carried = before(found.read.demand).sum(), after(found).sum()
    assert carried == pytest.approx(found.own.tax * asked, rel=1e-6)
    assert found.own.hops == pytest.approx(found.shape.mean_hops(found.read.demand.mp))


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"hosts": ("gpu01", "gpu01")}, "host gpu01 is named twice", "name 12 different hosts"),
        ({"hosts": ("gpu1",)}, "host gpu1 is not in emulated; did you mean gpu01?", "status"),
        (
            {"hosts": ("gpu01", "gpu02")},
            "12 ranks, the hosts named are 2",
            "set ranks to 2 in the workload, or name 12",
        ),
        ({"ports": 9}, "9 ports per host are wanted", "--ports 4"),
        ({"ports": 1}, "takes two ports of each", "--ports 2; or give hosts 2 ports"),
        (
            {"ports": 1, "method": "exact"},
            "no topology of 12 ranks and degree 1",
            "--ports 2; or give hosts more ports",
        ),
        ({"scale": float("inf")}, "inf of the bytes", "--scale "),
        ({"scale": 0.0}, "0 of the bytes", "--scale "),
        ({"scale": 1e30}, "1e+30 of the bytes", "--scale 1.7e+04"),
        ({"scale": 1e-30}, "1e-30 of the bytes", "--scale "),
        ({"method": "rail-only", "domain": 5}, "domains of 5 do not divide 12", "domains of 4"),
        ({"rules": "artifact", "ports": 3}, "degree 3 is odd", "--ports 4; or degree 4"),
    ],
)
def test_what_the_lab_cannot_do_is_refused_with_the_nearest_it_can(
    change: dict[str, Any], message: str, hint: str, lab: Lab
) -> None:
    with pytest.raises(Infeasible) as caught:
        design(workload("dlrm"), lab, Wanted(**{"method": "topoopt", **change}))
    assert message in str(caught.value) and hint in caught.value.hint and caught.value.hint


DENSE = "layers: [{kind: dense, parameters: 5000}]"
BLOCKS = "layers: [{kind: transformer, blocks: 4, hidden: 8, sequence: 4}]"
EXPERTS = "layers: [{kind: experts, blocks: 1, experts: 5, hidden: 8, sequence: 4}]"


@pytest.mark.parametrize(
    ("wrong", "message", "nearest"),
    [
        (f"ranks: 7, {DENSE}", "4 planes carry at most 4 * floor(7/2) = 12", "--ports 3; or"),
        (f"ranks: 13, {DENSE}", "13 ranks, emulated are 12", "set ranks to 12"),
        (f"ranks: 1, {DENSE}", "ranks: wanted at least 2, got 1", "start from"),
        (
            f"ranks: 12, parallelism: {{tensor: 5}}, {DENSE}",
            "tensor 5 x data 2 x pipeline 1 are 10 ranks, not 12",
            "set ranks to 10",
        ),
        (
            f"ranks: 12, parallelism: {{pipeline: 3}}, {BLOCKS}",
            "3 pipeline stages do not divide 4 blocks",
            "set pipeline to 2",
        ),
        (
            f"ranks: 12, parallelism: {{expert: 5}}, {EXPERTS}",
            "expert groups of 5 do not divide 12 replicas",
            "set expert to 4",
        ),
        (
            f"ranks: 12, parallelism: {{expert: 4}}, {EXPERTS}",
            "5 experts do not divide into groups of 4",
            "set experts to 4",
        ),
        (
            "ranks: 4, collectives: [{id: a, ranks: [0, 1, 1], bytes: 5}]",
            "group a names rank 1 twice",
            "once: [0, 1]",
        ),
        (
            "ranks: 4, collectives: [{id: a, ranks: [0, 7], bytes: 5}]",
            "names rank 7; there are 4",
            "from 0 to 3",
        ),
        (
            "ranks: 4, collectives: [{id: a, ranks: [], bytes: 5}]",
            "group a has no members",
            "name its ranks",
        ),
        ("ranks: 4, transfers: [{among: [2, 2], bytes: 5}]", "name 2 twice", "each rank once"),
        (
            "ranks: 4, transfers: [{src: 1, dst: 1, bytes: 5}]",
            "rank 1 sends bytes to itself",
            "leave that transfer out",
        ),
        (
            "ranks: 4, collectives: [{id: a, bytes: -5}]",
            "bytes: wanted at least 0, got -5",
            "start from",
        ),
        (
            "ranks: 4, transfers: [{src: 0, dst: 1, bytes: -5}]",
            "bytes: wanted at least 0, got -5",
            "start from",
        ),
        ("ranks: 4, compute_s: .nan", "compute_s: wanted a finite number, got nan", "start from"),
        ("ranks: 4, rate_gbps: .inf", "rate_gbps: wanted a finite number, got inf", "start from"),
        ("ranks: 4, rate_gbps: 0", "rate_gbps: wanted", "start from"),
        (
            "ranks: 4, compute_s: 1, compute: {flops_per_sample: 1, tflops: 1}",
            "contradict each other",
            "start from",
        ),
    ],
)
def test_a_workload_that_cannot_be_is_refused_with_the_condition_and_the_nearest_that_can(
    wrong: str, message: str, nearest: str, lab: Lab, tmp_path: Path
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"{{schema: testbed.workload/1, name: w, {wrong}}}")
    with pytest.raises((Infeasible, BadFile)) as caught:
        design(read_workload(path), lab, Wanted("topoopt"))
    assert message in str(caught.value) and nearest in caught.value.hint


@pytest.mark.parametrize("scale", [0.0, 1e30])
def test_a_scale_that_is_offered_is_taken(scale: float, lab: Lab) -> None:
    with pytest.raises(Infeasible) as caught:
        design(workload("dlrm"), lab, Wanted("ring", scale=scale))
    offered = float(caught.value.hint.split()[1].rstrip(","))
    plan = planned(design(workload("dlrm"), lab, Wanted("ring", scale=offered)), lab)
    assert (
        plan.job is not None
        and plan.job.traffic is not None
        and plan.job.traffic.groups[0].bytes >= 4
    )


def test_groups_that_scale_to_less_than_a_number_sum_one_and_are_named(
    lab: Lab, tmp_path: Path
) -> None:
    path = tmp_path / "w.yaml"
    sums = "[{id: large, bytes: 4000000}, {id: small, bytes: 40, ranks: [0, 1, 2]}, {id: none, bytes: 0, ranks: [0, 1]}]"
    path.write_text(f"{{schema: testbed.workload/1, name: w, ranks: 4, collectives: {sums}}}")
    found = design(read_workload(path), lab, Wanted("ring", scale=0.01))
    plan = planned(found, lab)
    assert plan.job is not None and plan.job.traffic is not None
    assert {group.id: group.bytes for group in plan.job.traffic.groups} == {
        "large": 40_000,
        "small": 4,
    }
    assert found.raised == ("small",) and "1 group would reduce less than one number here" in text(
        found, "w", routing=(), predict=False
    )
    assert design(read_workload(path), lab, Wanted("ring", scale=0.1)).raised == ()


def test_routing_is_told_with_its_rules_and_circles(lab: Lab) -> None:
    ring, clique = (design(workload("vgg16"), lab, Wanted(m)) for m in ("ring", "exact"))
    notices = routing(ring, lab)
    assert "44 routes a host" in notices[0] and "could deadlock" in notices[1], (
        "a ring of buffers waits in a circle"
    )
    assert len(routing(clique, lab)) == 2


def test_an_odd_shard_on_planes_is_refused_and_six_hosts_are_not(lab: Lab, tmp_path: Path) -> None:
    text = (WORKLOADS / "vgg16.yaml").read_text()
    for ranks, fits in ((6, True), (7, False)):
        path = tmp_path / f"{ranks}.yaml"
        path.write_text(text.replace("ranks: 12", f"ranks: {ranks}"))
        if fits:
            assert len(design(read_workload(path), lab, Wanted("topoopt")).hosts) == ranks
        else:
            for method, message in (
                ("topoopt", "planes carry at most"),
                ("ring", "pair up to 12 at most"),
            ):
                with pytest.raises(Infeasible, match=message) as caught:
                    design(read_workload(path), lab, Wanted(method))
                assert caught.value.hint.startswith("--ports 3; or "), "tried, and it goes"
                assert len(design(read_workload(path), lab, Wanted(method, ports=3)).links) == 7


def test_a_workload_larger_than_the_lab_ends_with_a_stable_code(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text((WORKLOADS / "vgg16.yaml").read_text().replace("ranks: 12", "ranks: 13"))
    out = tmp_path / "plan.json"
    done = typed("design", "topoopt", "-w", path, "-o", out, "--json", at=ROOT)
    reply = json.loads(done.stdout)
    assert (done.returncode, reply["code"]) == (
        3,
        "E-INFEASIBLE",
    ) and "13 ranks, emulated are 12" in reply["message"]
    assert "set ranks to 12" in reply["hint"] and not out.exists()


def test_a_search_needs_layers_to_spread(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        "{schema: testbed.workload/1, name: w, ranks: 4, collectives: [{id: a, bytes: 400}]}"
    )
    argv = ("-w", tmp_path / "w.yaml", "--search", "9", "--json")
    done = typed("design", "topoopt", *argv, at=ROOT)
    reply = json.loads(done.stdout)
    assert (done.returncode, reply["hint"]) == (2, "omit --search") and "lists none" in reply[
        "message"
    ]


def test_ctrl_c_ends_a_search_without_end_with_the_best_so_far(tmp_path: Path) -> None:
    out, budget = tmp_path / "plan.json", "1000000000"
    command = [
        str(Path(sys.executable).with_name("testbed")),
        "design",
        "topoopt",
        "-w",
        str(WORKLOADS / "moe.yaml"),
        "-o",
        str(out),
    ]
    command += [
        "-i",
        str(ROOT / "inventory" / "emulated"),
        "--search",
        budget,
        "--patience",
        budget,
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    # Files are read under an alarm; the search itself has none.
    while not _catches(process.pid, signal.SIGTERM) or _catches(process.pid, signal.SIGALRM):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    reply = json.loads(process.communicate(timeout=60)[0])
    assert (process.returncode, reply["code"], reply["ok"]) == (130, "E-INTERRUPTED", False)
    assert (
        "best so far" in reply["message"] and json.loads(out.read_text()) == reply["data"]["plan"]
    )


def test_ctrl_c_behind_the_last_one_tried_does_not_say_that_the_search_was_stopped() -> None:
    notices: list[str] = []

    class Progress(nullcontext[Any]):
        def __enter__(self) -> Any:
            return self

        def phase(self, name: str, message: str) -> None:
            pass

        def done(self, name: str, message: str) -> None:
            notices.append(message)

    class Asked:
        def progress(self) -> Progress:
            return Progress()

    def find(whole: bool) -> Any:
        signal.raise_signal(signal.SIGINT)
        return SimpleNamespace(stopped=not whole)

    before = signal.getsignal(signal.SIGINT)
    for whole in (True, False):
        watched(Asked(), lambda _, whole=whole: find(whole))  # type: ignore[arg-type, misc]
    assert notices == ["", "stopped; the best so far"] and signal.getsignal(signal.SIGINT) is before


def _catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--name", "../x y"), 3),
        (("--domain", "3"), 2),
        (("--patience", "9"), 2),
        (("--search", "9"), 2),
        (("--chains", "2"), 2),
        (("--workers", "2"), 2),
        (("--hosts", "gpu01,gpu01"), 3),
        (("--scale", "inf"), 3),
        (("--out", "/nowhere/plan.json"), 2),
    ],
)
def test_no_plan_is_written_that_would_be_refused(
    argv: tuple[str, str], code: int, tmp_path: Path
) -> None:
    given = ("-w", WORKLOADS / "vgg16.yaml", "-i", ROOT / "inventory" / "emulated", "--json")
    written = ("-o", "plan.json", "--svg", "plan.svg")
    done = typed("design", "ring", *given, *written, *argv, at=tmp_path)
    assert done.returncode == code and not list(tmp_path.iterdir()), done.stdout
    assert json.loads(done.stdout)["hint"]
