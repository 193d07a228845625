"""All-reduce over several rings at once, each with a rank order and a lane of its own.

A ring collective sends in one direction, from each rank to the next of its order, so one ring fills
one fibre of each host, whatever the topology. Several rings with different orders, each over its
own lane, fill several.

Without GPUs the rings are connections of this program's own (carrier.py, wires.py), which another
set can replace between two iterations; gloo is torch's default group, for small things such as what
DistributedDataParallel checks when it starts. An Exchange carries the sums in place of the rings,
such as that group itself (Gloo), or datagrams (spray.py). With GPUs they are communicators of NCCL,
whose channels all follow its rank order; each gets its own id through its own prefix of the store.
`dist.new_group` sorts its ranks and cannot do this;
`ProcessGroupNCCL(store, position, size, options)` below it can. Operations are always started in
the same order of rings on every rank, which is what NCCL asks of programs that use several
communicators at once. Which interface a communicator takes is decided per process
(NCCL_SOCKET_IFNAME, NCCL_IB_HCA), not per ring. That path has run on no GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from ..host.place import Place, own_address
from ..host.slots import shared
from ..transport.buffers import pieces
from ..transport.loop import Stall
from .carrier import Carrier, RingSet


def bus_factor(world: int) -> float:
    """Return busbw / algbw of an all-reduce: 2 (n - 1) / n (NVIDIA nccl-tests,
    doc/PERFORMANCE.md).
    """
    return 2 * (world - 1) / world


class Exchange(Protocol):
    """What carries sums in place of the rings. All ranks begin the same ones in the same order.

    sent: the bytes this rank has sent of those that are done; None where it is not known.
    """

    @property
    def sent(self) -> int | None: ...
    def start(self, flat: Any) -> list[Any]: ...  # as Rings.start
    def gather(self, table: Any) -> list[Any]: ...  # as Rings.gather
    def notes(self) -> dict[str, Any]: ...  # what a record says of the sums since the last
    def close(self) -> None: ...


class Gloo:
    """Sums over torch's default group, which chooses its own order, on lane 0. It does not say what
    it sends.
    """

    sent = None

    def __init__(self, rank: int, torch: Any) -> None:
        self._rank, self._dist = rank, torch.distributed

    def start(self, flat: Any) -> list[Any]:
        return [self._dist.all_reduce(flat, async_op=True)]

    def gather(self, table: Any) -> list[Any]:
        return [self._dist.all_gather(list(table), table[self._rank].clone(), async_op=True)]

    def notes(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class Rings:
    """What a rank's sums go over: torch's default group for the small things, rings for the
    bulk.
    """

    def __init__(self, place: Place, torch: Any) -> None:
        """Meet all other ranks. Raises RuntimeError (torch's own) when one does not come within the
        place's timeout.
        """
        self._torch, self._dist = torch, torch.distributed
        self.place = place
        self.backend = chosen_backend(place.backend, torch)
        self.device = (
            torch.device("cuda", place.gpu) if self.backend == "nccl" else torch.device("cpu")
        )
        self.stall = Stall()
        self.current: RingSet | None = None
        self.exchange: Exchange | None = None
        """What carries sums in place of the rings, where something does."""
        self._timeout = timedelta(seconds=place.timeout_s)
        self._formed: Any = None  # torch's next default group, which all have met in already
        if self.backend == "nccl":
            torch.cuda.set_device(self.device)
        self.store = self._dist.TCPStore(
            place.master_address,
            place.master_port,
            place.world,
            is_master=place.rank == 0,
            timeout=self._timeout,
            wait_for_workers=not place.joining,
        )
        if self.backend == "nccl":
            name = "nccl"
        else:
            # gloo on the address of lane 0; torch's own "gloo" takes the host's name or a whole
            # interface
            name = "lane"
            if "lane" not in self._dist.Backend.backend_list:
                self._dist.Backend.register_backend(name, self._gloo_on_lane_0, devices=["cpu"])
        if not place.joining:
            self._dist.init_process_group(
                name,
                store=self.store,
                rank=place.rank,
                world_size=place.world,
                timeout=self._timeout,
            )
        self._groups = (
            [self.communicator(f"ring{k}", order) for k, order in enumerate(place.rings)]
            if self.backend == "nccl"
            else []
        )
        self._carrier = Carrier(place.timeout_s, self.stall, torch)

    def client(self) -> Any:
        """Another client of the ranks' store, for a thread of its own: a client waits for one thing
        at a time.
        """
        place = self.place
        return self._dist.TCPStore(
            place.master_address,
            place.master_port,
            is_master=False,
            timeout=self._timeout,
            wait_for_workers=False,
        )

    def communicator(self, name: str, order: Sequence[int]) -> Any:
        """Meet the ranks of `order`, this one among them, as a communicator of NCCL.

        `name` is used once per job, and by all of them in the same order.
        """
        store, position = (
            self._dist.PrefixStore(name, self.store),
            list(order).index(self.place.rank),
        )
        return self._nccl(store, position, len(order), order, name)

    def management_group(self, name: str, timeout_s: float | None = None) -> Any:
        """Meet all ranks as a gloo communicator on the management network: what is sent there waits
        behind no bulk transfer. timeout_s: how long for a rank that is late, by default the job's.
        """
        store = self._dist.PrefixStore(name, self.store)
        address = own_address(self.place.master_address)
        if timeout_s is None:
            return self._gloo(store, self.place.rank, self.place.world, address)
        within = timedelta(seconds=timeout_s)
        return self._gloo(store, self.place.rank, self.place.world, address, within)

    @property
    def whole(self) -> Any:
        """NCCL's communicator of the first ring."""
        return self._groups[0]

    def ring_set(
        self,
        orders: Sequence[Sequence[int]],
        name: str,
        store: Any = None,
        within_s: float | None = None,
        given_up: Callable[[], bool] | None = None,
        *,
        inside: bool = False,
    ) -> RingSet:
        """Connect the rings of these orders, in any thread. `name` is used once per job. inside:
        also the same rings inside this rank's site. Raises: RuntimeError - as wires.Wires.
        """
        place, store = replace(self.place, world=len(orders[0])), store or self.store

        def connected(orders: Sequence[Sequence[int]], name: str) -> RingSet:
            return RingSet(
                place,
                store,
                self._torch,
                orders,
                name,
                within_s=within_s,
                given_up=given_up,
                stall=self.stall,
            )

        made = connected(orders, name)
        try:
            if inside:
                here = [[r for r in order if place.sites[r] == place.site] for order in orders]
                made.inside = connected(here, f"{name} inside")
            if place.joining or place.world != self.place.world:
                made.group = self._gloo(
                    self._dist.PrefixStore(f"{name}/group", store),
                    place.rank,
                    place.world,
                    place.lane(0),
                )
        except BaseException:
            made.close()
            raise
        return made

    def grow(self, place: Place, group: Any) -> None:
        """Be one of more ranks: `group`, of them all, is torch's default group from now on."""
        self.place, self._formed = place, group
        if self._dist.is_initialized():
            self._dist.destroy_process_group()
        self._dist.init_process_group(
            "lane",
            store=self._dist.PrefixStore(f"world/{place.world}", self.store),
            rank=place.rank,
            world_size=place.world,
            timeout=self._timeout,
        )

    def use(self, rings: RingSet) -> None:
        """Carry the next sums over these rings; none may be under way."""
        self.current = rings

    def start(self, flat: Any) -> list[Any]:
        """Begin summing `flat` (one dimension, contiguous, in place) over all ranks; return what is
        to be waited for.
        """
        if self.exchange is not None:
            return self.exchange.start(flat)
        if self.backend != "nccl":
            assert self.current is not None, "no rings to sum over"
            return [self._carrier.sum(self.current, flat)]
        parts = pieces(flat.numel(), len(self._groups))
        each = zip(self._groups, parts, strict=True)
        return [group.allreduce([flat[begin:end]]) for group, (begin, end) in each if end > begin]

    def start_inside(self, flat: Any) -> list[Any]:
        """As `start`, over the ranks of this rank's site."""
        assert self.current is not None and self.current.inside is not None, "no rings inside"
        return [self._carrier.sum(self.current.inside, flat)]

    def gather(self, table: Any) -> list[Any]:
        """Begin filling `table` (contiguous, a row for each rank), of which this rank's own is
        there; not with NCCL.
        """
        if self.exchange is not None:
            return self.exchange.gather(table)
        assert self.current is not None, "no rings to send over"
        return [self._carrier.gather(self.current, table)]

    @property
    def sent(self) -> int | None:
        """The bytes that this rank has sent of the sums that are done, since the rings were last
        replaced; None: not known.
        """
        if self.exchange is not None:
            return self.exchange.sent
        return None if self.current is None else self.current.sent

    @property
    def wide(self) -> int | None:
        """Of `sent`, the bytes that went to ranks of other sites; None: not known."""
        if self.exchange is not None or self.current is None or not self.place.sites:
            return None
        return self.current.wide

    def all_reduce(self, tensor: Any) -> None:
        """Sum `tensor` over all ranks, in place. Raises RuntimeError when a peer is gone or silent
        for the timeout.
        """
        for work in self.start(tensor.view(-1)):
            work.wait()

    def close(self) -> None:
        """Forget the communicators; no rank may be using them any more."""
        self._carrier.close()
        if self.exchange is not None:
            self.exchange.close()
        if self.current is not None:
            self.current.close()
        self._groups.clear()
        self._dist.destroy_process_group()

    def _gloo_on_lane_0(self, store: Any, position: int, size: int, _timeout: timedelta) -> Any:
        # While slots change, hosts come and go on the lanes, and gloo takes the first refusal for
        # final.
        if self._formed is not None:
            return self._formed
        address = (
            self.place.lane(0) if shared().slot is None else own_address(self.place.master_address)
        )
        return self._gloo(store, position, size, address)

    def _gloo(
        self, store: Any, position: int, size: int, address: str, within: timedelta | None = None
    ) -> Any:
        gloo = self._dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = self._timeout if within is None else within
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


class Inside:
    """The rings inside this rank's site, for sums of its ranks alone."""

    backend, exchange = "gloo", None

    def __init__(self, rings: Rings) -> None:
        place = rings.place
        self.place, self.start = (
            replace(place, world=place.sites.count(place.site)),
            rings.start_inside,
        )


def chosen_backend(wanted: str, torch: Any) -> str:
    """Return `gloo` or `nccl`. Raises ValueError when nccl is wanted and this process sees no
    GPU.
    """
    usable = bool(torch.cuda.is_available() and torch.distributed.is_nccl_available())
    if wanted == "nccl" and not usable:
        raise ValueError(
            "TESTBED_BACKEND: nccl: this process sees no GPU, or this torch was built without NCCL"
        )
    return "nccl" if usable and wanted != "gloo" else "gloo"


def averaging_hook(rings: Rings | Inside, torch: Any, seen: Sequence[Any] = ()) -> Any:
    """Return a DistributedDataParallel communication hook that averages every bucket over all rings
    at once.

    Each of `seen` is called with the bucket before it is sent.
    """
    world = rings.place.world

    def hook(_state: object, bucket: Any) -> Any:
        for look in seen:
            look(bucket)
        flat = bucket.buffer()
        flat.div_(world)
        works = rings.start(flat)
        if rings.backend != "nccl" and rings.exchange is None:
            return works[0].get_future()

        def summed(done: Any) -> Any:
            for one in done.value():
                one.value()  # what failed raises here, and so in backward()
            return flat

        return torch.futures.collect_all([work.get_future() for work in works]).then(summed)

    # torch checks the annotations against its own types, which this file must not import at its
    # head
    hook.__annotations__ = {
        "bucket": torch.distributed.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }
    return hook
