"""New entries of a list in an edit: one that is plain is copied whole, and any other comes out as
if it had been, too.
"""

from __future__ import annotations

import pytest
from lxml import etree

from emulators.devices.dialects.netconf_data import RpcError, edited
from tests.emulators.devices.test_emulated_netconf import NETCONF, NS, ShelfDevice, rows, shown


def changed(inside: str) -> list[str]:
    config = etree.fromstring(
        f'<config xmlns:nc="{NETCONF}"><shelf xmlns="{NS}">{inside}</shelf></config>'
    )
    return shown(edited([rows("a=1")], config, "merge", ShelfDevice.schemas))


@pytest.mark.parametrize(
    ("inside", "level"),
    [
        ("<row><name>c</name><level>3</level></row>", 3),
        ("<row><name> c </name>\n<level>\t3</level></row>", 3),
        ("<row><name> c </name><level>\t3</level></row>", 3),
        ("<row><name>c</name><level>3</level><level>4</level></row>", 4),
        ("<row><name>c</name><level>3</level></row>" * 2, 3),
        ('<row><name>c</name><level nc:operation="remove"/><level>5</level></row>', 5),
    ],
)
def test_a_new_entry_has_each_leaf_once_without_white_space(inside: str, level: int) -> None:
    assert changed(inside) == ["a=1", f"c={level}"]


@pytest.mark.parametrize(
    ("inside", "tag"),
    [
        ("<row><name>z</name><colour/></row>", "unknown-element"),
        ("<row><name>z</name><level>3<x/></level></row>", "unknown-element"),
        ('<row><name>z</name><level nc:operation="delete">3</level></row>', "data-missing"),
    ],
)
def test_what_a_new_entry_cannot_have_is_refused(inside: str, tag: str) -> None:
    with pytest.raises(RpcError) as no:
        changed(inside)
    assert no.value.tag == tag
