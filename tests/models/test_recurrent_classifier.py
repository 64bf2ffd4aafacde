"""The recurrent classifier against its equations in NumPy float64, on padding, and by its FLOPs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.gradients import check_gradient
from tests.models.random_models import random_variables
from tests.oracles import recurrent as oracle
from transformer.attention import Capture, Score
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.elmo import ElmoConfig
from transformer.layers.functional_module import Precision
from transformer.layers.recurrent import CellKind, Direction, RecurrentConfig
from transformer.models.model import Model, Variables
from transformer.models.recurrent_classifier import FAMILY, SITE, Pooling, RecurrentClassifierConfig
from transformer.models.task_interface import TEXT_CLASSIFICATION, InputSpec, TaskInterface

VOCABULARY, CLASSES, LONGEST = 7, 3, 5
TOKENS = np.int32([[1, 2, 3, 4, 5], [6, 0, 2, 0, 0], [3, 0, 0, 0, 0]])
LENGTHS = np.int32([5, 3, 1])
INTERFACE = TaskInterface(
    {"tokens": InputSpec((3, LONGEST)), "lengths": InputSpec((3,))},
    {"tokens": VOCABULARY, "classes": CLASSES},
    output=TEXT_CLASSIFICATION.output,
)


class Case(NamedTuple):
    """A config, with the words that the oracle knows it by."""

    pooling: Pooling
    score: Score = Score.ADDITIVE
    hops: int = 1
    hidden: int = 0
    direction: Direction = Direction.BIDIRECTIONAL
    cell: CellKind = CellKind.LSTM
    layers: int = 1

    @property
    def config(self) -> RecurrentClassifierConfig:
        encoder = RecurrentConfig(self.cell, 3, self.layers, self.direction)
        return RecurrentClassifierConfig(4, encoder, self.pooling, self.score, self.hops, self.hidden)


CASES = (
    Case(Pooling.LAST),
    Case(Pooling.LAST, direction=Direction.BACKWARD, layers=2),
    Case(Pooling.MEAN, cell=CellKind.GRU_RESET_AFTER),
    Case(Pooling.MAX, layers=2),
    Case(Pooling.ATTENTION),
    Case(Pooling.ATTENTION, hops=3, hidden=5),
    Case(Pooling.ATTENTION, Score.DOT, hops=2),
    Case(Pooling.ATTENTION, Score.GENERAL, direction=Direction.FORWARD),
    Case(Pooling.ATTENTION, Score.LOCATION),
)

ELMO = RecurrentClassifierConfig(4, RecurrentConfig(width=3), Pooling.LAST, elmo=ElmoConfig(layers=2, width=2))
POOLINGS = [Case(pooling, hops=2, layers=2).config for pooling in Pooling]


def named(case: Case) -> str:
    return f"{case.pooling.value}-{case.score.value}-{case.hops}"


def model_of(config: RecurrentClassifierConfig) -> Model:
    return FAMILY.build(config, INTERFACE, Precision("float64", "float64"))


def attended(case: Case, weights: Any, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of all hops side by side, and the weights [hop, key] of one text without padding."""
    trained, features = weights.get("attention", {}).get("score", {}), outputs.shape[1]
    sums, maps = [], []
    for hop in range(case.hops):
        query = weights["query"][hop * features : (hop + 1) * features]
        match case.score:
            case Score.ADDITIVE:
                bias = query @ trained["queries"][hop]
                logits = [trained["vector"][hop] @ np.tanh(trained["keys"][hop].T @ h + bias) for h in outputs]
            case Score.DOT:
                logits = [query @ h for h in outputs]
            case Score.GENERAL:
                logits = [query @ trained["weight"][hop] @ h for h in outputs]
            case _:
                logits = [query @ trained["weight"][hop][:, place] for place in range(len(outputs))]
        a = np.exp(logits) / np.sum(np.exp(logits))
        maps.append(a)
        sums.append(sum(weight * h for weight, h in zip(a, outputs, strict=True)))
    return np.concatenate(sums), np.array(maps)


def expected(case: Case, weights: Any, row: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The logits of one text as if there were no other, and its map."""
    vectors = np.stack([weights["embedding"]["table"][token] for token in TOKENS[row, : LENGTHS[row]]])
    of_encoder = oracle.Stack(case.cell.value, case.direction.value, case.layers)
    (outputs,), carry = oracle.stack(of_encoder, weights["encoder"], vectors[None], np.array([len(vectors)]))
    maps = None
    match case.pooling:
        case Pooling.LAST:
            pooled = carry[-1][0].hidden
        case Pooling.MEAN:
            pooled = sum(outputs) / len(outputs)
        case Pooling.MAX:
            pooled = np.array([max(feature) for feature in outputs.T])
        case Pooling.ATTENTION:
            pooled, maps = attended(case, weights, outputs)
    return pooled @ weights["output"]["kernel"] + weights["output"]["bias"], maps


@pytest.mark.parametrize("case", CASES, ids=named)
def test_logits_and_maps_are_those_of_the_equations(case: Case) -> None:
    with jax.enable_x64(True):
        model = model_of(case.config)
        variables = random_variables(model)
        attends = case.pooling is Pooling.ATTENTION
        assert [site.name for site in model.sites] == [SITE] * attends
        capture = Capture((SITE,)) if attends else None
        logits, aux = jax.device_get(
            programs.apply(model, variables, {"tokens": TOKENS, "lengths": LENGTHS}, train=False, capture=capture)
        )
    for row, length in enumerate(LENGTHS):
        found, maps = expected(case, variables.params, row)
        np.testing.assert_allclose(logits[row], found, rtol=0, atol=1e-12)
        if maps is not None:
            np.testing.assert_allclose(aux.maps[SITE].weights[0, row, :, 0, :length], maps, rtol=0, atol=1e-12)
            assert (aux.maps[SITE].weights[0, row, :, 0, length:] == 0).all()


@pytest.mark.parametrize(
    "config",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in POOLINGS[:-1]), POOLINGS[-1], ELMO],
    ids=(*(each.value for each in Pooling), "elmo"),
)
def test_padding_has_no_effect_on_logits_or_gradients(config: RecurrentClassifierConfig) -> None:
    """A number that is no token's has a vector of NaN, of which nothing may come."""
    with jax.enable_x64(True):
        model = model_of(config)
        variables = random_variables(model)

        def scored(params: Any, tokens: Any, lengths: Any) -> Any:
            inputs = {"tokens": tokens, "lengths": lengths}
            logits, _ = model.apply(Variables(params, {}), inputs, train=True)
            # The last row is empty, as where rows only fill a batch.
            return jnp.sum(jnp.sin(logits[:3])), logits

        slopes = jax.jit(jax.value_and_grad(scored, has_aux=True))

        def found(filling: int) -> Any:
            padding = np.arange(LONGEST) >= np.append(LENGTHS, 0)[:, None]
            tokens = np.where(padding, np.int32(filling), np.append(TOKENS, TOKENS[:1], axis=0))
            (_, logits), gradients = slopes(variables.params, tokens, np.append(LENGTHS, np.int32(0)))
            return jax.device_get((logits, gradients))

        zeros, beyond = found(0), found(VOCABULARY + 5)
        jax.tree.map(np.testing.assert_array_equal, beyond, zeros)
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(np.isfinite(leaf), True), beyond)
        np.testing.assert_array_equal(zeros[0][3], variables.params["output"]["bias"])


def test_features_of_elmo_are_the_weighted_sum_of_its_layers_beside_the_word_vectors() -> None:
    with jax.enable_x64(True):
        model = model_of(ELMO)
        variables = random_variables(model)
        inputs = {"tokens": TOKENS, "lengths": LENGTHS}
        logits, _ = jax.device_get(programs.apply(model, variables, inputs, train=False))
    weights = variables.params
    pretrained = weights["elmo"]["pretrained"]
    s = np.exp(weights["elmo"]["weights"]) / np.exp(weights["elmo"]["weights"]).sum()
    for row, length in enumerate(LENGTHS):
        tokens = TOKENS[row, :length]
        word = pretrained["embedding"]["table"][tokens].astype(np.float64)
        features = s[0] * np.concatenate([word, word], axis=1)
        for number in (1, 2):
            sides = []
            for name in ("forward", "backward"):
                outputs, _ = oracle.stack(
                    oracle.Stack("lstm", name, number), pretrained[name], word[None], np.array([length])
                )
                sides.append(outputs[0])
            features = features + s[number] * np.concatenate(sides, axis=1)
        features = weights["elmo"]["scale"] * features
        read = np.concatenate([weights["embedding"]["table"][tokens], features], axis=1)
        _, carry = oracle.stack(oracle.Stack("lstm"), weights["encoder"], read[None], np.array([length]))
        expected = carry[-1][0].hidden @ weights["output"]["kernel"] + weights["output"]["bias"]
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=1e-12)


def test_gradients_are_those_of_differences() -> None:
    with jax.enable_x64(True):
        model = model_of(Case(Pooling.ATTENTION, hops=2).config)
        variables = random_variables(model)

        def loss(params: Any) -> Any:
            logits, _ = model.apply(Variables(params, {}), {"tokens": TOKENS, "lengths": LENGTHS}, train=True)
            return jnp.sum(jax.nn.log_softmax(logits)[:, 0])

        check_gradient(loss, (variables.params,))


@pytest.mark.slow
def test_dropout_acts_in_training_alone_and_by_its_key() -> None:
    config = RecurrentClassifierConfig(4, RecurrentConfig(width=3), dropout=0.5)
    model = FAMILY.build(config, INTERFACE, Precision())
    variables = programs.initial(model.init)

    def logits(train: bool, seed: int) -> np.ndarray:
        inputs = {"tokens": TOKENS, "lengths": LENGTHS}
        return np.asarray(programs.apply(model, variables, inputs, train=train, key=jax.random.key(seed))[0])

    np.testing.assert_array_equal(logits(False, 0), logits(False, 1))
    np.testing.assert_array_equal(logits(True, 0), logits(True, 0))
    assert np.abs(logits(True, 0) - logits(True, 1)).max() > 1e-4
    assert np.abs(logits(True, 0) - logits(False, 0)).max() > 1e-4


def test_flops_are_counted_by_hand() -> None:
    """Two directions of 3 over 4 features, three hops whose hidden layers have 5 units, three classes."""
    config = Case(Pooling.ATTENTION, hops=3, hidden=5).config
    batch = {"tokens": np.zeros((2, 10), np.int32), "lengths": np.zeros(2, np.int32)}
    recurrent = 2 * 2 * 4 * 3 * (4 + 3)
    hop = 10 * (6 * 5 + 5 + 6) + 6 * 5
    expected = 2 * (10 * recurrent + 2 * 3 * hop + 2 * 18 * 3)

    def counted(config: RecurrentClassifierConfig) -> int:
        interface = TaskInterface({"tokens": InputSpec((2, 10))}, {"tokens": 7, "classes": 3})
        return forward_flops(FAMILY.build(config, interface, Precision()), batch)

    assert counted(config) == expected
    # The ELMo of two layers and 2 features a direction: each layer reads 2 features; the encoder, one way, reads 4 + 4;
    # they are a weighted sum of three layers.
    with_elmo = counted(ELMO)
    of_layers = 2 * 2 * (2 * 4 * 2 * (2 + 2))
    assert with_elmo == 2 * (10 * (of_layers + 2 * 3 * 4 + 2 * 4 * 3 * (8 + 3)) + 2 * 3 * 3)
    mean = counted(Case(Pooling.MEAN).config)
    assert mean == 2 * (10 * recurrent + 2 * 6 * 3)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"embedding_width": 0}, "config.model.embedding_width=0 must be at least 1"),
        ({"hops": 0}, "config.model.hops=0 must be at least 1"),
        ({"attention_hidden_width": -1}, "config.model.attention_hidden_width=-1 must be at least 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(values: dict[str, int], says: str) -> None:
    with pytest.raises(UserError) as told:
        RecurrentClassifierConfig(**values)  # type: ignore[arg-type]
    assert says in str(told.value)
