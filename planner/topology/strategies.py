"""The options to parallelise a workload over its ranks, for the alternating optimisation.

Each embedding layer can be placed, whole tables on one rank each, or replicated. What is left of
the model is spread as one: the tensor, pipeline and expert degrees that fit its layers, at the same
number of samples in all ranks together; p stages that pass m micro-batches on (single samples,
unless the workload says otherwise) idle for (p - 1) / m of the time they compute.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.model.demand import Demand, Infeasible
from planner.model.workload import (
    Dense,
    Embedding,
    Experts,
    Parallelism,
    Transformer,
    Workload,
    demand,
)
from planner.topology.alternating import Option, Part

DEGREES = (1, 2, 4, 8, 16)
"""Tensor and pipeline degrees that are tried in addition to the workload's own."""


def parts(workload: Workload) -> tuple[Part, ...]:
    """The parts of the model with their options, the workload's own first. Raises: Infeasible - as
    `workload.demand`.
    """
    found = []
    rest = [layer for layer in workload.layers if not isinstance(layer, Embedding)]
    kept = {"collectives": workload.collectives, "transfers": workload.transfers}
    own = workload.model_copy(update={"layers": rest, **kept})
    options = [_option(_name(workload.parallelism, workload.data), own, workload.seconds)]
    for split, batch in _splits(workload):
        try:
            other = own.model_copy(update={"parallelism": split, "batch": batch})
            options.append(
                _option(
                    _name(split, other.data), other, workload.seconds * other.idle / workload.idle
                )
            )
        except Infeasible:
            continue  # these degrees do not divide this model
    if rest or workload.collectives or workload.transfers or workload.seconds:
        found.append(Part("model", tuple(options)))
    for number, layer in enumerate(
        layer for layer in workload.layers if isinstance(layer, Embedding)
    ):
        alone = workload.model_copy(update={"layers": [layer], "collectives": [], "transfers": []})
        copied = Dense(kind="dense", parameters=layer.tables * layer.rows * layer.width)
        whole = alone.model_copy(update={"layers": [copied], "parallelism": Parallelism()})
        name = layer.name or f"embedding-{number}"
        found.append(Part(name, (_option("placed", alone), _option("replicated", whole))))
    return tuple(found)


def _option(name: str, workload: Workload, compute_s: float = 0.0) -> Option:
    traffic: Demand = demand(workload)
    return Option(name, compute_s, traffic.groups, traffic.mp if traffic.mp.any() else None)


def _name(split: Parallelism, data: int) -> str:
    return f"data {data} x tensor {split.tensor} x pipeline {split.pipeline}, experts over {split.expert}"


def _splits(workload: Workload) -> Iterator[tuple[Parallelism, int]]:
    """Other degrees that fit, with the samples each replica then has."""
    blocks = [layer.blocks for layer in workload.layers if isinstance(layer, Transformer | Experts)]
    experts = [layer.experts for layer in workload.layers if isinstance(layer, Experts)]
    samples = workload.batch * workload.data
    for tensor in DEGREES if blocks else (1,):
        for pipeline in DEGREES if blocks else (1,):
            data, left = divmod(workload.ranks, tensor * pipeline)
            if left or not data or samples % data or any(count % pipeline for count in blocks):
                continue
            for expert in (
                sorted({d for d in range(1, data + 1) if data % d == 0}) if experts else (1,)
            ):
                own = workload.parallelism
                pieces = own.micro_batches
                split = Parallelism(
                    data=data, tensor=tensor, pipeline=pipeline, expert=expert, micro_batches=pieces
                )
                same = (own.tensor, own.pipeline, own.expert) == (tensor, pipeline, expert)
                if not same and all(count % expert == 0 for count in experts):
                    yield split, samples // data
