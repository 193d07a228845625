"""Of two runs only the newer may change a host, also after its committer or the whole host was
restarted.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent import daemon, fence
from agent.basics import Failure
from tests.agent.space import Peer, Space

STAGE = {
    "generation": 1,
    "routes": [["10.255.0.2/32", "10.1.0.2", "opt1", "10.255.0.1"]],
    "neighbours": [],
}
FENCED = [
    ("fence", {}),
    ("stage", STAGE),
    ("commit", {"generation": 1}),
    ("confirm", {"generation": 1}),
    ("revert", {}),
    ("clear", {}),
    ("arm", {"generation": 1, "when_up": ["opt1"]}),
    ("disarm", {}),
    ("job.files", {"files": "0" * 64, "offset": 0, "data": "", "last": False}),
    ("job.start", {"name": "j", "argv": ["true"]}),
    ("job.stop", {"name": "j"}),
    ("job.prepare", {"name": "j", "move": 1, "lease_s": 60}),
    ("job.hold", {"name": "j", "move": 1, "lease_s": 60}),
    ("job.go", {"name": "j", "move": 1}),
    ("job.drop", {"name": "j", "move": 1}),
    ("slots.load", {"slots": [{"generation": 1}, {"generation": 2}], "dwell_s": 1}),
    ("slots.tick", {"count": 0, "lease_s": 1}),
    ("slots.change", {"count": 0}),
    ("slots.stop", {}),
    ("networks.load", {"networks": {"1": 0}}),
    ("networks.drop", {}),
    ("job.secret", {"name": "j", "env": {}}),
    ("tap", {"name": "j"}),
    ("tap.stop", {"name": "j"}),
    ("congestion", {"job": "j", "control": "reno"}),
]


def test_exactly_these_operations_are_fenced() -> None:
    assert {op for op, _ in FENCED} == daemon.FENCED


@pytest.fixture
def token(peer: Peer) -> int:
    """A token this host has seen and none higher."""
    return int(peer.ask("hello")["token"]) + 10


@pytest.mark.parametrize(("op", "fields"), FENCED, ids=[op for op, _ in FENCED])
def test_a_run_that_was_overtaken_changes_nothing(
    peer: Peer, token: int, op: str, fields: dict[str, object]
) -> None:
    assert peer.ask("fence", token=token)["token"] == token
    before = peer.ask("hello")
    answer = peer.ask(op, **fields, token=token - 1)
    assert (answer["ok"], answer["code"]) == (False, "overtaken")
    assert (
        answer["error"]
        == f"{op} of a run with token {token - 1}: a newer run, with token {token}, holds this host"
    )
    after = peer.ask("hello")
    assert {k: after[k] for k in ("active", "staged", "armed", "token")} == {
        k: before[k] for k in ("active", "staged", "armed", "token")
    }


def test_the_newest_run_works_and_everybody_may_look(peer: Peer, token: int) -> None:
    assert peer.ask("stage", **STAGE, token=token)["ok"]
    assert peer.ask("commit", generation=1, token=token)["ok"]
    assert peer.ask("hello", token=1)["active"] == 1
    assert peer.ask("counters", token=1)["ok"]


def test_a_hand_at_the_host_has_no_token_and_is_not_refused(
    host: Space, peer: Peer, token: int
) -> None:
    peer.ask("fence", token=token)
    assert host.agent("call", {"op": "clear"})[0]["ok"]


def test_the_fence_outlives_the_committer(host: Space, peer: Peer, token: int) -> None:
    peer.ask("fence", token=token)
    host.agent("stop")
    host.agent("start")
    again = host.attach()
    assert again.ask("clear", token=token - 1)["code"] == "overtaken"
    assert json.loads(host.run("cat", "/run/var/fence.json").stdout) == {"token": token}


def test_what_an_overtaken_run_armed_does_not_happen(host: Space, peer: Peer, token: int) -> None:
    peer.ask("stage", **STAGE, token=token)
    peer.ask("arm", generation=1, when_up=["opt1"], token=token)
    peer.ask("fence", token=token + 1)
    host.far.ip("link", "set", "opt1", "down")  # type: ignore[attr-defined]
    while peer.event("link")["carrier"]:
        pass
    host.far.ip("link", "set", "opt1", "up")  # type: ignore[attr-defined]
    assert peer.event("link")["carrier"] is True
    assert (peer.ask("hello")["armed"], peer.ask("hello")["active"]) == (None, None)


@pytest.mark.parametrize("wrong", [0, -1, "7", 1.5, True, [1]])
def test_a_token_is_a_whole_number(peer: Peer, wrong: object) -> None:
    answer = peer.ask("clear", token=wrong)
    assert (
        answer["code"] == "bad-request"
        and "token: a whole number >= 1 is needed" in answer["error"]
    )


def test_the_disk_has_a_new_token_before_its_run_does_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "FILE", str(tmp_path / "fence.json"))
    done: list[str] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (done.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().name}"), fsync(fd)),
    )
    monkeypatch.setattr(os, "rename", lambda old, new: (done.append("rename"), rename(old, new)))
    fence.Fence(lambda: done.append("overtaken")).check("fence", {"token": 7})
    assert done == ["fsync fence.json.new", "rename", f"fsync {tmp_path.name}", "overtaken"]


@pytest.mark.parametrize("left", ["", "{", "[]", '{"token": 0}', '{"token": "9"}'])
def test_a_host_that_lost_its_newest_token_takes_the_next_run_that_begins_and_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], left: str
) -> None:
    file = tmp_path / "fence.json"
    file.write_text(left)
    monkeypatch.setattr(fence, "FILE", str(file))
    kept = fence.Fence(lambda: None)
    assert "cannot be read" in capfd.readouterr().err
    with pytest.raises(Failure, match="lost the number of its newest run"):
        kept.check("commit", {"token": 5})
    kept.check("fence", {"token": 6})
    kept.check("commit", {"token": 6})
    with pytest.raises(Failure, match="a newer run, with token 6"):
        kept.check("commit", {"token": 5})
    assert json.loads(file.read_text()) == {"token": 6}
