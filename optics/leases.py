"""What packet switches give a job, and what they say of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """What a job has of a function of a packet switch, as the switch says. size: slots or entries;
    packets: of the job so far.

    error: why nothing is known of it, or that the switch does not know it any more; empty
    otherwise.
    """

    segment: str
    function: str
    job: str = ""
    allocation: int = 0
    size: int = 0
    lease_left_s: float = 0.0
    packets: int = 0
    error: str = ""

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.function, f"of segment {self.segment}")))
        if self.error:
            return f"{where}: {self.error}"
        kind = "entries" if self.function == "cache" else "slots"
        return f"{where}: {self.size} {kind} for {self.job}, lease {self.lease_left_s:.0f} s, {self.packets} packets"


@dataclass(frozen=True, slots=True)
class Lease:
    """What a packet switch has given a job. control: HOST:PORT at which it is asked. address, port:
    where the job's hosts reach it.

    size: slots or entries, of `each_bytes` (bytes) each. The token is a secret of the job and its
    operator.
    """

    function: str
    segment: str
    control: str
    allocation: int
    token: str = field(repr=False)
    address: str
    port: int
    size: int
    each_bytes: int
