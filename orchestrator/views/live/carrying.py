"""What knows the traffic of the job that runs: shadow, functions of packet switches, what it sends, loses and saves. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import cast

from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.carried import function_words, lost_words, save_words, sent_words, shadow_words

KEPT = 40
"""So many iterations of a shadow are shown."""
LATEST = 20
"""Other figures are of so many exchanges or checkpoints."""
BEHIND = 5
"""A checkpoint that is so many iterations older than the newest that was judged is trouble."""
EQUAL, FETCHED, FLAGGED = "equal", "fetched", "flagged"


class Carrying:
    """Takes points `shadow`, `function`, `collective` and `iteration`, of the newest run that has any."""

    def __init__(self) -> None:
        self._run = ""
        self._begin()
        self._fresh = False

    def _begin(self) -> None:
        self._judged: deque[Point] = deque(maxlen=KEPT)
        self._functions: dict[tuple[str, str], Point] = {}
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
            case "shadow":
                self._judged.append(point)
            case "function":
                self._functions[point.tags["function"], point.tags["segment"]] = point
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

    def words(self, *, ended: bool) -> list[tuple[str, str, bool]]:
        """A name, words, and whether it is trouble, for each. ended: the job has; its shadow's checkpoint is still there."""
        return [(str(mark["name"]), str(mark["words"]), bool(mark["bad"])) for mark in self._marks(ended=ended)]

    def json(self, *, ended: bool) -> Json:
        """As viewers receive it: marks, each with `share` (of a bar, 0 to 1) or `cells` (of iterations), and who is tapped."""
        newest = self._judged[-1].fields if self._judged else {}
        taps = str(newest.get("taps", "")).split() if not ended else []
        return {"marks": cast(Json, self._marks(ended=ended)), "shadow": str(newest.get("host", "")), "taps": cast(Json, taps)}

    def _marks(self, *, ended: bool = False) -> list[dict[str, Json]]:
        found = [self._shadow()] if self._judged else []
        if not ended:
            found += [self._function(point) for _, point in sorted(self._functions.items())]
            found += [*self._sent(), *self._saved()]
        return found

    def _shadow(self) -> dict[str, Json]:
        cells = [_verdict(point) for point in self._judged]
        newest = self._judged[-1].fields
        lags = [float(point.fields["lag_ms"]) for point in self._judged if "lag_ms" in point.fields][-LATEST:]
        figures: dict[str, int | float | str] = {name: str(newest.get(name, "")) for name in ("host", "taps")}
        figures |= {"equal": len(cells) - cells.count(FLAGGED), "iterations": len(cells), "fetched": cells.count(FETCHED)}
        figures |= {name: int(newest.get(name, 0)) for name in ("checkpoint", "lost")}
        figures |= {"lag_ms": statistics.median(lags)} if lags else {}
        behind = int(newest.get("iter", 0)) - int(newest.get("checkpoint", 0))
        return _mark("shadow", shadow_words(figures).removeprefix("shadow "), bad=behind >= BEHIND, cells=cast(Json, cells))

    def _function(self, point: Point) -> dict[str, Json]:
        figures = {**point.fields, **{name: point.tags[name] for name in ("function", "segment")}}
        asked, total = int(figures.get("gets", 0)), int(figures.get("total", 0))
        share = int(figures.get("hits", 0)) / asked if asked else int(figures["size"]) / total if total else None
        words = function_words(figures)
        return _mark(point.tags["function"], words.removeprefix(f"{point.tags['function']} "), share=share)

    def _sent(self) -> list[dict[str, Json]]:
        if not self._exchanges:
            return []
        figures = {name: _sum(self._exchanges, name) for name in ("wire_bytes", "whole_bytes", "resent_bytes")}
        lost = [float(point.fields["lost_share"]) for point in self._exchanges if "lost_share" in point.fields]
        found = []
        if words := sent_words(figures):
            share = figures["wire_bytes"] / figures["whole_bytes"]
            found.append(_mark("sends", words.removeprefix("sends "), share=min(1.0, share)))
        if lost:
            bound = float(self._exchanges[-1].fields.get("loss_bound", 0.0))
            figures |= {"lost_share": statistics.mean(lost), "lost_most": max(lost), "loss_bound": bound}
            used = min(1.0, max(lost) / bound) if bound else None
            words = lost_words(figures).removeprefix("datagrams: ")
            found.append(_mark("datagrams", words, share=used, bad=max(lost) > bound + 1e-9))
        return found

    def _saved(self) -> list[dict[str, Json]]:
        if not self._saves:
            return []
        first, last = (int(self._saves[k].fields.get("iter", 0)) for k in (0, -1))
        every = (last - first) / (len(self._saves) - 1) if len(self._saves) > 1 else float(last)
        each_ms = statistics.median(float(point.fields["save_ms"]) for point in self._saves)
        usual_ms = statistics.median(float(point.fields.get("iter_ms", 0.0)) for point in self._saves)
        figures = {"each_ms": each_ms, "every": every, "iteration_ms": each_ms / max(1.0, every)}
        share = figures["iteration_ms"] / (usual_ms + figures["iteration_ms"]) if usual_ms else None
        return [_mark("saves", save_words(figures), share=share)]


def _mark(name: str, words: str, *, share: float | None = None, bad: bool = False, cells: Json = None) -> dict[str, Json]:
    return {"name": name, "words": words, "bad": bad, "share": None if share is None else round(share, 4), "cells": cells}


def _verdict(point: Point) -> str:
    if not point.fields.get("equal"):
        return FLAGGED
    return FETCHED if point.fields.get("fetched") else EQUAL


def _sum(points: Sequence[Point] | deque[Point], name: str) -> float:
    return float(sum(float(point.fields.get(name, 0)) for point in points))
