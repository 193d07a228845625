"""Several ranks on a host: only what leaves the host is designed for, and the plan names every
rank.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optics import Infeasible
from optics.ranks import ranks_on
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import Design, design
from orchestrator.plan.design.document import document
from orchestrator.plan.design.export import export_design
from orchestrator.plan.reader import read_plan
from orchestrator.verbs.design_files import read_workload
from planner.model.demand import Demand
from planner.model.workload import Workload, demand
from planner.topology.methods import Wanted

ROOT = Path(__file__).resolve().parents[2]
BLOCK = {"kind": "transformer", "blocks": 2, "hidden": 8, "sequence": 4}
PARAMETERS = 2 * (12 * 64 + 13 * 8)


def of(**fields: Any) -> Demand:
    return demand(Workload.model_validate({"schema": "testbed.workload/1", "name": "w", **fields}))


@pytest.fixture(scope="module")
def tensor(lab: Lab) -> Design:
    return design(
        read_workload(ROOT / "examples" / "workloads" / "gpt-tensor.yaml"), lab, Wanted("topoopt")
    )


def test_tensor_groups_inside_a_host_leave_gradients_and_stages_on_the_fabric() -> None:
    split = {"tensor": 2, "data": 2, "pipeline": 2}
    apart = of(ranks=8, batch=2, parallelism=split, layers=[BLOCK])
    found = of(ranks=8, ranks_per_host=2, batch=2, parallelism=split, layers=[BLOCK])
    assert found.n == 4
    assert {g.members: g.bytes for g in found.groups} == {
        (0, 1): PARAMETERS * 4 / 2,
        (2, 3): PARAMETERS * 4 / 2,
    }
    assert found.mp.sum() == apart.mp.sum(), "stages are on hosts of their own"
    assert found.mp[0, 2] == found.mp[2, 0] == apart.mp[0, 4] + apart.mp[1, 5]
    assert found.allreduce_bytes < apart.allreduce_bytes


def test_ranks_of_a_host_that_sum_the_same_buffer_send_it_once() -> None:
    found = of(ranks=8, ranks_per_host=4, layers=[{"kind": "dense", "parameters": 10}])
    assert [(g.members, g.bytes) for g in found.groups] == [((0, 1), 40)]


def test_what_ranks_of_a_host_send_each_other_stays_there() -> None:
    found = of(
        ranks=4,
        ranks_per_host=2,
        transfers=[{"src": 0, "dst": 1, "bytes": 5}, {"among": "all", "bytes": 3}],
    )
    assert np.array_equal(found.mp, [[0, 12], [12, 0]])


@pytest.mark.parametrize(("ranks", "each", "better"), [(7, 2, 8), (4, 4, 8), (6, 4, 8)])
def test_ranks_that_do_not_fill_hosts_are_refused_with_a_number_that_does(
    ranks: int, each: int, better: int
) -> None:
    with pytest.raises(Infeasible) as refused:
        of(ranks=ranks, ranks_per_host=each, layers=[{"kind": "dense", "parameters": 10}])
    assert refused.value.hint == f"set ranks to {better}"
    assert (
        of(ranks=better, ranks_per_host=each, layers=[{"kind": "dense", "parameters": 10}]).n
        == better // each
    )


def test_the_plan_of_a_tensor_parallel_job_names_every_rank_and_moves_what_leaves_the_hosts(
    tensor: Design, lab: Lab
) -> None:
    body = document(tensor)
    job = read_plan(json.dumps(body), "plan.json", lab).job
    assert job is not None and job.ranks == tuple(
        rank for n in range(1, 13) for rank in ranks_on(f"gpu{n:02d}", 4)
    )
    assert job.hosts == tensor.hosts and job.traffic is not None
    (group,) = job.traffic.groups
    whole = 4 * (24 * (12 * 2048**2 + 13 * 2048) + 50257 * 2048)
    assert group.bytes == pytest.approx(whole * tensor.scale, rel=1e-6), (
        "each GPU a quarter, all of them together the whole"
    )
    assert body["predicted"]["busbw_mbps"] == pytest.approx(tensor.here.busbw / 4e6, abs=1e-3)


def test_nccl_s_rank_file_has_a_line_for_each_rank_and_an_msccl_program_is_refused(
    tensor: Design, lab: Lab
) -> None:
    files, refused = export_design(tensor, lab)
    assert any("one rank per host" in line for line in refused)
    assert "ranks.txt" not in files or str(files["ranks.txt"]).split()[:5] == [
        *["gpu01"] * 4,
        "gpu02",
    ]


def test_more_ranks_than_a_host_holds_are_refused(lab: Lab) -> None:
    read = read_workload(ROOT / "examples" / "workloads" / "gpt-tensor.yaml")
    small = replace(
        lab, hosts={name: replace(host, max_ranks=2) for name, host in lab.hosts.items()}
    )
    with pytest.raises(Infeasible, match=r"4 ranks per host, gpu01 holds 2 \(testbed_ranks"):
        design(read, small, Wanted("topoopt"))
    with pytest.raises(Infeasible, match="48 ranks on 12 hosts, the hosts named are 2"):
        design(read, lab, Wanted("topoopt", hosts=("gpu01", "gpu02")))
