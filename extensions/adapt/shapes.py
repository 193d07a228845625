"""What the verb prints with `--json`."""

from typing import Literal

from extensions.adapt.service import AdaptReport, AdaptState
from orchestrator.cli.shapes import STOPPED

DATA = {"adapt": (AdaptReport, {"stopped": Literal[True], "adapter": AdaptState}, STOPPED, {"adapter": AdaptState})}
