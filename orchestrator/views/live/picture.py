"""The current state of a lab, updated from journal points and store records. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

from orchestrator.inventory.lab import Lab
from orchestrator.results import Json
from orchestrator.store.records import RunRecord
from orchestrator.store.verbs import verb_of
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.telemetry.names import OF_ATTACHMENTS
from orchestrator.views.live.carrying import Carrying
from orchestrator.views.live.events import Event, Events
from orchestrator.views.live.fabric import DARK, LIT, LOST, MAKING, LiveCircuit, live_circuits
from orchestrator.views.live.lab_state import LabState
from orchestrator.views.live.light import Light
from orchestrator.views.live.ranks import Ranks
from orchestrator.views.live.runs import KEPT, RunProgress, run_to_draw
from orchestrator.views.live.series import Counter, Series, Traffic
from orchestrator.views.live.slots import WAITS, TimeslotState
from orchestrator.views.live.training import Training
from orchestrator.views.services import Services

CARRIED = ("collective", *OF_ATTACHMENTS)
LATEST = 20
"""The iteration time shown is the median over so many iterations of one job."""
_TEXTS = {
    DARK: "go dark",
    MAKING: "are being made",
    LIT: "carry light",
    LOST: "lost their light",
    WAITS: "wait for their slot",
}
_WORD = {
    DARK: "goes dark",
    MAKING: "is being made",
    LIT: "carries light",
    LOST: "lost its light",
    WAITS: "waits for its slot",
}


@dataclass
class _Device:
    phase: str = "idle"
    since: float = 0.0
    message: str = ""


class Picture:
    """The state of a lab that views show. Times are wall-clock ms."""

    def __init__(self, lab: Lab, inventory: str = "") -> None:
        self.lab = lab
        self.devices = {name: _Device() for name in lab.devices}
        self.iterations = Series()
        self.traffic = Traffic()
        self.training = Training()
        self.ranks = Ranks()
        self.slots = TimeslotState()
        self.light = Light(self.slots)
        self.services = Services()
        self.events = Events(self.services.live)
        self.carrying = Carrying()
        self.state = LabState()
        self.switched: dict[str, str] = {}
        """The packet switch of each port of a plan that is connected to one."""
        self.runs: dict[str, RunProgress] = {}
        self.marks: dict[str, dict[str, Json]] = {}
        self.rates: dict[str, list[float | int | None]] = {}
        self.trouble: dict[str, str] = {}
        self.inventory = inventory
        self._counters: dict[str, Counter] = {}
        self.job: dict[str, Json] = {}
        self._latest: dict[tuple[str, str], deque[float]] = {}
        self._iterated = 0.0
        self._announced_job = ""
        self._dirty: set[str] = set()
        self._moved: set[str] = set()

    # -- input
    # ---------------------------------------------------------------------------------------------------------------

    def feed(self, point: Point) -> None:
        """Take one point of a journal. Points of other labs and of measurements that are not shown
        are ignored.
        """
        if point.tags.get("testbed") != self.lab.name:
            return
        at, run = point.time_ns / 1e6, point.tags.get("run", "")
        match point.measurement:
            case "port":
                self._port(point, at)
            case "phase":
                self._phase(point, run)
            case "phase_begin":
                _progress(self.runs, run).begin(point)
                self._dirty |= {"move", "run"}
            case "reconfig":
                self._reconfig(point, run)
            case "reconfig_device":
                self.training.device(point)
            case "ring_change" if not self.state.is_of_another_owner(run):
                changed, event, text, fields = self.training.change_rings(point)
                self.events.emit(self.events.not_before(changed), event, text, **fields)
                self._dirty.add("ring_changes")
            case "circuit":
                state = str(point.fields.get("state", ""))
                self._settle(self.light.note(point.tags["ocs"], point.tags["id"], at, state), at)
            case "device_phase":
                device = self.devices.get(point.tags["device"])
                if device is not None and at > device.since:
                    device.phase, device.since, device.message = str(point.fields["phase"]), at, ""
                    self._dirty.add("devices")
                    self.events.emit(
                        at,
                        "device",
                        f"{point.tags['device']}: {device.phase}",
                        device=point.tags["device"],
                        phase=device.phase,
                    )
            case "iteration":
                self._iteration(point, at)
            case name if name in CARRIED and not self.state.is_of_another_owner(run):
                self.carrying.point(point)
            case "rank" if not self.state.is_of_another_owner(run):
                self.ranks.point(point)
            case "slot" | "slot_host":
                self.slots.point(point)
            case name if name in self.services.of and not self.state.is_of_another_owner(run):
                if (news := self.services.point(point)) is not None:
                    self.events.emit(at, news[0], news[1], **news[2])

    def update(self, now: LabState, at: float) -> None:
        """Apply a snapshot of the store."""
        was, self.state = self.state, now
        self._announce_runs(was, now, at)
        links = [link for p in (now.plans or {}).values() for link in p.up.links]
        self.switched = {
            str(port): segment.name for port, segment in self.lab.switched(links).items()
        }
        remove = frozenset(s for m in now.moving for s in m.remove)
        add = frozenset(s for m in now.moving for s in m.add)
        held = now.held or {}
        changing = self.slots.scheduled_now and not remove and not add
        found = (
            self.slots.circuits(self.lab, held)
            if changing
            else live_circuits(self.lab, held, remove, add)
        )
        if self.light.update(
            found, (m.device for m in now.moving), at, running=self.running is not None
        ):
            self._dirty.add("circuits")
        self._settle(found.values(), at)
        self._update_devices(now, at)
        if now.job is not None:
            if was.job is None or was.job.id != now.job.id:
                self.job.clear()
            self.job |= {
                "name": now.job.name,
                "state": now.job.state,
                "detail": now.job.detail,
                "run": now.job.run,
            }
            self.job["ended"] = now.job.ended is not None
            if (text := f"{now.job.name} {now.job.state}") != self._announced_job:
                self._announced_job = text
                self.events.emit(
                    at,
                    "job",
                    f"job {now.job.name}: {now.job.state}",
                    job=now.job.name,
                    state=now.job.state,
                )
        self._dirty |= {"plan", "reserved", "run", "job", "move", "ring_changes"}

    def around(self, links: Iterable[str], at: float) -> None:
        """Apply the links that a guard found dead: `gpu01:p1--gpu02:p1`."""
        if self.light.around(links):
            self._settle(self.light.circuits.values(), at)

    def tick(self, now: float) -> None:
        """Forget carriers and rates that were not updated for too long."""
        if self.light.forget(now):
            self._settle(self.light.circuits.values(), now)
        for port, counter in self._counters.items():
            if self.rates[port][0] is not None and counter.mbps(now) is None:
                self._rate(port, None)

    def troubled(self, source: str, text: str) -> None:
        """Set a reason why the picture is incomplete; empty if it is complete."""
        if text != self.trouble.get(source, ""):
            self.trouble = {k: v for k, v in {**self.trouble, source: text}.items() if v}
            self._dirty.add("trouble")

    def count(self, port: str, at: float, sent: int, received: int) -> None:
        """Apply the bytes that a port had sent and received at a time."""
        counter = self._counters.setdefault(port, Counter())
        counter.add(port, at, sent, received, self.traffic)
        self._rate(port, counter.mbps(at))
        self._dirty.add("throughput")

    def carrier(self, port: str, at: float, lit: bool) -> None:
        """Apply the carrier state of a port at a time."""
        self._settle(self.light.carrier(port, at, lit, running=self.running is not None), at)

    def settle(self, at: float) -> None:
        """Apply carriers that hosts lost during a run, once the store was read: it lists moves
        before they happen.
        """
        self._settle(self.light.early(), at)
        begun = min(
            (r.started * 1e3 for r in self.state.runs if r.status == "running"), default=None
        )
        for ended, event, text, fields in self.training.judge(begun):
            self.events.emit(ended, event, text, **fields)

    def _port(self, point: Point, at: float) -> None:
        if point.tags["layer"] != "nic":
            return
        port = f"{point.tags['host']}:{point.tags['port']}"
        if "tx_bytes" in point.fields and "rx_bytes" in point.fields:
            self.count(port, at, int(point.fields["tx_bytes"]), int(point.fields["rx_bytes"]))
        if "oper" in point.fields:
            self.carrier(port, at, bool(point.fields["oper"]))

    def _rate(self, port: str, mbps: tuple[float, float] | None) -> None:
        lines: list[float | int | None] = (
            [None, None] if mbps is None else [round(mbps[0], 1), round(mbps[1], 1)]
        )
        if self.rates.get(port) != lines:
            self.rates[port] = lines
            self._moved.add(port)

    def _phase(self, point: Point, run: str) -> None:
        bar = _progress(self.runs, run).phase(point)
        self._dirty |= {"move", "run"}
        if bar.kind == "run":
            text = f"{bar.phase:<10} {bar.detail}" + ("" if bar.ok else "  FAILED")
            at = point.time_ns / 1e6 + bar.ms
            self.events.emit(
                at,
                "phase",
                text.rstrip(),
                run=run,
                phase=bar.phase,
                ms=round(bar.ms, 3),
                ok=bar.ok,
                detail=bar.detail,
            )

    def _reconfig(self, point: Point, run: str) -> None:
        progress = _progress(self.runs, run)
        progress.reconfig(point)
        figures = progress.figures
        self._mark(
            run,
            progress.at,
            progress.at + figures.get("total_ms", 0.0),
            dark_ms=figures.get("dark_ms"),
        )
        self._dirty.add("move")
        named = {k.removesuffix("_ms"): v for k, v in figures.items() if k.endswith("_ms")}
        text = ", ".join(
            f"{k} {v:.1f} ms" for k, v in named.items() if k in ("dark", "link", "route", "total")
        )
        moved = f"{figures.get('n_circuits', 0):.0f} circuits moved: {text}"
        self.events.emit(self.events.not_before(progress.at), "reconfig", moved, run=run, **figures)

    def _mark(self, run: str, at: float, end: float, **more: Json) -> None:
        self.marks[run] = {"at": round(at, 3), "end": round(end, 3), "run": run, **more}
        _forget(self.marks)
        self._dirty.add("marks")

    def _iteration(self, point: Point, at: float) -> None:
        if "iter_ms" not in point.fields:
            return
        took, of = float(point.fields["iter_ms"]), (point.tags["job"], point.tags.get("run", ""))
        if not self.state.is_of_another_owner(of[1]):
            self.carrying.point(point)
            self.iterations.set(at, took)
            self._dirty.add("iterations")
            if self.training.iteration(*of, int(point.fields.get("iter", 0)), at, took):
                self._dirty.add("ring_changes")
        latest = self._latest.setdefault(of, deque(maxlen=LATEST))
        latest.append(took)
        for old in list(self._latest)[:-KEPT]:
            del self._latest[old]
        mine = self.state.job
        if of == (mine.name, mine.run) if mine is not None else at >= self._iterated:
            self._iterated = at
            self.job |= {
                "of": of[0],
                "workload": point.tags["workload"],
                "iter": int(point.fields.get("iter", 0)),
                "iteration_ms": round(statistics.median(latest), 2),
                "last_at": at,
            }
            self._dirty.add("job")
        self.events.emit(
            at,
            "iteration",
            f"iteration {point.fields.get('iter', 0)}: {took:.1f} ms",
            job=of[0],
            iter_ms=took,
        )

    # -- circuits and devices
    # -------------------------------------------------------------------------------------------------

    def _settle(self, which: Collection[LiveCircuit], at: float) -> None:
        """Find the states of these circuits again; add one event per device and new state."""
        changed, news = self.light.settle(which, at)
        if changed:
            self._dirty.add("states")
        for (device, state), ids in news.items():
            self._dirty.add("devices")
            which_ones = ids[0] if len(ids) == 1 else f"{len(ids)} circuits"
            verb = (_WORD if len(ids) == 1 else _TEXTS)[state]
            self.events.emit(
                at,
                "circuits",
                f"{device}: {which_ones} {verb}",
                device=device,
                state=state,
                circuits=cast(Json, ids),
            )

    def _update_devices(self, now: LabState, at: float) -> None:
        moving = {m.device: m for m in now.moving}
        failed = now.failed or {}
        held = {s.ingress.device for s in now.held or ()}
        for name, device in self.devices.items():
            if (m := moving.get(name)) is not None:
                device.since, device.message = m.began * 1e3, f"-{len(m.remove)} +{len(m.add)}"
                self._device(name, "dark", device.since)
                if m.run not in self.marks:
                    self._mark(m.run, device.since, device.since)
                continue
            # points written before the view was opened are history
            device.since = device.since or at
            device.message = failed.get(name, "")
            phase = "fault" if name in failed else "up" if name in held else "idle"
            if phase != device.phase:
                device.since = at
                self._device(name, phase, at)

    def _device(self, name: str, phase: str, at: float) -> None:
        if self.devices[name].phase != phase:
            self.devices[name].phase = phase
            self._dirty.add("devices")
            self.events.emit(at, "device", f"{name}: {phase}", device=name, phase=phase)

    def _announce_runs(self, was: LabState, now: LabState, at: float) -> None:
        before = {r.id: r.status for r in was.runs}
        for run in reversed(now.runs):
            title = f"{run.verb} {run.plan_name}".rstrip()
            if run.id not in before and run.status == "running":
                self.events.emit(
                    run.started * 1e3,
                    "run",
                    f"run {run.id}: {title} begins ({run.user})",
                    run=run.id,
                    status="running",
                )
            elif run.status != "running" and before.get(run.id, "running") == "running":
                if run.status != "ok" and run.id in self.marks:
                    self.marks[run.id]["status"] = run.status
                    self._dirty.add("marks")
                if self.events.replaying:  # not an event of a change, but worth showing
                    at = (run.ended or run.started) * 1e3
                    self.events.log.append(
                        Event(0, at, "run", ended_text(run), {"run": run.id, "status": run.status})
                    )
                self.events.emit(at, "run", ended_text(run), run=run.id, status=run.status)

    # -- output
    # ---------------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> RunRecord | None:
        """The newest run that has not ended."""
        return next((r for r in self.state.runs if r.status == "running"), None)

    @property
    def doing(self) -> str:
        """What the newest run that has not ended does: its phase, else the step that it wrote
        down.
        """
        running = self.running
        working = (
            self.runs[running.id].working if running is not None and running.id in self.runs else {}
        )
        return next(reversed(working), self.state.doing)

    @property
    def ring_change(self) -> dict[str, Json] | None:
        """The latest ring change of the job that runs."""
        job = self.state.running_job
        return None if job is None else self.training.last_of(job.name, job.started * 1e3)

    @property
    def move(self) -> RunProgress | None:
        """The run whose waterfall is shown: of one that changes light again and again only if
        nothing else moved any.
        """
        running = self.running
        return run_to_draw(
            self.runs.values(), running.id if running and not verb_of(running.verb).lasting else ""
        )

    def taken(self) -> tuple[set[str], set[str], list[Event]]:
        """Return the changes since the last call: names of sections, ports with other rates, events
        of the log.
        """
        dirty, self._dirty = self._dirty, set()
        moved, self._moved = self._moved, set()
        return dirty, moved, self.events.taken()


def ended_text(run: RunRecord) -> str:
    """How a run ended, in a line."""
    first = (run.message.splitlines() or [""])[0]
    title = f"{run.verb} {run.plan_name}".rstrip()
    return f"run {run.id}: {title} {run.status}" + (
        f": {first}" if first and run.status != "ok" else ""
    )


def _progress(runs: dict[str, RunProgress], run: str) -> RunProgress:
    progress = runs.setdefault(run, RunProgress(run))
    _forget(runs)
    return progress


def _forget(runs: MutableMapping[str, Any]) -> None:
    """Drop all but the newest runs, which sort last."""
    for old in sorted(runs)[:-KEPT]:
        del runs[old]
