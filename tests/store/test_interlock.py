"""What nothing overrides: no light moves where a tag hangs, and no more light enters a device than
it bears.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from optics import (
    Change,
    CrossConnect,
    HostPort,
    Interlock,
    Link,
    Missing,
    Port,
    SpectralRoute,
    Usage,
)
from orchestrator.change.interlock import Interlocks, moves, rerouted, tagged
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.segments import Segment
from orchestrator.store.audit import Who, audit
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagout, Tagouts, place_of
from tests.change.fibrelab import FibrePlant, hosts_yml, joined, roadm, select, slot, with_meters

ANN, BOB = Who("ann", "ann"), Who("bob", "bob")


def cross(device: str, ingress: str, egress: str) -> CrossConnect:
    return CrossConnect(Port(device, ingress), Port(device, egress))


def tag(subject: str) -> Tagout:
    return Tagout("t1", subject, "ann", "ann", "here", 0.0, "hands in rack")


def make(*settings: CrossConnect | SpectralRoute) -> Mapping[str, Change]:
    devices = {s.ingress.device for s in settings}
    return {
        d: Change(d, add=frozenset(s for s in settings if s.ingress.device == d)) for d in devices
    }


# gpu01 (west 1/101) to gpu02 (east 2/102): over the trunk west 901 -> east 801, which is called we1
OVER = (cross("west", "1", "901"), cross("east", "801", "102"))


@pytest.mark.parametrize(
    "subject",
    [
        "f1",
        "f2",
        "we1",
        "west",
        "east",
        "west:1",
        "east:801",
        "west:901",
        "gpu01",
        "gpu02",
        "gpu01:p1",
    ],
)
@pytest.mark.parametrize("breaks", [False, True], ids=["make", "break"])
def test_light_is_not_moved_on_what_is_tagged_out(subject: str, breaks: bool) -> None:
    lab = joined()
    changes = make(*OVER)
    if breaks:
        changes = {d: Change(d, remove=c.add) for d, c in changes.items()}
    before = {d: c.remove for d, c in changes.items()}
    assert tagged(moves(before, changes, lab), [tag(subject)], lab), subject


@pytest.mark.parametrize(
    "subject", ["f3", "f4", "we2", "ew1", "gpu03", "west:3", "gpu04:p1", "east:802"]
)
def test_light_elsewhere_may_move(subject: str) -> None:
    assert tagged(moves({}, make(*OVER), joined()), [tag(subject)], joined()) == []


def test_light_moves_behind_the_device_that_changes_too() -> None:
    """Only west changes; east holds its part already, so light comes and goes on gpu02's fibre."""
    lab = joined()
    found = moves({"east": frozenset({OVER[1]}), "west": frozenset()}, make(OVER[0]), lab)
    assert tagged(found, [tag("f2")], lab) and tagged(found, [tag("east")], lab)


def test_light_that_stays_is_not_said_to_move() -> None:
    lab = joined()
    existing = {"west": frozenset({cross("west", "3", "101")}), "east": frozenset()}
    assert (
        tagged(moves(existing, make(*OVER), lab), [tag("gpu03"), tag("f3"), tag("west:3")], lab)
        == []
    )


def test_fibres_that_share_a_coupler_are_told_apart() -> None:
    lab = select()
    found = moves({}, make(SpectralRoute(Port("wss1", "in"), Port("wss1", "2"), slot(1))), lab)
    assert tagged(found, [tag("f1")], lab) and tagged(found, [tag("f2")], lab)
    assert tagged(found, [tag("f3"), tag("gpu04")], lab) == []


def test_a_tag_whose_place_nobody_knows_stands_in_the_way_of_everything() -> None:
    [output] = tagged(moves({}, make(*OVER), joined()), [tag("f99")], joined())
    assert (
        "f99 is tagged out by ann" in output
        and "the inventory does not say where that is" in output
    )


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("gpu9", "is not a fibre, device, device:port, packet switch, host or host:pN of this lab"),
        ("wset", "did you mean west"),
        ("spnie", "did you mean spine"),
        ("gpu01:p7", "gpu01 has no port p7 (it has p1, p2, p3)"),
    ],
)
def test_what_the_lab_does_not_have_cannot_be_tagged(subject: str, message: str) -> None:
    with pytest.raises(Usage) as caught:
        place_of(subject, switches())
    assert message in str(caught.value)


# --- packet switches: nobody drives them, traffic comes and goes by the hosts' routes


def switches() -> Lab:
    """Port 2 of four hosts at one packet switch, port 3 of two of them at another."""
    lab = joined(ports=3)
    spine = Segment("spine", {f"gpu0{n}": HostPort(f"gpu0{n}", 2) for n in range(1, 5)}, 100.0)
    leaf = Segment("leaf", {f"gpu0{n}": HostPort(f"gpu0{n}", 3) for n in (3, 4)}, 100.0)
    return replace(lab, segments={"spine": spine, "leaf": leaf})


def over(segment: str, *hosts: str) -> tuple[Link, ...]:
    return switches().segments[segment].links(hosts)


def refused(
    store: Store, subject: str, before: tuple[Link, ...], after: tuple[Link, ...], *following: str
) -> list[str]:
    lab, ann = switches(), Tagouts(store, "lab", ANN)
    place_of(subject, lab)
    ann.set(subject, "hands in rack")
    found = Interlocks(lab, {}, Tagouts(store, "lab", BOB)).tags(
        {}, rerouted(before, after, lab, following or lab.hosts)
    )
    ann.remove(subject)
    return found


@pytest.mark.parametrize("subject", ["spine", "spine-gpu02", "gpu02:p2", "gpu02"])
def test_no_traffic_comes_or_goes_over_packet_switches_where_a_tag_hangs(
    store: Store, subject: str
) -> None:
    three = over("spine", "gpu01", "gpu02", "gpu03")
    assert refused(store, subject, (), three) and refused(store, subject, three, ())
    assert refused(store, subject, over("spine", "gpu01", "gpu03"), three)
    assert refused(store, subject, three, three) == []


@pytest.mark.parametrize(
    "subject", ["leaf", "leaf-gpu03", "spine-gpu04", "gpu03:p3", "gpu01:p1", "gpu04", "west"]
)
def test_traffic_elsewhere_may_come_and_go(store: Store, subject: str) -> None:
    assert refused(store, subject, (), over("spine", "gpu01", "gpu02", "gpu03")) == []


def test_a_host_that_lost_its_routes_begins_to_send_anew(store: Store) -> None:
    up = over("spine", "gpu01", "gpu02", "gpu03")
    assert refused(store, "gpu02", up, up, "gpu01", "gpu03")
    assert refused(store, "gpu01", up, up, "gpu01", "gpu03") == []


def test_links_of_light_are_no_traffic_over_packet_switches() -> None:
    assert (
        rerouted((), [Link(HostPort("gpu01", 1), HostPort("gpu02", 1))], switches()) == frozenset()
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store" / "testbed.sqlite3", durable=False) as made:
        yield made


def test_a_tag_is_taken_away_by_who_hung_it_or_with_its_id_and_a_reason(store: Store) -> None:
    ann, bob = Tagouts(store, "lab", ANN), Tagouts(store, "lab", BOB)
    made = ann.set("f1", "hands in rack")
    with pytest.raises(
        Interlock, match=r"f1 is tagged out by ann .* only ann may remove it"
    ) as caught:
        bob.remove("f1")
    assert f"tagout remove {made.id} --steal" in caught.value.hint
    with pytest.raises(Missing):
        bob.remove("f1", steal=True, why="she left")
    assert [t.id for t in bob.remove(made.id, steal=True, why="she left")] == [made.id]
    ann.set("f1", "again")
    assert ann.remove("f1") and ann.listed() == []
    lines = [(r.user, r.what, r.subject) for r in reversed(audit(store, "lab"))]
    assert lines == [
        ("ann", "tagged out", "f1"),
        ("bob", "tag stolen", "f1"),
        ("ann", "tagged out", "f1"),
        ("ann", "tag removed", "f1"),
    ]
    assert "because: she left" in next(r.why for r in audit(store, "lab") if r.what == "tag stolen")


def test_two_who_tag_the_same_both_have_to_take_it_away(store: Store) -> None:
    ann, bob = Tagouts(store, "lab", ANN), Tagouts(store, "lab", BOB)
    ann.set("west", "lens")
    bob.set("west", "fan")
    bob.remove("west")
    assert [(t.user, t.reason) for t in ann.listed()] == [("ann", "lens")]


def test_a_tag_hung_after_the_look_is_seen_by_the_next(store: Store) -> None:
    lab = joined()
    locks = Interlocks(lab, {}, Tagouts(store, "lab", BOB))
    asyncio.run(locks.check(make(*OVER)))
    Tagouts(store, "lab", ANN).set("f2", "cleaning")
    with pytest.raises(Interlock, match="f2 is tagged out by ann") as caught:
        asyncio.run(locks.check(make(*OVER)))
    assert caught.value.exit_code == 9


# --- input power


def limited(
    lab: Lab,
    device: str,
    dbm: float,
    at: str = "",
    tx_dbm: float | None = None,
    meter_db: float = 0.0,
) -> Lab:
    fibres = {p: replace(f, tx_dbm=tx_dbm) for p, f in lab.fibres.items()}
    traits = {d: with_meters(lab.traits_of(d), meter_db) for d in lab.devices}
    return replace(lab, fibres=fibres, input_limits={device: {at: dbm}}, traits=traits)


def light(
    lab: Lab, *settings: CrossConnect | SpectralRoute, launched_dbm: float = 0.0
) -> list[str]:
    lit = FibrePlant(lab, launched_dbm)
    return asyncio.run(Interlocks(lab, lit.devices, None).light(make(*settings)))  # type: ignore[arg-type]


def test_too_much_light_by_the_devices_own_meter_is_refused() -> None:
    lab = limited(joined(), "west", 3.0, tx_dbm=-10.0, meter_db=1.0)
    [reported] = light(lab, *OVER, launched_dbm=6.0)
    assert reported == "west:1 tolerates 3 dBm and 5.4 dBm would enter it (measured at west:1)"
    assert light(lab, *OVER, launched_dbm=3.0) == []


def test_without_a_meter_the_transmitter_less_the_fibre_decides() -> None:
    assert light(limited(joined(), "west", 3.0, tx_dbm=3.5), *OVER) == []
    [reported] = light(limited(joined(), "west", 3.0, tx_dbm=4.0), *OVER)
    assert reported == "west:1 tolerates 3 dBm and 3.4 dBm would enter it (gpu01:p1 sends 4 dBm)"


def test_without_either_it_is_refused_and_said_what_is_missing() -> None:
    [output] = light(limited(joined(), "west", 3.0), *OVER)
    assert output.endswith("it is unknown how much light would enter it: fibre f1 has no tx_dbm")


def test_a_limit_further_on_counts_what_is_lost_on_the_way() -> None:
    """0.6 dB of fibre, 1.5 dB of west, 0.6 dB of trunk."""
    assert light(limited(joined(), "east", 1.2, tx_dbm=4.0), *OVER) != []
    assert light(limited(joined(), "east", 1.4, tx_dbm=4.0), *OVER) == []
    metered = limited(joined(), "east", 1.2, tx_dbm=-10.0, meter_db=1.0)
    [reported] = light(metered, *OVER, launched_dbm=4.0)
    assert reported == "east:801 tolerates 1.2 dBm and 1.3 dBm would enter it (measured at west:1)"


def test_a_limit_of_one_port_leaves_the_others_alone() -> None:
    lab = limited(joined(), "west", -20.0, at="3", tx_dbm=4.0)
    assert light(lab, *OVER) == []
    assert light(lab, cross("west", "3", "101")) != []


def test_what_a_coupler_brings_together_is_added_up() -> None:
    lab = limited(roadm(), "wss1", 2.0, at="5101", tx_dbm=4.0)
    one, other = (
        [
            SpectralRoute(Port("wss1", f"410{k}"), Port("wss1", "4201"), slot(k)),
            SpectralRoute(Port("wss1", "5101"), Port("wss1", "520" + str(3 - k)), slot(k)),
        ]
        for k in (1, 2)
    )
    assert light(lab, *one) == []  # 4 - 0.6 - 4 - 0.7: -1.3 dBm each, 1.7 dBm of two
    lab = replace(lab, input_limits={"wss1": {"5101": 1.0}})
    assert light(lab, *one) == []
    assert light(lab, *one, *other) != []


def test_an_attenuated_route_lets_less_through() -> None:
    lab = limited(roadm(), "wss1", -3.0, at="5101", tx_dbm=4.0)
    paths = (
        SpectralRoute(Port("wss1", "4101"), Port("wss1", "4201"), slot(1)),
        SpectralRoute(Port("wss1", "5101"), Port("wss1", "5202"), slot(1)),
    )
    assert light(lab, *paths) != []
    assert light(lab, replace(paths[0], attenuation_db=2.0), paths[1]) == []


def test_taking_down_is_never_too_bright() -> None:
    lab = limited(joined(), "west", -20.0, tx_dbm=4.0)
    changes = {d: Change(d, remove=c.add) for d, c in make(*OVER).items()}
    assert asyncio.run(Interlocks(lab, {}, None).light(changes)) == []


def test_the_inventory_says_limits_and_transmitters() -> None:
    devices = 'lab: x\ndevices:\n  ocs1: {driver: polatis-scpi, address: "tcp://h:1", max_input_dbm: 3, max_input_dbm_at: {"7": -2.5}}\n'
    fibres = "".join(
        f'  - {{name: f{n}, host: gpu01, port: {n}, device: ocs1, enters: "{at}", leaves: "{at + 10}", tx_dbm: 4.5}}\n'
        for n, at in ((1, 1), (2, 7))
    )
    lab = read_lab(hosts_yml(1, 2), devices, f"fibres:\n{fibres}")
    assert [lab.max_input_dbm(Port("ocs1", label)) for label in ("1", "7")] == [3.0, -2.5]
    assert [fibre.tx_dbm for fibre in lab.fibres.values()] == [4.5, 4.5]
    assert joined().max_input_dbm(Port("west", "1")) is None
