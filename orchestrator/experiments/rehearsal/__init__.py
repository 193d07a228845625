"""Rehearsal: a change made on an emulated twin of the lab first, with the engine that makes it on
the lab.
"""
