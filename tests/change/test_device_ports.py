"""Ports of fibres.yml that a device does not have are named at their place before anything is
staged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from optics import BadFile, Identity, Port, TimedOut
from orchestrator.inventory.device_ports import misplaced, unsupported
from orchestrator.verbs import change as engine
from tests.drills.bench import NO_JOB, Bench, opened, plan_text

LINKS = [("gpu01:p1", "gpu02:p1"), ("gpu01:p2", "gpu02:p2")]
OTHERS = [("gpu02:p3", "gpu03:p3")]
POLATIS = Identity("Polatis", "OST", "SN1", "1", ("1", "2"), ("17", "18"))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as made:
        yield made


def edit(bench: Bench, was: str, now: str) -> None:
    """Mistype something of gpu02's cables."""
    fibres = bench.inventory / "fibres.yml"
    text = fibres.read_text()
    assert was in text
    fibres.write_text(text.replace(was, now))


POLATIS_CABLE = 'port: 1, device: ocs1, enters: "2", leaves: "18"'
CALIENT_CABLE = 'port: 2, device: ocs2, enters: "1.1.2", leaves: "1.1.2"'
MISTAKES = {
    "not there": (
        POLATIS_CABLE,
        'port: 1, device: ocs1, enters: "2", leaves: "99"',
        [
            r"6:75: fibres\[4\].leaves: ocs1 has no port 99 \(Polatis \S+: light leaves at 16 ports, 17..32\)"
        ],
    ),
    "swapped": (
        POLATIS_CABLE,
        'port: 1, device: ocs1, enters: "18", leaves: "2"',
        [
            r"6:62: fibres\[4\].enters: ocs1 has port 18 where light leaves, not where it enters \(Polatis \S+: .* 1..16\)",
            r"6:76: fibres\[4\].leaves: ocs1 has port 2 where light enters, not where it leaves \(Polatis \S+: .* 17..32\)",
        ],
    ),
    "on a duplex faceplate": (
        CALIENT_CABLE,
        'port: 2, device: ocs2, enters: "1.1.2", leaves: "7.1.2"',
        [
            r"7:79: fibres\[5\].leaves: ocs2 has no port 7.1.2 \(Calient \S+: light leaves at \d+ ports, 1.1.1..\S+\)"
        ],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_plan_and_up_name_ports_that_a_device_does_not_have_at_their_place(
    bench: Bench, mistake: str
) -> None:
    was, now, lines = MISTAKES[mistake]
    edit(bench, was, now)
    path = bench.folder / "plan.json"
    path.write_text(plan_text("ring", LINKS))
    held = bench.held()
    for verb, more in ((engine.plan, ()), (engine.up, (NO_JOB,)), (engine.prewire, ())):
        with pytest.raises(BadFile) as error:
            await bench.verb(verb, path, *more)
        assert len(error.value.problems) == len(lines)
        for line, wanted in zip(error.value.problems, lines, strict=True):
            assert_matches(line, f"{bench.inventory}/fibres.yml:{wanted}")
        assert (
            "correct fibres.yml, or the device's address in devices.yml; nothing was changed"
            in error.value.hint
        )
    assert bench.held() == held and not bench.requests.names, "no host was asked to stage anything"


def assert_matches(line: str, wanted: str) -> None:
    with pytest.raises(AssertionError, match=wanted):
        raise AssertionError(line)


async def test_a_mistake_at_a_port_that_the_plan_does_not_need_keeps_no_plan_from_coming_up(
    bench: Bench,
) -> None:
    edit(bench, POLATIS_CABLE, 'port: 1, device: ocs1, enters: "2", leaves: "99"')
    assert (await bench.up(plan_text("others", OTHERS))).made == 2


@pytest.mark.parametrize("answer", ["no ports", "no identity"])
async def test_a_device_that_does_not_say_what_ports_it_has_is_believed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    async def identify(self: Any) -> Identity:
        if answer == "no identity":
            raise TimedOut(f"{self.name}: silent")
        return Identity("Acme", "X1", "1", "1", (), ())

    monkeypatch.setattr("drivers.polatis_scpi.PolatisScpi.identify", identify)
    assert (await bench.up(plan_text("ring", LINKS))).made == 4
    assert unsupported(Identity("Acme", "X1", "1", "1", (), ()), "99", enters=True) == ""


def test_ends_of_trunks_are_named_too_and_other_devices_are_not() -> None:
    text = """fibres: []
trunks:
  - {name: t1, from: {device: ocs1, port: "19"}, to: {device: ocs1, port: "17"}}
  - {name: t2, from: {device: ocs1, port: "17"}, to: {device: ocs2, port: "99"}}
"""
    used = {Port("ocs1", "19"), Port("ocs1", "17"), Port("ocs2", "99")}
    assert misplaced(text, "fibres.yml", {"ocs1": POLATIS}, used) == [
        "fibres.yml:3:43: trunks[0].from.port: ocs1 has no port 19 (Polatis OST: light leaves at 2 ports, 17, 18)",
        "fibres.yml:3:75: trunks[0].to.port: ocs1 has port 17 where light leaves, not where it enters "
        "(Polatis OST: light enters at 2 ports, 1, 2)",
    ]
