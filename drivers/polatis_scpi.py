"""Polatis / HUBER+SUHNER piezo switches over SCPI: TCP 5025, RS-232 38400 8N1, or anything pyvisa opens.

Commands as in the hpn-bristol and R. Polster clients (the latter cites manual PROD-B-100-03-0). Set commands are not answered and
an impossible pair is silently not made, so each is followed at once by `:syst:err?` and believed only after `:oxc:swit:conn:stat?`.

What `settled_ns` means here: the moment the switch's own map showed the change. Nothing public says whether the map waits for the
piezo to settle; treat light as proven by a power reading or the link, not by this mark.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

from drivers.api import Ready, at_once
from drivers.link import open_link
from drivers.rounds import Marks, in_rounds
from drivers.session.scpi import ScpiSession
from drivers.watch import patience_s, soon_s, watch
from drivers.wire import scpi
from optics import (
    Change,
    CrossConnect,
    Dbm,
    DeviceConfig,
    Garbled,
    Identity,
    Outcome,
    Port,
    Setting,
    Traits,
)

Pair = tuple[int, int]
FLOOR_DBM = -60.0
"""What a meter without light answers (Polatis NETCONF test fixtures)."""
PORTS_PER_QUERY = 256  # user notes of the manual
QUEUE_LENGTH = 64  # an error queue that never empties is not one


class PolatisScpi:
    """A Polatis switch. Its ports are numbers: 1..N light enters, N+1..N+M light leaves."""

    # H+S data sheet as quoted by the TCD testbed: 50 ms single switching, any number at once, 1.5 dB typical. Dark after power loss
    # unless `:oxc:boot:mode` says otherwise, hence not latching.
    TRAITS: ClassVar[Traits] = Traits(settle_s=0.05, at_once=None, keeps_others_lit=True, latching=False, insertion_loss_db=1.5)
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "pace_s": "least time between two lines (s), 0.1 for old firmware; default 0",
        "patience_s": "longest wait for the device to report a change (s); default ten times settle_s, at least 2",
    }

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name = config.name
        self.traits = traits
        self._patience_s = patience_s(traits, config.options.get("patience_s"))
        self._session = ScpiSession(
            open_link(config.address, config.timeout_s, config.name), pace_s=float(config.options.get("pace_s", "0"))
        )
        self._turn = asyncio.Lock()
        self._metered: bool | None = None

    async def identify(self) -> Identity:
        async with self._turn:
            vendor, model, serial, firmware = await self._session.ask("*IDN?", scpi.parse_identity)
            enter, leave = await self._session.ask(":oxc:swit:size?", partial(scpi.parse_integers, count=2))
        if not (0 < enter <= 4096 and 0 < leave <= 4096):
            raise Garbled(f'{self.name}: answer to ":oxc:swit:size?": {enter} x {leave} ports')
        numbers = [str(n) for n in range(1, enter + leave + 1)]
        return Identity(vendor, model, serial, firmware, tuple(numbers[:enter]), tuple(numbers[enter:]))

    async def read(self) -> frozenset[Setting]:
        async with self._turn:
            return self._settings(await self._read())

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        async with self._turn:
            marks = Marks[Pair](ready)
            return await in_rounds(marks, lambda: self._round(change, marks))

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        wanted = {_number(port.label): port for port in ports}
        async with self._turn:
            if self._metered is None:
                identity = await self._session.ask("*IDN?", scpi.parse_identity)
                self._metered = not identity[1].upper().startswith("I-OST")  # that series has no power meters
            if not self._metered:
                return {}
            numbers = sorted(n for n in wanted if n is not None)
            found: dict[Port, Dbm] = {}
            for at in range(0, len(numbers), PORTS_PER_QUERY):
                part = numbers[at : at + PORTS_PER_QUERY]
                read = partial(scpi.parse_numbers, count=len(part))
                levels = await self._session.ask(f":pmon:pow? {scpi.channels(part)}", read)
                found.update((wanted[n], level) for n, level in zip(part, levels, strict=True) if n and level > FLOOR_DBM)
            return found

    async def close(self) -> None:
        async with self._turn:
            await self._session.close()

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """Read, send what is missing, watch; a lost answer leaves by an exception and the next round begins with reading."""
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}

        def wrong(pairs: frozenset[Pair]) -> dict[Pair, Setting]:
            return {p: s for p, s in remove.items() if p in pairs} | {p: s for p, s in add.items() if p not in pairs}

        def done(pairs: frozenset[Pair]) -> bool:
            return all(pair in marks.words for pair in wrong(pairs))

        # After a lost answer the circuits may be on their way and not yet in the map: sending them again would be blind.
        first_s = 2 * self.traits.settle_s if marks.writes else 0.0
        last = await watch(self._read, done, expected_s=self.traits.settle_s, patience_s=first_s)
        for wait_s in (soon_s(self.traits, self._patience_s), self._patience_s):
            todo = wrong(last.report)
            await self._send(todo.keys() & remove.keys(), todo.keys() & add.keys(), last.report, marks)
            last = await watch(self._read, done, expected_s=self.traits.settle_s, patience_s=wait_s)
            if last.done:
                break  # else: neither made nor refused; a switch that lost a command is asked once more
        failed = {s: f"not a port of {self.name}" for s in (change.remove | change.add) if not self._pair(s)}
        late = "" if last.done else "; ".join(await self._drain())  # an error that came after its command was answered for
        for pair, setting in wrong(last.report).items():
            failed[setting] = marks.words.get(pair) or late or _silence(pair, last.report, last.watched_s)
        return marks.outcome(self.name, self._settings(last.report), last.at_ns, failed)

    async def _send(self, gone: set[Pair], new: set[Pair], seen: frozenset[Pair], marks: Marks[Pair]) -> None:
        """Break `gone`, make `new`, given the map as it is; a port held by a circuit that stays is not driven for another."""
        marks.words.clear()
        if gone or new:
            await self._drain()  # before anything goes dark: older errors are not about this change
            await marks.begin()
        if gone:
            await self._write("sub", sorted(gone), marks)
            marks.broke()
            if new:  # one question in the dark, a fraction of a millisecond: is every port really free now?
                soon = soon_s(self.traits, self._patience_s)
                last = await watch(
                    self._read, lambda now: gone & now <= marks.words.keys(), expected_s=self.traits.settle_s, patience_s=soon
                )
                seen = last.report
        for pair in sorted(new):
            if holders := [held for held in sorted(seen) if held[0] == pair[0] or held[1] == pair[1]]:
                port = pair[0] if holders[0][0] == pair[0] else pair[1]
                marks.words[pair] = f"port {port} is held by {holders[0][0]}->{holders[0][1]}"
        if free := sorted(pair for pair in new if pair not in marks.words):
            await self._write("add", free, marks)
        marks.acknowledged()

    async def _write(self, verb: str, pairs: list[Pair], marks: Marks[Pair]) -> None:
        """Send one command for all `pairs`; where the device objects, find out to which of them.

        The device may do all, some or none of a refused list. What is missing a settling time later is sent one by one, so that
        each pair gets its own words and a good pair does not fail for a bad one.
        """
        errors = await self._command(verb, pairs, marks)
        if not errors:
            return
        if len(pairs) == 1:
            marks.words[pairs[0]] = errors
            return
        adding = verb == "add"
        last = await watch(
            self._read,
            lambda seen: all((pair in seen) == adding for pair in pairs),
            expected_s=self.traits.settle_s,
            patience_s=2 * self.traits.settle_s,
        )
        for pair in pairs:
            if (pair in last.report) != adding and (errors := await self._command(verb, [pair], marks)):
                marks.words[pair] = errors

    async def _command(self, verb: str, pairs: list[Pair], marks: Marks[Pair]) -> str:
        """Send a set command with the question for its errors; return them, empty when there are none."""
        lists = f"{scpi.channels(a for a, _ in pairs)},{scpi.channels(b for _, b in pairs)}"
        command = f":oxc:swit:conn:{verb} {lists}"
        marks.write()
        first = await self._session.ask(":syst:err?", scpi.parse_error, command=command, again=False)
        if not first.code:
            return ""
        return f'refused "{command}": ' + "; ".join([str(first), *await self._drain()])

    async def _drain(self) -> list[str]:
        """Empty the error queue and return it: what is in it before a command belongs to somebody else."""
        errors: list[str] = []
        for _ in range(QUEUE_LENGTH):
            error = await self._session.ask(":syst:err?", scpi.parse_error)
            if not error.code:
                break
            errors.append(str(error))
        return errors

    async def _read(self) -> frozenset[Pair]:
        return await self._session.ask(":oxc:swit:conn:stat?", _parse_map)

    def _settings(self, pairs: Iterable[Pair]) -> frozenset[Setting]:
        return frozenset(CrossConnect(Port(self.name, str(a)), Port(self.name, str(b))) for a, b in pairs)

    def _pair(self, setting: Setting) -> Pair | None:
        """The two port numbers, None when a label is not one (and must not reach a command line)."""
        if {setting.ingress.device, setting.egress.device} != {self.name}:
            return None
        ingress, egress = _number(setting.ingress.label), _number(setting.egress.label)
        return (ingress, egress) if ingress and egress else None


def _silence(pair: Pair, seen: frozenset[Pair], watched_s: float) -> str:
    """Words for a change the device neither made nor refused."""
    others = sorted((a, b) for a, b in seen if a == pair[0] or b == pair[1])
    reports = ", ".join(f"{a}->{b}" for a, b in others) or f"{pair[0]}->-"
    gone = " gone" if pair in seen else ""
    return f"wanted {pair[0]}->{pair[1]}{gone}, reports {reports} after {watched_s:.1f} s, no error queued"


def _parse_map(text: str) -> frozenset[Pair]:
    """Read the map: two lists, parallel by position, not sorted."""
    lists = scpi.parse_channels(text)
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise Garbled(f"not two lists of the same length: {text[:120]!r}")
    pairs = frozenset(zip(*lists, strict=True))
    if len(pairs) != len(lists[0]) or len(set(lists[0])) != len(pairs) or len(set(lists[1])) != len(pairs):
        raise Garbled(f"a port in two circuits: {text[:120]!r}")
    return pairs


def _number(label: str) -> int | None:
    return int(label) if re.fullmatch(r"[0-9]{1,4}", label) and int(label) else None
