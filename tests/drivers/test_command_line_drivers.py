"""Drivers of command lines against captures, and against robots and SONiC switches of a few lines,
each with its own trouble.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from conformance.replay import Replay
from conformance.transcript import read_transcript
from drivers.api import CircuitSwitch, JobQueue, PortControl, PortHolders
from drivers.link import open_link
from drivers.registry import open_device
from drivers.session.jobcli import JobCliSession
from drivers.session.robot import one_by_one
from optics import (
    BadFile,
    Change,
    CrossConnect,
    DeviceConfig,
    Garbled,
    Port,
    PortState,
    Progress,
    Refused,
)
from tests.drivers.ssh_device import Printed, SshDevice, ssh_device

CLI = Path(__file__).parent.parent / "transcripts" / "cli"
PIECES = [None, 7, 1]


def circuit(a: str, b: str) -> CrossConnect:
    return CrossConnect(Port("ocs1", a), Port("ocs1", b))


def change(*, remove: tuple[CrossConnect, ...] = (), add: tuple[CrossConnect, ...] = ()) -> Change:
    return Change("ocs1", frozenset(remove), frozenset(add))


@asynccontextmanager
async def opened(device: SshDevice, driver: str, **options: str) -> AsyncIterator[CircuitSwitch]:
    config = DeviceConfig(
        "ocs1",
        driver,
        device.address,
        "admin",
        "secret",
        {"settle_s": 0.02},
        1.0,
        {"known_hosts": str(device.known_hosts), **options},
        600.0,
    )
    driven = open_device(config)
    try:
        yield driven
    finally:
        await driven.close()


# ---- ROME


@pytest.mark.parametrize("piece", PIECES)
async def test_a_session_reads_what_was_captured_of_a_rome(piece: int | None) -> None:
    async with Replay(read_transcript(CLI / "rome-answers.txt"), piece=piece) as replay:
        session = JobCliSession(open_link(f"telnet://127.0.0.1:{replay.port}", 1.0, "ocs1"), "", "")
        assert "ROME500" in await session.ask("show board")
        assert "in process with payload" in await session.ask("connection show pending")
        assert "no request in process" in await session.ask("connection show pending")
        assert "added to pending queue (E3-W4)" in await session.ask(
            "connection create E3 to W4", again=False
        )
        # answered without an echo
        refused = await session.ask("connection create E6 to W4", again=False)
        assert "[E6[1AE6]] [W4[1AW4]]" in refused and "OK" not in refused
        logs = session.take_logs()
        assert [line[17:] for line in logs[-2:]] == [
            "CONNECTION OPERATION SUCCEEDED:E3[1AE3]<->W4[1AW4] OP:connect",
            "OPERATION VALIDATION FAILED:E6-W4 requestType=connect",
        ]
        await session.close()


@pytest.mark.parametrize("piece", PIECES)
async def test_a_move_is_made_when_the_port_table_shows_it(piece: int | None) -> None:
    async with Replay(read_transcript(CLI / "rome-move.txt"), piece=piece) as replay:
        config = DeviceConfig(
            "ocs1", "rome-cli", f"telnet://127.0.0.1:{replay.port}", timeout_s=2.0, time_scale=600.0
        )
        device = open_device(config)
        notices: list[Progress] = []
        assert isinstance(device, JobQueue)
        device.on_progress = notices.append
        wanted = circuit("E3", "W4")
        try:
            outcome = await device.apply(change(add=(wanted,)))
            assert (outcome.observed, outcome.failed, outcome.writes) == ({wanted}, {}, 1)
            assert (notices[0].done, notices[-1].done, notices[-1].total) == (0, 1, 1)
        finally:
            await device.close()


async def test_an_older_panel_is_read_too() -> None:
    async with Replay(read_transcript(CLI / "afm-answers.txt")) as replay:
        device = open_device(
            DeviceConfig("ocs1", "rome-cli", f"telnet://127.0.0.1:{replay.port}", timeout_s=1.0)
        )
        try:
            identity = await device.identify()
            assert (identity.vendor, identity.model, identity.firmware) == (
                "FiberZone",
                "AFM type 2",
                "1.6.2.1",
            )
            assert await device.read() == {circuit("E5", "W6"), circuit("E6", "W5")}
        finally:
            await device.close()


class StuckRobot:
    """A ROME whose robot fails at the first move and stops until it is homed and execution is
    enabled.
    """

    HEAD = "==== ====\nPort Admin Status\n==== ====\n"

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.stuck, self.disabled, self.plugged, self.waiting = True, False, False, False

    async def __call__(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(b"ROME[TECH]# ")
        while line := (await process.stdin.readline()).decode().strip():
            self.heard.append(line)
            output, after = self.answer(line)
            process.stdout.write(f"{line}\n{output}ROME[TECH]# {after}".encode())

    def answer(self, line: str) -> tuple[str, str]:
        if line == "port show":
            rows = [
                ("E1", "W1[1AW1]" if self.plugged else ""),
                ("W1", "E1[1AE1]" if self.plugged else ""),
            ]
            state = "Connected" if self.plugged else "Disconnected"
            return self.HEAD + "".join(
                f"{p}[1A{p}]  Unlocked Enabled {state} 0 {peer} A1\n" for p, peer in rows
            ), ""
        if line == "connection show pending":
            busy = (
                "Command in process:\nconnect, ports: E1-W1, status: in process\n"
                if self.waiting
                else "no request in process\n"
            )
            status = (
                "disabled"
                if self.disabled
                else "delayed due to command in process"
                if self.waiting
                else "enabled"
            )
            return f"Connection execution status: {status}\n\n{busy}", ""
        if line.startswith("connection create"):
            self.waiting = self.stuck
            self.plugged = not self.stuck
            severe = (
                "02-03-2031 04:05 Multiple Cross Connect Severe Failure\n" if self.stuck else ""
            )
            return "OK - request added to pending queue (E1-W1)\n", severe
        if line == "homing run":
            self.stuck, self.waiting, self.disabled = False, False, True
            return "RECOVERY FINISHED SUCCESSFULLY\n", ""
        self.disabled = False
        return "connection execution is enabled\n", ""


async def test_a_robot_that_fails_severely_is_reported_at_once_and_left_alone(
    tmp_path: Path,
) -> None:
    robot = StuckRobot()
    async with ssh_device(tmp_path, shell=robot) as device, opened(device, "rome-cli") as driven:
        outcome = await driven.apply(change(add=(circuit("E1", "W1"),)))
        assert "homing run" in outcome.failed[circuit("E1", "W1")]
        assert "homing run" not in robot.heard


async def test_a_stuck_robot_is_homed_where_the_inventory_allows_it(tmp_path: Path) -> None:
    robot = StuckRobot()
    async with (
        ssh_device(tmp_path, shell=robot) as device,
        opened(device, "rome-cli", homing="auto") as driven,
    ):
        assert (await driven.apply(change(add=(circuit("E1", "W1"),)))).failed
        # what homing leaves behind, were it done by hand
        robot.waiting, robot.disabled = False, True
        outcome = await driven.apply(change(add=(circuit("E1", "W1"),)))
        assert not outcome.failed and robot.plugged
        assert robot.heard.index("homing run") < robot.heard.index(
            "connection set command-execution enable"
        )


async def test_an_unknown_way_of_homing_is_refused() -> None:
    with pytest.raises(BadFile, match="homing: never or auto"):
        open_device(
            DeviceConfig("ocs1", "rome-cli", "ssh://127.0.0.1", options={"homing": "always"})
        )


def test_a_port_is_freed_just_before_it_is_used_again() -> None:
    removed, new = [("E1", "W1"), ("E2", "W2"), ("E3", "W3")], [("E1", "W9"), ("E8", "W2")]
    assert one_by_one(removed, new) == [
        (False, ("E3", "W3")),
        (False, ("E1", "W1")),
        (True, ("E1", "W9")),
        (False, ("E2", "W2")),
        (True, ("E8", "W2")),
    ]


class QuickRobot(StuckRobot):
    """A ROME that makes every move at once."""

    def __init__(self, *plugged: tuple[str, str]) -> None:
        super().__init__()
        self.pairs = set(plugged)

    def answer(self, line: str) -> tuple[str, str]:
        tokens = line.split()
        if line == "port show":
            peers = dict(self.pairs) | {b: a for a, b in self.pairs}
            ports = [f"{side}{number}" for side in "EW" for number in (1, 2, 3)]
            states = {port: "Connected" if port in peers else "Disconnected" for port in ports}
            named = {
                port: f"{peers[port]}[1A{peers[port]}]" if port in peers else "" for port in ports
            }
            return self.HEAD + "".join(
                f"{p}[1A{p}]  Unlocked Enabled {states[p]} 0 {named[p]} A1\n" for p in ports
            ), ""
        if line == "connection show pending":
            return "Connection execution status: enabled\n\nno request in process\n", ""
        (self.pairs.add if tokens[1] == "create" else self.pairs.discard)((tokens[2], tokens[4]))
        return f"OK - request added to pending queue ({tokens[2]}-{tokens[4]})\n", ""


async def test_a_rome_moves_in_the_order_the_change_asks_for(tmp_path: Path) -> None:
    robot = QuickRobot(("E1", "W1"), ("E2", "W2"))
    old, new = (
        (circuit("E1", "W1"), circuit("E2", "W2")),
        (circuit("E1", "W3"), circuit("E2", "W1")),
    )
    asked = replace(change(remove=old, add=new), order=(old[1], old[0], new[1], new[0]))
    async with ssh_device(tmp_path, shell=robot) as device, opened(device, "rome-cli") as driven:
        assert not (await driven.apply(asked)).failed
    assert [line for line in robot.heard if not re.search("show", line)] == [
        "connection disconnect E2 from W2",
        "connection disconnect E1 from W1",
        "connection create E2 to W1",
        "connection create E1 to W3",
    ]


def test_the_order_of_a_change_is_followed_as_far_as_ports_are_free() -> None:
    removed, new = [("E1", "W1"), ("E2", "W2"), ("E3", "W3")], [("E1", "W9"), ("E8", "W2")]
    wish = [("E8", "W2"), ("E3", "W3"), ("E7", "W7"), ("E1", "W1"), ("E1", "W9"), ("E2", "W2")]
    assert one_by_one(removed, new, wish) == [
        (False, ("E2", "W2")),
        (True, ("E8", "W2")),
        (False, ("E3", "W3")),
        (False, ("E1", "W1")),
        (True, ("E1", "W9")),
    ]


# ---- SONiC


class Sonic:
    """A switch of SONiC commands: config and hardware rows, and what is wrong with it."""

    def __init__(
        self, *, root: bool = False, dead: tuple[str, ...] = (), forms: str = "ocs port state"
    ) -> None:
        self.config: set[str] = set()
        self.status: dict[str, str] = {}
        self.shut: set[str] = set()
        self.root, self.dead, self.forms = root, dead, forms
        self.heard: list[str] = []

    async def __call__(self, command: str) -> Printed:
        if not command.startswith("show"):
            self.heard.append(command)
        if command.startswith("config") and self.root:
            return "Root privileges are required for this operation\n", 1
        command = command.removeprefix("sudo -n ")
        if found := re.fullmatch(r"config ocs cross-connect add (\S+) (update|safe)", command):
            self.config.add(found[1])
            self.status[found[1]] = "failed" if found[1] in self.dead else "tuned"
            return f"Add ocs cross-connect succeeded: {found[1]}\n", 0
        if found := re.fullmatch(r"config ocs cross-connect delete (\S+)", command):
            if found[1] not in self.config:
                return f"Error: {found[1]} does not exist\n", 2
            self.config.discard(found[1])
            self.status.pop(found[1], None)
            return "Delete ocs cross-connect succeeded\n", 0
        if command.startswith(f"config {self.forms}") and (
            port := re.search(r"\b(\d+[AB])\b", command)
        ):
            (self.shut.discard if command.endswith("normal") else self.shut.add)(port[1])
            return "", 0
        tables = {
            "show ocs cross-connect config": [
                "id a_side b_side",
                *(f"{i} {i.replace('-', ' ')}" for i in sorted(self.config)),
            ],
            "show ocs cross-connect status": [
                "id a_side b_side a_side_status b_side_status",
                *(
                    f"{i} {i.replace('-', ' ')} {self.side(i, s)}"
                    for i, s in sorted(self.status.items())
                ),
            ],
            "show ocs port config": [
                "id state",
                *(
                    f"{p} {'force_blocked' if p in self.shut else 'normal'}"
                    for p in ("1A", "1B", "2B")
                ),
            ],
            "show ocs port status": ["id status", *(f"{p} blocked" for p in ("1A", "1B", "2B"))],
        }
        if command in tables:
            head, *rows = tables[command]
            return "\n".join([head, " ".join("----" for _ in head.split()), *rows, ""]), 0
        return f'Usage: config [OPTIONS]\n\nError: No such command "{command}".\n', 2

    def side(self, name: str, state: str) -> str:
        return "blocked blocked" if self.shut & {*name.split("-")} else f"{state} {state}"


async def test_a_stale_row_is_added_and_then_deleted(tmp_path: Path) -> None:
    switch = Sonic()
    switch.status["1A-1B"] = "tuned"
    async with ssh_device(tmp_path, switch) as device, opened(device, "sonic-ocs") as driven:
        assert await driven.read() == {circuit("1A", "1B")}
        refused = await driven.apply(change(add=(circuit("1A", "2B"),)))
        assert "held" in refused.failed[circuit("1A", "2B")] and not switch.heard
        outcome = await driven.apply(
            change(remove=(circuit("1A", "1B"),), add=(circuit("1A", "2B"),))
        )
        assert (outcome.observed, outcome.failed) == ({circuit("1A", "2B")}, {})
        assert [command.split()[3:5] for command in switch.heard] == [
            ["add", "1A-1B"],
            ["delete", "1A-1B"],
            ["add", "1A-2B"],
        ]


async def test_a_row_that_is_accepted_and_never_tuned_is_reported_and_taken_back(
    tmp_path: Path,
) -> None:
    switch = Sonic(dead=("1A-2B",))
    async with (
        ssh_device(tmp_path, switch) as device,
        opened(device, "sonic-ocs", patience_s="0.1") as driven,
    ):
        outcome = await driven.apply(change(add=(circuit("1A", "2B"), circuit("3A", "3B"))))
        assert outcome.observed == {circuit("3A", "3B")}
        assert outcome.failed == {
            circuit(
                "1A", "2B"
            ): "1A-2B was accepted but its hardware reports: failed failed; taken back",
        }
        assert switch.config == {"3A-3B"}


async def test_a_row_that_is_tuned_in_the_last_moment_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, looks = Sonic(dead=("1A-2B",)), 0

    async def late(command: str) -> Printed:
        nonlocal looks
        looks += bool(switch.status) and command == "show ocs cross-connect config"
        if looks > 1:  # the last read begins with this question; the one before it preceded a retry
            switch.status["1A-2B"] = "tuned"
        return await switch(command)

    async with (
        ssh_device(tmp_path, late) as device,
        opened(device, "sonic-ocs", patience_s="0.1") as driven,
    ):
        outcome = await driven.apply(change(add=(circuit("1A", "2B"),)))
    assert (outcome.observed, outcome.failed) == ({circuit("1A", "2B")}, {})
    assert switch.heard == ["config ocs cross-connect add 1A-2B update"]


@pytest.mark.parametrize("sides", ["tuned failed", "failed tuned", "tuned tuning"])
async def test_light_passes_where_both_sides_are_tuned_and_nowhere_else(
    sides: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Sonic()
    monkeypatch.setattr(
        switch, "side", lambda name, state: sides if name == "1A-1B" else f"{state} {state}"
    )
    switch.config, switch.status = {"1A-1B", "2A-2B"}, {"1A-1B": "half", "2A-2B": "tuned"}
    async with ssh_device(tmp_path, switch) as device, opened(device, "sonic-ocs") as driven:
        assert await driven.read() == {circuit("2A", "2B")}


async def test_a_configured_row_that_is_not_tuned_holds_its_ports(tmp_path: Path) -> None:
    switch = Sonic()
    switch.config, switch.status = {"1A-1B"}, {"1A-1B": "blocked"}
    async with (
        ssh_device(tmp_path, switch) as device,
        opened(device, "sonic-ocs", patience_s="0.1") as driven,
    ):
        assert await driven.read() == frozenset()
        assert isinstance(driven, PortHolders) and driven.holders() == {
            circuit("1A", "1B"): "blocked blocked"
        }
        outcome = await driven.apply(change(add=(circuit("1A", "2B"),)))
        assert outcome.failed == {circuit("1A", "2B"): "port 1A is held by 1A-1B"}
        assert not switch.heard


async def test_a_switch_that_wants_root_is_asked_as_root(tmp_path: Path) -> None:
    switch = Sonic(root=True)
    async with (
        ssh_device(tmp_path, switch) as device,
        opened(device, "sonic-ocs", mode="safe") as driven,
    ):
        outcome = await driven.apply(change(add=(circuit("1A", "1B"), circuit("2A", "2B"))))
        assert not outcome.failed
        assert [command for command in switch.heard if not command.startswith("sudo -n ")] == [
            "config ocs cross-connect add 1A-1B safe"
        ]


@pytest.mark.parametrize("form", ["ocs port state", "ocs-port update", "ocs-port"])
async def test_ports_are_shut_in_whatever_form_the_switch_knows(tmp_path: Path, form: str) -> None:
    switch = Sonic(forms=form)
    switch.config, switch.status = {"1A-1B"}, {"1A-1B": "tuned"}
    port = Port("ocs1", "1A")
    async with ssh_device(tmp_path, switch) as device, opened(device, "sonic-ocs") as driven:
        assert isinstance(driven, PortControl)
        assert await driven.set_ports([port], enabled=False) == {port: PortState.DISABLED}
        assert await driven.read() == {circuit("1A", "1B")}  # dark, and still there
        assert await driven.set_ports([port], enabled=True) == {port: PortState.ENABLED}


async def test_a_switch_without_any_of_these_commands_says_so(tmp_path: Path) -> None:
    switch = Sonic(forms="nothing")
    async with ssh_device(tmp_path, switch) as device, opened(device, "sonic-ocs") as driven:
        assert isinstance(driven, PortControl)
        with pytest.raises(Refused, match="No such command"):
            await driven.set_ports([Port("ocs1", "1A")], enabled=False)
        with pytest.raises(Garbled, match="show version"):
            await driven.identify()


# ---- Telescent


class Panel:
    """A panel of twelve addresses; `locked` are (address, side); `quirk`: a connection goes only
    when both sides are open.
    """

    def __init__(self, *, quirk: bool = False, deaf: int = 0) -> None:
        self.out = dict.fromkeys(range(12), 0)
        self.locked = {(n, side) for n in range(1, 12) for side in ("-in", "-out")}
        self.quirk, self.deaf = quirk, deaf
        self.heard: list[str] = []

    async def __call__(self, command: str) -> Printed:
        if command == "switchstate":
            cells = ["N0", *(f"A{self.out[n]}" if self.out[n] else f"F{n}" for n in range(1, 12))]
            return "R0#O " + " ".join(f"\x1b[32m{cell:<6}\x1b[0m" for cell in cells) + "\n", 0
        self.heard.append(command)
        verb, _, *argv = command.split()
        if self.deaf and verb == "connect":
            self.deaf -= 1
            return "OK\n", 0
        sides = [(int(number), side) for side, number in zip(argv[::2], argv[1::2], strict=False)]
        if verb == "unlock":
            self.locked -= {*sides} if sides else {(int(argv[0]), "-in"), (int(argv[0]), "-out")}
            return "OK\n", 0
        ports = {side: number for number, side in sides}
        needed = {*sides}
        if verb == "unallocate" and self.quirk:
            needed = {(number, side) for number, _ in sides for side in ("-in", "-out")}
        if needed & self.locked:
            return "ERROR: locked\n", 0
        if verb == "connect":
            self.out[ports["-out"]] = ports["-in"]
        else:
            freed = [
                n
                for n, address in self.out.items()
                if address == ports.get("-in") or n == ports.get("-out")
            ]
            self.out.update(dict.fromkeys(freed, 0))
        return "OK\n", 0


def _options() -> dict[str, str]:
    return {"move_budget_s": "60"}


@pytest.mark.parametrize("quirk", [False, True])
async def test_ports_are_unlocked_before_they_are_moved_both_sides_where_one_is_not_enough(
    tmp_path: Path, quirk: bool
) -> None:
    panel = Panel(quirk=quirk)
    panel.out[2] = 1
    panel.out[7] = 7
    async with (
        ssh_device(tmp_path, panel) as device,
        opened(device, "telescent-cli", **_options()) as driven,
    ):
        assert await driven.read() == {circuit("1", "2"), circuit("7", "7")}
        outcome = await driven.apply(change(remove=(circuit("1", "2"),), add=(circuit("1", "4"),)))
        assert (outcome.observed, outcome.failed) == ({circuit("1", "4"), circuit("7", "7")}, {})
        touched = {number for command in panel.heard for number in re.findall(r"\d+", command)}
        assert touched == {"1", "2", "4"}
        assert ("unlock --force 1" in panel.heard) is quirk


async def test_a_connection_that_came_to_nothing_is_asked_for_once_more(tmp_path: Path) -> None:
    panel = Panel(deaf=1)
    async with (
        ssh_device(tmp_path, panel) as device,
        opened(device, "telescent-cli", **_options()) as driven,
    ):
        assert not (await driven.apply(change(add=(circuit("1", "4"),)))).failed
    panel = Panel(deaf=9)
    async with (
        ssh_device(tmp_path, panel) as device,
        opened(device, "telescent-cli", **_options()) as driven,
    ):
        outcome = await driven.apply(change(add=(circuit("1", "4"),)))
        assert "port 4 shows F4" in outcome.failed[circuit("1", "4")]
        assert sum(command.startswith("connect") for command in panel.heard) == 2


async def test_a_port_that_is_taken_is_never_forced(tmp_path: Path) -> None:
    panel = Panel()
    panel.out[4] = 9
    async with (
        ssh_device(tmp_path, panel) as device,
        opened(device, "telescent-cli", **_options()) as driven,
    ):
        outcome = await driven.apply(
            change(add=(circuit("1", "4"), circuit("9", "3"), circuit("2", "99")))
        )
        assert outcome.failed == {
            circuit("1", "4"): "egress port 4 is held by 9->4",
            circuit("9", "3"): "ingress port 9 is held by 9->4",
            circuit("2", "99"): "not a port of ocs1: 2->99",
        }
        assert not panel.heard
        identity = await driven.identify()
        assert identity.ingress == identity.egress == tuple(str(n) for n in range(1, 12))
