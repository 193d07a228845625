"""The command line under test, with directories of its own and an imagined lab whose runs are
really recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.settings import load
from orchestrator.store.store import Store
from orchestrator.views.report.figures import Drawing
from tests.views.report.recorded import START_S, HandClock, Lab

UNDRAWN = pytest.mark.usefixtures("undrawn")
"""Of tests that look at no figure: drawing takes most of a page's time."""


@dataclass
class Printed:
    """What one command line printed and returned."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        import json

        return dict(json.loads(self.out)["data"])


@dataclass
class Typed:
    capsys: pytest.CaptureFixture[str]
    home: Path

    def __call__(self, *argv: object) -> Printed:
        code = main.run([str(word) for word in argv])
        printed = self.capsys.readouterr()
        return Printed(code, printed.out, printed.err)


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TESTBED_INVENTORY", raising=False)
    monkeypatch.delenv("TESTBED_INFLUX_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return Typed(capsys, tmp_path)


@pytest.fixture
def lab(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """An imagined lab; the store's wall clock follows its clock."""
    clock = HandClock()
    monkeypatch.setattr("orchestrator.store.store.time.time", lambda: START_S + clock.now_ns / 1e9)
    settings = load()
    with Store(settings.store_path, durable=False) as store:
        yield Lab(settings, store, clock)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have nothing in the place of their figures."""
    monkeypatch.setattr(Drawing, "svg", lambda _: "")
