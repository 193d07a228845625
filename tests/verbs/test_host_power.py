"""`testbed host power`: what is refused, what is kept of it, and that no lock stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emulators.devices.dialects.redfish import Redfish as EmulatedBmc
from emulators.devices.server import DeviceServer
from emulators.optics.plant import Plant
from optics import HostPort, Link, Locked, Missing, Refused, TimedOut
from optics.errors import Interlock
from orchestrator.fabric.up_state import UpState
from orchestrator.session import Command, load_lab
from orchestrator.settings import Settings, load
from orchestrator.store.audit import Who, audit
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
        self.boots = True

    def off(self) -> None:
        super().off()
        self.answers = False

    def on(self) -> None:
        super().on()
        if self.boots:
            asyncio.get_running_loop().call_later(0.2, setattr, self, "answers", True)

    async def sshd(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.answers:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()


class Bench:
    """A lab of two hosts; gpu01 has a BMC."""

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
    dialect = EmulatedBmc(Plant("gpu01", (), ()), server, username="root", password="emulated")
    bmc = DeviceServer("bmc", dialect, scheme="http")
    await bmc.start()
    sshd = await asyncio.start_server(server.sshd, "127.0.0.1", 0)
    made = Bench(tmp_path, bmc.address, sshd.sockets[0].getsockname()[1])
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
    record = next(each for each in audit(bench.store, bench.key) if each.what == "power cycle")
    assert record.subject == "gpu01" and "does not answer: kernel panic" in record.why
    assert done.run in record.why and record.user == bench.settings.user


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
