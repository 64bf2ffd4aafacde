"""The names of activations are those of the guide in every family of the library."""

from pathlib import Path

import numpy as np
import pytest

from tests.contracts.case import Case
from tests.contracts.library_cases import LIBRARY
from transformer.models.activation_names import activation_kind
from transformer.models.activations import activation_occurrences
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.partitioning import single_device_placement

# Toys and projects whose layers are their own name what they like.
NAMED = [case for case in LIBRARY if case.task["name"] != "image_classification" or case.model["family"] == "vit"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in NAMED])
def test_names_do_not_depend_on_the_family(case: Case, tmp_path: Path) -> None:
    """Every activation of every family has a known kind, and the axes that its name says."""
    experiment = case.experiment(OptimizerAlgorithm.ADAM, 0.01)
    components = case.assemble(experiment, tmp_path, single_device_placement())
    inputs = {name: np.zeros(spec.shape, spec.dtype) for name, spec in components.task.interface.inputs.items()}
    occurrences = activation_occurrences(components.model, inputs)
    for site in components.model.sites:
        stack, _, sublayer = site.name.rpartition("/")
        if sublayer in ("self", "cross") and "recurrent" not in case.model["family"]:
            memory = () if stack == "query" else ("keys", "values")  # XLNet's query stream reads the content's
            expected = {f"{site.name}/{name}" for name in ("queries", *memory, "weights", "head_outputs")}
            assert expected - set(occurrences) == set()
            assert occurrences[f"{site.name}/weights"].number == len(site.layers)
            assert f"{stack}/residual" in occurrences
    for name, (number, shape) in occurrences.items():
        kind = activation_kind(name)
        if kind is None or name.endswith("norm_factor") or shape is None:
            continue
        assert kind.leading is not None or number == 1, name
        assert len(shape.shape) == len(kind.axes), name
