"""Cases in which a peer is lost: what a rank is in when it happens, and what it says then."""

from __future__ import annotations

import torch
import torch.distributed as dist


def until_a_peer_is_lost(kind: str) -> str:
    """Collectives without end; what ends them."""
    me, tensor, whole = dist.get_rank(), torch.ones(1000), torch.zeros(4000)
    store = dist.distributed_c10d._get_default_store()
    for step in range(1_000_000):
        try:
            if kind == "all_reduce":
                dist.all_reduce(tensor.fill_(1.0))
            elif kind == "all_to_all":
                dist.all_to_all_single(whole, torch.ones(4000))
            elif kind == "barrier":
                dist.barrier()
            elif kind == "broadcast":
                dist.broadcast(tensor, 2)
            else:
                dist.recv(tensor, (me - 1) % 4) if me % 2 else dist.send(tensor, (me + 1) % 4)
                dist.send(tensor, (me + 1) % 4) if me % 2 else dist.recv(tensor, (me - 1) % 4)
        except RuntimeError as error:
            return str(error)
        if step == 10:
            store.add("under way", 1)
            store.wait(["under way"])
            print("under way", flush=True)
    return ""
