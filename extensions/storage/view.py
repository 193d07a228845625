"""How the storage of a job is shown: a line, and a mark for viewers."""

from __future__ import annotations

from collections.abc import Sequence

from extensions.storage.plan import PlannedStorage
from optics.plain import counted
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.attached import Figures, Mark, View, made_mark


class StorageView(View):
    """Its checkpoints are there when the job has ended, too."""

    key = PlannedStorage.key
    measurement = "storage"
    outlives = True

    def text(self, found: Figures) -> str:
        """What is kept, and how fast it came: `storage on gpu07: checkpoint of iteration 312, 4 of
        4 ranks, 198 Mb/s`. Of a job that was launched without, why.
        """
        if "missing" in found:
            return str(found["missing"])
        text = f"storage on {found['host']}: "
        if found["checkpoint"]:
            text += f"checkpoint of iteration {found['checkpoint']}, {found['ranks']} of {found['of']} ranks"
            mbps = float(found["mbps"])
            text += f", {mbps:.{0 if mbps >= 10 else 2}f} Mb/s"
        else:
            text += "no checkpoint yet"
        if found["unsent"]:
            text += f"; {counted(int(found['unsent']), 'checkpoint')} not sent"
        running = found.get("state", "running") == "running"
        return text if running else f"{text}; it is {found['state']}"

    def marks(self, points: Sequence[Point]) -> Sequence[Mark]:
        newest = points[-1].fields
        text = f"on {newest.get('host', '')}: checkpoint of iteration {newest.get('iter', 0)}, rank {newest.get('rank', 0)}"
        return [made_mark("storage", text)]


VIEW = StorageView()
