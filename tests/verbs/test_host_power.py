"""`testbed host power`: what is refused, what is kept of it, and that no lock stays."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivers.link.base import Dropped
from drivers.link.http import Answer, HttpLink
from emulators.devices.dialects.redfish import Redfish as EmulatedBmc
from emulators.devices.server import DeviceServer
from emulators.optics.plant import Plant
from optics import HostPort, Link, Locked, Missing, Refused, TimedOut, Unreachable, Usage
from optics.errors import Interlock
from optics.plan import Job
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts.redfish import PowerState, Redfish
from orchestrator.session import Command, load_lab
from orchestrator.settings import Settings, load
from orchestrator.store.audit import Who, audit
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.keys import key_of, tenancy_key
from orchestrator.store.locks import Locks
from orchestrator.store.scope import reachable_scope
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import power
from tests.emulators.emulated import until
from tests.kit.managed import Computer, login, managed_texts

BOB = Who("bob", "bob")


class Server(Computer):
    """A computer whose sshd answers while it is on, has not hung, and has booted."""

    def __init__(self, power: str = "On", *, hung: bool = False) -> None:
        super().__init__(power)
        self.answers = power == "On" and not hung
        self.boots, self.ends, self.says = True, False, b"SSH-2.0-OpenSSH_9.2\r\n"

    def off(self) -> None:
        super().off()
        self.answers = False

    def on(self) -> None:
        super().on()
        if self.boots:
            asyncio.get_running_loop().call_later(0.2, setattr, self, "answers", True)

    async def sshd(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.answers:
            writer.write(self.says)
        elif not self.ends:
            await reader.read()
        writer.close()


class Bench:
    """A lab of two hosts; gpu01 has a BMC."""

    sshd: asyncio.Server

    def __init__(self, folder: Path, bmc: str, ssh_port: int) -> None:
        inventory = folder / "inventory"
        inventory.mkdir()
        for name, text in zip(
            ("hosts", "devices", "fibres"), managed_texts(login(bmc), ssh_port), strict=True
        ):
            (inventory / f"{name}.yml").write_text(text)
        places = {f"TESTBED_{n}_DIR": str(folder / n.lower()) for n in ("DATA", "STATE", "LOCK")}
        self.settings: Settings = load({"inventory": str(inventory)}, env=places, cwd=folder)
        self.store = Store(self.settings.store_path, durable=False)
        self.lab = load_lab(inventory)
        self.key = key_of(self.lab)
        self.command = Command(Silent(), self.store, self.settings)

    def held(self) -> list[str]:
        return [lock.reason for lock in Locks(self.store, self.key, BOB).listed()]


@pytest.fixture
def server() -> Server:
    return Server(hung=True)


@pytest.fixture
async def bench(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    monkeypatch.setattr(power, "POLL_S", 0.02)
    monkeypatch.setattr(power, "AGENT_S", 0.0)
    monkeypatch.setattr(power, "ANSWER_S", 0.5)
    dialect = EmulatedBmc(Plant("gpu01", (), ()), server, username="root", password="emulated")
    bmc = DeviceServer("bmc", dialect, scheme="http")
    await bmc.start()
    sshd = await asyncio.start_server(server.sshd, "127.0.0.1", 0)
    made = Bench(tmp_path, bmc.address, sshd.sockets[0].getsockname()[1])
    made.sshd = sshd
    try:
        yield made
        assert made.held() == [], "a lock is left"
    finally:
        made.store.close()
        sshd.close()
        await bmc.stop()


async def test_without_an_option_nothing_is_changed(bench: Bench, server: Server) -> None:
    seen = await power.host_power(bench.command, "gpu01")
    assert (seen.power, seen.health, seen.answers) == ("On", "OK", False)
    assert server.did == [] and bench.store.history() == []
    with pytest.raises(Missing, match="gpu02 has no testbed_bmc"):
        await power.host_power(bench.command, "gpu02")


async def test_a_dead_host_is_cycled_and_who_why_and_the_answer_are_kept(
    bench: Bench, server: Server
) -> None:
    done = await power.host_reset(bench.command, "gpu01", cycle=True, reason="kernel panic")
    assert server.did == ["off", "on"]
    assert (done.reset, done.said, done.answers, done.agent) == (
        "PowerCycle",
        "HTTP 204",
        True,
        False,
    )
    (run,) = bench.store.history()
    assert (run.verb, run.status, run.id) == ("host power", "ok", done.run)
    assert run.message == "gpu01: gpu01 is on and does not answer: kernel panic"
    (step,) = bench.store.steps(run.id)
    assert (step.subject, step.what, step.state) == ("gpu01", "power cycle", "done")
    assert step.result == {"reset": "PowerCycle", "said": "HTTP 204"}
    sent, record = [e for e in audit(bench.store, bench.key) if e.what.startswith("power cycle")]
    assert (record.what, sent.what) == ("power cycle", "power cycle sent")
    assert record.subject == "gpu01" and "does not answer: kernel panic" in record.why
    assert done.run in record.why and record.user == bench.settings.user
    assert sent.why == f"run {done.run}: PowerCycle: HTTP 204"


async def test_what_a_bmc_answers_when_it_refuses_is_in_the_audit(
    bench: Bench, server: Server
) -> None:
    server.broken = True
    with pytest.raises(Refused):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    whats = {record.what: record for record in audit(bench.store, bench.key)}
    record = whats["power cycle refused"]
    assert "no power supply" in record.why


async def test_any_line_of_an_sshd_is_life(bench: Bench, server: Server) -> None:
    server.answers, server.says = True, b"Exceeded MaxStartups\r\n"
    with pytest.raises(Refused, match="gpu01 answers"):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert server.did == []


@pytest.mark.parametrize("listens", [True, False])
async def test_a_kernel_that_ends_or_refuses_a_connection_is_cycled_only_by_force(
    bench: Bench, server: Server, listens: bool
) -> None:
    server.ends = True
    if not listens:
        bench.sshd.close()
    with pytest.raises(Refused, match="gpu01 does not answer, but its kernel does") as caught:
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert "console" in caught.value.hint and server.did == []
    if listens:
        done = await power.host_reset(
            bench.command, "gpu01", cycle=True, force=True, reason="no sshd"
        )
        assert server.did == ["off", "on"] and done.answers


@pytest.mark.parametrize(
    "fault",
    [
        socket.gaierror(-2, "Name or service not known"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
async def test_a_fault_of_this_machine_is_not_taken_for_a_dead_host(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch, fault: OSError
) -> None:
    async def fails(*_: object) -> None:
        raise fault

    monkeypatch.setattr(asyncio, "open_connection", fails)
    with pytest.raises(Unreachable, match="this machine cannot ask whether gpu01 answers"):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert server.did == []


async def test_a_host_of_two_addresses_is_dead_if_one_of_them_is_silent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise OSError(
            "Multiple exceptions: [Errno 101] Connect call failed ('::2', 22, 0, 0), "
            "[Errno 113] Connect call failed ('192.0.2.2', 22)"
        )

    monkeypatch.setattr(asyncio, "open_connection", fails)
    assert not (await power.host_power(bench.command, "gpu01")).answers


async def test_a_host_that_answers_is_cycled_only_by_force(bench: Bench, server: Server) -> None:
    server.answers = True
    with pytest.raises(Refused, match="gpu01 answers, so nothing was changed") as caught:
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert "--force --reason" in caught.value.hint and server.did == []
    (run,) = bench.store.history()
    assert run.status == "failed" and not run.unfinished, (
        "the attempt is kept, nothing is half done"
    )
    done = await power.host_reset(
        bench.command, "gpu01", cycle=True, force=True, reason="GPUs hang"
    )
    assert server.did == ["off", "on"] and done.answers


async def test_a_host_that_is_off_is_switched_on(bench: Bench, server: Server) -> None:
    server.off()
    done = await power.host_reset(bench.command, "gpu01", cycle=True)
    assert done.reset == "On" and server.did == ["off", "on"]
    with pytest.raises(Refused, match="gpu01 is on already") as caught:
        await power.host_reset(bench.command, "gpu01", cycle=False)
    assert caught.value.hint == "testbed host power gpu01 --cycle"


async def test_a_bmc_of_another_host_is_noticed(bench: Bench, server: Server) -> None:
    server.off()
    server.answers = True
    with pytest.raises(Interlock, match="it is the BMC of another host"):
        await power.host_reset(bench.command, "gpu01", cycle=True, force=True, reason="r")
    assert server.did == ["off"]


@pytest.mark.parametrize("kind", ["reservation", "run"])
async def test_whoever_else_holds_the_host_or_a_port_keeps_it(
    bench: Bench, server: Server, kind: str
) -> None:
    locks = Locks(bench.store, bench.key, BOB)
    port = reachable_scope(bench.lab, ["gpu01"])
    lock = locks.take(kind, port, "up ring", for_s=60 if kind == "reservation" else None)  # type: ignore[arg-type]
    with pytest.raises(Locked, match=r"gpu01.*bob"):
        await power.host_reset(bench.command, "gpu01", cycle=True, force=True, reason="r")
    assert server.did == []
    locks.release(lock.id)


async def test_a_tag_out_and_another_owners_plan_are_not_overridden(
    bench: Bench, server: Server
) -> None:
    tags = Tagouts(bench.store, bench.key, BOB)
    for subject in ("gpu01", "f1", "ocs1"):
        tag = tags.set(subject, "hands in it")
        with pytest.raises(Interlock, match="hands in it"):
            await power.host_reset(bench.command, "gpu01", cycle=True, force=True, reason="r")
        tags.remove(tag.id)
    tags.set("f2", "of the other host")
    run = bench.store.new_run("up", bench.key, plan_name="ring", user="bob", owner="bob")
    run.finish("ok")
    bench.store.set_current(
        tenancy_key(bench.key, "bob"),
        run.id,
        plan_name="ring",
        plan_sha="x",
        plan_text="{}",
        up=UpState((Link(HostPort("gpu01", 1), HostPort("gpu02", 1)),)),
        generation=1,
    )
    with pytest.raises(Interlock, match="part of ring, the plan of bob"):
        await power.host_reset(bench.command, "gpu01", cycle=True, force=True, reason="r")
    assert server.did == []


def plan_of_bob(bench: Bench, **more: object) -> None:
    """What bob has up, none of whose links is lit now."""
    run = bench.store.new_run("up", bench.key, plan_name="ring", user="bob", owner="bob")
    run.finish("ok")
    bench.store.set_current(
        tenancy_key(bench.key, "bob"),
        run.id,
        plan_name="ring",
        plan_sha="x",
        plan_text=json.dumps({"schema": "testbed.plan/1", "name": "ring", **more}),
        up=UpState(),
        generation=1,
    )


async def test_a_host_of_another_slot_of_a_schedule_is_part_of_its_plan(
    bench: Bench, server: Server
) -> None:
    pair = [{"a": "gpu01:p1", "b": "gpu02:p1"}]
    plan_of_bob(
        bench, links=[], schedule={"slots": [{"links": pair}, {"links": []}], "dwell_s": 0.5}
    )
    with pytest.raises(Interlock, match="gpu01 is part of ring, the plan of bob"):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert server.did == []


async def test_a_host_beside_another_owners_running_job_is_not_cycled(
    bench: Bench, server: Server
) -> None:
    job = Job("mlp", "train", (), aside=("gpu01",))
    tenancy = tenancy_key(bench.key, "bob")
    with bench.store.new_run("up", bench.key, user="bob", owner="bob") as run:
        number = bench.store.add_job(tenancy, run.id, job.name, JobSpec(job, "bob.r", "gloo"))
    with pytest.raises(Interlock, match="gpu01 is part of mlp, the running job of bob"):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert server.did == []
    bench.store.set_job(number, "finished", ended=True)
    assert (await power.host_reset(bench.command, "gpu01", cycle=True)).answers


async def test_a_host_without_a_fibre_is_tagged_out_all_the_same(
    bench: Bench, server: Server
) -> None:
    page = bench.settings.inventory / "fibres.yml"
    page.write_text(
        "".join(line for line in page.read_text().splitlines(keepends=True) if "gpu01" not in line)
    )
    Tagouts(bench.store, bench.key, BOB).set("gpu01", "hands in it")
    with pytest.raises(Interlock, match="hands in it"):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert server.did == []


async def test_a_partition_is_not_reset_for_the_whole_host(bench: Bench, server: Server) -> None:
    page = bench.settings.inventory / "hosts.yml"
    parts = "      testbed_partitions: {a: {lanes: [0]}, b: {lanes: [1]}}\n"
    page.write_text(page.read_text().replace("    gpu02:\n", f"{parts}    gpu02:\n"))
    with pytest.raises(Usage, match="gpu01/a is a partition of gpu01") as caught:
        await power.host_reset(bench.command, "gpu01/a", cycle=True)
    assert caught.value.hint == "testbed host power gpu01" and server.did == []


@pytest.mark.parametrize("meanwhile", ["wakes", "tag"])
async def test_what_changes_while_the_bmc_is_read_counts(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    read = Redfish.read

    async def slow(bmc: Redfish) -> PowerState:
        state = await read(bmc)
        if meanwhile == "wakes":
            server.answers = True
        else:
            Tagouts(bench.store, bench.key, BOB).set("gpu01", "hands in it")
        return state

    monkeypatch.setattr(Redfish, "read", slow)
    with pytest.raises((Refused, Interlock), match=r"gpu01 answers|hands in it"):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    assert server.did == []


async def test_a_reset_whose_answer_is_lost_is_waited_for_all_the_same(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = HttpLink.exchange

    async def lost(link: HttpLink, method: str, *args: Any, **more: Any) -> Answer:
        answer = await exchange(link, method, *args, **more)
        if method == "POST":
            raise Dropped("the connection ended")
        return answer

    monkeypatch.setattr(HttpLink, "exchange", lost)
    done = await power.host_reset(bench.command, "gpu01", cycle=True)
    assert (done.said, done.answers) == ("no answer", True) and server.did == ["off", "on"]


async def test_a_host_that_does_not_come_back_is_told_and_the_cycle_is_kept(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.boots = False
    monkeypatch.setattr(power, "BOOT_S", 0.1)
    with pytest.raises(TimedOut, match=r"gpu01 does not answer .* after its reset"):
        await power.host_reset(bench.command, "gpu01", cycle=True)
    (run,) = bench.store.history()
    assert run.status == "failed" and not bench.store.unfinished(bench.key, bench.settings.owner)
    assert [step.state for step in bench.store.steps(run.id)] == ["done"]


async def test_a_host_that_goes_on_answering_after_its_reset_is_told(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "SILENT_S", 0.1)
    monkeypatch.setattr(server, "off", lambda: setattr(server, "answers", True))
    server.answers = True
    with pytest.raises(TimedOut, match="went on to answer"):
        await power.host_reset(bench.command, "gpu01", cycle=True, force=True, reason="r")


async def test_an_interrupt_while_it_boots_leaves_no_lock(bench: Bench, server: Server) -> None:
    server.boots = False
    task = asyncio.create_task(power.host_reset(bench.command, "gpu01", cycle=True))
    await until(lambda: server.did == ["off", "on"], 10.0)
    assert len(bench.held()) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.held() == [] and bench.store.history()[0].status == "interrupted"
