"""From a model and how it is spread to the bytes of an iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from optics import BadFile
from orchestrator.verbs.design_files import read_workload
from planner.model.demand import Demand, Infeasible
from planner.model.workload import Workload, demand

ROOT = Path(__file__).resolve().parents[3]


def of(**fields: Any) -> Demand:
    return demand(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 4, **fields})
    )


def test_data_parallel_gradients_are_one_group_of_everybody() -> None:
    found = of(layers=[{"kind": "dense", "parameters": 10}, {"kind": "dense", "parameters": 5}])
    assert [(g.id, g.members, g.bytes) for g in found.groups] == [("data", (0, 1, 2, 3), 60)]
    assert not found.mp.any() and found.compute_s == 0


def test_a_table_is_sent_from_its_owner_and_its_gradients_come_back() -> None:
    found = of(batch=3, layers=[{"kind": "embedding", "tables": 1, "rows": 9, "width": 8}])
    wanted = np.zeros((4, 4))
    wanted[0, 1:] = wanted[1:, 0] = 3 * 8 * 4
    assert np.array_equal(found.mp, wanted)


def test_tensor_slices_sum_activations_and_stages_pass_them_on() -> None:
    block = {"kind": "transformer", "blocks": 2, "hidden": 8, "sequence": 4}
    found = of(
        ranks=8, batch=2, parallelism={"tensor": 2, "data": 2, "pipeline": 2}, layers=[block]
    )
    groups = {g.members: g.bytes for g in found.groups}
    parameters = 2 * (12 * 64 + 13 * 8)
    assert groups[(0, 2)] == parameters * 4 / 4, "replicas of a slice of a stage"
    assert groups[(0, 1)] == 4 * (2 * 4 * 8 * 4) * 2 / 2, (
        "four sums of activations per block, half of the blocks"
    )
    assert (
        found.mp[0, 4] == found.mp[4, 0] == 2 * 4 * 8 * 4 / 2
        and found.mp[1, 5]
        and not found.mp[0, 5]
    )
    assert len(groups) == 4 + 4


def test_experts_exchange_tokens_within_their_groups_only() -> None:
    layer = {"kind": "experts", "blocks": 1, "experts": 4, "hidden": 8, "sequence": 4, "top_k": 2}
    found = of(batch=2, parallelism={"expert": 2}, layers=[layer])
    assert found.mp[0, 1] == 4 * (2 * 4 * 2 * 8 * 4) / 2 and not found.mp[0, 2]
    assert {g.members: g.bytes for g in found.groups} == {
        (0, 2): 8 * 64 * 2 * 4,
        (1, 3): 8 * 64 * 2 * 4,
    }


def test_what_is_given_as_it_is_is_taken_as_it_is() -> None:
    found = of(
        collectives=[{"id": "g", "ranks": [0, 2], "bytes": 7}],
        transfers=[{"src": 0, "dst": 1, "bytes": 5}, {"among": [1, 2], "bytes": 3}],
        compute_s=0.25,
    )
    assert found.groups[0].members == (0, 2) and found.groups[0].bytes == 7
    assert (found.mp[0, 1], found.mp[1, 2], found.mp[2, 1], found.mp.sum()) == (5, 3, 3, 11)
    assert found.compute_s == 0.25


@pytest.mark.parametrize(
    ("fields", "condition", "alternative"),
    [
        ({"parallelism": {"tensor": 3}}, "are 3 ranks, not 4", "set ranks to 3"),
        ({"parallelism": {"data": 3}}, "are 3 ranks, not 4", "set ranks to 3"),
        ({"parallelism": {"expert": 3}}, "expert groups of 3 do not divide 4", "set expert to 2"),
        ({"transfers": [{"src": 0, "dst": 9, "bytes": 1}]}, "name rank 9; there are 4", "0 to 3"),
        ({"transfers": [{"among": [0, 1, 0], "bytes": 1}]}, "among ranks name 0 twice", "name each rank once: [0, 1]"),
        ({"transfers": [{"among": [0, 7], "bytes": 1}]}, "name rank 7; there are 4", "0 to 3"),
        ({"transfers": [{"src": 1, "dst": 1, "bytes": 1}]}, "rank 1 sends bytes to itself", "leave that transfer out"),
        ({"collectives": [{"id": "g", "ranks": [0, 0], "bytes": 1}]}, "names rank 0 twice", "name each rank once"),
        ({"layers": [{"kind": "experts", "blocks": 1, "experts": 3, "hidden": 1, "sequence": 1}], "parallelism": {"expert": 2}},
         "3 experts do not divide", "set experts to"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_nearest_that_can(
    fields: dict[str, Any], condition: str, alternative: str
) -> None:
    with pytest.raises(Infeasible) as caught:
        of(**fields)
    assert condition in caught.value.condition and alternative in caught.value.alternative


@pytest.mark.parametrize(
    "fields",
    [
        {"compute_s": float("nan")},
        {"layers": [{"kind": "dense", "parameters": -1}]},
        {"compute_s": 1.0, "compute": {"flops_per_sample": 1.0, "tflops": 1.0}},
        {"transfers": [{"src": 0, "bytes": 1}]},
        {"transfers": [{"src": 0, "dst": 1, "among": "all", "bytes": 1}]},
        {"ranks": 1},
        {"speed": 3},
    ],
)
def test_numbers_that_are_none_and_contradictions_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        of(**fields)


def test_mistakes_of_a_file_are_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "schema: testbed.workload/1\nname: w\nranks: 4\nlayers:\n  - {kind: dense, parameter: 3}\nbatch: 1.5\n"
    )
    with pytest.raises(BadFile) as caught:
        read_workload(path)
    assert [line.partition("w.yaml:")[2][:5] for line in caught.value.problems] == [
        "5:5: ",
        "5:19:",
        "6:8: ",
    ]


ANCHORS = {
    "dlrm": (12, 129_104_897),
    "candle": (12, 486_944_769),
    "bert": (12, 106_831_872),
    "vgg16": (12, 138_357_544),
}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "workloads").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_example_gives_a_demand_and_the_known_ones_their_parameters(path: Path) -> None:
    found = read_workload(path)
    assert found.workload.name == path.stem and found.demand.compute_s > 0
    if path.stem in ANCHORS:
        ranks, parameters = ANCHORS[path.stem]
        assert found.demand.n == ranks and found.demand.groups[0].bytes == 4 * parameters


def test_the_testbed_s_dlrm_moves_what_its_run_script_says() -> None:
    found = read_workload(ROOT / "examples" / "workloads" / "dlrm.yaml").demand
    off = found.mp[~np.eye(12, dtype=bool)]
    assert (off == 2 * 16 * 32768 * 4).all(), (
        "a table on each rank: its rows there, its gradients back"
    )


def test_stages_of_a_pipeline_wait_for_the_first_and_the_last_piece() -> None:
    compute = {"flops_per_sample": 1e12, "tflops": 8.0}
    block = {"kind": "transformer", "blocks": 4, "hidden": 64, "sequence": 8}
    given = {"ranks": 8, "batch": 8, "layers": [block], "compute": compute}
    assert of(**given).compute_s == pytest.approx(1.0), "no pipeline, no bubble"
    assert of(**given, parallelism={"pipeline": 4}).compute_s == pytest.approx(1 + 3 / 8), (
        "single samples"
    )
    assert of(**given, parallelism={"pipeline": 4, "micro_batches": 2}).compute_s == pytest.approx(
        1 + 3 / 2
    )
    with pytest.raises(Infeasible, match="3 micro-batches do not divide a batch of 8") as caught:
        of(**given, parallelism={"pipeline": 4, "micro_batches": 3})
    assert caught.value.alternative == "set micro_batches to 2"
