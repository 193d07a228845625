"""A lab as it is now, for eyes: journals and store followed, what they say kept as one picture."""

from orchestrator.watching.picture import Event, Picture
from orchestrator.watching.watcher import Watcher

__all__ = ["Event", "Picture", "Watcher"]
