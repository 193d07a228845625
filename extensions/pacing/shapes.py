"""What the verb prints with `--json`."""

from extensions.pacing.report import PhasesReport

DATA = {"job phases": (PhasesReport,)}
