"""How functions of packet switches are shown that a job was lent: a line, a bar, and a part of the
report.
"""

from __future__ import annotations

from collections.abc import Sequence

from extensions.switch_functions.plan import PlannedFunctions
from optics.plain import share_text
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.attached import Figures, Mark, View, made_mark
from orchestrator.views.report.ledger import quoted
from orchestrator.views.report.model import ReportContext, ReportSection, result_table


class FunctionsView(View):
    """Shown while the job has them."""

    key = PlannedFunctions.key
    measurement = "function"

    def text(self, found: Figures) -> str:
        """What a packet switch does for a job: `aggregate at ideal: 15 of 64 slots, ...`."""
        text = f"{found['function']} at {found['segment']}"
        if found.get("state", "leased") != "leased":
            return f"{text}: " + (
                "its switch does not answer"
                if found["state"] == "silent"
                else "the switch has it no more: job stop"
            )
        noun = "entries" if found["function"] == "cache" else "slots"
        parts = [
            f"{found['size']} of {found['total']} {noun}"
            if "total" in found
            else f"{found['size']} {noun}"
        ]
        if asked := int(found.get("gets", 0)):
            parts += [
                f"{share_text(int(found.get('hits', 0)) / asked)} of {asked} questions answered",
                f"{found.get('stored', 0)} in use",
            ]
        elif packets := int(found.get("packets_in", 0)):
            parts += [f"{packets} packets in", f"{found.get('sums', 0)} sums"]
            again = int(found.get("duplicates", 0)) / packets
            parts += [f"{share_text(again)} sent again"] if again else []
        parts += [f"lease {float(found['lease_left_s']):.0f} s"] if "lease_left_s" in found else []
        return f"{text}: {', '.join(parts)}"

    def marks(self, points: Sequence[Point]) -> Sequence[Mark]:
        latest = {(point.tags["function"], point.tags["segment"]): point for point in points}
        return [self._mark(point) for _, point in sorted(latest.items())]

    def _mark(self, point: Point) -> Mark:
        figures = {**point.fields, **{name: point.tags[name] for name in ("function", "segment")}}
        asked, total = int(figures.get("gets", 0)), int(figures.get("total", 0))
        share = (
            int(figures.get("hits", 0)) / asked
            if asked
            else int(figures["size"]) / total
            if total
            else None
        )
        text = self.text(figures)
        return made_mark(
            point.tags["function"], text.removeprefix(f"{point.tags['function']} "), share=share
        )

    def section(self, c: ReportContext, made: ReportSection, where: str) -> None:
        shared = {
            "segment": "segment",
            "size": "had",
            "total": "of",
            "each_bytes": "size of one",
            "packets_in": "packets in",
        }
        shared |= {"bytes_in": "bytes in", "bytes_out": "bytes out"}
        own = {
            "aggregate": {"sums": "sums complete", "duplicates": "parts sent again"},
            "cache": {
                "gets": "questions",
                "hits": "answered",
                "stored": "entries in use",
                "evicted": "made room",
            },
        }
        for name, more in own.items():
            answer = c.book.query(
                name,
                f"what packet switches had counted for the job's function {name} when they were asked last",
                f"SELECT MAX(time_ns) AS time_ns, {', '.join({**shared, **more})} FROM function WHERE {where}"
                f" AND function = {quoted(name)} GROUP BY segment ORDER BY segment",
            )
            if not answer:
                del c.book.answers[name]
                continue
            heads = {
                **shared,
                **more,
                "segment": f"{name} at",
                "size": "slots" if name == "aggregate" else "entries",
            }
            made.tables.append(result_table(answer, heads))


VIEW = FunctionsView()
