"""Import torch as a program that never compiles needs it.

Twelve ranks of an emulated lab start on two cores at once, so every second of import is paid six
times. Measured with torch 2.13 on one core: `import torch` 0.88 s, with the garbage collector off
0.75 s; the first DistributedDataParallel then pulls in torch._dynamo and torch._inductor (820
modules, 1.3 s) only to ask for a mode string. This module answers in their place. Every other use
of torch._dynamo reaches the real module: a torch that changes its mind is slower here, never wrong.
"""

from __future__ import annotations

import gc
import importlib
import os
import types
from typing import Any


class _Compiler(types.ModuleType):
    """Stand where torch._dynamo will be, until anyone asks for more than it knows."""

    # torch's own default
    utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch._dynamo"), name)


def import_torch(threads: int = 1) -> Any:
    """Return torch, imported once, using `threads` CPU threads per process."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    # else a line for every peer whose address has no name
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    collecting = gc.isenabled()
    gc.disable()
    try:
        import torch
        import torch.distributed
        import torch.nn.parallel
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
    torch.set_num_threads(threads)
    if "_dynamo" not in vars(torch):
        vars(torch)["_dynamo"] = _Compiler("torch._dynamo")
        _enter_undecorated(torch.nn.parallel.DistributedDataParallel)
    return torch


def _enter_undecorated(ddp: Any) -> None:
    """Show `_disable_dynamo`, wrapped round DDP's forward, that there is nothing to disable
    (torch/_compile.py).
    """
    function = getattr(ddp, "_inside_ddp_forward", None)
    while function is not None:
        function.__dynamo_disable = function
        function = getattr(function, "__wrapped__", None)
