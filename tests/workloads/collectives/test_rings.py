"""Real process groups between local processes: the sums, the table, and what happens when a rank is
not there.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.workloads.ranks import ranks, records
from workloads.collectives.rings import Rings
from workloads.host.place import read_place

# every size from nothing to more than one element per ring, and a matrix; sums are exact in float32
SUMS = """
import json, os
from workloads.training.eager import import_torch
torch = import_torch()
from workloads.transport.accord import Accord
from workloads.host.place import read_place
from workloads.collectives.rings import Rings
place = read_place(os.environ)
rings = Rings(place, torch)
rings.use(rings.ring_set(place.rings, "set"))
accord = Accord(rings.store, place.rank, place.world)
wrong = []
for shape in [(0,), (1,), (2,), (5,), (97,), (4096,), (3, 5, 7)]:
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    values = index + 100 * place.rank
    rings.all_reduce(values)
    known = place.world * index + 100 * sum(range(place.world))
    if not torch.equal(values, known):
        wrong.append(shape)
before = torch.full((10,), float(place.rank))
works = rings.start(before)
again = torch.ones(10)
rings.all_reduce(again)  # a second one while the first is under way
for work in works:
    work.wait()
if before.tolist() != [float(sum(range(place.world)))] * 10 or again.tolist() != [float(place.world)] * 10:
    wrong.append("two at once")
said = accord.gather("wrong", wrong)
print(json.dumps({"wrong": said, "rings": rings.current.orders}))
accord.leave()
rings.close()
"""


@pytest.mark.parametrize(
    "rings", [[[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3], [1, 3, 0, 2], [2, 0, 3, 1]]], ids=["five"]
)
def test_sums_are_right_over_several_rings_in_any_order(
    tmp_path: Path, rings: list[list[int]]
) -> None:
    with ranks(4, "-c", SUMS, directory=tmp_path, rings=rings) as job:
        ended = job.finish()
    for code, out, err in ended:
        assert code == 0, err
        reply = json.loads(out)
        assert reply["wrong"] == [[]] * 4
        assert reply["rings"] == rings, "each ring has its own order"


def test_a_job_of_one_rank_sums_alone(tmp_path: Path) -> None:
    with ranks(1, "-c", SUMS, directory=tmp_path, rings=[[0], [0]]) as job:
        [(code, out, err)] = job.finish()
    assert code == 0, err
    assert json.loads(out)["wrong"] == [[]]


def test_the_benchmark_prints_nccl_tests_columns_and_counts_no_wrong_element(
    tmp_path: Path,
) -> None:
    command = (
        "-m",
        "workloads.programs.allreduce",
        "-b",
        "8",
        "-e",
        "512K",
        "-f",
        "256",
        "-n",
        "2",
    )
    with ranks(3, *command, directory=tmp_path, rings=[[0, 1, 2], [2, 1, 0]]) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 3
    met, *lines = ended[0][1].splitlines()
    assert met.startswith("# workloads.programs.allreduce: rank 0 on ") and "3 ranks met" in met
    assert lines[0] == "# ranks 3, rings 2, backend gloo, in-place"
    assert lines[1].split()[1:] == [
        "size",
        "count",
        "type",
        "redop",
        "time",
        "algbw",
        "busbw",
        "#wrong",
    ]
    table = [line.split() for line in lines if not line.startswith("#")]
    assert [(row[0], row[1], row[2], row[3], row[7]) for row in table] == [
        ("8", "2", "float", "sum", "0"),
        ("2048", "512", "float", "sum", "0"),
        ("524288", "131072", "float", "sum", "0"),
    ]
    rows = json.loads((tmp_path / "0" / "allreduce.json").read_text())["rows"]
    for record in rows:
        assert record["busbw_gbytes_per_s"] == pytest.approx(
            record["algbw_gbytes_per_s"] * 4 / 3, abs=2e-6
        )
        assert record["algbw_gbytes_per_s"] == pytest.approx(
            record["size_bytes"] / record["time_us"] / 1e3, rel=1e-3, abs=1e-6
        )
    assert [record["bytes"] for record in records(tmp_path)] == [8, 2048, 524288]
    assert all(len(out.splitlines()) == 1 for _, out, _ in ended[1:]), (
        "the table is for rank 0 to print"
    )


def test_a_wrong_sum_is_counted(tmp_path: Path) -> None:
    spoilt = (
        "import sys, workloads.collectives.rings as rings; honest = rings.Rings.all_reduce;"
        "rings.Rings.all_reduce = lambda self, t: (honest(self, t), t[3:5].add_(1) if self.place.rank == 1 else None);"
        "sys.argv[1:] = ['-b', '64', '-n', '1', '-w', '0']; import workloads.programs.allreduce as a; a.main()"
    )
    with ranks(2, "-c", spoilt, directory=tmp_path) as job:
        ended = job.finish()
    assert ended[0][1].splitlines()[-1] == "# Out of bounds values : 4 FAILED"


def test_a_rank_that_never_comes_ends_the_others_within_the_timeout(tmp_path: Path) -> None:
    with ranks(2, "-m", "workloads.programs.train", directory=tmp_path, timeout_s=2.0) as job:
        job.processes[1].kill()
        code, _, err = job.finish()[0]
    assert code == 75
    assert "rank 0" in err and "meeting the other ranks: lost a peer, or waited 2 s for one" in err


def test_a_bad_environment_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    with ranks(
        1, "-X", "importtime", "-m", "workloads.programs.train", directory=tmp_path, rings=[[0, 1]]
    ) as job:
        [(code, _, err)] = job.finish()
    assert code == 2
    assert "TESTBED_RINGS[0]: [0, 1]: does not name each of the 1 ranks once" in err
    assert "| torch" not in err


def test_ranks_meet_where_they_are_managed_and_not_on_a_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TESTBED_LANES": '["127.0.0.2"]',
    }
    rings = object.__new__(Rings)
    rings.place, rings.store = read_place(env), "store"
    rings._dist = SimpleNamespace(PrefixStore=lambda name, store: (name, store))
    monkeypatch.setattr(
        Rings,
        "_gloo",
        lambda _self, store, position, size, address: (store, position, size, address),
    )
    assert rings.management_group("meet") == (("meet", "store"), 0, 1, "127.0.0.1")
