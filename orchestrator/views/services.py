"""How services of extensions (`orchestrator/extensions.py`) are shown, one kind a class. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.extensions import extension_parts
from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point

if TYPE_CHECKING:
    from orchestrator.views.report.gather import Source
    from orchestrator.views.report.model import ReportContext

News = tuple[str, str, dict[str, Json]]
"""An event as viewers are notified of it: its name, words, and fields."""


class Live(ABC):
    """What one viewer knows of a service."""

    @abstractmethod
    def point(self, point: Point) -> tuple[str, dict[str, Json]] | None:
        """Take a point; what viewers are notified of, in words and as fields, if it is worth
        that.
        """

    def state(self, state: Any) -> None:
        """Take the state of the service, every second; None: it never ran."""
        return

    @abstractmethod
    def taken(self) -> bool:
        """Whether something that is shown changed since the last call."""

    @abstractmethod
    def text(self) -> str:
        """In a line; empty: there is nothing to show."""

    @abstractmethod
    def json(self) -> Json:
        """None: there is nothing to show. Else `text`, whether it is trouble (`bad`), and `bars`,
        the latest last: each its height (`share`, 0 to 1), `what` it is in a word, for its colour,
        and a `title`."""


class ServiceView(ABC):
    """One kind."""

    name: ClassVar[str]
    """As of its kind in `background/registry.py`; so are its lines and events called."""
    measurement: ClassVar[str]
    """The name of its points in journals."""

    @abstractmethod
    def live(self) -> Live:
        """For a new viewer."""

    def section(self, c: ReportContext, source: Source) -> None:
        """Add to the report on one run what it did then, if anything."""
        return


def service_views() -> tuple[ServiceView, ...]:
    """Every kind that shows more than the words of its state, in order."""
    return extension_parts("live", "SERVICE_VIEW")


class Services:
    """What one viewer knows of all of them, by name."""

    def __init__(self) -> None:
        self.live = {view.name: view.live() for view in service_views()}
        self.of = {view.measurement: view.name for view in service_views()}
        """Whose points they are, by measurement."""

    def point(self, point: Point) -> News | None:
        """As `Live.point`, with the name."""
        name = self.of[point.measurement]
        news = self.live[name].point(point)
        return None if news is None else (name, *news)

    def taken(self) -> bool:
        """As `Live.taken`, of any."""
        return True in [live.taken() for live in self.live.values()]  # each is asked

    def text(self) -> list[tuple[str, str]]:
        """The name and words of each that has something to show."""
        return [(name, text) for name, live in self.live.items() if (text := live.text())]

    def json(self) -> Json:
        """Of each that has something to show, by name."""
        return {
            name: reply for name, live in self.live.items() if (reply := live.json()) is not None
        }
