"""Switches without a dark position against their emulators: what the checks, which remove all they
make, cannot ask of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from conformance.lab import Lab, name_of
from drivers.registry import open_device
from optics import Change, CrossConnect, DeviceConfig, Outcome, Port, Setting

Pairs = Iterable[tuple[str, str]]


def settings(config: DeviceConfig, pairs: Pairs) -> frozenset[Setting]:
    return frozenset(CrossConnect(Port(config.name, a), Port(config.name, b)) for a, b in pairs)


def change(config: DeviceConfig, remove: Pairs, add: Pairs) -> Outcome:
    async def apply() -> Outcome:
        device = open_device(config)
        try:
            return await device.apply(
                Change(config.name, settings(config, remove), settings(config, add))
            )
        finally:
            await device.close()

    return asyncio.run(apply())


BAR, CROSS = frozenset({("1", "1"), ("2", "2")}), frozenset({("1", "2"), ("2", "1")})


def test_a_2x2_kit_goes_from_bar_to_cross_and_back(lab: Lab) -> None:
    name = name_of("thorlabs-osw")
    config, truth = lab.devices[name], lab.truth(name)
    for old, new in ((BAR, CROSS), (CROSS, BAR)):
        writes = truth.writes
        outcome = change(config, old, new)
        assert not outcome.failed and outcome.observed == settings(config, new)
        assert truth.writes == writes + 1


def test_a_2x2_kit_that_does_not_move_is_reported_with_both_circuits(lab: Lab) -> None:
    name = name_of("thorlabs-osw")
    config, truth = lab.devices[name], lab.truth(name)
    with truth.wrong("silent-failure", on="write"):
        outcome = change(config, BAR, CROSS)
    assert outcome.failed.keys() == settings(config, BAR | CROSS) and truth.lit == BAR
    assert all("it reports no errors" in text for text in outcome.failed.values())


def test_a_module_without_a_resting_channel_is_moved_and_never_left_dark(lab: Lab) -> None:
    name = name_of("santec-scpi")
    truth = lab.truth(name)
    config = replace(lab.devices[name], options={"patience_s": "0.6"})
    first, second = ("0.in", "0.1"), ("0.in", "0.3")
    assert not change(config, [first], [second]).failed and second in truth.lit
    writes = truth.writes
    refused = change(config, [second], [])
    assert "0.in is always connected with one of its channels" in "".join(refused.failed.values())
    assert truth.writes == writes and second in truth.lit
    assert not change(config, [second], [first]).failed and first in truth.lit
