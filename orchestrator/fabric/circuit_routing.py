"""The path of each circuit: fewest devices, then least loss; no port and no spectrum used twice.
Pure.

A circuit over one device, the common case, needs no search. Over trunks each circuit is routed
separately; circuits that then contend for a port or for spectrum are removed and routed again at a
rising cost of what they contend for (negotiated congestion, as in McMurchie and Ebeling's
PathFinder, FPGA 1995), so that parallel trunks are shared whatever the order of the plan. Circuits
that are already lit are moved only if there is no other solution. On a device that needs a second
or more for each move, paths with few moves are preferred, and moves that interrupt no light, so
that light takes the prewired paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from optics import Circuit, CrossConnect, HostPort, Infeasible, Port, Setting, SpectralRoute, clash
from orchestrator.fabric.lightpath import MAX_PASSES, Held, LightMap, lit, loss_db
from orchestrator.fabric.transition import per_device
from orchestrator.inventory.lab import Lab

ROUNDS = 40
"""Rounds of negotiation before the search gives up; every fabric tried settles within a handful."""
FOREIGN = 1_000_000
"""Cost of a port that a foreign circuit uses: any path around it is cheaper."""
DARK_MOVES = 1_000
"""Cost, in moves, of taking a port on a slow device that carries light."""

Ends: TypeAlias = tuple[HostPort, HostPort]
Side: TypeAlias = tuple[str, Port]


def circuit(transmitter: HostPort, receiver: HostPort, lab: Lab) -> Circuit:
    """The light path between two ports of an otherwise empty lab, and its expected loss. Raises:
    Infeasible.
    """
    return route([(transmitter, receiver)], lab)[0]


def route(
    wanted: Sequence[Ends], lab: Lab, live: Held | None = None, foreign: Held | None = None
) -> tuple[Circuit, ...]:
    """A path for each transmitter and receiver, in the order given.

    live: what the devices hold; circuits that are lit keep their paths if the others can be routed
    around them. foreign: settings this tenancy does not own, whose ports are avoided where there is
    another path (the transition refuses the rest by name). Raises: Infeasible - a circuit has no
    path, or two contend for a port or for spectrum and no other path was found.
    """
    live_paths = (
        {(t.transmitter, t.receiver): t.path for t in LightMap(live or {}, lab).traces()}
        if lab.trunks
        else {}
    )
    paths = [live_paths.get(ends) or direct(ends, lab) for ends in wanted]
    searched = [index for index, path in enumerate(paths) if path is None]
    lasting = [index for index, ends in enumerate(wanted) if ends in live_paths]
    if searched:
        for movable in (searched, searched + lasting):
            negotiation = _Negotiation(wanted, lab, foreign or {}, live or {})
            for index, path in enumerate(paths):
                if path is not None:
                    negotiation.take(index, path)
            for index in searched:
                negotiation.take(index, negotiation.search(index))
            if negotiation.settle(movable):
                break
        paths = [negotiation.paths[index] for index in range(len(wanted))]
    found = tuple(
        Circuit(*ends, path, loss_db(*ends, path, lab))
        for ends, path in zip(wanted, paths, strict=True)
        if path is not None
    )
    _alone(found, lab)
    return found


def direct(ends: Ends, lab: Lab) -> tuple[Setting, ...] | None:
    """The one setting that connects two ports of one device, None if light must pass several
    settings.

    Raises: Infeasible - a port has no fibre; no path connects the two; the transmitter's slot is
    not known.
    """
    transmitter, receiver = ends
    for port in ends:
        if port not in lab.fibres:
            raise Infeasible(f"{transmitter}->{receiver}: no fibre is attached to {port}")
    sends, receives = lab.fibres[transmitter], lab.fibres[receiver]
    if sends.device == receives.device and lab.traits_of(sends.device).joins(
        sends.enters.label, receives.leaves.label
    ):
        return (_setting(ends, sends.enters, receives.leaves, lab),)
    if not lab.trunks:
        if sends.device != receives.device:
            where = f"{transmitter} is on {sends.device}, {receiver} is on {receives.device}"
        else:
            where = f"{sends.device} cannot connect {sends.enters.label} to {receives.leaves.label}"
        raise Infeasible(f"{transmitter}->{receiver}: no fibre path: {where}")
    return None


def _setting(ends: Ends, ingress: Port, egress: Port, lab: Lab) -> Setting:
    if not lab.traits_of(ingress.device).spectral:
        return CrossConnect(ingress, egress)
    transmitter, receiver = ends
    fibre = lab.fibres[transmitter]
    if fibre.slot is None:
        raise Infeasible(
            f"{transmitter}->{receiver}: {ingress.device} switches by wavelength, and fibre {fibre.name} has no slot",
            hint=f"add the slot to fibre {fibre.name} in fibres.yml: slot: {{n: -280, m: 4}}",
        )
    return SpectralRoute(ingress, egress, fibre.slot)


class _Negotiation:
    def __init__(self, wanted: Sequence[Ends], lab: Lab, foreign: Held, live: Held) -> None:
        self.wanted, self.lab = wanted, lab
        self.slow = frozenset(device for device in lab.devices if lab.slow(device))
        self.present = frozenset(
            setting for device in self.slow for setting in live.get(device, ())
        )
        self.plugged: dict[Side, list[Setting]] = {}
        for setting in self.present:
            for side in _sides(setting):
                self.plugged.setdefault(side, []).append(setting)
        self.lit = lit(live, lab) if self.present else frozenset()
        self.paths: dict[int, tuple[Setting, ...]] = {}
        self.users: dict[Side, dict[Setting, set[int]]] = {}
        self.others: dict[Side, list[Setting]] = {}
        self.history: Counter[Side] = Counter()
        self.step = 1
        for settings in foreign.values():
            for setting in settings:
                for side in _sides(setting):
                    self.others.setdefault(side, []).append(setting)

    def take(self, index: int, path: tuple[Setting, ...]) -> None:
        self.paths[index] = path
        for setting in path:
            for side in _sides(setting):
                self.users.setdefault(side, {}).setdefault(setting, set()).add(index)

    def give_up(self, index: int) -> None:
        for setting in self.paths.pop(index):
            for side in _sides(setting):
                users = self.users[side][setting]
                users.discard(index)
                if not users:
                    del self.users[side][setting]

    def contenders(self, setting: Setting, index: int) -> set[int]:
        """The circuits whose settings clash with this one."""
        return {
            user
            for side in _sides(setting)
            for other, users in self.users.get(side, {}).items()
            if clash(setting, other) is not None
            for user in users
            if user != index
        }

    def cost(self, setting: Setting, index: int) -> int:
        cost = self.step * len(self.contenders(setting, index))
        for side in _sides(setting):
            if cost:
                cost += self.history[side]
            cost += FOREIGN * sum(
                clash(setting, other) is not None for other in self.others.get(side, ())
            )
        return cost

    def moves(self, setting: Setting) -> int:
        """Moves a slow device makes for the setting; 0 if it holds the setting already, or is a
        fast device.
        """
        if setting.ingress.device not in self.slow or setting in self.present:
            return 0
        held = {
            other
            for side in _sides(setting)
            for other in self.plugged.get(side, ())
            if clash(setting, other) is not None
        }
        return 1 + sum(1 + DARK_MOVES * (other in self.lit) for other in held)

    def search(self, index: int) -> tuple[Setting, ...]:
        """The cheapest path now: least contention, fewest slow moves, fewest devices, least loss
        (Dijkstra over ingress ports).
        """
        ends, lab = self.wanted[index], self.lab
        start, goal = lab.fibres[ends[0]].enters, lab.fibres[ends[1]].leaves
        open_: list[tuple[int, int, int, float, tuple[str, ...], Port, tuple[Setting, ...]]] = [
            (0, 0, 0, 0.0, (), start, ())
        ]
        settled: set[Port] = set()
        missing: Infeasible | None = None
        while open_:
            cost, moves, passes, loss, names, at, path = heappop(open_)
            if path and path[-1].egress == goal:
                return path
            if at in settled or passes >= MAX_PASSES:
                continue
            settled.add(at)
            traits = lab.traits_of(at.device)
            exits = [(goal, goal, 0.0, "")] if at.device == goal.device else []
            exits += [(t.start, t.end, t.loss_db, t.name) for t in lab.leaving.get(at.device, ())]
            for egress, following, more, name in exits:
                if not traits.joins(at.label, egress.label) or (
                    following in settled and egress != goal
                ):
                    continue
                try:
                    setting = _setting(ends, at, egress, lab)
                except Infeasible as error:
                    missing = error
                    continue
                dear = (cost + self.cost(setting, index), moves + self.moves(setting))
                heappush(
                    open_,
                    (
                        *dear,
                        passes + 1,
                        loss + traits.insertion_loss_db + more,
                        (*names, name),
                        following,
                        (*path, setting),
                    ),
                )
        if missing is not None:
            raise missing
        where = f"no trunks lead from {start} to {goal}"
        raise Infeasible(
            f"{ends[0]}->{ends[1]}: no fibre path: {where}", hint="fibres.yml lists the trunks"
        )

    def settle(self, movable: Sequence[int]) -> bool:
        """Route contending circuits again until none contend (True) or the rounds are used up
        (False).
        """
        for self.step in range(2, ROUNDS + 2):
            fighting = [
                index
                for index in movable
                if any(self.contenders(s, index) for s in self.paths[index])
            ]
            if not fighting:
                return True
            for index in fighting:
                for setting in self.paths[index]:
                    if self.contenders(setting, index):
                        self.history.update(_sides(setting))
            for index in fighting:
                if any(self.contenders(setting, index) for setting in self.paths[index]):
                    self.give_up(index)
                    self.take(index, self.search(index))
        return False


def _sides(setting: Setting) -> tuple[Side, Side]:
    return ("in", setting.ingress), ("out", setting.egress)


def _alone(found: Sequence[Circuit], lab: Lab) -> None:
    """Check that no two circuits need the same port, or overlapping spectrum of it, and that none
    receives another's light.

    Raises: Infeasible - naming circuits, port and slots.
    """
    users: dict[Side, dict[Setting, Circuit]] = {}
    for circuit in found:
        for setting in circuit.path:
            for side in _sides(setting):
                for other, user in users.setdefault(side, {}).items():
                    if user is not circuit and clash(setting, other) is not None:
                        raise Infeasible(_contention(user, other, circuit, setting, side[1], lab))
                users[side].setdefault(setting, circuit)
    if lab.coupled:
        _strays(found, lab)


def _contention(
    one: Circuit, first: Setting, other: Circuit, second: Setting, port: Port, lab: Lab
) -> str:
    trunk = lab.onward.get(port) or next((t for t in lab.trunks if t.end == port), None)
    over = f" (trunk {trunk.name})" if trunk is not None else ""
    if isinstance(first, SpectralRoute) and isinstance(second, SpectralRoute):
        return f"{one} and {other} overlap at {port}{over}: {first.slot} and {second.slot}"
    return f"{one} and {other} both need {port}{over}"


def _strays(found: Sequence[Circuit], lab: Lab) -> None:
    """Behind a coupler an ordinary cross-connect carries the light of all its fibres: no receiver
    may get two transmitters.
    """
    planned = {circuit.transmitter: circuit for circuit in found}
    by_receiver = {circuit.receiver: circuit for circuit in found}
    held = per_device(setting for circuit in found for setting in circuit.path)
    for trace in LightMap(held, lab).traces():
        if (
            trace.receiver is None
            or (own := by_receiver.get(trace.receiver)) is None
            or own.transmitter == trace.transmitter
        ):
            continue
        shared = next((setting for setting in trace.path if setting in own.path), trace.path[0])
        user = f", which {planned[trace.transmitter]} uses" if trace.transmitter in planned else ""
        raise Infeasible(
            f"{own}: {trace.receiver} would also receive light from {trace.transmitter}: both pass {shared}{user}"
        )
