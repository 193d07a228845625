"""The light path of a switch that changes too fast for carriers to follow: a filter that decides by
the kernel's clock, for each packet.

The schedule is constants in the program, so that replacing the filter changes everything at one
instant, and no packet sees half of a change. 1 ms slots are exact; at 200 us some packets in ten
thousand arrive after their slot (benchmarks/rotor.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulators.fabric import linux
from emulators.fabric.bpf import SHOT, Step, assembled, loaded, wide
from emulators.fabric.fibre_plant import FibrePlant, HostPort
from emulators.fabric.netlink import End, Netlink, clsact, gated, link_state, ungated, veth
from emulators.optics.light import Pair
from emulators.optics.rotor_schedule import Map, RotorSchedule

# helpers: CLOCK_MONOTONIC of the machine, whatever time namespace; bpf_redirect(interface, flags)
KTIME_GET_NS, REDIRECT = 5, 23
MOST_SLOTS = 64
PURPOSE = "a rotor whose slots are short"
PASSAGE_NS = (
    # from the gate to the host's port: 0.7 us in the mean, measured; closed so much earlier, few
    # arrive in the dark window
    3_000
)


@dataclass(frozen=True, slots=True)
class LightPath:
    """Where one transmitter's packets go: interface numbers, 0 is nowhere.

    before: until the first dark window; into: in the first dark window. steps: of each slot in turn
    from the start, its day and the dark window after it. Times as `RotorSchedule`, ns.
    """

    start_ns: int
    dwell_ns: int
    dark_window_ns: int
    before: int
    into: int
    steps: tuple[tuple[int, int], ...]


def instructions(light_path: LightPath) -> bytes:
    """A program that sends each packet where its arrival's time says, and drops it where that is
    nowhere. Raises: ValueError.
    """
    if not 0 < len(light_path.steps) <= MOST_SLOTS:
        raise ValueError(f"{len(light_path.steps)} slots; a gate has 1 to {MOST_SLOTS}")
    found = [
        (0x85, 0, 0, KTIME_GET_NS),  # r0 = now
        *wide(1, light_path.start_ns),
        (0x1F, 0x10, 0, 0),  # r0 -= start
        *wide(1, -light_path.dark_window_ns),
        (0x7D, 0x10, len(_ending(light_path.before)), 0),  # if r0 >= -night (signed), not before
        *_ending(light_path.before),
        (
            0x75,
            0,
            len(_ending(light_path.into)),
            0,
        ),  # if r0 >= 0 (signed), not in the first dark window
        *_ending(light_path.into),
        *wide(1, light_path.dwell_ns + light_path.dark_window_ns),
        (0xBF, 0x02, 0, 0),  # r2 = r0
        (0x3F, 0x12, 0, 0),  # r2 /= period: slots begun
        (0xBF, 0x23, 0, 0),  # r3 = r2
        (0x2F, 0x13, 0, 0),  # r3 *= period
        (0x1F, 0x30, 0, 0),  # r0 -= r3: time in this slot
        (0x97, 0x02, 0, len(light_path.steps)),  # r2 %= slots
        (0x67, 0x02, 0, 1),  # r2 <<= 1
        *wide(1, light_path.dwell_ns),
        (0xAD, 0x10, 1, 0),  # if r0 < dwell it is day
        (0x07, 0x02, 0, 1),  # else r2 += 1
    ]
    for phase, target in enumerate(target for step in light_path.steps for target in step):
        if target:
            # if r2 is another phase, skip
            found += [(0x55, 0x02, len(_ending(target)), phase), *_ending(target)]
    return assembled([*found, *_ending(0)])


def _ending(target: int) -> Sequence[Step]:
    if not target:
        return ((0xB7, 0, 0, SHOT), (0x95, 0, 0, 0))
    return ((0xB7, 0x01, 0, target), (0xB7, 0x02, 0, 0), (0x85, 0, 0, REDIRECT), (0x95, 0, 0, 0))


def light_path_of(schedule: RotorSchedule, onward: Mapping[Pair, int]) -> LightPath:
    """Return where one transmitter's packets go; onward: the interface behind each circuit that it
    may enter.
    """

    def end(lit: Map) -> int:
        return next((interface for pair, interface in onward.items() if pair in lit), 0)

    steps = tuple(
        (end(schedule.map(step)), end(schedule.through(step + 1)))
        for step in range(len(schedule.slots))
    )
    dwell_ns, dark_window_ns = schedule.dwell_ns - PASSAGE_NS, schedule.dark_window_ns + PASSAGE_NS
    return LightPath(
        schedule.start_ns,
        dwell_ns,
        dark_window_ns,
        end(schedule.before),
        end(schedule.through(0)),
        steps,
    )


def program(light_path: LightPath) -> int:
    """Load the program; return its descriptor, which the caller closes once a filter uses it.

    Raises: OSError - this kernel, or the rights of this process, allow no BPF.
    """
    return loaded(instructions(light_path), PURPOSE)


class Gates:
    """The gates of all ports of a lab.

    entries: the interface at whose ingress a port's light is switched; ends: the one by which light
    returns to it.
    """

    def __init__(
        self,
        netlink: Netlink,
        fibre_plant: FibrePlant,
        entries: Mapping[HostPort, int],
        ends: Mapping[HostPort, int],
    ) -> None:
        self._netlink, self._fibre_plant, self._entries, self._ends = (
            netlink,
            fibre_plant,
            entries,
            ends,
        )
        self._schedule: dict[str, RotorSchedule] = {}
        self._light_paths: dict[HostPort, LightPath] = {}
        # have light in some slot, and keep carrier the whole time
        self.receivers: frozenset[HostPort] = frozenset()

    def show(self, device: str, schedule: RotorSchedule | None) -> None:
        """Let `device` change slots, or rest. Raises: OSError - no BPF, or the kernel refuses a
        filter."""
        if schedule is None:
            self._schedule.pop(device, None)
        else:
            self._schedule[device] = schedule
        self.refresh()

    def refresh(self) -> None:
        """Make the gates agree with fibres and ports as they are now; one that does not change is
        left alone. Raises: OSError.
        """
        light_paths, receivers = dict[HostPort, LightPath](), set[HostPort]()
        for device, schedule in self._schedule.items():
            onward: dict[HostPort, dict[Pair, int]] = {}
            for pair in schedule.before.union(*schedule.slots):
                if ends := self._fibre_plant.joined(device, pair):
                    onward.setdefault(ends[0], {})[pair] = self._ends[ends[1]]
                    receivers.add(ends[1])
            light_paths |= {port: light_path_of(schedule, found) for port, found in onward.items()}
        for port in sorted(light_paths):
            if light_paths[port] != self._light_paths.get(port):
                fd = program(light_paths[port])
                try:
                    self._netlink.send([gated(self._entries[port], fd)])
                finally:
                    os.close(fd)
        removed = sorted(self._light_paths.keys() - light_paths.keys())
        dark = sorted(self.receivers - receivers - self._fibre_plant.sources.keys())
        self._netlink.send([ungated(self._entries[port]) for port in removed])
        self._netlink.send(
            [
                link_state(self._ends[port], True, absent_ok=True)
                for port in sorted(receivers - self.receivers)
            ]
        )
        self._netlink.send([link_state(self._ends[port], False, absent_ok=True) for port in dark])
        self._light_paths, self.receivers = light_paths, frozenset(receivers)


def lack() -> str:
    """Return what keeps this machine from having gates, tried in a network namespace of its own;
    empty if nothing does.
    """
    try:
        net = linux.new_network()
        try:
            with linux.inside(net):
                netlink = Netlink()
            fd = program(LightPath(0, 1, 1, 0, 0, ((11, 0),)))
            try:
                netlink.send([veth(End(11, "a"), End(12, "b")), clsact(11), gated(11, fd)])
            finally:
                os.close(fd)
                netlink.close()
        finally:
            os.close(net)
    except OSError as problem:
        return str(problem)
    return ""


def main() -> int:
    """Say what keeps this machine from having gates; for `testbed doctor`."""
    reported = lack()
    print(reported or "ok")
    return 1 if reported else 0


if __name__ == "__main__":
    sys.exit(main())
