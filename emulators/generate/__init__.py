"""Inventories of emulated labs, written: `python -m emulators.generate`."""
