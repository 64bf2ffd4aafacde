"""XLNet's two streams and its memory: against recorded values, by gradients, and against one long pass."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden.recordings import Recording
from tests.golden.weights import random_weights
from tests.models.random_models import fresh_variables
from transformer.attention.capture import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.huggingface.convert import open_model_folder, write_model_folder
from transformer.huggingface.safetensors_files import read_folder_headers
from transformer.layers.functional_module import Precision
from transformer.layers.transformer_config import PositionEncoding
from transformer.models.model import Model, Variables, count_parameters, leaves_by_path
from transformer.models.registry import build, model_config
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.models.xlnet import CONTENT, QUERY, XLNetConfig

FILE = Path(__file__).parents[1] / "golden/xlnet_streams.npz"
# Programs run once each: what it takes to compile counts.
FAST = {"xla_backend_optimization_level": 0}
TOKENS, LENGTH = 12, 6
INTERFACE = TaskInterface({}, {"tokens": TOKENS})


def recorded() -> Recording:
    with np.load(FILE) as file:
        arrays = {key: file[key] for key in file.files}
    about = json.loads(str(arrays.pop("about")))
    return Recording(about, arrays, random_weights({key: tuple(shape) for key, shape in about["shapes"].items()}, 0))


def moved(model: Model) -> Variables:
    """Variables none of which is zero."""
    variables, rng = fresh_variables(model), np.random.default_rng(1)
    move = lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape).astype(np.float32)  # noqa: E731
    return jax.device_put(jax.tree.map(move, variables))


@functools.cache
def small(family: str = "xlnet", **changes: Any) -> tuple[Model, Variables]:
    section = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 12, "dropout": 0.0, "attention_dropout": 0.0}
    model = build(model_config({"family": family, **section, "memory_length": 4, **changes}), INTERFACE, Precision())
    return model, moved(model)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recording]:
    folder, recording = tmp_path_factory.mktemp("xlnet"), recorded()
    recording.write(folder)
    return folder, recording


def test_both_streams_and_the_memory_are_those_of_an_independent_implementation(
    published: tuple[Path, Recording],
) -> None:
    """Two segments of tokens of two kinds, in drawn orders, the second behind the memory of the first."""
    folder, recording = published
    foreign, arrays = open_model_folder(folder), recording.arrays
    model = build(model_config(foreign.model), foreign.interface, Precision())
    variables = Variables(foreign.read_params(), {})

    def both(inputs: Mapping[str, jax.Array]) -> Any:
        logits, aux = model.apply(variables, inputs, train=False, capture=Capture((CONTENT, QUERY)))
        content, _ = model.apply(variables, inputs, method="content", train=False)
        return logits, content, aux.extras["memory"], {site: maps.weights for site, maps in aux.maps.items()}

    program = jax.jit(both, compiler_options=FAST)
    first, second = (
        {name: arrays[name][number] for name in ("tokens", "order", "types", "predicted")} for number in range(2)
    )
    rows, slots = len(first["tokens"]), recording.config["mem_len"]
    # The first has an empty memory, of whatever numbers: the same program reads both.
    nothing = np.full((rows, *arrays["memory"].shape[:1], slots, arrays["memory"].shape[-1]), 7.0, np.float32)
    results = [program({**first, "memory": nothing, "past": np.zeros(rows, np.int32)})]
    results.append(program({**second, "memory": results[0][2], "past": np.full(rows, 7)}))
    for number, (logits, content, memory, maps) in enumerate(results):
        np.testing.assert_allclose(logits, arrays["logits"][number], atol=1e-4, err_msg=f"segment {number}")
        np.testing.assert_allclose(content, arrays["content"][number], atol=1e-5, err_msg=f"segment {number}")
        if number == 0:
            np.testing.assert_allclose(np.swapaxes(memory, 0, 1), arrays["memory"], atol=1e-5)
            assert not np.asarray(maps[CONTENT])[..., :slots].any()
    np.testing.assert_allclose(maps[CONTENT], arrays["content_maps"], atol=1e-5)
    at = np.broadcast_to(second["predicted"][None, :, None, :, None], (2, rows, 2, 3, slots + 7))
    found, expected = (np.take_along_axis(np.asarray(each), at, axis=3) for each in (maps[QUERY], arrays["query_maps"]))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(np.asarray(maps[QUERY]).sum((0, 2, 4)) > 0).sum() == rows * 3  # the others ask for nothing


def test_a_folder_is_written_as_it_was_read(published: tuple[Path, Recording], tmp_path: Path) -> None:
    folder, recording = published
    foreign = open_model_folder(folder)
    write_model_folder(tmp_path / "again", model_config(foreign.model), foreign.read_params())
    again = open_model_folder(tmp_path / "again")
    assert again.model == foreign.model
    jax.tree.map(np.testing.assert_array_equal, again.read_params(), foreign.read_params())
    shapes = {name: header.shape for name, header in read_folder_headers(tmp_path / "again").items()}
    assert shapes == {name: tuple(shape) for name, shape in recording.about["shapes"].items()}


@pytest.mark.parametrize(("key", "value"), [("bi_data", True), ("reuse_len", 2), ("same_length", True)])
def test_a_config_that_is_read_otherwise_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    recording = recorded()
    recording._replace(about={**recording.about, "config": {**recording.config, key: value}}).write(tmp_path)
    with pytest.raises(UserError, match=f"config.json has {key}={value}; only"):
        open_model_folder(tmp_path)


@pytest.mark.parametrize("together", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_a_position_knows_follows_from_the_order(together: bool) -> None:
    """Query streams see what stands before them, never their own token; content streams see their own as well."""
    model, variables = small()
    order = np.array([[4, 2, 0, 5, 3, 1]])
    if together:
        order = np.maximum(order - 2, 0)  # three that are not predicted know each other
    tokens, memory = np.array([[7, 1, 4, 9, 2, 11]]), np.ones((1, 2, 4, 8), np.float32)
    inputs = {"tokens": tokens, "order": order, "memory": memory, "past": np.array([4])}

    def outputs(table: jax.Array) -> tuple[jax.Array, jax.Array]:
        given = variables._replace(params={**variables.params, "embedding": {"table": table}})
        streams = (model.apply(given, inputs, method=name, train=False)[0][0] for name in ("hidden", "content"))
        query, content = streams
        weights = jnp.arange(1.0, 9.0)
        return query @ weights, content @ weights

    jacobians = jax.jit(jax.jacrev(outputs), compiler_options=FAST)(variables.params["embedding"]["table"])
    query, content = (np.abs(jacobian)[:, tokens[0]].max(-1) for jacobian in jacobians)
    np.testing.assert_array_equal(query > 1e-7, order[0] < order[0][:, None])
    np.testing.assert_array_equal(content > 1e-7, order[0] <= order[0][:, None])
    assert not query[~(order[0] < order[0][:, None])].any()  # exactly zero
    assert not content[~(order[0] <= order[0][:, None])].any()


@pytest.mark.parametrize(
    ("family", "method", "changes"),
    [
        pytest.param("xlnet", "hidden", {"relative_segments": True}, id="queries", marks=pytest.mark.slow),
        pytest.param("xlnet", "content", {"norm_placement": "pre"}, id="content", marks=pytest.mark.slow),
        pytest.param("transformer_xl", "hidden", {}, id="decoder"),
        pytest.param("transformer_xl", "hidden", {"positions": "rotary"}, id="rotary", marks=pytest.mark.slow),
        pytest.param("transformer_xl", "hidden", {"positions": "t5"}, id="t5", marks=pytest.mark.slow),
        pytest.param("transformer_xl", "hidden", {"attention_windows": (0, 2)}, id="windows", marks=pytest.mark.slow),
    ],
)
def test_a_memory_is_as_good_as_one_long_pass(family: str, method: str, changes: dict[str, Any]) -> None:
    """Three segments of 2 positions behind a memory of 4 are one of 6, from left to right; no gradient enters it."""
    model, variables = small(family, **changes)
    tokens = np.random.default_rng(0).integers(0, TOKENS, (2, LENGTH))

    def read(given: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        outputs, aux = model.apply(variables, given, method=method, train=False)
        return outputs, aux.extras["memory"]

    whole = jax.jit(read, compiler_options=FAST)({"tokens": tokens})[0]

    def summed(memory: jax.Array, given: Mapping[str, jax.Array]) -> tuple[jax.Array, Any]:
        results = read({**given, "memory": memory})
        return jnp.sum(results[0] ** 2), results

    of_memory = jax.jit(jax.value_and_grad(summed, has_aux=True), compiler_options=FAST)
    memory = jnp.full((2, 2, 4, 8), 5.0)
    for number in range(3):
        given = {"tokens": tokens[:, 2 * number : 2 * number + 2], "past": np.full(2, 2 * number)}
        (_, (outputs, left)), gradient = of_memory(memory, given)
        np.testing.assert_allclose(outputs, whole[:, 2 * number : 2 * number + 2], atol=1e-5, err_msg=f"{number}")
        assert not gradient.any()
        memory = left
    assert np.abs(memory[:, :, 0] - 5.0).min() > 0


def test_the_published_models_have_their_parameters() -> None:
    """Of base and large without the bias of the scores, as their formula counts them."""
    for size, expected in (({}, 116_718_336), ({"layers": 24, "width": 1024, "heads": 16}, 360_268_800)):
        width = size.get("width", 768)
        config = XLNetConfig(**size, feed_forward=4 * width, relative_segments=True, output_bias=False)
        model = build(config, TaskInterface({}, {"tokens": 32_000}), Precision())
        assert count_parameters(model.functional.shapes()) == expected


def test_what_it_cannot_be_is_refused_by_name() -> None:
    for options, said in (
        ({"positions": PositionEncoding.LEARNED}, "positions=learned: the query stream"),
        ({"positions": PositionEncoding.T5}, "positions=t5 is one table"),
        ({"positions": PositionEncoding.ROTARY, "relative_segments": True}, "relative_segments=True needs"),
        ({"memory_length": -1}, "memory_length=-1"),
    ):
        with pytest.raises(UserError, match=said):
            XLNetConfig(**options)
    with pytest.raises(UserError, match="would be mistaken"):
        model_config({"family": "transformer_xl", "positions": "learned"})


@pytest.mark.parametrize("kinds", [False, True])
def test_its_blocks_have_lora(kinds: bool) -> None:
    section = {"width": 8, "heads": 2, "feed_forward": 12, "relative_segments": kinds}
    lora = {"rank": 2, "targets": ("query", "feed_forward")}
    shapes = build(
        model_config({"family": "xlnet", **section, "lora": lora}), INTERFACE, Precision()
    ).functional.shapes()
    assert {path for path in leaves_by_path(shapes) if path.endswith("/lora/up")} == {
        f"layers/{name}/lora/up" for name in ("attention/query", "feed_forward/expand", "feed_forward/contract")
    }


def test_its_flops_with_lora_are_two_for_each_number_wherever_it_is_applied() -> None:
    section = {"family": "xlnet", "layers": 3, "width": 8, "heads": 2, "feed_forward": 12, "memory_length": 4}
    where = ("query", "key", "value", "output", "feed_forward")
    batch = {
        name: np.zeros(shape, np.int32) for name, shape in {"tokens": (2, 6), "past": 2, "predicted": (2, 5)}.items()
    }
    batch |= {"memory": np.zeros((2, 3, 4, 8), np.float32)}
    counted = [
        forward_flops(
            build(
                model_config({**section, "lora": {"rank": rank, "targets": where}}),
                TaskInterface({}, {"tokens": 9}),
                Precision(),
            ),
            batch,
        )
        for rank in (0, 2)
    ]
    # Queries and outputs of both streams at 6 positions, keys and values once at 6 and 4, networks at 6 and at 5.
    numbers = 2 * 16 * 2 * 6 + 2 * 16 * (6 + 4) + 2 * 20 * (6 + 5)
    assert counted[1] - counted[0] == 2 * 2 * numbers * 3 * 2


def test_transformer_xl_hands_on_both_losses_of_its_experts() -> None:
    experts = {"count": 4, "importance_loss": 0.3, "load_loss": 0.7}
    section = {"family": "transformer_xl", "layers": 1, "width": 8, "heads": 2, "feed_forward": 12, "memory_length": 4}
    model = build(model_config({**section, "experts": experts}), INTERFACE, Precision())
    variables = moved(model)
    weights: dict[str, float] = {}

    def run(variables: Variables) -> Any:
        _, aux = model.apply(variables, {"tokens": jnp.ones((2, 5), jnp.int32)}, method="hidden", train=False)
        weights.update({name: float(loss.weight) for name, loss in aux.losses.items()})
        return {name: (loss.total, loss.denominator) for name, loss in aux.losses.items()}

    losses = jax.jit(run)(variables)
    assert weights == {"decoder/importance": 0.3, "decoder/load": 0.7}
    # Ten positions, each alike: two of four experts have all gates, whose variation is at least 1.
    assert all(float(positions) == 10 for _, positions in losses.values())
    assert float(losses["decoder/importance"][0]) >= 10


@pytest.mark.parametrize(
    ("section", "changed", "message"),
    [
        ({"family": "xlnet"}, {}, 'head=permuted does not output "class", which the task needs: say .*head=classes'),
        ({"family": "xlnet", "head": "span"}, {"output": None, "inputs": {}}, ""),
        ({"family": "xlnet", "head": "classes"}, {"vocabularies": {"tokens": TOKENS}}, "needs a task with classes"),
        (
            {"family": "xlnet", "head": "choice"},
            {"vocabularies": {"tokens": TOKENS, "classes": 2, "types": 3}},
            "head=choice has one logit of each text, but the task has 2 classes",
        ),
        (
            {"family": "encoder_decoder", "head": "classes"},
            {"bos_id": None, "inputs": {"tokens": InputSpec((2, 6)), "lengths": InputSpec((2,))}},
            "begins its decoder with a begin token, and the run's tokenizer has none",
        ),
        (
            {"family": "xlnet", "head": "classes"},
            {"vocabularies": {"tokens": TOKENS, "classes": 2, "types": 2}},
            "reads classes from the last token: say config.task.sequence_format=xlnet",
        ),
        (
            {"family": "encoder", "head": "classes"},
            {},
            "sequence_format=xlnet is read by config.model.family=xlnet alone",
        ),
    ],
)
def test_heads_of_fine_tuning_read_the_sequences_of_their_own_family(
    section: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    spec = InputSpec((2, 6))
    interface = TaskInterface(
        {"tokens": spec, "types": spec, "lengths": InputSpec((2,))},
        {"tokens": TOKENS, "classes": 2, "types": 3},
        output="class",
    )
    interface, config = dataclasses.replace(interface, **changed), model_config({"width": 8, "heads": 2, **section})
    if not message:
        # Whatever the memory of pre-training is, a fine-tuned model has the content stream over one text alone.
        (site,) = build(config, interface, Precision()).sites
        assert (site.name, site.key.name) == (CONTENT, "tokens")
        return
    with pytest.raises(UserError, match=message):
        build(config, interface, Precision())
