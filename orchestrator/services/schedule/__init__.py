"""Schedules: the slots of a plan made once each, and turned in the background."""
