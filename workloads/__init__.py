"""Programs that run on the lab's hosts, and what a training program of one's own can use of them;
see backend/ for torch's part.
"""

from __future__ import annotations

from typing import Any

__all__ = ["hook", "report"]


def __getattr__(name: str) -> Any:
    """What is exported is imported when it is asked for: most programs here need none of it."""
    if name == "report":
        from .backend.reporter import report

        return report
    if name == "hook":
        from .backend.hook import hook

        return hook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
