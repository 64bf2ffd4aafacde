"""A score function of the user's own: a class given to `attend`, and named in a config by its module."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.random_models import fresh_variables
from transformer.attention import (
    AttentionParameters,
    AttentionSizes,
    AttentionSpec,
    Backend,
    Mask,
    ParameterSpec,
    ScoreFunction,
    attend,
)
from transformer.attention.scores import Dot
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.model import leaves_by_path
from transformer.models.registry import build, model_config
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.runs.trust import check_trusted

CODE = """
import dataclasses
import jax
import jax.numpy as jnp
from transformer.attention import ParameterSpec, ScoreFunction

@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Diagonal(ScoreFunction):
    weight_HxD: jax.Array

    needs_equal_depths = True

    @classmethod
    def parameter_specs(cls, sizes):
        return {"weight": ParameterSpec((sizes.heads, sizes.head_dim), ("heads", "head_dim"), jax.nn.initializers.ones)}

    def parameter_shapes(self, q, k):
        return {"weight_HxD": (q[2], q[3])}

    def query(self, q_BxQxHxD):
        return q_BxQxHxD * self.weight_HxD

SCORE = Diagonal
"""


class Manhattan(ScoreFunction):
    """-sum_d |q_d - k_d|."""

    parameters = "none"
    uses_raw_keys = needs_equal_depths = ranks_keys_for_zero_query = True

    def logits(self, q_BxQxHxD: Any, prepared: Any) -> jax.Array:
        q_BxHxQx1xD, k_BxHx1xKxD = (
            jnp.moveaxis(q_BxQxHxD, 1, 2)[:, :, :, None],
            jnp.moveaxis(prepared, 1, 2)[:, :, None],
        )
        return -jnp.sum(jnp.abs(q_BxHxQx1xD - k_BxHx1xKxD), axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weighted(ScoreFunction):
    """sum_d w_d q_d k_d."""

    weight_HxD: jax.Array

    @classmethod
    def parameter_specs(cls, sizes: AttentionSizes) -> dict[str, ParameterSpec]:
        return {"weight": ParameterSpec((sizes.heads, sizes.head_dim), ("heads", "head_dim"), jax.nn.initializers.ones)}

    def query(self, q_BxQxHxD: Any) -> Any:
        return q_BxQxHxD * self.weight_HxD


def arrays() -> tuple[jax.Array, ...]:
    random = np.random.default_rng(0)
    return tuple(jnp.asarray(random.normal(size=(2, 5, 3, 4)), jnp.float32) for _ in range(3))


def by_hand(logits_BxHxQxK: np.ndarray, v: jax.Array, causal: bool = False) -> np.ndarray:
    if causal:
        logits_BxHxQxK = np.where(np.tri(5, dtype=bool), logits_BxHxQxK, -np.inf)
    weights = np.exp(logits_BxHxQxK - logits_BxHxQxK.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), np.asarray(v, np.float64))


def test_a_class_of_ones_own_is_a_score() -> None:
    q, k, v = arrays()
    output, _ = attend(q, k, v, spec=AttentionSpec(Manhattan), mask=Mask(causal=True))
    distances = (
        np.abs(np.moveaxis(q, 1, 2)[:, :, :, None] - np.moveaxis(k, 1, 2)[:, :, None]).astype(np.float64).sum(-1)
    )
    np.testing.assert_allclose(output, by_hand(-distances, v, causal=True), atol=2e-6)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)

    def total(weight: jax.Array) -> jax.Array:
        params = AttentionParameters(score=Weighted(weight))
        return attend(q, k, v, spec=AttentionSpec(Weighted), params=params)[0].sum()

    params = AttentionParameters(score=Weighted(weight))
    logits = np.einsum("bqhd,hd,bkhd->bhqk", *(np.asarray(each, np.float64) for each in (q, weight, k)))
    output, _ = attend(q, k, v, spec=AttentionSpec(Weighted), params=params)
    np.testing.assert_allclose(output, by_hand(logits, v), atol=2e-6)
    step = 1e-3 * np.eye(12).reshape(12, 3, 4)[5].astype(np.float32)
    slope = (total(weight + step) - total(weight - step)) / 2e-3
    assert float(jax.grad(total)(weight)[1, 1]) == pytest.approx(float(slope), rel=2e-2, abs=1e-3)


def test_what_does_not_fit_is_refused_by_name() -> None:
    q, k, v = arrays()
    with pytest.raises(ValueError, match=r"backend=blockwise does not take score=Manhattan"):
        attend(q, k, v, spec=AttentionSpec(Manhattan, backend=Backend.BLOCKWISE))
    with pytest.raises(TypeError, match=r"score=Weighted takes params\.score=Weighted\(.*\); params\.score is nothing"):
        attend(q, k, v, spec=AttentionSpec(Weighted))
    with pytest.raises(TypeError, match=r"score is a Manhattan with its parameters; give score=Manhattan"):
        AttentionSpec(Manhattan())  # type: ignore[arg-type]
    for other in (int, Dot):  # a class of the library is named by its member
        with pytest.raises(TypeError, match=rf"score is {other.__name__}, which is no Score"):
            AttentionSpec(other)  # type: ignore[arg-type]
    for step, name in (("query", "is_dot_product"), ("prepare", "is_dot_product"), ("logits", "is_dot_product")):
        with pytest.raises(TypeError, match=rf"Wrong has its own {step}: set {name} = False in it"):
            type("Wrong", (Dot,), {step: lambda self, *arrays: arrays[0]})
    with pytest.raises(TypeError, match=r"Wrong has its own logits: set is_product = False in it"):
        type("Wrong", (Dot,), {"logits": lambda self, q, k: q, "is_dot_product": False})


def test_a_subclass_that_is_a_product_runs_in_blocks() -> None:
    q, k, v = arrays()
    doubled = type("Doubled", (Dot,), {"query": lambda self, q: 2 * q, "is_dot_product": False})
    output, _ = attend(q, k, v, spec=AttentionSpec(doubled, backend=Backend.BLOCKWISE))
    logits = 2 * np.einsum("bqhd,bkhd->bhqk", np.asarray(q, np.float64), np.asarray(k, np.float64))
    np.testing.assert_allclose(output, by_hand(logits, v), atol=2e-6)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_score").mkdir()
    (tmp_path / "own_score" / "diagonal.py").write_text(CODE)
    (tmp_path / "own_score" / "none.py").write_text("SCORE = 3")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_score.diagonal"
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_score"]:
        del sys.modules[name]


@pytest.mark.parametrize("family", ["decoder", "encoder", "recurrent_encoder_decoder"])
def test_a_config_names_the_module_and_the_model_trains_its_parameters(family: str, module: str) -> None:
    sizes = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 8, "max_length": 8}
    sizes = {"width": 4, "embedding_width": 4, "direction": "forward"} if "recurrent" in family else sizes
    config = model_config({"family": family, **sizes, "score": module})
    inputs = {name: InputSpec((2, 4)) for name in (("source", "target") if "recurrent" in family else ("tokens",))}
    interface = TaskInterface(inputs, {"tokens": 11, "joint": 11}, pad_id=0, bos_id=1, eos_id=2)
    model = build(config, interface, Precision())
    variables = fresh_variables(model)
    (path,) = [path for path in leaves_by_path(variables.params) if path.endswith("score/weight")]
    tokens = {name: jnp.ones((2, 4), jnp.int32) * np.arange(3, 7) for name in inputs}

    @jax.jit
    def total(params: Any) -> jax.Array:
        return jnp.square(model.apply(variables._replace(params=params), tokens, train=False)[0]).sum()

    assert np.asarray(leaves_by_path(jax.grad(total)(variables.params))[path]).any()


def test_a_module_without_a_score_is_refused_in_one_line(module: str) -> None:
    for score, says in (
        (
            "own_score.none",
            r"config\.model\.score='own_score\.none': the module exports no SCORE; define SCORE = a",
        ),
        ("own_score.absent", r"own_score has no module own_score\.absent: check its spelling"),
        ("dots", r"config\.model\.score='dots' is unknown: did you mean 'dot'\?"),
    ):
        for family in ("decoder", "recurrent_classifier", "vit"):
            with pytest.raises(UserError, match=says) as refused:
                model_config({"family": family, "score": score})
            assert "\n" not in str(refused.value)
    values = {"task": {"name": "translation"}, "model": {"family": "decoder", "score": module}}
    with pytest.raises(UserError, match=rf"config\.model\.score='{module}' is code from outside this library"):
        check_trusted(values, ())
