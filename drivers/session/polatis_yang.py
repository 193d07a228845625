"""Polatis switches over their data model: what RESTCONF and NETCONF share. A driver defines how the
model is read and written.

Attenuators have a mode, a level and a reference port (public NETCONF clients). Modes ABSOLUTE and
CONVERGED hold a power (a public controller sets its target power by ABSOLUTE), so neither is an
attenuation. The one that is used here is RELATIVE, taken to hold the output `atten-level` dB below
the reference port, here the port where the light enters: assumed, as over TL1. So the level is the
attenuation and the circuit's own loss, which the meters show while the attenuator is open; until
they did, the typical loss is taken. Two meters may differ by 2 dB, so the result is checked with
the output's own meter, before against after, and the level is corrected once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from drivers.session.pairs import Pair, PairSwitch, port_number
from drivers.watch import patience_option, watch
from drivers.wire import polatis
from drivers.wire.polatis import FLOOR_DBM, MOST_DB
from optics import Db, Dbm, DeviceConfig, Identity, Port, PortState, Refused, Traits

OFF, RELATIVE = "VOA_MODE_NONE", "VOA_MODE_RELATIVE"
CLOSE_DB = 0.2
"""Nearer than this an attenuation is left as it is: repeatability of the family is +-0.1 dB (H+S
data sheet).
"""


@dataclass(frozen=True, slots=True)
class Voa:
    """One attenuator; level (dB, dBm where the mode holds a power) and reference port where the
    mode has them.
    """

    mode: str
    level: float | None = None
    reference: int = 0


class PolatisYang(PairSwitch):
    """A Polatis switch. Its ports are numbers: 1..N light enters, N+1..N+M light leaves."""

    TRAITS: ClassVar[Traits] = polatis.TRAITS
    PATIENCE_S: ClassVar[float] = polatis.PATIENCE_S
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "size": "ingress and egress ports as `16x16`, where the model name does not say; default what it says",
        "patience_s": patience_option(PATIENCE_S),
    }
    _configured = True

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._losses: dict[Pair, Db] = {}  # of circuits, as measured with their attenuators open
        self._size = config.options.get("size", "")
        if self._size:
            polatis.size(self._size)

    @abstractmethod
    async def _attenuators(self) -> dict[int, Voa]:
        """Every attenuator by its port; empty if the switch has none."""

    @abstractmethod
    async def _set_attenuators(self, wanted: Mapping[int, Voa]) -> None:
        """Write them. Raises: Refused."""

    @abstractmethod
    async def _meters(self) -> dict[int, Dbm]:
        """The meters' readings, the floor included, by port."""

    @abstractmethod
    async def _states(self) -> dict[int, str]:
        """The state of every port, as the device reports it."""

    @abstractmethod
    async def _set_ports(self, numbers: list[int], enabled: bool) -> None:
        """Open or shut ports. Raises: Refused."""

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        wanted = self._numbers(ports)
        async with self._lock:
            return {wanted[n]: level for n, level in (await self._levels()).items() if n in wanted}

    async def port_states(self, ports: Iterable[Port]) -> Mapping[Port, PortState]:
        async with self._lock:
            return await self._port_states(self._numbers(ports))

    async def set_ports(self, ports: Iterable[Port], *, enabled: bool) -> Mapping[Port, PortState]:
        wanted = self._own(ports)
        async with self._lock:
            await self._set_ports(sorted(wanted), enabled)
            return await self._port_states(wanted)

    def _identity(self, vendor: str, model: str, serial: str, firmware: str) -> Identity:
        """The identity of a switch of this model. Raises: Garbled - its size is not known."""
        enter, leave = polatis.size(self._size or model)
        ports = tuple(str(n) for n in range(1, enter + leave + 1))
        return Identity(vendor, model, serial, firmware, ports[:enter], ports[enter:])

    async def _port_states(self, wanted: Mapping[int, Port]) -> dict[Port, PortState]:
        states = await self._states()
        return {port: polatis.port_state(states[n]) for n, port in wanted.items() if n in states}

    async def _levels(self) -> dict[int, Dbm]:
        """The meters' readings, by port; dark ports are absent."""
        return {n: level for n, level in (await self._meters()).items() if level > FLOOR_DBM}

    async def attenuation(self, ports: Iterable[Port]) -> Mapping[Port, Db]:
        """As the protocol says; a port whose attenuator holds a power instead is absent."""
        async with self._lock:
            return self._notified(
                self._numbers(ports), await self._attenuators(), await self._read()
            )

    async def attenuate(self, levels: Mapping[Port, Db]) -> Mapping[Port, Db]:
        wanted = self._own(levels)
        async with self._lock:
            held, pairs = await self._attenuators(), await self._read()
            source = {b: a for a, b in pairs}
            for port, level in levels.items():
                number = port_number(port.label)
                if number is None or number not in held:
                    raise Refused(f"{port}: there is no attenuator at this port")
                if not 0 <= level <= MOST_DB:
                    raise Refused(f"{port}: {level} dB is not between 0 and {MOST_DB}")
                if level and number not in source:
                    raise Refused(
                        f"{port}: no circuit ends here; attenuation is relative to the port where light enters"
                    )
            read = await self._levels()
            for n in wanted.keys() & source.keys():
                if held[n].mode == OFF and n in read and source[n] in read:
                    self._losses[source[n], n] = max(0.0, round(read[source[n]] - read[n], 2))
            depths = {n: levels[port] for n, port in wanted.items()}
            await self._set_attenuators(
                {n: self._voa_of(n, depth, source) for n, depth in depths.items()}
            )
            bright = {
                n: read[n]
                for n, depth in depths.items()
                if depth and held[n].mode == OFF and n in read
            }
            if wrong := await self._astray(bright, depths):
                for n, too_much in wrong.items():
                    self._losses[source[n], n] = self._loss((source[n], n)) - too_much
                await self._set_attenuators({n: self._voa_of(n, depths[n], source) for n in wrong})
            return self._notified(wanted, await self._attenuators(), pairs)

    def _voa_of(self, n: int, depth: Db, source: Mapping[int, int]) -> Voa:
        return (
            Voa(RELATIVE, round(depth + self._loss((source[n], n)), 2), source[n])
            if depth
            else Voa(OFF)
        )

    async def _astray(self, bright: Mapping[int, float], depths: Mapping[int, Db]) -> dict[int, Db]:
        """By how much (dB) more than intended the power fell at ports that were `bright` and are
        still lit.
        """

        def wrong(now: Mapping[int, float]) -> dict[int, Db]:
            off = {
                n: round(before - now[n] - depths[n], 2) for n, before in bright.items() if n in now
            }
            return {n: too_much for n, too_much in off.items() if abs(too_much) > CLOSE_DB}

        if not bright:
            return {}
        settle_s = self.traits.settle_s
        seen = await watch(
            self._levels,
            lambda now: not wrong(now),
            expected_s=settle_s,
            patience_s=2 * settle_s,
            extends=False,
        )
        return wrong(seen.report)

    def _notified(
        self, wanted: Mapping[int, Port], held: Mapping[int, Voa], pairs: Iterable[Pair]
    ) -> dict[Port, Db]:
        source = {b: a for a, b in pairs}
        found: dict[Port, Db] = {}
        for n, port in wanted.items():
            if n not in held:
                continue
            voa = held[n]
            if voa.mode == OFF:
                found[port] = 0.0
            elif voa.mode == RELATIVE and voa.level is not None:
                found[port] = max(
                    0.0, round(voa.level - self._loss((source.get(n, voa.reference), n)), 2)
                )
        return found

    def _loss(self, pair: Pair) -> Db:
        return self._losses.get(pair, self.traits.insertion_loss_db)
