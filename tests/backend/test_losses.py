"""A rank that dies: the others end in an error that names it, within the time the job waits for a
peer.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.backend.crew import WORLD, Crew

# tests/workloads/test_backend.py has a short one
pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

LOST = 2


def _in_progress(crew: Crew, within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not all("under way" in crew.log(rank) for rank in range(WORLD)):
        assert time.monotonic() < deadline_s, [crew.log(rank) for rank in range(WORLD)]
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all", "barrier", "broadcast", "pairs"])
def test_a_killed_rank_is_named_by_those_that_waited_for_it(kind: str, tmp_path: Path) -> None:
    crew = Crew(tmp_path, env=lambda _: {"TESTBED_TIMEOUT_S": "10"})
    try:
        crew.ask("losses.until_a_peer_is_lost", kind=kind)
        _in_progress(crew)
        crew.processes[LOST].kill()
        answers = crew.answers(within_s=60)
        reply = {rank: answer.get("value") for rank, answer in enumerate(answers) if rank != LOST}
        assert all(reply.values()), answers
        assert all(re.search(r"\brank \d", text) for text in reply.values()), reply
        for neighbour in (LOST - 1, LOST + 1):  # the others may name one that gave up
            assert f"rank {LOST}" in reply[neighbour], reply
    finally:
        crew.stop()
