"""Which addresses a host reaches in each slot of a schedule, and until when: what programs are
told.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from agent.shapes import Json
    from agent.slots.machine import SlotMachine

    Addresses = Callable[[int | None], Collection[str]]  # those that a generation of routes reaches
    # of each address, after how many slots more that ends; None: never
    Reach = dict[str, int | None]


def endings(slots: Sequence[Json], addresses: Addresses) -> list[Reach]:
    """Per slot and address that it reaches: after how many slots more that ends, None if it never
    does.
    """
    day = [addresses(s["generation"]) for s in slots]
    dark_window = [
        addresses(s["hold"]) if s["hold"] is not None else day[i] for i, s in enumerate(slots)
    ]
    found: list[Reach] = []
    for k in range(len(slots)):
        reach: Reach = {}
        for address in day[k]:
            lasting = (
                i for i in range(len(slots)) if address not in dark_window[(k + i) % len(slots)]
            )
            reach[address] = next(lasting, None)
        found.append(reach)
    return found


def notice(
    machine: SlotMachine, slots: Sequence[Json], reach: Sequence[Reach], addresses: Addresses
) -> Json:
    """Return until_ns, and of each address in reach: when it ends (CLOCK_MONOTONIC), null where no
    end is known.
    """
    count = len(slots)
    end, period = machine.end_ns(), machine.clock.period_ns
    until = None if end is None else end - machine.guard_ns
    head = {"slot": machine.slot, "cycle": machine.count // count, "until_ns": until}
    if machine.state in ("held", "dark"):
        head["until_ns"] = 0
        kept = addresses(slots[machine.slot]["hold"])
        return dict(head, reach=dict.fromkeys(kept))
    ends = {
        a: None if n is None or until is None else until + n * period
        for a, n in reach[machine.slot].items()
    }
    return dict(head, reach=ends)
