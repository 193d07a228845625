"""How the storage of a job is shown."""

from __future__ import annotations

from extensions.storage.plan import PlannedStorage
from optics.plain import counted, hours_text
from orchestrator.views.attached import Figures, View


class StorageView(View):
    """It has no marks: its line says how far it is."""

    key = PlannedStorage.key
    measurement = "storage"

    def text(self, found: Figures) -> str:
        """What is kept, and how fast it came: `storage on gpu07: checkpoint of iteration 312, 4 of
        4 ranks, 198 Mb/s, 3 min 05 s ago`. Of a job that was launched without, why.
        """
        if "missing" in found:
            return str(found["missing"])
        text = f"storage on {found['host']}: "
        if found["checkpoint"]:
            text += f"checkpoint of iteration {found['checkpoint']}, {found['ranks']} of {found['of']} ranks"
            mbps = float(found["mbps"])
            text += f", {mbps:.{0 if mbps >= 10 else 2}f} Mb/s"
            text += f", {hours_text(float(found['age_s']))} ago" if "age_s" in found else ""
        else:
            text += "no checkpoint yet"
        if found["unsent"]:
            text += f"; {counted(int(found['unsent']), 'checkpoint')} not sent"
        running = found.get("state", "running") == "running"
        return text if running else f"{text}; it is {found['state']}"


VIEW = StorageView()
