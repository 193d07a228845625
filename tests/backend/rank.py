"""One rank of a crew (crew.py): joins, says so, and carries out cases that it reads from a socket,
in lines of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from datetime import timedelta
from importlib import import_module


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(sys.argv[2], timeout=timedelta(seconds=30))
        started = {"value": None}
    except Exception:
        started = {"error": traceback.format_exc(limit=-6)}
    link.sendall(json.dumps(started).encode() + b"\n")
    for line in link.makefile("rb"):
        asked = json.loads(line)
        try:
            module, _, name = asked["case"].partition(".")
            answer = {
                "value": getattr(import_module(f"tests.backend.{module}"), name)(
                    **asked["arguments"]
                )
            }
        except Exception:
            answer = {"error": traceback.format_exc(limit=-6)}
        link.sendall(json.dumps(answer).encode() + b"\n")
    os._exit(0)  # the crew is done: a rank that waits for a peer would not end


if __name__ == "__main__":
    main()
