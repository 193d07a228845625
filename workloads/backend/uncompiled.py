"""Keep torch.compile out of the process group: its methods talk to threads and sockets, and torch
cannot trace them.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any


def uncompiled(cls: Any) -> Any:
    """Have the public methods of a class run as they are, also when they are called from a compiled
    program.

    torch._dynamo takes more than a second to import, so it is asked only where the program has
    imported it.
    """
    for name, value in list(vars(cls).items()):
        public = not name.startswith("_") or name.endswith("_base")
        if public and callable(value) and not isinstance(value, classmethod | staticmethod):
            setattr(cls, name, _plain(value))
    return cls


def _plain(function: Any) -> Any:
    disabled: list[Any] = []

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **named)
        if not disabled:
            from torch.compiler import disable

            disabled.append(disable(function))
        return disabled[0](*arguments, **named)

    return call
