"""Assigns a device (colour) to each link so that no host needs more ports at a device than it has
there: search and repair.

`Search` is exact: depth first, always at the link with the fewest devices left. `repair` is fast on
large, tight plans, where the search thrashes: it colours what it can, swaps colours along
alternating trails (Kempe chains) and recolours what is left.

The same as an integer program (scipy's `milp`, HiGHS) was measured and rejected: on random plans of
64 to 128 hosts most were solved in 0.02 to 0.07 s, but one took 10 s, and keeping live links as the
objective 5 to 19 s; the code here took 0.05 to 2 s. Importing scipy.optimize alone takes 0.6 s,
more than a plan of 12 hosts (0.01 s).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from optics import DeviceName, HostName, HostPort, LinkKind
from orchestrator.inventory.lab import Lab
from orchestrator.plan.dice import Dice

# moves per link before `repair` gives up; a random 4-regular graph of 128 hosts takes about 2
REPAIR_STEPS = 200


@dataclass(frozen=True, slots=True)
class Need:
    """One link still to be coloured. `roles`: what it needs at each end, `duplex`, `tx` or `rx`; ""
    where its port is named.
    """

    index: int
    a: HostName
    b: HostName
    kind: LinkKind
    devices: tuple[DeviceName, ...]
    roles: tuple[tuple[HostName, str], ...]


class Room:
    """Free transmitters and receivers of each host at each device. A duplex link needs both of one
    port.

    plane: for each device the first of those that count as one with it; without it each device
    counts separately.
    """

    def __init__(
        self,
        lab: Lab,
        avoid: Collection[HostPort] = (),
        plane: Mapping[DeviceName, DeviceName] | None = None,
    ) -> None:
        self.whole: dict[tuple[HostName, DeviceName], list[int]] = {}
        self.half: dict[tuple[HostName, DeviceName, str], list[int]] = {}
        self.taken: Counter[tuple[HostName, DeviceName, str]] = Counter()
        for port, fibre in lab.fibres.items():
            if port not in avoid:
                colour = plane[fibre.device] if plane is not None else fibre.device
                self.whole.setdefault((port.host, colour), []).append(port.number)

    def occupy(self, port: HostPort, device: DeviceName, roles: tuple[str, ...]) -> bool:
        """Take named sides of a named port; False if one is taken."""
        key = (port.host, device)
        if port.number in self.whole.get(key, ()):
            self.whole[key].remove(port.number)
            for other in {"tx", "rx"} - set(roles):
                self.half.setdefault((*key, other), []).append(port.number)
            return True
        if len(roles) == 1 and port.number in self.half.get((*key, roles[0]), ()):
            self.half[*key, roles[0]].remove(port.number)
            return True
        return False

    def over(self, host: HostName, device: DeviceName) -> bool:
        """Whether more is taken than there are ports."""
        return self._needed(host, device) > len(self.whole.get((host, device), ()))

    def _needed(self, host: HostName, device: DeviceName, role: str = "") -> int:
        """Whole ports needed for what is taken and one more `role`.

        Simplex ends that do not fit on half-used ports share whole ports, a transmitter with a
        receiver.
        """
        taken = self.taken
        lone = [
            max(
                0,
                taken[host, device, side]
                + (role == side)
                - len(self.half.get((host, device, side), ())),
            )
            for side in ("tx", "rx")
        ]
        return taken[host, device, "duplex"] + (role == "duplex") + max(lone)

    def fits(self, host: HostName, device: DeviceName, role: str) -> bool:
        """Whether there is room for one more `duplex`, `tx` or `rx`."""
        return self._needed(host, device, role) <= len(self.whole.get((host, device), ()))


class Search:
    """Depth-first search, always at the link with the fewest devices left; unused devices with
    equal free ports count as one.
    """

    def __init__(
        self,
        needs: Sequence[Need],
        room: Room,
        prefer: Mapping[int, DeviceName],
        step: int,
        limit: int,
    ) -> None:
        self.needs, self.room, self.prefer = needs, room, prefer
        self.step, self.limit = step, limit
        self.steps = 0
        self.gave_up = False
        self.chosen: dict[int, DeviceName] = {}
        self.uses: Counter[DeviceName] = Counter()
        self.at: dict[HostName, list[int]] = {}
        for place, need in enumerate(needs):
            for host in (need.a, need.b):
                self.at.setdefault(host, []).append(place)
        self.degree = [len(self.at[need.a]) + len(self.at[need.b]) for need in needs]
        self.kin = self._kin()
        self.options = [self._options(place) for place in range(len(needs))]

    def _kin(self) -> dict[DeviceName, object]:
        """Devices with equal values are interchangeable while unused: they have the same free ports
        and none is preferred.
        """
        devices = sorted({device for need in self.needs for device in need.devices})
        rooms = {
            device: (
                tuple(
                    sorted(
                        (host, len(numbers))
                        for (host, at), numbers in self.room.whole.items()
                        if at == device
                    )
                ),
                tuple(
                    sorted(
                        (host, side, len(numbers))
                        for (host, at, side), numbers in self.room.half.items()
                        if at == device
                    )
                ),
                tuple(place for place, need in enumerate(self.needs) if device in need.devices),
                device in self.prefer.values(),
            )
            for device in devices
        }
        preferred = set(self.prefer.values())
        return {device: (device if device in preferred else rooms[device]) for device in devices}

    def _options(self, place: int) -> list[DeviceName]:
        need = self.needs[place]
        return [
            d
            for d in need.devices
            if all(
                not role or self.room.fits(host, d, role) for host, role in self.needs[place].roles
            )
        ]

    def run(self) -> dict[int, DeviceName] | None:
        """Iterative, because the depth is the number of links."""
        if not self.needs:
            return {}
        if any(not options for options in self.options):
            return None
        stack: list[tuple[int, list[DeviceName]]] = []
        place = self._next()
        stack.append((place, self._values(place)))
        while stack:
            place, values = stack[-1]
            if place in self.chosen:
                self._undo(place)
            if not values:
                stack.pop()
                continue
            self.steps += 1
            if self.steps > self.limit:
                self.gave_up = True
                return None
            if not self._take(place, values.pop(0)):
                continue
            if len(self.chosen) == len(self.needs):
                return {self.needs[place].index: device for place, device in self.chosen.items()}
            following = self._next()
            stack.append((following, self._values(following)))
        return None

    def _next(self) -> int:
        count = len(self.needs)
        open_ = (place for place in range(count) if place not in self.chosen)
        return min(
            open_,
            key=lambda place: (
                len(self.options[place]),
                -self.degree[place],
                (place * (2 * self.step + 1)) % (count + 1),
            ),
        )

    def _values(self, place: int) -> list[DeviceName]:
        values: list[DeviceName] = []
        fresh: set[object] = set()
        liked = self.prefer.get(self.needs[place].index)
        for device in sorted(self.options[place], key=lambda device: device != liked):
            if not self.uses[device]:
                if self.kin[device] in fresh:
                    continue
                fresh.add(self.kin[device])
            values.append(device)
        return values

    def _take(self, place: int, device: DeviceName) -> bool:
        """Colour the link; False if that leaves another without a device (the caller must then undo
        it).
        """
        self.chosen[place] = device
        self.uses[device] += 1
        for host, role in self.needs[place].roles:
            if role:
                self.room.taken[host, device, role] += 1
        return self._refresh(place)

    def _undo(self, place: int) -> None:
        device = self.chosen.pop(place)
        self.uses[device] -= 1
        for host, role in self.needs[place].roles:
            if role:
                self.room.taken[host, device, role] -= 1
        self._refresh(place)

    def _refresh(self, place: int) -> bool:
        good = True
        for host in (self.needs[place].a, self.needs[place].b):
            for other in self.at[host]:
                if other not in self.chosen:
                    self.options[other] = self._options(other)
                    good &= bool(self.options[other])
        return good


class _Repair:
    def __init__(self, needs: Sequence[Need], room: Room) -> None:
        self.needs, self.room = needs, room
        self.colour: dict[int, DeviceName] = {}
        self.at: dict[HostName, list[int]] = {}
        for place, need in enumerate(needs):
            for host, role in need.roles:
                if role:
                    self.at.setdefault(host, []).append(place)
        self.dice = Dice()

    def set(self, place: int, device: DeviceName | None) -> None:
        old = self.colour.pop(place, None)
        for host, role in self.needs[place].roles:
            if role and old is not None:
                self.room.taken[host, old, role] -= 1
            if role and device is not None:
                self.room.taken[host, device, role] += 1
        if device is not None:
            self.colour[place] = device

    def fits(self, place: int, device: DeviceName) -> bool:
        return all(
            not role or self.room.fits(host, device, role) for host, role in self.needs[place].roles
        )

    def run(self, prefer: Mapping[int, DeviceName]) -> bool:
        open_ = list(range(len(self.needs)))[::-1]
        for _ in range(REPAIR_STEPS * len(self.needs)):
            if not open_:
                return True
            place = open_.pop()
            liked = prefer.get(self.needs[place].index)
            direct = [device for device in self.needs[place].devices if self.fits(place, device)]
            if direct:
                self.set(place, liked if liked in direct else direct[0])
            elif not any(self.chain(place, first, second) for first, second in self._pairs(place)):
                open_ = [*open_[: len(open_) // 2], *self.perturb(place), *open_[len(open_) // 2 :]]
        return not open_

    def _pairs(self, place: int) -> Iterator[tuple[DeviceName, DeviceName]]:
        devices = self.needs[place].devices
        return ((first, second) for first in devices for second in devices if first != second)

    def chain(self, place: int, first: DeviceName, second: DeviceName) -> bool:
        """Colour the link `first`; swap `first` and `second` along the links that conflict. False:
        nothing changed.
        """
        before: list[tuple[int, DeviceName | None]] = [(place, None)]
        self.set(place, first)
        swapped = {place}
        crowded = [(host, first) for host, role in self.needs[place].roles if role]
        while crowded:
            host, device = crowded.pop()
            if not self.room.over(host, device):
                continue
            other = second if device == first else first
            movable = (
                p
                for p in self.at[host]
                if self.colour.get(p) == device
                and p not in swapped
                and other in self.needs[p].devices
            )
            moved = next(movable, None)
            if moved is None:
                for undone, colour in reversed(before):
                    self.set(undone, colour)
                return False
            before.append((moved, device))
            swapped.add(moved)
            self.set(moved, other)
            crowded += [(end, other) for end, role in self.needs[moved].roles if role]
            crowded.append((host, device))
        return True

    def perturb(self, place: int) -> list[int]:
        """Colour the link, taking ports from others; return the links that lost their colour."""
        devices = self.needs[place].devices
        device = devices[self.dice.pick(len(devices))]
        self.set(place, device)
        lost = []
        for host, role in self.needs[place].roles:
            while role and self.room.over(host, device):
                others = [p for p in self.at[host] if self.colour.get(p) == device and p != place]
                if not others:
                    break
                out = others[self.dice.pick(len(others))]
                self.set(out, None)
                lost.append(out)
        if any(role and self.room.over(host, device) for host, role in self.needs[place].roles):
            self.set(place, None)
            lost.append(place)
        return lost


def repair(
    needs: Sequence[Need], room: Room, prefer: Mapping[int, DeviceName]
) -> dict[int, DeviceName] | None:
    """A device for each link by index, or None if none was found; it never proves that there is
    none.
    """
    if any(not need.devices for need in needs):
        return None
    state = _Repair(needs, room)
    if not state.run(prefer):
        return None
    return {needs[place].index: device for place, device in state.colour.items()}
