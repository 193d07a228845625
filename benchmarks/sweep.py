"""What a campaign adds to its trials: 40 predictions on two local workers, then on one; both give
the same values.

The figure is the time of all slots, from the first trial submitted to the last result kept, over
the trials' own time, less 1. With two workers one of them waits for the other's last trial, which
is in it. Starting the workers is distinguished.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import verdict
from orchestrator.experiments.files.sweep.reader import read_campaign
from orchestrator.experiments.files.sweep.values import Campaign
from orchestrator.experiments.sweep import record
from orchestrator.experiments.sweep.campaign import carry_out
from orchestrator.experiments.sweep.cluster import concurrent_trials, dask_client
from orchestrator.experiments.sweep.version import of_program
from orchestrator.settings import load

TRIALS = 40
MOST = 0.05
TEXT = f"""
schema: testbed.sweep/1
name: bench
kind: prediction
base: {{workload: dlrm.yaml, method: topoopt, search: 1000}}
grid: {{seed: {[*range(TRIALS)]}}}
"""


def campaign() -> Campaign:
    """The trials, each a search of some tens of milliseconds: what is added to longer ones is
    less.
    """
    workloads = Path(__file__).parents[1] / "examples" / "workloads"
    return read_campaign(
        TEXT, "bench.yaml", lambda name: (workloads / name).read_text(encoding="utf-8")
    )


def measured(wanted: Campaign, workers: int, folder: Path) -> tuple[float, float, list[object]]:
    """The share added, the time to start the workers (s), and the values of all trials."""
    kept = record.begin_campaign(
        load({"state_dir": str(folder)}), wanted, of_program(), resume=False
    )
    began = time.monotonic()
    with dask_client("local", workers, folder / "dask", folder) as client:
        slots = concurrent_trials(client, [""])
        started = time.monotonic()
        carry_out(client, wanted, kept, wanted.trials, slots, lambda _: None)
        took = time.monotonic() - started
    results = list(kept.results())
    assert len(results) == TRIALS and all(each["state"] == "done" for each in results)
    times = sorted(each["seconds"] for each in results)
    own = sum(times)
    print(
        f"{workers} workers: {took:.1f} s, trials' own {own:.1f} s, median {times[TRIALS // 2]:.2f} s"
    )
    return took * slots[""] / own - 1, started - began, [each["values"] for each in results]


def main() -> int:
    """Measure both and compare."""
    wanted = campaign()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        both, start_s, values = measured(wanted, 2, Path(two))
        alone, _, same = measured(wanted, 1, Path(one))
    return verdict(
        "sweep",
        both,
        "of the trials' own time",
        MOST,
        "at most",
        also=values == same,
        one_worker=round(alone, 4),
        start_s=round(start_s, 2),
        same_values=values == same,
    )


if __name__ == "__main__":
    sys.exit(main())
