"""Staging that fails changes nothing anybody uses, so the command says that and asks for nobody's
hands.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from optics import Refused, RolledBack
from orchestrator.hosts.facts import PLAYBOOKS
from orchestrator.hosts.runner import Ansible
from tests.drills.bench import Bench, opened, plan_text

ONE = [("gpu01:p1", "gpu02:p1")]
MOVED = [("gpu01:p3", "gpu02:p3")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=2) as made:
        yield made


def ansible(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Ansible:
    """Ansible with another program in the place of the interpreter that runs it."""
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "python3"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    (folder / "inventory").mkdir()
    (folder / "inventory" / "hosts.yml").write_text("all: {hosts: {gpu01: {}, gpu02: {}}}\n")
    return Ansible(folder / "inventory", folder / "run")


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("kill -KILL $$", "ansible-playbook was killed before it ended"),
        (
            "echo 'ERROR! no space left'; kill -KILL $$",
            "ansible-playbook was killed before it ended.*: ERROR! no space left",
        ),
        (
            "echo 'ERROR! no such task'; exit 4",
            "ansible-playbook ended with exit code 4.*: ERROR! no such task",
        ),
        (
            "exit 0",
            "ansible-playbook ended with exit code 0; no result of gpu01, gpu02 and printed nothing",
        ),
    ],
)
def test_what_died_is_named_with_what_it_had_said(
    tmp_path: Path, script: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = ansible(tmp_path, script, monkeypatch)
    with pytest.raises(Refused, match=f"(?s)^stage_rules.yml: {text}") as died:
        play.play("stage_rules.yml", ["gpu01", "gpu02"], {})
    play.close()
    assert "gpu01, gpu02" in str(died.value) and str(tmp_path / "run") in died.value.hint


def test_an_ansible_that_hangs_is_stopped_and_the_message_says_after_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = ansible(tmp_path, "exec sleep 60", monkeypatch)
    with pytest.raises(
        Refused,
        match=r"^stage_rules\.yml: ansible-playbook was stopped, as it had not ended after 1 s",
    ):
        play.play("stage_rules.yml", ["gpu01"], {}, timeout_s=1.0)
    play.close()


async def test_a_staging_that_fails_ends_as_everything_is_as_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("one", ONE))

    async def dies(*argv: Any) -> None:
        raise Refused(
            "stage_rules.yml: ansible-playbook was killed before it ended", hint="look there"
        )

    monkeypatch.setattr(bench.fleet.routes, "stage", dies)
    with pytest.raises(RolledBack, match="killed before it ended\nnothing was changed") as failed:
        await bench.up(plan_text("moved", MOVED))
    assert failed.value.exit_code == 6 and failed.value.hint == "look there"
    assert bench.held() == bench.wanted(ONE) and not (await bench.status()).unfinished
    with bench.store() as store:
        record = store.get("last")
    assert record is not None and (record.status, record.exit_code) == ("rolled-back", 6)


async def test_a_host_that_refuses_to_be_asked_before_anything_is_changed_is_no_case_for_hands(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale() -> tuple[str, ...]:
        return ("gpu01", "gpu02")

    async def dies(*argv: Any) -> None:
        raise Refused("install.yml: ansible-playbook was killed before it ended")

    monkeypatch.setattr(bench.fleet.channels, "unprovisioned", stale)
    monkeypatch.setattr(bench.fleet, "provision", dies)
    with pytest.raises(RolledBack, match=r"install\.yml.*\nnothing was changed"):
        await bench.up(plan_text("one", ONE))
    assert bench.held() == bench.wanted([])


def test_a_play_that_was_expected_is_run_by_the_ansible_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""echo began >> {tmp_path}/log
read -r words < "$3"
[ -z "$words" ] || cat "$words" >> {tmp_path}/log"""
    play = ansible(tmp_path, script, monkeypatch)
    log, folder = tmp_path / "log", tmp_path / "run" / "ansible"
    play.expect("stage_rules.yml")
    play.expect("stage_rules.yml")
    with pytest.raises(Refused, match=r"^launch\.yml"):
        play.play("launch.yml", ["gpu02"], {})
    with pytest.raises(Refused, match="no result of gpu01 and"):
        play.play("stage_rules.yml", ["gpu01"], {})
    assert log.read_text().count("began") == 2 and '"--limit", "gpu01"' in log.read_text()
    play.expect("stage_rules.yml")
    play.close()
    assert sorted(path.name for path in folder.iterdir()) == ["01-stage_rules", "02-launch"], (
        "one that was not needed is gone"
    )


def test_an_ansible_whose_command_died_before_it_was_heard_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "message")
    ended = subprocess.run(
        [sys.executable, "-P", PLAYBOOKS / "ansible_playbook.py", tmp_path / "message"],
        timeout=60.0,
    )
    assert ended.returncode == 0


def test_an_ansible_that_waits_ends_if_its_words_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = ansible(tmp_path, 'read -r words < "$3"', monkeypatch)
    play.expect("stage_rules.yml")
    with pytest.raises(TypeError):
        play.play("stage_rules.yml", ["gpu01"], {"rules": object()})
    play.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ansible ")]
    assert not list((tmp_path / "run").iterdir())


def test_commands_that_share_a_folder_do_not_read_each_others_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ansible(tmp_path, 'read -r words < "$3"', monkeypatch)
    other = Ansible(tmp_path / "inventory", tmp_path / "run")
    for play, lab in ((first, "lab1"), (other, "lab2")):
        with pytest.raises(Refused, match="no result"):
            play.play("stop_job.yml", ["gpu01"], {"lab": lab})
        play.close()
    kept = sorted((tmp_path / "run" / "ansible").glob("*/variables.json"))
    assert [path.read_text() for path in kept] == ['{"lab": "lab1"}', '{"lab": "lab2"}']
