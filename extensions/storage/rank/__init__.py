"""The storage of a training job, on its host and in its ranks.

`python -m extensions.storage.rank` runs on a host without ranks and keeps what they send;
storage_observer.py sends each checkpoint that its rank has written.
"""

from .storage_observer import observer

__all__ = ["observer"]
