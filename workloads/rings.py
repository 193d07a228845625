"""All-reduce over several rings at once, one communicator per rank order.

A ring collective sends in one direction, from each rank to the next of its order, so one communicator fills one fibre of each host,
whatever the topology. Several communicators with different orders, each over its own lane, fill several. `dist.new_group` sorts
its ranks and cannot do this; the process-group objects below it can, and everything that leans on them is in this file:
`ProcessGroupGloo(store, position, size, options)` with a device per lane, and `ProcessGroupNCCL(store, position, size, options)`.

NCCL: a communicator's channels all follow its rank order, so the same holds; each gets its own id through its own prefix of the
store. Operations are always started in the same order of rings on every rank, which is what NCCL asks of programs that use
several communicators at once. Which interface a communicator takes is decided per process (NCCL_SOCKET_IFNAME, NCCL_IB_HCA), not
per ring. That path has run on no GPU yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from workloads.place import Place, own_address


def pieces(length: int, parts: int) -> list[tuple[int, int]]:
    """Return the `parts` near-equal contiguous [start, stop) pieces of `length` elements; later ones may be empty."""
    whole, more = divmod(length, parts)
    starts = [k * whole + min(k, more) for k in range(parts + 1)]
    return list(itertools.pairwise(starts))


def bus_factor(world: int) -> float:
    """Return busbw / algbw of an all-reduce: 2 (n - 1) / n (NVIDIA nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (world - 1) / world


class Rings:
    """The communicators of a job: torch's default group for the small things, one per ring for the bulk."""

    def __init__(self, place: Place, torch: Any) -> None:
        """Meet all other ranks. Raises RuntimeError (torch's own) when one does not come within the place's timeout."""
        self._dist = dist = torch.distributed
        self.place = place
        self.backend = chosen_backend(place.backend, torch)
        self.device = torch.device("cuda", place.gpu) if self.backend == "nccl" else torch.device("cpu")
        self._timeout = timedelta(seconds=place.timeout_s)
        if self.backend == "nccl":
            torch.cuda.set_device(self.device)
        self.store = dist.TCPStore(
            place.master_address, place.master_port, place.world, is_master=place.rank == 0, timeout=self._timeout
        )
        if self.backend == "nccl":
            name = "nccl"
        else:
            name = "lane"  # gloo on the address of lane 0; torch's own "gloo" takes the host's name or a whole interface
            if "lane" not in dist.Backend.backend_list:
                dist.Backend.register_backend(name, self._gloo_on_lane_0, devices=["cpu"])
        dist.init_process_group(name, store=self.store, rank=place.rank, world_size=place.world, timeout=self._timeout)
        self._groups = [self.communicator(f"ring{k}", order, k) for k, order in enumerate(place.rings)]

    def communicator(self, name: str, order: Sequence[int], ring: int) -> Any:
        """Meet the ranks of `order`, this one among them, as a communicator over ring number `ring`'s lane.

        `name` is used once per job, and by all of them in the same order.
        """
        store, position = self._dist.PrefixStore(name, self.store), list(order).index(self.place.rank)
        if self.backend == "nccl":
            return self._nccl(store, position, len(order), order, name)
        return self._gloo(store, position, len(order), self.place.lane(ring))

    def beside(self, name: str) -> Any:
        """Meet all ranks as a gloo communicator on the management network: what is sent there waits behind no bulk transfer."""
        store = self._dist.PrefixStore(name, self.store)
        return self._gloo(store, self.place.rank, self.place.world, own_address(self.place.master_address))

    @property
    def whole(self) -> Any:
        """The communicator of the first ring."""
        return self._groups[0]

    def start(self, flat: Any) -> list[Any]:
        """Begin summing `flat` (one dimension, contiguous, in place) over all ranks; return what is to be waited for."""
        parts = pieces(flat.numel(), len(self._groups))
        each = zip(self._groups, parts, strict=True)
        return [group.allreduce([flat[begin:end]]) for group, (begin, end) in each if end > begin]

    def all_reduce(self, tensor: Any) -> None:
        """Sum `tensor` over all ranks, in place. Raises RuntimeError when a peer is gone or silent for the timeout."""
        for work in self.start(tensor.view(-1)):
            work.wait()

    def close(self) -> None:
        """Forget the communicators; no rank may be using them any more."""
        self._groups.clear()
        self._dist.destroy_process_group()

    def _gloo_on_lane_0(self, store: Any, position: int, size: int, _timeout: timedelta) -> Any:
        return self._gloo(store, position, size, self.place.lane(0))

    def _gloo(self, store: Any, position: int, size: int, address: str) -> Any:
        gloo = self._dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = self._timeout
        options._threads = 2
        return gloo(store, position, size, options)

    def _nccl(self, store: Any, position: int, size: int, order: Sequence[int], name: str) -> Any:
        nccl = self._dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = self._timeout
        options.global_ranks_in_group = list(order)
        options.group_name = name
        group = nccl(store, position, size, options)
        group._set_sequence_number_for_group()
        return group


def chosen_backend(wanted: str, torch: Any) -> str:
    """Return `gloo` or `nccl`. Raises ValueError when nccl is wanted and this process sees no GPU."""
    usable = bool(torch.cuda.is_available() and torch.distributed.is_nccl_available())
    if wanted == "nccl" and not usable:
        raise ValueError("TESTBED_BACKEND: nccl: this process sees no GPU, or this torch was built without NCCL")
    return "nccl" if usable and wanted != "gloo" else "gloo"


def averaging_hook(rings: Rings, torch: Any, seen: Sequence[Any] = ()) -> Any:
    """Return a DistributedDataParallel communication hook that averages every bucket over all rings at once.

    Each of `seen` is called with the bucket before it is sent.
    """
    world = rings.place.world

    def hook(_state: object, bucket: Any) -> Any:
        for look in seen:
            look(bucket)
        flat = bucket.buffer()
        flat.div_(world)
        works = rings.start(flat)

        def summed(done: Any) -> Any:
            for one in done.value():
                one.value()  # a ring that failed raises here, and so in backward()
            return flat

        return torch.futures.collect_all([work.get_future() for work in works]).then(summed)

    # torch checks the annotations against its own types, which this file must not import at its head
    hook.__annotations__ = {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return hook
