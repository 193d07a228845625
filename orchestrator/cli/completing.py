"""Shell completion: names from the chosen inventory and the run store, and files. No candidates
where reading them fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.inventory.lab import Lab

Completion = Callable[[typer.Context, str], list[str]]


def _named(names: Callable[[Lab], Iterable[str]]) -> Completion:
    """A completion by names of the lab that --inventory or the settings choose."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from orchestrator.session import load_lab
        from orchestrator.settings import load

        try:
            chosen = ctx.params.get("inventory") or ctx.find_root().params.get("inventory")
            found = set(names(load_lab(load({"inventory": chosen}).inventory)))
        except Exception:  # a failing completion must not print
            return []
        return sorted(name for name in found if name.startswith(incomplete))

    return complete


def _fibres_of(lab: Lab) -> set[str]:
    return {fibre.name for fibre in lab.fibres.values()} | {trunk.name for trunk in lab.trunks}


def _ports_of(lab: Lab) -> set[str]:
    ends = {str(port) for fibre in lab.fibres.values() for port in (fibre.enters, fibre.leaves)}
    return ends | {str(port) for trunk in lab.trunks for port in (trunk.start, trunk.end)}


hosts = _named(lambda lab: lab.hosts)
devices = _named(lambda lab: lab.devices)
faulty = _named(lambda lab: {*lab.devices, *lab.hosts, *lab.segments})
cables = _named(
    lambda lab: (
        _fibres_of(lab) | {name for segment in lab.segments.values() for name in segment.cables}
    )
)
avoidable = _named(
    lambda lab: {*map(str, lab.fibres), *_fibres_of(lab), *_ports_of(lab), *lab.devices}
)
taggable = _named(
    lambda lab: {
        *_fibres_of(lab),
        *_ports_of(lab),
        *lab.devices,
        *lab.hosts,
        *map(str, lab.fibres),
        *lab.segments,
        "list",
        "remove",
    }
)


def levels(incomplete: str) -> list[str]:
    """Rungs of the verification ladder."""
    from orchestrator.verify.level import LEVELS

    return [name for name in LEVELS if name.startswith(incomplete)]


def drivers(incomplete: str) -> list[str]:
    """Names of drivers."""
    from drivers.registry import known_drivers

    return [name for name in known_drivers() if name.startswith(incomplete)]


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Run ids, newest first, and `last`, each with what it was."""
    from orchestrator.cli.call import Call

    try:
        call = Call()
        if not call.settings.store_path.exists():
            return []
        with call.store() as store:
            found = [(r.id, f"{r.verb} {r.plan_name} {r.status}") for r in store.history(limit=50)]
    except Exception:  # a failing completion must not print
        return []
    return [item for item in [*found, ("last", "the newest run")] if item[0].startswith(incomplete)]


def lock_ids(incomplete: str) -> list[tuple[str, str]]:
    """Ids of locks that are held or waited for."""
    from orchestrator.cli.call import Call
    from orchestrator.session import load_lab
    from orchestrator.store.locks import locks_of

    try:
        call = Call()
        with call.store() as store:
            found = locks_of(load_lab(call.settings.inventory), call.settings, store).listed()
    except Exception:  # a failing completion must not print
        return []
    return [(one.id, str(one)) for one in found if one.id.startswith(incomplete)]


def _files(incomplete: str, *patterns: str, also: str = "") -> list[str]:
    """Files in the directory typed so far, and its subdirectories; those in `also`, too, as long as
    no directory is typed.
    """
    folder = Path(incomplete).parent if "/" in incomplete else Path()
    places = [folder, *([Path(also)] if also and folder == Path() else [])]
    try:
        found = {
            str(file) for place in places for pattern in patterns for file in place.glob(pattern)
        }
        found |= {
            f"{path}/"
            for path in folder.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        }
    except OSError:
        return []
    return sorted(path for path in found if path.startswith(incomplete))


def plans(incomplete: str) -> list[str]:
    """Plan files, including the examples."""
    return _files(incomplete, "*.json", also="examples")


def saved_plans(incomplete: str) -> list[str]:
    """JSON files, among them those written by `plan -o`."""
    return _files(incomplete, "*.json")


def workloads(incomplete: str) -> list[str]:
    """Workload files."""
    return _files(incomplete, "*.yaml", "*.yml", also="examples/workloads")
