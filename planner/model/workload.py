"""A job described by its model and its parallelism over ranks, and the resulting traffic.

Ranks count tensor first, then data, then pipeline: rank = (stage * data + replica) * tensor +
slice. `ranks_per_host` of them, which follow each other, share a host, so that a tensor group of
that size stays inside it. The traffic of each kind of layer:

- dense: gradients are all-reduced over the replicas of a slice.
- transformer: the same; per block four all-reduces of the activations in the tensor group (two
  forward, two backward: Shoeybi and others, arXiv:1909.08053, section 3); activations and their
  gradients pass between neighbouring stages, each slice its part.
- embedding: whole tables live on one rank each, in turn over all ranks; the owner sends a row's
  width per sample to every other rank, whose gradients come back (Naumov and others,
  arXiv:1906.00091, section 3).
- experts: tokens go to their experts' ranks and back, forward and backward, all to all within
  groups of `expert` replicas (Lepikhin and others, arXiv:2006.16668, section 2.2); gradients are
  all-reduced over ranks that hold the same experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from planner.model.demand import Demand, Group, Infeasible
from planner.model.needs import Amount, Count, Name, Needs, Part

MOST_RANKS = 16384
Rank = Annotated[int, Field(ge=0, lt=MOST_RANKS)]
Ranks = Literal["all"] | list[Rank]


class Parallelism(Part):
    """The degrees of parallelism; data may be left out, it is what remains. micro_batches: pieces
    in which a batch goes through the pipeline, single samples unless said otherwise."""

    data: Count | None = None
    tensor: Count = 1
    pipeline: Count = 1
    expert: Count = 1
    micro_batches: Count | None = None


class Compute(Part):
    """How long a rank computes: floating-point operations it does for one sample, forward and
    backward, at a share of a peak.
    """

    flops_per_sample: Annotated[float, Field(gt=0)]
    tflops: Annotated[float, Field(gt=0)]
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0


class Dense(Part):
    """Layers whose parameters every replica holds."""

    kind: Literal["dense"]
    name: str = ""
    parameters: Count


class Transformer(Part):
    """Blocks of attention and a feed-forward layer four times as wide: 12 h^2 + 13 h parameters
    each.
    """

    kind: Literal["transformer"]
    name: str = ""
    blocks: Count
    hidden: Count
    sequence: Count
    vocabulary: Amount = 0


class Embedding(Part):
    """Tables that live on one rank each."""

    kind: Literal["embedding"]
    name: str = ""
    tables: Count
    rows: Count
    width: Count


class Experts(Part):
    """Mixture-of-experts layers: `experts` feed-forward networks of 8 h^2 parameters in each,
    `top_k` of them per token.
    """

    kind: Literal["experts"]
    name: str = ""
    blocks: Count
    experts: Count
    hidden: Count
    sequence: Count
    top_k: Count = 1


Layer = Annotated[Dense | Transformer | Embedding | Experts, Field(discriminator="kind")]


class Collective(Part):
    """An explicit all-reduce."""

    id: Name
    ranks: Ranks = "all"
    bytes: Amount


class Bytes(Part):
    """Explicit point-to-point bytes: from src to dst, or from each of `among` to each other."""

    src: Rank | None = None
    dst: Rank | None = None
    among: Ranks | None = None
    bytes: Amount

    @model_validator(mode="after")
    def _one_of_two(self) -> Bytes:
        if (self.among is None) == (self.src is None) or (self.src is None) != (self.dst is None):
            raise ValueError("wanted either src and dst, or among")
        return self


class Workload(Part):
    """A file of `testbed.workload/1`. batch: samples per replica and iteration; rate_gbps: of a
    port of the network it was written for. ranks_per_host: so many ranks that follow each other are
    on one host."""

    schema_id: Annotated[Literal["testbed.workload/1"], Field(alias="schema")]
    name: Name
    description: Annotated[str, Field(max_length=4096)] = ""
    ranks: Annotated[int, Field(ge=2, le=MOST_RANKS)]
    ranks_per_host: Annotated[int, Field(ge=1, le=64)] = 1
    batch: Count = 1
    bytes_per_number: Annotated[int, Field(ge=1, le=16)] = 4
    parallelism: Parallelism = Parallelism()
    layers: Annotated[list[Layer], Field(max_length=4096)] = Field(default_factory=list)
    collectives: Annotated[list[Collective], Field(max_length=4096)] = Field(default_factory=list)
    transfers: Annotated[list[Bytes], Field(max_length=1_000_000)] = Field(default_factory=list)
    compute_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    compute: Compute | None = None
    rate_gbps: Annotated[float, Field(gt=0)] = 25.0
    needs: Needs = Needs()

    @model_validator(mode="after")
    def _one_time(self) -> Workload:
        if self.compute is not None and self.compute_s is not None:
            raise ValueError("compute and compute_s contradict each other; give one of them")
        return self

    @property
    def hosts(self) -> int:
        """Number of hosts. Raises: Infeasible - the ranks do not fill them, or fill only one."""
        hosts, left = divmod(self.ranks, self.ranks_per_host)
        if left or hosts < 2:
            text = f"{self.ranks} ranks do not fill 2 hosts or more of {self.ranks_per_host} ranks"
            raise Infeasible(
                text,
                f"set ranks to {max(2, round(self.ranks / self.ranks_per_host)) * self.ranks_per_host}",
            )
        return hosts

    @property
    def data(self) -> int:
        """Number of replicas. Raises: Infeasible - the degrees do not multiply to the ranks."""
        split = self.parallelism
        apart = split.tensor * split.pipeline
        data = split.data or max(1, self.ranks // apart)
        if data * apart != self.ranks:
            text = f"tensor {split.tensor} x data {data} x pipeline {split.pipeline} are {data * apart} ranks, not {self.ranks}"
            nearest = data * apart if split.data else max(1, round(self.ranks / apart)) * apart
            raise Infeasible(
                text, f"set ranks to {nearest}, or degrees whose product is {self.ranks}"
            )
        if data % split.expert:
            nearest = min(
                (d for d in range(1, data + 1) if data % d == 0),
                key=lambda d: (abs(d - split.expert), d),
            )
            raise Infeasible(
                f"expert groups of {split.expert} do not divide {data} replicas",
                f"set expert to {nearest}",
            )
        return data

    @property
    def idle(self) -> float:
        """Time of an iteration by time computing: p stages wait for (p - 1) / m of it, m the
        micro-batches (the pipeline's bubble).

        Raises: Infeasible - micro-batches do not divide the batch.
        """
        pieces = self.parallelism.micro_batches or self.batch
        if self.batch % pieces:
            nearest = min(
                (m for m in range(1, self.batch + 1) if self.batch % m == 0),
                key=lambda m: (abs(m - pieces), m),
            )
            raise Infeasible(
                f"{pieces} micro-batches do not divide a batch of {self.batch}",
                f"set micro_batches to {nearest}",
            )
        return 1 + (self.parallelism.pipeline - 1) / pieces

    @property
    def seconds(self) -> float:
        """Time (s) of an iteration without communication, the pipeline's bubble included."""
        if self.compute is not None:
            work = (
                self.compute.flops_per_sample
                * self.batch
                / (self.compute.tflops * 1e12 * self.compute.efficiency)
            )
            return work * self.idle
        return self.compute_s or 0.0


def demand(workload: Workload) -> Demand:
    """The traffic of one iteration between hosts: the ranks of the demand are the hosts of the
    workload.

    Raises: Infeasible - degrees, ranks, hosts or groups that cannot be.
    """
    traffic = _Traffic(workload)
    for layer in workload.layers:
        traffic.add(layer)
    for collective in workload.collectives:
        traffic.reduce(traffic.named(collective.ranks), collective.bytes, collective.id)
    for entry in workload.transfers:
        if entry.among is not None:
            traffic.exchange(traffic.named(entry.among), entry.bytes)
        elif entry.src is not None and entry.dst is not None:
            traffic.send(entry.src, entry.dst, entry.bytes)
    if (asked := workload.needs.requests) is not None:
        traffic.exchange(traffic.named("all"), asked.count * asked.bytes / workload.ranks)
    return traffic.demand()


class _Traffic:
    def __init__(self, workload: Workload) -> None:
        self.workload, self.n, self.data = workload, workload.ranks, workload.data
        self.split, self.width = workload.parallelism, workload.bytes_per_number
        self.mp: NDArray[np.float64] = np.zeros((self.n, self.n))
        self.buffers: dict[tuple[int, ...], int] = {}
        self.names: dict[tuple[int, ...], str] = {}

    def check_stages(self, blocks: int) -> None:
        """Raises: Infeasible - stages of the pipeline do not divide the blocks."""
        if blocks % self.split.pipeline:
            near = min(
                (d for d in range(1, blocks + 1) if blocks % d == 0),
                key=lambda d: (abs(d - self.split.pipeline), d),
            )
            raise Infeasible(
                f"{self.split.pipeline} pipeline stages do not divide {blocks} blocks",
                f"set pipeline to {near}",
            )

    def rank(self, stage: int, replica: int, part: int) -> int:
        return (stage * self.data + replica) * self.split.tensor + part

    def named(self, ranks: Ranks) -> list[int]:
        return list(range(self.n)) if ranks == "all" else list(ranks)

    def reduce(self, members: Iterable[int], size: float, name: str) -> None:
        key = tuple(members)
        self.buffers[key] = self.buffers.get(key, 0) + round(size)
        self.names.setdefault(key, name)

    def send(self, src: int, dst: int, size: float) -> None:
        for rank in (src, dst):
            if rank >= self.n:
                raise Infeasible(
                    f"transfers name rank {rank}; there are {self.n}",
                    f"name ranks from 0 to {self.n - 1}",
                )
        if src == dst:
            raise Infeasible(f"rank {src} sends bytes to itself", "leave that transfer out")
        self.mp[src, dst] += size

    def exchange(self, among: list[int], size: float) -> None:
        """Each of these ranks sends to each other."""
        if len(set(among)) < len(among):
            twice = next(rank for rank in among if among.count(rank) > 1)
            raise Infeasible(
                f"transfers among ranks name {twice} twice",
                f"name each rank once: {sorted(set(among))}",
            )
        if beyond := [rank for rank in among if rank >= self.n]:
            raise Infeasible(
                f"transfers name rank {beyond[0]}; there are {self.n}",
                f"name ranks from 0 to {self.n - 1}",
            )
        self.mp[np.ix_(among, among)] += size
        self.mp[among, among] -= size

    def add(self, layer: Layer) -> None:
        match layer:
            case Dense():
                self.gradients(layer.parameters)
            case Transformer():
                self.check_stages(layer.blocks)
                self.gradients(
                    layer.blocks * (12 * layer.hidden**2 + 13 * layer.hidden)
                    + layer.vocabulary * layer.hidden
                )
                activations = self.workload.batch * layer.sequence * layer.hidden * self.width
                self.tensor(4 * activations * layer.blocks / self.split.pipeline)
                self.stages(activations)
            case Embedding():
                self.tables(layer)
            case Experts():
                self.experts(layer)

    def gradients(self, parameters: int) -> None:
        """Replicas of each slice sum their gradients; slices and stages hold equal parts."""
        size = parameters * self.width / (self.split.tensor * self.split.pipeline)
        for stage, part in product(range(self.split.pipeline), range(self.split.tensor)):
            several = self.split.tensor * self.split.pipeline > 1
            members = [self.rank(stage, replica, part) for replica in range(self.data)]
            self.reduce(members, size, f"data-{stage}-{part}" if several else "data")

    def tensor(self, size: float) -> None:
        for stage, replica in product(range(self.split.pipeline), range(self.data)):
            if self.split.tensor > 1:
                members = [self.rank(stage, replica, part) for part in range(self.split.tensor)]
                self.reduce(members, size, f"tensor-{stage}-{replica}")

    def stages(self, activations: float) -> None:
        for stage, replica, part in product(
            range(self.split.pipeline - 1), range(self.data), range(self.split.tensor)
        ):
            here, existing = self.rank(stage, replica, part), self.rank(stage + 1, replica, part)
            self.send(here, existing, activations / self.split.tensor)
            self.send(existing, here, activations / self.split.tensor)

    def tables(self, layer: Embedding) -> None:
        size = self.workload.batch * layer.width * self.width
        for table in range(layer.tables):
            owner = table % self.n
            self.mp[owner, :] += size
            self.mp[:, owner] += size
            self.mp[owner, owner] = 0.0

    def experts(self, layer: Experts) -> None:
        split = self.split
        self.check_stages(layer.blocks)
        if layer.experts % split.expert:
            nearest = round(layer.experts / split.expert) * split.expert or split.expert
            text = f"{layer.experts} experts do not divide into groups of {split.expert}"
            raise Infeasible(
                text, f"set experts to {nearest}, or expert to a divisor of {layer.experts}"
            )
        tokens = self.workload.batch * layer.sequence * layer.top_k * layer.hidden * self.width
        each = 4 * layer.blocks * tokens / split.expert / split.pipeline
        held = (
            8
            * layer.hidden**2
            * layer.blocks
            * (layer.experts // split.expert)
            * self.width
            / (split.tensor * split.pipeline)
        )
        for stage, part in product(range(split.pipeline), range(split.tensor)):
            for first in range(0, self.data, split.expert):
                self.exchange(
                    [self.rank(stage, first + k, part) for k in range(split.expert)], each
                )
            for k in range(split.expert):
                members = [
                    self.rank(stage, first + k, part) for first in range(0, self.data, split.expert)
                ]
                self.reduce(members, held, f"experts-{stage}-{part}-{k}")

    def between_hosts(self) -> None:
        """Count hosts instead of ranks: what ranks of one host exchange does not leave it, and they
        sum among themselves first.
        """
        each, hosts = self.workload.ranks_per_host, self.workload.hosts
        if each == 1:
            return
        buffers, names, self.buffers, self.names = self.buffers, self.names, {}, {}
        for members, size in buffers.items():
            for rank in members:
                if not 0 <= rank < self.n:
                    raise Infeasible(
                        f"group {names[members]} names rank {rank}; there are {self.n}",
                        f"name 0 to {self.n - 1}",
                    )
            self.reduce(dict.fromkeys(rank // each for rank in members), size, names[members])
        self.mp = self.mp.reshape(hosts, each, hosts, each).sum(axis=(1, 3))
        np.fill_diagonal(self.mp, 0.0)
        self.n = hosts

    def demand(self) -> Demand:
        self.between_hosts()
        used: dict[str, int] = {}
        groups = []
        for members, size in self.buffers.items():
            name = self.names[members]
            used[name] = used.get(name, 0) + 1
            groups.append(Group(name if used[name] == 1 else f"{name}-{used[name]}", members, size))
        return Demand(self.n, tuple(groups), self.mp, self.workload.seconds)
