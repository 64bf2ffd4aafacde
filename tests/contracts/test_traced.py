"""What tracing alone shows of every case of the contracts: nothing here is compiled."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.contracts.cases import CASES
from transformer.config import UserError
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.decoding.sampling import Sampling
from transformer.layers.functional_module import Precision
from transformer.models.model import Model, leaves_by_path
from transformer.models.registry import FAMILIES, build
from transformer.models.task_interface import TaskInterface
from transformer.tasks.registry import build_synthetic_task
from transformer.training.build import build_components
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.startup_checks import device_array_shapes
from transformer.training.step import make_train_step

BY_NAME = {case.name: case for case in CASES}


@functools.lru_cache(maxsize=1)
def built(name: str) -> tuple[Model, TaskInterface]:
    """The model of a case and what its task requires of it."""
    experiment = BY_NAME[name].experiment(OptimizerAlgorithm.ADAM, 0.1)
    interface = build_synthetic_task(experiment.task).interface
    return build(experiment.model, interface, experiment.precision), interface


def first_of_each_family() -> list[Any]:
    """All cases, the first of each family by day."""
    met: set[str] = set()
    found = []
    for case in CASES:
        family = case.model["family"]
        found.append(pytest.param(case.name, marks=[pytest.mark.slow] if family in met else []))
        met.add(family)
    return found


def types_of(tree: Any) -> dict[str, str]:
    return {path: str(leaf.dtype) for path, leaf in leaves_by_path(tree).items()}


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("name", first_of_each_family())
def test_64_bit_mode_trains_evaluates_and_decodes_in_one_type(name: str, tmp_path: Path) -> None:
    experiment = BY_NAME[name].experiment(OptimizerAlgorithm.ADAM, 0.1)
    experiment = dataclasses.replace(
        experiment,
        precision=Precision("float64", "float64"),
        update_guard=dataclasses.replace(experiment.update_guard, spike_factor=10.0),
    )
    with jax.enable_x64(True):
        setting = build_components(experiment, tmp_path, synthetic=True)
        model, task, state = setting.model, setting.task, setting.abstract_state
        step = make_train_step(
            model, task, setting.optimizers, experiment.parameter_averages, update_guard=experiment.update_guard
        )
        after, _ = jax.eval_shape(step, state, device_array_shapes(task.training_batches(0)[0]))
        assert types_of(after) == types_of(state)
        if not BY_NAME[name].model["family"].startswith("tests."):  # the toys have no types to choose
            assert set(types_of(state.variables.params).values()) == {"float64"}

        def evaluate(state: Any, batch: Any, evaluation: Any) -> Any:
            return evaluation.step(evaluation_view(model, state, "raw"), batch, jax.random.key(0))

        for evaluation in {evaluation.step: evaluation for evaluation in setting.evaluations}.values():
            batch = device_array_shapes(evaluation.batches[0])
            jax.eval_shape(functools.partial(evaluate, evaluation=evaluation), state.without_optimizers(), batch)
        if not hasattr(model.functional.bind(state.variables.params), "init_cache"):
            return
        inputs = {name: spec for name, spec in inputs_of(task.interface).items() if name != "target"}
        if "tokens" in inputs:
            inputs["tokens"] = jax.ShapeDtypeStruct((2, 3), inputs["tokens"].dtype)
        special = SpecialTokens(task.interface.pad_id, task.interface.bos_id, task.interface.eos_id)
        # Few rows, whose caches are written one after the other, and some that share theirs.
        strategies: tuple[Any, ...] = (GreedySearch(), BeamSearch(2), Sampling(num_beams=2))
        for strategy in strategies:
            decode = functools.partial(
                generate, model, strategy=strategy, length=2, tokens=special, key=jax.random.key(0)
            )
            decoded = jax.eval_shape(decode, state.variables, inputs)
            assert decoded.tokens.shape == (2, strategy.num_beams, 2)


def limited() -> list[str]:
    """The cases of a family with a largest number of positions: one of each. XLNet's are relative, and have none."""
    families = {case.model["family"]: case.name for case in CASES}
    defaults = {family: getattr(FAMILIES[family].config_class, "max_length", 0) for family in families}
    return [name for family, name in families.items() if defaults[family] and family != "xlnet"]


def inputs_of(interface: TaskInterface, positions: int | None = None) -> dict[str, Any]:
    """The shapes of two examples, with another number of positions where there are any."""
    shapes = {}
    for name, spec in interface.inputs.items():
        changed = positions is not None and spec.positions is not None
        shape = (2, positions, *spec.shape[2:]) if changed else (2, *spec.shape[1:])
        shapes[name] = jax.ShapeDtypeStruct(shape, spec.dtype)
    return shapes


def test_microbatches_that_would_separate_a_pair_from_its_negatives_are_refused(tmp_path: Path) -> None:
    experiment = BY_NAME["text_retrieval x dual_encoder"].experiment(OptimizerAlgorithm.ADAM, 0.1)
    split = dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, num_microbatches=2))
    says = (
        r"num_microbatches=2 would change the loss 'contrastive': each pair has all others of the batch as negatives\."
    )
    with pytest.raises(UserError, match=says):
        build_components(split, tmp_path, synthetic=True)


@pytest.mark.parametrize("name", limited())
def test_more_positions_than_the_model_has_are_refused_while_they_are_traced(name: str) -> None:
    model, interface = built(name)
    assert model.max_length is not None
    variables = jax.eval_shape(model.init, jax.random.key(0))

    def traced(call: Callable[[Any, Any], Any], inputs: dict[str, Any]) -> None:
        jax.eval_shape(call, variables, inputs)

    def forward(variables: Any, inputs: Any) -> Any:
        return model.apply(variables, inputs, method=model.forward_methods[0], train=False)[0]

    def decoding(length: int) -> Callable[[Any, Any], Any]:
        return lambda variables, inputs: model.init_cache(variables, inputs, num_beams=2, length=length)

    traced(forward, inputs_of(interface, model.max_length))
    with pytest.raises(UserError, match=rf"has {model.max_length + 1} positions, more than the model's"):
        traced(forward, inputs_of(interface, model.max_length + 1))
    module = model.functional.bind(model.functional.shapes())
    if not hasattr(module, "init_cache") or not getattr(module, "predicts_tokens", True):
        return
    # The last token that is generated is not read.
    begun = 2 if "tokens" in interface.inputs else 1
    inputs = inputs_of(interface, begun)
    traced(decoding(model.max_length - begun + 1), inputs)
    with pytest.raises(UserError, match=rf"has {model.max_length + 1} positions, more than the model's"):
        traced(decoding(model.max_length - begun + 2), inputs)


def test_xlnets_texts_have_any_length() -> None:
    model, interface = built("question_answering x xlnet")
    variables = jax.eval_shape(model.init, jax.random.key(0))
    longer = inputs_of(interface, 1000)
    jax.eval_shape(lambda v, inputs: model.apply(v, inputs, train=False)[0], variables, longer)


PROMPTED = (
    "language_modeling x decoder",
    "language_modeling x recurrent_decoder",
    "attention_probes x bytenet_decoder",
)


@pytest.mark.parametrize("name", [*PROMPTED, "segment_lm x transformer_xl"])
def test_a_prompt_without_a_token_is_refused(name: str) -> None:
    model, _ = built(name)
    variables = jax.eval_shape(model.init, jax.random.key(0))

    def begin(inputs: Any) -> None:
        jax.eval_shape(lambda v: model.init_cache(v, inputs, num_beams=1, length=3), variables)

    begin({"tokens": jax.numpy.ones((2, 4), int), "lengths": jax.numpy.array([1, 4])})
    with pytest.raises(UserError, match="a prompt has no token: begin it with the begin token"):
        begin({"tokens": jax.numpy.ones((2, 0), int)})
    with pytest.raises(UserError, match="a prompt has no token"):
        begin({"tokens": jax.numpy.ones((2, 4), int), "lengths": jax.numpy.array([0, 4])})
