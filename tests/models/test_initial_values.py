"""Which initial values two arrangements of a family share, so that a comparison of them starts from one place."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.models.architecture_variants import build
from tests.models.test_recurrent_encoder_decoder import INTERFACE, tiny
from transformer.layers.functional_module import Precision
from transformer.layers.initialization import Initialization
from transformer.layers.transformer_config import Biases, NormPlacement
from transformer.models import registry
from transformer.models.model import Model, leaves_by_path


def initial_values(family: str, **options: Any) -> dict[str, np.ndarray]:
    model, _ = build(family, **options)
    return {path: np.asarray(leaf) for path, leaf in leaves_by_path(model.init(jax.random.key(3)).params).items()}


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    return [path for path in one.keys() & other.keys() if one[path].tobytes() != other[path].tobytes()]


@pytest.mark.parametrize("family", ["encoder_decoder", "decoder"])
def test_matrices_do_not_depend_on_where_norms_stand_nor_on_biases(family: str) -> None:
    post = initial_values(family, norm_placement=NormPlacement.POST)
    for options in (
        {"norm_placement": NormPlacement.PRE},
        {"norm_placement": NormPlacement.SANDWICH},
        {"norm_placement": NormPlacement.PARALLEL},
        {"norm_placement": NormPlacement.POST, "biases": Biases.NONE},
    ):
        other = initial_values(family, **options)
        assert post.keys() != other.keys()
        assert differing(post, other) == []


def test_other_seeds_and_other_places_have_other_values() -> None:
    values = initial_values("decoder")
    matrices = [leaf for path, leaf in values.items() if path.endswith(("kernel", "table"))]
    drawn = np.concatenate([leaf.ravel() for leaf in matrices])
    assert len(np.unique(drawn)) > 0.9 * len(drawn)


@pytest.mark.parametrize(
    ("family", "writes"),
    [("decoder", {"layers": 4}), ("encoder", {"layers": 4}), ("encoder_decoder", {"encoder": 4, "decoder": 6})],
)
def test_what_writes_to_the_residual_stream_begins_smaller_by_the_root_of_how_often(
    family: str, writes: dict[str, int]
) -> None:
    """Radford et al. 2019, section 2.3, of two layers: a decoder that reads a memory writes three times in each."""
    values = initial_values(family, initialization=Initialization.GPT2, feed_forward=64)
    for stack, count in writes.items():
        kernels = [values[f"{stack}/{name}/kernel"] for name in ("attention/output", "feed_forward/contract")]
        drawn = np.concatenate([kernel.ravel() for kernel in kernels])
        assert drawn.std() == pytest.approx(0.02 / np.sqrt(count), rel=0.08)


@pytest.mark.parametrize(
    ("model", "has_state"),
    [
        (build("decoder")[0], False),
        (registry.build(tiny(scheduled_sampling=0.5, scheduled_sampling_steps=1), INTERFACE, Precision()), True),
    ],
    ids=["without state", "with state"],
)
def test_the_shapes_of_variables_are_those_of_what_is_initialized(model: Model, has_state: bool) -> None:
    shapes, initialized = model.shapes(), jax.eval_shape(model.init, jax.random.key(0))
    assert bool(jax.tree.leaves(shapes.state)) == has_state
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), initialized
    )
