"""The back-end `testbed` of torch.distributed against gloo, both over the fabric: bus bandwidth,
and an unmodified GPT.

Twelve hosts on the TopoOpt plan (examples/topoopt-12.json), a private emulated lab, jobs launched
by `testbed up` as a user's own programs are. Two programs, each over both back-ends in turn: an
all-reduce of 32 MB written here with torch.distributed alone, and examples/programs/gpt as it is.
`testbed` has the plan's four rings, one over each lane; gloo makes one ring over one lane, which is
all it can. Bus bandwidth counts as in nccl-tests: 2 (n-1)/n of the bytes, over the time, the
slowest rank's. The losses of the GPT after 20 iterations must agree to six decimals; an iteration's
time is the median of all but the first three. Where the processors are the limit, as on a machine
with few cores, the times of an iteration say little about the network.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, BenchLab, bench_lab
from benchmarks.harness import spread, verdict

ROUNDS, ITERATIONS = 3, 20
LEAST_RATIO, DECIMALS = 2.5, 1e-6
BACKENDS = ("testbed", "gloo")
JOB_WITHIN_S = 400.0
SUM = '''
"""Times all-reduces; prints `iter N loss 0 seconds S` for each, S being the slowest rank's time."""
import time
import torch
import torch.distributed as dist

dist.init_process_group()
size = 8 << 20
flat = torch.ones(size)
for turn in range(1, 6):
    flat.fill_(1.0)
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(flat)
    took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    assert bool((flat == dist.get_world_size()).all()), "a wrong sum"
    if dist.get_rank() == 0:
        print(f"iter {turn} loss 0 seconds {took.item():.6f}", flush=True)
dist.destroy_process_group()
'''
SUM_BYTES, WARM_UP = 32 << 20, 1
PATTERN = r"iter (?P<iter>\d+) loss (?P<loss>[-+.\deE]+)"


def declare(lab: BenchLab) -> None:
    """Write the lab's programs.yml: both programs, over both back-ends."""
    folder = lab.inventory / "programs"
    (folder / "sum").mkdir(parents=True)
    (folder / "sum" / "sum.py").write_text(SUM)
    shutil.copytree(
        ROOT / "examples" / "programs" / "gpt",
        folder / "gpt",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    args = {
        "iterations": {"kind": "int", "default": ITERATIONS},
        "preset": {"kind": "choice", "of": ["tiny", "small", "medium"]},
    }
    common = {"env": {"OMP_NUM_THREADS": "1"}, "iterations": {"pattern": PATTERN}}
    programs = {
        f"{name}-{backend}": {
            **common,
            "command": [sys.executable, "{files}/" + script],
            "files": f"programs/{name}",
            "args": args if name == "gpt" else {},
            "backend": backend,
        }
        for name, script in (("sum", "sum.py"), ("gpt", "train.py"))
        for backend in BACKENDS
    }
    (lab.inventory / "programs.yml").write_text(json.dumps({"programs": programs}))  # JSON is YAML


def plan(lab: BenchLab, program: str, **args: object) -> Path:
    """Write the TopoOpt plan with this program as its job; return its path."""
    body: dict[str, Any] = json.loads((ROOT / "examples" / "topoopt-12.json").read_text())
    body.pop("$schema", None)
    body["name"] = program
    job = {key: body["job"][key] for key in ("ranks", "rings")}
    body["job"] = {"name": program, "workload": "program", "program": program, "args": args, **job}
    path = lab.folder / f"{program}.json"
    path.write_text(json.dumps(body))
    return path


def output(lab: BenchLab, path: Path) -> list[str]:
    """Bring `path` up, wait for its job and return what rank 0 printed. Raises: RuntimeError - the
    job failed.
    """
    return [line for line in lab.job_output(path, JOB_WITHIN_S) if line.startswith("iter ")]


def busbw_mbps(lines: list[str]) -> float:
    """The median bus bandwidth (Mb/s) of the all-reduces after the first, which connects."""
    times = [float(line.split()[5]) for line in lines[WARM_UP:]]
    return 2 * 11 / 12 * SUM_BYTES * 8 / 1e6 / statistics.median(times)


def iteration_ms(lab: BenchLab) -> float:
    """The median time (ms) of an iteration of the last job, but for the first three."""
    run = lab.call("job", "status", check=False)["run"]
    (file,) = (lab.folder / "runs" / "runs" / str(run)).glob("*.iterations.jsonl")
    return statistics.median(
        float(json.loads(line)["iter_ms"]) for line in file.read_text().splitlines()[3:]
    )


def main() -> int:
    """Measure and print; return the exit code."""
    rates: dict[str, list[float]] = {name: [] for name in BACKENDS}
    losses: dict[str, float] = {}
    took_ms: dict[str, float] = {}
    with bench_lab() as lab:
        declare(lab)
        for name in BACKENDS:
            lines = output(lab, plan(lab, f"gpt-{name}", iterations=ITERATIONS, preset="small"))
            losses[name], took_ms[name] = float(lines[-1].split()[3]), iteration_ms(lab)
            print(
                f"  gpt over {name:<8} loss {losses[name]:.6f} after {len(lines)}, {took_ms[name]:.0f} ms an iteration",
                flush=True,
            )
        for step in range(ROUNDS):
            for name in BACKENDS:
                rates[name].append(busbw_mbps(output(lab, plan(lab, f"sum-{name}"))))
                print(
                    f"  round {step + 1}, {name:<8} busbw {rates[name][-1]:7.1f} Mb/s", flush=True
                )
    ours, gloos = (statistics.median(rates[name]) for name in BACKENDS)
    apart = abs(losses["testbed"] - losses["gloo"])
    return verdict(
        "backend",
        ours / gloos,
        "times gloo",
        LEAST_RATIO,
        "at least",
        also=apart < 1.5 * DECIMALS,
        testbed_mbps=round(ours, 1),
        gloo_mbps=round(gloos, 1),
        spread=round(max(spread(values) for values in rates.values()), 4),
        loss=losses,
        loss_apart=round(apart, 6),
        iteration_ms={name: round(value, 1) for name, value in took_ms.items()},
        size="32M",
        ranks=12,
    )


if __name__ == "__main__":
    sys.exit(main())
