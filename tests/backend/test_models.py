"""DDP, FSDP2, torch.compile and DTensor over the back-end `testbed`, against the same over gloo."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend.crew import WORLD, Crew

pytestmark = pytest.mark.timeout(400)

CLOSE = 1e-5
"""How far losses may be apart after six steps: the order of summation differs."""
LONG = pytest.mark.long


def check(answers: list[Any], close: float = CLOSE) -> None:
    digests, apart = zip(*answers, strict=True)
    assert len(set(digests)) == 1
    assert max(apart) <= close


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True, "alternate": True},
        {"static_graph": True},
        {"accumulate": 3},
        {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True},
        pytest.param({"compiled": "aot_eager"}, marks=LONG),
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_ddp_trains_as_over_gloo_with_the_same_weights_on_all_ranks(
    crew: Crew, options: dict[str, Any]
) -> None:
    check(crew("models.ddp", **options))


def test_ddp_compresses_gradients_by_torchs_own_hooks(crew: Crew) -> None:
    check(crew("models.ddp", hook="fp16_compress_hook"), 1e-2)


@pytest.mark.parametrize(
    "options", [{}, {"mixed": True}, {"two_dimensions": True}], ids=lambda o: " ".join(o) or "plain"
)
def test_fsdp_trains_as_over_gloo_with_the_same_weights_on_all_ranks(
    crew: Crew, options: dict[str, Any]
) -> None:
    check(crew("models.fsdp", **options), 1e-2 if "mixed" in options else CLOSE)


@pytest.mark.parametrize(
    "options", [pytest.param({"compiled": "aot_eager"}, marks=LONG)], ids=lambda o: " ".join(o)
)
def test_compiled_fsdp_trains_as_over_gloo(crew: Crew, options: dict[str, Any]) -> None:
    check(crew("models.fsdp", **options))


def test_ranks_with_fewer_batches_wait_for_the_others(crew: Crew) -> None:
    check(crew("models.join_uneven"))


def test_the_optimizer_may_be_split_over_the_ranks(crew: Crew) -> None:
    check(crew("models.zero"))


def test_tensors_of_meshes_change_their_placement(crew: Crew) -> None:
    assert crew("models.tensors_of_meshes") == [[]] * WORLD


@LONG
def test_a_compiled_function_may_have_collectives_inside(crew: Crew) -> None:
    assert crew("models.compiled_collectives") == [[]] * WORLD
