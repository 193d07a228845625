"""TL1 sessions and the Polatis and Glimmerglass drivers with a device that answers oddly: malformed
rows, denied lists, locks.
"""

from __future__ import annotations

import asyncio

import pytest

from drivers.api import Attenuator, PortControl, PortHolders, PowerMeter
from drivers.glimmerglass_tl1 import parse
from drivers.registry import open_device
from optics import BadFile, Change, DeviceConfig, Garbled, Port, PortState, Refused, TimedOut
from tests.drivers.tl1_device import Answer, Tl1Device, circuits, driven

GRANTED = ("ACT-USER", "CANC-USER", "RTRV-HDR")


def port(label: str) -> Port:
    return Port("ocs1", label)


def patches(**more: list[str] | str) -> Answer:
    """A switch without patches that grants a login and says `more` (verb with _ for -)."""
    table = {verb.replace("_", "-"): reported for verb, reported in more.items()}

    def answer(verb: str, aid: str, rest: str) -> list[str] | str | None:
        return table.get(verb, [] if verb in GRANTED or verb == "RTRV-PATCH" else "IICM")

    return answer


# sessions


async def test_a_password_that_a_device_echoes_is_in_no_message() -> None:
    async with driven("polatis-tl1", lambda *_: None, echo=True, timeout_s=0.2) as (device, heard):
        with pytest.raises(TimedOut, match="ACT-USER") as caught:
            await device.read()
        assert heard.verbs("ACT-USER")
        assert "w0rd" not in str(caught.value) + repr(caught.getrepr(style="value"))


async def test_a_device_that_knows_no_logins_is_asked_without_one() -> None:
    async with driven("polatis-tl1", patches(ACT_USER="ICNV")) as (device, heard):
        assert await device.read() == frozenset()
    assert not heard.verbs("CANC-USER")


async def test_a_device_that_still_knows_the_user_lets_it_in() -> None:
    async with driven(
        "polatis-tl1", patches(ACT_USER="SNVS\n/* User admin: Already logged in */")
    ) as (device, heard):
        assert await device.read() == frozenset()
    assert heard.verbs("CANC-USER")


async def test_without_a_user_nobody_logs_in() -> None:
    async with driven("polatis-tl1", patches(), user="") as (device, heard):
        await device.read()
    assert not heard.verbs("ACT-USER", "CANC-USER")


async def test_any_other_denial_of_the_login_is_one() -> None:
    async with driven("polatis-tl1", patches(ACT_USER="PIUI\n/* Invalid user */")) as (device, _):
        with pytest.raises(Refused, match="PIUI, Invalid user"):
            await device.read()


async def test_a_login_answered_under_another_tag_is_not_called_silence() -> None:
    async with driven("polatis-tl1", patches(), timeout_s=0.2) as (device, heard):
        heard.tag = "777"
        with pytest.raises(
            TimedOut, match=r"ACT-USER.* in 0\.\d s; one came under tag '777', not '1'"
        ):
            await device.read()


async def test_nothing_is_asked_on_a_session_that_has_just_begun() -> None:
    async with driven("polatis-tl1", patches(), user="") as (device, heard):
        heard.late_s["RTRV-PATCH"] = 0.1
        await device.read()
        await asyncio.sleep(0.1)
        assert not heard.verbs("RTRV-HDR")


async def test_an_idle_session_is_kept_alive_also_where_nobody_logs_in() -> None:
    async with driven("polatis-tl1", patches(), user="", keep_alive_s="0.05") as (device, heard):
        await device.read()
        for _ in range(500):
            if heard.verbs("RTRV-HDR"):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("idle for 5 s and not refreshed")


async def test_the_target_is_the_name_the_device_gives_itself() -> None:
    async with driven("polatis-tl1", patches(), sid="Switch Room 4", tid="auto") as (device, heard):
        await device.read()
    assert [command.split(":")[1] for command in heard.asked] == [
        "",
        '"Switch Room 4"',
        '"Switch Room 4"',
    ]


async def test_a_device_without_a_name_has_no_target() -> None:
    async with driven("polatis-tl1", patches(), sid="( nil )", tid="auto") as (device, heard):
        await device.read()
    assert {command.split(":")[1] for command in heard.asked} == {""}


async def test_the_idle_time_out_is_set_only_when_asked_and_may_be_denied() -> None:
    async with driven("polatis-tl1", patches(), idle_timeout="60") as (device, heard):
        await device.read()
        assert heard.verbs("ED-EQPT")[0].startswith("ED-EQPT::TIMEOUT:") and heard.verbs("ED-EQPT")[
            0
        ].endswith(":::ADMIN=60;")
    async with driven("polatis-tl1", patches()) as (device, heard):
        await device.read()
        assert not heard.verbs("ED-EQPT")


@pytest.mark.parametrize(
    ("driver", "options"),
    [
        ("polatis-tl1", {"window": "0"}),
        ("polatis-tl1", {"idle_timeout": "60;DLT-PATCH::ALL:1:"}),
        ("polatis-tl1", {"tid": 'a"b'}),
        ("glimmerglass-tl1", {"bulk": "0"}),
        ("calient-tl1", {"silence": "perhaps"}),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(driver: str, options: dict[str, str]) -> None:
    with pytest.raises(BadFile, match="options"):
        open_device(DeviceConfig("ocs1", driver, "tcp://127.0.0.1:9", options=options))


# Polatis


class Polatis:
    """Patches that are made after so many commands for them, or never."""

    def __init__(self, after: int = 1) -> None:
        self.made: set[str] = set()
        self.after = after
        self.asked: dict[str, int] = {}

    def __call__(self, verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "RTRV-PATCH":
            return [f'"{pair}"' for pair in sorted(self.made)]
        if verb == "ENT-PATCH":
            self.asked[aid] = self.asked.get(aid, 0) + 1
            if self.asked[aid] >= self.after:
                self.made.add(aid)
        return []


@pytest.mark.parametrize(("after", "times", "made"), [(1, 1, True), (3, 3, True), (9, 4, False)])
async def test_a_patch_that_is_not_confirmed_is_asked_for_again_a_bounded_number_of_times(
    after: int, times: int, made: bool
) -> None:
    async with driven("polatis-tl1", Polatis(after)) as (device, heard):
        wanted = circuits(("1", "17"))
        outcome = await device.apply(Change("ocs1", add=wanted))
        assert (outcome.observed == wanted) == made
        assert len(heard.verbs("ENT-PATCH")) == outcome.writes == times
        assert made or "not refused either" in outcome.failed[next(iter(wanted))]


@pytest.mark.parametrize("row", ['"1-17"', '"1,17,3"', '"0,17"', '"17,17"', '"17,99999"'])
async def test_a_malformed_patch_makes_its_ports_unknown(row: str) -> None:
    async with driven("polatis-tl1", patches(RTRV_PATCH=['"2,18"', row])) as (device, _):
        assert await device.read() == circuits(("2", "18"))
        assert isinstance(device, PortHolders) and Port("ocs1", "17") in device.holders()


@pytest.mark.parametrize("row", ['"a,b"', "what", '"1,17"\n   "1,18"', '"1,17"\n   "2,17"'])
async def test_a_malformed_map_of_patches_is_garbled(row: str) -> None:
    async with driven("polatis-tl1", patches(RTRV_PATCH=row.split("\n   "))) as (device, _):
        with pytest.raises(Garbled, match="ocs1: map"):
            await device.read()


async def test_rows_without_quotes_and_the_wrong_way_round_are_read() -> None:
    async with driven("polatis-tl1", patches(RTRV_PATCH=["1,17", '"18,2"'])) as (device, _):
        assert await device.read() == circuits(("1", "17"), ("2", "18"))


@pytest.mark.parametrize("row", ['"SYSTEM:SIZE=0x16"', '"SYSTEM:SIZE=big"', ""])
async def test_a_malformed_identity_is_garbled(row: str) -> None:
    rows = {"RTRV_EQPT": [row], "RTRV_INV": ['"OCS:SN=1"'], "RTRV_NETYPE": ["a,b,c,d"]}
    async with driven("polatis-tl1", patches(**rows)) as (device, _):
        with pytest.raises(Garbled, match="ocs1: identity"):
            await device.identify()


async def test_ports_without_meters_are_found_by_asking_one_by_one() -> None:
    def answer(verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "RTRV-PORT-POWER":
            return (
                "IIAC"
                if aid not in ("17", "19")
                else [f'"{aid}:-3.50"' if aid == "17" else '"19:NA"']
            )
        return []

    async with driven("polatis-tl1", answer) as (device, heard):
        assert isinstance(device, PowerMeter)
        assert await device.power([port("17"), port("18"), port("19"), port("x;y")]) == {
            port("17"): -3.5
        }
        assert [command.split(":")[2] for command in heard.verbs("RTRV-PORT-POWER")] == [
            "17&&19",
            "17",
            "18",
            "19",
        ]


@pytest.mark.parametrize("row", ['"17"', '"x:1"', '"17:bright"', "noise"])
async def test_a_malformed_power_is_garbled(row: str) -> None:
    async with driven("polatis-tl1", patches(RTRV_PORT_POWER=[row])) as (device, _):
        assert isinstance(device, PowerMeter)
        with pytest.raises(Garbled, match="ocs1"):
            await device.power([port("17")])


async def test_shutters_are_shut_as_a_list_and_read_back() -> None:
    shut: set[str] = set()

    def answer(verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "OPR-PORT-SHUTTER":
            shut.update(aid.split("&"))
        elif verb == "RLS-PORT-SHUTTER":
            shut.difference_update(aid.split("&"))
        elif verb == "RTRV-PORT-SHUTTER":
            return [f'"{n}:{"closed" if n in shut else "open"}"' for n in aid.split("&")]
        return []

    async with driven("polatis-tl1", answer) as (device, heard):
        assert isinstance(device, PortControl)
        ports = [port("1"), port("5")]
        assert set((await device.set_ports(ports, enabled=False)).values()) == {PortState.DISABLED}
        assert set((await device.set_ports(ports[:1], enabled=True)).values()) == {
            PortState.ENABLED
        }
        assert await device.port_states(ports) == {
            ports[0]: PortState.ENABLED,
            ports[1]: PortState.DISABLED,
        }
        assert heard.verbs("OPR-PORT-SHUTTER")[0].startswith("OPR-PORT-SHUTTER::1&5:")
        with pytest.raises(Refused, match="not a port"):
            await device.set_ports([port("1;DLT-PATCH::ALL:1:")], enabled=False)


async def test_a_switch_without_attenuators_says_so() -> None:
    async with driven("polatis-tl1", patches()) as (device, _):
        assert isinstance(device, Attenuator)
        assert await device.attenuation([port("17")]) == {}
        with pytest.raises(Refused, match="no attenuator"):
            await device.attenuate({port("17"): 3.0})


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ('"17:MODE=NONE,LEVEL=0.00"', 0.0),
        ('"17:NONE,0.00"', 0.0),
        ('"17:LEVEL=4.5,REFS=1,MODE=RELATIVE"', 3.0),
        ('"17:RELATIVE,4.50,1"', 3.0),
        ('"17:MODE=ABSOLUTE,LEVEL=-10.0"', None),
    ],
)
async def test_attenuation_is_read_by_key_or_by_what_it_looks_like(
    row: str, found: float | None
) -> None:
    rows = {
        "RTRV_EQPT": ['"ATTEN::PORT=17,TYPE=A"'],
        "RTRV_PORT_ATTEN": [row],
        "RTRV_PATCH": ['"1,17"'],
    }
    async with driven("polatis-tl1", patches(**rows)) as (device, _):
        assert isinstance(device, Attenuator)
        assert await device.attenuation([port("17"), port("18")]) == (
            {} if found is None else {port("17"): found}
        )


# Glimmerglass


def glimmer(**fields: str) -> str:
    known = {
        "IPORTID": "10001",
        "OPORTID": "20002",
        "CONNSTATE": "steady",
        "CONNCAUSE": "none",
        "INPWR": "-3.00",
    } | fields
    return '"GGN:' + ",".join(f"{key}={value}" for key, value in known.items()) + '"'


@pytest.mark.parametrize(
    "row",
    [
        glimmer(IPORTID="x"),
        glimmer(IPORTID="20001"),
        glimmer(IPORTID="0", OPORTID="0"),
        glimmer(OPORTID="10002"),
        glimmer(OPORTID="2"),
        '"GGN:IPORTID=10001,OPORTID=20001"',
        '"hello"',
    ],
)
def test_a_malformed_glimmerglass_row_is_garbled(row: str) -> None:
    with pytest.raises(Garbled):
        parse(row.strip('"'))


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({}, True),
        ({"CONNSTATE": "fault", "CONNCAUSE": "input_loss_of_light"}, True),
        (
            {
                "CONNSTATE": "fault",
                "CONNCAUSE": "initial_connection_timer_expired",
                "INPWR": "-49.9",
            },
            True,
        ),
        ({"CONNSTATE": "fault", "CONNCAUSE": "initial_connection_timer_expired"}, False),
        ({"CONNSTATE": "single", "OPORTID": "0", "INPWR": "NA"}, False),
    ],
)
def test_a_row_stands_when_it_is_steady_or_only_lacks_light(
    fields: dict[str, str], waits: bool
) -> None:
    assert parse(glimmer(**fields).strip('"')).established == waits


class Glimmerglass:
    """Circuits; lists are denied where `lists` is false, ports in `bad` never become steady."""

    def __init__(
        self, *, lists: bool = True, bad: tuple[str, ...] = (), locks: dict[str, str] | None = None
    ) -> None:
        self.made: dict[str, str] = {}
        self.lists, self.bad, self.locks = lists, bad, locks or {}

    def __call__(self, verb: str, aid: str, rest: str) -> list[str] | str | None:
        if verb == "RTRV-CRS-FIBER":
            return [self.row(a, b) for a, b in self.made.items()] + [
                glimmer(IPORTID=a, OPORTID="0", CONNSTATE="single", CONNLOCK="1", CONNLOCKUSER=who)
                for a, who in self.locks.items()
                if a not in self.made
            ]
        if verb in ("ENT-CRS-FIBER", "DLT-CRS-FIBER"):
            ins, outs = (side.split("&") for side in aid.split(","))
            if len(ins) > 1 and not self.lists:
                return "IIAC"
            for a, b in zip(ins, outs, strict=True):
                if verb.startswith("ENT"):
                    self.made[a] = b
                else:
                    self.made.pop(a, None)
        return []

    def row(self, a: str, b: str) -> str:
        failed = (
            {"CONNSTATE": "fault", "CONNCAUSE": "initial_connection_timer_expired"}
            if a in self.bad
            else {}
        )
        locked = {"CONNLOCK": "1", "CONNLOCKUSER": self.locks[a]} if a in self.locks else {}
        return glimmer(IPORTID=a, OPORTID=b, **failed, **locked)


WANTED = circuits(("10001", "20002"), ("10002", "20001"))


@pytest.mark.parametrize(("lists", "writes"), [(True, 1), (False, 3)])
async def test_circuits_go_in_one_list_or_where_that_is_denied_one_by_one(
    lists: bool, writes: int
) -> None:
    async with driven("glimmerglass-tl1", Glimmerglass(lists=lists), echo=True) as (device, heard):
        outcome = await device.apply(Change("ocs1", add=WANTED))
        assert (outcome.observed, outcome.failed, outcome.writes) == (WANTED, {}, writes)
        first = heard.verbs("ENT-CRS-FIBER")[0]
        assert first.startswith("ent-crs-fiber::10001&10002,20002&20001:")


async def test_a_locked_port_is_refused_by_the_name_of_its_holder_and_the_rest_is_made() -> None:
    async with driven("glimmerglass-tl1", Glimmerglass(locks={"10001": "bench2"})) as (
        device,
        heard,
    ):
        outcome = await device.apply(Change("ocs1", add=WANTED))
        assert list(outcome.failed.values()) == ["port 10001 is locked by bench2"]
        assert outcome.observed == circuits(("10002", "20001"))
        assert not [command for command in heard.asked if "ent" in command and "10001" in command]


async def test_what_is_locked_by_ourselves_is_ours_to_change() -> None:
    async with driven("glimmerglass-tl1", Glimmerglass(locks={"10001": "admin"})) as (device, _):
        assert not (await device.apply(Change("ocs1", add=WANTED))).failed
        assert not (await device.apply(Change("ocs1", remove=WANTED))).failed


async def test_a_circuit_that_does_not_become_steady_is_deleted_again_and_its_cause_told() -> None:
    async with driven("glimmerglass-tl1", Glimmerglass(bad=("10001",))) as (device, heard):
        outcome = await device.apply(Change("ocs1", add=WANTED))
        ((_, text),) = outcome.failed.items()
        assert (
            text
            == "made, but reports CONNSTATE=fault,CONNCAUSE=initial_connection_timer_expired; deleted again"
        )
        assert outcome.observed == circuits(("10002", "20001"))
        assert outcome.writes == len(heard.verbs("ENT-CRS-FIBER", "DLT-CRS-FIBER"))
        again = await device.apply(Change("ocs1", add=circuits(("10003", "20002"))))
        assert not again.failed  # the port was given back


async def test_a_faulty_circuit_of_somebody_else_keeps_its_ports() -> None:
    switch = Glimmerglass(bad=("10007",))
    switch.made["10007"] = "20002"
    async with driven("glimmerglass-tl1", switch) as (device, _):
        assert isinstance(device, PortHolders) and await device.read() == frozenset()
        text = "CONNSTATE=fault,CONNCAUSE=initial_connection_timer_expired"
        assert device.holders() == dict.fromkeys(circuits(("10007", "20002")), text)
        outcome = await device.apply(Change("ocs1", add=circuits(("10001", "20002"))))
        ((_, text),) = outcome.failed.items()
        assert (
            "port 20002 is held by 10007->20002" in text
            and "initial_connection_timer_expired" in text
        )
        assert switch.made == {"10007": "20002"}


# answers under another's tag


@pytest.mark.parametrize("off", [1, -1, 500])
async def test_an_answer_under_another_tag_is_nobodys(
    off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Tl1Device.talk

    async def first_a_lie(
        self: Tl1Device, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        plain = writer.write

        def write(data: bytes) -> None:
            if b"RTRV-PATCH" in self.asked[-1].encode():
                tag = int(self.asked[-1].split(":")[3]) + off
                plain(
                    f'\r\n\n   SID 26-01-01 12:00:00\r\nM  {tag} COMPLD\r\n   "7,15"\r\n;'.encode()
                )
            plain(data)

        monkeypatch.setattr(writer, "write", write)
        await talk(self, reader, writer)

    monkeypatch.setattr(Tl1Device, "talk", first_a_lie)
    async with driven(
        "polatis-tl1", lambda verb, *_: ['"1,9"'] if verb == "RTRV-PATCH" else []
    ) as (device, _):
        assert await device.read() == circuits(("1", "9"))
