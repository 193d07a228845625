"""Hypothesis for these tests: repeatable, and no deadline, because the machine is shared."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "properties", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("properties")
