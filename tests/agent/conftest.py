"""Private hosts for committers, and a small emulated lab for everything above them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.agent.ranks import Job
from tests.agent.space import Peer, Space, facts


@pytest.fixture(scope="module")
def spaces() -> Iterator[Callable[[str], Space]]:
    """Makes private hosts; all of them are gone after the last test of a file."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    made: list[Space] = []

    def make(name: str) -> Space:
        made.append(Space(name))
        return made[-1]

    yield make
    for space in made:
        space.end()


@pytest.fixture(scope="module")
def shared_host(spaces: Callable[[str], Space]) -> Space:
    """A provisioned host with two ports, joined to a far end that is nobody's committer, its own
    committer running.
    """
    here, other = spaces("gpu01"), spaces("far")
    for port in (1, 2):
        here.fibre(port, other, port)
    [made] = here.agent("provision", facts("gpu01", 1, 2))
    assert made.get("changed"), made
    here.far = other  # type: ignore[attr-defined]
    assert here.agent("start")[0].get("started") is True
    return here


@pytest.fixture
def host(shared_host: Space) -> Space:
    """The same host as every test of the file finds it: committer running, both ports lit, no
    generation.
    """
    both = "link set opt1 up\nlink set opt2 up\n"
    shared_host.far.run("ip", "-batch", "-", stdin=both)  # type: ignore[attr-defined]
    if not shared_host.ask("reload", "clear"):
        shared_host.agent("start")
        shared_host.ask("clear")
    return shared_host


@pytest.fixture
def peer(host: Space) -> Iterator[Peer]:
    """A channel to `host`'s committer that hears its events."""
    made = host.attach()
    made.ask("watch", links=True)
    yield made
    made.close()


@pytest.fixture
def start(host: Space, peer: Peer) -> Iterator[Callable[..., Job]]:
    """Starts jobs of two ranks; all of them are stopped at the end."""
    made: list[Job] = []

    def make(name: str = "j", **env: str) -> Job:
        made.append(Job(host, peer, name, **env))
        return made[-1]

    yield make
    for job in made:
        job.end()
