"""The rung `forwarding`: hosts ask each other, and count the links on the way.

Pairs grow with the square of the hosts. Beyond a number of pairs that the operator sets, only some
are asked: every pair that a link joins, and of the others as many from each host, drawn by a seed
that is reported. The rungs below check every link as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import TypeAlias

from optics import HostName, Link
from optics.plan import Plan
from orchestrator.fabric.next_hops import NextHops, follow, hops, lanes_of, next_hops
from orchestrator.hosts import Hosts
from orchestrator.inventory.lab import Lab
from orchestrator.verify.level import Finding
from orchestrator.verify.report import LevelResult, PairSample

PAIRS_S = 2.0
"""Longest time (s) for the pairs of a host to answer on one lane."""
Pair: TypeAlias = tuple[HostName, HostName]


@dataclass(frozen=True, slots=True)
class Asked:
    """How many ordered pairs are asked at most (None: all), and what draws them if there are
    more.
    """

    most: int | None = None
    seed: str = ""


def drawn(pairs: Collection[Pair], links: Iterable[Link], asked: Asked) -> Collection[Pair]:
    """Those of `pairs` to ask: all, or all that a link joins, and others up to the number, as many
    from each host.

    The same for the same arguments, on every machine and Python (`random.sample` with a seed of
    text).
    """
    if asked.most is None or len(pairs) <= asked.most:
        return pairs
    ends = {(link.a.host, link.b.host) for link in links}
    joined = {pair for pair in pairs if pair in ends or pair[::-1] in ends}
    others: dict[HostName, list[HostName]] = {}
    for source, target in sorted(pairs):
        if (source, target) not in joined:
            others.setdefault(source, []).append(target)
    found, left = set(joined), max(0, asked.most - len(joined))
    for done, (source, targets) in enumerate(
        sorted(others.items(), key=lambda each: (len(each[1]), each[0]))
    ):
        share = min(len(targets), left // (len(others) - done))
        left -= share
        found.update(
            (source, target) for target in Random(f"{asked.seed} {source}").sample(targets, share)
        )
    return found


async def check_forwarding(
    hosts: Hosts,
    plan: Plan,
    links: tuple[Link, ...],
    lab: Lab,
    mute: Collection[HostName] = (),
    asked: Asked = Asked(),
) -> Finding:
    """The ordered pairs that the links join, or the drawn ones of them, answer on every lane, at
    the planned number of hops.

    mute: hosts that do not answer: they send no probes, and their pairs count as wrong.
    """
    planned = _planned(plan, links, lab)
    every = {pair for pairs in planned.values() for pair in pairs}
    chosen = drawn(every, links, asked)
    wrong: dict[Pair, str] = {}
    stops = partial(
        _stops, cache(partial(next_hops, links, lanes_of(lab, links), plan.routes, plan.rings)), lab
    )
    # one after the other: leaves a running job bandwidth between the probes
    for lane, pairs in planned.items():
        questions: dict[HostName, dict[str, int | None]] = {}
        # A silent pair is waited for only once.
        now = {pair: pairs[pair] for pair in sorted(chosen) if pair in pairs and pair not in wrong}
        for (source, target), count in now.items():
            if source in mute:
                wrong[source, target] = f"{source}->{target}: {source} does not answer"
            else:
                questions.setdefault(source, {})[lab.hosts[target].lane_address(lane)] = count
        answers = await hosts.measure.probe(questions, timeout_s=PAIRS_S)
        silent = {
            (s, t)
            for s, t in now
            if s not in mute and not answers[s][lab.hosts[t].lane_address(lane)].ok
        }
        for (source, target), count in now.items():
            if source in mute:
                continue
            address = lab.hosts[target].lane_address(lane)
            seen = answers[source][address]
            if not seen.ok or seen.hops not in (None, count):
                short_of = "" if seen.ok else stops(source, target, lane, silent)
                why = (
                    f"{seen.hops} hops, planned {count}"
                    if seen.ok
                    else (seen.error or "no answer") + short_of
                )
                wrong[source, target] = f"{source}->{target}: lane {lane} ({address}): {why}"
    ok = f"pairs {len(chosen) - len(wrong)}/{len(chosen)}"
    if len(chosen) == len(every):
        return Finding(not wrong, f"{ok} at planned hop counts", tuple(wrong.values()))
    sample = PairSample(len(chosen), len(every), asked.seed)
    text = f"{ok} of {len(every)} at planned hop counts"
    return Finding(not wrong, text, tuple(wrong.values()), (unasked(sample),), pairs=sample)


def unasked(sample: PairSample) -> str:
    """What was not checked, in words."""
    left = sample.of - sample.asked
    return f"{left} of {sample.of} pairs of hosts were not asked (drawn by seed {sample.seed}); all: testbed verify --pairs all"


def _planned(plan: Plan, links: tuple[Link, ...], lab: Lab) -> dict[int, Mapping[Pair, int]]:
    """The planned number of hops of each pair, by lane; the same for all lanes unless routes are
    fixed.
    """
    lanes = range(lanes_of(lab, links))
    if plan.routes or any(
        lab.hosts[end.host].forwarding != "kernel" for link in links for end in (link.a, link.b)
    ):
        return {lane: hops(links, lab, plan.routes, lane=lane) for lane in lanes}
    return dict.fromkeys(lanes, hops(links, lab))


def _stops(
    chosen: Callable[[], NextHops],
    lab: Lab,
    source: HostName,
    target: HostName,
    lane: int,
    silent: Collection[Pair],
) -> str:
    """Between which hosts of the planned path answers end, empty if that is the first step or was
    not asked.
    """
    path = [source, *(hop.into.host for hop in follow(chosen(), lab, source, target, lane))]
    lost = next((at for at, host in enumerate(path) if (source, host) in silent), None)
    return (
        f"; {path[lost - 1]} answers, {path[lost]} does not"
        if lost is not None and lost > 1
        else ""
    )


def pairs_of(levels: Iterable[LevelResult]) -> tuple[int, int, int]:
    """The figures of the forwarding rung: pairs that answered as planned, pairs that were asked,
    pairs that were not.
    """
    for level in levels:
        if level.name == "forwarding" and (found := re.match(r"pairs (\d+)/(\d+)", level.detail)):
            return (
                int(found[1]),
                int(found[2]),
                level.pairs.of - level.pairs.asked if level.pairs else 0,
            )
    return 0, 0, 0
