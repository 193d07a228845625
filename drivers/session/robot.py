"""Shared by drivers of robotic patch panels: traits, options, progress reports, and the order of
moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from drivers.link.ssh import OPTIONS as SSH_OPTIONS
from drivers.session.crossconnects import CrossConnects, P
from optics import DeviceConfig, Progress, Traits

BUDGET_S = 120.0
"""Longest single move (s). CODE: MAPPING.TIMEOUT of Quali cloudshell-L1-w2w-rome, the only figure
on record for any robot.
"""
CHECK_S = 3.0
"""Time (s) between two polls of a robot. CODE: CHECK_DELAY of the same driver."""
LEAST_S = 0.25
"""A robot that runs a thousand times faster still needs time (s) to answer."""


class Robot(CrossConnects[P]):
    """A robotic patch panel: it moves one fibre at a time and takes a minute or so for it."""

    # One move 60 s (unconfirmed, the client cited above allows 120), 0.5 dB mean loss (proposed),
    # latching: fibres stay plugged.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=60.0, at_once=1, keeps_others_lit=True, latching=True, insertion_loss_db=0.5
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        **SSH_OPTIONS,
        "move_budget_s": "longest time of one move (s, the device's clock); default 120",
        "check_s": "interval between polls of the device (s, by the device's clock); default 3",
    }

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self.on_progress: Callable[[Progress], None] = lambda _: None
        self._budget_s = max(
            LEAST_S, float(config.options.get("move_budget_s", BUDGET_S)) / config.time_scale
        )
        self._check_s = float(config.options.get("check_s", CHECK_S)) / config.time_scale


def one_by_one(
    removed: Iterable[P], new: Iterable[P], wish: Iterable[P] = ()
) -> list[tuple[bool, P]]:
    """The moves, (True, pair) to plug and (False, pair) to unplug, in the order that keeps each
    port dark for the shortest time.

    The ports that a new fibre needs are freed just before it; every port is free when it is reused.
    wish: an order to follow as far as that allows (`Change.order`); pairs that no longer need a
    move are skipped.
    """
    place: dict[P, int] = {pair: at for at, pair in enumerate(wish)}
    left: list[P] = sorted(removed)
    fresh: set[P] = set(new)
    moves: list[tuple[bool, P]] = []
    for _, _, pair in sorted(
        (place.get(pair, len(place)), pair in fresh, pair) for pair in fresh.union(left)
    ):
        if pair in fresh:
            for held in [other for other in left if other[0] == pair[0] or other[1] == pair[1]]:
                left.remove(held)
                moves.append((False, held))
            moves.append((True, pair))
        elif pair in left and pair in place:
            left.remove(pair)
            moves.append((False, pair))
    unasked: list[tuple[bool, P]] = [(False, pair) for pair in left]
    return moves + unasked if place else unasked + moves
