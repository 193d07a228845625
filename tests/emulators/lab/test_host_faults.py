"""Faults of hosts and links: when they come and go, what they do together, who may ask for what; no
host is needed.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emulators.fabric.build import Fabric
from emulators.fabric.fibre_plant import HostPort
from emulators.fabric.loss import instructions
from emulators.fabric.netlink import DELQDISC, NEWQDISC, NEWTCLASS, Message
from emulators.fabric.programs import ranks
from emulators.fabric.switches import OUTWARD, cables
from emulators.generate.command import main
from emulators.inventory.config import LabConfig, read_config
from emulators.lab.control import Control
from emulators.lab.hostfaults import Event, HostFaults, drawn, effects, host_fault
from emulators.lab.running import Lab, Listeners, build_devices, laid


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> LabConfig:
    """Four hosts with two optical ports, one at a tree of two racks (port 3), one at a single
    switch (port 4).
    """
    folder = tmp_path_factory.mktemp("lab")
    argv = [
        "--hosts",
        "4",
        "--ports",
        "2",
        "--electrical",
        "oversubscribed:2@50",
        "--electrical",
        "ideal@50",
        "--rack",
        "2",
    ]
    assert main([*argv, "--out", str(folder)]) == 0
    return read_config(folder)


def begun(events: list[Event]) -> list[tuple[float, bool]]:
    return [(event.at_s, event.begins) for event in events]


def test_a_fault_begins_ends_and_comes_again_as_often_as_asked(config: LabConfig) -> None:
    faults = HostFaults(config)
    number = faults.add(
        "gpu01",
        host_fault("link-down", "gpu01", config, port=1, at_s=2, for_s=3, per_s=10, count=2),
        100.0,
    )
    assert faults.advance(101.0) == [] and faults.next_s == 102.0
    assert begun(faults.advance(103.0)) == [(102.0, True)] and [
        f.port for _, f in faults.active()
    ] == [1]
    assert begun(faults.advance(1000.0)) == [(105.0, False), (112.0, True), (115.0, False)]
    assert faults.next_s == float("inf") and faults.active() == []
    reply = faults.listed()["gpu01"][0]
    assert (
        reply["number"] == number
        and reply["state"] == "over"
        and reply["fired"] == 2
        and "mbps" not in reply
    )


def test_a_fault_without_an_end_lasts_until_it_is_removed(config: LabConfig) -> None:
    faults = HostFaults(config)
    number = faults.add("gpu01", host_fault("cpu-hog", "gpu01", config), 0.0)
    assert begun(faults.advance(0.0)) == [(0.0, True)] and faults.advance(1e8) == []
    assert [event.begins for event in faults.remove(number)] == [False]
    with pytest.raises(KeyError):
        faults.remove(number)


def test_chance_decides_each_time_and_what_did_not_happen_does_not_count(config: LabConfig) -> None:
    faults = HostFaults(config)
    faults.add(
        "gpu02", host_fault("kill-rank", "gpu02", config, per_s=1, count=100, probability=0.25), 0.0
    )
    at = [event.at_s for event in faults.advance(10_000.0)]
    assert len(at) == 100 and 250 < at[-1] < 600  # the hundredth success of a chance of 1/4


def test_faults_that_overlap_do_what_all_of_them_do(config: LabConfig) -> None:
    wanted: list[tuple[str, str, Mapping[str, object]]] = [
        ("gpu01", "slow-link", {"port": 1, "mbps": 50}), ("gpu01", "slow-link", {"port": "p1", "mbps": 20}),
        ("gpu01", "loss", {"port": 2, "percent": 50}), ("gpu01", "loss", {"port": 2, "percent": 50}),
        ("gpu02", "cpu-hog", {"threads": 1}), ("gpu02", "cpu-hog", {}), ("gpu03", "link-down", {"port": 2}),
        ("gpu04", "tor", {"port": 3}), ("gpu02", "clock-drift", {"offset_s": 2, "ppm": 100}),
    ]  # fmt: skip
    found = effects(
        [(host, host_fault(kind, host, config, **values)) for host, kind, values in wanted], config
    )
    assert found.rates == {HostPort("gpu01", 1): 20_000_000} and found.losses == {
        HostPort("gpu01", 2): 0.75
    }
    assert found.threads == {"gpu02": 3} and found.clocks == {"gpu02": (2.0, pytest.approx(1e-4))}
    assert found.rdma == {}
    # a link, and the rack of gpu03 and gpu04
    assert found.down == {("gpu03", 2), ("gpu03", 3), ("gpu04", 3)}


def test_faults_of_rdma_ports_add_up_and_need_hosts_that_have_them(config: LabConfig) -> None:
    with pytest.raises(ValueError, match=r"renamed: .* no RDMA devices: rdma: true"):
        host_fault("renamed", "gpu01", config, port=1)
    able = replace(config, rdma=True)
    made = [
        ("gpu01", host_fault(kind, "gpu01", able, port=port))
        for kind, port in (("renamed", 1), ("gids-moved", 1), ("gids-moved", 2))
    ]
    assert effects(made, able).rdma == {
        HostPort("gpu01", 1): {"renamed", "gids-moved"},
        HostPort("gpu01", 2): {"gids-moved"},
    }


@pytest.mark.parametrize(
    ("host", "kind", "values", "text"),
    [
        (
            "gpu01",
            "slowlink",
            {},
            "no fault of a host is named 'slowlink'; did you mean slow-link?",
        ),
        ("gpu09", "cpu-hog", {}, "no host gpu09; there are gpu01, gpu02, gpu03, gpu04"),
        ("gpu01", "loss", {"percent": 1}, "fault loss: which port?"),
        ("gpu01", "loss", {"port": 9, "percent": 1}, "no port 9 on gpu01; it has 1, 2, 3, 4"),
        (
            "gpu01",
            "loss",
            {"port": 1, "percent": 101},
            "percent 101: wanted more than 0 and up to 100",
        ),
        ("gpu01", "loss", {"port": 1, "percent": float("nan")}, "percent: nan is not a number"),
        ("gpu01", "slow-link", {"port": 1, "mbps": 0}, "mbps 0: wanted 0.1 or more"),
        ("gpu01", "slow-link", {"port": "one", "mbps": 1}, "fault slow-link: port: "),
        ("gpu01", "cpu-hog", {"threads": float("inf")}, "threads: "),
        ("gpu01", "loss", {"port": None, "percent": 1}, "fault loss: which port?"),
        ("gpu01", "kill-rank", {"for_s": 3}, "takes no for_s; it takes at_s, count,"),
        ("gpu01", "hang-rank", {"rank": "gpu02/1"}, "rank gpu02/1 is not on gpu01"),
        ("gpu01", "cpu-hog", {"threads": 1.5}, "1.5 is not a whole number"),
        ("gpu01", "cpu-hog", {"count": 3}, "count 3: how often? give per_s"),
        ("gpu01", "cpu-hog", {"per_s": 3}, "comes every 3 s: give for_s"),
        ("gpu01", "clock-drift", {}, "how much? give offset_s (--offset) or ppm (--ppm)"),
        (
            "gpu01",
            "tor",
            {},
            "several packet switches (oversubscribed at port 3, ideal at port 4): which port?",
        ),
        (
            "gpu01",
            "tor",
            {"port": 1},
            "no packet switch at port 1 of gpu01; segments: oversubscribed, ideal",
        ),
        ("oversubscribed", "tor", {}, "has a switch for each rack: name a host"),
        ("all", "storm", {}, "fault storm: which per?"),
        ("all", "cpu-hog", {}, "no host all"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    config: LabConfig, host: str, kind: str, values: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError) as refused:
        host_fault(kind, host, config, **values)
    assert text in str(refused.value)


def stormy(
    config: LabConfig, seed: int, until: float = 1e9, **values: object
) -> tuple[HostFaults, list[Event]]:
    faults = HostFaults(config)
    faults.add("all", host_fault("storm", "all", config, per_s=10, seed=seed, **values), 0.0)
    return faults, faults.advance(until)


def test_a_storm_is_the_same_again_with_the_same_seed_and_nothing_outlasts_it(
    config: LabConfig,
) -> None:
    times = {"for_s": 3600.0, "seconds": 30.0}
    faults, events = stormy(config, 1, **times)
    assert events == stormy(config, 1, **times)[1] != stormy(config, 2, **times)[1]
    drawn_ = [event for event in events if event.begins and event.fault.kind != "storm"]
    assert 300 < len(drawn_) < 420  # 3600 s, one in 10 s on average: 360, standard deviation 19
    assert {event.host for event in drawn_} == set(config.hosts)
    assert {event.fault.kind for event in drawn_} == {
        "slow-link", "loss", "link-down", "cpu-hog", "hang-rank", "kill-rank", "tor",
    }  # fmt: skip
    assert max(event.at_s for event in events) == 3600.0 and faults.active() == []


def test_a_storm_that_is_removed_takes_its_faults_with_it(config: LabConfig) -> None:
    faults, events = stormy(config, 3, until=200.0, seconds=1e6)
    active = {
        number
        for number in range(1, 100)
        if any(e.number == number and e.fault.kind != "kill-rank" for e in events)
    }
    assert len(active) > 5 and {event.number for event in faults.remove(1)} == active
    assert faults.listed() == {} and faults.next_s == float("inf")


def test_a_storm_over_one_host_stays_there_and_draws_what_can_be_done(config: LabConfig) -> None:
    chance, storm = random.Random(1), host_fault("storm", "gpu02", config, per_s=5)
    for _ in range(200):
        host, fault = drawn(chance, storm, "gpu02", config)
        assert host == "gpu02"
        host_fault(
            host=host,
            config=config,
            **{k: v for k, v in fault.reported().items() if k != "port" or v},
        )  # type: ignore[arg-type]


def test_the_filter_drops_the_share_that_was_asked_for() -> None:
    assert [struct.unpack("=BBhI", instructions(share)[8:16])[3] for share in (0.25, 1.0)] == [
        1 << 30,
        (1 << 32) - 1,
    ]
    assert len(instructions(0.5)) == 48


class Kernel:
    """Notes the messages to the kernel."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int]] = []

    def send(self, messages: list[Message]) -> None:
        for message in messages:
            (index,) = struct.unpack_from("=4xi", message.body)
            rate = struct.unpack_from("=I", message.body, message.body.index(struct.pack("=h", -1)) + 4)[0] * 8 if (
                message.kind == NEWTCLASS
            ) else 0  # fmt: skip
            self.sent.append((message.kind, index, rate))

    def reported(self) -> list[tuple[int, int, int]]:
        sent, self.sent = sorted(self.sent), []
        return sent


def bare(config: LabConfig, usual_bps: int) -> tuple[Any, Kernel]:
    """A fabric of bookkeeping alone: ends 1000, 1001 and so on, all built with one rate."""
    fabric, kernel = cast("Any", Fabric.__new__(Fabric)), Kernel()
    ports = [
        HostPort(name, number) for name, host in config.hosts.items() for number in host.interfaces
    ]
    fabric._index = {port: 1000 + at for at, port in enumerate(ports)}
    fabric._usual_bps = {
        end + out: usual_bps for end in fabric._index.values() for out in (0, OUTWARD)
    }
    fabric.fibre_plant, fabric.cables = SimpleNamespace(sources={}), cables(config.segments)
    fabric._limits, fabric._limited, fabric._losses, fabric._ocs, fabric._shaped_first = (
        {},
        {},
        {},
        kernel,
        set(),
    )
    return fabric, kernel


def test_what_a_slow_port_sends_is_slow_wherever_its_light_goes(config: LabConfig) -> None:
    fabric, kernel = bare(config, 250_000_000)
    slow, one, other = HostPort("gpu01", 1), HostPort("gpu02", 1), HostPort("gpu03", 1)
    own, first, second = (fabric._index[port] for port in (slow, one, other))
    fabric.fibre_plant.sources = {one: slow, slow: one}
    fabric.impair({slow: 50_000_000}, {})
    assert kernel.reported() == [(NEWTCLASS, own, 50_000_000), (NEWTCLASS, first, 50_000_000)]
    fabric.fibre_plant.sources = {other: slow, slow: other}
    fabric._limit()
    assert kernel.reported() == [(NEWTCLASS, first, 250_000_000), (NEWTCLASS, second, 50_000_000)]
    fabric.impair({}, {})
    assert kernel.reported() == [(NEWTCLASS, own, 250_000_000), (NEWTCLASS, second, 250_000_000)]
    fabric.impair({slow: 900_000_000}, {})
    assert kernel.reported() == []  # no faster than it was built


def test_a_slow_port_of_a_packet_switch_or_without_a_rate_is_shaped_and_freed_again(
    config: LabConfig,
) -> None:
    fabric, kernel = bare(config, 0)
    fabric.impair({HostPort("gpu01", 3): 5_000_000}, {})
    end = fabric._index["gpu01", 3]
    assert [(kind, index) for kind, index, _ in kernel.reported()] == [
        *[(NEWQDISC, end)] * 2, *[(NEWQDISC, end + OUTWARD)] * 2, (NEWTCLASS, end), (NEWTCLASS, end + OUTWARD),
    ]  # fmt: skip
    fabric.impair({}, {})
    assert [(kind, index) for kind, index, _ in kernel.reported()] == [
        (DELQDISC, end),
        (DELQDISC, end + OUTWARD),
    ]


def test_a_slow_port_of_a_rotor_is_slow_before_the_glass(config: LabConfig) -> None:
    fabric, kernel = bare(config, 250_000_000)
    slow, other = HostPort("gpu01", 1), HostPort("gpu02", 1)
    fabric._shaped_first = {slow, other}
    fabric.fibre_plant.sources = {other: slow, slow: other}
    fabric.impair({slow: 50_000_000}, {})
    own = fabric._index[slow]
    assert kernel.reported() == [
        (NEWTCLASS, own, 50_000_000),
        (NEWTCLASS, own + OUTWARD, 50_000_000),
    ]


class StubHost:
    """A host with one rank, number 0, whose programs are 7 and 8."""

    def __init__(self, name: str) -> None:
        self.name, self.pid, self.asked = name, 4711, list[dict[str, Any]]()

    @property
    def running(self) -> bool:
        return bool(self.pid)

    def order(self, **texts: Any) -> dict[str, object]:
        self.asked.append(texts)
        return {"pids": [7, 8] if texts.get("rank") == 0 else []}


class StubFabric:
    """Hosts without programs, ports without a kernel."""

    def __init__(self, config: LabConfig) -> None:
        self.fibre_plant, self.cables = laid(config), cables(config.segments)
        self.hosts = {name: StubHost(name) for name in config.hosts}
        self.out: set[str] = set()
        self.kill = self.fibre_plant.kill
        self.impaired: tuple[Mapping[HostPort, int], Mapping[HostPort, float]] = ({}, {})
        self.refuses = False
        self.queues = SimpleNamespace(shares={}, jobs=[])

    def advance(self, device: str, schedule: object) -> None:
        raise AssertionError("no device of this lab turns")

    def unplug(self, cable: str, out: bool) -> None:
        (self.out.add if out else self.out.discard)(cable)

    def impair(self, limits: Mapping[HostPort, int], losses: Mapping[HostPort, float]) -> None:
        self.impaired = limits, losses
        if self.refuses and losses:
            raise OSError("losing packets needs BPF")


@pytest.fixture
async def lab(config: LabConfig) -> AsyncIterator[tuple[Control, StubFabric]]:
    devices, fabric = build_devices(config), StubFabric(config)
    yield (
        Control(Lab(config, devices, Listeners(dict.fromkeys(devices), {}, None, None, 1), fabric)),
        fabric,
    )  # type: ignore[arg-type]


def ask(control: Control, op: str, **values: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        json.dumps(control.answer(json.dumps({"op": op, **values}).encode()))
    )
    return answer


async def test_a_fault_of_a_link_is_done_told_and_undone(lab: tuple[Control, StubFabric]) -> None:
    control, fabric = lab
    number = ask(control, "faults.add", host="gpu01", kind="slow-link", port=1, mbps=50)["number"]
    assert fabric.impaired == ({("gpu01", 1): 50_000_000}, {})
    listed = ask(control, "faults.list")
    assert listed["faults"]["gpu01"] == [
        {"number": number, "kind": "slow-link", "port": 1, "mbps": 50.0, "at_s": 0.0, "probability": 1.0,
         "state": "active", "fired": 1},
    ]  # fmt: skip
    assert (
        "no fault 1 of gpu02" in ask(control, "faults.remove", host="gpu02", number=number)["error"]
    )
    assert ask(control, "faults.remove", host="gpu01", number=number)["ok"] and fabric.impaired == (
        {},
        {},
    )
    log = ask(control, "faults.list")["log"]
    assert [(e["event"], e["host"], e["number"]) for e in log] == [
        ("begin", "gpu01", 1), ("faults.add", "gpu01", 1), ("end", "gpu01", 1), ("faults.remove", "gpu01", 1),
    ]  # fmt: skip
    assert abs(time.time_ns() - log[0]["t_wall_ns"]) < 60e9


async def test_a_cable_that_was_out_before_the_switch_failed_stays_out(
    lab: tuple[Control, StubFabric],
) -> None:
    control, fabric = lab
    assert ask(control, "fibre", name="oversubscribed-gpu02", cut=True)["ok"]
    number = ask(control, "faults.add", host="gpu01", kind="tor", port=3)["number"]
    assert fabric.out == {"oversubscribed-gpu01", "oversubscribed-gpu02"}
    assert ask(control, "faults.list")["log"][-2]["switch"] == "segment oversubscribed rack 1"
    assert ask(control, "faults.remove", host="gpu01", number=number)["ok"]
    assert fabric.out == {"oversubscribed-gpu02"}


async def test_a_stopped_rank_is_spared_by_the_hog_that_would_let_it_go(
    lab: tuple[Control, StubFabric],
) -> None:
    control, fabric = lab
    asked = fabric.hosts["gpu01"].asked
    hog = ask(control, "faults.add", host="gpu01", kind="cpu-hog", threads=3)["number"]
    hang = ask(control, "faults.add", host="gpu01", kind="hang-rank", rank="gpu01/0")["number"]
    again = ask(control, "faults.add", host="gpu01", kind="hang-rank")["number"]
    assert [(a["do"], a.get("name"), a.get("sparing")) for a in asked] == [
        ("hog", None, []), ("signal", "SIGSTOP", None), ("hog", None, [7, 8]), ("signal", "SIGSTOP", None), ("hog", None, [7, 8]),
    ]  # fmt: skip
    asked.clear()
    for number in (hang, again, hog):
        assert ask(control, "faults.remove", host="gpu01", number=number)["ok"]
    assert [(a["do"], a.get("pids", a.get("sparing"))) for a in asked] == [
        ("signal", []), ("hog", [7, 8]), ("signal", [7, 8]), ("hog", []), ("hog", []),
    ]  # fmt: skip
    assert asked[-1]["threads"] == 0


async def test_a_fault_that_cannot_happen_now_is_refused_and_leaves_nothing(
    lab: tuple[Control, StubFabric],
) -> None:
    control, fabric = lab
    refused = ask(control, "faults.add", host="gpu01", kind="kill-rank", rank=1)
    assert (
        refused["bad_request"] and "no rank 1 of a job runs on gpu01: start one" in refused["error"]
    )
    fabric.hosts["gpu02"].pid = 0
    assert (
        ask(control, "faults.add", host="gpu02", kind="cpu-hog")["error"] == "no running host gpu02"
    )
    fabric.refuses = True
    refused = ask(control, "faults.add", host="gpu01", kind="loss", port=1, percent=1)
    assert (
        not refused["bad_request"]
        and "needs BPF" in refused["error"]
        and fabric.impaired == ({}, {})
    )
    assert not any(ask(control, "faults.list")["faults"].values())


@pytest.fixture
def programs() -> Iterator[tuple[int, int]]:
    """A shell as the agent starts one around a rank, and the rank."""
    env = {**os.environ, "TESTBED_JOB_DIR": "/tmp", "LOCAL_RANK": "3"}
    argv = [
        "/bin/sh",
        "-c",
        'trap : TERM; "$@"; echo $?',
        "x",
        "/bin/sh",
        "-c",
        "echo here; read line; :",
    ]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None and shell.stdout.readline() == b"here\n"
        inner = next(
            int(p.parent.name) for p in Path("/proc").glob("[0-9]*/stat") if parent(p) == shell.pid
        )
        yield shell.pid, inner
        shell.communicate(b"\n", timeout=30)


def parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_ranks_programs_are_found_and_the_shell_that_notes_how_it_ended_is_not(
    programs: tuple[int, int],
) -> None:
    shell, inner = programs
    found = ranks()
    assert found[inner] == 3 and shell not in found
