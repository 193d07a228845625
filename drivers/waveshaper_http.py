"""WaveShaper programmable filters (Finisar, II-VI, Coherent) over HTTP, port 80.

Requests as in public clients: `devinfo`, `getprofile` (WSP text), `loadprofile` (JSON). The result
is in `rc`, not in the HTTP status; of an answer without it only the profile that is read back
counts. Every upload is the whole spectrum, made from the profile read a moment before: nothing
public says what a partial one does to the rest. An upload passes through intermediate states, with
high or low attenuation, for "few to few tens of milliseconds"; the vendor's knowledge base advises
several smaller ones. The option `slices` cuts a change so: each upload then changes one part of the
spectrum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from drivers.api import Evidence
from drivers.link.http import Answer
from drivers.rounds import Marks
from drivers.session.rest import OPTIONS, RestSession, open_http
from drivers.session.routes import RouteSwitch
from drivers.watch import patience_option
from drivers.wire import rest, wsp
from drivers.wire.rest import Json
from optics import (
    DeviceConfig,
    FrequencySlot,
    Garbled,
    Identity,
    Port,
    Setting,
    SpectralRoute,
    Traits,
)

COMMON = "in"
CLIENTS_WAIT_S = 20.0
"""The longest time-out of a public client (CODE: 1 to 20 s, three tries)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the device holds, over its whole range."""

    rows: tuple[wsp.Row, ...]
    routes: frozenset[SpectralRoute]


@dataclass(frozen=True, slots=True)
class _Info:
    identity: Identity
    first_mhz: int
    last_mhz: int
    ports: int


class WaveshaperHttp(RouteSwitch[Profile]):
    """A WaveShaper: light enters at `in` and leaves by ports 1..4 (1000 series: 1), as its profile
    says for each GHz.
    """

    # Upload 0.5 s, 4-5 dB and persistence are unconfirmed. Intermediate states are not said to stay
    # inside what changes.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.5,
        at_once=None,
        keeps_others_lit=False,
        latching=True,
        insertion_loss_db=4.5,
        spectral=True,
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "slices": "uploads that a change is cut into, 1 to 6 (the vendor advises 3 to 6); default 1",
        **OPTIONS,
        "patience_s": patience_option(CLIENTS_WAIT_S),
    }
    PATIENCE_S: ClassVar[float] = CLIENTS_WAIT_S
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "WaveShaper (Finisar, II-VI, Coherent), HTTP",
        ("http",),
        {
            "identify": "CODE",
            "read": "CODE",
            "change": "CODE",
            "profile": "DOC",
            "refusals": "CODE",
            "settling": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: RestSession = RestSession(open_http(config))
        self._slices = int(config.options.get("slices", "1"))
        if not 1 <= self._slices <= 6:
            raise ValueError(f"slices: from 1 to 6, not {self._slices}")
        self._write_s = config.timeout_s + traits.settle_s
        self._info: _Info | None = None
        self._read: tuple[_Info, bytes, Profile] | None = None

    async def identify(self) -> Identity:
        async with self._lock:
            return (await self._about()).identity

    async def _about(self) -> _Info:
        self._info = await self._session.ask("/waveshaper/devinfo", _parse_info)
        return self._info

    async def _look(self) -> Profile:
        info = self._info or await self._about()

        def parse(answer: Answer) -> Profile:
            if answer.status != 200:
                raise Garbled(rest.restconf_message(answer.status, answer.body))
            if self._read and self._read[:2] == (info, answer.body):
                return self._read[2]  # thousands of rows
            rows = wsp.parse(answer.body.decode("utf-8", "backslashreplace"))
            for row in rows:
                if row.port > info.ports or not info.first_mhz <= row.mhz <= info.last_mhz:
                    raise Garbled(
                        f"port {row.port} at {wsp.thz_of(row.mhz)} THz, beyond what devinfo says"
                    )
            routes = (
                SpectralRoute(
                    Port(self.name, COMMON),
                    Port(self.name, str(band.port)),
                    band.slot,
                    float(band.db),
                )
                for band in wsp.bands(rows)
            )
            # Whether the row at stopfreq exists is not said: it is written where the device itself
            # reports it.
            last_mhz = max(rows[-1].mhz, info.last_mhz - wsp.STEP_MHZ)
            found = Profile(wsp.whole(rows, info.first_mhz, last_mhz), frozenset(routes))
            self._read = (info, answer.body, found)
            return found

        return await self._session.ask("/waveshaper/getprofile", parse)

    def _fault(self, route: SpectralRoute, seen: Profile) -> str:
        ports = [str(n) for n in range(1, self._info.ports + 1)] if self._info else []
        if route.ingress.label != COMMON or route.egress.label not in ports:
            return f"not a port of {self.name}"
        return wsp.fault(route.slot, _db(route), seen.rows[0].mhz, seen.rows[-1].mhz)

    async def _carry_out(
        self,
        removed: Sequence[SpectralRoute],
        tuned: Sequence[tuple[SpectralRoute, SpectralRoute]],
        new: Sequence[SpectralRoute],
        seen: Profile,
        marks: Marks[Setting],
    ) -> None:
        rows = seen.rows
        for part in _cut(self._slices, [*removed, *(after for _, after in tuned), *new]):
            for route in removed:
                if route in part:
                    rows = wsp.block(rows, route.slot)
            for route in (*(after for _, after in tuned), *new):
                if route in part:
                    rows = wsp.lead(rows, route.slot, int(route.egress.label), _db(route))
            marks.write()
            if text := await self._load(rows):
                befores = {before for before, after in tuned if after in part}
                marks.reasons.update(dict.fromkeys(part | befores, text))
                return

    async def _load(self, rows: Sequence[wsp.Row]) -> str:
        """Upload; return the device's words, empty when it was done."""

        def parse(answer: Answer) -> str:
            if 400 <= answer.status < 500:
                return rest.restconf_message(answer.status, answer.body)
            if answer.status != 200:
                raise Garbled(rest.restconf_message(answer.status, answer.body))
            reply = rest.mapping(rest.parse_json(answer.body), "the answer")
            if reply.get("rc") is None:
                # a 1000A answers devinfo without it (REAL): the profile that is read back decides
                return ""
            code = rest.whole(reply, "rc")
            return f"rc {code}: {rest.text(reply, 'rctext', '')[:200]}" if code else ""

        body = json.dumps({"type": "wsp", "wsp": wsp.write(rows)}).encode()
        headers = {"Content-Type": "application/json"}
        text = await self._session.send(
            "POST",
            "/waveshaper/loadprofile",
            parse,
            body=body,
            headers=headers,
            timeout_s=self._write_s,
        )
        return text and f'refused "loadprofile": {text}'


def _db(route: SpectralRoute) -> Decimal:
    return Decimal(f"{route.attenuation_db:.1f}")


def _cut(slices: int, routes: Sequence[SpectralRoute]) -> list[set[SpectralRoute]]:
    """Cut a change into at most `slices` parts of neighbouring spectrum; routes that overlap stay
    in one.
    """
    groups: list[tuple[FrequencySlot, set[SpectralRoute]]] = []
    for route in sorted(routes, key=lambda r: r.slot):
        if groups and groups[-1][0].overlaps(route.slot):
            slot, part = groups.pop()
            groups.append(
                (
                    FrequencySlot(slot.low_mhz, max(slot.high_mhz, route.slot.high_mhz)),
                    part | {route},
                )
            )
        else:
            groups.append((route.slot, {route}))
    size = -(-len(groups) // slices)
    return [
        set().union(*(part for _, part in groups[at : at + size]))
        for at in range(0, len(groups), size)
    ]


def _parse_info(answer: Answer) -> _Info:
    if answer.status != 200:
        raise Garbled(rest.restconf_message(answer.status, answer.body))
    reported = rest.mapping(rest.parse_json(answer.body), "the answer")
    ports = rest.whole(reported, "portcount")
    first, last = (_edge(reported, key) for key in ("startfreq", "stopfreq"))
    if (
        not 1 <= ports <= wsp.LARGEST_PORT
        or not 0 < first < last <= first + wsp.MOST_ROWS * wsp.STEP_MHZ
    ):
        raise Garbled(f"{ports} ports from {first} to {last} MHz")
    egress = tuple(str(n) for n in range(1, ports + 1))
    identity = Identity(
        "Finisar",
        rest.text(reported, "model"),
        rest.text(reported, "sno"),
        rest.text(reported, "ver"),
        (COMMON,),
        egress,
    )
    return _Info(identity, first, last, ports)


def _edge(reply: Mapping[str, Json], key: str) -> int:
    """An edge of the range on the grid of 1 GHz; some devices say more digits than the grid has."""
    return round(rest.number(reply, key) * 1000) * wsp.STEP_MHZ
