"""Properties of the planner: the same examples every time."""

from hypothesis import settings

settings.register_profile("planner", settings.get_profile("busy"), derandomize=True)
settings.load_profile("planner")
