"""A job's ranks for other launchers: what is printed is run here, in a shell with a stand-in for
the launcher.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from extensions.switch_functions.plan import Function
from optics import Infeasible
from optics.plan import Job
from orchestrator.hosts.by_hand import ByHand, by_hand, exports, mpirun, srun, torchrun
from orchestrator.inventory.lab import read_lab
from orchestrator.plan.reader import read_plan

INVENTORY = Path(__file__).parents[2] / "inventory" / "emulated"
PROGRAMS = """
programs:
  gpt:
    command: [python, "{files}/train.py", --name, it's]
    path: /opt/gpt
    iterations: {reporter: true}
"""
LAB = read_lab(
    *((INVENTORY / f"{name}.yml").read_text() for name in ("hosts", "devices", "fibres")), PROGRAMS
)
HOSTS = ["gpu03", "gpu01", "gpu02"]


def found(**job: object) -> ByHand:
    links = [{"a": f"gpu0{a}", "b": f"gpu0{b}"} for a, b in ((1, 2), (2, 3), (3, 1))]
    body = {
        "name": "j",
        "workload": "program",
        "program": "gpt",
        "ranks": HOSTS,
        "rings": [HOSTS],
    } | job
    plan = {
        "schema": "testbed.plan/1",
        "name": "p",
        "links": links,
        "job": {k: v for k, v in body.items() if v is not None},
    }
    read = read_plan(json.dumps(plan), "plan.json", LAB).job
    assert isinstance(read, Job)
    return by_hand(read, LAB)


def shell(tmp_path: Path, line: str, launcher: str, **env: str) -> tuple[list[str], dict[str, str]]:
    """Run the line with a launcher that runs its command once, as one rank; return what the command
    sees.
    """
    (tmp_path / launcher).write_text(
        '#!/bin/bash\nwhile [ "$1" != bash ]; do echo "$1" >>options; shift; done\nexec "$@"\n'
    )
    (tmp_path / "python").write_text(
        "#!/bin/sh\nenv -0 >environment\nprintf '%s\\n' \"$@\" >arguments\n"
    )
    for name in (launcher, "python"):
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={"PATH": path} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = dict(
        item.split("=", 1) for item in (tmp_path / "environment").read_text().split("\0") if item
    )
    return (tmp_path / "arguments").read_text().splitlines(), seen


def test_the_exports_of_a_rank_set_what_its_launch_would() -> None:
    ranks = found()
    assert [(each.rank, each.host) for each in ranks.ranks] == list(enumerate(HOSTS))
    done = subprocess.run(
        ["bash", "-c", "\n".join([*exports(ranks, 2), "env -0"])],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = dict(item.split("=", 1) for item in done.stdout.split("\0") if item)
    assert (
        seen.items() >= dict(ranks.ranks[2].env).items()
        and seen["RANK"] == "2"
        and json.loads(seen["TESTBED_RINGS"]) == [[0, 1, 2]]
    )
    assert "TESTBED_JOB_DIR" not in seen and "PYTHONPATH" in seen
    assert sum(line.startswith("# rank") for line in exports(ranks, None)) == 3
    with pytest.raises(Infeasible, match="job j has no rank 3: wanted 0 to 2"):
        exports(ranks, 3)


def test_a_job_with_functions_of_packet_switches_is_not_started_by_hand() -> None:
    job = Job(
        "j",
        "train",
        tuple(HOSTS),
        (),
        {"exchange": "aggregate"},
        attached={"functions": (Function("ideal", "aggregate"),)},
    )
    with pytest.raises(
        Infeasible, match="job j: aggregate of segment ideal is lent to it while testbed runs it"
    ):
        by_hand(job, LAB)


def test_slurm_gets_its_ranks_in_the_order_of_the_plan(tmp_path: Path) -> None:
    file, line = srun(found())
    arguments, seen = shell(
        tmp_path, f"{file}\n{line}", "srun", SLURM_PROCID="1", SLURM_LOCALID="0"
    )
    assert (tmp_path / "ranks.txt").read_text().split() == HOSTS and seen[
        "SLURM_HOSTFILE"
    ] == "ranks.txt"
    assert arguments == ["/opt/gpt/train.py", "--name", "it's"]
    assert (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"], seen["MASTER_ADDR"]) == (
        "1",
        "0",
        "3",
        "10.254.0.3",
    )
    assert "TESTBED_LANES" not in seen, "gloo does not ask for them"
    assert "--ntasks=3" in (tmp_path / "options").read_text()


def test_open_mpi_passes_on_every_variable_and_each_rank_finds_its_own_lanes(
    tmp_path: Path,
) -> None:
    (line,) = mpirun(found(workload="train", program=None))
    arguments, seen = shell(
        tmp_path, line.replace(" python3 -m", " python -m"), "mpirun", OMPI_COMM_WORLD_RANK="2"
    )
    assert arguments[:2] == ["-m", "workloads.programs.train"]
    assert json.loads(seen["TESTBED_LANES"])[0] == "10.255.0.2" and json.loads(
        seen["TESTBED_RINGS"]
    ) == [[0, 1, 2]]
    options = (tmp_path / "options").read_text().split()
    assert options[options.index("--host") + 1] == "gpu03:1,gpu01:1,gpu02:1"
    assert {options[at + 1] for at, word in enumerate(options) if word == "-x"} >= {
        "MASTER_PORT",
        "GLOO_SOCKET_IFNAME",
    }


def test_launchers_set_how_many_ranks_a_host_has_where_hosts_differ_in_it(tmp_path: Path) -> None:
    ranks = ["gpu03/0", "gpu03/1", "gpu01", "gpu02"]
    rings = [["gpu03", "gpu01", "gpu02"]]
    (line,) = mpirun(found(ranks=ranks, rings=rings))
    counts = []
    for number in range(4):
        _, seen = shell(tmp_path, line, "mpirun", OMPI_COMM_WORLD_RANK=str(number))
        counts.append(seen.get("LOCAL_WORLD_SIZE"))
    assert counts == ["2", "2", "1", "1"]
    assert not any(
        "LOCAL_WORLD_SIZE" in line for line in torchrun(found(ranks=ranks, rings=rings))
    ), "torchrun sets it"


def test_torchrun_has_a_line_for_each_host() -> None:
    lines = torchrun(found())
    assert lines[0::2] == [f"# on {host}" for host in HOSTS]
    tokens = shlex.split(lines[5])
    assert (
        tokens[0] == "env"
        and "GLOO_SOCKET_IFNAME=host0" in tokens
        and not any(word.startswith("MASTER_ADDR=") for word in tokens)
    )
    options = tokens[tokens.index("torchrun") :]
    assert options[1:5] == [
        "--nnodes=3",
        "--nproc-per-node=1",
        "--node-rank=2",
        "--master-addr=10.254.0.3",
    ]
    assert options[6:] == ["/opt/gpt/train.py", "--name", "it's"]
