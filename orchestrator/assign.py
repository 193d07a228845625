"""Chooses ports for links between bare hosts: an exact, bounded edge colouring whose colours are devices.

A link needs a device at which both its hosts have a free port. Which of a host's ports at that device it takes does not matter
for the others, so the search is over devices; ports follow. Links that are already live keep their ports where that is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from optics import DeviceName, HostName, HostPort, Infeasible, Link, LinkKind
from orchestrator.lab import Lab
from orchestrator.plan import WantedLink, host_of

SEARCH_STEPS = 20_000  # devices tried per search before it restarts or gives up; a 64-host torus takes 128
RESTARTS = 8
MAX_RELEASED = 2  # live links given up together in the exact search for the most that can stay


def assign_ports(links: Iterable[WantedLink | Link], lab: Lab, live: Collection[Link] = ()) -> tuple[Link, ...]:
    """The links with every port chosen, in the order given.

    Named ports stay as named; of the `live` links (see `circuits.live_links`) as many as possible are kept in place.
    Raises: Infeasible - no choice exists, naming the condition that fails; or none was found within the bounded search.
    """
    wanted = [link if isinstance(link, WantedLink) else WantedLink(link.a, link.b, link.kind) for link in links]
    problem = _Problem(wanted, lab)
    pins = problem.pins(live)
    for released in range(min(MAX_RELEASED, len(pins)) + 1):
        for dropped in combinations(sorted(pins), released):
            kept = {index: pin for index, pin in pins.items() if index not in dropped}
            if problem.contradiction(kept) is None:
                found = problem.search(kept, {})
                if found is not None:
                    return found
            if released == 2 and len(pins) > 24:
                break  # a quadratic number of searches is not worth one more kept link
    why = problem.contradiction({})
    if why is not None:
        raise Infeasible(why, hint="name fewer links, or more ports and fibres in the inventory")
    found = problem.search({}, {index: lab.fibres[pin.a].device for index, pin in pins.items()})
    if found is not None:
        return found
    raise Infeasible(
        problem.verdict(), hint="name the ports in the plan (gpu01:p1) where you know a colouring, or take links out of the plan"
    )


@dataclass(frozen=True, slots=True)
class _Need:
    """One bare link still to be coloured. An end that names its port allows only that port's device and is free there."""

    index: int
    a: HostName
    b: HostName
    kind: LinkKind
    devices: tuple[DeviceName, ...]


class _Room:
    """Free transmitters and receivers of each host at each device. A duplex link needs both of one port."""

    def __init__(self, lab: Lab) -> None:
        self.whole: dict[tuple[HostName, DeviceName], list[int]] = {}
        self.half: dict[tuple[HostName, DeviceName, str], list[int]] = {}
        self.taken: Counter[tuple[HostName, DeviceName, str]] = Counter()
        for port, fibre in lab.fibres.items():
            self.whole.setdefault((port.host, fibre.device), []).append(port.number)

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

    def fits(self, host: HostName, device: DeviceName, role: str) -> bool:
        """There is room for one more `duplex`, `tx` or `rx` beside what is taken."""
        taken, key = self.taken, (host, device)
        duplex = taken[*key, "duplex"] + (role == "duplex")
        lone = [
            max(0, taken[*key, side] + (role == side) - len(self.half.get((*key, side), ()))) for side in ("tx", "rx")
        ]  # simplex ends that half-used ports cannot take share whole ports, a sender beside a receiver
        return duplex + max(lone) <= len(self.whole.get(key, ()))


class _Problem:
    def __init__(self, wanted: Sequence[WantedLink], lab: Lab) -> None:
        self.wanted, self.lab = wanted, lab
        self.exhausted = False  # the last search looked at every possibility

    def pins(self, live: Collection[Link]) -> dict[int, Link]:
        """For each wanted link with a bare end, a live link between the same hosts that could stay as it is."""
        named: set[HostPort] = {
            end
            for link in self.wanted
            for end in (link.a, link.b)
            if isinstance(link.a, HostPort) and isinstance(link.b, HostPort)
            if isinstance(end, HostPort)
        }
        free = [link for link in sorted(live) if link.a not in named and link.b not in named]
        pins: dict[int, Link] = {}
        for index, link in enumerate(self.wanted):
            if isinstance(link.a, HostPort) and isinstance(link.b, HostPort):
                continue
            for candidate in free:
                turned = Link(candidate.b, candidate.a, candidate.kind)
                match = next((way for way in (candidate, turned) if _fits(link, way)), None)
                if match is not None and (match is candidate or candidate.kind is LinkKind.DUPLEX):
                    pins[index] = match
                    free.remove(candidate)
                    break
        return pins

    def room(self, pins: dict[int, Link]) -> tuple[_Room | None, str]:
        """Free ports after the named ports and the pins are taken, or which port is wanted twice."""
        room = _Room(self.lab)
        for index, link in enumerate(self.wanted):
            at = pins.get(index)
            duplex = link.kind is LinkKind.DUPLEX
            for end, role in ((at.a if at else link.a, "tx"), (at.b if at else link.b, "rx")):
                if not isinstance(end, HostPort):
                    continue
                if end not in self.lab.fibres:
                    return None, f"{link}: no fibre is attached to {end}"
                device = self.lab.fibres[end].device
                if not room.occupy(end, device, ("tx", "rx") if duplex else (role,)):
                    return None, f"{link}: port {end} is in two links"
        return room, ""

    def needs(self, pins: dict[int, Link]) -> list[_Need]:
        found = []
        at: dict[HostName, set[DeviceName]] = {}
        for port, fibre in self.lab.fibres.items():
            at.setdefault(port.host, set()).add(fibre.device)
        order = {device: place for place, device in enumerate(self.lab.devices)}
        for index, link in enumerate(self.wanted):
            if index in pins or (isinstance(link.a, HostPort) and isinstance(link.b, HostPort)):
                continue
            sets = [{self.lab.fibres[end].device} if isinstance(end, HostPort) else at.get(end, set()) for end in (link.a, link.b)]
            devices = tuple(sorted(sets[0] & sets[1], key=lambda device: order.get(device, 0)))
            found.append(_Need(index, host_of(link.a), host_of(link.b), link.kind, devices))
        return found

    def contradiction(self, pins: dict[int, Link]) -> str | None:
        """A condition that every assignment must meet and none can, in words; None if no such condition fails."""
        room, why = self.room(pins)
        if room is None:
            return why
        needs = self.needs(pins)
        for need in needs:
            if not need.devices:
                return f"{self.wanted[need.index]}: no device has a fibre from both {need.a} and {need.b}"
        load: Counter[HostName] = Counter()
        for need in needs:
            for host, end in ((need.a, self.wanted[need.index].a), (need.b, self.wanted[need.index].b)):
                load[host] += need.kind is LinkKind.DUPLEX and not isinstance(end, HostPort)
        ports: Counter[HostName] = Counter()
        for (host, _), numbers in room.whole.items():
            ports[host] += len(numbers)
        for host, links in load.items():
            if links > ports[host]:
                return f"{host} needs {links} more ports for links without named ports, {ports[host]} are free"
        return self._parity(room, needs)

    def _parity(self, room: _Room, needs: list[_Need]) -> str | None:
        """A device joins ports in pairs, so among an odd number of hosts one port of each plane stays alone."""
        whole = [need for need in needs if need.kind is LinkKind.DUPLEX]
        named = {
            end.host
            for need in needs
            for end in (self.wanted[need.index].a, self.wanted[need.index].b)
            if isinstance(end, HostPort)
        }
        for hosts in _components(whole):
            inside = [need for need in whole if need.a in hosts]
            if hosts & named:
                continue
            carries, used = 0, sorted({device for need in inside for device in need.devices})
            for device in used:
                carries += sum(len(room.whole.get((host, device), ())) for host in hosts) // 2
            if len(inside) > carries:
                return (
                    f"{len(hosts)} hosts ({min(hosts)}, ...) want {len(inside)} links, but the free ports at {', '.join(used)} "
                    f"pair up to {carries} at most"
                )
        return None

    def search(self, pins: dict[int, Link], prefer: dict[int, DeviceName]) -> tuple[Link, ...] | None:
        """An assignment that respects the pins, or None; `exhausted` then says whether there is truly none."""
        needs = self.needs(pins)
        self.exhausted = False
        for restart in range(RESTARTS):
            room, _ = self.room(pins)
            if room is None:
                self.exhausted = True
                return None
            colouring = _Colouring(needs, self.wanted, room, prefer, restart)
            found = colouring.run()
            if found is not None:
                return self._ports(pins, needs, found)
            if not colouring.gave_up:
                self.exhausted = True
                return None
        return None

    def verdict(self) -> str:
        count = sum(not (isinstance(link.a, HostPort) and isinstance(link.b, HostPort)) for link in self.wanted)
        if self.exhausted:
            return f"no choice of ports carries these {count} links: every colouring of them by device was tried"
        return f"found no choice of ports for these {count} links within {RESTARTS} searches of {SEARCH_STEPS} steps"

    def _ports(self, pins: dict[int, Link], needs: list[_Need], devices: dict[int, DeviceName]) -> tuple[Link, ...]:
        room, _ = self.room(pins)
        assert room is not None  # the search that chose the devices had it
        ends: dict[tuple[int, int], HostPort] = {}
        for duplex in (True, False):  # simplex ends share whole ports, so they go last
            for need in needs:
                if (need.kind is LinkKind.DUPLEX) is not duplex:
                    continue
                link, device = self.wanted[need.index], devices[need.index]
                for side, (end, role) in enumerate(((link.a, "tx"), (link.b, "rx"))):
                    if isinstance(end, HostPort):
                        ends[need.index, side] = end
                        continue
                    key = (end, device)
                    if duplex:
                        number = room.whole[key].pop(0)
                    elif room.half.get((*key, role)):
                        number = room.half[*key, role].pop(0)
                    else:
                        number = room.whole[key].pop(0)
                        room.half.setdefault((*key, "rx" if role == "tx" else "tx"), []).append(number)
                    ends[need.index, side] = HostPort(end, number)
        result = []
        for index, link in enumerate(self.wanted):
            if index in pins:
                result.append(pins[index])
            else:
                a, b = ends.get((index, 0), link.a), ends.get((index, 1), link.b)
                assert isinstance(a, HostPort) and isinstance(b, HostPort)  # a link is named, pinned or coloured
                result.append(Link(a, b, link.kind))
        return tuple(result)


class _Colouring:
    """Depth-first search, always at the link with the fewest devices left; untouched devices that look alike count as one."""

    def __init__(
        self, needs: list[_Need], wanted: Sequence[WantedLink], room: _Room, prefer: dict[int, DeviceName], turn: int
    ) -> None:
        self.needs, self.room, self.prefer = needs, room, prefer
        self.roles = [
            (
                (need.a, "" if isinstance(wanted[need.index].a, HostPort) else "duplex" if need.kind is LinkKind.DUPLEX else "tx"),
                (need.b, "" if isinstance(wanted[need.index].b, HostPort) else "duplex" if need.kind is LinkKind.DUPLEX else "rx"),
            )
            for need in needs
        ]
        self.turn = turn
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
        """Devices with equal values are interchangeable while unused: the same free ports at every host, wanted by no one more."""
        devices = sorted({device for need in self.needs for device in need.devices})
        rooms = {
            device: (
                tuple(sorted((host, len(numbers)) for (host, at), numbers in self.room.whole.items() if at == device)),
                tuple(sorted((host, side, len(numbers)) for (host, at, side), numbers in self.room.half.items() if at == device)),
                tuple(place for place, need in enumerate(self.needs) if device in need.devices),
                device in self.prefer.values(),
            )
            for device in devices
        }
        preferred = set(self.prefer.values())
        return {device: (device if device in preferred else rooms[device]) for device in devices}

    def _options(self, place: int) -> list[DeviceName]:
        need = self.needs[place]
        return [d for d in need.devices if all(not role or self.room.fits(host, d, role) for host, role in self.roles[place])]

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
            if self.steps > SEARCH_STEPS:
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
            open_, key=lambda place: (len(self.options[place]), -self.degree[place], (place * (2 * self.turn + 1)) % (count + 1))
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
        """Colour the link; False if that leaves another without a device (the colour is then still to be undone)."""
        self.chosen[place] = device
        self.uses[device] += 1
        for host, role in self.roles[place]:
            if role:
                self.room.taken[host, device, role] += 1
        return self._refresh(place)

    def _undo(self, place: int) -> None:
        device = self.chosen.pop(place)
        self.uses[device] -= 1
        for host, role in self.roles[place]:
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


def _fits(wanted: WantedLink, way: Link) -> bool:
    """`way` is a link that `wanted`, with a bare end, would accept."""
    return way.kind is wanted.kind and all(
        asked == got if isinstance(asked, HostPort) else asked == got.host for asked, got in ((wanted.a, way.a), (wanted.b, way.b))
    )


def _components(needs: list[_Need]) -> list[set[HostName]]:
    beside: dict[HostName, set[HostName]] = {}
    for need in needs:
        beside.setdefault(need.a, set()).add(need.b)
        beside.setdefault(need.b, set()).add(need.a)
    found: list[set[HostName]] = []
    left = set(beside)
    while left:
        open_ = [min(left)]
        group = set(open_)
        while open_:
            fresh = beside[open_.pop()] - group
            group |= fresh
            open_ += sorted(fresh)
        left -= group
        found.append(group)
    return found
