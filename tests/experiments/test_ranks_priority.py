"""When a scenario asks an emulated lab for real-time priority for ranks, and that it is taken
back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from optics.errors import NotVerified, TestbedError
from orchestrator.inventory.lab import Lab
from orchestrator.settings import Settings
from tests.experiments.test_scenario import (
    CHANGE,
    STAY,
    Fake,
    lab,
    narrow,
    ready,
    scenario,
    settings,
)

__all__ = ["lab", "settings"]


@dataclass
class RingChanges:
    """Priority for the ranks of a fake lab. reported: of the fake's verbs, among which it is
    noted.
    """

    reported: list[str]
    refused: bool = False
    lost: dict[str, list[str]] = field(default_factory=dict)

    def take(self, for_s: float) -> None:
        if self.refused:
            raise TestbedError("emulated lab: priority: Operation not permitted")
        self.reported.append(f"priority {for_s:g}")

    def give_back(self) -> dict[str, list[str]]:
        self.reported.append("no priority")
        return self.lost


def test_ranks_have_priority_from_their_first_iterations_to_the_end_of_a_measurement(
    settings: Settings, lab: Lab
) -> None:
    runner, fake, record = ready(settings, lab)
    ring_changes = RingChanges(
        fake.reported, lost={"gpu01": ["process 7 (python3) used 0.90 of a processor over 2.0 s"]}
    )
    replace(runner, priority=ring_changes).measure_rounds(narrow)
    assert fake.reported[:5] == ["up a", "launch", "priority 240", "stop", "no priority"]
    assert fake.reported.count("no priority") == len(record.slots) == 6
    assert record.slots[0]["priority_lost"] == ring_changes.lost


def test_a_change_keeps_priority_and_ranks_launched_again_get_it(
    settings: Settings, lab: Lab
) -> None:
    runner, fake, _ = ready(settings, lab, CHANGE)
    replace(runner, priority=RingChanges(fake.reported)).measure_rounds(narrow)
    second = fake.reported[fake.reported.index("no priority") + 1 :]
    assert second[:5] == ["up a", "priority 240", "up b live", "priority 240", "no priority"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), NotVerified("the job failed")])
def test_priority_is_taken_back_whatever_ends_a_measurement(
    settings: Settings, lab: Lab, error: BaseException
) -> None:
    fake = Fake(fail={4: error})
    runner, _, _ = ready(settings, lab, fake=fake)
    with pytest.raises(type(error)):
        replace(runner, priority=RingChanges(fake.reported)).measure_rounds(narrow)
    assert fake.reported[-1] == "no priority"


def test_a_lab_that_gives_no_priority_is_measured_all_the_same_and_the_record_says_so(
    settings: Settings, lab: Lab
) -> None:
    runner, fake, record = ready(settings, lab)
    replace(runner, priority=RingChanges(fake.reported, refused=True)).measure_rounds(narrow)
    assert record.data["environment"]["priority"] is False and {
        slot["state"] for slot in record.slots
    } == {"done"}


def test_a_scenario_can_do_without_priority() -> None:
    texts = ("{}", "{priority: true}", "{priority: false}")
    read = [scenario(STAY.replace("lab: any", f"lab: {text}")) for text in texts]
    assert [found.lab.priority for found in read if found.lab is not None] == [True, True, False]
