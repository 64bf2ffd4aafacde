"""Translation of symbols by a small recurrent model with attention, whose right alignment is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.training import train_models
from transformer.attention import Capture
from transformer.layers.functional_module import Precision
from transformer.models.model import Model, Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.registry import build, model_config
from transformer.models.task_interface import InputSpec, TaskInterface

SYMBOLS, LENGTH, WIDTH, BATCH = 16, 9, 48, 48
PAD, BEGIN, FIRST_ORDER, FIRST_SYMBOL = 0, 1, 2, 5
# Where each target word comes from: the first source word names the order, the others follow it.
ORDERS: Mapping[str, tuple[int, ...]] = {
    "same": tuple(range(LENGTH)),
    "phrase": (
        0,
        1,
        2,
        5,
        4,
        3,
        6,
        7,
        8,
    ),  # three words in the middle change places, as in "zone économique européenne"
    "reversed": tuple(reversed(range(LENGTH))),
}
INTERFACE = TaskInterface(
    {"source": InputSpec((BATCH, LENGTH + 1)), "target": InputSpec((BATCH, LENGTH))},
    {"joint": FIRST_SYMBOL + SYMBOLS},
    PAD,
    BEGIN,
)
CONFIG = {"family": "recurrent_encoder_decoder", "width": WIDTH, "embedding_width": 24}


def make_model(precision: Precision, **changes: Any) -> Model:
    """Return the model; the defaults are Bahdanau's: a bidirectional GRU and additive attention."""
    return build(model_config({**CONFIG, **changes}), INTERFACE, precision)


def draw_batch(key: jax.Array, count: int = BATCH) -> tuple[dict[str, jax.Array], jax.Array]:
    """Draw sources of all orders, and their translations."""
    symbol_key, order_key = jax.random.split(key)
    orders_B = jax.random.randint(order_key, (count,), 0, len(ORDERS))
    symbols_BxN = jax.random.randint(symbol_key, (count, LENGTH), FIRST_SYMBOL, FIRST_SYMBOL + SYMBOLS)
    target_BxN = jnp.take_along_axis(symbols_BxN, jnp.array(list(ORDERS.values()))[orders_B], axis=1)
    source_BxS = jnp.concatenate([(FIRST_ORDER + orders_B)[:, None], symbols_BxN], axis=1)
    read_BxN = jnp.concatenate([jnp.full((count, 1), BEGIN), target_BxN[:, :-1]], axis=1)
    return {"source": source_BxS, "target": read_BxN}, target_BxN


def train(steps: int, seeds: Sequence[int]) -> tuple[Model, list[Variables]]:
    """Train the model of each seed on the translations alone."""
    model = make_model(Precision())
    return model, train_models(model, draw_batch, steps=steps, learning_rate=5e-3, seeds=seeds)


def mean_maps(model: Model, variables: Variables, count: int) -> dict[str, dict[str, Any]]:
    """Return the accuracy and the mean map [target, source] of each order, without the word that names the order."""
    inputs, labels = draw_batch(jax.random.key(1000), count)

    @jax.jit
    def run(variables: Variables, inputs: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits, aux = model.apply(variables, inputs, train=False, capture=Capture(sites=(SITE,)))
        weights = aux.maps[SITE].weights
        assert weights is not None
        return logits, weights[0, :, 0]

    logits_BxTxV, weights_BxTxS = map(np.asarray, run(variables, inputs))
    orders_B = np.asarray(inputs["source"])[:, 0] - FIRST_ORDER
    correct_BxT = logits_BxTxV.argmax(-1) == np.asarray(labels)
    return {
        name: {
            "accuracy": float(correct_BxT[orders_B == number].mean()),
            "map": weights_BxTxS[orders_B == number].mean(0)[:, 1:].astype(np.float64),
        }
        for number, name in enumerate(ORDERS)
    }


def mass_near(map_TxS: np.ndarray, links: Sequence[int], distance: int) -> float:
    """Return the mean weight of a map within a distance of the source words that the targets come from."""
    places = np.abs(np.arange(map_TxS.shape[1])[None] - np.array(links)[:, None])
    return float(np.where(places <= distance, map_TxS, 0).sum(1).mean())
