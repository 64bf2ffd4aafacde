"""The encoder: padding, types, the offset of its positions, its pooler, and its states without a head."""

from typing import Any

import jax
import numpy as np
import pytest

from tests import programs
from tests.models.architecture_variants import PAD, build, exact, kind_of, lively
from tests.oracles import transformer as oracle
from transformer.config import UserError
from transformer.layers.transformer_config import PositionEncoding
from transformer.models.encoder import EncoderHead
from transformer.models.model import Variables

TOKENS = np.int32([[5, 9, 3, 8, 7], [6, 4, 8, PAD, PAD]])
LENGTHS = np.int32([5, 3])


@pytest.fixture(scope="module")
def case() -> Any:
    """A model with everything, and its jitted forward pass."""
    model, config = build("encoder", add_pooling_layer=True, position_offset=2, num_token_types=3)
    return model, config, lively(model), jax.jit(lambda v, inputs: model.apply(v, inputs, train=False))


@pytest.mark.slow
def test_the_padding_token_gives_the_lengths_that_are_not_given(case: Any) -> None:
    _, _, variables, forward = case
    logits, aux = forward(variables, {"tokens": TOKENS})
    stated, stated_aux = forward(variables, {"tokens": TOKENS, "lengths": LENGTHS})
    np.testing.assert_array_equal(logits, stated)
    np.testing.assert_array_equal(aux.extras["pooled"], stated_aux.extras["pooled"])
    # Neither the width of the padding nor what stands in it matters.
    wider = np.pad(TOKENS, ((0, 0), (0, 2)), constant_values=11)
    wider[1, 3:] = 10
    padded, padded_aux = forward(variables, {"tokens": wider, "lengths": LENGTHS})
    real = TOKENS != PAD
    np.testing.assert_allclose(np.asarray(padded)[:, :5][real], np.asarray(logits)[real], rtol=0, atol=1e-5)
    np.testing.assert_allclose(padded_aux.extras["pooled"], aux.extras["pooled"], rtol=0, atol=1e-5)


def test_every_token_sees_every_other() -> None:
    model, _ = build("encoder", positions=PositionEncoding.NONE, head=EncoderHead.NONE)
    variables = lively(model)
    tokens = np.int32([[5, 9, 3, PAD]])

    def states(table: Any) -> Any:
        params = {**variables.params, "embedding": {"table": table}}
        return model.apply(Variables(params, {}), {"tokens": tokens}, train=False)[0][0, :, 0]

    flows = np.asarray(jax.jit(jax.jacrev(states))(variables.params["embedding"]["table"])).any(axis=-1)
    assert flows[:3][:, [5, 9, 3]].all()
    assert not flows[:3][:, PAD].any()


def test_types_that_are_absent_are_the_first(case: Any) -> None:
    _, _, variables, forward = case
    plain = forward(variables, {"tokens": TOKENS})[0]
    zeros = forward(variables, {"tokens": TOKENS, "types": np.zeros_like(TOKENS)})[0]
    np.testing.assert_array_equal(plain, zeros)
    others = forward(variables, {"tokens": TOKENS, "types": np.full_like(TOKENS, 2)})[0]
    assert np.abs(np.asarray(others) - plain).max() > 0.1


def test_the_first_rows_of_the_positions_are_never_read(case: Any) -> None:
    _, config, variables, forward = case
    table = variables.params["positions"]["table"]
    assert table.shape == (config.max_length + 2, config.width)
    moved = np.array(table)
    moved[:2] += 7
    other = Variables({**variables.params, "positions": {"table": moved}}, {})
    np.testing.assert_array_equal(forward(other, {"tokens": TOKENS})[0], forward(variables, {"tokens": TOKENS})[0])


def test_without_a_head_the_states_come_out() -> None:
    model, config = build(
        "encoder",
        head=EncoderHead.NONE,
        add_pooling_layer=True,
        num_token_types=0,
        tie_embeddings=False,
        output_bias=True,
    )
    variables = lively(model)
    assert not {"head", "unembedding", "output_bias", "types"} & set(variables.params)
    states, aux = programs.apply(model, variables, {"tokens": TOKENS}, train=False)
    _, expected, pooled = oracle.encoder(kind_of(config), exact(variables.params), TOKENS, lengths=LENGTHS)
    real = TOKENS != PAD
    np.testing.assert_allclose(np.asarray(states)[real], expected[real], rtol=0, atol=1e-4)
    assert pooled is not None
    np.testing.assert_allclose(aux.extras["pooled"], pooled, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="no head that scores tokens"):
        model.logits(variables, states)


def test_the_head_alone_scores_a_part_of_the_states(case: Any) -> None:
    model, _, variables, forward = case

    @jax.jit
    def logits_of_part(variables: Variables) -> jax.Array:
        states, _ = model.apply(variables, {"tokens": TOKENS}, method="hidden", train=False)
        return model.logits(variables, states[:, 1:3])

    whole = np.asarray(forward(variables, {"tokens": TOKENS})[0])
    np.testing.assert_allclose(logits_of_part(variables), whole[:, 1:3], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("num_token_types", -1), ("position_offset", -2)])
def test_counts_below_zero_are_refused(name: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"config\.model\.{name}={value} must be at least 0"):
        build("encoder", **{name: value})


def test_the_last_bucket_of_t5_begins_behind_those_of_one_distance() -> None:
    """A side has half of the buckets, and half of these hold one distance each."""
    of_t5 = {"positions": PositionEncoding.T5, "relative_attention_num_buckets": 32}
    with pytest.raises(
        UserError,
        match=r"config\.model\.relative_attention_max_distance=8 .* say relative_attention_max_distance=9 or more",
    ):
        build("encoder", **of_t5, relative_attention_max_distance=8)
    model, _ = build("encoder", **of_t5, relative_attention_max_distance=9)
    jax.eval_shape(lambda: model.apply(model.init(jax.random.key(0)), {"tokens": TOKENS}, train=False))


def test_the_head_of_pairs_reads_the_pooler_alone() -> None:
    model, config = build("encoder", head=EncoderHead.PRETRAINING, num_token_types=2)
    variables = lively(model)
    _, aux = programs.apply(model, variables, {"tokens": TOKENS}, method="hidden", train=False)
    _, _, pooled = oracle.encoder(kind_of(config), exact(variables.params), TOKENS, lengths=LENGTHS)
    weights = exact(variables.params)["next_sentence"]
    expected = np.asarray(pooled) @ weights["kernel"] + weights["bias"]
    np.testing.assert_allclose(aux.extras["next_sentence"], expected, rtol=0, atol=1e-4)
