"""Labels for interchangeable hosts: as good as the best where all are weighed, never worse than
none, and the same every time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from optics import HostPort, Infeasible, Link, LinkKind
from optics.plan import WantedLink, host_of
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.plan.interchangeable import (
    Labels,
    alike,
    difference,
    labels_between,
    relabelled_text,
)
from orchestrator.plan.label_search import _Search, labels
from orchestrator.plan.reader import read_plan
from orchestrator.plan.relabel import relabelled
from orchestrator.plan.target import target
from tests.properties.labs import inventory, lab, name, planes

seeds = st.integers(0, 100_000)


def kept_links(links: Sequence[WantedLink], live: Sequence[Link], by: Labels) -> int:
    """How many of the live links a labelling keeps."""
    search = _Search(links, (), live)
    return search.kept({host: by.get(host, host) for host in search.hosts})


def moved(links: Sequence[Link], places: Sequence[int]) -> tuple[Link, ...]:
    """The same links, host k at places[k]."""

    def at(end: HostPort) -> HostPort:
        return HostPort(name(places[int(end.host[3:]) - 1]), end.number)

    return tuple(Link(at(link.a), at(link.b), link.kind) for link in links)


def wanted(links: Sequence[Link], random: Random, bare: float) -> list[WantedLink]:
    """The links, some ends without their port, some one-way."""
    found = []
    for link in links:
        kind = LinkKind.SIMPLEX if random.random() < 0.2 else LinkKind.DUPLEX
        a, b = (end.host if random.random() < bare else end for end in (link.a, link.b))
        found.append(WantedLink(a, b, kind))
    return found


@given(st.integers(3, 5), st.integers(1, 2), st.sampled_from([0.0, 1.0]), seeds)
def test_few_hosts_get_the_best_labels_there_are(
    count: int, degree: int, bare: float, seed: int
) -> None:
    random = Random(seed)
    links, live = wanted(planes(count, degree, random), random, bare), planes(count, degree, random)
    hosts = [name(k) for k in range(count)]
    cut = random.randint(1, count)
    groups = [hosts[:cut], hosts[cut:]]
    choices = [
        dict(zip(hosts, (*one, *other), strict=True))
        for one in permutations(groups[0])
        for other in permutations(groups[1])
    ]
    best = max(kept_links(links, live, by) for by in choices)
    found = labels(links, groups, live)
    assert kept_links(links, live, found) == best
    assert {**dict.fromkeys(hosts), **{host: host for host in hosts}, **found} in choices


@given(st.integers(9, 16), st.integers(1, 4), seeds)
@effort(max_examples=5)
def test_labels_never_keep_less_than_the_plan_as_written_or_the_labels_there_are(
    count: int, degree: int, seed: int
) -> None:
    random = Random(seed)
    links, live = (
        wanted(planes(count, degree, random), random, random.random()),
        planes(count, degree, random),
    )
    hosts = [name(k) for k in range(count)]
    start = dict(zip(hosts, random.sample(hosts, count), strict=True))
    found = labels(links, [hosts], live, start)
    assert sorted({**{host: host for host in hosts}, **found}.values()) == hosts, (
        "no host takes two places"
    )
    kept = kept_links(links, live, found)
    assert kept >= kept_links(links, live, {}) and kept >= kept_links(links, live, start)
    assert found == labels(links, [hosts], live, start)


@pytest.mark.parametrize("count", [12, 24, 128])
@pytest.mark.parametrize("shape", ["ring", "two rings", "torus"])
def test_a_plan_that_is_up_under_other_names_is_found_again(count: int, shape: str) -> None:
    steps = {"ring": (1,), "two rings": (1, 5), "torus": (1, 4)}[shape]
    links = [
        Link(HostPort(name(k), 2 * i + 1), HostPort(name((k + step) % count), 2 * i + 2))
        for i, step in enumerate(steps)
        for k in range(count)
    ]
    hosts = [name(k) for k in range(count)]
    live = moved(links, Random(count).sample(range(count), count))
    bare = [WantedLink(link.a.host, link.b.host) for link in links]
    assert kept_links(bare, live, {}) < len(links) // 2
    assert kept_links(bare, live, labels(bare, [hosts], live)) == len(links)


def test_a_large_lab_keeps_half_as_much_again_of_another_topology() -> None:
    hosts = [name(k) for k in range(128)]
    ring, other = (
        [WantedLink(hosts[k], hosts[(k + step) % 128]) for step in steps for k in range(128)]
        for steps in ((1, 3), (1, 5))
    )
    live = [
        Link(HostPort(host_of(x.a), 1 + i), HostPort(host_of(x.b), 11 + i))
        for i, x in enumerate(other)
    ]
    assert (
        kept_links(ring, live, {}) == 128
        and kept_links(ring, live, labels(ring, [hosts], live)) >= 192
    )


def body(**more: object) -> dict[str, object]:
    links = [
        {"a": f"gpu0{k}:p{2 - k % 2}", "b": f"gpu0{k % 4 + 1}:p{2 - k % 2}"} for k in range(1, 5)
    ]
    return {"schema": "testbed.plan/1", "name": "ring", "links": links, **more}


def test_ranks_rings_and_routes_follow_the_labels() -> None:
    ranks = ["gpu01", "gpu02", "gpu03", "gpu04"]
    job = {"name": "j", "workload": "train", "ranks": ranks, "rings": [ranks]}
    text = json.dumps(
        body(job=job, routes=[{"src": "gpu01", "dst": "gpu03", "via": ["gpu02"]}], x_mine="gpu01")
    )
    by = {"gpu01": "gpu05", "gpu02": "gpu01", "gpu05": "gpu02"}
    changed = relabelled_text(text, by)
    plan = read_plan(changed, "ring", lab(6, 2))
    assert (
        plan.job is not None
        and plan.job.ranks == ("gpu05", "gpu01", "gpu03", "gpu04")
        and plan.rings == (plan.job.ranks,)
    )
    assert (
        plan.routes[0].path == ("gpu05", "gpu01", "gpu03")
        and str(plan.links[0]) == "gpu05:p1 -- gpu01:p1"
    )
    assert labels_between(text, changed) == {"gpu01": "gpu05", "gpu02": "gpu01"}
    assert labels_between(text, relabelled_text(text, {})) == {}
    assert (
        labels_between(text, json.dumps(body(name="other"))) is None
        and labels_between(text, "no plan") is None
    )


def with_gpus(count: int, host: str, gpus: int) -> Lab:
    texts = inventory(count, 2)
    return read_lab(
        texts[0].replace(f"{host}:\n", f"{host}:\n      testbed_gpus: {gpus}\n"), texts[1], texts[2]
    )


def test_hosts_that_differ_are_not_interchangeable() -> None:
    here = with_gpus(4, "gpu02", 8)
    assert difference("gpu01", "gpu02", here) == "GPUs 0, gpu02 has 8" and not difference(
        "gpu01", "gpu03", here
    )
    assert alike([name(k) for k in range(4)], here) == (("gpu01", "gpu03", "gpu04"),)
    plan = read_plan(json.dumps(body(interchangeable="all")), "ring", here)
    assert plan.interchangeable == (("gpu01", "gpu03", "gpu04"),)


def test_a_relabelled_plan_moves_less_and_the_second_time_nothing() -> None:
    here = lab(6, 2)
    dark = {device: frozenset() for device in here.devices}
    up = json.dumps(body(interchangeable=[[name(k) for k in range(6)]]))
    places = {
        "gpu01": "gpu04",
        "gpu02": "gpu05",
        "gpu03": "gpu02",
        "gpu04": "gpu06",
        "gpu05": "gpu03",
        "gpu06": "gpu01",
    }
    live = target(read_plan(relabelled_text(up, places), "ring", here), here, dark, ()).wanted
    observed = {device: frozenset(live.get(device, ())) for device in here.devices}
    owned = [setting for held in live.values() for setting in held]
    plan = read_plan(up, "ring", here)
    other, text, report = relabelled(plan, up, here, observed, owned)
    assert (
        report.moves == 0
        and report.moves_saved == report.moves_as_written
        and report.moves_as_written
    )
    assert not target(other, here, observed, owned).moving
    again, text2, report = relabelled(plan, up, here, observed, owned, text)
    assert (again.sha256, text2) == (other.sha256, text) and report.moves == 0
    assert str(report).startswith(
        f"relabel: {report.moves_as_written} of {report.moves_as_written} moves saved: gpu0"
    )
    fixed = read_plan(json.dumps(body()), "ring", here)
    same, _, report = relabelled(fixed, json.dumps(body()), here, observed, owned)
    assert same is fixed and not report.labels and report.moves == report.moves_as_written


def test_labels_that_are_up_are_kept_where_the_plan_as_written_does_not_fit_and_no_fit_at_all_is_refused() -> (
    None
):
    here = lab(4, 1)
    taken = {**body(), "links": [{"a": "gpu01:p1", "b": "gpu02:p1"}]}
    theirs = target(
        read_plan(json.dumps(taken), "theirs", here), here, {"ocs1": frozenset()}, ()
    ).wanted
    text = json.dumps(
        {**body(), "links": [{"a": "gpu01", "b": "gpu03"}], "interchangeable": [["gpu01", "gpu04"]]}
    )
    plan = read_plan(text, "p", here)
    up = relabelled_text(text, {"gpu01": "gpu04", "gpu04": "gpu01"})
    other, _, report = relabelled(plan, text, here, theirs, (), up)
    assert (
        report.moves_as_written is None
        and str(other.links[0]) == "gpu04 -- gpu03"
        and "possible only so" in str(report)
    )
    with pytest.raises(Infeasible, match="gpu01 needs 1 more ports"):
        relabelled(plan, text, here, theirs, ())
