"""Price and power of a fabric, from a table of prices that users edit.

An optical interface takes a transceiver, a NIC port and a port of panel or switch (with a
look-ahead panel two, and a 1x2 switch). A k-ary three-tier fat-tree with full bisection takes 5
switch ports and 6 transceivers a host, two tiers 3 and 4, one tier 1 and 2.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.model.demand import Infeasible

Amount = Annotated[float, Field(ge=0)]
Fabric = Literal["panel", "look-ahead", "optical", "three tiers", "two tiers", "one tier"]
TIERS: dict[Fabric, tuple[int, int]] = {
    "three tiers": (5, 6),
    "two tiers": (3, 4),
    "one tier": (1, 2),
}
"""Switch ports and transceivers of a host's link."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LinkPrice(_Part):
    """Parts of a link of one rate: a transceiver, a port of a NIC, a port of an electrical
    switch.
    """

    gbps: Annotated[float, Field(gt=0)]
    transceiver: Amount
    nic: Amount
    electrical_port: Amount


class Watts(_Part):
    """Power of parts."""

    transceiver: Amount = 0.0
    electrical_port: Amount = 0.0
    optical_port: Amount = 0.0


class Prices(_Part):
    """A file of `testbed.prices/1`. verified: who checked it and against which source; empty if
    unchecked.
    """

    schema_id: Annotated[Literal["testbed.prices/1"], Field(alias="schema")]
    verified: str = ""
    currency: str = "USD"
    links: Annotated[list[LinkPrice], Field(min_length=1)]
    panel_port: Amount
    optical_port: Amount
    flip_switch: Amount
    watts: Watts = Watts()

    @property
    def mark(self) -> str:
        """The note shown with every total."""
        return f"prices verified: {self.verified}" if self.verified else "prices unverified"

    def of(self, gbps: float) -> LinkPrice:
        """The parts of a link; between rates of the table in proportion. Raises: Infeasible - below
        or above the table.
        """
        table = sorted(self.links, key=lambda link: link.gbps)
        rates = [link.gbps for link in table]
        if not rates[0] <= gbps <= rates[-1]:
            raise Infeasible(
                f"no price for links of {gbps:g} Gb/s",
                f"take {rates[0]:g} to {rates[-1]:g} Gb/s, or add a row to the prices",
            )
        at = bisect_left(rates, gbps)
        if rates[at] == gbps:
            return table[at]
        low, high = table[at - 1], table[at]
        share = (gbps - low.gbps) / (high.gbps - low.gbps)

        def between(one: float, other: float) -> float:
            return one + share * (other - one)

        return LinkPrice(
            gbps=gbps,
            transceiver=between(low.transceiver, high.transceiver),
            nic=between(low.nic, high.nic),
            electrical_port=between(low.electrical_port, high.electrical_port),
        )

    def host(self, fabric: Fabric, gbps: float, links: int = 1) -> float:
        """Price of a host's share of a fabric with `links` links of a rate."""
        parts = self.of(gbps)
        if fabric in TIERS:
            ports, transceivers = TIERS[fabric]
            return links * (
                parts.nic + transceivers * parts.transceiver + ports * parts.electrical_port
            )
        port = {
            "panel": self.panel_port,
            "look-ahead": 2 * self.panel_port + self.flip_switch,
            "optical": self.optical_port,
        }[fabric]
        return links * (parts.transceiver + parts.nic + port)

    def host_watts(self, fabric: Fabric, links: int = 1) -> float:
        """Power of a host's share, NICs aside; a panel draws none while nothing moves."""
        if fabric in TIERS:
            ports, transceivers = TIERS[fabric]
            return links * (
                transceivers * self.watts.transceiver + ports * self.watts.electrical_port
            )
        return links * (
            self.watts.transceiver + (self.watts.optical_port if fabric == "optical" else 0.0)
        )

    def equal_rate(self, budget: float, fabric: Fabric) -> float:
        """The rate (Gb/s) of the one link per host of an electrical fabric that `budget` per host
        pays; exact to a part in 10^6.

        Raises: Infeasible - it pays not even the slowest link of the table.
        """
        rates = sorted(link.gbps for link in self.links)
        low, high = rates[0], rates[-1]
        if self.host(fabric, low) > budget:
            raise Infeasible(
                f"{budget:.0f} {self.currency} per host buy no {fabric} fabric of {low:g} Gb/s ({self.host(fabric, low):.0f})",
                "compare with fewer tiers, or more optical ports",
            )
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.host(fabric, middle) <= budget else (low, middle)
        return low


# --- clusters of GPUs


@dataclass(frozen=True, slots=True)
class Clos:
    """Switches of one radix, of which several in two or three tiers have full bisection for the
    GPUs of each rail.

    transceivers: one at each end of every link, those of the GPUs' NICs included.
    """

    tiers: int
    radix: int
    switches: int
    transceivers: int

    def price(self, prices: Prices, gbps: float) -> float:
        """Of whole switches and transceivers; NICs are the same in every network. Raises:
        Infeasible - as `Prices.of`.
        """
        parts = prices.of(gbps)
        ports = self.switches * self.radix
        return ports * parts.electrical_port + self.transceivers * parts.transceiver

    def watts(self, prices: Prices) -> float:
        """Power of whole switches and transceivers."""
        ports = self.switches * self.radix
        return ports * prices.watts.electrical_port + self.transceivers * prices.watts.transceiver


def clos(gpus: int, radix: int) -> Clos:
    """The folded Clos network with full bisection: one switch, leaves and spines, or three tiers.
    Raises: Infeasible - too many GPUs for three tiers.
    """
    half = radix // 2
    if gpus <= radix:
        return Clos(1, radix, 1, 2 * gpus)
    leaves = ceil(gpus / half)
    up = leaves * half
    if gpus <= radix * half:
        return Clos(2, radix, leaves + ceil(up / radix), 2 * (gpus + up))
    if gpus <= radix * half * half:
        return Clos(3, radix, 2 * leaves + ceil(up / radix), 2 * (gpus + 2 * up))
    raise Infeasible(
        f"{gpus} GPUs need more than three tiers of switches with {radix} ports",
        f"at most {radix * half * half} GPUs, or switches of more ports",
    )


def rails(gpus: int, radix: int, domain: int, *, shared: bool = False) -> Clos:
    """A network for each rail, the GPUs of one place in all domains, and none that joins rails
    (W. Wang et al., Rail-only, HOTI 2024). shared: rails that leave ports of their only switch free
    share switches. Raises: Infeasible - domains are not all full; as `clos`.
    """
    if gpus % domain:
        raise Infeasible(
            f"{gpus} GPUs are not whole domains of {domain}", f"a multiple of {domain} GPUs"
        )
    length = gpus // domain
    one = clos(length, radix)
    switches = domain * one.switches
    if shared and one.tiers == 1:
        switches = ceil(domain / (radix // length))
    return Clos(one.tiers, radix, switches, domain * one.transceivers)
