"""Optical circuit switches that run SONiC, over the shell commands of its OCS extension: SSH, one
command at a time.

Commands as in sonic-mgmt's module `ocs_cross_connect` and its tests, and in the design documents of
sonic-net/SONiC. The configuration is accepted at once, the hardware follows and may fail: only
`show ocs cross-connect status` counts, whose row must report `tuned` on both sides. A row that is
in the status but not in the configuration is stale; it holds its ports and cannot be deleted before
it is added again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from drivers.api import Evidence
from drivers.link.addresses import open_commands
from drivers.link.ssh import OPTIONS as SSH_OPTIONS
from drivers.link.ssh import SshCommands
from drivers.rounds import Marks
from drivers.session.crossconnects import twice
from drivers.session.pairs import PairSwitch
from drivers.watch import late_s, patience_option, watch
from drivers.wire import sonic
from drivers.wire.sonic import TUNED, Pair, identifier
from optics import (
    Change,
    CrossConnect,
    DeviceConfig,
    Garbled,
    Identity,
    Outcome,
    Port,
    PortState,
    Refused,
    Setting,
    Traits,
)
from optics.plain import printable

T = TypeVar("T")
SHOW_CONFIG, SHOW_STATUS = "show ocs cross-connect config", "show ocs cross-connect status"
SHOW_PORTS, OPEN = "show ocs port config", "normal"
KEYS = "sonic-db-cli CONFIG_DB keys 'OCS_PORT|*'"
CHECKS, CHECK_S = 12, 5.0
"""sonic-mgmt checks for `tuned tuned` 12 times, 5 s apart (CODE)."""
_PORT = r"[1-9][0-9]{0,3}[AB]"
_SHUT = (  # forms of shutting a port, the newest first; each SONiC knows one of them
    # DOC: design document, pull request 2269
    ("config ocs port state {port} {state}", "force_blocked"),
    # REAL: README of the ocs-kvm image
    ("config ocs-port update {port} --config-status {state}", "force_blocked"),
    # DOC: design document, pull request 2349
    ("config ocs-port {port} --config-status {state}", "force-blocked"),
)


@dataclass(frozen=True, slots=True)
class Look:
    """Configuration and hardware status at one time."""

    config: frozenset[Pair]
    status: Mapping[Pair, tuple[str, str]]

    @property
    def tuned(self) -> frozenset[Pair]:
        return frozenset(pair for pair, sides in self.status.items() if sides == (TUNED, TUNED))

    @property
    def holding(self) -> frozenset[Pair]:
        """The pairs that hold ports, whether light passes or not."""
        return self.config | self.status.keys()


class SonicOcs(PairSwitch):
    """A SONiC switch. Light enters at ports 1A..NA and leaves at 1B..NB; a port is in one
    cross-connect at a time.
    """

    # sonic-mgmt checks every 5 s, at most 12 times (CODE); no data sheet states how long a mirror
    # takes. Insertion loss 1.6 dB: the factory table of the design document (DOC). Whether circuits
    # survive a power cut is published nowhere.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=5.0, at_once=1, keeps_others_lit=True, latching=False, insertion_loss_db=1.6
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        **SSH_OPTIONS,
        "mode": "`safe`: the switch itself refuses a port in use; default `update`, as public clients have it",
        "patience_s": patience_option(CHECKS * CHECK_S),
    }
    PATIENCE_S: ClassVar[float] = CHECKS * CHECK_S
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "SONiC optical circuit switches, CLI",
        ("ssh",),
        {
            "identify": "CODE",
            "read": "DOC",
            "change": "CODE",
            "refusals": "CODE",
            "port control": "DOC",
            "settling": "CODE",
        },
    )
    UNSAID: ClassVar[str] = "no error printed"

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._mode = config.options.get("mode", "update")
        if self._mode not in ("update", "safe"):
            raise ValueError(f"mode: update or safe, not {self._mode!r}")
        self._session: SshCommands = open_commands(config)
        self._root = ""
        self._made: set[Pair] = set()
        # as last read: rows that hold ports and pass no light
        self._idle: dict[Pair, tuple[str, str]] = {}
        self._soon_at = 0.0  # before, what was made is not expected to be tuned

    def holders(self) -> Mapping[Setting, str]:
        """Rows of the status that are not `tuned` on both sides: being made, failed, or stale."""
        return {
            self._setting(pair): printable(" ".join(sides), keep="")
            for pair, sides in self._idle.items()
        }

    async def identify(self) -> Identity:
        async with self._lock:
            version = await self._ask("show version", sonic.version)
            serial = version.serial or sonic.serial(
                (await self._session.run("show platform summary"))[0]
            )
            enter, leave = await self._ask(KEYS, sonic.ports)
        return Identity("SONiC", version.sku, serial or "unknown", version.software, enter, leave)

    async def port_states(self, ports: Iterable[Port]) -> Mapping[Port, PortState]:
        async with self._lock:
            return await self._port_states(list(ports))

    async def set_ports(self, ports: Iterable[Port], *, enabled: bool) -> Mapping[Port, PortState]:
        wanted = list(ports)
        if strange := [
            port
            for port in wanted
            if port.device != self.name or not re.fullmatch(_PORT, port.label)
        ]:
            raise Refused(f"{strange[0]}: not a port of {self.name}")
        async with self._lock:
            for port in wanted:
                await self._set_port(port.label, enabled)
            return await self._watch_ports(wanted, self._port_states, enabled)

    async def _port_states(self, ports: list[Port]) -> dict[Port, PortState]:
        """A port that is configured to be shut and still passes light is not shut: the hardware
        follows later, or fails.
        """
        config = await self._ask(SHOW_PORTS, sonic.port_column)
        status = await self._ask("show ocs port status", sonic.port_column)
        found: dict[Port, PortState] = {}
        for port in ports:
            if port.label in config:
                text = status.get(port.label, "").lower()
                shut = (
                    PortState.ENABLED
                    if config[port.label] == OPEN or text == TUNED
                    else PortState.DISABLED
                )
                found[port] = PortState.FAILED if "fail" in text else shut
        return found

    async def _set_port(self, port: str, enabled: bool) -> None:
        text = command = ""
        for form, shut in _SHUT:
            command = form.format(port=port, state=OPEN if enabled else shut)
            text, _ = await self._configure(command)
            if not sonic.unknown_command(text):
                break
        if sonic.complains(text):
            raise Refused(f'{self.name} refused "{command}": {sonic.complaint(text)}')

    async def _read(self) -> frozenset[Pair]:
        """Cross-connects that pass light, and those that would if one of their ports were not
        shut.
        """
        status = await self._ask(SHOW_STATUS, sonic.status)
        return await self._lit(Look(frozenset(), status))

    async def _lit(self, look: Look) -> frozenset[Pair]:
        lit = await self._passing(look)
        self._idle = {pair: sides for pair, sides in look.status.items() if pair not in lit}
        return lit

    async def _passing(self, look: Look) -> frozenset[Pair]:
        lit = look.tuned
        dark = look.status.keys() - lit
        if dark <= self._made and time.monotonic() < self._soon_at:
            return lit  # being tuned; if one of their ports is shut, the next read shows it
        if dark:
            shut = {
                port
                for port, state in (await self._ask(SHOW_PORTS, sonic.port_column)).items()
                if state != OPEN
            }
            if shut:
                lit |= {
                    pair
                    for pair in dark & await self._ask(SHOW_CONFIG, sonic.config)
                    if shut & {*identifier(pair).split("-")}
                }
        ports = [side for pair in lit for side in identifier(pair).split("-")]
        if len(set(ports)) != len(ports):
            raise Garbled(
                f'{self.name}: answer to "{SHOW_STATUS}": a port in two cross-connects: {sorted(map(identifier, lit))[:4]}'
            )
        return lit

    async def _look(self) -> Look:
        return Look(
            await self._ask(SHOW_CONFIG, sonic.config), await self._ask(SHOW_STATUS, sonic.status)
        )

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """As any switch of pairs; pairs that were accepted but never lit are removed: they would
        hold their ports.
        """
        self._made = set() if not marks.writes else self._made
        outcome = await super()._round(change, marks)
        left = {
            pair for s in outcome.failed if s in change.add and (pair := self._pair(s))
        } & self._made
        if not left:
            return outcome
        look = await self._look()
        came = self._settings(left & look.tuned)  # at the last moment: it is kept
        left -= look.tuned
        texts = {
            setting: reported for setting, reported in outcome.failed.items() if setting not in came
        }
        for pair in sorted(left & look.config):
            sides = " ".join(look.status.get(pair, ("not", "reported")))
            setting = self._setting(pair)
            texts[setting] = (
                f"{identifier(pair)} was accepted but its hardware reports: {sides}; taken back"
            )
            await self._delete(pair, marks)
        seen = await watch(
            self._look,
            lambda now: not left & now.holding,
            expected_s=self.traits.settle_s,
            patience_s=self._patience_s,
        )
        return replace(
            outcome,
            observed=self._settings(await self._lit(seen.report)),
            failed=texts,
            writes=marks.writes,
            settled_ns=seen.at_ns,
        )

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        look = await self._look()
        # being removed, or stale: only the former disappear by themselves
        if leaving := set(pairs) - look.config:
            seen = await watch(
                self._look,
                lambda now: not leaving & now.status.keys(),
                expected_s=self.traits.settle_s,
                patience_s=late_s(self.traits),
            )
            look = seen.report
        for pair in pairs:
            if pair not in look.config and pair in look.status:
                if text := await self._add(pair, marks):
                    marks.reasons[pair] = f"stale, and {text}"
                    continue
                await self._delete(pair, marks)
            elif pair in look.config:
                await self._delete(pair, marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        def held(now: Look) -> dict[Pair, Pair]:
            """New cross-connects whose ports are held otherwise, with the holder."""
            return {
                pair: other
                for pair in pairs
                for other in sorted(now.holding)
                if other != pair and _touch(pair, other)
            }

        def soon_free(now: Look) -> bool:
            return not any(
                other in now.status and other not in now.config for other in held(now).values()
            )

        seen = await watch(
            self._look, soon_free, expected_s=self.traits.settle_s, patience_s=late_s(self.traits)
        )
        taken = held(seen.report)
        for pair in pairs:
            if other := taken.get(pair):
                port = f"{pair[0]}A" if pair[0] == other[0] else f"{pair[1]}B"
                stale = (
                    ""
                    if other in seen.report.config
                    else ", which is stale: in the status, not in the configuration"
                )
                marks.reasons[pair] = f"port {port} is held by {identifier(other)}{stale}"
            elif pair not in seen.report.config:
                if text := await self._add(pair, marks):
                    marks.reasons[pair] = text
                self._made.add(pair)
        self._soon_at = time.monotonic() + self.traits.settle_s

    async def _add(self, pair: Pair, marks: Marks[Pair]) -> str:
        return await self._write(
            f"config ocs cross-connect add {identifier(pair)} {self._mode}", marks
        )

    async def _delete(self, pair: Pair, marks: Marks[Pair]) -> None:
        if text := await self._write(f"config ocs cross-connect delete {identifier(pair)}", marks):
            marks.reasons[pair] = text

    async def _write(self, command: str, marks: Marks[Pair]) -> str:
        """Run a command that answers `succeeded`; return its complaint. Raises: Garbled - neither,
        so its effect is unknown.
        """
        marks.write()
        lines, status = await self._configure(command)
        if "succeeded" in lines:
            return ""
        if status <= 0 and not sonic.complains(lines):
            raise Garbled(f'{self.name}: answer to "{command}": {lines[:120]!r}')
        return f'refused "{command}": {sonic.complaint(lines)}'

    async def _configure(self, command: str) -> tuple[str, int]:
        """Run a configuration command, as root once the switch has demanded it."""
        text, status = await self._session.run(self._root + command)
        # words of sonic-utilities; nothing was done
        if not self._root and "oot privileges are required" in text:
            self._root = "sudo -n "
            text, status = await self._session.run(self._root + command)
        return text, status

    async def _ask(self, question: str, parse: Callable[[str], T]) -> T:
        async def ask() -> T:
            reported, status = await self._session.run(question)
            if status > 0:
                raise Garbled(f"exit status {status}: {sonic.complaint(reported)}")
            return parse(reported)

        return await twice(self.name, question, ask)

    def _setting(self, pair: Pair) -> Setting:
        return CrossConnect(Port(self.name, f"{pair[0]}A"), Port(self.name, f"{pair[1]}B"))

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        a, b = (
            re.fullmatch(r"([1-9][0-9]{0,3})A", ingress),
            re.fullmatch(r"([1-9][0-9]{0,3})B", egress),
        )
        return (int(a[1]), int(b[1])) if a and b else None


def _touch(one: Pair, other: Pair) -> bool:
    return one[0] == other[0] or one[1] == other[1]
