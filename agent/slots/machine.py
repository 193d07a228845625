"""The slots of a schedule on one host, as states; what it does and when is handed in, so that tests
inject the time.

    day    routes of the slot; at its expected end less the guard time: the hold
    held   pairs that are about to lose their path have no route; ends with the carriers going down
    dark   carriers went down; ends with the carriers of the next slot
    free   as day, but nothing is expected: nobody renewed the lease, or light did not come

Every state but `day` of a slot that is renewed ends by itself, in confirmed routes of a slot.
"""

from __future__ import annotations

from agent.slots.clock import SlotClock

LATEST_NS = 10_000_000_000
"""Light that is later than this is not waited for in a hold, whatever a schedule allows: a host
left holding reaches nobody.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from agent.shapes import Json, Link

    class Acts(Protocol):
        """What the machine does to its host."""

        def now(self) -> int: ...
        def link(self, interface: str) -> Link: ...
        def commit(self, slot: int) -> None: ...
        def hold(self, slot: int, lease_ns: int) -> None: ...
        def timer(self, at_ns: int, function: Callable[[], object]) -> int: ...
        def cancel(self, handle: int) -> None: ...
        def changed(self, **fields: object) -> None: ...


class SlotMachine:
    """One loaded schedule. slots: per slot the interfaces `falling`, whose light ends with it, and
    `rising`, whose light it brings.

    count: slots since the first, so that slot = count modulo their number. error_ns: of the last
    end that was seen.
    """

    def __init__(
        self, acts: Acts, slots: list[Json], times: Json, clock: SlotClock, count: int
    ) -> None:
        self.acts, self.slots, self.clock, self.count = acts, slots, clock, count
        self.guard_ns, self.dark_window_ns, self.late_ns = (
            times["guard_ns"],
            times["dark_window_ns"],
            min(times["late_ns"], LATEST_NS),
        )
        self.by_light, self.by_clock = times["follow"] == "light", times["kind"] == "clock"
        self.state = "free"
        self.lease_ns = 0
        self.handle: int | None = None
        self.light_ns = 0  # when the present slot's light came
        self.dark_ns = 0  # when the carriers of the slot before, or of this one, went down
        self.error_ns: int | None = None
        self.ups: dict[str, int] = {}  # carrier-ups to be exceeded by the next slot's light
        # carrier-downs to be exceeded by the end of this slot's light
        self.downs: dict[str, int] = {}
        self.late = 0
        self.note(all_=True)

    @property
    def slot(self) -> int:
        return self.count % len(self.slots)

    @property
    def following(self) -> Json:
        return self.slots[(self.count + 1) % len(self.slots)]

    def note(self, all_: bool) -> None:
        """Note the carriers' counts. all_: also of the ports that the next slot waits for."""
        if all_:
            self.ups = {n: self.acts.link(n).get("ups", 0) for n in self.following["rising"]}
        self.downs = {
            n: self.acts.link(n).get("downs", 0) for n in self.slots[self.slot]["falling"]
        }

    def at(self, at_ns: int | None, function: Callable[[], object] | None = None) -> None:
        """Do one thing later, instead of what was to be done."""
        if self.handle is not None:
            self.acts.cancel(self.handle)
        self.handle = None
        if at_ns is not None and function is not None:
            act = function

            def due() -> None:
                # a number that is cancelled after its time would be kept for ever
                self.handle = None
                act()

            self.handle = self.acts.timer(at_ns, due)

    def end_ns(self) -> int | None:
        """When this slot is expected to end, None where nothing is."""
        return self.clock.end_ns(self.count) if self.state != "free" and self.clock.known else None

    # -- what comes from outside

    def tick(self, count: int, end_ns: int | None, lease_ns: int) -> None:
        """The scheduler says which slot it is, when it ends, and that it lives until `lease_ns`."""
        self.lease_ns = lease_ns
        if end_ns is not None:
            self.clock.shown(count, end_ns)
        if count == self.count + 1 and self.state in ("held", "dark") and not self.ready():
            return  # the light is on its way; if it does not come, the time ends this
        if count == self.count + 1 and self.ready():
            self.advance()
        elif count != self.count:
            self.count = count
            self.settle()
        elif self.state == "free":
            self.settle()
        elif self.state == "day":
            self.expect()

    def carrier(self) -> None:
        """A carrier came or went. What comes and goes without a scheduler is no slot's: it would be
        counted as the next one's.
        """
        if self.state in ("day", "free") and self.lease_ns < self.acts.now():
            self.note(all_=True)
            return
        if self.state in ("day", "free", "held") and self.fallen():
            self.darkened()
        if self.following["rising"] and self.by_light and self.ready():
            self.advance()

    def change_slot(self) -> None:
        """This slot ends now: the scheduler goes by the job's phases."""
        if self.state in ("day", "free"):
            self.begin_hold(self.acts.now())

    def stop(self) -> None:
        """The schedule ends: be in a slot, for nobody takes the host out of a hold from now on."""
        self.at(None)
        if self.state in ("held", "dark"):
            self.settle_where_light_is()
        self.state = "free"

    # -- conditions

    def fallen(self) -> bool:
        return any(self.acts.link(n).get("downs", 0) > downs for n, downs in self.downs.items())

    def ready(self) -> bool:
        """Whether the next slot's light is there on every port where some is to come."""
        return len(self.new()) == len(self.ups)

    def new(self) -> list[str]:
        """The ports where the next slot's light is there."""
        links = ((name, self.acts.link(name), ups) for name, ups in self.ups.items())
        return [
            name for name, link, ups in links if link.get("carrier") and link.get("ups", 0) > ups
        ]

    # -- transitions

    def settle(self) -> None:
        """Be in the slot of `count`, confirmed, and expect its end."""
        self.at(None)
        self.state = "day"
        self.light_ns = self.acts.now()
        self.note(all_=True)
        self.acts.commit(self.slot)
        self.expect()
        self.acts.changed(why="set")

    def expect(self) -> None:
        """Set the time of the hold. What is past, or beyond the lease, is not expected."""
        if not self.by_clock or not self.clock.known:
            return
        begin = self.clock.end_ns(self.count) - self.guard_ns
        if begin > self.acts.now():
            self.at(begin, self.hold_due)

    def hold_due(self) -> None:
        end = self.clock.end_ns(self.count)
        if self.lease_ns < end + self.dark_window_ns:
            self.state, self.handle = "free", None
            self.acts.changed(why="lease")
            return
        self.begin_hold(end)

    def begin_hold(self, end_ns: int) -> None:
        self.state = "held"
        limit = end_ns + self.dark_window_ns + self.late_ns
        self.at(limit, self.overdue)
        self.acts.hold(self.slot, 2 * (limit - self.acts.now()))
        if not self.by_light:
            self.at(end_ns + self.dark_window_ns, self.advance)
        self.acts.changed(why="hold")

    def darkened(self) -> None:
        """The light of this slot ended."""
        now, was = self.acts.now(), self.state
        self.error_ns = self.clock.edge(self.count, now, self.late_ns) if self.by_clock else None
        self.dark_ns, self.state = now, "dark"
        if was != "held":
            self.acts.hold(self.slot, 2 * (self.dark_window_ns + self.late_ns))
        if self.following["rising"] and self.by_light:
            self.at(now + self.dark_window_ns + self.late_ns, self.overdue)
        else:
            self.at(now + self.dark_window_ns, self.advance)
        if was != "held":
            self.acts.changed(why="hold")

    def advance(self) -> None:
        """The next slot is there."""
        now = self.acts.now()
        before, self.light_ns = self.light_ns, now
        self.count += 1
        self.state = "day"
        self.at(None)
        self.acts.commit(self.slot)
        self.note(all_=True)
        lit_ns = self.dark_ns - before if before and self.dark_ns > before else 0
        self.expect()
        fields: dict[str, object] = {"why": "light", "t_ns": now, "error_ns": self.error_ns}
        if self.dark_ns > before:
            fields.update(dark_ns=now - self.dark_ns, lit_ns=lit_ns)
        self.acts.changed(**fields)
        self.error_ns = None

    def overdue(self) -> None:
        """No light within the limit: the scheduler is late or has died, or a device has."""
        self.handle = None
        self.late += 1
        dark = self.state == "dark"
        onward = self.settle_where_light_is()
        # else light of the next slot that comes later still counts as such
        self.note(all_=onward or not dark)
        self.state = "free"
        self.acts.changed(why="late")

    def settle_where_light_is(self) -> bool:
        """Leave a hold for this slot's routes, or the next one's if more of its light is there;
        return whether it was that.
        """
        new = self.new()
        old = [
            n
            for n in self.slots[self.slot]["falling"]
            if self.acts.link(n).get("carrier") and n not in new
        ]
        onward = self.state == "dark" and len(new) > len(old)
        self.count += onward
        self.acts.commit(self.slot)
        return onward
