"""What knows the traffic of the job that runs: its attachments, what it sends, loses and saves.
Pure.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import cast

from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.attached import made_mark, views
from orchestrator.views.carried import lost_text, save_text, sent_text

KEPT = 40
"""So many points of an attachment are shown."""
LATEST = 20
"""Other figures are of so many exchanges or checkpoints."""


class Carrying:
    """Takes points of attachments, `collective` and `iteration`, of the newest run that has any."""

    def __init__(self) -> None:
        self._run = ""
        self._begin()
        self._fresh = False

    def _begin(self) -> None:
        self._attached: dict[str, deque[Point]] = {
            view.measurement: deque(maxlen=KEPT) for view in views()
        }
        self._exchanges: deque[Point] = deque(maxlen=LATEST)
        self._saves: deque[Point] = deque(maxlen=LATEST)

    def point(self, point: Point) -> None:
        """Take a point; one of a newer run forgets the older ones'."""
        run = point.tags.get("run", "")
        if run < self._run:
            return
        if run > self._run:
            self._fresh = self._fresh or bool(self._marks())
            self._run = run
            self._begin()
        match point.measurement:
            case name if name in self._attached:
                self._attached[name].append(point)
            case "collective" if "whole_bytes" in point.fields:
                self._exchanges.append(point)
            case "iteration" if "save_ms" in point.fields:
                self._saves.append(point)
            case _:
                return
        self._fresh = True

    def taken(self) -> bool:
        """Whether something changed since the last call."""
        fresh, self._fresh = self._fresh, False
        return fresh

    def text(self, *, ended: bool) -> list[tuple[str, str, bool]]:
        """A name, words, and whether it is trouble, for each. ended: the job has; what outlives it
        is still there.
        """
        return [
            (str(mark["name"]), str(mark["message"]), bool(mark["bad"]))
            for mark in self._marks(ended=ended)
        ]

    def json(self, *, ended: bool) -> Json:
        """As viewers receive it: marks (`made_mark`), and which hosts' packets are copied to
        where.
        """
        kinds = [
            (view, points)
            for view in views()
            if not ended and (points := self._attached[view.measurement])
        ]
        to, hosts = next(
            (copies for view, points in kinds if (copies := view.copies(points))[0]), ("", [])
        )
        return {
            "marks": cast(Json, self._marks(ended=ended)),
            "copied": {"to": to, "from": cast(Json, hosts)},
        }

    def _marks(self, *, ended: bool = False) -> list[dict[str, Json]]:
        kinds = [view for view in views() if view.outlives or not ended]
        found = [
            mark
            for view in kinds
            if (points := self._attached[view.measurement])
            for mark in view.marks(points)
        ]
        return found if ended else [*found, *self._sent(), *self._saved()]

    def _sent(self) -> list[dict[str, Json]]:
        if not self._exchanges:
            return []
        figures = {
            name: _sum(self._exchanges, name)
            for name in ("wire_bytes", "whole_bytes", "resent_bytes")
        }
        lost = [
            float(point.fields["lost_share"])
            for point in self._exchanges
            if "lost_share" in point.fields
        ]
        found = []
        if text := sent_text(figures):
            share = figures["wire_bytes"] / figures["whole_bytes"]
            found.append(made_mark("sends", text.removeprefix("sends "), share=min(1.0, share)))
        if lost:
            bound = float(self._exchanges[-1].fields.get("loss_bound", 0.0))
            figures |= {
                "lost_share": statistics.mean(lost),
                "lost_most": max(lost),
                "loss_bound": bound,
            }
            used = min(1.0, max(lost) / bound) if bound else None
            text = lost_text(figures).removeprefix("datagrams: ")
            found.append(made_mark("datagrams", text, share=used, bad=max(lost) > bound + 1e-9))
        return found

    def _saved(self) -> list[dict[str, Json]]:
        if not self._saves:
            return []
        first, last = (int(self._saves[k].fields.get("iter", 0)) for k in (0, -1))
        every = (last - first) / (len(self._saves) - 1) if len(self._saves) > 1 else float(last)
        each_ms = statistics.median(float(point.fields["save_ms"]) for point in self._saves)
        usual_ms = statistics.median(
            float(point.fields.get("iter_ms", 0.0)) for point in self._saves
        )
        figures = {"each_ms": each_ms, "every": every, "iteration_ms": each_ms / max(1.0, every)}
        share = figures["iteration_ms"] / (usual_ms + figures["iteration_ms"]) if usual_ms else None
        return [made_mark("saves", save_text(figures), share=share)]


def _sum(points: Sequence[Point] | deque[Point], name: str) -> float:
    return float(sum(float(point.fields.get(name, 0)) for point in points))
