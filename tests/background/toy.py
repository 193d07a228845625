"""A service: all that one costs. `python -m tests.background.toy FOLDER LOG` does its work, as its
verb would.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.background.kind import Kind
from orchestrator.background.options import ServiceOptions
from orchestrator.background.state import ServiceState
from orchestrator.background.supervise import supervised
from orchestrator.background.work import serving
from orchestrator.settings import Settings, load

KEY = "lab/ann"


@dataclass(frozen=True, slots=True)
class ToyState(ServiceState):
    """What a toy says of itself. heartbeats: since it began."""

    heartbeats: int = 0


TOY = Kind("toy", ToyState, kept=True)


def settings(folder: Path) -> Settings:
    return load(
        env={f"TESTBED_{name}_DIR": str(folder / name) for name in ("DATA", "STATE", "LOCK")},
        cwd=folder,
    )


async def play(folder: Path, log: str) -> None:
    here = settings(folder)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
    with serving(TOY.file(here, KEY, TOY.own(here, ServiceOptions(log=log, kept=True)))) as file:
        while not (folder / "broken").exists():
            file.emit(replace(file.state, state="playing", heartbeats=file.state.heartbeats + 1))
            await asyncio.sleep(0.01)
        raise ValueError("it is broken\nfor good")


if __name__ == "__main__":
    supervised()
    asyncio.run(play(Path(sys.argv[1]), sys.argv[2]))
