"""A sample of the fault matrix (`make drill NAME=fault_matrix` runs it whole), with every case that once went wrong."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from emulators.faults import COMMAND_FAULTS, STANDING_FAULTS
from tests.drills.bench import DRIVERS
from tests.drills.fault_matrix import BACK, HANDS, SUCCESS, UNCHANGED, Case, Matrix, cases

ALL = {str(case): case for n, driver in enumerate(DRIVERS, 1) for case in cases(f"ocs{n}", driver, *((2, 12), (8, 14))[n - 1])}

SAMPLE: dict[str, str | None] = {
    "drop-after of ocs1, at write 1": SUCCESS,
    "drop-after of ocs1, at write 2": SUCCESS,
    "swallow of ocs1, at write 2": None,
    "refuse of ocs1, at write 2": SUCCESS,
    "stale-read of ocs1, seconds 0.3, at read 8": SUCCESS,
    "partial-bulk of ocs1, at write 2": SUCCESS,
    "stuck-port of ocs1, port 1, at the beginning": BACK,
    "failed-port of ocs1, port 18, at write 1": HANDS,
    "reboot-lose of ocs1, at write 2": HANDS,
    "drop-after of ocs2, at write 5": SUCCESS,
    "half-duplex of ocs2, at write 7": BACK,
    "garble of ocs2, at read 10": SUCCESS,
    "dark-port of ocs2, port 1.1.2/in, at write 3": HANDS,
    # These went wrong once.
    "reboot-keep of ocs1, at read 8": BACK,
    "reboot-lose of ocs1, at read 1": UNCHANGED,
    "port-locked of ocs2, port 1.1.3/out, for_s 0.5, at the beginning": None,
    "stuck-port of ocs2, port 1.1.2/in, at the beginning": HANDS,
}
"""What is expected; None: it depends on the moment which of the honest ends it comes to."""


def test_the_matrix_has_every_fault_at_every_write_and_read() -> None:
    kinds = {case.kind for case in ALL.values()}
    assert len(ALL) > 1000 and kinds == set(COMMAND_FAULTS) | set(STANDING_FAULTS) - {"robot-stalled"}
    written = {case.at for case in ALL.values() if case.device == "ocs2" and case.kind == "drop-after"}
    assert written == {*(f"write {n}" for n in range(1, 9)), *(f"read {n}" for n in range(1, 15))}


@pytest.mark.parametrize("name", SAMPLE)
async def test_a_fault_ends_in_success_exactly_as_before_or_in_an_honest_list(name: str, tmp_path: Path) -> None:
    """S1, S2, S5, S7, S9: judged by the devices' mirrors, the hosts' routes and the store."""
    judged = await Matrix().case(tmp_path, ALL[name])
    assert not judged.problems, "\n".join([*judged.problems, judged.words])
    assert judged.outcome == (SAMPLE[name] or judged.outcome), judged.words


async def test_a_judge_that_is_told_a_lie_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drill can fail: a circuit that is gone from the mirrors is no success."""
    from tests.drills import fault_matrix

    honest = fault_matrix.state
    calls = itertools.count()

    def lied(bench):  # type: ignore[no-untyped-def]
        if next(calls) == 1:
            plant = bench.servers["ocs1"].plant
            plant.disconnect(
                [pair for pair in plant.pairs() if pair != bench.foreign("ocs1")][:1], bench.servers["ocs1"].loop.time()
            )
        return honest(bench)

    monkeypatch.setattr(fault_matrix, "state", lied)
    judged = await Matrix().case(tmp_path, Case("ocs1", "late", "write 1", {"on": "write", "after": 0, "count": 1, "seconds": 0.0}))
    assert judged.outcome == fault_matrix.WRONG and any("is missing" in line for line in judged.problems)
