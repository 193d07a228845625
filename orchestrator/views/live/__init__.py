"""The current state of a lab for viewers, read from the journals and the store as they grow."""

from orchestrator.views.live.events import Event
from orchestrator.views.live.picture import Picture
from orchestrator.views.live.watcher import Watcher

__all__ = ["Event", "Picture", "Watcher"]
