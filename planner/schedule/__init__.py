"""Schedules: who sends to whom, step by step, over circuits that stay or that are changed in
turn.
"""
