"""Values that Polatis switches report alike over RESTCONF and NETCONF: their size, their maps, the
states of their ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from optics import Garbled, PortState, Traits

FLOOR_DBM = Decimal(-60)
"""What a meter without light answers (public NETCONF test suite: power-low-alarm -60.0)."""
PATIENCE_S = 6.0
"""How long a client waits for a patch: the Optical Lab Portal checks four times, 1.5 s apart (CODE,
over TL1).
"""
TRAITS = Traits(
    settle_s=0.05,
    at_once=None,
    keeps_others_lit=True,
    latching=False,
    insertion_loss_db=1.5,
    meter_db=1.0,
)
"""H+S data sheet as quoted by the TCD testbed: 50 ms, any number at once, 1.5 dB typical, meters
+-1.0 dB. Dark after power loss unless its boot mode says otherwise."""
LARGEST_PORT = 9999
MOST_DB = 30
"""More attenuation than any of these switches' attenuators has is a typing error; no public source
gives a limit.
"""

Pair = tuple[int, int]


def size(model: str) -> tuple[int, int]:
    """The numbers of ingress and egress ports in a model name.

    >>> size("N-VST-512x512-LA1-DMHNV-701")
    (512, 512)

    Raises: Garbled - it has none.
    """
    found = re.search(r"(?:^|[^0-9A-Za-z])([0-9]{1,4})[xX]([0-9]{1,4})(?:[^0-9A-Za-z]|$)", model)
    enter, leave = (int(found[1]), int(found[2])) if found else (0, 0)
    if enter < 1 or leave < 1 or enter + leave > LARGEST_PORT:
        raise Garbled(f"no size in the model name {model[:80]!r}; the option size says it")
    return enter, leave


def whole_map(pairs: Iterable[Pair]) -> frozenset[Pair]:
    """Check a map. Raises: Garbled - a port in two circuits, or no port number."""
    listed = list(pairs)
    found = frozenset(listed)
    if any(not 0 < port <= LARGEST_PORT for pair in found for port in pair):
        raise Garbled(f"no port numbers: {sorted(found)[:4]}")
    if len(listed) != len({a for a, _ in found}) or len(listed) != len({b for _, b in found}):
        raise Garbled("a port in two circuits")
    return found


def port_state(word: str) -> PortState:
    """Read `ENABLED` or `PC_ENABLED` (both are seen); a word that means neither on nor off is a
    failure.

    >>> port_state("PC_DISABLED").value, port_state("FAILED").value
    ('disabled', 'failed')
    """
    plain = word.strip().upper().removeprefix("PC_")
    return {"ENABLED": PortState.ENABLED, "DISABLED": PortState.DISABLED}.get(
        plain, PortState.FAILED
    )


def level(db: float) -> str:
    """An attenuation as it is written, in hundredths of a dB.

    >>> level(3.5)
    '3.50'
    """
    return f"{db:.2f}"
