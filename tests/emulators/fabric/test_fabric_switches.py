"""Packet switches in addition to the optical ones: joined from the start, by address, at the rates
of cables and uplinks.
"""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulators.fabric.fibre_plant import HostPort
from emulators.fabric.netlink import (
    NEWTCLASS,
    NEWTFILTER,
    Message,
    Netlink,
    address,
    by_source,
    link_mtu,
    subnet_route,
)
from emulators.fabric.queues import Queues
from emulators.fabric.switches import switched
from emulators.generate.command import free_ports, main
from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from emulators.inventory.config import HostConfig, LabConfig, Queue, Segment, read_config
from emulators.inventory.files import BadInventory
from optics import BadFile
from tests.emulators.fabric.emulated import EmulatedLab, eventually
from tests.emulators.functions.workers import Worker, exact, read, vectors
from tests.kit.labs import lab_in

ETHERTYPE = 0x88B5
EVERYBODY = b"\xff" * 6


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    """Four hosts with an optical port, one at a single switch that has functions, and one at a tree
    of two racks.
    """
    folder, numbers = tmp_path_factory.mktemp("lab"), free_ports(6)
    kinds = (parse("ideal@50+aggregate+cache"), parse("oversubscribed:2@50"))
    more = {"electrical": kinds, "rack": 2, "control_ports": numbers[5:], "queue": (128, "job")}
    generate(
        folder / "inventory", Wanted(numbers[:4], numbers[4:5], str(folder / "state"), 0.02, **more)
    )  # type: ignore[arg-type]
    running = EmulatedLab(folder / "inventory")
    yield running
    assert running.stop() == 0, running.log.read_text()


def ear(lab: EmulatedLab, host: str, port: int) -> socket.socket:
    with lab.inside(host):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    sock.bind((f"el{port}", ETHERTYPE))
    sock.settimeout(2.0)
    return sock


def carrier(lab: EmulatedLab, host: str, port: int) -> bool:
    with lab.inside(host):
        netlink = Netlink()
    up = next(carrier for name, _, carrier in netlink.links().values() if name == f"el{port}")
    netlink.close()
    return up


@pytest.mark.lab
@pytest.mark.parametrize("port", [2, 3])
def test_a_switch_joins_its_ports_and_no_others_without_any_light(
    switches: EmulatedLab, port: int
) -> None:
    assert all(carrier(switches, f"gpu0{n}", port) for n in range(1, 5))
    ears = {
        (host, p): ear(switches, host, p)
        for host in ("gpu01", "gpu02", "gpu03", "gpu04")
        for p in (2, 3)
    }
    mouth = ears["gpu01", port]
    mac = mouth.getsockname()[4]
    mouth.send(EVERYBODY + mac + struct.pack("!H", ETHERTYPE) + b"all".ljust(46))
    for number in (2, 3, 4):
        assert ears[f"gpu0{number}", port].recv(2000)[14:17] == b"all"
    # Now the switch has learned the address: an answer goes to one port only.
    other = ears["gpu04", port]
    other.send(mac + other.getsockname()[4] + struct.pack("!H", ETHERTYPE) + b"one".ljust(46))
    assert mouth.recv(2000)[14:17] == b"one"
    other.send(mac + other.getsockname()[4] + struct.pack("!H", ETHERTYPE) + b"two".ljust(46))
    # a copy of the first that leaked would be there by now, too
    assert mouth.recv(2000)[14:17] == b"two"
    for (host, p), sock in ears.items():
        sock.setblocking(False)
        with sock, pytest.raises(BlockingIOError):
            if (host, p) != ("gpu04", port):
                assert not sock.recv(2000), (host, p)
            raise BlockingIOError


@pytest.mark.lab
def test_a_cable_that_is_pulled_takes_the_carrier_of_its_host_alone(switches: EmulatedLab) -> None:
    assert switches.ask("fibre", name="ideal-gpu02", cut=True)["cut"] == ["ideal-gpu02"]
    assert eventually(lambda: not carrier(switches, "gpu02", 2))
    assert carrier(switches, "gpu01", 2) and carrier(switches, "gpu02", 3)
    assert switches.ask("link", host="gpu03", port=2, up=False)["dead"] == ["gpu02:p2", "gpu03:p2"]
    assert eventually(lambda: not carrier(switches, "gpu03", 2))
    switches.ask("link", host="gpu03", port=2, up=True)
    assert switches.ask("fibre", name="ideal-gpu02", cut=False)["cut"] == []
    assert eventually(lambda: carrier(switches, "gpu02", 2) and carrier(switches, "gpu03", 2))


@pytest.mark.lab
def test_hosts_get_their_sums_over_their_cables_whatever_the_switch_loses(
    switches: EmulatedLab,
) -> None:
    port = switches.ask("status")["segments"][0]["control_port"]
    with socket.create_connection(("127.0.0.1", port), 5) as talk:
        file = talk.makefile("rwb")
        own = [f"10.255.0.{n}" for n in (1, 2, 3)]
        ask = {
            "op": "allocate",
            "function": "aggregate",
            "job": "a",
            "workers": own,
            "slots": 4,
            "lease_s": 60,
        }
        file.write(json.dumps(ask).encode() + b"\n")
        file.flush()
        made = json.loads(file.readline())
    assert (
        made["ok"] and switches.ask("status")["functions"]["ideal"]["allocations"][0]["job"] == "a"
    )
    lossy = switches.ask("faults.add", host="ideal", kind="function-loss", percent=20)["number"]
    parts = vectors(random.Random(1), 3, 30, 2048)
    workers = [Worker(made, n, parts[n], 4, 1) for n in range(3)]
    socks = [switch_socket(switches, f"gpu0{n + 1}", at, made) for n, at in enumerate(own)]
    deadline = time.monotonic() + 30
    while any(worker.waiting for worker in workers) and time.monotonic() < deadline:
        for worker, sock in zip(workers, socks, strict=True):
            for packet in worker.ask():
                sock.send(packet)
        while heard := select.select(socks, [], [], 0.05)[0]:
            for sock in heard:
                kind, number, chunk, payload = read(sock.recv(9000))
                workers[number].hear(kind, chunk, payload)
    for sock in socks:
        sock.close()
    wanted = exact(parts)
    assert all(
        worker.sums[chunk] == wanted[chunk].tobytes() for worker in workers for chunk in range(30)
    )
    state = switches.ask("status")["functions"]["ideal"]
    assert state["totals"]["lost"] > 0 and state["totals"]["foreign"] == 0
    assert switches.ask("faults.remove", host="ideal", number=lossy)["ok"]
    assert switches.ask("faults.add", host="ideal", kind="function-restart")["ok"]
    assert switches.ask("status")["functions"]["ideal"]["allocations"] == []


def switch_socket(lab: EmulatedLab, host: str, own: str, made: dict[str, str]) -> socket.socket:
    """A host's socket to the functions of segment `ideal`: its port there is number 2, of index
    102.
    """
    with lab.inside(host):
        netlink = Netlink()
        netlink.send(
            [
                link_mtu(102, 9000),
                address(102, own, 32),
                subnet_route(102, made["address"], 32, own),
            ]
        )
        netlink.close()
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((made["address"], made["port"]))
    return sock


INDEX = {HostPort(f"h{n}", 5): 1000 + n for n in range(4)}


def tree_of(queue: Queue | None) -> tuple[Segment, Queues]:
    ports = {f"h{n}": 5 for n in range(4)}
    tree = Segment(
        "tree",
        ports,
        1 << 35,
        ((("h0", "h1"), 40_000_000), (("h2", "h3"), 20_000_000)),
        queue=queue,
    )
    hosts = {f"h{n}": HostConfig(f"h{n}", n, 0, "", {5: "el5"}) for n in range(4)}
    return tree, Queues(LabConfig(Path(), Path(), hosts, {}, (), segments=(tree,)))


def test_uplinks_are_limited_both_ways_and_a_fast_cable_is_not() -> None:
    tree, queues = tree_of(None)
    classes = [
        message for message in switched([tree], INDEX, 9000, queues) if message.kind == NEWTCLASS
    ]
    rates = [
        struct.unpack_from("=I", message.body, message.body.index(struct.pack("=h", -1)) + 4)[0] * 8
        for message in classes
    ]
    assert rates == [40_000_000, 40_000_000, 20_000_000, 20_000_000]


def test_before_an_uplink_packets_wait_with_those_of_their_senders_job() -> None:
    tree, queues = tree_of(Queue(128 * 1024, "job"))
    built = [*switched([tree], INDEX, 9000, queues)]
    places = [
        m.body[4:12]
        for m in built
        if m.kind == NEWTFILTER and struct.unpack_from("=12xI", m.body) == (0x10000,)
    ]
    assert len(places) == 8 == len(set(places)), (
        "two senders at each end of two uplinks, a filter of its own each"
    )
    up, down = sorted(
        {
            struct.unpack_from("=4xi", message.body)[0]
            for message in built
            if message.kind == NEWTCLASS
        }
    )[:2]

    def seen(messages: list[Message]) -> list[list[int]]:
        """The class of each sender at rack 1's uplink: h0 and h1 send upwards, h2 and h3
        downwards.
        """
        at = (
            (up, ("02:0a:00:00:00:05", "02:0a:00:00:01:05")),
            (down, ("02:0a:00:00:02:05", "02:0a:00:00:03:05")),
        )
        every = (
            (by_source(end, n, mac, k), k)
            for end, macs in at
            for n, mac in enumerate(macs)
            for k in range(2, 6)
        )
        found = [k for message, k in every if message in messages]
        return [found[:2], found[2:]]

    assert seen(built) == [[3, 4], [3, 4]], "each host is a job of its own"
    assert seen(queues.job({"h0", "h2"})) == [[3, 4], [3, 4]]
    assert seen(queues.job({"h0", "h1", "h3"})) == [[3, 3], [3, 4]], "h2 is alone again"
    assert seen(queues.share("fifo")) == [[2, 2], [2, 2]]
    assert seen(queues.job({"h2", "h3"})) == [[2, 2], [2, 2]]
    assert seen(queues.share("job")) == [[3, 3], [3, 3]]


@pytest.mark.lab
def test_a_running_lab_is_told_which_hosts_are_one_job(switches: EmulatedLab) -> None:
    assert switches.ask("queue.share", share="fifo")["share"] == {"oversubscribed": "fifo"}
    assert switches.ask("queue.job", hosts=["gpu03", "gpu01"])["jobs"] == [["gpu01", "gpu03"]]
    assert switches.ask("queue.job", hosts=["gpu03", "gpu04"])["jobs"] == [
        ["gpu01"],
        ["gpu03", "gpu04"],
    ]
    assert switches.ask("queue.share", share="job")["ok"]
    for ask in (
        {"op": "queue.share", "share": "fair"},
        {"op": "queue.job", "hosts": ["gpu09"]},
        {"op": "queue.job", "hosts": []},
    ):
        assert not switches.ask(**ask)["ok"]  # type: ignore[arg-type]


def test_the_program_and_the_emulators_read_the_same_switches(tmp_path: Path) -> None:

    kinds = ("fat-tree", "dual:5", "rails:2@40")
    argv = [
        "--hosts",
        "10",
        "--ports",
        "2",
        *(word for kind in kinds for word in ("--electrical", kind)),
        "--rack",
        "4",
    ]
    argv += ["--queue", "256:job"]
    assert main([*argv, "--out", str(tmp_path)]) == 0
    config = read_config(tmp_path)
    lab = lab_in(tmp_path)
    seen = {
        s.name: (
            {h: p.number for h, p in s.ports.items()},
            s.link_mbps * 1e6,
            [(r.hosts, r.uplink_mbps * 1e6) for r in s.racks],
        )
        for s in lab.segments.values()
    }
    assert seen == {s.name: (dict(s.ports), s.rate_bps, list(s.racks)) for s in config.segments}
    queues = {s.name: (s.queue.kb * 1024, s.queue.share) for s in lab.segments.values() if s.queue}
    assert queues == {
        s.name: (s.queue.limit_bytes, s.queue.share) for s in config.segments if s.queue
    }
    assert queues["fat-tree"] == (262_144, "job") and queues["rail1"] == (262_144, "fifo")
    assert [len(hosts) for hosts, _ in config.segments[0].racks] == [4, 4, 2] and config.segments[
        0
    ].rate_bps == 500_000_000


def test_switches_that_cannot_be_built_are_all_explained(tmp_path: Path) -> None:
    assert (
        main(["--hosts", "2", "--ports", "1", "--electrical", "ideal", "--out", str(tmp_path)]) == 0
    )
    fibres = (tmp_path / "fibres.yml").read_text()
    bad = [
        {"name": "a", "link_mbps": 0, "ports": ["gpu01:p2"]},
        {"name": "f-gpu01-p1", "link_mbps": 1, "ports": ["gpu01:p1", "gpu02:p9"]},
        {
            "name": "b",
            "link_mbps": 1,
            "ports": ["gpu01:p2", "gpu02:p2"],
            "racks": [{"hosts": ["gpu01"], "uplink_mbps": 1}],
        },
        {"name": "c", "link_mbps": 1, "ports": ["gpu01:p2"], "queue": {"kb": 64}},
        {"name": "d", "link_mbps": 1, "ports": ["gpu01:p2"], "queue": {"kb": 128, "share": "fair"}},
    ]
    (tmp_path / "fibres.yml").write_text(
        fibres.partition("segments:")[0] + f"segments: {json.dumps(bad)}\n"
    )
    with pytest.raises(BadInventory) as refused:
        read_config(tmp_path)
    text = str(refused.value)
    for what in (
        "a rate of 0 Mb/s",
        "every host is in one rack",
        "f-gpu01-p1: the name is taken",
        "port 1 of gpu01 is taken by",
    ):
        assert what in text
    assert "no port 9 on a host gpu02" in text
    assert (
        "queue of 64 kB: wanted 68 to 1048576" in text
        and "'share': 'fair'}: wanted {kb: 128, share: fifo}" in text
    )


def test_cables_of_switches_have_names_of_their_own(tmp_path: Path) -> None:
    from orchestrator.inventory.lab import read_lab

    assert (
        main(
            [
                "--hosts",
                "2",
                "--ports",
                "2",
                "--electrical",
                "ideal",
                "--electrical",
                "ideal",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    hosts, devices, fibres = (
        (tmp_path / name).read_text().replace("gpu01", "b-c")
        for name in ("hosts.yml", "devices.yml", "fibres.yml")
    )
    hosts, devices, fibres = (
        text.replace("gpu02", "c").replace("f-c-p1", "a-b-c") for text in (hosts, devices, fibres)
    )
    ports = {"a": ["b-c:p3", "c:p3"], "a-b": ["b-c:p4", "c:p4"]}
    bad = [{"name": name, "link_mbps": 1, "ports": at} for name, at in ports.items()]
    fibres = fibres.partition("segments:")[0] + f"segments: {json.dumps(bad)}\n"
    for name, text in (("hosts.yml", hosts), ("devices.yml", devices), ("fibres.yml", fibres)):
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInventory) as refused:
        read_config(tmp_path)
    assert str(refused.value).count("a-b-c: the name is taken") == 2
    with pytest.raises(BadFile) as refused_too:
        read_lab(hosts, devices, fibres)
    message = str(refused_too.value)
    assert (
        "segments[0].ports[0]: the name of its cable, a-b-c, is already used by fibres[1]"
        in message
    )
    assert (
        "segments[1].ports[1]: the name of its cable, a-b-c, is already used by fibres[1]"
        in message
    )


@pytest.mark.parametrize(
    "spec",
    [
        "ideal@20000000",
        "oversubscribed:1000000@1",
        "oversubscribed:4000000000@10",
        "fat-tree@9000000",
    ],
)
def test_no_lab_is_written_at_rates_that_the_program_refuses(
    tmp_path: Path, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--hosts", "2", "--electrical", spec, "--out", str(tmp_path / "lab")])
    assert "Mb/s: wanted more than 0 and no more than 10000000" in capsys.readouterr().err
    assert not (tmp_path / "lab").exists()


def test_switches_go_with_the_default_lab_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["--look-ahead"], ["--rack", "0"]):
        with pytest.raises(SystemExit):
            main([*argv, "--electrical", "ideal", "--out", str(tmp_path)])
    output = capsys.readouterr().err
    assert (
        "--electrical is for labs of Polatis and Calient switches" in output
        and "racks of 1 host or more" in output
    )
