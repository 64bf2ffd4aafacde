"""The dual encoder: its embeddings by the oracle's blocks, padding, and what it refuses."""

from typing import Any

import jax
import numpy as np
import pytest

from experiments.text_retrieval.model import Pooling
from tests import programs
from tests.models.architecture_variants import lively
from tests.oracles import transformer as oracle
from transformer.attention import Capture
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model
from transformer.models.task_interface import InputSpec, TaskInterface

PAD = 0
SOURCE = np.int32([[1, 5, 7, 3, 2, PAD], [1, 4, 2, PAD, PAD, PAD]])
TARGET = np.int32([[1, 8, 2, PAD], [1, 6, 9, 2]])


def dual_encoder(**changes: Any) -> Model:
    values = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 12, "max_length": 6, **changes}
    inputs = {"source": InputSpec(SOURCE.shape), "target": InputSpec(TARGET.shape)}
    config = registry.model_config({"family": "experiments.text_retrieval.model", **values})
    return registry.build(config, TaskInterface(inputs, {"joint": 10}, PAD, 1, 2), Precision())


def expected_embedding(params: Any, tokens: np.ndarray, pooling: Pooling) -> np.ndarray:
    """One text without padding: x / |x| of the pooled states."""
    x = params["embedding"]["table"][tokens][None]
    x = x + (params["positions"]["table"][: len(tokens)] if "positions" in params else 0)
    for block in oracle.layers_of(params["layers"]) if "layers" in params else ():
        normed = oracle.layer_norm(block["attention_residual"]["norm"], x)
        x = x + oracle.multi_head(block["attention"], normed, normed, {})[0]
        x = x + oracle.feed_forward(block["feed_forward"], oracle.layer_norm(block["feed_forward_residual"]["norm"], x))
    x = oracle.layer_norm(params["norm"], x) if "norm" in params else x
    pooled = x[0, 0] if pooling is Pooling.FIRST else x[0].mean(axis=0)
    return pooled / np.sqrt(np.sum(pooled**2))


@pytest.mark.parametrize(
    ("pooling", "changes"),
    [
        (Pooling.MEAN, {}),
        pytest.param(Pooling.FIRST, {}, marks=pytest.mark.slow),
        (Pooling.MEAN, {"layers": 0, "positions": "none"}),
    ],
    ids=["mean", "first", "bag of words"],
)
def test_embeddings_are_the_oracles(pooling: Pooling, changes: dict[str, Any]) -> None:
    model = dual_encoder(pooling=pooling.value, **changes)
    variables = lively(model)
    capture = Capture(tuple(site.name for site in model.sites))
    inputs = {"source": SOURCE, "target": TARGET}
    x_Bx2xE, aux = programs.apply(model, variables, inputs, train=False, capture=capture)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables.params)
    for place, tokens_BxT in enumerate((SOURCE, TARGET)):
        for row, tokens in enumerate(tokens_BxT):
            expected = expected_embedding(params, tokens[tokens != PAD], pooling)
            np.testing.assert_allclose(x_Bx2xE[row, place], expected, atol=1e-5)
    assert set(aux.maps) == ({"source/self", "target/self"} if "layers" not in changes else set())


def test_a_row_of_padding_has_a_gradient_of_zero() -> None:
    model = dual_encoder(layers=0, positions="none")
    empty = {"source": np.zeros_like(SOURCE), "target": np.zeros_like(TARGET)}
    gradient = jax.jit(jax.grad(lambda v: model.apply(v, empty, train=False)[0].sum()))(lively(model))
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient.params))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0, "pooling": "first"}, "config.model.layers=0 leaves the begin token without a word"),
        ({"max_length": 5}, "longest source has 6 positions"),
        ({"tie_embeddings": False}, "of a head over the vocabulary"),
        ({"experts": {"count": 4}}, "experts.count=4: this model has no experts"),
    ],
)
def test_unfit_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dual_encoder(**changes)
