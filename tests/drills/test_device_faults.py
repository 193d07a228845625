"""Faults of devices during a change: those that the stories by seed do not have or do not judge to
the word.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.drills import device_faults
from tests.drills.device_faults import BACK, HANDS, SUCCESS, UNCHANGED, WRONG, Case, tried

CASES = (
    # An answer that is lost or garbled costs nothing: the map is read, and the change goes on.
    (Case("ocs1", "drop-after", "write 2"), SUCCESS),
    (Case("ocs2", "drop-after", "write 5"), SUCCESS),
    (Case("ocs2", "garble", "read 10"), SUCCESS),
    # A Calient that says what is not so.
    (Case("ocs2", "half-duplex", "write 7"), BACK),
    (Case("ocs2", "silent-failure", "write 5"), BACK),
    # Ports.
    (Case("ocs1", "stuck-port", "the beginning", {"port": "1"}), BACK),
    (Case("ocs2", "stuck-port", "the beginning", {"port": "1.1.2/in"}), HANDS),  # went wrong once
    (Case("ocs1", "failed-port", "write 1", {"port": "18"}), HANDS),
    (Case("ocs2", "dark-port", "write 3", {"port": "1.1.2/in"}), HANDS),
    (Case("ocs1", "extra-loss", "the beginning", {"port": "18", "db": 40.0}), BACK),
    # went wrong once
    (Case("ocs2", "port-locked", "the beginning", {"port": "1.1.3/out", "for_s": 0.5}), None),
    # No session is to be had.
    (Case("ocs2", "login-limit", "the beginning", {"limit": 0}), BACK),
    # Restarts; the circuit of a stranger's that one lost is for hands.
    (Case("ocs1", "reboot-keep", "read 8"), BACK),  # went wrong once
    (Case("ocs1", "reboot-lose", "read 1"), UNCHANGED),  # went wrong once
    (Case("ocs1", "reboot-lose", "write 2"), HANDS),
)
"""A fault and what is expected; None: it depends on the moment which of the honest ends it comes
to.
"""


@pytest.mark.parametrize(("case", "expected"), CASES, ids=str)
async def test_a_fault_ends_in_success_exactly_as_before_or_in_an_honest_list(
    case: Case, expected: str | None, tmp_path: Path
) -> None:
    """S1, S2, S5, S7, S9: judged by the devices' mirrors, the hosts' routes and the store."""
    found = await tried(tmp_path, case)
    assert not found.problems, "\n".join([*found.problems, found.message])
    assert found.outcome == (expected or found.outcome), found.message


async def test_a_judge_that_is_told_a_lie_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge can fail: a circuit that is gone from the mirrors is no success."""
    honest = device_faults.state
    calls = itertools.count()

    def lied(bench):  # type: ignore[no-untyped-def]
        if next(calls) == 1:
            plant = bench.servers["ocs1"].plant
            plant.disconnect(
                [pair for pair in plant.pairs() if pair != bench.foreign("ocs1")][:1],
                bench.servers["ocs1"].loop.time(),
            )
        return honest(bench)

    monkeypatch.setattr(device_faults, "state", lied)
    found = await tried(tmp_path, Case("ocs1", "late", "write 1", {"seconds": 0.0}))
    assert found.outcome == WRONG and any("is missing" in line for line in found.problems)
