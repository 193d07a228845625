"""Fibres followed through what NetBox answers; the answers were recorded from NetBox 4.7.3."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from optics import BadFile
from orchestrator.inventory.cabling import Cabling, cabling_of
from orchestrator.inventory.from_netbox import Inventory, file_text, taken_over
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.netbox import Answers, read_rows
from tests.netbox.served import LISTS, recorded

Lists = dict[str, list[Any]]


def cabling(change: Callable[[Lists], None] = lambda lists: None) -> Cabling:
    """What is found in the recorded answers, changed like this."""
    lists = copy.deepcopy(recorded())
    change(lists)
    return cabling_of(read_rows(Answers(*(lists[name] for name in LISTS)), "netbox"))


def fibres(found: Cabling) -> dict[str, tuple[str, str, str]]:
    return {f"{f.host}:{f.interface}": (f.device, f.enters, f.leaves) for f in found.fibres}


def lab_of(inventory: Inventory) -> Lab:
    return read_lab(*(file_text(name, value) for name, value in inventory.files.items()))


def cable(lists: Lists, number: int) -> Any:
    return next(row for row in lists["cables"] if row["id"] == number)


def row(lists: Lists, name: str, display: str) -> Any:
    return next(each for each in lists[name] if each["name"] == display)


def test_fibres_lead_through_panels_a_trunk_of_four_positions_and_single_strands() -> None:
    assert fibres(cabling()) == {
        "gpu01:eth1": ("ocs1", "1.1.1", "1.1.1"),
        "gpu01:eth2": ("ocs2", "1", "5"),
        "gpu02:eth1": ("ocs1", "1.1.2", "1.1.2"),
        "gpu02:eth2": ("ocs2", "2", "6"),
        "gpu03:eth1": ("ocs1", "1.1.3", "1.1.3"),
        "gpu03:eth2": ("ocs2", "3", "7"),
        "gpu04:eth2": ("ocs2", "4", "8"),
    }


def test_lengths_add_up_in_metres_and_each_panel_adds_a_connector() -> None:
    first, second, *_, direct = cabling().fibres
    assert (first.length_m, first.loss_db) == (34.0, round(0.034 * 0.35 + 4 * 0.3, 4))
    assert second.length_m is None and direct.loss_db is None


def test_what_reaches_no_switch_is_left_out_with_the_place_where_it_ends() -> None:
    left = cabling().left_out
    assert left[0].startswith("gpu04 eth1: ") and "panel-b:R1" in left[0]
    assert left[1:] == ("4 interfaces lead to devices that are not part of the lab",)


def test_front_ports_of_netbox_before_4_5_lead_to_the_same_fibres() -> None:
    def older(lists: Lists) -> None:
        for front in lists["front-ports"]:
            (end,) = front.pop("rear_ports")
            front["rear_port"] = {"id": end["rear_port"], "name": "R"}
            front["rear_port_position"] = end["rear_port_position"]

    assert fibres(cabling(older)) == fibres(cabling())


def test_a_loop_in_the_cabling_ends() -> None:
    def looped(lists: Lists) -> None:
        near = row(lists, "front-ports", "F1")  # of panel-a, which comes first
        back = row(lists, "front-ports", "D1-TX")
        back["rear_ports"] = near["rear_ports"]
        far = next(c for c in lists["cables"] if c["length"] == 2 and not c["label"])
        far["b_terminations"] = [{"object_type": "dcim.frontport", "object_id": back["id"]}]

    found = cabling(looped)
    assert "gpu01:eth1" not in fibres(found)
    assert [text for text in found.left_out if text.endswith("panel-a:R1: a loop")]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lists: cable(lists, 4).update(b_terminations=[]), "cable 4 leads to nothing"),
        (
            lambda lists: cable(lists, 4).update(profile={"value": "trunk-2c4p-shuffle"}),
            "cable 4 exchanges its fibres",
        ),
        (
            lambda lists: cable(lists, 4)["b_terminations"].extend(
                [{"object_type": "dcim.frontport", "object_id": n} for n in (900, 901)]
            ),
            "cable 4 joins 1 and 4 positions",
        ),
        (
            lambda lists: cable(lists, 4).update(
                b_terminations=[{"object_type": "circuits.circuittermination", "object_id": 1}]
            ),
            "cable 4 ends at a circuits.circuittermination",
        ),
        (
            lambda lists: cable(lists, 4)["a_terminations"][0]["object"].update(name="{{ x }}"),
            "not the name of an interface",
        ),
        (
            lambda lists: cable(lists, 5)["b_terminations"][0]["object"].update(name="1\nreset"),
            "it ends at a port called",
        ),
    ],
)
def test_a_fibre_that_cannot_be_followed_is_left_out_alone(change: Any, text: str) -> None:
    found = cabling(change)
    assert len(found.fibres) == 6 and text in "\n".join(found.left_out)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(name="../../etc"), "the name '../../etc'"),
        (lambda d: d.update(name=None), "the name ''"),
        (lambda d: d.update(name="gpu02"), "2 devices of the lab are called gpu02"),
        (lambda d: d.update(config_context={"testbed": 3}), "wanted an object"),
        (
            lambda d: d.update(config_context={"testbed": {"job_user": "root"}}),
            "testbed.job_user: not taken from NetBox",
        ),
        (
            lambda d: d.update(
                config_context={"testbed": {"driver": "x", "address": "y", "password_env": "HOME"}}
            ),
            "testbed.password_env: not taken from NetBox",
        ),
        (lambda d: d.update(id="../1"), "device ../1: id: "),
        (lambda d: d.update(primary_ip={"address": "{{ x }}"}), "primary IP: not an address"),
    ],
)
def test_a_device_that_cannot_be_taken_over_is_refused_by_number(change: Any, text: str) -> None:
    with pytest.raises(BadFile) as refused:
        cabling(lambda lists: change(row(lists, "devices", "gpu01")))
    assert text in "\n".join(refused.value.problems) and refused.value.hint


def test_the_files_are_an_inventory_with_numbers_by_labels() -> None:
    lab = lab_of(taken_over(cabling(), "dc1"))
    assert lab.name == "dc1" and [*lab.hosts] == ["gpu01", "gpu02", "gpu03", "gpu04"]
    assert lab.hosts["gpu04"].host_id == 14 and [*lab.hosts["gpu04"].ports] == [2]
    assert [fibre.name for fibre in lab.fibres.values()][:2] == ["fibre-1", "gpu01-p2"]
    assert str(lab.trunks[0].start) == "ocs2:9" and str(lab.trunks[0].end) == "ocs1:1.2.1"


def test_labels_that_two_cables_have_are_no_names() -> None:
    found = cabling(
        lambda lists: next(c for c in lists["cables"] if c["label"] == "fibre-2").update(
            label="fibre-1"
        )
    )
    assert "fibre-1" not in {
        fibre.name for fibre in lab_of(taken_over(found, "dc1")).fibres.values()
    }


def second(change: Callable[[Lists], None], edit: Callable[[Any], None]) -> Inventory:
    """A second import after the first one's files were edited by hand and NetBox was changed."""
    before = taken_over(cabling(), "dc1")
    edit(before.files)
    return taken_over(cabling(change), "dc1", lab_of(before), before.files)


def test_the_same_again_has_no_differences() -> None:
    again = second(lambda lists: None, lambda files: None)
    assert again.differences == () and again.changed == ()


def test_a_second_import_keeps_what_netbox_does_not_know() -> None:
    def edit(files: Any) -> None:
        files["fibres.yml"]["fibres"][1] |= {"loss_db": 1.7, "tx_dbm": -2.0}
        files["devices.yml"]["devices"]["ocs2"]["password_env"] = "OCS2"
        files["hosts.yml"]["all"]["hosts"]["gpu01"]["testbed_job_user"] = "jobs"

    def moved(lists: Lists) -> None:
        cable(lists, 5)["b_terminations"][0]["object"]["name"] = "11"
        row(lists, "devices", "ocs2")["config_context"]["testbed"]["address"] = "tcp://192.0.2.9:1"

    again = second(moved, edit)
    assert [(d.what, d.name, d.how, d.details) for d in again.differences] == [
        ("device", "ocs2", "changed", ("address tcp://192.0.2.31:5025 -> tcp://192.0.2.9:1",)),
        ("fibre", "gpu01-p2", "changed", ("enters 1 -> 11",)),
    ]
    assert again.changed == ("devices.yml", "fibres.yml")
    lab = lab_of(again)
    fibre = lab.fibres[next(port for port in lab.fibres if str(port) == "gpu01:p2")]
    assert (fibre.loss_db, fibre.tx_dbm, fibre.enters.label) == (1.7, -2.0, "11")
    assert lab.secrets["ocs2"].name == "OCS2" and lab.hosts["gpu01"].job_user == "jobs"


def test_hosts_and_fibres_come_and_go() -> None:
    def without(lists: Lists) -> None:
        lists["devices"] = [d for d in lists["devices"] if d["name"] != "gpu02"]

    gone = second(without, lambda files: None)
    assert {(d.what, d.name, d.how) for d in gone.differences} == {
        ("host", "gpu02", "removed"),
        ("fibre", "fibre-2", "removed"),
        ("fibre", "gpu02-p2", "removed"),
    }
    assert "gpu02" not in lab_of(gone).hosts
    back = taken_over(cabling(), "dc1", lab_of(gone), gone.files)
    assert {(d.what, d.name, d.how) for d in back.differences} == {
        ("host", "gpu02", "added"),
        ("fibre", "fibre-2", "added"),
        ("fibre", "gpu02-p2", "added"),
    }


def test_a_new_interface_gets_a_number_and_the_others_keep_theirs() -> None:
    before = taken_over(cabling(), "dc1")
    host = before.files["hosts.yml"]["all"]["hosts"]["gpu01"]
    host["testbed_ports"] = {7: {"interface": "eth1"}}
    before.files["fibres.yml"]["fibres"] = [
        f | {"port": 7} for f in before.files["fibres.yml"]["fibres"] if f["name"] == "fibre-1"
    ]
    before.files["fibres.yml"].pop("trunks")
    again = taken_over(cabling(), "dc1", lab_of(before), before.files)
    assert ("host", "gpu01", "changed", ("port 2 eth2 added",)) in [
        (d.what, d.name, d.how, d.details) for d in again.differences
    ]
    assert [*lab_of(again).hosts["gpu01"].ports] == [2, 7] or [
        *lab_of(again).hosts["gpu01"].ports
    ] == [7, 2]
    assert not [d for d in again.differences if d.name == "fibre-1"]


def test_cables_of_a_fibre_are_known_strand_by_strand() -> None:
    by_name = taken_over(cabling(), "dc1").cables
    assert len(by_name["fibre-1"][0]) == 3 and by_name["fibre-1"][0] == by_name["fibre-1"][1]
    sent, received = by_name["gpu01-p2"]
    assert sent[0] == received[0] and sent[1] != received[1]


def test_an_answer_without_a_lab_says_what_a_device_of_one_has() -> None:
    def none(lists: Lists) -> None:
        for device in lists["devices"]:
            device["config_context"] = {}

    with pytest.raises(BadFile, match="the config context of a device of the lab has testbed"):
        cabling(none)


def test_a_field_of_a_later_version_is_no_mistake() -> None:
    found = cabling(lambda lists: cable(lists, 4).update(new_in_5=replace))
    assert len(found.fibres) == 7
