"""Modelled computing on a host that is slower: it takes so many times as long as the job's options
and traffic say.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workloads.programs.test_replay import RUN
from tests.workloads.ranks import ranks, records

TRAFFIC = {"compute_s": 0.005, "groups": [], "transfers": [[0, 1, 1001, 0]]}
REPLAY = (
    "-c",
    f"import os; os.environ['TESTBED_TRAFFIC'] = {json.dumps(json.dumps(TRAFFIC))}\n{RUN}",
)
MOE = (
    "-m",
    "workloads.programs.moe",
    "--iterations",
    "3",
    "--tokens",
    "64",
    "--width",
    "16",
    "--compute-ms",
    "5",
)
RETRIEVE = (
    "-m",
    "workloads.programs.retrieve",
    "--iterations",
    "3",
    "--requests",
    "5",
    "--keys",
    "200",
    "--lookup-ms",
    "1",
)
TRAIN = (
    "-m",
    "workloads.programs.train",
    "--iterations",
    "3",
    "--hidden",
    "32",
    "--compute-ms",
    "5",
)
SERVE = (
    "-m",
    "workloads.programs.serve",
    "--iterations",
    "3",
    "--trace",
    "list",
    "--list",
    "0:16:1",
    "--prompt-us",
    "0",
    "--step-ms",
    "5",
)


@pytest.mark.parametrize(
    "command",
    [REPLAY, MOE, RETRIEVE, SERVE, TRAIN, (*TRAIN, "--sync-every", "2")],
    ids=["replay", "moe", "retrieve", "serve", "train", "train that averages seldom"],
)
def test_no_iteration_is_shorter_than_its_modelled_computing_on_this_host(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    with ranks(2, *command, directory=tmp_path, more=lambda _: {"TESTBED_DILATION": "100"}) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 2
    assert min(float(str(record["iter_ms"])) for record in records(tmp_path)) >= 500
