"""Schedules of slots: when a slot ends, what then happens, who is notified."""
