"""Optical testbed: the Python API (`Lab`, `AsyncLab`, `Campaign`).

Importing this package imports only where the project's packages are, and changes nothing; the API
is imported at its first use.

>>> from optical_testbed import Lab, BadFile
>>> issubclass(BadFile, ValueError)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optical_testbed_home import HOME, PACKAGES, OwnFirst, environment, hidden_packages, own_first

if TYPE_CHECKING:
    from optical_testbed.campaign import Campaign
    from optical_testbed.lab import AsyncJob, AsyncLab, Job, Lab
    from optical_testbed.plans import Designed
    from optical_testbed.progress import Event
    from optical_testbed.telemetry import Rows
    from optics.errors import (
        BadFile,
        BadPlugin,
        ChangeFailed,
        Garbled,
        HandsNeeded,
        Infeasible,
        Interlock,
        Interrupted,
        Locked,
        Missing,
        NotVerified,
        Refused,
        RolledBack,
        StoreFailed,
        TestbedError,
        TimedOut,
        Unreachable,
        Untrusted,
        Usage,
    )

__all__ = [
    "HOME",
    "PACKAGES",
    "AsyncJob",
    "AsyncLab",
    "BadFile",
    "BadPlugin",
    "Campaign",
    "ChangeFailed",
    "Designed",
    "Event",
    "Garbled",
    "HandsNeeded",
    "Infeasible",
    "Interlock",
    "Interrupted",
    "Job",
    "Lab",
    "Locked",
    "Missing",
    "NotVerified",
    "OwnFirst",
    "Refused",
    "RolledBack",
    "Rows",
    "StoreFailed",
    "TestbedError",
    "TimedOut",
    "Unreachable",
    "Untrusted",
    "Usage",
    "environment",
    "hidden_packages",
    "own_first",
]

_OF_THE_API = {
    **dict.fromkeys(("AsyncJob", "AsyncLab", "Job", "Lab"), "optical_testbed.lab"),
    "Campaign": "optical_testbed.campaign",
    "Designed": "optical_testbed.plans",
    "Rows": "optical_testbed.telemetry",
    "Event": "optical_testbed.progress",
}


def __getattr__(name: str) -> object:
    """Import a name of the API at its first use (PEP 562). Raises: ImportError - other packages
    hide those of this project.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    own_first()
    found: object = getattr(import_module(_OF_THE_API.get(name, "optics.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
