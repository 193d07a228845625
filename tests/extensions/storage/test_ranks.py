"""Real ranks that send their checkpoints to a real receiver: kept there as on their own disks, begun
from again, and done without.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.ranks import ROOT, Ranks, free_port, ranks, records

SMALL = ("-m", "workloads.programs.train", "--hidden", "32", "--batch", "4")


class Site:
    """A storage, and what the ranks know of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.kept = folder / "storage"
        self.kept.mkdir()

    def begin(self, restore: str = "", mbps: float = 500.0) -> Mapping[str, str]:
        known = {"address": "127.0.0.1", "port": free_port(), "key": secrets.token_hex(32)}
        text = json.dumps({**known, "restore": restore, "mbps": mbps, "lane": False})
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TESTBED_OBSERVER_STORAGE": text,
            "TESTBED_STORAGE_RANKS": "2",
            "TESTBED_CHECKPOINT_DIR": str(self.kept),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "extensions.storage.rank"], env=env, stdout=subprocess.PIPE
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"storage: listens, 2 ranks\n"
        return {"TESTBED_OBSERVER_STORAGE": text}

    def train(self, name: str, known: Mapping[str, str], *argv: str) -> Any:
        return ranks(
            2, *SMALL, *argv, directory=self.folder / name, rings=[[0, 1]], more=lambda _: known
        )

    def sent(self, name: str, rank: int) -> list[dict[str, Any]]:
        path = self.folder / name / str(rank) / "storage.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def done(job: Ranks) -> list[str]:
    ended = job.finish()
    assert [code for code, _, _ in ended] == [0, 0], ended
    return [err for _, _, err in ended]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_storage_has_what_each_rank_wrote_and_ranks_without_any_begin_from_it(
    site: Site, how: str
) -> None:
    argv = ("--checkpoint", how, "--checkpoint-every", "2")
    with site.train("first", site.begin(), *argv, "--iterations", "6") as job:
        assert done(job) == ["", ""]
    for rank in (0, 1):
        own = sorted((site.folder / "first" / str(rank)).glob("checkpoint-*.pt"))
        assert [path.name for path in own] == [f"checkpoint-{rank}-{n}.pt" for n in (2, 4, 6)]
        for path in own:
            assert (site.kept / path.name).read_bytes() == path.read_bytes()
        sent = site.sent("first", rank)
        assert [(each["iter"], each["kept"]) for each in sent] == [(2, 1), (4, 1), (6, 1)]
        assert all(each["limit_mbps"] == 500 for each in sent)
    summary = json.loads((site.folder / "first" / "0" / "summary.json").read_text())
    (site.kept / "checkpoint-1-6.pt").unlink()  # rank 1 is given what rank 0 wrote
    for restore in ("newest", "only"):
        argv = ("--iterations", "6", "--resume")
        with site.train(restore, site.begin(restore), *argv) as job:
            done(job)
        again = json.loads((site.folder / restore / "0" / "summary.json").read_text())
        assert again["resumed_from"] == 6
        assert again["weights_sha256"] == summary["weights_sha256"] and again["weights_identical"]


def test_the_ranks_own_are_used_where_they_are_as_new_and_a_new_training_drops_the_storages(
    site: Site,
) -> None:
    argv = ("--checkpoint-every", "2", "--iterations", "4")
    with site.train("first", site.begin(), *argv) as job:
        done(job)
    for number in (3, 4):
        for rank in (0, 1):
            (site.kept / f"checkpoint-{rank}-{number}.pt").unlink(missing_ok=True)
    with site.train("first", site.begin("newest"), "--iterations", "5", "--resume") as job:
        done(job)
    again = json.loads((site.folder / "first" / "0" / "summary.json").read_text())
    assert again["resumed_from"] == 4, "the storage has 2"
    site.begin()
    assert not list(site.kept.glob("checkpoint-*"))


def test_a_job_goes_on_when_its_storage_dies_and_counts_what_is_not_sent(site: Site) -> None:
    known = site.begin()
    with site.train("first", known, "--checkpoint-every", "1", "--iterations", "0") as job:
        give_up = time.monotonic() + 60
        while not list(site.kept.glob("checkpoint-1-*.pt")):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        site.processes[0].send_signal(signal.SIGKILL)
        at = len(records(site.folder / "first"))
        while len(records(site.folder / "first")) < at + 20:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        job.signal(signal.SIGTERM)
        errors = done(job)
    assert all("# storage: not sent, the job goes on: " in each for each in errors)
    for rank in (0, 1):
        sent = site.sent("first", rank)
        assert sent[0]["kept"] and not sent[-1]["kept"]
        own = site.folder / "first" / str(rank) / f"checkpoint-{rank}-{sent[-1]['iter']}.pt"
        assert own.exists(), "the rank's own newest is there"


def test_a_storage_paces_its_senders_and_none_is_restored_from_where_one_rank_has_none(
    site: Site,
) -> None:
    argv = ("--checkpoint-every", "3", "--iterations", "3")
    with site.train("first", site.begin(mbps=1.0), *argv) as job:
        done(job)
    for rank in (0, 1):
        [sent] = site.sent("first", rank)
        assert sent["send_ms"] >= 0.9 * (sent["bytes"] - (1 << 16)) * 8 / 1e3
    shutil.rmtree(site.kept)
    site.kept.mkdir()
    with site.train("alone", site.begin("only"), "--iterations", "3", "--resume") as job:
        ended = job.finish()
    assert [code for code, _, _ in ended] == [2, 2]
    assert "the job's storage has no checkpoint for all ranks" in ended[0][2]
