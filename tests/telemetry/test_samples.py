"""What hosts sample and what a reconfiguration does: read as sent, told as measured, and never a
reason for a change to fail.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from optics import (
    Change,
    Circuit,
    CrossConnect,
    Garbled,
    HostName,
    HostPort,
    Link,
    LinkKind,
    Port,
    TestbedError,
    TimedOut,
    Unreachable,
    Usage,
)
from orchestrator.change.impact import Impact
from orchestrator.change.port_counters import sampled_ports
from orchestrator.hosts import (
    SAMPLE,
    AtDown,
    ClockReading,
    HostEvent,
    Hosts,
    PortCounters,
    counter_samples,
)
from orchestrator.settings import load
from orchestrator.telemetry import Journal, Point, read_points
from tests.hosts.parts import OwnParts

ONE, TWO = HostPort("gpu01", 1), HostPort("gpu02", 1)
LINK = Link(ONE, TWO)


def batch(
    host: str, taken: Iterable[tuple[int, int, int]], offset_ns: int = 0, **more: object
) -> HostEvent:
    """Samples of port 1: when (by the host's clock), carrier, bytes (as many received as sent)."""
    raw = b"".join(struct.pack("=qQ8Q", at, up, 1, 2, n, n, 3, 4, 5, 6) for at, up, n in taken)
    values: dict[str, Any] = {
        "t_ns": 10**12,
        "numbers": [1],
        "rows": base64.b64encode(zlib.compress(raw)).decode(),
        "missed": 0,
    }
    return HostEvent(host, "counters", 10**12 - offset_ns, values | more)


class FakeHosts(OwnParts):
    """Hosts that answer from what they were given."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[HostEvent] = asyncio.Queue()
        self.asked: list[str] = []
        self.looks: list[Mapping[HostPort, PortCounters]] = []
        self.error: TestbedError | None = None

    def subscribe(self) -> asyncio.Queue[HostEvent]:
        return self.queue

    def unsubscribe(self, queue: asyncio.Queue[HostEvent]) -> None:
        self.asked.append("unsubscribe")

    async def stream_counters(
        self, interval_s: float | None, names: Collection[HostName] | None = None
    ) -> None:
        self.asked.append(f"stream {interval_s}")
        if self.error is not None:
            raise self.error

    def leave_counters(self) -> None:
        self.asked.append("leave")

    async def clocks(
        self, names: Collection[HostName] | None = None, within_s: float = 5.0
    ) -> Mapping[HostName, ClockReading]:
        return {"gpu01": ClockReading(-40, 100)}

    async def counters(
        self, names: Collection[HostName] | None = None
    ) -> Mapping[HostPort, PortCounters]:
        if self.error is not None:
            raise self.error
        return self.looks.pop(0)


def shown(run_dir: Path, name: str) -> list[Point]:
    return list(read_points(run_dir, [name]))


# --- samples


def test_a_batch_is_read_as_it_was_taken_on_our_clock() -> None:
    found = counter_samples(batch("gpu01", [(100, 1, 7), (200, 0, 9)], offset_ns=60))
    first, second = ({**dict(zip(SAMPLE, row, strict=False)), "at": row[-1]} for row in found[ONE])
    assert first == {
        **{
            "rx_bytes": 7,
            "tx_bytes": 7,
            "rx_pkts": 1,
            "tx_pkts": 2,
            "drops": 11,
            "errors": 7,
            "oper": 1,
        },
        "at": 40,
    }
    assert (second["oper"], second["at"]) == (0, 140)


@pytest.mark.parametrize(
    "wrong",
    [{"rows": "?"}, {"rows": "aGVsbG8="}, {"numbers": [1, 2]}, {"numbers": None}, {"t_ns": "now"}],
)
def test_a_batch_that_is_none_is_garbled(wrong: dict[str, Any]) -> None:
    with pytest.raises(Garbled, match="gpu01: its samples are not readable"):
        counter_samples(batch("gpu01", [(1, 1, 1)], **wrong))


async def test_samples_reach_the_journal_with_clocks_and_the_rate_over_each_circuit(
    tmp_path: Path,
) -> None:
    path = Circuit(ONE, TWO, (CrossConnect(Port("ocs1", "1"), Port("ocs1", "9")),), 1.5)
    hosts = FakeHosts()
    with Journal(tmp_path, "r", "lab") as journal:
        async with sampled_ports(cast(Hosts, hosts), journal, 100, [path]):
            for host in ("gpu01", "gpu02"):
                hosts.queue.put_nowait(
                    batch(host, [(10**9, 1, 0), (3 * 10**9, host == "gpu01", 50_000_000)])
                )
                hosts.queue.put_nowait(batch(host, [], rows="torn"))
    assert hosts.asked == ["stream 0.01", "stream None", "unsubscribe"]
    assert [p.fields["tx_bytes"] for p in shown(tmp_path, "port")] == [0, 50_000_000] * 2
    (clock,) = shown(tmp_path, "clock")
    assert clock.fields == {"offset_ns": -40, "round_trip_ns": 100}
    last = shown(tmp_path, "circuit")[-1]
    assert (last.fields["mainstat"], last.fields["state"], last.tags["id"]) == (200.0, "dark", "1")


async def test_hosts_that_cannot_sample_and_a_change_that_fails_are_left_to_the_change(
    tmp_path: Path,
) -> None:
    hosts = FakeHosts()
    hosts.error = TimedOut("gpu01: no answer to counters")
    with Journal(tmp_path, "r", "lab") as journal:
        async with sampled_ports(cast(Hosts, hosts), journal):
            pass
        with pytest.raises(Unreachable):
            async with sampled_ports(cast(Hosts, hosts), journal):
                raise Unreachable("the change itself")
    assert hosts.asked == [
        "stream 0.1",
        "stream None",
        "unsubscribe",
        "stream 0.1",
        "leave",
        "unsubscribe",
    ]
    assert not shown(tmp_path, "port")


async def test_nothing_is_asked_where_no_samples_are_wanted(tmp_path: Path) -> None:
    hosts = FakeHosts()
    async with sampled_ports(cast(Hosts, hosts), None):
        pass
    with Journal(tmp_path, "r", "lab") as journal:
        async with sampled_ports(cast(Hosts, hosts), journal, 0):
            pass
    assert not hosts.asked


@pytest.mark.parametrize(("text", "hz"), [("10", 10.0), ("1000", 1000.0), ("0", 0.0), ("0.5", 0.5)])
def test_the_rate_is_a_setting(text: str, hz: float, tmp_path: Path) -> None:
    assert load(env={"TESTBED_SAMPLE_HZ": text}, cwd=tmp_path).sample_hz == hz
    (tmp_path / "testbed.toml").write_text(f"[telemetry]\nsample_hz = {text}\n")
    assert load(env={}, cwd=tmp_path).sample_hz == hz


@pytest.mark.parametrize("text", ["often", "-1", "1001", "0.01", "nan"])
def test_a_rate_that_cannot_be_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"TESTBED_SAMPLE_HZ: wanted samples a second, 0\.1 to 1000"):
        load(env={"TESTBED_SAMPLE_HZ": text}, cwd=tmp_path)


# --- what a reconfiguration did


class Meter:
    """A switch with meters whose ports light up at the n-th question."""

    def __init__(self, lit_at: int) -> None:
        self.questions, self.lit_at = 0, lit_at

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, float]:
        self.questions += 1
        if self.lit_at < 0:
            raise TimedOut("ocs1: no answer")
        return dict.fromkeys(ports, -3.0 if self.questions >= self.lit_at else -40.0)


MADE = CrossConnect(Port("ocs1", "1"), Port("ocs1", "9"))
CHANGES = {"ocs1": Change("ocs1", add=frozenset({MADE}))}


@pytest.mark.parametrize(("lit_at", "seen"), [(1, True), (4, True), (10**6, False), (-1, False)])
async def test_light_is_seen_when_every_new_port_has_it_and_never_made_up(
    lit_at: int, seen: bool
) -> None:
    meter = Meter(lit_at)
    async with Impact(cast(Hosts, FakeHosts()), {"ocs1": cast(Any, meter)}) as aftermath:
        aftermath.moved(CHANGES, {MADE.egress})
        assert aftermath._asking is not None
        await asyncio.wait([aftermath._asking], timeout=5 if seen else 0.01)
        await aftermath.settle()
        assert bool(aftermath.power) is seen and meter.questions >= min(abs(lit_at), 1)


async def test_packets_crossed_when_every_host_says_so_of_this_generation() -> None:
    hosts = FakeHosts()
    async with Impact(cast(Hosts, hosts), {}) as aftermath:
        aftermath._neighbours = {"gpu01": ("a",), "gpu02": ("b", "c")}
        early = HostEvent("gpu02", "crossed", 4, {"generation": 6, "answered": 2, "asked": 2})
        late = HostEvent("gpu02", "crossed", 9, {"generation": 7, "answered": 2, "asked": 2})
        for event in (
            HostEvent("gpu01", "crossed", 5, {"generation": 7, "answered": 1, "asked": 1}),
            early,
        ):
            hosts.queue.put_nowait(event)
        assert not aftermath.crossed(7)
        for event in (
            HostEvent("gpu01", "crossed", 5, {"generation": 7, "answered": 1, "asked": 1}),
            late,
        ):
            hosts.queue.put_nowait(event)
        assert aftermath.crossed(7) == {"gpu01": 5, "gpu02": 9}


def counters(rx: int, tx: int, down: AtDown | None = None) -> PortCounters:
    return PortCounters(rx, tx, 0, 0, 0, True, down)


async def test_lost_is_what_one_end_sent_and_the_other_did_not_hear_before_both_noticed() -> None:
    later = 1 << 62
    for kind, wanted in ((LinkKind.DUPLEX, 30 + 0), (LinkKind.SIMPLEX, 30)):
        hosts = FakeHosts()
        hosts.looks = [
            {ONE: counters(1000, 500), TWO: counters(200, 3000)},
            {
                ONE: counters(0, 0, AtDown(later, 1100, 600)),
                TWO: counters(0, 0, AtDown(later, 270, 3100)),
            },
        ]
        async with Impact(cast(Hosts, hosts), {}) as aftermath:
            broken = [Link(ONE, TWO, kind)]
            await aftermath.before(broken)
            assert await aftermath.lost_bytes(broken) == wanted


@pytest.mark.parametrize("down", [None, AtDown(0, 5, 5)])
async def test_a_port_that_noticed_no_darkness_leaves_the_loss_unknown(down: AtDown | None) -> None:
    hosts = FakeHosts()
    hosts.looks = [
        dict.fromkeys((ONE, TWO), counters(1, 1)),
        {ONE: counters(2, 2, down), TWO: counters(2, 2, AtDown(1 << 62, 2, 2))},
    ]
    async with Impact(cast(Hosts, hosts), {}) as aftermath:
        assert await aftermath.lost_bytes([]) == 0, "nothing broken, nothing lost"
        await aftermath.before([LINK])
        assert await aftermath.lost_bytes([LINK]) is None


async def test_hosts_that_do_not_answer_leave_the_loss_unknown() -> None:
    hosts = FakeHosts()
    hosts.error = Unreachable("gpu01: gone")
    async with Impact(cast(Hosts, hosts), {}) as aftermath:
        await aftermath.before([LINK])
        assert await aftermath.lost_bytes([LINK]) is None
