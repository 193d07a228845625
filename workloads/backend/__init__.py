"""A back-end `testbed` for torch.distributed: collectives over rings that can be replaced while a
program runs.

torch itself calls `register` when it is imported (entry points of the group `torch.backends`). A
program selects the back-end by name, `init_process_group("testbed")`; or TESTBED_REPLACES names the
back-ends that it replaces, and the program need not know it.
"""

from __future__ import annotations

import os
from typing import Any

from .name import NAME

REPLACES = "TESTBED_REPLACES"
"""Environment: names of back-ends, joined by commas; this one is taken where a program asks for
them.
"""


def register() -> None:
    """Make the back-end known to torch. Does nothing in a torch without torch.distributed."""
    import torch.distributed as dist

    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    if names := {name.strip().lower() for name in os.environ.get(REPLACES, "").split(",")} - {""}:
        _replace(names)


def _create(options: Any, _more: Any = None) -> Any:
    from .group import Group

    return Group.create(options)


def _replace(names: set[str]) -> None:
    """Let torch take this back-end wherever all back-ends that it would make on this machine are
    among `names`.
    """
    import torch
    from torch.distributed import distributed_c10d

    config = distributed_c10d.BackendConfig
    plain = config.__init__

    def init(self: Any, backend: Any) -> None:
        plain(self, backend)
        usable = {
            name
            for device, name in self.device_backend_map.items()
            if device == "cpu" or _has(device, torch)
        }
        if usable and usable <= names:
            self.device_backend_map = {"cpu": NAME}

    config.__init__ = init


def _has(device: str, torch: Any) -> bool:
    module = getattr(torch, device, None)
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())
