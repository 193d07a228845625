"""Processes that work in the background: one of a kind, with a file that says what it does.

Design: docs/decisions/0094-background-services.md
"""
