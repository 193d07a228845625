"""The state of a lab as JSON, section by section: what the page and `--jsonl` receive."""

from __future__ import annotations

from typing import cast

from orchestrator.results import Json, to_json
from orchestrator.store.records import RunRecord
from orchestrator.views.live.picture import Picture

_NEWEST = 30


def whole_picture(picture: Picture) -> dict[str, Json]:
    """Return everything, for a new viewer."""
    news = [e.json() for e in picture.events.log]
    return {
        "lab": _lab(picture),
        **{
            name: _section(picture, name)
            for name in (
                "plan",
                "reserved",
                "run",
                "circuits",
                "devices",
                "job",
                "move",
                "marks",
                "ring_changes",
                "trouble",
            )
        },
        "ranks": picture.ranks.json(),
        "slots": picture.slots.json(),
        "services": picture.services.json(),
        "carried": picture.carrying.json(ended=bool(picture.job.get("ended"))),
        "ports": {port: cast(Json, rates) for port, rates in picture.rates.items()},
        "iterations": cast(Json, picture.iterations.all()),
        "throughput": cast(Json, picture.traffic.series.all(picture.traffic.until)),
        "log": cast(Json, news[-_NEWEST:]),
    }


def changed_sections(picture: Picture) -> dict[str, Json]:
    """Return the changes since the last call: whole sections, and the new parts of `states`,
    `ports`, series and `log`.
    """
    dirty, moved, news = picture.taken()
    out: dict[str, Json] = {
        name: _section(picture, name)
        for name in sorted(dirty - {"states", "iterations", "throughput"})
    }
    if "states" in dirty and "circuits" not in dirty:
        out["states"] = cast(Json, dict(picture.light.states))
    if picture.ranks.taken():
        out["ranks"] = picture.ranks.json()
    if picture.slots.taken():
        out["slots"] = picture.slots.json()
    if picture.services.taken():
        out["services"] = picture.services.json()
    if picture.carrying.taken() or "job" in dirty:
        out["carried"] = picture.carrying.json(ended=bool(picture.job.get("ended")))
    if moved:
        out["ports"] = {port: cast(Json, picture.rates[port]) for port in moved}
    if "iterations" in dirty:
        out["iterations"] = cast(Json, picture.iterations.taken())
    if "throughput" in dirty and (points := picture.traffic.series.taken(picture.traffic.until)):
        out["throughput"] = cast(Json, points)
    if news:
        out["log"] = [e.json() for e in news]
    return out


def _section(picture: Picture, name: str) -> Json:
    """One section: plan, reserved, run, circuits, devices, job, move, marks, ring changes or trouble."""
    match name:
        case "plan":
            return [
                {
                    "owner": owner,
                    "name": p.plan_name,
                    "run": p.run,
                    "since": p.since * 1e3,
                    "generation": p.generation,
                    "segments": to_json(
                        sorted({s.name for s in picture.lab.switched(p.up.links).values()})
                    ),
                }
                for owner, p in (picture.state.plans or {}).items()
            ]
        case "reserved":
            return list(picture.state.reserved)
        case "run":
            newest = picture.running or next(iter(picture.state.runs), None)
            return None if newest is None else _run(picture, newest)
        case "circuits":
            return [
                {
                    "id": w.id,
                    "a": str(w.sender),
                    "b": str(w.receiver),
                    "path": list(w.path),
                    "devices": [d for d, _ in w.ports],
                    "owner": w.owner,
                    "state": picture.light.states[w.id],
                }
                for w in picture.light.circuits.values()
            ]
        case "devices":
            return {
                n: {"phase": d.phase, "since": d.since, "message": d.message}
                for n, d in picture.devices.items()
            }
        case "job":
            return {**picture.job, "message": picture.state.job_ended} if picture.job else None
        case "move":
            return _move(picture)
        case "marks":
            return [picture.marks[run] for run in sorted(picture.marks)]
        case "ring_changes":
            return [
                {**ring_change, "last": ring_change is picture.ring_change}
                for ring_change in picture.training.ring_changes.values()
            ]
    return list(picture.trouble.values())


def _lab(picture: Picture) -> dict[str, Json]:
    lab = picture.lab
    return {
        "name": lab.name,
        "inventory": picture.inventory,
        "hosts": [{"name": h.name, "ports": to_json(sorted(h.ports))} for h in lab.hosts.values()],
        "devices": [
            {"name": d, "driver": c.driver, "speed": lab.time_scale(d)}
            for d, c in lab.devices.items()
        ],
    }


def _run(picture: Picture, r: RunRecord) -> dict[str, Json]:
    return {
        "id": r.id,
        "verb": r.verb,
        "plan": r.plan_name,
        "status": r.status,
        "user": r.user,
        "doing": picture.doing if r.status == "running" else "",
        "started": r.started * 1e3,
        "seconds": r.seconds,
        "message": r.message,
    }


def _move(picture: Picture) -> Json:
    progress = picture.move
    if progress is None:
        return None
    record = next((r for r in picture.state.runs if r.id == progress.run), None)
    phases, parts = progress.rows()
    at_work = picture.running is not None and picture.running.id == progress.run
    measured = (
        picture.runs[run] for run in sorted(picture.runs, reverse=True) if picture.runs[run].figures
    )
    last = next(measured, None) if at_work else None  # until this one has its own
    return {
        "run": progress.run,
        "verb": record.verb if record else "",
        "plan": record.plan_name if record else "",
        "status": record.status if record else "",
        "began": progress.began,
        "figures": dict(progress.figures),
        "working": cast(
            Json, [[name, begin] for name, begin in progress.working.items()] if at_work else []
        ),
        "changed": any(
            ring_change["run"] == progress.run
            for ring_change in picture.training.ring_changes.values()
        ),
        "phases": cast(Json, phases),
        "parts": cast(Json, parts),
        "last": dict(last.figures) if last else {},
    }
