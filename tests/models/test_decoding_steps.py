"""What reaches a decoding step: the request for maps, which come as the whole pass has them, and a key."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import BEGIN, PAD, build, lively
from transformer.attention import STATISTICS, Capture
from transformer.config import UserError
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.layers.functional_module import Precision
from transformer.layers.transformer_config import PositionEncoding
from transformer.models import registry
from transformer.models.model import Aux, Cache, Model, Variables
from transformer.models.task_interface import TaskInterface

SOURCE = np.int32([[5, 9, 3, 8, 7, 2], [6, 4, 2, PAD, PAD, PAD]])
TARGET = np.int32([[BEGIN, 7, 6, 4, 3], [BEGIN, 8, 11, 3, 7]])
SITES = {"encoder_decoder": ("decoder/self", "decoder/cross"), "decoder": ("decoder/self",)}


def steps(
    model: Model, variables: Variables, inputs: Any, fed_RxT: np.ndarray, capture: Capture, num_beams: int
) -> Any:
    """The maps of every cached step, [step, layer, row, head, 1, key]."""

    @jax.jit
    def run(variables: Variables) -> Any:
        cache, _ = model.init_cache(variables, inputs, num_beams=num_beams, length=fed_RxT.shape[1])

        def advance(cache: Cache, tokens: Any) -> Any:
            _, cache, aux = model.step(variables, cache, tokens, capture=capture)
            return cache, aux.maps

        return jax.lax.scan(advance, cache, jnp.asarray(fed_RxT.T))[1]

    return jax.device_get(run(variables))


@pytest.mark.parametrize(
    "positions",
    [
        PositionEncoding.SHAW,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (PositionEncoding.SINUSOIDAL, PositionEncoding.ALIBI)),
    ],
    ids=lambda p: p.value,
)
def test_the_maps_of_cached_steps_are_the_rows_of_the_whole_pass(positions: PositionEncoding) -> None:
    model, _ = build("encoder_decoder", positions=positions)
    variables, capture = lively(model), Capture(SITES["encoder_decoder"])
    # Two beams an example; the second of each reads the other's words in another order.
    fed = np.repeat(TARGET, 2, axis=0)
    fed[1], fed[3] = fed[1][[0, 2, 1, 4, 3]], fed[3][[0, 4, 3, 2, 1]]
    found = steps(model, variables, {"source": SOURCE}, fed, capture, num_beams=2)
    inputs = {"source": np.repeat(SOURCE, 2, axis=0), "target": fed}
    _, aux = jax.jit(lambda v: model.apply(v, inputs, train=False, capture=capture))(variables)
    for site in capture.sites:
        expected_LxRxHxTxK = np.asarray(aux.maps[site].weights)
        stepped_TxLxRxHx1xK = found[site].weights
        assert stepped_TxLxRxHx1xK.shape[4] == 1
        stepped = np.moveaxis(stepped_TxLxRxHx1xK[..., 0, :], 0, 3)
        np.testing.assert_allclose(stepped, expected_LxRxHxTxK, atol=1e-5, err_msg=site)


def test_statistics_of_a_step_are_those_of_its_queries() -> None:
    model, _ = build("decoder", positions=PositionEncoding.LEARNED)
    variables = lively(model)
    entropy = STATISTICS["entropy"]
    capture = Capture(SITES["decoder"], statistics=(entropy,), by_example=True)
    inputs = {"tokens": TARGET[:, :1], "lengths": np.int32([1, 1])}
    found = steps(model, variables, inputs, TARGET, capture, num_beams=1)["decoder/self"]
    weights = found.weights.astype(np.float64)
    expected = -(weights * np.log(np.maximum(weights, 1e-30))).sum(-1)[..., 0]
    means = np.asarray(found.sums["entropy"]) / np.asarray(found.counts["entropy"])
    np.testing.assert_allclose(means, expected, atol=1e-5)


def test_maps_of_layers_that_keep_unlike_numbers_of_keys_are_refused() -> None:
    model, _ = build("decoder", positions=PositionEncoding.LEARNED, attention_windows=(0, 2))
    inputs = {"tokens": TARGET[:, :1], "lengths": np.int32([1, 1])}
    with pytest.raises(ValueError, match=r"layers of unlike windows keep \[3, 6\] keys"):
        steps(model, lively(model), inputs, TARGET, Capture(SITES["decoder"]), num_beams=1)
    with pytest.raises(ValueError, match=r"capture.sites names \['decoder/crass'\]"):
        steps(model, lively(model), inputs, TARGET, Capture(("decoder/crass",)), num_beams=1)


class Drawing:
    """A model that draws: its logits favor one token, drawn anew by the key of every step, else token 0."""

    def init_cache(self, variables: Any, inputs: Any, *, num_beams: int, length: int) -> Any:
        return Cache((), {"drawn": jnp.zeros(3, jnp.int32)}, ()), jnp.zeros(3, jnp.int32)

    def step(self, variables: Any, cache: Cache, tokens: Any, *, key: Any = None, capture: Any = None) -> Any:
        drawn = jnp.zeros(3, jnp.int32) if key is None else jax.random.randint(key, (3,), 0, 50)
        return 9.0 * jax.nn.one_hot(drawn, 50), Cache((), {"drawn": drawn}, ()), Aux({}, {}, {})


def test_a_model_that_draws_is_given_a_key_of_its_own_at_every_step() -> None:
    def said(key: Any) -> np.ndarray:
        model: Any = Drawing()
        return np.asarray(
            generate(model, {}, {}, strategy=GreedySearch(), length=8, tokens=SpecialTokens(), key=key).tokens[:, 0]
        )

    first = said(jax.random.key(1))
    np.testing.assert_array_equal(said(jax.random.key(1)), first)
    assert (said(jax.random.key(2)) != first).mean() > 0.8
    assert len(set(first[0].tolist())) > 4  # another draw at every step
    # Sampling draws by those of the examples, which no step of the model may have as well.
    of_examples = [
        jax.random.randint(jax.random.fold_in(jax.random.key(1), example), (3,), 0, 50) for example in range(8)
    ]
    assert (np.stack(of_examples) != first.T).mean() > 0.8
    assert not said(None).any()


def test_a_family_that_does_not_decode_says_so() -> None:
    config = registry.model_config({"family": "encoder", "layers": 1, "width": 8, "heads": 2, "feed_forward": 16})
    model = registry.build(config, TaskInterface({}, {"tokens": 11}), Precision())
    with pytest.raises(UserError, match="cannot generate: its class Encoder has no methods init_cache and step; add"):
        model.init_cache(model.shapes(), {}, num_beams=1, length=2)
