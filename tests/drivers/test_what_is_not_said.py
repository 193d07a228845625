"""What must not leave a driver, or reach one: passwords that are echoed, words a line cannot carry,
files that cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drivers.registry import open_device
from drivers.session.tl1 import Command
from drivers.wire import wssmap
from drivers.wire.wssmap import BLOCKED_DB, Entry
from optics import (
    Change,
    CrossConnect,
    DeviceConfig,
    Port,
    Refused,
    Setting,
    SpectralRoute,
    TestbedError,
    Unreachable,
)
from tests.drivers.scripted import Request, http, http_device, netconf_device, serving
from tests.drivers.ssh_device import ssh_device
from tests.drivers.tl1_device import circuits, driven

SECRET = "w0rd-of-his"


def chain(error: BaseException) -> str:
    """All that the error and those behind it say."""
    reported, at = "", [error]
    while at:
        one = at.pop()
        reported += f"{one!s} {one!r}"
        at += [other for other in (one.__cause__, one.__context__) if other is not None]
    return reported


# ---- passwords


@asynccontextmanager
async def telnet_login(after: bytes) -> AsyncIterator[str]:
    """A command line that echoes the password, then says `after`, and nothing more; it hangs up
    where that is empty.
    """

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"Login: ")
        writer.write(await reader.readline() + b"Password: ")
        writer.write((await reader.readline()).replace(b"\n", b"") + after)
        if after:
            await reader.read()

    async with serving(talk) as port:
        yield f"telnet://127.0.0.1:{port}"


@pytest.mark.parametrize(
    "after", [b" ", b"\r\nLogin incorrect\r\nLogin: ", b" is wrong. Login: ", b""]
)
async def test_a_password_that_a_command_line_echoes_is_in_no_error(after: bytes) -> None:
    async with telnet_login(after) as address:
        device = open_device(
            DeviceConfig("ocs1", "rome-cli", address, "admin", SECRET, timeout_s=0.2)
        )
        with pytest.raises(TestbedError, match="ocs1") as caught:
            await device.read()
        await device.close()
    assert SECRET not in chain(caught.value)


@pytest.mark.parametrize(
    "login", [("admin\nhoming run", "secret"), ("admin", "secret\rhoming run")]
)
async def test_a_login_that_would_be_a_command_is_not_sent(login: tuple[str, str]) -> None:
    async with telnet_login(b"ROME[TECH]# ") as address:
        device = open_device(DeviceConfig("ocs1", "rome-cli", address, *login, timeout_s=0.2))
        with pytest.raises(Refused, match="cannot be sent"):
            await device.read()
        await device.close()


def test_a_login_command_does_not_show_its_password() -> None:
    login = Command("ACT-USER", "admin", (SECRET,))
    assert SECRET not in f"{login} {login!r}"


# ---- files that are not what they should be


@pytest.mark.parametrize("broken", ["known_hosts", "key_file"])
async def test_a_file_of_keys_that_cannot_be_read_is_an_error_that_names_the_device(
    broken: str, tmp_path: Path
) -> None:
    file = tmp_path / "broken"
    file.write_text("[127.0.0.1]:22 ssh-ed25519 AAAA!\nnot a key\n")
    async with ssh_device(tmp_path) as ssh, netconf_device(lambda _: None, tmp_path) as netconf:
        for driver, served in (("sonic-ocs", ssh), ("polatis-netconf", netconf)):
            options = {"known_hosts": str(served.known_hosts), broken: str(file)}
            device = open_device(
                DeviceConfig(
                    "ocs1",
                    driver,
                    served.address,
                    "admin",
                    "secret",
                    timeout_s=1.0,
                    options=options,
                )
            )
            with pytest.raises(TestbedError, match="ocs1"):
                await device.read()
            await device.close()


# ---- words that cannot be written


async def test_an_etag_that_no_request_can_carry_is_not_carried() -> None:
    pairs = '{"optical-switch:cross-connects": {"pair": [%s]}}'
    deleted = False

    def answers(request: Request) -> bytes:
        nonlocal deleted
        if request.method == "DELETE":
            assert "if-match" not in request.headers
            deleted = True
            return http(204)
        return http(200, pairs % ("" if deleted else '{"ingress": 1, "egress": 9}')).replace(
            b"\r\n", b'\r\netag: "\xe9"\r\n', 1
        )

    async with http_device(answers) as (address, _):
        device = open_device(
            DeviceConfig(
                "ocs1", "polatis-restconf", address, traits={"settle_s": 0.01}, timeout_s=1.0
            )
        )
        circuit = CrossConnect(Port("ocs1", "1"), Port("ocs1", "9"))
        outcome = await device.apply(Change("ocs1", frozenset({circuit}), frozenset()))
        await device.close()
    assert deleted
    assert not outcome.failed


async def test_a_connection_whose_name_no_command_can_carry_fails_in_words() -> None:
    row = r'''"lab:SRCPORT=1.1.1,DSTPORT=1.1.2,GRPNAME=LAB,CONNNAME=the \"old\" rack,CONNTYPE=1WAY,AS=IS,OS=IS,OC=OK"'''
    async with driven("calient-tl1", lambda verb, *_: [row] if verb == "RTRV-CRS" else []) as (
        device,
        heard,
    ):
        (held,) = await device.read()
        outcome = await device.apply(Change("ocs1", frozenset({held}), frozenset()))
        assert "cannot be named" in outcome.failed[held]
        assert outcome.observed == {held}
        assert not heard.verbs("CANC-CRS", "DLT-CRS")


class Busy:
    """A Calient switch that needs a moment for each step: what comes in the same breath as the step
    before it is denied.
    """

    def __init__(self, patient: bool) -> None:
        self.states, self.reported, self.patient = {"1.1.1,1.1.2": "IS"}, dict[str, str](), patient

    def __call__(self, verb: str, aid: str, payload: str) -> str | list[str]:
        step = {"CANC-CRS": "RDY", "DLT-CRS": "", "ENT-CRS": "RDY", "ACT-CRS": "IS"}.get(verb)
        if step is None:
            return (
                [self.row(aid, state) for aid, state in self.states.items()]
                if verb == "RTRV-CRS"
                else []
            )
        before, self.reported[aid] = self.reported.get(aid), verb
        if before and before != verb and verb in ("DLT-CRS", "ACT-CRS"):
            return "SNVS\n/* Not In Valid State */"
        if verb == "ACT-CRS" and not self.patient:
            return "SROF\n/* Mirror Failed */"
        if step:
            self.states[aid] = step
        else:
            del self.states[aid]
        return []

    @staticmethod
    def row(aid: str, state: str) -> str:
        a, b = aid.split(",")
        states = "AS=IS,OS=IS" if state == "IS" else "AS=UMA,OS=RDY"
        return f'"{a}>{b}:SRCPORT={a},DSTPORT={b},GRPNAME=TESTBED,CONNNAME={a}>{b},CONNTYPE=1WAY,{states},OC=OK"'


async def test_a_switch_that_is_still_busy_with_the_step_before_is_asked_once_more() -> None:
    async with driven("calient-tl1", Busy(patient=True)) as (device, heard):
        (held,) = await device.read()
        (wanted,) = circuits(("1.1.1", "1.1.3"))
        outcome = await device.apply(Change("ocs1", frozenset({held}), frozenset({wanted})))
        assert not outcome.failed
        assert outcome.observed == {wanted}
        assert len(heard.verbs("DLT-CRS")) == len(heard.verbs("ACT-CRS")) == 2


async def test_a_step_that_is_denied_to_the_end_is_told_in_the_switchs_last_words() -> None:
    async with driven("calient-tl1", Busy(patient=False)) as (device, _):
        (held,) = await device.read()
        (wanted,) = circuits(("1.1.1", "1.1.3"))
        outcome = await device.apply(Change("ocs1", frozenset({held}), frozenset({wanted})))
        assert "Mirror Failed" in outcome.failed[wanted]
        assert not outcome.observed


# ---- a map that became stale while the ready signal was awaited


class Module:
    """A Finisar module without its line."""

    def __init__(self) -> None:
        self.map = {channel: Entry(1, BLOCKED_DB) for channel in range(1, wssmap.CHANNELS + 1)}
        self.staged = dict(self.map)

    async def ask(self, command: str) -> str:
        assert command == "RRA?"
        return wssmap.write_map(self.map)

    async def send(self, command: str) -> None:
        if command == "RSW":
            self.map = dict(self.staged)
        else:
            self.staged = wssmap.parse_map(command.removeprefix("URA "))

    async def close(self) -> None:
        pass


def route(channel: int, egress: int) -> SpectralRoute:
    return SpectralRoute(
        Port("wss1", "in"), Port("wss1", str(egress)), wssmap.slot_of(channel, channel), 0.0
    )


async def test_a_whole_map_is_made_from_what_stands_when_the_word_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device(
        DeviceConfig("wss1", "finisar-serial", "serial:///dev/null", traits={"settle_s": 0.01})
    )
    module = Module()
    monkeypatch.setattr(device, "_session", module)

    async def meanwhile() -> None:
        module.map[7] = Entry(3, 0.0)

    add: frozenset[Setting] = frozenset({route(5, 2), route(7, 1)})
    outcome = await device.apply(Change("wss1", frozenset(), add), meanwhile)
    assert outcome.observed == {route(5, 2), route(7, 3)}
    assert outcome.failed.keys() == {route(7, 1)}


async def test_a_spoiled_answer_is_no_refusal_of_what_comes_about_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Spoiled(Module):
        async def send(self, command: str) -> None:
            if command != "RSW":
                await super().send(command)
                return
            staged = dict(self.staged)
            asyncio.get_running_loop().call_later(0.02, self.map.update, staged)
            raise Refused('wss1 refused "RSW": \x9aK')

    device = open_device(
        DeviceConfig("wss1", "finisar-serial", "serial:///dev/null", traits={"settle_s": 0.02})
    )
    monkeypatch.setattr(device, "_session", Spoiled())
    outcome = await device.apply(Change("wss1", frozenset(), frozenset({route(5, 2)})))
    assert outcome.observed == {route(5, 2)}
    assert not outcome.failed


async def test_an_unknown_host_is_still_unreachable(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    async with ssh_device(tmp_path) as served:
        options = {"known_hosts": str(tmp_path / "empty")}
        device = open_device(
            DeviceConfig(
                "ocs1",
                "sonic-ocs",
                served.address,
                "admin",
                "secret",
                timeout_s=1.0,
                options=options,
            )
        )
        with pytest.raises(Unreachable, match="host key"):
            await device.read()
        await device.close()
