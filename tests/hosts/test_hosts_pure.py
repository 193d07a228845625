"""What is computed before any host is spoken to: requests, commands, environments, facts,
errors.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optics import Infeasible, Locked, Refused, TestbedError, TimedOut, Unreachable
from optics.plan import Job
from orchestrator.fabric.rules import Neighbour, RdmaNeighbour, RdmaRoute, Route, TransitFilter
from orchestrator.hosts import Hosts, facts, jobs, launch, render, runner
from orchestrator.hosts.api import Hello
from orchestrator.hosts.channel import VERSION, Channel
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.launch import identity
from tests.hosts.two_hosts import small_lab

LAB = small_lab()
JOB = Job(
    "ddp",
    "train",
    ("gpu02", "gpu01"),
    (("gpu02", "gpu01"), ("gpu01", "gpu02")),
    {"iterations": 9, "bucket_mb": 2.5, "resume": False},
    {"X": "1"},
)


def test_rules_become_a_request_in_one_order_whatever_theirs() -> None:
    rules = [
        Route("10.255.0.3/32", "10.1.0.2", "opt1", "10.255.0.1", 0),
        Route("10.255.0.2/32", "10.1.0.2", "opt1", "10.255.0.1", 0),
        Neighbour("10.1.0.2", "02:00:00:00:00:02", "opt1"),
    ]
    made = render.generation(7, frozenset(rules))
    assert made == render.generation(7, frozenset(reversed(rules)))
    assert made["routes"][0] == ["10.255.0.2/32", "10.1.0.2", "opt1", "10.255.0.1"]
    assert made["neighbours"] == [["10.1.0.2", "02:00:00:00:00:02", "opt1"]]
    assert (made["generation"], made["rto_min_ms"], made["congctl"]) == (
        7,
        5,
        "cubic",
    ) and "commands" not in made


def test_the_commands_of_an_rdma_host_are_those_of_the_testbed_and_each_has_its_undo() -> None:
    rules = frozenset(
        {
            RdmaRoute("10.100.3.1/32", "pp1rdma", "10.100.1.1"),
            RdmaNeighbour("10.100.3.1", "02:00:00:00:00:03", "pp1rdma"),
            TransitFilter("pp2eth", "10.100.3.0/24", "02:00:00:00:00:03", "pp1rdma", "ip"),
            TransitFilter("pp2eth", "10.100.3.0/24", "02:00:00:00:00:03", "pp1rdma", "802.1Q"),
        }
    )
    commands = render.npar_commands(rules)
    assert [" ".join(c["do"]) for c in commands] == [
        "tc qdisc replace dev pp2eth ingress",
        "tc filter add dev pp2eth parent ffff: protocol 802.1Q pref 7 flower skip_hw vlan_ethtype ip dst_ip 10.100.3.0/24 "
        "action pedit ex munge eth dst set 02:00:00:00:00:03 pipe action mirred egress redirect dev pp1rdma",
        "tc filter add dev pp2eth parent ffff: protocol ip pref 6 flower skip_hw dst_ip 10.100.3.0/24 "
        "action pedit ex munge eth dst set 02:00:00:00:00:03 pipe action mirred egress redirect dev pp1rdma",
        "ip neigh replace 10.100.3.1 lladdr 02:00:00:00:00:03 dev pp1rdma nud permanent",
        "ip route replace 10.100.3.1/32 dev pp1rdma src 10.100.1.1",
    ]
    assert [" ".join(c["undo"]) for c in commands] == [
        "tc qdisc del dev pp2eth ingress",
        "tc filter del dev pp2eth parent ffff: protocol 802.1Q pref 7",
        "tc filter del dev pp2eth parent ffff: protocol ip pref 6",
        "ip neigh del 10.100.3.1 dev pp1rdma",
        "ip route del 10.100.3.1/32 dev pp1rdma",
    ]


def test_all_generations_of_a_host_travel_in_one_payload() -> None:
    reply = render.rule_payloads(
        {2: {"gpu01": frozenset(), "gpu02": frozenset()}, 1: {"gpu01": frozenset()}}
    )
    requests = json.loads(gzip.decompress(base64.b64decode(reply["gpu01"])))
    assert [r["generation"] for r in requests] == [1, 2] and set(reply) == {"gpu01", "gpu02"}


async def test_the_routes_and_the_kernel_of_a_host_have_its_own_least_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply: dict[str, int] = {}

    async def ask(
        self: Channels, requests: Mapping[str, Any], *_: object
    ) -> dict[str, dict[str, Any]]:
        for name, request in requests.items():
            reply[name] = json.loads(gzip.decompress(base64.b64decode(request["packed"])))[0][
                "rto_min_ms"
            ]
        return {
            name: {"staged": [{"generation": 3, "routes": 0, "table": 7003}]} for name in requests
        }

    monkeypatch.setattr(Channels, "ask", ask)
    slow = replace(LAB.hosts["gpu02"], rto_min_ms=20)
    async with Hosts(replace(LAB, hosts={**LAB.hosts, "gpu02": slow}), tmp_path, tmp_path) as hosts:
        await hosts.routes.stage_warm({3: {"gpu01": frozenset(), "gpu02": frozenset()}})
    assert reply == {"gpu01": 5, "gpu02": 20}
    assert ["net.ipv4.tcp_rto_min_us", "20000", False] in facts.facts(slow)["sysctls"]


async def test_an_agent_of_an_older_release_is_told_each_route_when_it_refuses_addresses_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = [
        Route(f"10.255.0.{n}/32", "10.1.0.2", "opt1", "10.255.0.1", 0)
        for n in range(2, 202)
        if n != 77
    ]
    notices: list[list[list[str]]] = []

    async def ask(
        self: Channels, requests: Mapping[str, Any], *_: object
    ) -> dict[str, dict[str, Any]]:
        (request,) = json.loads(gzip.decompress(base64.b64decode(requests["gpu01"]["packed"])))
        notices.append(request["routes"])
        if any(not row[2] for row in request["routes"]):
            raise Refused("no interface  on this host (it has opt1)")
        return {
            "gpu01": {
                "staged": [{"generation": 3, "routes": len(request["routes"]), "table": 7003}]
            }
        }

    monkeypatch.setattr(Channels, "ask", ask)
    async with Hosts(LAB, tmp_path, tmp_path) as hosts:
        with pytest.raises(Refused):
            await hosts.routes.stage_warm({3: {"gpu01": frozenset(routes)}})
        hosts.channels.hellos["gpu01"] = Hello("gpu01", True, provision="before")
        staged = await hosts.routes.stage_warm({3: {"gpu01": frozenset(routes)}})
    assert staged["gpu01"][3].routes == len(routes) and [len(each) < 20 for each in notices] == [
        True,
        True,
        False,
    ]


def test_rules_too_many_for_one_command_are_refused_before_anything_is_sent() -> None:
    many = frozenset(
        Route(
            f"10.{a}.{b}.{(a * 7919 + b * 104729) % 250}/32",
            f"10.1.{(a * b) % 251}.{(a * 31 + b * 17) % 253}",
            f"opt{(a ^ b) % 9}",
            "10.255.0.1",
            0,
        )
        for a in range(120)
        for b in range(250)
    )
    with pytest.raises(Infeasible, match="gpu01: its rules take"):
        render.rule_payloads({1: {"gpu01": many}})


def test_each_rank_is_told_its_place_and_nothing_is_left_to_discovery() -> None:
    assert (
        "checkpoints"
        not in launch.requests(replace(JOB, workload="allreduce", args={}), LAB, "r7")["gpu01"]
    )
    made = launch.requests(JOB, LAB, "r7")
    assert list(made) == ["gpu02", "gpu01"]
    request = made["gpu01"]
    env = request["env"]
    assert request["name"] == "ddp.r7" and request["checkpoints"] == f"ddp.{identity(JOB)}"
    assert request["argv"] == [
        "python3",
        "-m",
        "workloads.programs.train",
        "--iterations",
        "9",
        "--bucket-mb",
        "2.5",
    ]
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["MASTER_ADDR"]) == (
        "1",
        "2",
        "0",
        "10.254.0.2",
    )
    assert json.loads(env["TESTBED_RINGS"]) == [[0, 1], [1, 0]]
    assert json.loads(env["TESTBED_LANES"]) == [
        "10.255.0.1",
        "10.255.1.1",
        "10.255.2.1",
        "10.255.3.1",
    ]
    assert json.loads(env["TESTBED_PORTS"]) == ["opt1", "opt2", "opt3", "opt4"]
    assert (env["TESTBED_BACKEND"], env["GLOO_SOCKET_IFNAME"], env["X"]) == ("gloo", "host0", "1")
    assert (
        made["gpu02"]["env"]["MASTER_PORT"]
        == env["MASTER_PORT"]
        != launch.requests(JOB, LAB, "r8")["gpu01"]["env"]["MASTER_PORT"]
    )
    assert not any(key.startswith("NCCL") for key in env)


def test_hosts_with_gpus_get_nccl_and_its_view_of_the_fabric() -> None:
    hosts = {n: replace(h, gpus=1, forwarding="npar-rdma") for n, h in LAB.hosts.items()}
    env = launch.requests(JOB, replace(LAB, hosts=hosts), "r7", resume=True)["gpu01"]["env"]
    assert env["TESTBED_BACKEND"] == "nccl"
    assert (env["NCCL_IB_HCA"], env["NCCL_IB_GID_INDEX"]) == ("qedr0,qedr1,qedr2,qedr3", "3")
    assert (env["NCCL_MIN_NCHANNELS"], env["NCCL_MAX_NCHANNELS"], env["NCCL_SOCKET_IFNAME"]) == (
        "2",
        "2",
        "=opt1,opt2,opt3,opt4",
    )
    with pytest.raises(Infeasible, match="backend nccl, but gpu02, gpu01 have no GPU"):
        launch.requests(replace(JOB, backend="nccl"), LAB, "r7")


def test_a_resumed_job_says_so_once() -> None:
    assert launch.workload_argv(JOB, True)[-1] == "--resume"
    assert launch.workload_argv(replace(JOB, args={"resume": True}), True).count("--resume") == 1
    assert launch.job_name("a b/ü", "2026-11-21 1") == "a-b--.2026-11-21-1"


def test_facts_change_their_digest_with_anything_that_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = LAB.hosts["gpu01"]
    before = facts.facts(host)
    assert before == facts.facts(host)
    assert facts.facts(replace(host, lanes=2))["sha"] != before["sha"]
    assert (
        facts.facts(replace(host, job_user="ml"))["sha"] != before["sha"]
        and before["job_user"] == "testbed-job"
    )
    monkeypatch.setattr(facts, "program_digest", lambda: "another agent")
    assert facts.facts(host)["sha"] != before["sha"]


def test_an_rdma_host_gets_no_lanes_and_both_functions_are_prepared() -> None:
    host = LAB.hosts["gpu01"]
    ports = {n: replace(p, interface=f"pp{n}rdma", eth=f"pp{n}eth") for n, p in host.ports.items()}
    made = facts.facts(replace(host, forwarding="npar-rdma", port_prefix="10.100", ports=ports))
    assert (made["host_device"], made["lanes"], made["node_prefix"]) == (None, [], None)
    assert made["ports"][0] == {
        "number": 1,
        "interface": "pp1rdma",
        "eth": "pp1eth",
        "address": "10.100.1.1",
    }
    assert ["net.ipv4.conf.pp1eth.rp_filter", "0", True] in made["sysctls"]


def test_the_archive_is_the_same_bytes_each_time_and_holds_what_runs_on_hosts() -> None:
    assert facts.archive() == facts.archive.__wrapped__()
    with tarfile.open(
        fileobj=io.BytesIO(base64.b64decode("".join(facts.provision_archive())))
    ) as tar:
        names = tar.getnames()
    assert "agent/__main__.py" in names and "agent/daemon.py" in names
    place = f"workloads/{facts.workload_digest()}"
    assert f"{place}/workloads/programs/train.py" in names
    neighbours = {name for name in names if name.startswith(f"{place}/extensions/")}
    parts = {name.split("/")[4] for name in neighbours if name.count("/") > 4}
    assert f"{place}/extensions/shadow/rank/__main__.py" in neighbours and parts == {"rank"}
    assert all(0 < len(piece) <= render.COMMAND_LIMIT for piece in facts.provision_archive())


def test_failures_of_several_hosts_are_one_error_of_the_gravest_kind_naming_each() -> None:
    failed: dict[str, TestbedError] = {
        "b": Refused("b: no"),
        "a": Unreachable("a: dark", hint="look"),
        "c": TimedOut("c: silent"),
    }
    error = one_error(failed, 9)
    assert (
        isinstance(error, Unreachable)
        and str(error) == "a: dark\nb: no\nc: silent\n(9 other hosts did it)"
    )
    assert error.hint == "look"
    assert isinstance(one_error({"b": Refused("b: no")}), Refused)


def test_hosts_that_fail_alike_are_one_line() -> None:
    names = [f"gpu{n:02d}" for n in range(1, 13)]
    failed: dict[str, TestbedError] = {name: Refused(f"{name}: no user") for name in names} | {
        "sw": Refused("sw: busy")
    }
    assert str(one_error(failed)) == "12 hosts (gpu01 to gpu12): no user\nsw: busy"
    assert str(one_error({name: failed[name] for name in names[:2]})) == "gpu01, gpu02: no user"
    assert (
        str(one_error({"gpu01/0": Refused("gpu01: no user"), "gpu01/1": Refused("gpu01: no user")}))
        == "gpu01: no user"
    )


@pytest.mark.parametrize(
    ("printed", "kind", "message"),
    [
        (
            '{"id":0,"ok":false,"code":"refused","error":"no user zed"}',
            Refused,
            "gpu01: no user zed",
        ),
        (
            '{"ok":true}\n{"ok":false,"code":"overtaken","error":"run 9 has this host"}',
            Locked,
            "gpu01: run 9 has this host",
        ),
        ("sh: python3: not found", Refused, "gpu01: launch: sh: python3: not found"),
        ('["ok"]\n{"ok":false}', Refused, 'gpu01: launch: ["ok"]\n{"ok":false}'),
    ],
)
def test_the_refusal_of_an_agent_that_ansible_asked_is_told_in_its_words(
    printed: str, kind: type[TestbedError], message: str
) -> None:
    play = runner.Play()
    runner._hear(
        {
            "event": "runner_on_failed",
            "event_data": {"host": "gpu01", "task": "launch", "res": {"stdout": printed}},
        },
        play,
    )
    assert type(play.failed["gpu01"]) is kind and str(play.failed["gpu01"]) == message


def test_of_what_a_host_sends_home_only_plain_files_below_its_folder_are_kept(
    tmp_path: Path,
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("job/a.txt", "../evil", "/abs", "job/sub/b"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))
        link = tarfile.TarInfo("job/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    jobs._unpack(packed.getvalue(), tmp_path / "gpu01")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if not p.is_dir()) == [
        "gpu01/job/a.txt",
        "gpu01/job/sub/b",
    ]


async def test_a_request_without_a_channel_whose_asker_was_cancelled_is_no_error_of_the_program() -> (
    None
):
    notices: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: notices.append(context))
    with ThreadPoolExecutor(1) as threads:
        channel = Channel(LAB.hosts["gpu01"], lambda *event: None, threads)
        with pytest.raises(Unreachable, match="no channel to its agent"):
            await channel.send("hello")
        channel.send("hello")  # what it leads to is looked at by nobody
    gc.collect()
    assert not notices


async def test_a_host_that_answers_only_half_of_the_greeting_is_not_attached() -> None:
    """As an agent that stands still between both requests; what it answers later is asked of
    nobody.
    """
    channels = Channels(LAB)
    channel, watched = channels._channels["gpu01"], asyncio.Event()
    hello = dict.fromkeys(("active", "previous", "armed", "provision")) | {
        "host": "gpu01",
        "version": VERSION,
        "t_ns": 0,
    }
    hello |= {"ok": True, "ports": {}, "staged": [], "boot_id": ""}

    def sent(line: bytes) -> None:
        request = json.loads(line)
        if request["op"] == "watch":
            watched.set()
        else:
            asyncio.get_running_loop().call_soon(
                channel._line, json.dumps(hello | {"id": request["id"]}).encode()
            )

    other: Any = SimpleNamespace(
        closed=False, sendall=sent, in_buffer=SimpleNamespace(set_event=lambda event: None)
    )
    other.close = lambda: setattr(other, "closed", True)
    channel._transport = cast(
        Any, SimpleNamespace(is_active=lambda: True, open_session=lambda timeout: other)
    )
    other.exec_command = lambda text: None
    connecting = asyncio.ensure_future(channels.connect(["gpu01"], 0.2))
    await watched.wait()
    assert channels.attached() == ()
    assert isinstance((await connecting)["gpu01"], TimedOut) and other.closed
    with pytest.raises(Unreachable, match="no channel to its agent"):
        await channels.greet(["gpu01"])
