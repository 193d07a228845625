"""What the verbs print with `--json`."""

from extensions.pacing.coordinator import CoordinateReport
from extensions.pacing.report import PhasesReport
from extensions.pacing.service import CoordinateState

DATA = {
    "coordinate": (
        CoordinateReport,
        {"mltcp": list[str]},
        {"stopped": bool, "released": list[str]},
        {"coordinator": CoordinateState},
    ),
    "job phases": (PhasesReport,),
}
