"""The models of the program `train`."""

from __future__ import annotations

import pytest
import torch

from workloads.training.models import MODELS, model, parameters


@pytest.mark.parametrize("hidden", [0, 64], ids=["usual", "narrow"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_as_many_parameters_as_its_formula_says(name: str, hidden: int) -> None:
    module = model(name, torch, 1, hidden)
    assert sum(each.numel() for each in module.parameters()) == parameters(name, hidden)
