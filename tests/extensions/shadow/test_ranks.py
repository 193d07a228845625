"""A shadow of real ranks, behind a real tap on the loopback interface: equal to the end, and what a
killed job goes on from.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from extensions.shadow.rank import shadow_observer
from extensions.shadow.rank.__main__ import Peer, Reader
from extensions.shadow.rank.follower import Shape, State
from tests.backend.crew import installed
from tests.workloads.ranks import ROOT, Ranks, free_port, ranks, records
from workloads.programs.observers import Training
from workloads.training.checkpoint import Checkpoints
from workloads.transport.buffers import Buffer
from workloads.transport.peers import Meeting

RINGS = [[0, 1, 2], [2, 1, 0]]
TAP = """
import os, sys
from extensions.shadow.host import tap
port, key, lanes = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3:]
tap.work([("lo", 1)], tap.program(lanes), ("127.0.0.1", port, key, tap.WITHIN_S), os.dup(1))
"""


class Site:
    """Loopback addresses of one job, its shadow, and the taps of two of its three hosts."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.key = directory, secrets.token_hex(32)
        self.octet = random.randrange(100, 250)  # other tests' ranks talk on loopback, too
        self.processes: list[subprocess.Popen[bytes]] = []

    def lanes(self, rank: int) -> list[str]:
        return [f"127.{self.octet}.{rank + 1}.{lane + 1}" for lane in range(2)]

    def follow(self, name: str, *, restore: str = "") -> Mapping[str, str]:
        """Start shadow and taps; return what the ranks are to know."""
        port = free_port()
        self.met = json.dumps(
            {"address": "127.0.0.1", "port": port, "key": self.key, "restore": restore}
        )
        (self.directory / name).mkdir()
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TESTBED_OBSERVER_SHADOW": self.met,
        }
        env |= {
            "TESTBED_JOB_DIR": str(self.directory / name),
            "TESTBED_CHECKPOINT_DIR": str(self.directory),
        }
        with (self.directory / name / "log").open("wb") as log:
            command = [sys.executable, "-m", "extensions.shadow.rank"]
            self.shadow = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        self.processes.append(self.shadow)
        for rank in (1, 2):
            argv = [sys.executable, "-S", "-c", TAP, str(port), self.key, *self.lanes(rank)]
            tap = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
            self.processes.append(tap)
            assert tap.stdout is not None
            assert tap.stdout.read(2) == b"ok"
        return {"TESTBED_OBSERVER_SHADOW": self.met}

    def judged(self, name: str) -> list[dict[str, Any]]:
        assert self.shadow.wait(30) == 0, (self.directory / name / "log").read_text()
        for tap in self.processes:
            tap.wait(10)  # they end with it
        return [
            json.loads(line)
            for line in (self.directory / name / "shadow.jsonl").read_text().splitlines()
        ]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("packet sockets need root")
    made = Site(tmp_path)
    yield made
    made.end()


def train(site: Site, folder: Path, met: Mapping[str, str], *argv: str) -> Any:
    command = ("-m", "workloads.programs.train", "--hidden", "128", "--batch", "4", *argv)
    return ranks(
        3,
        *command,
        directory=folder,
        rings=RINGS,
        more=lambda rank: {**met, "TESTBED_LANES": json.dumps(site.lanes(rank))},
    )


def reached(folder: Path, iteration: int, job: Ranks) -> None:
    deadline = time.monotonic() + 60
    while not (folder / "0" / "iterations.jsonl").exists() or len(records(folder)) < iteration:
        assert time.monotonic() < deadline and all(
            process.poll() is None for process in job.processes
        )
        time.sleep(0.01)


@pytest.mark.long
def test_a_killed_job_goes_on_from_the_iteration_before_and_its_shadow_holds_the_same_weights(
    tmp_path: Path, site: Site
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with train(site, first, site.follow("s1"), "--iterations", "0") as job:
        reached(first, 15, job)
        job.signal(signal.SIGKILL)
        judged = site.judged("s1")
    done = records(first)[-1]["iter"]
    assert [each["iter"] for each in judged] == list(range(1, judged[-1]["iter"] + 1))
    assert all(each["equal"] for each in judged)
    kept = judged[-1]["checkpoint"]
    assert kept >= done - 1, "at most one iteration is lost"
    assert (tmp_path / f"checkpoint-0-{kept}.pt").exists()
    argv = ("--iterations", "40", "--checkpoint-every", "40", "--resume")
    with train(site, second, site.follow("s2", restore="newest"), *argv) as job:
        assert [(code, err) for code, _, err in job.finish()] == [(0, "")] * 3
        judged = site.judged("s2")
    reply = json.loads((second / "0" / "summary.json").read_text())
    assert reply["resumed_from"] == kept and reply["weights_identical"]
    assert [each["iter"] for each in judged if each["equal"]] == list(range(kept + 1, 41))
    state = torch.load(tmp_path / "checkpoint-0-40.pt", weights_only=True)
    weights = hashlib.sha256(
        b"".join(bytes(Buffer.of(each.view(-1)).memory) for each in state["parameters"])
    )
    assert weights.hexdigest() == reply["weights_sha256"], "the shadow's weights are the ranks'"
    with train(
        site, second, site.follow("s3", restore="newest"), "--iterations", "41", "--resume"
    ) as job:
        ended = job.finish()
    assert [code for code, _, _ in ended] == [
        0
    ] * 3 and "of iteration 40, the ranks have one of 40" in ended[0][2]
    assert json.loads((second / "0" / "summary.json").read_text())["resumed_from"] == 40


@pytest.mark.parametrize("spoil", ["a byte", "the end"])
def test_a_checkpoint_that_changed_on_disk_is_said_never_used_and_the_one_before_is_sent(
    tmp_path: Path, spoil: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = Shape(0.1, ((64, 64),), {"model": "mlp"})
    reader = Reader(cast(Any, None), b"", tmp_path, Checkpoints(tmp_path, 0, torch), torch)
    sent = {}
    for iteration in (3, 4):
        state = State(shape, torch)
        state.parameters[0].copy_(torch.randn(64, 64))
        sent[iteration] = bytes(state.memory)
        reader._follower = cast(Any, SimpleNamespace(newest=(shape, iteration, state)))
        reader._keep()
    reader._records.close()
    reader._selector.close()

    def restored() -> tuple[dict[str, Any], bytes]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            reader._restore(Peer(ours, b"", ""))
            line, _, content = theirs.recv(1 << 20).partition(b"\n")
        return json.loads(line), content

    about, content = restored()
    assert (
        about == {"iteration": 4, "bytes": 2 * 4 * 64 * 64, "same": {"model": "mlp"}}
        and content == sent[4]
    )
    newest = tmp_path / "checkpoint-0-4.pt"
    whole = bytearray(newest.read_bytes())
    at = bytes(whole).index(sent[4][:64])
    whole[at] ^= 1
    newest.write_bytes(whole if spoil == "a byte" else whole[: at + 64])
    about, content = restored()
    assert about["iteration"] == 3 and content == sent[3]
    assert "the checkpoint of iteration 4 is not used: " in capsys.readouterr().out
    (tmp_path / "checkpoint-0-3.pt").unlink()
    assert restored() == ({"iteration": 0, "bytes": 0, "same": {}}, b"")


def test_a_checkpoint_of_another_size_is_not_taken_and_the_ranks_own_are_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SimpleNamespace(
        place=SimpleNamespace(rank=0),
        torch=torch,
        accord=SimpleNamespace(gather=lambda _, value: [value]),
    )
    own = Training(cast(Any, job), [torch.ones(4)], [torch.ones(4)], 0.1, {}, lambda *_: 0)
    monkeypatch.setattr(shadow_observer, "restored", lambda *_: (9, torch.zeros(7)))
    assert (
        shadow_observer.ShadowObserver(Meeting("127.0.0.1", 1, b"", "newest")).restore(own, 5) == 0
    )
    assert own.parameters[0].tolist() == [1.0] * 4
    assert "the shadow's checkpoint has 7 numbers, this job has 8" in capsys.readouterr().err
    with pytest.raises(ValueError, match="has 7 numbers, this job has 8"):
        shadow_observer.ShadowObserver(Meeting("127.0.0.1", 1, b"", "only")).restore(own, 0)


def test_a_job_goes_on_without_a_shadow_that_is_not_there_or_does_not_know_the_key(
    tmp_path: Path, site: Site
) -> None:
    met = json.dumps({"address": "127.0.0.1", "port": free_port(), "key": site.key})
    patience = "import extensions.shadow.rank.shadow_observer as w; w.CONNECT_S = 0.2; from workloads.programs.train import main; main()"
    command = ("-c", patience, "--hidden", "32", "--batch", "2", "--iterations", "3")
    with ranks(
        2,
        *command,
        directory=tmp_path,
        rings=[[0, 1]],
        more=lambda _: {"TESTBED_OBSERVER_SHADOW": met},
    ) as job:
        ended = job.finish()
    assert [code for code, _, _ in ended] == [0, 0]
    assert "the job goes on without" in ended[0][2] and ended[1][2] == ""


def test_a_shadow_starts_from_what_a_host_has_and_refuses_what_it_cannot_read(
    tmp_path: Path,
) -> None:
    """And not from another package of that name, of another version say, that is installed
    there.
    """
    (tmp_path / "site" / "extensions").mkdir(parents=True)
    (tmp_path / "site" / "extensions" / "__init__.py").touch()
    for output in ("", '{"address": "127.0.0.1"}'):
        env = {
            "PYTHONPATH": f"{installed()}:{tmp_path / 'site'}",
            "TESTBED_OBSERVER_SHADOW": output,
        }
        argv = [sys.executable, "-S", "-m", "extensions.shadow.rank"]
        done = subprocess.run(
            argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (
            done.returncode == 2
            and "TESTBED_OBSERVER_SHADOW: not a JSON object with address, port and key"
            in done.stderr
        )
