"""Rows that a driver of numbered pairs cannot read: they hide no other row, and their ports are
neither free nor known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from drivers.api import PortHolders
from optics import Change, Garbled, Port
from tests.drivers.tl1_device import circuits, driven


@dataclass
class Family:
    """One driver's table: how a circuit is written, the commands that change it, and a row that is
    not understood.
    """

    driver: str
    table: str
    row: str
    enter: str
    delete: str
    ports: tuple[tuple[str, str], ...]
    strange: str
    named: frozenset[str]


LIGHT = "GGN:IPORTID={},OPORTID={},CONNSTATE=steady,CONNCAUSE=none,INPWR=-5.8"
IN_OUT = (("10001", "20008"), ("10002", "20002"), ("10003", "20009"))
FAMILIES = {
    # REAL forms of rows; the strange ones are made.
    "glimmerglass, a third port": Family(
        *("glimmerglass-tl1", "RTRV-CRS-FIBER", LIGHT, "ENT-CRS-FIBER", "DLT-CRS-FIBER", IN_OUT),
        "GGN:IPORTID=10003,OPORTID=20004&20005,CONNSTATE=steady",
        frozenset({"10003", "20004", "20005"}),
    ),
    "glimmerglass, steady to nothing": Family(
        *("glimmerglass-tl1", "RTRV-CRS-FIBER", LIGHT, "ENT-CRS-FIBER", "DLT-CRS-FIBER", IN_OUT),
        "GGN:IPORTID=10003,CONNSTATE=steady,CONNCAUSE=none",
        frozenset({"10003"}),
    ),
    "polatis": Family(
        *(
            "polatis-tl1",
            "RTRV-PATCH",
            "{},{}",
            "ENT-PATCH",
            "DLT-PATCH",
            (("1", "49"), ("2", "50"), ("3", "51")),
        ),
        "3,52,SHARED",
        frozenset({"3", "52"}),
    ),
}


@dataclass
class Switch:
    family: Family
    strange: list[str]
    pairs: dict[str, str] = field(default_factory=dict)

    def __call__(self, verb: str, aid: str, payload: str) -> str | list[str]:
        if verb == self.family.table:
            rows = [self.family.row.format(a, b) for a, b in self.pairs.items()]
            return [
                f'"{row}"'
                for row in (
                    *(self.strange[:1] if len(self.strange) < 2 else [self.strange.pop(0)]),
                    *rows,
                )
            ]
        if verb == self.family.enter:
            self.pairs |= dict([aid.split(",")])
        elif verb == self.family.delete:
            self.pairs.pop(aid.split(",")[0])
        return []


@pytest.mark.parametrize("name", FAMILIES)
async def test_a_row_that_is_not_understood_hides_no_other_and_its_ports_are_never_free(
    name: str,
) -> None:
    family = FAMILIES[name]
    first, second, behind = family.ports
    switch = Switch(family, [family.strange], dict([first]))
    async with driven(family.driver, switch, user="") as (device, heard):
        assert await device.read() == circuits(first)
        assert isinstance(device, PortHolders)
        assert device.holders().keys() == {Port("ocs1", port) for port in family.named}
        (wanted,) = circuits(behind)
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({wanted})))
        assert outcome.failed[wanted].startswith(
            f"port {behind[0]} is unknown, its row is not understood: '{family.strange[:20]}"
        )
        assert not heard.verbs(family.enter, family.enter.lower())
        outcome = await device.apply(Change("ocs1", frozenset({wanted}), frozenset()))
        assert outcome.failed[wanted].startswith(f"not known whether it is there: port {behind[0]}")
        outcome = await device.apply(Change("ocs1", circuits(first), circuits(second)))
        assert not outcome.failed and outcome.observed == circuits(second)


@pytest.mark.parametrize("name", FAMILIES)
async def test_a_row_that_is_not_understood_only_once_was_garbled(name: str) -> None:
    family = FAMILIES[name]
    other = family.strange.replace("1", "2")
    switch = Switch(
        family, [family.strange, f"{other}?", f"{other}!", f"{other}."], dict([family.ports[0]])
    )
    async with driven(family.driver, switch, user="") as (device, _):
        with pytest.raises(Garbled, match="not a row"):
            await device.read()


async def test_a_table_of_nothing_but_lines_without_ports_is_garbled() -> None:
    for family in FAMILIES.values():
        async with driven(family.driver, Switch(family, ["under maintenance"]), user="") as (
            device,
            _,
        ):
            with pytest.raises(Garbled, match="not a row"):
                await device.read()
