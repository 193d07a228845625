"""Real ranks that send their checkpoints to a real receiver: kept there as on their own disks, begun
from again, and done without.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from extensions.storage.operator import READY
from extensions.storage.rank import __main__ as program
from tests.workloads.ranks import ROOT, Ranks, ranks, records
from workloads.progress.heartbeat import FILE, NOW, NOW_AT, PHASES

SMALL = ("-m", "workloads.programs.train", "--hidden", "32", "--batch", "4")


class Site:
    """A storage, and what the ranks know of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.newest = 0
        self.kept = folder / "storage"
        self.kept.mkdir()

    def begin(
        self, restore: str = "", mbps: float = 500.0, ranks: Sequence[int] = (0, 1)
    ) -> Mapping[str, Any]:
        known = {"address": "127.0.0.1", "port": 0, "key": secrets.token_hex(32)}
        known |= {"restore": restore, "mbps": mbps, "lane": False, "ranks": [*ranks]}
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TESTBED_OBSERVER_STORAGE": json.dumps(known),
            "TESTBED_CHECKPOINT_DIR": str(self.kept),
            "TESTBED_JOB_DIR": str(self.folder),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "extensions.storage.rank"], env=env, stdout=subprocess.PIPE
        )
        self.processes.append(process)
        assert process.stdout is not None
        found = READY.search(process.stdout.readline().decode())
        assert found is not None
        self.newest = int(found[2])
        return {**known, "port": int(found[1])}

    def train(self, name: str, known: Mapping[str, Any], *argv: str) -> Any:
        def more(rank: int) -> dict[str, str]:
            told = {**known, "number": known["ranks"][rank]} if known else {}
            return {"TESTBED_OBSERVER_STORAGE": json.dumps(told)} if told else {}

        return ranks(2, *SMALL, *argv, directory=self.folder / name, rings=[[0, 1]], more=more)

    def sent(self, rank: int) -> list[dict[str, Any]]:
        lines = (self.folder / "storage.jsonl").read_text().splitlines()
        return [each for each in map(json.loads, lines) if each["rank"] == rank]


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
    assert site.processes[0].wait(20) == 0, "its ranks said that they ended"
    for rank in (0, 1):
        own = sorted((site.folder / "first" / str(rank)).glob("checkpoint-*.pt"))
        assert [path.name for path in own] == [f"checkpoint-{rank}-{n}.pt" for n in (2, 4, 6)]
        for path in own:
            assert (site.kept / path.name).read_bytes() == path.read_bytes()
        sent = site.sent(rank)
        assert [(each["iter"], each["unsent"]) for each in sent] == [(2, 0), (4, 0), (6, 0)]
    summary = json.loads((site.folder / "first" / "0" / "summary.json").read_text())
    (site.kept / "checkpoint-1-6.pt").unlink()  # rank 1 is given what rank 0 wrote
    for restore in ("newest", "only"):
        argv = ("--iterations", "6", "--resume")
        with site.train(restore, site.begin(restore), *argv) as job:
            done(job)
        assert site.newest == 6
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
    with site.train("anew", site.begin(), *argv) as job:
        done(job)
    kept = sorted(path.name for path in site.kept.glob("checkpoint-*"))
    assert kept == [f"checkpoint-{rank}-{number}.pt" for rank in (0, 1) for number in (2, 4)]


def test_what_ranks_have_beyond_what_they_are_restored_from_is_gone(site: Site) -> None:
    with site.train("first", site.begin(), "--checkpoint-every", "2", "--iterations", "4") as job:
        done(job)
    argv = ("--checkpoint-every", "4", "--iterations", "8", "--resume")
    with site.train("first", {}, *argv) as job:  # without the storage
        done(job)
    with site.train("first", site.begin("only"), "--iterations", "5", "--resume") as job:
        done(job)
    for rank in (0, 1):
        own = (site.folder / "first" / str(rank)).glob("checkpoint-*")
        assert sorted(path.name for path in own) == [f"checkpoint-{rank}-{n}.pt" for n in (2, 4)]


def test_ranks_of_which_one_left_are_given_what_each_wrote_and_a_new_one_another_s(
    site: Site,
) -> None:
    """What was left out of the sums is a rank's own."""
    argv = ("--compress", "powersgd:2", "--checkpoint-every", "2")
    with site.train("first", site.begin(ranks=(7, 8)), *argv, "--iterations", "2") as job:
        done(job)
    for numbers, lost in (((8, 7), 0), ((8, 9), 1)):
        known = site.begin("only", ranks=numbers)
        name = f"again {lost}"
        with site.train(name, known, *argv[:2], "--iterations", "3", "--resume") as job:
            done(job)
        summary = json.loads((site.folder / name / "0" / "summary.json").read_text())
        assert (summary["resumed_from"], summary["own_state_lost"]) == (2, lost)


def test_all_ranks_start_for_as_long_as_one_of_them_is_given_its_checkpoint(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a guard, which restarts a job where ranks that train wait for another, sees no hang."""
    with site.train("first", site.begin(), "--checkpoint-every", "2", "--iterations", "2") as job:
        done(job)
    began, goes_on, check = threading.Event(), threading.Event(), program.check_whole

    def slow(path: Path) -> None:
        if path.name == "checkpoint-1-2.pt":
            began.set()
            assert goes_on.wait(60)
        check(path)

    monkeypatch.setattr(program, "check_whole", slow)
    listener, key = socket.create_server(("127.0.0.1", 0)), secrets.token_bytes(32)
    given = [0, 1], "only", site.kept, site.folder / "again.jsonl"
    receiver = program.Receiver(listener, key, *given)
    thread = threading.Thread(target=receiver.run, daemon=True)
    thread.start()
    known = {"address": "127.0.0.1", "port": listener.getsockname()[1], "key": key.hex()}
    known |= {"restore": "only", "mbps": 500.0, "lane": False, "ranks": [0, 1]}
    with site.train("again", known, "--iterations", "3", "--resume") as job:
        assert began.wait(60)
        give_up = time.monotonic() + 60
        while receiver._giving != {1}:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        for rank in (0, 1):
            beat = (site.folder / "again" / str(rank) / FILE).read_bytes()
            assert PHASES[NOW.unpack_from(beat, NOW_AT)[2]] == "start"
        goes_on.set()
        done(job)
    thread.join(20)
    listener.close()
    receiver._selector.close()


def test_a_job_goes_on_when_its_storage_dies_and_counts_what_is_not_sent(site: Site) -> None:
    known = site.begin()
    with site.train("first", known, "--checkpoint-every", "1", "--iterations", "0") as job:
        give_up = time.monotonic() + 60
        while not all(site.sent(rank) for rank in (0, 1)):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        site.processes[0].send_signal(signal.SIGKILL)
        at = len(records(site.folder / "first"))
        while len(records(site.folder / "first")) < at + 20:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        job.signal(signal.SIGTERM)
        errors = done(job)
    for rank, text in enumerate(errors):
        newest = site.sent(rank)[-1]["iter"]
        assert re.search(r"# storage: the checkpoint of iteration \d+ is not at the job's", text)
        assert "and the job goes on; if this goes on: testbed job stop, then testbed up" in text
        own = (site.folder / "first" / str(rank)).glob("checkpoint-*")
        assert max(int(path.stem.split("-")[2]) for path in own) > newest


def test_a_storage_paces_its_senders_and_none_is_restored_from_where_one_rank_has_none(
    site: Site,
) -> None:
    argv = ("--checkpoint-every", "3", "--iterations", "3")
    with site.train("first", site.begin(mbps=1.0), *argv) as job:
        done(job)
    for rank in (0, 1):
        [sent] = site.sent(rank)
        assert sent["send_ms"] >= 0.9 * (sent["bytes"] - (1 << 16)) * 8 / 1e3
    shutil.rmtree(site.kept)
    site.kept.mkdir()
    with site.train("alone", site.begin("only"), "--iterations", "3", "--resume") as job:
        ended = job.finish()
    assert [code for code, _, _ in ended] == [2, 2]
    assert "has no checkpoint for all ranks (iterations, by rank: none, none)" in ended[0][2]
