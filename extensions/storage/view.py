"""How the storage of a job is shown."""

from __future__ import annotations

from extensions.storage.plan import PlannedStorage
from optics.plain import counted, hours_text
from orchestrator.views.attached import Figures, KeeperView


class StorageView(KeeperView):
    """It has no marks: its line says how far it is."""

    key = PlannedStorage.key
    measurement = key

    def kept(self, found: Figures) -> str:
        """What it has, and how fast it came: `checkpoint of iteration 312, 4 of 4 ranks, 198 Mb/s,
        3 min 05 s ago`.
        """
        text = "no checkpoint yet"
        if found["checkpoint"]:
            text = f"checkpoint of iteration {found['checkpoint']}, {found['ranks']} of {found['of']} ranks"
            mbps = float(found["mbps"])
            text += f", {mbps:.{0 if mbps >= 10 else 2}f} Mb/s"
            text += f", {hours_text(float(found['age_s']))} ago" if "age_s" in found else ""
        unsent = int(found["unsent"])
        return f"{text}; {counted(unsent, 'checkpoint')} not sent" if unsent else text


VIEW = StorageView()
