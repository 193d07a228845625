"""Topology generators and schedules by name: the planner's own, and those of other distributions.

A third party adds one by an entry point in its own distribution, without a change here:

    [project.entry-points."testbed.topologies"]
    acme-star = "acme_topology:star"

    [project.entry-points."testbed.schedules"]
    acme-relay = "acme_schedule:relay"

A generator is a `Topology`, a schedule a `Schedule`. What they return is checked before it is used;
the plan that is made of it is then read like any other. They run in the operator's process with the
operator's rights, and for as long as they like.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from math import isfinite
from operator import index
from typing import Any, NoReturn, Protocol

import optics
from optics import BadFile, BadPlugin
from optics.plain import did_you_mean
from planner.model.demand import Demand
from planner.model.shape import Lab, Ring, Shape
from planner.schedule import bfb
from planner.schedule.bfb import Send
from planner.topology.methods import METHODS, Found, Wanted

TOPOLOGIES, SCHEDULES = "testbed.topologies", "testbed.schedules"
NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
MOST_FOUND = 16
"""Answers of a generator: each is evaluated with the routes that the hosts would have."""
MOST_WHY, MOST_WORDS = 32, 400
"""Lines of reasons, and characters of a line or a name."""
MOST_SENDS, MOST_STEPS = 65536, 4096
"""As many as a plan file may have."""


class Topology(Protocol):
    """A topology generator."""

    def __call__(self, demand: Demand, lab: Lab, wanted: Wanted) -> Sequence[Found]:
        """Return up to 16 topologies over ranks 0 to lab.n - 1; the one with the shortest predicted
        iteration is taken.

        demand: bytes of an iteration. lab: ports and rate of a host. wanted: the other options, of
        which it uses what it likes. Every rank is on at most lab.degree links, `shape.duplex` is
        lab.duplex, and `segments` stays empty. Raises: planner.model.demand.Infeasible - none meets
        the request; anything else is reported as a fault of the generator.
        """


class Schedule(Protocol):
    """A collective schedule."""

    def __call__(self, shape: Shape) -> Iterable[Send]:
        """Return the sends of an all-gather on this topology; all-reduce goes by them backwards
        (reducing), then forwards.

        Every rank receives the shard of every other once and complete, over links of the shape,
        each part from a rank that has it from an earlier step. Steps count from 1, to 4096 at most;
        at most 65536 sends. Raises: planner.model.demand.Infeasible - it cannot be done on this
        shape; others are reported as faults of the schedule.
        """


OWN_SCHEDULES: Mapping[str, Schedule] = {"breadth-first": bfb.schedule}


@dataclass(frozen=True)
class Plugin:
    """A generator or schedule of another distribution. problem: why it cannot be used; empty if it
    can.
    """

    entry: EntryPoint
    problem: str = ""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def distribution(self) -> str:
        """Name and version of the distribution."""
        dist = self.entry.dist
        return f"{dist.name} {dist.version}" if dist is not None else "an unknown distribution"

    def __str__(self) -> str:
        return f"{self.name} ({self.entry.value} of {self.distribution})"

    def fail(self, what: str, error: BaseException | None = None) -> NoReturn:
        """Raises: BadPlugin - names the object and its distribution."""
        raise BadPlugin(
            f"{self}: {what}", hint=f"report it to the authors of {self.distribution}"
        ) from error

    def called(self, *parts: Any) -> Any:
        """What the object returns. Raises: BadPlugin - it cannot be imported, or it fails.
        Infeasible - in its own words.
        """
        if self.problem:
            self.fail(self.problem)
        try:
            found = self.entry.load()
        except (Exception, SystemExit) as error:  # a third party's module may raise anything
            self.fail(f"cannot be imported: {type(error).__name__}: {error}", error)
        if not callable(found):
            self.fail(f"is {type(found).__name__}, which cannot be called")
        try:
            return found(*parts)
        except optics.Infeasible:
            raise
        except (Exception, SystemExit) as error:
            self.fail(f"failed: {type(error).__name__}: {error}", error)


def plugins(group: str) -> tuple[Plugin, ...]:
    """The generators (`TOPOLOGIES`) or schedules (`SCHEDULES`) of other distributions, by name."""
    entries = sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))
    many = Counter(entry.name for entry in entries)
    own: Mapping[str, object] = METHODS if group == TOPOLOGIES else OWN_SCHEDULES

    def problem(name: str) -> str:
        if not NAME.fullmatch(name):
            return (
                "its name must be of a-z, 0-9 and -, at most 40 characters, and begin with a letter"
            )
        if name in own:
            return "its name is that of one of testbed's own"
        return (
            f"{many[name]} distributions provide this name; uninstall all but one"
            if many[name] > 1
            else ""
        )

    return tuple(Plugin(entry, problem(entry.name)) for entry in entries)


def plugin(group: str, name: str) -> Plugin | None:
    """The plugin of this name, None if it is one of the planner's own. Raises: BadFile - there is
    no such method or schedule.
    """
    own: Mapping[str, object] = METHODS if group == TOPOLOGIES else OWN_SCHEDULES
    if name in own:
        return None
    found = {one.name: one for one in plugins(group)}
    if name not in found:
        what, known = ("method" if group == TOPOLOGIES else "schedule"), [*own, *found]
        text = f"{what}: there is no {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
        raise BadFile([text], hint="testbed design methods lists them")
    return found[name]


def method(name: str) -> Callable[[Demand, Lab, Wanted], list[Found]]:
    """The method of this name; the answers of a third party's are checked. Raises: BadFile - there
    is none.
    """
    other = plugin(TOPOLOGIES, name)
    if other is None:
        return METHODS[name]
    return lambda demand, lab, wanted: _topologies(other, other.called(demand, lab, wanted), lab)


def schedule(name: str, shape: Shape) -> tuple[Send, ...]:
    """The sends of an all-gather by this schedule. Raises: BadFile - there is none of this name.
    BadPlugin, Infeasible.
    """
    other = plugin(SCHEDULES, name)
    if other is None:
        return tuple(OWN_SCHEDULES[name](shape))
    return _sends(other, other.called(shape), shape)


def _bounded(plugin: Plugin, answer: object, most: int, kind: type, what: str) -> list[Any]:
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes):
        plugin.fail(f"returned {type(answer).__name__}, wanted {what}")
    try:
        found = list(islice(answer, most + 1))
    except optics.Infeasible:
        raise
    except (Exception, SystemExit) as error:  # a generator function runs only now
        plugin.fail(f"failed: {type(error).__name__}: {error}", error)
    if len(found) > most:
        plugin.fail(f"returned more than {most} {what}")
    if strange := [one for one in found if not isinstance(one, kind)]:
        plugin.fail(
            f"returned {type(strange[0]).__name__} among its {what}, wanted {kind.__module__}.{kind.__name__}"
        )
    return found


def _topologies(plugin: Plugin, answer: object, lab: Lab) -> list[Found]:
    found = _bounded(plugin, answer, MOST_FOUND, Found, "topologies")
    if not found:
        plugin.fail(
            "returned no topology; to refuse a request it raises planner.model.demand.Infeasible"
        )
    try:
        return [_topology(plugin, one, lab) for one in found]
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, optics.TestbedError):
            raise
        plugin.fail(f"returned a topology with a value of a wrong kind: {error}", error)


def _topology(plugin: Plugin, found: Found, lab: Lab) -> Found:
    """The same with plain values, so that nothing behind them can differ later."""
    tokens = (found.name, *found.why)
    if len(tokens) > MOST_WHY + 1 or not all(
        isinstance(w, str) and len(w) <= MOST_WORDS and w.isprintable() for w in tokens
    ):
        plugin.fail(
            f"name and reasons must be printable lines: at most {MOST_WHY} of {MOST_WORDS} characters"
        )
    if found.segments:
        plugin.fail("returned packet switches; a generator can only return links")
    shape = found.shape
    if (index(shape.n), bool(shape.duplex)) != (lab.n, lab.duplex):
        kind = {True: "duplex", False: "simplex"}
        plugin.fail(
            f"{found.name}: {shape.n} ranks and {kind[bool(shape.duplex)]} links; wanted {lab.n} ranks and {kind[lab.duplex]} links"
        )
    rings = tuple(
        Ring(str(ring.group), tuple(index(rank) for rank in islice(ring.order, lab.n + 1)))
        for ring in shape.rings
    )
    matched = tuple((index(a), index(b)) for a, b in shape.matched)
    for order in [*(ring.order for ring in rings), *matched]:
        if (
            len(order) < 2
            or len(set(order)) < len(order)
            or not all(0 <= rank < lab.n for rank in order)
        ):
            plugin.fail(
                f"{found.name}: {_few(order)} is no order of at least two different ranks of 0 to {lab.n - 1}"
            )
    checked = Shape(lab.n, lab.degree, lab.duplex, rings, matched)
    sends, receives = Counter(a for a, _ in checked.links), Counter(b for _, b in checked.links)
    for rank in range(lab.n):
        if max(sends[rank], receives[rank]) > lab.degree:
            plugin.fail(
                f"{found.name}: rank {rank} is on {max(sends[rank], receives[rank])} links; each has {lab.degree} ports"
            )
    return Found(checked, found.name, tuple(found.why))


def _few(order: Sequence[int]) -> str:
    return f"({', '.join(map(str, order[:8]))}{', ...' if len(order) > 8 else ''})"


def _sends(plugin: Plugin, answer: object, shape: Shape) -> tuple[Send, ...]:
    links, sends = set(shape.links), []
    for given in _bounded(plugin, answer, MOST_SENDS, Send, "sends"):
        try:
            send = Send(
                index(given.step),
                index(given.src),
                index(given.dst),
                index(given.shard),
                float(given.part),
            )
        except (TypeError, ValueError) as error:
            plugin.fail(f"returned a send with a value of a wrong kind: {error}", error)
        if not 1 <= send.step <= MOST_STEPS:
            plugin.fail(f"{send}: steps count from 1 to {MOST_STEPS}")
        if (send.src, send.dst) not in links or not 0 <= send.shard < shape.n:
            plugin.fail(f"{send}: wanted a link of the topology, and a shard of 0 to {shape.n - 1}")
        if not (isfinite(send.part) and 0 < send.part <= 1):
            plugin.fail(f"{send}: a part is above 0 and at most 1")
        sends.append(send)
    return tuple(sorted(sends, key=lambda send: send.step))
