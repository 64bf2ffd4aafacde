"""What does not fit between a task and a model is told in one line, before the first step and without computing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contracts import memory
from transformer.attention import STATISTICS, Capture
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.model import Aux, Model
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.task import Evaluation, EvaluationReport, LossAux
from transformer.training.initial_state import init_state
from transformer.training.optimizer import OptimizerConfig, hyperparameters, make_optimizer
from transformer.training.startup_checks import check_task_fits_model, describe_skipped_evaluations

SITE = memory.SITE


def altered(**changes: Any) -> Any:
    """The toy with one thing changed."""
    parts = {name: staticmethod(change) if callable(change) else change for name, change in changes.items()}
    return type("Changed", (memory.Classify,), parts)()


@dataclasses.dataclass(frozen=True)
class Changed(Model):
    """The toy's model, whose passes return something else."""

    change: Callable[[Any], Any] = lambda aux: aux

    def apply(self, variables: Any, inputs: Any, **request: Any) -> tuple[Any, Any]:
        outputs, aux = super().apply(variables, inputs, **request)
        return outputs, self.change(aux)


def toy_model() -> Model:
    return memory.FAMILY.build(None, memory.Classify.interface, Precision())


def with_sites(*sites: Site) -> Model:
    return dataclasses.replace(toy_model(), sites=sites)


def changed(change: Callable[[Any], Any]) -> Model:
    model = toy_model()
    return Changed(model.functional, model.sites, model.max_length, change)


def site(**changes: Any) -> Site:
    return dataclasses.replace(toy_model().sites[0], **changes)


def fit(task: Any, model: Model, *, observed: bool = True, averages: Any = None) -> None:
    sites = tuple(each.name for each in model.sites)
    capture = Capture(sites, maps=False, statistics=tuple(STATISTICS.values())) if observed else None
    config = OptimizerConfig()
    made = {objective.name: make_optimizer(config, 1) for objective in task.objectives}
    numbers = dict.fromkeys(made, hyperparameters(config))
    abstract = jax.eval_shape(
        lambda key: init_state(model, task, made, averages or {}, numbers, key), jax.random.key(0)
    )
    check_task_fits_model(model, task, abstract, task.training_batches(0)[0], capture)


def loss_that(change: Callable[[Any, LossAux], Any]) -> Any:
    """The toy's objective, whose loss returns something else."""
    objective = memory.Classify().objectives[0]
    return (dataclasses.replace(objective, loss_fn=lambda *given: change(*objective.loss_fn(*given))),)


def blind(view: Any, *given: Any) -> Any:
    return memory.Classify().loss(view._replace(capture=None), *given)


def evaluation(**changes: Any) -> Evaluation:
    def step(view: Any, batch: Any, key: Any) -> Any:
        _, aux = view.model.apply(view.variables, batch, train=False)
        return {"seen": jnp.sum(aux.maps["decoder/cross"].weights)}, {}

    batch = memory.Classify().training_batches(1)[0]
    whole = {
        "name": "seen",
        "split": "validation",
        "batches": [batch],
        "step": step,
        "finish": lambda *_: EvaluationReport({}),
    }
    return Evaluation(**{**whole, **changes})


def with_maps(change: Callable[[Any], Any]) -> Model:
    def of(aux: Aux) -> Aux:
        return aux._replace(maps={name: change(captured) for name, captured in aux.maps.items()})

    return changed(of)


def unstacked(captured: Any) -> Any:
    return captured._replace(weights=None if captured.weights is None else captured.weights[0])


SYMBOLS, SLOTS = Axis("symbols"), Axis("memory", AxisKind.SLOTS, num_positions=memory.SLOTS)
PROBED = memory.Classify().probe_batch["symbols"]
NAMED = tuple(tuple(map(str, np.trim_zeros(row, "b"))) for row in PROBED)
FAULTS: dict[str, tuple[Callable[[], tuple[Any, Model]], str]] = {
    "an axis that nothing names": (
        lambda: (altered(), with_sites(site(key=Axis("memory", AxisKind.SLOTS)))),
        r"the site 'memory/read' has the axis 'memory', which nothing names",
    ),
    "an axis described in two ways": (
        lambda: (altered(), with_sites(site(), site(name="again", key=dataclasses.replace(SLOTS, num_positions=3)))),
        r"the axis 'memory' of site .* is described in two ways",
    ),
    "a site twice": (
        lambda: (altered(), with_sites(site(), site())),
        r"\['memory/read', 'memory/read'\] hold a name twice",
    ),
    "a site that is never returned": (
        lambda: (altered(), with_sites(site(), site(name="ghost"))),
        r"returns no map of the site 'ghost', which the model declares: its forward pass must put it into Aux.maps",
    ),
    "a probe without capture": (
        lambda: (altered(probe=lambda view, capture, key: probe_blindly(view)), toy_model()),
        r"no map of the site 'memory/read', .* Task.probe must pass its `capture` on",
    ),
    "a probe that drops its maps": (
        lambda: (altered(probe=drop_maps), toy_model()),
        r"no map of the site 'memory/read', .* Task.probe drops the Aux of its pass",
    ),
    "a missing layer axis": (
        lambda: (altered(), with_maps(unstacked)),
        r"the map of the site 'memory/read' has shape \(4, 1, 6, 4\); a map is \[layers, .*\]: add the axis of layers",
    ),
    "wrong head names": (
        lambda: (altered(), with_sites(site(heads=("0", "1")))),
        r"the map of the site 'memory/read' has 1 heads, but the site names 2: \['0', '1'\]",
    ),
    "wrong layer names": (lambda: (altered(), with_sites(site(layers=()))), r"has 1 layers, but the site names 0"),
    "labels of other examples": (
        lambda: (altered(axis_labels=lambda sites: AxisLabels({"symbols": NAMED[:2]}, ("a", "b"))), toy_model()),
        r"has 4 examples, but Task.axis_labels describes 2",
    ),
    "an axis of another size": (
        lambda: (altered(), with_sites(site(key=dataclasses.replace(SLOTS, num_positions=5)))),
        r"has 4 positions of 'memory', but the axis names 5",
    ),
    "gold alignments of another site": (
        lambda: (altered(axis_labels=lambda sites: linked("decoder/cross", GoldAlignment(0, 0, True))), toy_model()),
        r"gold alignments are of the site 'decoder/cross', which the model lacks: it has \['memory/read'\]",
    ),
    "a gold alignment outside": (
        lambda: (altered(axis_labels=lambda sites: linked(SITE, GoldAlignment(0, 7, True))), toy_model()),
        r"the gold alignment \(0, 7, True\) of example 0 at the site 'memory/read' lies outside",
    ),
    "a loss that drops the model's": (
        lambda: (altered(objectives=loss_that(lambda value, aux: (value, aux._replace(losses={})))), toy_model()),
        r"the model adds the losses \['sharpness'\], which no objective passes on: return LossAux.of\(aux",
    ),
    "a loss that forgets view.capture": (
        lambda: (altered(objectives=loss_of(blind)), toy_model()),
        r"config.head_statistics_every asks .* but no objective of this task \(classify\) passes view.capture",
    ),
    "a loss of several numbers": (
        lambda: (altered(objectives=loss_that(lambda value, aux: (value[None], aux))), toy_model()),
        r"the loss of the objective 'classify' has shape \(1,\); it must be a number",
    ),
    "a metric of several numbers": (
        lambda: (
            altered(objectives=loss_that(lambda value, aux: (value, aux._replace(metrics={"x": value[None]})))),
            toy_model(),
        ),
        r"the metric 'x' of the objective 'classify' has shape \(1,\)",
    ),
    "a loss without its aux": (
        lambda: (altered(objectives=loss_that(lambda value, aux: (value, aux.metrics))), toy_model()),
        r"the loss of the objective 'classify' returns a dict beside its value: it must return \(loss, LossAux\)",
    ),
    "a state that grows": (
        lambda: (
            altered(objectives=loss_that(lambda value, aux: (value, aux._replace(state={"x": value})))),
            toy_model(),
        ),
        r"the objective 'classify' returns state\['x'\] as .*, where a step begins with nothing",
    ),
    "an input that no batch has": (
        lambda: (altered(interface=TaskInterface({"sound": InputSpec((32, 6))}, {})), toy_model()),
        r"the task's interface names the input 'sound', which its batches lack: they have \['symbols'\]",
    ),
    "an input of another rank": (
        lambda: (altered(interface=TaskInterface({"symbols": InputSpec((32,))}, {})), toy_model()),
        r"the input 'symbols' of the first batch has shape \(32, 6\), but the task's interface says \(32,\)",
    ),
    "an input that is longer": (
        lambda: (altered(interface=TaskInterface({"symbols": InputSpec((32, 4))}, {})), toy_model()),
        r"the input 'symbols' of the first batch has 6 positions, more than the 4 of the task's interface",
    ),
    "an input of another type": (
        lambda: (altered(interface=TaskInterface({"symbols": InputSpec((32, 6), jnp.float32)}, {})), toy_model()),
        r"the input 'symbols' of the first batch is int32, but the task's interface says float32",
    ),
    "an average that is not kept": (
        lambda: (altered(evaluations=(evaluation(parameters="ema"),)), toy_model()),
        r"the evaluation validation/seen is of the average 'ema', which this run does not keep: say raw",
    ),
}


def probe_blindly(view: Any) -> Aux:
    return view.model.apply(view.variables, memory.Classify().probe_batch, train=False)[1]


def drop_maps(view: Any, capture: Any, key: Any) -> Aux:
    aux = view.model.apply(view.variables, memory.Classify().probe_batch, train=False, capture=capture)[1]
    return aux._replace(maps={})


def linked(name: str, link: GoldAlignment) -> AxisLabels:
    return AxisLabels({"symbols": NAMED}, tuple("abcd"), {name: ((link,), (), (), ())})


def loss_of(loss: Callable[..., Any]) -> Any:
    return (dataclasses.replace(memory.Classify().objectives[0], loss_fn=loss),)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_before_the_first_step(fault: str) -> None:
    make, says = FAULTS[fault]
    task, model = make()
    with pytest.raises(UserError, match=says) as refused:
        fit(task, model)
    assert "\n" not in str(refused.value)


def test_what_fits_passes() -> None:
    fit(altered(evaluations=(evaluation(required_axes=("target", "source")),)), toy_model())


def test_unobserved_a_loss_may_leave_its_heads_alone() -> None:
    fit(altered(objectives=loss_of(blind)), toy_model(), observed=False)


def test_an_evaluation_of_maps_that_the_model_lacks_is_left_out_and_said_so() -> None:
    read = evaluation(required_axes=("target", "source"))
    assert not read.applies(toy_model().sites)
    assert evaluation(required_axes=("symbols", "memory")).applies(toy_model().sites)
    assert describe_skipped_evaluations(toy_model(), [read, evaluation()]) == [
        "evaluation validation/seen is skipped: the model has no attention map of target over source"
    ]


def test_what_an_evaluation_raises_is_raised_before_the_first_step_and_says_where() -> None:
    with pytest.raises(KeyError, match="decoder/cross") as raised:
        fit(altered(evaluations=(evaluation(),)), toy_model())
    assert raised.value.__notes__[-1] == (
        "raised by the evaluation validation/seen, which is traced for its shapes before the first step"
    )


def test_a_map_of_no_site_is_refused() -> None:
    model = changed(lambda aux: aux._replace(maps={**aux.maps, **{f"{name}/2": x for name, x in aux.maps.items()}}))
    with pytest.raises(UserError, match=r"returns a map of 'memory/read/2', which is no site of it: declare it"):
        fit(altered(), model)


@dataclasses.dataclass(frozen=True)
class ReadsSegments(Model):
    """The toy's model, with outputs that depend on the segments of packed rows."""

    def apply(self, variables: Any, inputs: Any, **request: Any) -> tuple[Any, Any]:
        outputs, aux = super().apply(variables, inputs, **request)
        return outputs + inputs["segments"][..., None], aux


@dataclasses.dataclass(frozen=True)
class LooksAtSegments(Model):
    """The toy's model, which computes with the segments of packed rows and keeps nothing of it."""

    def apply(self, variables: Any, inputs: Any, **request: Any) -> tuple[Any, Any]:
        jnp.equal(inputs["segments"][:, :, None], inputs["segments"][:, None])
        return super().apply(variables, inputs, **request)


def draw_packed_rows(random: np.random.Generator) -> dict[str, np.ndarray]:
    batch = memory.Classify().draw(random)
    return {**batch, "segments": (batch["symbols"] != memory.PAD).astype(np.int32)}


def test_a_model_that_does_not_read_the_segments_of_packed_rows_is_refused() -> None:
    packed, toy = altered(draw=draw_packed_rows), toy_model()
    for model in (toy, LooksAtSegments(toy.functional, toy.sites)):
        with pytest.raises(UserError, match="does not read the `segments` of packed rows"):
            fit(packed, model)
    fit(packed, ReadsSegments(toy.functional, toy.sites))
