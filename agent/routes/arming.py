"""Arming: a commit that this host makes by itself as soon as its ports have carrier."""

from __future__ import annotations

import time

from agent.basics import Failure, bad, integer, number, refused, text
from agent.routes.generations import LATER_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.routes.generations import Generations
    from agent.shapes import Daemon, Json


class Arming:
    """The armed commit of a host's generations, which know it as `armed`."""

    def __init__(self, server: Daemon, generations: Generations) -> None:
        self.generations, self.interfaces = generations, server.interfaces
        self.timer, self.events = server.timer, server.broadcast
        self.crossed: Callable[[int, list[str]], None] = lambda generation, addresses: None

    def arm(self, request: Json) -> Json:
        """Commit by ourselves as soon as every listed interface has carrier.

        Light that is there now does not count unless `fresh` is false: a port about to be moved
        still has its old light, and the number of times its carrier came up distinguishes the new
        from the old even when both changes arrive as one event.

        cross: neighbours' addresses to ask as soon as it is committed; a `crossed` event follows
        when all have answered.
        """
        generation = integer(request, "generation", 1)
        names = request.get("when_up")
        if not isinstance(names, list) or not names:
            raise bad(
                "when_up: at least one interface is needed; with nothing to wait for use commit"
            )
        unknown = [n for n in names if n not in self.interfaces]
        if unknown:
            raise refused("no interface {} on this host".format(", ".join(map(str, unknown))))
        self.generations.must_be_committable(generation)
        deadline_s = number(request, "deadline_s", 60.0)
        cross = request.get("cross", [])
        if not text(cross):
            raise bad("cross: a list of addresses is needed")
        revert_after_s = number(request, "revert_after_s", None)
        was = self.generations.unarm()
        if was not in (None, generation):
            self.generations.abandoned(was)
        fresh = request.get("fresh", True)
        self.generations.armed = {
            "generation": generation,
            "wait": {n: self.interfaces[n]["ups"] if fresh else -1 for n in names},
            "revert_after_s": revert_after_s,
            "cross": cross,
            "handle": self.timer(time.monotonic_ns() + int(deadline_s * 1e9), self.expired),
        }
        reply = {"generation": generation, "waiting": self.waiting()}
        self.carrier(None)
        return reply

    def waiting(self) -> list[str]:
        """The interfaces whose carrier the armed commit still waits for."""
        armed = self.generations.armed
        wait = armed["wait"] if armed else {}
        return [
            n
            for n, ups in wait.items()
            if not (self.interfaces[n]["carrier"] and self.interfaces[n]["ups"] > ups)
        ]

    def expired(self) -> None:
        missing, was, self.generations.armed = self.waiting(), self.generations.armed, None
        self.events(
            {"event": "expired", "generation": was and was["generation"], "missing": missing}
        )
        if was:
            self.generations.abandoned(was["generation"])

    def carrier(self, t_link_ns: int | None) -> None:
        """Called on every link event, and once when armed."""
        armed = self.generations.armed
        if armed and not self.waiting():
            generation, cross = armed["generation"], armed["cross"]
            self.generations.unarm()
            try:
                self.generations.commit(
                    generation, armed["revert_after_s"], t_link_ns or time.monotonic_ns()
                )
            except Failure as e:
                self.generations.abandoned(generation)
                self.events({"event": "failed", "generation": generation, "error": str(e)})
                return
            if cross:
                self.timer(time.monotonic_ns() + LATER_NS, lambda: self.crossed(generation, cross))
