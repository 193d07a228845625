"""Telescent robotic patch panels over the command line of their SSH port, one command at a time.

Everything here is read off the public client ericrqs/cloudshell-L1-Telescent (CODE); no capture of
a device is public, and what a newer panel (NTM G4, G5) speaks is published nowhere. A port may be
locked and is unlocked before it is moved. A command may be answered before the robot is done: only
`switchstate` counts, which is polled until it shows the change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import ClassVar

from drivers.api import Evidence
from drivers.link.addresses import open_commands
from drivers.link.ssh import SshCommands
from drivers.rounds import Marks
from drivers.session.crossconnects import twice
from drivers.session.pairs import port_number
from drivers.session.robot import Robot, one_by_one
from drivers.wire import telescent
from drivers.wire.telescent import Cell, Pair
from optics import Change, CrossConnect, DeviceConfig, Identity, Outcome, Progress, Setting, Traits

STATE = "switchstate"
TRIES = 1
"""How often a connection that was neither made nor refused within the budget is asked for again."""


class TelescentCli(Robot[tuple[int, int]]):
    """A patch panel. Ingress and egress ports are numbers; the same number is two ports, one of
    each kind.
    """

    # Nothing is published about its time and loss; those of ROME are proposed.
    STAGES: ClassVar[int] = 2
    """Which ports are unlocked cannot be read in any known form: after a lost answer both of a
    connection are unlocked again.
    """
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Telescent patch panels, CLI",
        ("ssh",),
        {
            "identify": "assumed",
            "read": "CODE",
            "change": "CODE",
            "refusals": "CODE",
            "jobs": "assumed",
            "settling": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: SshCommands = open_commands(config)
        self._patience_s = max(config.timeout_s, self._budget_s)
        self._moving = False  # a move was asked for and not answered

    async def identify(self) -> Identity:
        """The panel says no name, number or version in any known command; only its ports are its
        own.
        """
        async with self._lock:
            cells = await self._look()
        ports = tuple(str(egress) for egress, cell in sorted(cells.items()) if not cell.absent)
        return Identity(
            "Telescent", f"panel of {len(ports)} ports", "unknown", "unknown", ports, ports
        )

    async def read(self) -> frozenset[Setting]:
        async with self._lock:
            return self._settings(telescent.allocated(await self._look()))

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """Read the panel, request what is missing, one move after the other, until the panel shows
        it.
        """
        remove, add, failed = self._sides(change)
        goal = {**dict.fromkeys(remove, False), **dict.fromkeys(add, True)}
        at_ns = time.monotonic_ns()
        cells = await self._look()
        if marks.writes:  # a move whose answer was lost may be in progress: do not request it again
            at_ns, cells = await self._watch(
                goal, cells, marks, self._budget_s if self._moving else 0.0
            )
        marks.reasons.clear()
        for pair in [
            pair for pair in add if any(port not in cells or cells[port].absent for port in pair)
        ]:
            failed[add.pop(pair)] = f"not a port of {self.name}: {pair[0]}->{pair[1]}"
            del goal[pair]
        removed, new = _wanting(remove, add, cells, marks)
        if removed or new:
            if await marks.begin():
                cells = await self._look()
                marks.reasons.clear()
                removed, new = _wanting(remove, add, cells, marks)
            # A request for a port that is not free yet might be refused: no source says.
            for plug, pair in one_by_one(removed, new, filter(None, map(self._pair, change.order))):
                if plug:
                    await self._connect(pair, cells, marks)
                else:
                    at_ns, cells = await self._free(pair, marks)
            marks.broke()
            marks.acknowledged()
            for _ in range(TRIES):
                at_ns, cells = await self._watch(goal, await self._look(), marks)
                plugged = telescent.allocated(cells)
                for pair in [
                    pair for pair in new if pair not in plugged and pair not in marks.reasons
                ]:
                    await self._connect(pair, cells, marks)  # accepted, and nothing came of it
            at_ns, cells = await self._watch(goal, await self._look(), marks)
        marks.acked_ns = marks.acked_ns or time.monotonic_ns()
        plugged = telescent.allocated(cells)
        for pair, setting in (*remove.items(), *add.items()):
            if (pair in plugged) is (pair in remove):
                failed[setting] = marks.reasons.get(pair) or _silence(pair, cells, self._budget_s)
        return marks.outcome(self.name, self._settings(plugged), max(at_ns, marks.acked_ns), failed)

    async def _connect(self, pair: Pair, cells: Mapping[int, Cell], marks: Marks[Pair]) -> None:
        held = [o for o in telescent.allocated(dict(cells)) if o[0] == pair[0] or o[1] == pair[1]]
        if held:  # what was to be freed before is not: `connect --force` would take it
            marks.reasons[pair] = f"a port is held by {held[0][0]}->{held[0][1]}"
            return
        for command in (
            f"unlock --force -in {pair[0]}",
            f"unlock --force -out {pair[1]}",
            f"connect --force -in {pair[0]} -out {pair[1]}",
        ):
            if not await self._request(command, pair, marks):
                return

    async def _free(self, pair: Pair, marks: Marks[Pair]) -> tuple[int, dict[int, Cell]]:
        """Unlock and free a connection, and poll until it is gone.

        The client's author found that unlocking the side of a port that is meant is not enough,
        "apparent bug in the switch (or at least the simulator)": where that does not do, both sides
        of both ports are unlocked, and both ends freed.
        """
        ingress, egress = f"-in {pair[0]}", f"-out {pair[1]}"
        for unlocks, frees in (
            ((ingress, egress), (ingress,)),
            ((f"{pair[0]}", f"{pair[1]}"), (ingress, egress)),
        ):
            marks.reasons.pop(pair, None)
            for ends in unlocks:
                await self._request(f"unlock --force {ends}", pair, marks)
            for end in frees:
                await self._request(f"unallocate --force {end}", pair, marks)
                at_ns, cells = await self._watch({pair: False}, await self._look(), marks)
                if pair not in telescent.allocated(cells):
                    marks.reasons.pop(pair, None)
                    return at_ns, cells
        return at_ns, cells

    async def _request(self, command: str, pair: Pair, marks: Marks[Pair]) -> bool:
        """Run a command that the panel may answer only when the fibre is there; False and its words
        where it complains.
        """
        marks.write()
        self._moving = not command.startswith("unlock")
        reported, _ = await self._session.run(command, self._patience_s)
        self._moving = False
        if text := telescent.complaint(reported):
            marks.reasons[pair] = f'refused "{command}": {text}'
        return not text

    async def _watch(
        self,
        goal: Mapping[Pair, bool],
        cells: dict[int, Cell],
        marks: Marks[Pair],
        patience_s: float | None = None,
    ) -> tuple[int, dict[int, Cell]]:
        """Poll until `goal` is reached or nothing changed for `patience_s` (s; the budget of a
        move); report progress.
        """
        loop = asyncio.get_running_loop()
        began = moved = loop.time()
        before = cells
        while True:
            at_ns = time.monotonic_ns()
            now = loop.time()
            if cells != before:
                before, moved = cells, now
            plugged = telescent.allocated(cells)
            left = [
                pair
                for pair, existing in goal.items()
                if (pair in plugged) is not existing and pair not in marks.reasons
            ]
            done, total = len(goal) - len(left), len(goal)
            eta_s = (
                (now - began) / done * len(left)
                if done and patience_s is None
                else self.traits.settle_s * len(left)
            )
            self.on_progress(
                Progress(
                    self.name, done, total, eta_s, f"move {done + 1} of {total}" if left else "done"
                )
            )
            if not left or now - moved > (self._budget_s if patience_s is None else patience_s):
                return at_ns, cells
            await asyncio.sleep(self._check_s)
            cells = await self._look()

    async def _look(self) -> dict[int, Cell]:
        async def ask() -> dict[int, Cell]:
            reported, _ = await self._session.run(STATE)
            cells = telescent.switch_state(reported)
            telescent.allocated(cells)
            return cells

        return await twice(self.name, STATE, ask)

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        a, b = port_number(ingress), port_number(egress)
        return (a, b) if a and b else None

    def _no_pair(self, setting: Setting) -> str:
        if isinstance(setting, CrossConnect):
            return f"not a port of {self.name}: its ports are numbers"
        return super()._no_pair(setting)


def _wanting(
    remove: Iterable[Pair], add: Iterable[Pair], cells: dict[int, Cell], marks: Marks[Pair]
) -> tuple[list[Pair], list[Pair]]:
    """What is still to be taken out and put in; a port that stays taken is not asked for."""
    plugged = telescent.allocated(cells)
    removed, new = [pair for pair in remove if pair in plugged], []
    for pair in (pair for pair in add if pair not in plugged):
        if held := next(
            (o for o in sorted(plugged - {*removed}) if o[0] == pair[0] or o[1] == pair[1]), None
        ):
            side, port = ("ingress", pair[0]) if held[0] == pair[0] else ("egress", pair[1])
            marks.reasons[pair] = f"{side} port {port} is held by {held[0]}->{held[1]}"
        else:
            new.append(pair)
    return removed, new


def _silence(pair: Pair, cells: Mapping[int, Cell], budget_s: float) -> str:
    """Words for a move that was neither made nor refused."""
    cell = cells.get(pair[1])
    shows = f"{cell.status}{cell.address}" if cell else "nothing"
    return f"wanted {pair[0]}->{pair[1]}, port {pair[1]} shows {shows}; nothing changed for {budget_s:.1f} s"
