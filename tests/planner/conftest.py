"""Properties of the planner: the same examples every time, no deadline on a machine that is busy."""

from hypothesis import settings

settings.register_profile("planner", settings.get_profile("default"), deadline=None, derandomize=True)
settings.load_profile("planner")
