"""A lab as it is now, for eyes: journals and store followed, what they say kept as one picture."""

from orchestrator.views.live.picture import Event, Picture
from orchestrator.views.live.watcher import Watcher

__all__ = ["Event", "Picture", "Watcher"]
