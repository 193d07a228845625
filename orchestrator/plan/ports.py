"""Chooses ports for links between bare hosts: an exact, bounded edge colouring whose colours are
devices.

A link needs a device at which both its hosts have a free port. Which of a host's ports at that
device it takes does not matter for the others, so the search is over devices; ports follow. Links
that are already live keep their ports if possible. If that finds nothing and trunks join devices,
devices joined by trunks count as one; `routing` then assigns the trunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from optics import DeviceName, HostName, HostPort, Infeasible, Link, LinkKind
from optics.plan import WantedLink, host_of
from orchestrator.inventory.lab import Lab
from orchestrator.plan.colouring import Need, Room, Search, repair

# steps of the exact search before the repair heuristic gets its turn; 12 hosts take about 30
FIRST_STEPS = 2_000
SEARCH_STEPS = 20_000  # steps of each exact search after it
RESTARTS = 4
# links coloured again and again, at most, to keep more live links: 160 tries on 12 hosts, 0.5 s
KEEPING_EFFORT = 4_000


def assign_ports(
    links: Iterable[WantedLink | Link],
    lab: Lab,
    live: Collection[Link] = (),
    avoid: Collection[HostPort] = (),
) -> tuple[Link, ...]:
    """The links with every port chosen, in the order given.

    Named ports stay as named; of the `live` links (see `circuits.live_links`) as many as possible
    are kept in place; ports to `avoid` (see `circuits.foreign_ports`) are taken only where the plan
    names them. Raises: Infeasible - no choice exists, naming the condition that fails; or none was
    found within the bounded search.
    """
    every = [
        link if isinstance(link, WantedLink) else WantedLink(link.a, link.b, link.kind)
        for link in links
    ]
    wanted = [link for link in every if not lab.electrical(link)]
    chosen = iter(_optical(wanted, lab, live, avoid))
    return tuple(_cabled(link) if lab.electrical(link) else next(chosen) for link in every)


def _cabled(link: WantedLink) -> Link:
    # else it would not be electrical
    assert isinstance(link.a, HostPort) and isinstance(link.b, HostPort)
    return Link(link.a, link.b, link.kind)


def _optical(
    wanted: Sequence[WantedLink], lab: Lab, live: Collection[Link], avoid: Collection[HostPort]
) -> tuple[Link, ...]:
    try:
        return _assign(_Problem(wanted, lab, frozenset(avoid)), live)
    except Infeasible:
        plane = _planes(lab)
        if len(set(plane.values())) == len(lab.devices):
            raise
    return _assign(_Problem(wanted, lab, frozenset(avoid), plane), live)


def _planes(lab: Lab) -> dict[DeviceName, DeviceName]:
    """For each device, the first of the devices that trunks connect it with."""
    plane = {device: device for device in lab.devices}
    for trunk in lab.trunks:
        one, other = plane[trunk.start.device], plane[trunk.end.device]
        if one != other:
            plane = {device: one if at == other else at for device, at in plane.items()}
    return plane


def _assign(problem: _Problem, live: Collection[Link]) -> tuple[Link, ...]:
    lab = problem.lab
    pins = problem.pins(live)
    found = problem.search(pins, quick=True)
    if found is not None:
        return found
    why = problem.contradiction({})
    if why is not None:
        raise Infeasible(why, hint="name fewer links, or more ports and fibres in the inventory")
    found = problem.search(
        {}, {index: problem.plane[lab.fibres[pin.a].device] for index, pin in pins.items()}
    )
    if found is None:
        hint = "name ports in the plan (gpu01:p1) if you know an assignment, or remove links from the plan"
        raise Infeasible(problem.verdict(), hint=hint)
    return problem.improve(pins) or found


class _Problem:
    def __init__(
        self,
        wanted: Sequence[WantedLink],
        lab: Lab,
        avoid: frozenset[HostPort],
        plane: Mapping[DeviceName, DeviceName] | None = None,
    ) -> None:
        self.wanted, self.lab = wanted, lab
        self.plane = plane if plane is not None else {device: device for device in lab.devices}
        self.named = {
            end for link in wanted for end in (link.a, link.b) if isinstance(end, HostPort)
        }
        self.avoid = avoid - self.named
        self.exhausted = False  # the last search was complete

    def pins(self, live: Collection[Link]) -> dict[int, Link]:
        """For each wanted link with a bare end, a live link between the same hosts that could stay
        as it is.
        """
        free = sorted(link for link in live if not {link.a, link.b} & self.avoid)
        pins: dict[int, Link] = {}
        for index, link in enumerate(self.wanted):
            if isinstance(link.a, HostPort) and isinstance(link.b, HostPort):
                continue
            for candidate in free:
                if ({candidate.a, candidate.b} - {link.a, link.b}) & self.named:
                    continue  # another link of the plan names that port
                rotated = Link(candidate.b, candidate.a, candidate.kind)
                steps = (candidate, rotated) if candidate.kind is LinkKind.DUPLEX else (candidate,)
                match = next((step for step in steps if _fits(link, step)), None)
                if match is not None:
                    pins[index] = match
                    free.remove(candidate)
                    break
        return pins

    def room(self, pins: dict[int, Link]) -> tuple[Room | None, str]:
        """Free ports after the named ports and the pins are taken, or which port is wanted
        twice.
        """
        room = Room(self.lab, self.avoid, self.plane)
        for index, link in enumerate(self.wanted):
            at = pins.get(index)
            duplex = link.kind is LinkKind.DUPLEX
            for end, role in ((at.a if at else link.a, "tx"), (at.b if at else link.b, "rx")):
                if not isinstance(end, HostPort):
                    continue
                if end not in self.lab.fibres:
                    return None, f"{link}: no fibre is attached to {end}"
                device = self.plane[self.lab.fibres[end].device]
                if not room.occupy(end, device, ("tx", "rx") if duplex else (role,)):
                    return None, f"{link}: port {end} is in two links"
        return room, ""

    def needs(self, pins: dict[int, Link]) -> list[Need]:
        found = []
        at: dict[HostName, set[DeviceName]] = {}
        for port, fibre in self.lab.fibres.items():
            at.setdefault(port.host, set()).add(self.plane[fibre.device])
        order = {device: place for place, device in enumerate(self.lab.devices)}
        for index, link in enumerate(self.wanted):
            if index in pins or (isinstance(link.a, HostPort) and isinstance(link.b, HostPort)):
                continue
            sets = [
                {self.plane[self.lab.fibres[end].device]}
                if isinstance(end, HostPort)
                else at.get(end, set())
                for end in (link.a, link.b)
            ]
            devices = tuple(sorted(sets[0] & sets[1], key=lambda device: order.get(device, 0)))
            role = ("duplex", "duplex") if link.kind is LinkKind.DUPLEX else ("tx", "rx")
            ends = zip((link.a, link.b), role, strict=True)
            roles = tuple(
                (host_of(end), "" if isinstance(end, HostPort) else role) for end, role in ends
            )
            found.append(Need(index, host_of(link.a), host_of(link.b), link.kind, devices, roles))
        return found

    def contradiction(self, pins: dict[int, Link]) -> str | None:
        """A necessary condition that fails, in words; None if none does."""
        room, why = self.room(pins)
        if room is None:
            return why
        needs = self.needs(pins)
        for need in needs:
            if not need.devices:
                return f"{self.wanted[need.index]}: no device has a fibre from both {need.a} and {need.b}"
        load: Counter[HostName] = Counter()
        for need in needs:
            for host, end in (
                (need.a, self.wanted[need.index].a),
                (need.b, self.wanted[need.index].b),
            ):
                load[host] += need.kind is LinkKind.DUPLEX and not isinstance(end, HostPort)
        ports: Counter[HostName] = Counter()
        for (host, _), numbers in room.whole.items():
            ports[host] += len(numbers)
        for host, links in load.items():
            if links > ports[host]:
                lost = sum(port.host == host for port in self.avoid)
                more = f" ({lost} carry foreign circuits)" if lost else ""
                return f"{host} needs {links} more ports for links without named ports, {ports[host]} are free{more}"
        return self._parity(room, needs)

    def _parity(self, room: Room, needs: list[Need]) -> str | None:
        """A device joins ports in pairs, so among an odd number of hosts one port of each plane
        stays alone.
        """
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

    def improve(self, pins: dict[int, Link]) -> tuple[Link, ...] | None:
        """An assignment that keeps all live links but one, else as many as can be added one by one;
        None if none can be kept.
        """
        tries = KEEPING_EFFORT // max(1, len(self.wanted))
        for dropped in sorted(pins)[:tries]:
            found = self.search(
                {index: pin for index, pin in pins.items() if index != dropped}, quick=True
            )
            if found is not None:
                return found
        best, kept = None, dict[int, Link]()
        for index in sorted(pins)[: tries - len(pins)] if tries > len(pins) else ():
            found = self.search(kept | {index: pins[index]}, quick=True)
            if found is not None:
                best, kept = found, kept | {index: pins[index]}
        return best

    def search(
        self,
        pins: dict[int, Link],
        prefer: Mapping[int, DeviceName] | None = None,
        *,
        quick: bool = False,
    ) -> tuple[Link, ...] | None:
        """An assignment that respects the pins, or None; `exhausted` then says whether that is
        proved.
        """
        if self.contradiction(pins) is not None:
            return None
        prefer = prefer or {}
        needs = self.needs(pins)
        self.exhausted = False
        for step in range(-1, 0 if quick else RESTARTS):
            room, _ = self.room(pins)
            assert room is not None  # else there would be a contradiction
            search = Search(
                needs, room, prefer, max(step, 0), FIRST_STEPS if step < 0 else SEARCH_STEPS
            )
            found = search.run()
            if found is None and search.gave_up and step < 0:
                room, _ = self.room(pins)
                assert room is not None
                found = repair(needs, room, prefer)
            if found is not None:
                return self._ports(pins, needs, found)
            if not search.gave_up:
                self.exhausted = True
                return None
        return None

    def verdict(self) -> str:
        count = sum(
            not (isinstance(link.a, HostPort) and isinstance(link.b, HostPort))
            for link in self.wanted
        )
        if self.exhausted:
            return f"no choice of ports carries these {count} links: every assignment to devices was tried"
        return f"found no choice of ports for these {count} links within {RESTARTS} searches of {SEARCH_STEPS} steps"

    def _ports(
        self, pins: dict[int, Link], needs: list[Need], devices: dict[int, DeviceName]
    ) -> tuple[Link, ...]:
        room, _ = self.room(pins)
        assert room is not None  # the search that chose the devices had it
        ends: dict[tuple[int, int], HostPort] = {}
        for duplex in (True, False):  # simplex ends share whole ports, so they go last
            for need in needs:
                if (need.kind is LinkKind.DUPLEX) is not duplex:
                    continue
                link, device = self.wanted[need.index], devices[need.index]
                if duplex:
                    self._near_first(room, link, device)
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
                        room.half.setdefault((*key, "rx" if role == "tx" else "tx"), []).append(
                            number
                        )
                    ends[need.index, side] = HostPort(end, number)
        result = []
        for index, link in enumerate(self.wanted):
            if index in pins:
                result.append(pins[index])
            else:
                a, b = ends.get((index, 0), link.a), ends.get((index, 1), link.b)
                # a link is named, pinned or coloured
                assert isinstance(a, HostPort) and isinstance(b, HostPort)
                result.append(Link(a, b, link.kind))
        return tuple(result)

    def _near_first(self, room: Room, link: WantedLink, plane: DeviceName) -> None:
        """Move ports at the same device to the front of both ends' free ports, so that no trunk is
        used without need.
        """
        if self.plane.get(plane) == plane and list(self.plane.values()).count(plane) == 1:
            return
        at = self.lab.fibres
        free = [
            [end]
            if isinstance(end, HostPort)
            else [HostPort(end, number) for number in room.whole[end, plane]]
            for end in (link.a, link.b)
        ]
        near = next(
            ((a, b) for a in free[0] for b in free[1] if at[a].device == at[b].device), None
        )
        for end, port in zip((link.a, link.b), near or (), strict=False):
            if not isinstance(end, HostPort):
                numbers = room.whole[end, plane]
                numbers.insert(0, numbers.pop(numbers.index(port.number)))


def _fits(wanted: WantedLink, link: Link) -> bool:
    """Whether `link` is what `wanted`, with a bare end, asks for."""
    return link.kind is wanted.kind and all(
        asked == got if isinstance(asked, HostPort) else asked == got.host
        for asked, got in ((wanted.a, link.a), (wanted.b, link.b))
    )


def _components(needs: list[Need]) -> list[set[HostName]]:
    neighbours: dict[HostName, set[HostName]] = {}
    for need in needs:
        neighbours.setdefault(need.a, set()).add(need.b)
        neighbours.setdefault(need.b, set()).add(need.a)
    found: list[set[HostName]] = []
    left = set(neighbours)
    while left:
        open_ = [min(left)]
        group = set(open_)
        while open_:
            fresh = neighbours[open_.pop()] - group
            group |= fresh
            open_ += sorted(fresh)
        left -= group
        found.append(group)
    return found
