"""What TCP connections between hosts carried, how long they had something to send, and what they
sent again, by the kernel's count.

While somebody asks for `load` or `heartbeats`, a look is kept every second: a question is then
answered with what was before it, too.
"""

from __future__ import annotations

import struct
import time
from collections import deque

from agent.routes.prefixes import expanded
from agent.tcp.flush import established, rested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Counts, Daemon, Json

# between two looks; how long they go on after a question
STEP_NS, ASKED_NS = 1_000_000_000, 60_000_000_000
KEPT = 11  # looks: ten seconds
RECENT_NS = 1_000_000_000
AFTER_NS = 500_000_000  # what test traffic pushed out of the queues is sent again soon after
# a look that takes more processor time is not repeated by itself: the daemon does nothing else
# meanwhile
LONGEST_NS = 5_000_000
SIZE = 220  # of struct tcp_info up to tcpi_dsack_dups (linux/tcp.h, since Linux 4.19)


def counts(lanes: list[str]) -> Counts:
    """What every connection from one of the addresses `lanes` to another host did so far; nothing
    where the kernel does not say.
    """
    found: Counts = {}
    try:
        for data, target, info in established(lanes):
            if len(info) < SIZE or target in lanes:
                continue
            again, acked = struct.unpack_from("=I16xQ", info, 100)
            segments, _, busy, window, buffer = struct.unpack_from("=I4Q", info, 156)
            (twice,) = struct.unpack_from("=I", info, 216)  # arrived twice: sent again for nothing
            own, far = struct.unpack_from(">HH", data, 4)
            found[target, own, far] = acked, max(0, busy - window - buffer), segments, again - twice
    except (OSError, struct.error):
        return {}
    return found


class Flows:
    """The looks of the latest seconds."""

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.looks: deque[tuple[int, Counts]] = deque(maxlen=KEPT)
        self.until = self.tested_until = self.rest_ns = 0
        self.armed = False

    def look(self) -> tuple[int, Counts]:
        return time.monotonic_ns(), counts(self.server.facts.get("lanes", []))

    def asked(self) -> None:
        """Somebody wants to know: go on looking for a while."""
        self.until = time.monotonic_ns() + ASKED_NS
        if not self.armed and time.monotonic_ns() >= self.rest_ns:
            self.step()

    def tested(self, seconds: float) -> None:
        """Test traffic is on this host's links for so long (s) at most: what TCP did before and
        does until then is not kept.
        """
        self.tested_until = max(
            self.tested_until, time.monotonic_ns() + int(seconds * 1e9) + AFTER_NS
        )
        self.looks.clear()

    def step(self) -> None:
        before = time.thread_time_ns()
        began = time.monotonic_ns()
        look = self.look()
        now = time.monotonic_ns()
        self.rest_ns = rested(began, now)
        self.armed = now < self.until and time.thread_time_ns() - before < LONGEST_NS
        if look[0] >= self.tested_until:
            self.looks.append(look)
        if self.armed:
            self.server.timer(now + STEP_NS, self.step)
        else:
            self.looks.clear()

    def since(self, first: tuple[int, Counts]) -> Json:
        """What was carried in the latest second, or since `first` if that is longer; and in all
        that is kept.

        Nothing where test traffic was on the links meanwhile.
        """
        if first[0] < self.tested_until:
            return {"flows": [], "past": []}
        last = self.look()
        kept = [look for look in self.looks if look[0] < last[0]]
        recent = next(
            (look for look in reversed(kept) if look[0] <= min(first[0], last[0] - RECENT_NS)),
            first,
        )
        before = kept if kept and kept[0][0] < first[0] else [first]
        return {"flows": self.rows([recent, last]), "past": self.rows([*before, last])}

    def rows(self, looks: list[tuple[int, Counts]]) -> list[Json]:
        """By far address what was carried from the first look to the last. times: between how many
        looks segments were sent again.

        port: through which it goes now; via: the next address on its way.
        """
        generations = self.server.generations
        staged = (
            generations.staged.get(generations.active, {}) if generations.active is not None else {}
        )
        directions = {
            address: (route[1] or "", route[2])
            for address, route in expanded(staged.get("routes", [])).items()
        }
        sums: dict[tuple[str, int, int], list[int]] = {}
        times: dict[str, int] = {}
        seconds = (looks[-1][0] - looks[0][0]) / 1e9
        for (_, old), (_, new) in zip(looks, looks[1:]):
            again = set()
            for key in new.keys() & old.keys():
                row = sums.setdefault(key, [0, 0, 0, 0])
                for at in range(4):
                    # what turns out to have arrived twice is taken back
                    row[at] += new[key][at] - old[key][at]
                if new[key][3] > old[key][3]:
                    again.add(key[0])
            for target in again:
                times[target] = times.get(target, 0) + 1
        found = []
        for target in sorted({key[0] for key in sums}):
            mine = [row for key, row in sums.items() if key[0] == target]
            size, segments, resent = (sum(max(0, row[at]) for row in mine) for at in (0, 2, 3))
            busy = max(row[1] for row in mine)  # those that are busy together share the path
            via, interface = directions.get(target, ("", ""))
            where = {"to": target, "via": via, "port": self.server.numbers.get(interface)}
            what: Json = {
                "bytes": size,
                "busy_s": busy / 1e6,
                "segments": segments,
                "again": resent,
            }
            if segments or busy:
                found.append(
                    {**where, "seconds": round(seconds, 3), **what, "times": times.get(target, 0)}
                )
        return found
