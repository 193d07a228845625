"""Schedules: the slots of a plan made once each, and changed in the background."""
