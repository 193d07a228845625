"""Polatis and Lumentum over NETCONF: what goes over the wire, in which order, and what becomes of
each refusal.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from drivers.api import Attenuator, CircuitSwitch, PortControl, PowerMeter
from drivers.registry import open_device
from drivers.wire.roadm import Connection
from optics import (
    BadFile,
    Change,
    CrossConnect,
    DeviceConfig,
    FrequencySlot,
    Garbled,
    Outcome,
    Port,
    PortState,
    Setting,
    SpectralRoute,
)
from tests.drivers.scripted import Netconf, netconf_device

POLATIS = "http://www.polatis.com/yang/optical-switch"
CONNECTION = "http://www.lumentum.com/lumentum-ote-connection"


def capability(revision: str) -> str:
    return f"{POLATIS}?module=optical-switch&amp;revision={revision}"


@asynccontextmanager
async def opened(
    driver: str,
    answers: Callable[[str], str | bytes | None],
    folder: Path,
    revision: str = "2018-01-30",
    **options: str,
) -> AsyncIterator[tuple[Any, Netconf]]:
    uris = (
        capability(revision),
        f"{CONNECTION}?module=lumentum-ote-connection&amp;revision=2017-06-21",
    )
    async with netconf_device(answers, folder, capabilities=uris) as served:
        more = {"known_hosts": str(served.known_hosts), "patience_s": "0.4", **options}
        config = DeviceConfig(
            "ocs1", driver, served.address, "admin", "secret", {"settle_s": 0.02}, 0.5, more
        )
        device = open_device(config)
        try:
            yield device, served
        finally:
            await device.close()


def cross(*pairs: tuple[str, str]) -> frozenset[Setting]:
    return frozenset(CrossConnect(Port("ocs1", a), Port("ocs1", b)) for a, b in pairs)


async def apply(
    device: CircuitSwitch,
    remove: frozenset[Setting] = frozenset(),
    add: frozenset[Setting] = frozenset(),
) -> Outcome:
    return await device.apply(Change("ocs1", remove, add))


def error(text: str) -> str:
    return f"<rpc-error><error-tag>operation-failed</error-tag><error-message>{text}</error-message></rpc-error>"


def leaf(text: str, name: str) -> list[str]:
    return re.findall(rf"<(?:\w+:)?{name}>([^<]*)<", text)


class Polatis:
    """NETCONF as the ONOS driver knows it. `bad`: egress ports that are refused, with the whole
    edit-config.
    """

    def __init__(self, *pairs: tuple[int, int], word: str = "pair") -> None:
        self.pairs = dict(pairs)
        self.word = word
        self.bad: set[int] = set()
        self.status = {3: "PC_ENABLED"}
        self.voa = {9: ("VOA_MODE_NONE", "0.00")}

    def __call__(self, operation: str) -> str:
        if operation.startswith("<get>"):
            return f"<data>{self.get(operation)}</data>"
        if "port-set-state" in operation:
            found = re.search(r"<port-(enab|disab)>(\d+)<", operation)
            assert found
            self.status[int(found[2])] = f"PC_{found[1].upper()}LED"
            return "<ok/>"
        assert "<target><running/></target>" in operation
        if "<voa" in operation:
            self.voa[int(leaf(operation, "port-id")[0])] = (
                leaf(operation, "atten-mode")[0],
                "".join(leaf(operation, "atten-level")),
            )
            return "<ok/>"
        rows = re.findall(
            rf"<{self.word} [^>]*operation=\"(\w+)\"[^>]*><ingress>(\d+)</ingress><egress>(\d+)</egress>",
            operation,
        )
        assert rows, operation
        if refused := [int(b) for _, _, b in rows if int(b) in self.bad]:
            return error(f"port {refused[0]} is in use")
        for verb, a, b in rows:
            if verb == "delete":
                del self.pairs[int(a)]
            else:
                self.pairs[int(a)] = int(b)
        return "<ok/>"

    def get(self, operation: str) -> str:
        if "cross-connects" in operation:
            rows = "".join(
                f"<{self.word}><ingress>{a}</ingress><egress>{b}</egress></{self.word}>"
                for a, b in sorted(self.pairs.items())
            )
            return f'<cross-connects xmlns="{POLATIS}">{rows}</cross-connects>' if rows else ""
        if "product-information" in operation:
            reply = {
                "manufacturer": "Polatis",
                "model-name": "N-VST-16x16-LA1",
                "serial-number": "7",
                "software-version": "6.7",
            }
            inside = "".join(f"<{key}>{value}</{key}>" for key, value in reply.items())
            return f'<o:product-information xmlns:o="{POLATIS}" xmlns="{POLATIS}">{inside}</o:product-information>'
        if "opm-power" in operation:
            rows = "".join(
                f"<port><port-id>{n}</port-id><power>{level}</power></port>"
                for n, level in ((17, "-3.2"), (18, "-60.0"))
            )
            return f'<opm-power xmlns="{POLATIS}">{rows}</opm-power>'
        if "port-config" in operation:
            rows = "".join(
                f"<port><port-id>{n}</port-id><status>{word}</status></port>"
                for n, word in self.status.items()
            )
            return f'<port-config xmlns="{POLATIS}">{rows}</port-config>'
        rows = "".join(
            f"<port><port-id>{n}</port-id><atten-mode>{mode}</atten-mode><atten-level>{level}</atten-level></port>"
            for n, (mode, level) in self.voa.items()
        )
        return f'<voa xmlns="{POLATIS}">{rows}</voa>'


@pytest.mark.parametrize(
    ("revision", "word"), [("2018-01-30", "pair"), ("2017-08-04", "pair"), ("2016-11-01", "pairs")]
)
async def test_polatis_list_is_named_by_the_revision_of_the_hello(
    tmp_path: Path, revision: str, word: str
) -> None:
    switch = Polatis((1, 17), (2, 18), (5, 21), word=word)
    async with opened("polatis-netconf", switch, tmp_path, revision) as (device, served):
        outcome = await apply(
            device, cross(("1", "17"), ("2", "18")), cross(("1", "18"), ("2", "17"))
        )
        assert not outcome.failed and outcome.observed == cross(
            ("1", "18"), ("2", "17"), ("5", "21")
        )
        edits = [operation for operation in served.heard if "edit-config" in operation]
        assert len(edits) == outcome.writes == 2 and "delete" in edits[0] and "merge" in edits[1]
        again = await apply(device, cross(("1", "17")), cross(("1", "18")))
        assert again.writes == 0


async def test_polatis_refused_list_is_sent_pair_by_pair(tmp_path: Path) -> None:
    switch = Polatis()
    switch.bad = {19}
    async with opened("polatis-netconf", switch, tmp_path) as (device, _):
        outcome = await apply(device, add=cross(("1", "17"), ("2", "18"), ("3", "19")))
        ((setting, text),) = outcome.failed.items()
        assert setting.egress.label == "19"
        assert text == 'refused "merge pair 3->19": operation-failed: port 19 is in use'
        assert switch.pairs == {1: 17, 2: 18}


async def test_polatis_abilities(tmp_path: Path) -> None:
    async with opened("polatis-netconf", Polatis((1, 9)), tmp_path) as (device, served):
        identity = await device.identify()
        assert (identity.model, identity.serial, identity.ingress[-1], identity.egress[0]) == (
            "N-VST-16x16-LA1",
            "7",
            "16",
            "17",
        )
        assert (
            isinstance(device, PowerMeter)
            and isinstance(device, PortControl)
            and isinstance(device, Attenuator)
        )
        three, nine, lit, dark = (Port("ocs1", label) for label in ("3", "9", "17", "18"))
        assert await device.power([lit, dark, three]) == {lit: -3.2}
        assert await device.set_ports([three], enabled=False) == {three: PortState.DISABLED}
        assert (
            await device.attenuate({nine: 2.5})
            == {nine: 2.5}
            == await device.attenuation([nine, three])
        )
        assert await device.attenuate({nine: 0.0}) == {nine: 0.0}
        assert served.sessions == 1


@pytest.mark.parametrize(
    "reply",
    [
        "<ok/>",
        "<data><cross-connects><pair><ingress>x</ingress><egress>9</egress></pair></cross-connects></data>",
        "<data><cross-connects><pair><ingress>1</ingress></pair></cross-connects></data>",
        "<data><cross-connects><pair><ingress>1</ingress><egress>9</egress></pair><pair><ingress>1</ingress><egress>8</egress></pair>"
        "</cross-connects></data>",
        b"\n#7\n<html/>\n##\n",
    ],
)
async def test_a_malformed_map_is_garbled_and_nothing_is_written(
    tmp_path: Path, reply: str | bytes
) -> None:
    async with opened("polatis-netconf", lambda _: reply, tmp_path) as (device, served):
        with pytest.raises(Garbled, match='ocs1: answer to "get cross-connects"'):
            await device.read()
        with pytest.raises(Garbled):
            await apply(device, add=cross(("1", "17")))
        assert not [each for each in served.heard if "edit" in each]


def test_wrong_addresses_and_options_are_named() -> None:
    for driver in ("polatis-netconf", "lumentum-netconf"):
        with pytest.raises(BadFile, match="address 'tcp://h:830'"):
            open_device(DeviceConfig("ocs1", driver, "tcp://h:830"))
    with pytest.raises(BadFile, match="edfa: leave or cycle"):
        open_device(
            DeviceConfig("ocs1", "lumentum-netconf", "netconf://h", options={"edfa": "off"})
        )


# Lumentum


class Roadm:
    """A ROADM-20 as the COSMOS client knows it; overlapping spectrum of a module is refused."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, str]] = {}
        self.powers = ("-12.0", "-17.5")
        self.edfa = ["in-service"]
        self.dark: list[frozenset[str]] = []

    def __call__(self, operation: str) -> str:
        if operation.startswith("<get>"):
            return f'<data><connections xmlns="{CONNECTION}">{"".join(map(self.show, self.held))}</connections></data>'
        if "delete-connection" in operation:
            (dn,) = leaf(operation, "dn")
            return "<ok/>" if self.held.pop(dn, None) else error(f"no connection {dn}")
        if "edfa" in operation:
            assert (
                len(set(leaf(operation, "maintenance-state"))) == 1
                and len(leaf(operation, "dn")) == 2
            )
            self.edfa.append(leaf(operation, "maintenance-state")[0])
            return "<ok/>"
        new = {}
        for row in re.findall(r"<connection>(.*?)</connection>", operation, re.DOTALL):
            (dn,) = leaf(row, "dn")
            given = {
                key: value
                for key, value in re.findall(r"<([\w-]+)>([^<]*)</", row)
                if key not in ("dn",)
            }
            merged = {**self.held.get(dn, {}), **given}
            for other, at in {**self.held, **new}.items():
                if other != dn and other.split(";")[3] == dn.split(";")[3]:
                    low, high = (
                        max(merged["start-freq"], at["start-freq"]),
                        min(merged["end-freq"], at["end-freq"]),
                    )
                    if float(low) < float(high):
                        return error(f"{dn} overlaps {other}")
            new[dn] = merged
        self.held.update(new)
        return "<ok/>"

    def show(self, dn: str) -> str:
        config = "".join(f"<{key}>{value}</{key}>" for key, value in self.held[dn].items())
        sides = ("input", "output")
        state = "".join(
            f"<{side}-channel-attributes><power>{p}</power></{side}-channel-attributes>"
            for side, p in zip(sides, self.powers, strict=True)
        )
        return (
            f"<connection><dn>{dn}</dn><config>{config}</config><state>{state}</state></connection>"
        )


def route(ingress: str, egress: str, n: int, db: float = 0.0) -> SpectralRoute:
    return SpectralRoute(
        Port("ocs1", ingress), Port("ocs1", egress), FrequencySlot.flexgrid(n, 4), db
    )


async def test_lumentum_makes_moves_and_breaks_routes_of_both_modules(tmp_path: Path) -> None:
    box = Roadm()
    async with opened("lumentum-netconf", box, tmp_path) as (device, served):
        first = frozenset(
            {route("4101", "4201", -280), route("4102", "4201", -264), route("5101", "5201", -280)}
        )
        made = await apply(device, add=first)
        assert (
            not made.failed and made.observed == first == await device.read() and made.writes == 1
        )
        # nothing was removed: dark from the first command, however late its answer
        assert made.broken_ns == made.sent_ns
        card = "ne=1;chassis=1;card=1"
        assert box.held.keys() == {
            f"{card};module={m};connection={c}" for m, c in ((1, 1), (1, 2), (2, 1))
        }
        one = box.held[f"{card};module=1;connection=1"]
        assert (one["start-freq"], one["end-freq"], one["attenuation"]) == (
            "191325.0",
            "191375.0",
            "0.0",
        )
        assert one["input-port-reference"] == f"{card};port=4101" and one["custom-name"].startswith(
            "testbed"
        )
        moved = await apply(
            device,
            frozenset({route("5101", "5201", -280)}),
            frozenset({route("5101", "5202", -280)}),
        )
        assert not moved.failed and route("5101", "5202", -280) in moved.observed
        changes = [
            each for each in served.heard if "delete-connection" in each or "edit-config" in each
        ]
        assert "delete-connection" in changes[-2] and "edit-config" in changes[-1]
        removed = await apply(device, remove=moved.observed)
        assert not removed.failed and not box.held


async def test_lumentum_changes_an_attenuation_in_place(tmp_path: Path) -> None:
    box = Roadm()
    async with opened("lumentum-netconf", box, tmp_path) as (device, served):
        await apply(
            device, add=frozenset({route("4101", "4201", -280), route("4102", "4201", -264)})
        )
        outcome = await apply(
            device,
            frozenset({route("4101", "4201", -280)}),
            frozenset({route("4101", "4201", -280, 3.5)}),
        )
        assert not outcome.failed and route("4101", "4201", -280, 3.5) in outcome.observed
        last = [each for each in served.heard if "edit-config" in each][-1]
        assert not [each for each in served.heard if "delete-connection" in each]
        assert (
            leaf(last, "attenuation") == ["3.5"]
            and "freq" not in last
            and len(leaf(last, "dn")) == 1
        )


async def test_lumentum_refusals_fall_on_the_route_they_mean(tmp_path: Path) -> None:
    box = Roadm()
    async with opened("lumentum-netconf", box, tmp_path) as (device, _):
        # A blocked connection of another client: no light, so no route, but its spectrum is taken.
        blocked = {
            "maintenance-state": "in-service",
            "blocked": "true",
            "start-freq": "191425.0",
            "end-freq": "191475.0",
        }
        ports = {
            f"{side}-port-reference": f"ne=1;chassis=1;card=1;port={p}"
            for side, p in (("input", 4109), ("output", 4201))
        }
        box.held["ne=1;chassis=1;card=1;module=1;connection=1"] = {
            **blocked,
            **ports,
            "attenuation": "0.0",
            "custom-name": "theirs",
        }
        good, bad = route("4101", "4201", -280), route("4102", "4201", -264)
        outcome = await apply(device, add=frozenset({good, bad}))
        assert outcome.observed == {good} and outcome.failed.keys() == {bad}
        assert "refused" in outcome.failed[bad] and "overlaps" in outcome.failed[bad]
        clash = await apply(device, add=frozenset({route("4103", "4201", -278)}))
        assert "held by ocs1:4101->4201" in next(iter(clash.failed.values()))
        assert clash.writes == 0
        wrong = {
            route("4101", "5201", -200),
            route("4121", "4201", -200),
            route("4101", "4201", -200, 60.0),
        }
        outcome = await apply(device, add=frozenset(wrong))
        assert outcome.failed.keys() == wrong and outcome.writes == 0


def test_lumentum_reports_that_differ_in_readings_alone_are_the_same() -> None:
    """A report is watched until it rests, which readings never do."""
    slot, power = FrequencySlot.flexgrid(-280, 4), (Decimal("-12.0"), Decimal("-17.5"))
    one = Connection(1, 1, "4101", "4201", slot, Decimal(0), True, power=power)
    assert one == replace(one, power=(Decimal("-12.1"), None)) != replace(one, lit=False)


async def test_lumentum_power_of_ports(tmp_path: Path) -> None:
    box = Roadm()
    async with opened("lumentum-netconf", box, tmp_path) as (device, _):
        one, two = route("4101", "4201", -280), route("4102", "4201", -264)
        await apply(device, add=frozenset({one, two}))
        assert isinstance(device, PowerMeter)
        out, dark = Port("ocs1", "4201"), Port("ocs1", "5201")
        assert await device.power([out, dark, one.ingress]) == {out: -14.49, one.ingress: -12.0}
        box.powers = ("-12.0", "-30.0")
        assert out not in await device.power([out])
        identity = await device.identify()
        assert identity.firmware == "connection model 2017-06-21" and identity.ingress[-1] == "5101"


async def test_lumentum_amplifiers_are_cycled_only_where_asked_and_come_back_after_a_lost_answer(
    tmp_path: Path,
) -> None:
    box = Roadm()
    lost = [True]

    def answers(operation: str) -> str | bytes:
        reported = box(operation)
        return (
            b""
            if "edit-config" in operation and "connections" in operation and lost and lost.pop()
            else reported
        )

    async with opened("lumentum-netconf", answers, tmp_path, edfa="cycle") as (device, _):
        outcome = await apply(device, add=frozenset({route("4101", "4201", -280)}))
        assert not outcome.failed
        assert box.edfa == ["in-service", "out-of-service", "in-service"]
        tuned = await apply(
            device,
            frozenset({route("4101", "4201", -280)}),
            frozenset({route("4101", "4201", -280, 1.0)}),
        )
        assert not tuned.failed and len(box.edfa) == 3  # attenuation alone touches no amplifier


async def test_lumentum_amplifiers_come_back_when_the_answer_to_their_return_is_lost(
    tmp_path: Path,
) -> None:
    box = Roadm()
    lost = [True]

    def answers(operation: str) -> str | bytes:
        if (
            "edfa" in operation
            and "in-service" in leaf(operation, "maintenance-state")
            and lost
            and lost.pop()
        ):
            return b""  # not carried out
        return box(operation)

    async with opened("lumentum-netconf", answers, tmp_path, edfa="cycle") as (device, _):
        outcome = await apply(device, add=frozenset({route("4101", "4201", -280)}))
        assert not outcome.failed
        assert box.edfa == ["in-service", "out-of-service", "in-service"]
