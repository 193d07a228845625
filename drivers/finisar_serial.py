"""Finisar DWP/EWP wavelength-selective switch modules on a serial line (115200 8N1, CR LF).

From public pyvisa scripts: every command is echoed, may answer one line of data, and ends with
`OK`. A change has two phases: `URA` stages channel settings, `RSW` applies everything staged at
once, so a change is one step whatever its size. The format of errors is not published: any line in
place of `OK` is taken for the module's error message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from drivers.api import Evidence
from drivers.link import open_link
from drivers.rounds import Marks
from drivers.session.echoed import EchoedSession
from drivers.session.frame import Device
from drivers.watch import PATIENCE_S, late_s, patience_option, patience_s, watch
from drivers.wire import wssmap
from drivers.wire.wssmap import BLOCKED_DB, Entry
from optics import (
    Change,
    DeviceConfig,
    Garbled,
    Identity,
    Outcome,
    Port,
    Refused,
    Setting,
    SpectralRoute,
    Traits,
)

COMMON = "in"
# more than any module attenuates on purpose (0..15 dB typical, unconfirmed); above it is a typing
# error
MOST_DB = 30.0
Map = dict[int, Entry]


class FinisarSerial(Device[Setting]):
    """A 1xN module: light enters at the common port `in` and leaves by ports 1..N, in channels of
    50 GHz.
    """

    # 0.2 s for RSW, 5.0 dB (modules of this kind lose 4 to 6) and a map kept without power are
    # unconfirmed.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.2,
        at_once=None,
        keeps_others_lit=True,
        latching=True,
        insertion_loss_db=5.0,
        spectral=True,
    )
    STAGES: ClassVar[int] = 1
    """What `URA` staged cannot be read back, and dims nothing before `RSW`: after a lost answer it
    is staged again, whole.
    """
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "ports": "number of ports, the common one not counted; default 9",
        "first_mhz": "centre of channel 1 (MHz); default 191350000",
        "patience_s": patience_option(),
    }

    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Finisar DWP/EWP modules, serial",
        ("serial", "visa"),
        {
            "identify": "CODE",
            "read": "assumed",
            "change": "CODE",
            "refusals": "assumed",
            "settling": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._patience_s = patience_s(
            traits, config.options.get("patience_s"), PATIENCE_S / config.time_scale
        )
        self._ports = int(config.options.get("ports", "9"))
        self._first_mhz = int(config.options.get("first_mhz", str(wssmap.FIRST_MHZ)))
        if not 1 <= self._ports <= 64:
            raise ValueError(f"ports: from 1 to 64, not {self._ports}")
        address = config.address
        if address.startswith("serial://") and "baud=" not in address:
            address += "?baud=115200"
        self._session: EchoedSession = EchoedSession(
            open_link(address, config.timeout_s, config.name)
        )

    async def identify(self) -> Identity:
        async with self._lock:
            serial = await self._session.ask("SNO?")
            made = await self._session.ask("MFD?")
        egress = tuple(str(n) for n in range(1, self._ports + 1))
        return Identity(
            "Finisar", f"WSS 1x{self._ports}", serial, f"made {made}", (COMMON,), egress
        )

    async def read(self) -> frozenset[Setting]:
        async with self._lock:
            return self._routes(await self._map())

    async def _round(self, change: Change, marks: Marks[Setting]) -> Outcome:
        failed: dict[Setting, str] = {}
        wanted: dict[Setting, tuple[range, Entry | None]] = {}
        # settings of two kinds have no order
        for setting in (*sorted(change.remove, key=str), *sorted(change.add, key=str)):
            try:
                led, goal = self._channels(setting)
            except ValueError as error:
                failed[setting] = str(error)
            else:
                wanted[setting] = led, (goal if setting in change.add else None)

        def missing(seen: Map) -> dict[Setting, tuple[range, Entry | None]]:
            return {
                s: (channels, entry)
                for s, (channels, entry) in wanted.items()
                if not self._is_so(s, channels, entry, seen)
            }

        first_s = late_s(self.traits) if marks.writes else 0.0
        last = await watch(
            self._map,
            lambda seen: not missing(seen),
            expected_s=self.traits.settle_s,
            patience_s=first_s,
        )
        texts: dict[Setting, str] = {}
        if todo := missing(last.report):
            staged = self._staged(todo, last.report, texts)
            if staged != last.report and await marks.begin():
                texts.clear()
                seen = await self._map()
                staged, last = self._staged(missing(seen), seen, texts), replace(last, report=seen)
            if staged != last.report:
                applied, refusal = False, ""
                try:
                    marks.write(2)
                    await self._session.send(f"URA {wssmap.write_map(staged)}")
                    applied = True
                    await self._session.send("RSW")
                except Refused as error:
                    refusal = str(error)
                refused = {s: refusal for s in todo if refusal} | texts
                if not applied:
                    texts = refused
                marks.broke()
                marks.acknowledged()
                # what is no OK may have been one before the line spoiled it: after RSW the map
                # decides
                last = await watch(
                    self._map,
                    lambda seen: all(s in texts for s in missing(seen)),
                    expected_s=self.traits.settle_s,
                    patience_s=late_s(self.traits) if refusal else self._patience_s,
                )
                texts = refused
        marks.acked_ns = marks.acked_ns or last.at_ns
        for setting, (_, entry) in missing(last.report).items():
            silence = f"{'still' if entry is None else 'not yet'} there after {last.watched_s:.1f} s, no error reported"
            failed[setting] = texts.get(setting, silence)
        return marks.outcome(self.name, self._routes(last.report), last.at_ns, failed)

    def _staged(
        self,
        todo: Mapping[Setting, tuple[range, Entry | None]],
        seen: Map,
        texts: dict[Setting, str],
    ) -> Map:
        """The whole map to stage: what stays as it is (over any forgotten URA), removals, then
        additions.
        """
        staged = dict(seen)
        for channels, entry in todo.values():
            if entry is None:
                staged.update(
                    {channel: Entry(seen[channel].port, BLOCKED_DB) for channel in channels}
                )
        for setting, (channels, entry) in todo.items():
            if entry is None:
                continue
            if held := [channel for channel in channels if not staged[channel].blocked]:
                texts[setting] = f"channel {held[0]} is led to port {staged[held[0]].port} already"
            elif neighbours := [
                channel
                for channel in (channels[0] - 1, channels[-1] + 1)
                if staged.get(channel) == entry
            ]:
                texts[setting] = (
                    f"the neighbouring channel {neighbours[0]} has the same setting and would merge; add 0.1 dB to one"
                )
            else:
                staged.update(dict.fromkeys(channels, entry))
        return staged

    def _is_so(self, setting: Setting, channels: range, entry: Entry | None, seen: Map) -> bool:
        if entry is not None:
            return all(seen[channel] == entry for channel in channels)
        removed = Entry(int(setting.egress.label), getattr(setting, "attenuation_db", 0.0))
        return not all(seen[channel] == removed for channel in channels)

    def _channels(self, setting: Setting) -> tuple[range, Entry]:
        """The channels of a route and their settings. Raises: ValueError - this module cannot hold
        it.
        """
        if not isinstance(setting, SpectralRoute):
            raise ValueError("a cross-connect; this is a wavelength-selective switch")
        egress = [str(n) for n in range(1, self._ports + 1)]
        if (
            setting.ingress != Port(self.name, COMMON)
            or setting.egress.device != self.name
            or setting.egress.label not in egress
        ):
            raise ValueError(f"not a port of {self.name}")
        channels = wssmap.channels_of(setting.slot, self._first_mhz)
        if channels is None:
            raise ValueError(
                f"{setting.slot} is not a whole number of this module's 50 GHz channels"
            )
        if not 0 <= setting.attenuation_db <= MOST_DB:
            raise ValueError(
                f"attenuation {setting.attenuation_db:.1f} dB is not between 0 and {MOST_DB:.0f}"
            )
        return channels, Entry(int(setting.egress.label), setting.attenuation_db)

    async def _map(self) -> Map:
        text = await self._session.ask("RRA?")
        try:
            found = wssmap.parse_map(text)
        except Garbled as error:
            await self._session.close()
            raise Garbled(f'{self.name}: answer to "RRA?": {error}') from error
        if len(found) != wssmap.CHANNELS:
            raise Garbled(
                f'{self.name}: answer to "RRA?": {len(found)} channels, not {wssmap.CHANNELS}'
            )
        return found

    def _routes(self, seen: Map) -> frozenset[Setting]:
        return frozenset(
            SpectralRoute(
                Port(self.name, COMMON),
                Port(self.name, str(entry.port)),
                wssmap.slot_of(first, last, self._first_mhz),
                entry.attenuation_db,
            )
            for first, last, entry in wssmap.runs(seen)
        )
