"""Activations by name and edits of them, against a forward pass in NumPy that a person can read, in every family."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.random_models import random_variables
from tests.oracles.hooked_decoder import Hook, numpy_pass
from transformer.config import UserError
from transformer.decoding import GreedySearch, SpecialTokens, generate
from transformer.layers.functional_module import Precision
from transformer.models.activations import EditedModel, activation_occurrences, run_with_activations
from transformer.models.edits import Edit, add, fix_pattern, replace, replace_by_mean, scale, zero
from transformer.models.model import Model, Variables
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface

LAYERS, HEADS, WIDTH, VOCABULARY = 3, 2, 8, 11
CONFIG = {"family": "decoder", "layers": LAYERS, "heads": HEADS, "width": WIDTH, "feed_forward": 12, "max_length": 16}
TOKENS = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 0, 1]], np.int32)


@pytest.fixture(scope="module")
def model() -> Model:
    return build(model_config(CONFIG), TaskInterface({}, {"tokens": VOCABULARY}), Precision())


@pytest.fixture(scope="module")
def variables(model: Model) -> Variables:
    return random_variables(model)


def test_every_activation_is_that_of_the_equations(model: Model, variables: Variables) -> None:
    expected: dict[str, list[np.ndarray]] = {}

    def keep(name: str, layer: int, array: np.ndarray) -> np.ndarray:
        expected.setdefault(f"decoder/{name}", []).append(array)
        return array

    logits = numpy_pass(variables.params, TOKENS, keep)
    last_norm = "decoder/final_norm/norm_factor"
    run = jax.jit(lambda: run_with_activations(model, variables, {"tokens": TOKENS}, (*expected, last_norm)))
    outputs, _, activations = run()
    deviation = np.std(expected["decoder/feed_forward/residual"][-1], axis=-1, keepdims=True)
    np.testing.assert_allclose(activations[last_norm], 1 / np.sqrt(deviation**2 + 1e-5), rtol=1e-4)
    np.testing.assert_allclose(outputs, logits, atol=1e-4)
    assert set(expected) | {
        "logits",
        "decoder/token_embeddings",
        "decoder/position_embeddings",
        "decoder/self/norm_factor",
        "decoder/feed_forward/norm_factor",
        "decoder/final_norm/norm_factor",
    } == set(activation_occurrences(model, {"tokens": TOKENS}))
    for name, layers in expected.items():
        array = layers[0] if name == "decoder/states" else np.stack(layers)
        np.testing.assert_allclose(activations[name], array, atol=2e-5, rtol=2e-5, err_msg=name)


def changed(name: str, layer: int, change: Callable[[np.ndarray], np.ndarray]) -> Hook:
    """A hook that changes one activation of one layer."""
    return lambda own, number, array: change(array) if (own, number) == (name, layer) else array


def at(index: tuple[Any, ...], value: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A change that sets entries to a value, or to what a function makes of them."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[index] = value(array[index]) if callable(value) else value
        return array

    return change


ALL = slice(None)
VECTOR = np.arange(WIDTH) / 4.0
PATTERN = np.tri(6) / np.arange(1, 7)[:, None]
EDITS: dict[str, tuple[Edit, Hook]] = {
    "a head is zero": (
        zero("decoder/self/head_outputs", layers=1, heads=0),
        changed("self/head_outputs", 1, at((ALL, ALL, 0), 0)),
    ),
    "a position of the stream is replaced, from the end": (
        replace("decoder/residual", VECTOR, layers=-1, positions=-2),
        changed("residual", 2, at((ALL, 4), VECTOR)),
    ),
    "one example is steered": (
        add("decoder/self/residual", VECTOR, layers=0, examples=1),
        changed("self/residual", 0, at((1,), lambda x: x + VECTOR)),
    ),
    "a pattern is fixed": (
        fix_pattern("decoder/self", PATTERN, layers=2, heads=1),
        changed("self/weights", 2, at((ALL, 1), PATTERN)),
    ),
    "a query sees one key no more": (
        add("decoder/self/logits", -1e9, layers=0, heads=[0, 1], positions=3, keys=1),
        changed("self/logits", 0, at((ALL, ALL, 3, 1), lambda x: x - 1e9)),
    ),
    "values are scaled": (
        scale("decoder/self/values", 0.5, layers=1, positions=[0, 1]),
        changed("self/values", 1, at((ALL, slice(2)), lambda x: x / 2)),
    ),
    "a neuron is off": (
        zero("decoder/feed_forward/hidden", layers=0, features=3),
        changed("feed_forward/hidden", 0, at((ALL, ALL, 3), 0)),
    ),
    "one head writes elsewhere": (
        scale("decoder/self/head_contributions", -1.0, layers=2, heads=0),
        changed("self/head_contributions", 2, at((ALL, ALL, 0), lambda x: -x)),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_that_of_the_equations(name: str, model: Model, variables: Variables) -> None:
    edit, hook = EDITS[name]
    run = jax.jit(lambda edit: run_with_activations(model, variables, {"tokens": TOKENS}, (), [edit])[0])
    np.testing.assert_allclose(run(edit), numpy_pass(variables.params, TOKENS, hook), atol=1e-4)
    unedited = numpy_pass(variables.params, TOKENS, lambda name, layer, array: array)
    assert np.abs(run(edit) - unedited).max() > 1e-2  # it is not without effect


def test_patching_takes_another_texts_activation(model: Model, variables: Variables) -> None:
    other, name = (TOKENS + 3) % VOCABULARY, "decoder/self/head_outputs"
    _, _, cache = run_with_activations(model, variables, {"tokens": other}, [name])
    patched, _, _ = run_with_activations(
        model, variables, {"tokens": TOKENS}, (), [replace(name, cache[name], layers=1, heads=1, positions=5)]
    )
    donor: dict[int, np.ndarray] = {}

    def keep(own: str, layer: int, array: np.ndarray) -> np.ndarray:
        if own == "self/head_outputs":
            donor[layer] = array
        return array

    numpy_pass(variables.params, other, keep)
    hook = changed("self/head_outputs", 1, at((ALL, 5, 1), donor[1][:, 5, 1]))
    np.testing.assert_allclose(patched, numpy_pass(variables.params, TOKENS, hook), atol=1e-4)


def test_the_mean_counts_the_real_positions(model: Model, variables: Variables) -> None:
    name, inputs = "decoder/self/head_outputs", {"tokens": TOKENS, "lengths": np.array([6, 2])}
    _, _, cache = run_with_activations(model, variables, inputs, [name])
    edit = replace_by_mean(name, cache[name], inputs["lengths"], layers=0, heads=1)
    values = np.asarray(cache[name])
    mean = np.concatenate([values[:, 0], values[:, 1, :2]], axis=1).mean(axis=1)
    np.testing.assert_allclose(np.asarray(edit.value)[:, 0, 0], mean, atol=1e-6)
    _, _, after = run_with_activations(model, variables, {"tokens": TOKENS}, [name], [edit])
    np.testing.assert_allclose(after[name][0, :, :, 1], np.broadcast_to(mean[0, 1], (2, 6, 4)), atol=1e-6)
    _, _, unedited = run_with_activations(model, variables, {"tokens": TOKENS}, [name])
    np.testing.assert_array_equal(after[name][0, :, :, 0], unedited[name][0, :, :, 0])


def test_all_heads_are_knocked_out_in_one_program(model: Model, variables: Variables) -> None:
    name = "decoder/self/head_outputs"

    @jax.jit
    def logits_without(layer: Any, head: Any) -> Any:
        edit = zero(name, layers=layer, heads=head)
        return run_with_activations(model, variables, {"tokens": TOKENS}, (), [edit])[0]

    layers, heads = np.divmod(np.arange(LAYERS * HEADS), HEADS)
    found = jax.jit(jax.vmap(logits_without))(layers, heads)
    for number, (layer, head) in enumerate(zip(layers, heads, strict=True)):
        hook = changed("self/head_outputs", layer, at((ALL, ALL, head), 0))
        np.testing.assert_allclose(found[number], numpy_pass(variables.params, TOKENS, hook), atol=1e-4)


def test_the_gradient_of_an_edit_is_its_attribution(model: Model, variables: Variables) -> None:
    name, target = "decoder/self/head_outputs", (0, 5, 3)

    def logit(gate_LxH: Any) -> Any:
        edit = scale(name, gate_LxH[:, None, None, :, None])
        return run_with_activations(model, variables, {"tokens": TOKENS}, (), [edit])[0][target]

    gradient = jax.jit(jax.grad(logit))(jnp.ones((LAYERS, HEADS)))
    step = 1e-5
    for layer in range(LAYERS):
        for head in range(HEADS):
            by_sign = [
                numpy_pass(
                    variables.params,
                    TOKENS,
                    changed("self/head_outputs", layer, at((ALL, ALL, head), lambda x, s=sign: x * (1 + s * step))),
                )[target]
                for sign in (1, -1)
            ]
            np.testing.assert_allclose(gradient[layer, head], (by_sign[0] - by_sign[1]) / (2 * step), rtol=2e-3)


def test_decoding_is_edited_as_the_whole_text_is(model: Model, variables: Variables) -> None:
    edits = [
        zero("decoder/self/head_outputs", layers=1, heads=0),
        add("decoder/residual", VECTOR, layers=2, positions=[2, 6]),
        scale("decoder/self/weights", 0.5, layers=0, heads=1),
    ]
    edited = EditedModel.of(model, edits)
    prompts = {"tokens": TOKENS[:, :4], "lengths": np.array([4, 3])}
    tokens = SpecialTokens(None, None, None)
    decode = jax.jit(lambda: generate(edited, variables, prompts, strategy=GreedySearch(), length=4, tokens=tokens))
    generated = np.asarray(decode().tokens[:, 0])
    plain = jax.jit(lambda: generate(model, variables, prompts, strategy=GreedySearch(), length=4, tokens=tokens))
    assert (np.asarray(plain().tokens[:, 0]) != generated).any()
    for row, length in enumerate(prompts["lengths"]):
        text = [*TOKENS[row, :length].tolist()]
        for token in generated[row]:
            own_edits = [
                edits[0],
                add("decoder/residual", VECTOR, layers=2, positions=[p for p in (2, 6) if p < len(text)]),
                edits[2],
            ]
            logits, _, _ = run_with_activations(model, variables, {"tokens": np.array([text])}, (), own_edits)
            assert int(np.argmax(logits[0, -1])) == token
            text.append(int(token))


def test_patches_of_positions_reach_beams(model: Model, variables: Variables) -> None:
    """A value with positions acts at its own: in a step of decoding too, for every beam of its example."""
    name = "decoder/feed_forward/residual"
    inputs = {"tokens": TOKENS[:, :5], "lengths": np.array([5, 5])}
    _, _, cache = run_with_activations(model, variables, {"tokens": (TOKENS[:, :5] + 4) % VOCABULARY}, [name])
    edited = EditedModel.of(model, [replace(name, cache[name], layers=LAYERS - 1)])
    whole, _ = edited.apply(variables, inputs, train=False)

    def two_steps(own: Model) -> Any:
        cache, first_R = own.init_cache(variables, inputs, num_beams=2, length=2)
        logits, cache, _ = own.step(variables, cache, first_R)
        return logits, own.step(variables, cache, first_R)[0]

    logits_RxV, later_RxV = jax.jit(functools.partial(two_steps, edited))()
    np.testing.assert_allclose(logits_RxV[::2], whole[:, -1], atol=1e-4)
    np.testing.assert_allclose(logits_RxV[1::2], whole[:, -1], atol=1e-4)
    # Beyond the value's positions the stream is the model's own again: nothing that attention reads was edited.
    np.testing.assert_allclose(later_RxV, jax.jit(functools.partial(two_steps, model))()[1], atol=1e-4)


def test_an_edit_of_nothing_is_refused_in_decoding_too(model: Model, variables: Variables) -> None:
    edited, prompts = EditedModel.of(model, [zero("decoder/self/head_output")]), {"tokens": TOKENS[:, :4]}
    with pytest.raises(UserError, match="'decoder/self/head_output' is no activation of this pass"):
        edited.init_cache(variables, {**prompts, "lengths": np.array([4, 4])}, num_beams=1, length=2)


def with_positions(edit: Edit, positions: Any) -> Edit:
    """An edit whose positions are of a type that no annotation allows."""
    object.__setattr__(edit, "positions", positions)
    return edit


def test_an_edited_model_can_be_edited_again(model: Model, variables: Variables) -> None:
    """Names survive: activations of an edited model are read, and edited, as those of any other."""
    first, second = zero("decoder/self/head_outputs", layers=0), scale("decoder/self/output", 2.0, layers=1)
    nested = EditedModel.of(model, [first])
    outputs, _, cache = run_with_activations(nested, variables, {"tokens": TOKENS}, ["decoder/self/output"], [second])
    at_once, _ = EditedModel.of(nested, [second]).apply(variables, {"tokens": TOKENS}, train=False)
    np.testing.assert_allclose(outputs, at_once, atol=1e-6)
    assert cache["decoder/self/output"].shape == (LAYERS, 2, 6, WIDTH)


BAD = {
    "decoder/self/query": (zero("decoder/self/query"), "'decoder/self/query' is no activation of this pass"),
    "layers": (zero("decoder/self/output", layers=3), "chooses layers=3: layers are 0 ... 2"),
    "heads": (zero("decoder/residual", heads=0), "chooses heads: it has the axes layer, example, position, feature"),
    "positions": (with_positions(zero("decoder/residual"), 1.5), "give numbers of positions"),
    "shape": (replace("decoder/residual", np.zeros(7)), "which does not broadcast to (3, 2, 6, 8)"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_edit_that_does_not_fit_is_refused(name: str, model: Model, variables: Variables) -> None:
    edit, message = BAD[name]
    with pytest.raises(UserError) as caught:
        run_with_activations(model, variables, {"tokens": TOKENS}, (), [edit])
    assert message in str(caught.value)
