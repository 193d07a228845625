"""What a reconfiguration looked like, for the journal: the duration of each step, per device and
per host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optics import DeviceName, HostName, Outcome
from optics.plan import Plan
from optics.values import setting_id, sort_key
from orchestrator.hosts import Committed
from orchestrator.inventory.lab import Lab, kind_of
from orchestrator.plan.target import Target
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verify.report import LevelResult


@dataclass
class Timeline:
    """Marks of one reconfiguration, monotonic ns of this machine; `verified_ns`, `resumed_ns`,
    `pause_ns` 0: not yet.

    power: when light left all new ports of a device. crossed: when a host's new neighbours had
    answered it.
    """

    outcomes: dict[DeviceName, Outcome] = field(default_factory=dict)
    committed: dict[HostName, Committed] = field(default_factory=dict)
    verified_ns: int = 0
    power: Mapping[DeviceName, int] = field(default_factory=dict)
    crossed: Mapping[HostName, int] = field(default_factory=dict)
    resumed_ns: int = 0
    lost_bytes: int | None = None
    pause_ns: int = 0

    @property
    def sent_ns(self) -> int:
        """When the first command was sent; 0 if no device was changed."""
        return min((o.sent_ns for o in self.outcomes.values()), default=0)

    @property
    def committed_ns(self) -> int:
        return max((c.commit_ns for c in self.committed.values()), default=0)

    @property
    def crossed_ns(self) -> int:
        """When packets crossed every new link; the last commit if that was not measured."""
        return max(self.crossed.values(), default=self.committed_ns)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a report (ms, of this lab); None if there was no such event."""

    dark_ms: float | None = None
    link_ms: float | None = None
    commit_ms: float | None = None


def record_levels(recorder: Recorder, levels: Sequence[LevelResult]) -> list[str]:
    """Write one `verify` point per rung, and return what was not checked."""
    for r in levels:
        if recorder.journal is None:
            break
        tokens = r.detail.split()
        figures = next(
            (w.split("/") for w in tokens if w.count("/") == 1 and w.replace("/", "").isdigit()),
            None,
        )
        recorder.journal.point(
            "verify",
            {"level": r.name},
            {
                "reconfig_id": recorder.reconfig_id,
                "ok": int(r.ok),
                "duration_ms": r.seconds * 1e3,
                "detail": r.detail,
                "passed": int(figures[0]) if figures else None,
                "total": int(figures[1]) if figures else None,
                "of": r.pairs.of if r.pairs else None,
                "seed": r.pairs.seed if r.pairs else None,
            },
        )
    return [note for r in levels if r.pairs for note in r.notes]


def record_timeline(
    recorder: Recorder, lab: Lab, goal: Target, plan: Plan, times: Timeline, trigger: str = "up"
) -> Figures:
    """Write the reconfiguration to the journal and return its figures. trigger: the verb that asked
    for it.

    dark: from a device's removals acknowledged (its first command where there were none) to its own
    report of the new state. link: from there to the last carrier; the hosts may see light before
    the device reports it, then 0. commit: from a host's last carrier to its commit, the slowest
    host.
    """
    outcomes, committed = times.outcomes, times.committed
    if not outcomes:
        return Figures()
    settled = max(o.settled_ns for o in outcomes.values())
    sent = min(o.sent_ns for o in outcomes.values())
    dark = max(o.settled_ns - o.broken_ns for o in outcomes.values())
    links = {h: c.link_ns for h, c in committed.items() if c.link_ns is not None}
    link = max(0, max(links.values(), default=settled) - settled)
    commit = max((c.commit_ns - links[h] for h, c in committed.items() if h in links), default=0)
    for host, at in links.items():
        recorder.part("host", host, "light", sent, at, "first command to last carrier")
        recorder.part(
            "host",
            host,
            "commit",
            at,
            committed[host].commit_ns,
            f"generation {committed[host].generation}",
        )
    for host, at in times.crossed.items():
        recorder.part(
            "host",
            host,
            "first packet",
            committed[host].commit_ns,
            at,
            "commit to an answer over every new link",
        )
    for device, at in times.power.items():
        recorder.part(
            "device",
            device,
            "power",
            outcomes[device].settled_ns,
            at,
            "new state to light at every new port",
        )
    if recorder.journal is not None:
        spans = {"dark": dark, "link": link, "route": commit}
        if times.power:
            spans["power"] = max(0, max(times.power.values()) - settled)
        if times.crossed:
            spans["first_packet"] = times.crossed_ns - max(
                committed[host].commit_ns for host in times.crossed
            )
        if times.resumed_ns:
            spans["resume"] = max(0, times.resumed_ns - times.crossed_ns)
        if times.pause_ns:
            spans["pause"] = times.pause_ns
        _wide_point(recorder, goal, plan, times, spans, trigger)
        _device_points(recorder, lab, goal, times, links)
        _circuit_points(recorder, goal)
    return Figures(dark / 1e6, link / 1e6, commit / 1e6)


def _wide_point(
    recorder: Recorder,
    goal: Target,
    plan: Plan,
    times: Timeline,
    phases: Mapping[str, int],
    trigger: str,
) -> None:
    assert recorder.journal is not None
    sent = min(o.sent_ns for o in times.outcomes.values())
    spans = {
        "command": max(o.acked_ns for o in times.outcomes.values()) - sent,
        "ack": min(o.broken_ns for o in times.outcomes.values()) - sent,
        "total": max(times.verified_ns, sent) - sent,
        **phases,
    }
    changed = sum(len(c.remove) + len(c.add) for c in goal.change.changes.values())
    recorder.journal.point(
        "reconfig",
        {
            "job": plan.job.name if plan.job else "",
            "trigger": trigger,
            "policy": "drain" if plan.transition.drain else "direct",
            "ok": "1",
        },
        {
            "reconfig_id": recorder.reconfig_id,
            "seq": 1,
            "n_circuits": changed,
            "lost_bytes": times.lost_bytes,
            "value": 1,
            **{f"{name}_ns": ns for name, ns in spans.items()},
            **{f"{name}_ms": ns / 1e6 for name, ns in spans.items()},
        },
        sent,
    )


def _device_points(
    recorder: Recorder, lab: Lab, goal: Target, times: Timeline, links: Mapping[HostName, int]
) -> None:
    assert recorder.journal is not None
    journal = recorder.journal
    for device, o in times.outcomes.items():
        change = goal.late.changes[device]
        behind = {c.receiver.host for c in goal.circuits if any(x in change.add for x in c.path)}
        kind = kind_of(lab, device)
        carriers = [links[h] for h in behind if h in links]
        commits = [times.committed[h].commit_ns for h in behind if h in times.committed]
        journal.point(
            "reconfig_device",
            {"device": device, "kind": kind, "model": lab.devices[device].driver, "op": "change"},
            {
                "reconfig_id": recorder.reconfig_id,
                "t_send_ns": 0,
                "t_ack_ns": o.acked_ns - o.sent_ns,
                "t_dark_begin_ns": o.broken_ns - o.sent_ns,
                "t_dark_end_ns": o.settled_ns - o.sent_ns,
                "t_power_ns": times.power[device] - o.sent_ns if device in times.power else None,
                "t_link_up_ns": max(carriers) - o.sent_ns if carriers else None,
                "t_route_ns": max(commits) - o.sent_ns if commits else None,
                "n_ports": 2 * (len(change.remove) + len(change.add)),
                "writes": o.writes,
                "error": "; ".join(o.failed.values()),
            },
            o.sent_ns,
        )
        for phase, at in (
            ("command", o.sent_ns),
            ("dark", o.broken_ns),
            ("settle", o.acked_ns),
            ("up", o.settled_ns),
        ):
            journal.point(
                "device_phase",
                {"device": device, "kind": kind},
                {"phase": phase, "reconfig_id": recorder.reconfig_id},
                at,
            )


def _circuit_points(recorder: Recorder, goal: Target) -> None:
    """What was removed first: an ingress that has a new circuit is last seen with that."""
    assert recorder.journal is not None
    for device, ended in goal.change.removed.items():
        for x in sorted(ended, key=sort_key):
            recorder.journal.point(
                "circuit",
                {"ocs": device, "id": setting_id(x)},
                {"circuit": str(x), "state": "removed"},
            )
    for circuit in goal.circuits:
        for x in circuit.path:
            made = x in goal.change.made[x.ingress.device]
            recorder.journal.point(
                "circuit",
                {"ocs": x.ingress.device, "id": setting_id(x)},
                {
                    "circuit": str(circuit),
                    "source": circuit.transmitter.host,
                    "target": circuit.receiver.host,
                    "state": "made" if made else "up",
                    "loss_db": circuit.loss_db,
                },
            )
