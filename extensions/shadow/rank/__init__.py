"""A shadow of a training job: its weights, kept by a process that only sees the traffic of two of
its hosts.

`python -m extensions.shadow.rank` runs on a host without ranks. segments.py cuts captured blocks
into TCP segments, streams.py puts them in order, chunks.py says which bytes of which stream are
which part of a gradient, follower.py steps the same optimizer and compares, __main__.py waits for
everything. In a rank shadow_observer.py says what it needs.
"""

from .shadow_observer import observer

__all__ = ["observer"]
