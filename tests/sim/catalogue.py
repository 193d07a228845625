"""All plots by name, and what each seed decides. A new plot has a line here."""

from __future__ import annotations

from collections.abc import Collection

from tests.sim import plots
from tests.sim.adapters import Adapters
from tests.sim.guards import Guards
from tests.sim.jobs import Jobs
from tests.sim.pacing import Pacing
from tests.sim.plots import Plot
from tests.sim.queues import Queues
from tests.sim.recover import Recover
from tests.sim.schedulers import Schedulers
from tests.sim.story import Fate, Typed

PLOTS: dict[str, type[Plot]] = {
    **plots.PLOTS,
    "guard": Guards,
    "turn": Schedulers,
    "jobs": Jobs,
    "queue": Queues,
    "recover": Recover,
    "adapt": Adapters,
    "pacing": Pacing,
}


def plot_of(seed: str) -> type[Plot]:
    """The plot of a seed. Raises: KeyError."""
    return PLOTS[seed.rpartition("-")[0]]


def decisions(seed: str, without: Collection[str] = ()) -> tuple[list[Typed], list[Fate]]:
    """As `story.decisions`, of the seed's plot."""
    return plot_of(seed).decided(seed, without)


def names(seed: str) -> list[str]:
    """The names of its decisions."""
    typed, fates = decisions(seed)
    return [
        *(one.name for one in typed),
        *(one.kill for one in typed if one.doom[1]),
        *(one.name for one in fates),
    ]
