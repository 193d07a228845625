"""Completion at the prompt of a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import typed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_and_runs(cli: Any, shell: str) -> None:
    from orchestrator.settings import load
    from orchestrator.store.store import Store

    with Store(load().store_path) as store:
        run = store.new_run("up", "emulated", plan_name="ring-12").id

    def complete(*argv: str) -> str:
        line = " ".join(("testbed", *argv))
        return typed(
            at=Path.cwd(),
            _TESTBED_COMPLETE=f"complete_{shell}",
            _TYPER_COMPLETE_ARGS=line,
            COMP_WORDS=line,
            COMP_CWORD=str(len(argv)),
            _TYPER_COMPLETE_FISH_ACTION="get-args",
            _TYPER_COMPLETE_WORD_TO_COMPLETE=argv[-1],
        ).stdout

    assert "experiment" in complete("expe")
    assert "show" in complete("run", "sh"), "its verbs, and not the arguments of `run list`"
    assert run in complete("run", "show", run[:4])
