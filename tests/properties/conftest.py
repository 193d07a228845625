"""Hypothesis for these tests: repeatable."""

from hypothesis import settings

settings.register_profile(
    "properties", settings.get_profile("busy"), derandomize=True, max_examples=60
)
settings.load_profile("properties")
