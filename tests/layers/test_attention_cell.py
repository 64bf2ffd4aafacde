"""The attention cell of recurrent decoders against NumPy float64: its reading, beams, steps, scan and capture."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.gradients import check_gradient
from tests.oracles import attention_equations
from tests.oracles import recurrent as oracle
from transformer.attention import (
    STATISTICS,
    Capture,
    CapturedAttention,
    Mask,
    Normalizer,
    Reweighting,
    Score,
    add_layer_axis,
    single_layer_maps,
)
from transformer.config import UserError
from transformer.layers.attention_cell import (
    Alignment,
    AttentionCell,
    AttentionCellConfig,
    AttentionMemory,
    AttentionSpan,
    KeyValueProjection,
    scan_decoder_steps,
)
from transformer.layers.beam_rows import flatten_beam_axis, repeat_per_beam, unflatten_beam_axis
from transformer.layers.functional_module import FunctionalModule, Module, ParameterBuilder
from transformer.layers.initialization import RecurrentInitialization
from transformer.layers.recurrent import CellKind, CellState, RecurrentCell
from transformer.layers.sequence_lengths import real_lengths, real_positions, target_lengths
from transformer.logical_axes import RULES, partition_spec

B, K, Q, WIDTH, MEMORY = 3, 5, 4, 4, 6
LENGTHS = np.int32([5, 2, 0])
# Our names of a score's parameters, and those of the algebra.
SCORES = {
    "weight": {"general": "weight_HxDxC", "concat": "weight_HxIxA", "mlp": "weight_HxIxA", "location": "weight_HxDxN"},
    "keys": "keys_HxCxA",
    "queries": "queries_HxDxA",
    "vector": "score_HxA",
    "bias": "bias_HxA",
}


class Case(NamedTuple):
    """A cell, and the features of the memory that it reads."""

    config: AttentionCellConfig
    memory: int = MEMORY

    @property
    def name(self) -> str:
        config = self.config
        return f"{config.score.value}-{config.normalizer.value}-{config.key_value_projection.value}-{config.heads}"


CASES = [
    Case(AttentionCellConfig()),
    Case(AttentionCellConfig(Score.DOT), WIDTH),
    Case(AttentionCellConfig(Score.SCALED_DOT, Normalizer.SPARSEMAX, heads=2), WIDTH),
    Case(AttentionCellConfig(Score.COSINE, Normalizer.ENTMAX15, heads=2), WIDTH),
    Case(AttentionCellConfig(Score.GENERAL, heads=2)),
    Case(AttentionCellConfig(Score.ADDITIVE, Normalizer.HARD, heads=2, head_dim=5)),
    Case(AttentionCellConfig(Score.CONCAT, heads=2, head_dim=3)),
    Case(AttentionCellConfig(Score.MLP, head_dim=7)),
    Case(AttentionCellConfig(Score.LOCATION, max_length=8)),
    Case(AttentionCellConfig(Score.SCALED_DOT, key_value_projection=KeyValueProjection.SPLIT, heads=2)),
    Case(AttentionCellConfig(Score.ADDITIVE, key_value_projection=KeyValueProjection.SPLIT, heads=3, head_dim=2), 5),
]


@functools.cache
def cell_of(case: Case) -> FunctionalModule:
    return FunctionalModule(lambda builder: AttentionCell(case.config, WIDTH, case.memory, builder=builder))


def random_weights(functional: FunctionalModule) -> dict[str, Any]:
    normal = np.random.default_rng(0).normal
    return jax.tree.map(lambda leaf: normal(size=leaf.shape).astype(leaf.dtype), functional.shapes())


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def expected(
    case: Case, weights: Any, query: np.ndarray, memory: np.ndarray, lengths: np.ndarray
) -> attention_equations.Answer:
    """What the algebra says of queries `B Q E` that read a memory `B K M`."""
    config, of_score = case.config, weights.get("score", {})

    def in_heads(x: np.ndarray, name: str) -> np.ndarray:
        if config.key_value_projection is KeyValueProjection.SPLIT:
            return np.einsum("bne,ehd->bnhd", x, weights[name]["kernel"].astype(np.float64))
        return np.stack(np.split(x, config.heads, axis=-1), axis=2)

    arrays = {"q": in_heads(query, "query"), "k": in_heads(memory, "key"), "v": in_heads(memory, "value")}
    for name, array in of_score.items():
        if name == "log_sharpening":
            arrays["score.sharpening"] = np.exp(array.astype(np.float64))[None, :, None]
            continue
        role: Any = SCORES[name]
        arrays[f"score.{role if isinstance(role, str) else role[config.score.value]}"] = array
    kind = attention_equations.Kind(config.score.value, config.normalizer.value)
    return attention_equations.attention(kind, arrays, {"key_lengths": lengths})


def close(ours: Any, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if number % 2 else pytest.mark.slow) for number, case in enumerate(CASES)],
    ids=lambda case: case.name,
)
def test_a_reading_is_the_algebras_with_all_queries_at_once_and_with_one_a_step(case: Case) -> None:
    functional = cell_of(case)
    weights, query, memory = random_weights(functional), random(B, Q, WIDTH), random(B, K, case.memory, seed=2)
    padded = np.where(np.arange(K)[None, :, None] < LENGTHS[:, None, None], memory, np.nan)
    answer = expected(case, weights, query, memory, LENGTHS)

    def read(query: Any, memory: Any) -> Any:
        cell = functional.bind(weights)
        prepared = cell.prepare(memory, jnp.asarray(LENGTHS))
        return cell(query, prepared), cell.step(query[:, 1], prepared)

    with jax.enable_x64(True):
        (context, alignment), (of_step, alignment_of_step) = jax.jit(read)(jnp.asarray(query), jnp.asarray(padded))
    cell = functional.bind(weights)
    assert context.shape == (B, Q, cell.context_width)
    close(context, answer.output.reshape(B, Q, -1))
    close(alignment.weights, answer.weights)
    close(np.where(answer.seen, alignment.logits, 0), np.where(answer.seen, answer.logits, 0))
    assert (np.asarray(alignment.weights)[2] == 0).all()  # no memory: nothing is read
    assert (alignment.log_prob is None) == (case.config.normalizer is not Normalizer.HARD)
    if alignment.log_prob is not None:
        close(alignment.log_prob, answer.log_prob)
        close(alignment_of_step.log_prob, answer.log_prob[:, :, 1])
    close(of_step, answer.output[:, 1].reshape(B, -1))
    close(alignment_of_step.weights, answer.weights[:, :, 1])


@pytest.mark.parametrize("case", [CASES[5], CASES[9]], ids=lambda case: case.name)
def test_beams_as_queries_are_a_tiled_memory(case: Case) -> None:
    functional, num_beams = cell_of(case), 2
    weights = random_weights(functional)
    query, memory = random(B * num_beams, WIDTH), random(B, K, case.memory, seed=2)

    def read(query: Any, memory: Any, lengths: Any) -> Any:
        cell = functional.bind(weights)
        prepared = cell.prepare(memory, lengths)
        assert prepared.values.shape[0] == len(memory)
        return cell.step(query, prepared)

    with jax.enable_x64(True):
        arguments = jnp.asarray(memory), jnp.asarray(LENGTHS)
        of_beams = jax.jit(read)(jnp.asarray(query), *arguments)
        repeated = (np.repeat(memory, num_beams, axis=0), np.repeat(LENGTHS, num_beams))
        tiled = jax.jit(read)(jnp.asarray(query), *map(jnp.asarray, repeated))
    jax.tree.map(close, of_beams, tiled)
    answer = expected(case, weights, query.reshape(B, num_beams, WIDTH), memory, LENGTHS)
    close(of_beams[0], answer.output.reshape(B * num_beams, -1))


def test_rows_are_examples_by_beams() -> None:
    rows = jax.device_put(np.arange(12).reshape(6, 2))

    @jax.jit
    def every_change(rows: jax.Array, two: jax.Array) -> tuple[jax.Array, ...]:
        by_example = unflatten_beam_axis(rows, 3)
        repeated = repeat_per_beam(two, 2), repeat_per_beam({"a": rows[:2]}, 2, axis=1)["a"]
        return by_example[1], flatten_beam_axis(by_example), *repeated

    second, flat, repeated, repeated_columns = every_change(rows, np.array([7, 8]))
    np.testing.assert_array_equal(second, [[4, 5], [6, 7]])
    np.testing.assert_array_equal(flat, rows)
    np.testing.assert_array_equal(repeated, [7, 7, 8, 8])
    np.testing.assert_array_equal(repeated_columns, [[0, 0, 1, 1], [2, 2, 3, 3]])
    with pytest.raises(ValueError, match="6 rows are no whole number of beams for each of 4 examples"):
        unflatten_beam_axis(rows, 4)


@pytest.mark.parametrize(
    "case", [pytest.param(CASES[0], marks=pytest.mark.slow), CASES[10]], ids=lambda case: case.name
)
def test_gradients_are_right_and_padding_has_none(case: Case) -> None:
    functional = cell_of(case)
    memory = random(B, K, case.memory, seed=2)

    def read(weights: Any, query: Any, memory: Any) -> Any:
        cell = functional.bind(weights)
        return cell.step(query, cell.prepare(memory, jnp.asarray(LENGTHS)))[0]

    @jax.jit
    def gradients_of(*inputs: Any) -> Any:
        return jax.grad(lambda *inputs: jnp.sum(jnp.square(read(*inputs))), argnums=(0, 2))(*inputs)

    with jax.enable_x64(True):
        inputs = random_weights(functional), random(B, WIDTH), memory
        check_gradient(read, inputs, atol=1e-6, rtol=1e-6, eps=1e-5)
        hidden = np.broadcast_to(np.arange(K)[None, :, None] >= LENGTHS[:, None, None], memory.shape)
        gradients = gradients_of(*inputs[:2], np.where(hidden, np.nan, memory))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert (np.asarray(gradients[1])[hidden] == 0).all()
    assert (np.asarray(gradients[1])[~hidden] != 0).all()


def test_a_sampler_draws_in_training_by_its_key_and_gives_its_log_probability() -> None:
    case = CASES[5]
    functional = cell_of(case)
    cell = functional.bind(random_weights(functional))
    query, memory = random(B, WIDTH).astype(np.float32), random(B, K, MEMORY).astype(np.float32)

    @jax.jit
    def draw(seed: Any) -> Any:
        prepared = cell.prepare(jnp.asarray(memory))
        return prepared, cell.step(jnp.asarray(query), prepared, key=jax.random.key(seed), train=True)[1]

    prepared, _ = draw(0)
    np.testing.assert_array_equal(prepared.lengths, [K] * B)
    draws = [draw(seed)[1] for seed in range(20)]
    chosen = np.stack([np.asarray(one.weights).argmax(-1) for one in draws])
    assert (np.sort(draws[0].weights, axis=-1) == [0] * (K - 1) + [1]).all()
    assert len(np.unique(chosen[:, 0, 0])) > 1
    logits = np.asarray(draws[3].logits, np.float64)
    of_chosen = np.take_along_axis(logits, chosen[3][..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(draws[3].log_prob, of_chosen - np.log(np.exp(logits).sum(-1)), rtol=0, atol=1e-5)
    # The first example draws nothing: it reads by the probabilities, and what it read has no log-probability.
    soft = jnp.arange(B) == 0
    half = jax.jit(lambda query: cell.step(query, prepared, soft_R=soft, key=jax.random.key(3), train=True)[1])(query)
    powers = np.exp(np.asarray(half.logits[0], np.float64))
    np.testing.assert_allclose(half.weights[0], powers / powers.sum(-1, keepdims=True), rtol=0, atol=1e-6)
    assert not np.asarray(half.log_prob[0]).any()
    np.testing.assert_allclose(half.log_prob[1:], draws[3].log_prob[1:], rtol=0, atol=1e-6)
    with pytest.raises(TypeError, match="normalizer=hard draws a sample in training"):
        jax.jit(lambda query: cell.step(query, prepared, train=True))(query)


def test_a_window_around_a_predicted_center_is_local_p() -> None:
    config = AttentionCellConfig(Score.GENERAL, reweighting=Reweighting.GAUSSIAN)
    functional = FunctionalModule(lambda builder: AttentionCell(config, WIDTH, MEMORY, builder=builder))
    weights, query, memory = random_weights(functional), random(B, WIDTH), random(B, K, MEMORY, seed=2)
    center = np.float64([[[3.2]], [[0.4]], [[0.0]]])  # of B examples, 1 head, 1 query
    with jax.enable_x64(True):
        cell = functional.bind(weights)

        def read(center: Any) -> Any:
            mask = None if center is None else Mask(window=(2, 2), center=center)
            return cell.step(jnp.asarray(query), cell.prepare(jnp.asarray(memory), jnp.asarray(LENGTHS)), mask=mask)

        context, alignment = jax.jit(read)(center)
        with pytest.raises(ValueError, match="reweighting=gaussian needs a mask with window and center"):
            jax.jit(read)(None)
    arrays = {"q": query[:, None, None], "k": memory[:, :, None], "v": memory[:, :, None], "center": center}
    arrays["score.weight_HxDxC"] = weights["score"]["weight"]
    answer = attention_equations.attention(
        attention_equations.Kind("general", gaussian=True), arrays, {"window": (2, 2), "key_lengths": LENGTHS}
    )
    close(context, answer.output[:, 0, 0])
    close(alignment.weights, answer.weights[:, :, 0])


def test_a_window_in_bfloat16_stands_where_its_query_does() -> None:
    """bfloat16 has 8 bits: of the positions beyond 256 it knows every second one."""
    config = AttentionCellConfig(Score.DOT, attention_span=AttentionSpan.MONOTONIC, half_width=1)
    functional = FunctionalModule(lambda builder: AttentionCell(config, WIDTH, WIDTH, builder=builder))
    cell = functional.bind(random_weights(functional))

    @jax.jit
    def weights_at(position: Any) -> Any:
        prepared = cell.prepare(jnp.zeros((1, 600, WIDTH), jnp.bfloat16))
        return cell.step(jnp.zeros((1, WIDTH), jnp.bfloat16), prepared, position_R=position[None])[1].weights

    for position in (255, 301, 598):
        weights = np.asarray(weights_at(np.int32(position)))
        assert np.flatnonzero(weights[0, 0]).tolist() == [position - 1, position, position + 1]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"score=dot takes queries and keys of one depth; these have 4 and 6"):
        cell_of(Case(AttentionCellConfig(Score.DOT)))
    with pytest.raises(ValueError, match="heads=4 do not divide the 6 features of the memory"):
        cell_of(Case(AttentionCellConfig(heads=4)))
    with pytest.raises(UserError, match="score=location has a row for each key: max_length=0 must be at least 1"):
        AttentionCellConfig(Score.LOCATION)
    with pytest.raises(UserError, match="heads=0 must be at least 1"):
        AttentionCellConfig(heads=0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_parameter_lies_under_every_set_of_rules(case: Case) -> None:
    functional = cell_of(case)
    names = jax.tree.leaves(functional.axes(), is_leaf=lambda leaf: isinstance(leaf, tuple))
    for axes, shape in zip(names, jax.tree.leaves(functional.shapes()), strict=True):
        assert len(axes) == len(shape.shape)
        # One head, which no mesh divides, must not be refused.
        assert "heads" not in axes
        for rules in RULES.values():
            partition_spec(axes, rules)


class Decoder(Module):
    """Bahdanau's order: the state asks, and the context enters the next state beside the input."""

    def __init__(self, builder: ParameterBuilder):
        made: dict[str, Any] = {
            "recurrent_initialization": RecurrentInitialization.XAVIER,
            "forget_bias": 1.0,
            "builder": builder,
        }
        self.cell = RecurrentCell(CellKind.GRU_RESET_BEFORE, 2 + MEMORY, WIDTH, **made)
        self.attention = AttentionCell(AttentionCellConfig(heads=2), WIDTH, MEMORY, builder=builder)

    def __call__(self, state: CellState, x: Any, key: Any, memory: AttentionMemory) -> tuple[CellState, Any, Alignment]:
        context, alignment = self.attention.step(state.hidden, memory)
        state = self.cell.step(jnp.concatenate([x["x"], context], axis=-1), state)
        noise = 0 if key is None else jax.random.normal(key, ())
        return state, {"y": jnp.concatenate([state.hidden, context], axis=-1) + noise}, alignment

    def teach(self, x: Any, memory: Any, lengths: Any, of_queries: Any, **options: Any) -> Any:
        prepared = self.attention.prepare(memory, lengths)
        step = functools.partial(self.__call__, memory=prepared)
        mask = Mask(query_lengths=of_queries, key_lengths=lengths)
        return scan_decoder_steps(step, self.cell.initial(len(memory), x.dtype), {"x": x}, mask=mask, **options)


DECODER = FunctionalModule(Decoder)
KEYS, QUERIES = np.int32([5, 2, 3]), np.int32([4, 3, 0])
ALL = Capture(("here",), statistics=tuple(STATISTICS[name] for name in ("entropy", "largest_logit")))


@functools.cache
def taught(capture: Capture | None = None, sees: bool = True) -> Any:
    weights, x, memory = random_weights(DECODER), random(B, Q, 2), random(B, K, MEMORY, seed=2)
    padded = np.where(np.arange(Q)[None, :, None] < QUERIES[:, None, None], x, np.nan)

    def run(x: Any, observe: Any) -> Any:
        asked = capture if capture is None else Capture(("here",), statistics=capture.statistics, observe=observe)
        lengths = jnp.asarray(KEYS), jnp.asarray(QUERIES)
        return DECODER.bind(weights).teach(x, jnp.asarray(memory), *lengths, capture=asked)

    with jax.enable_x64(True):
        return weights, x, memory, jax.jit(run)(jnp.asarray(padded), jnp.bool_(sees))


def by_hand(weights: Any, x: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The states, contexts, weights and logits of the decoder, one row and one step after another."""
    case = Case(AttentionCellConfig(heads=2))
    states, y = np.zeros((B, WIDTH)), np.zeros((B, Q, WIDTH + MEMORY))
    seen, logits = np.zeros((B, 2, Q, K)), np.zeros((B, 2, Q, K))
    for row in range(B):
        for place in range(QUERIES[row]):
            one = slice(row, row + 1)
            answer = expected(case, weights["attention"], states[one, None], memory[one], KEYS[one])
            context = answer.output[0, 0].reshape(-1)
            state = oracle.State(states[row])
            states[row] = oracle.step(
                "gru_reset_before", weights["cell"], np.concatenate([x[row, place], context]), state
            ).hidden
            y[row, place] = np.concatenate([states[row], context])
            seen[row, :, place], logits[row, :, place] = answer.weights[0, :, 0], answer.logits[0, :, 0]
    return states, y, seen, logits


def test_teacher_forcing_is_the_loop_by_hand_and_captures_the_weights_that_were_used() -> None:
    weights, x, memory, (carry, outputs, captured) = taught(ALL)
    states, y, seen, logits = by_hand(weights, x, memory)
    close(carry.hidden, states)
    close(outputs["y"], y)
    assert captured.weights.shape == (1, B, 2, Q, K)
    close(captured.weights[0], seen)
    real = np.arange(Q) < QUERIES[:, None]
    np.testing.assert_allclose(np.asarray(captured.weights[0]).sum(-1), np.repeat(real[:, None], 2, 1), atol=1e-12)
    # Statistics are sums over the queries that are no padding, of each head.
    safe = np.where(seen > 0, seen, 1)
    entropy = -np.sum(safe * np.log(safe), axis=-1).sum((0, 2))
    np.testing.assert_allclose(captured.sums["entropy"], entropy[None], rtol=1e-9)
    np.testing.assert_array_equal(captured.counts["entropy"], [[QUERIES.sum()] * 2])
    largest = np.where(seen > 0, logits, -np.inf).max(-1)
    np.testing.assert_allclose(captured.sums["largest_logit"], [largest.sum((0, 2), where=real[:, None])], rtol=1e-9)


def test_nothing_is_kept_of_the_steps_unless_it_is_asked_for() -> None:
    _, _, _, (carry, outputs, captured) = taught(None)
    _, _, _, (same, alike, _) = taught(ALL)
    assert captured is None
    jax.tree.map(np.testing.assert_array_equal, (carry, outputs), (same, alike))

    def kept(capture: Capture | None) -> int:
        """How many arrays the scan hands out with an axis of steps."""
        weights = random_weights(DECODER)
        x, memory = np.ones((B, Q, 2), np.float32), np.ones((B, K, MEMORY), np.float32)
        lengths = jnp.asarray(KEYS), jnp.asarray(QUERIES)
        run = functools.partial(DECODER.bind(weights).teach, capture=capture)
        equations = jax.make_jaxpr(run)(x, memory, *lengths).eqns
        (loop,) = (one for one in equations if one.primitive.name == "scan" and one.params["length"] == Q)
        return sum(variable.aval.shape[:1] == (Q,) for variable in loop.outvars)

    assert [kept(None), kept(Capture(("here",))), kept(ALL)] == [1, 2, 3]


def test_where_it_does_not_observe_everything_is_zero() -> None:
    *_, (carry, _, captured) = taught(ALL, sees=False)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(captured))
    assert np.abs(carry.hidden).max() > 0
    *_, (_, _, observed) = taught(ALL)
    assert jax.tree.map(jnp.shape, captured) == jax.tree.map(jnp.shape, observed)


def test_gradients_of_teacher_forcing_are_finite_behind_padding_and_each_step_has_its_own_key() -> None:
    weights, x = random_weights(DECODER), random(B, Q, 2)
    padded = np.where(np.arange(Q)[None, :, None] < QUERIES[:, None, None], x, np.nan)
    memory, lengths = jnp.asarray(random(B, K, MEMORY)), (jnp.asarray(KEYS), jnp.asarray(QUERIES))

    def squared(answer: Any) -> Any:
        return jnp.sum(jnp.square(answer[1]["y"])), answer[1]["y"]

    of = jax.jit(
        lambda x, key: jax.grad(
            lambda x: squared(DECODER.bind(weights).teach(x, memory, *lengths, key=key)), has_aux=True
        )(x)
    )
    with jax.enable_x64(True):
        gradient, plain = of(jnp.asarray(padded), None)
        _, noisy = of(jnp.asarray(padded), jax.random.key(0))
    real = np.broadcast_to(np.arange(Q)[None, :, None] < QUERIES[:, None, None], x.shape)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient) != 0, real)
    noise = (np.asarray(noisy) - np.asarray(plain))[0, :, -1]
    assert len(np.unique(noise.round(6))) == Q


def test_the_maps_of_one_layer_have_a_layer_axis_and_only_where_they_are_asked_for() -> None:
    captured = CapturedAttention(np.ones((B, 2, Q, K)), {"entropy": np.ones(2)}, {"entropy": np.ones(2)})
    assert jax.tree.map(jnp.shape, add_layer_axis(captured)) == jax.tree.map(lambda leaf: (1, *leaf.shape), captured)
    assert set(single_layer_maps("here", captured, Capture(("here", "there")))) == {"here"}
    assert single_layer_maps("here", captured, Capture(("there",))) == {}
    assert single_layer_maps("here", captured, None) == single_layer_maps("here", None, Capture(("here",))) == {}


def test_lengths_count_what_is_no_padding() -> None:
    tokens = np.int32([[5, 3, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]])
    np.testing.assert_array_equal(jax.jit(real_lengths, static_argnums=1)(tokens, 0), [2, 0, 4])
    # The first token begins a target even where it is the padding's own number; no source, no target.
    targets, lengths = np.int32([[0, 3, 2, 0], [0, 5, 0, 0], [9, 0, 0, 0]]), np.int32([2, 0, 4])
    np.testing.assert_array_equal(jax.jit(target_lengths, static_argnums=2)(targets, lengths, 0), [3, 0, 1])
    positions = jax.jit(real_positions, static_argnums=1)(lengths, 3)
    np.testing.assert_array_equal(positions, [[True, True, False], [False] * 3, [True] * 3])
