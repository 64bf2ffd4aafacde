"""Initialising a run with the parameters of another, or of a published model: fine-tuning, longer contexts.

The source is a run directory, or a folder as Hugging Face publishes models (transformer.training.initial_sources).
Taken are a model's variables, parameters under their own paths and batch statistics under "state/". The step, the
optimisers and the averages of the new run start from these variables as in any run.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from transformer.config import UserError
from transformer.data.tokenizer import saved_in
from transformer.layers.lora import LoraConfig, beside, has_low_rank, low_rank, with_low_rank
from transformer.models.contract import Model, Variables
from transformer.models.paths import by_path
from transformer.runs.directory import RunDirectory
from transformer.runs.processes import primary
from transformer.training.initial_sources import Source, open_source, tokenizer_of
from transformer.training.initialisation_plan import Leaf, Plan, parse, plan
from transformer.training.sharding import is_names
from transformer.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class InitialiseFrom:
    """The source of initial values: a run, or a folder as Hugging Face publishes models; `run` "" is none.

    Of a run directory its checkpoint of `step` is read (None: the latest); a folder has config.json and
    model.safetensors. `average` names an average of a run whose parameters are taken instead of the raw ones, where it
    has them. Every parameter takes the values of the one of the same path, unless `rules` say otherwise:
    "head/* = fresh", "decoder/* = layers/*", "resize embedding/table" (transformer.training.initialisation_plan). With
    `tokenizer` the new run has the tokenizer of the other.
    """

    run: str = ""
    step: int | None = None
    average: str = ""
    tokenizer: bool = False
    rules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.rules:
            parse(rule)


class Beginning(Protocol):
    """The parts of a new run that its initialisation needs; assembly.Assembly has them."""

    @property
    def model(self) -> Model:
        """Whose axes have names."""

    @property
    def abstract(self) -> TrainState:
        """The shapes of the state, and where it lies."""

    @property
    def initialise(self) -> Callable[..., TrainState]:
        """The state by a key, and with these variables where any are given (step.init_state)."""


@dataclasses.dataclass(frozen=True)
class Report:
    """A run's initialisation: its source, and the parameters taken, resized, cast, left fresh and not used.

    `merged` are those that what the source has learned beside them, by LoRA, is added to.
    """

    run: str
    source: Source
    average: str
    plan: Plan
    averaged: int
    merged: tuple[str, ...] = ()

    @property
    def unused(self) -> tuple[str, ...]:
        """The source's arrays that are neither taken nor merged."""
        merged = {name for path in self.merged for name in beside(self.plan.taken[path].source)}
        return tuple(name for name in self.plan.unused if name not in merged)

    def facts(self) -> dict[str, Any]:
        """The report as plain values, for the run directory."""
        plan = self.plan
        return {
            "run": self.run,
            "step": self.source.step,
            "average": self.average,
            "loaded": {path: taken.source for path, taken in plan.taken.items()},
            "resized": {
                path: [list(plan.taken[path].leaf.shape), list(plan.targets[path].shape)] for path in plan.resized
            },
            "cast": {path: [plan.taken[path].leaf.dtype, plan.targets[path].dtype] for path in plan.cast},
            "averaged": self.averaged,
            "merged": list(self.merged),
            "fresh": dict(plan.fresh),
            "unused": list(self.unused),
            "notes": list(self.source.notes),
        }

    def lines(self) -> list[str]:
        """The report as a few lines of text."""
        plan = self.plan
        numbers = sum(
            math.prod(map(min, plan.targets[path].shape, taken.leaf.shape)) for path, taken in plan.taken.items()
        )
        renamed = sum(path != taken.source for path, taken in plan.taken.items())
        loaded = f"  loaded: {len(plan.taken)} parameters ({numbers:,} numbers)"
        if renamed:
            loaded += f", {renamed} from another path"
        if self.average:
            loaded += f", {self.averaged} as the average {self.average!r} has them"
        lines = [f"initialised from {self.source.said}", loaded]
        for path in plan.resized:
            shape, axis = plan.taken[path].leaf.shape, plan.taken[path].axis or 0
            kept = min(shape[axis], plan.targets[path].shape[axis])
            lines.append(f"  resized: {path} {shape} -> {plan.targets[path].shape}, {kept} along axis {axis} kept")
        casts: dict[str, int] = {}
        for path in plan.cast:
            change = f"{plan.taken[path].leaf.dtype} -> {plan.targets[path].dtype}"
            casts[change] = casts.get(change, 0) + 1
        lines += [f"  cast: {count} parameters {change}" for change, count in casts.items()]
        if self.merged:
            lines.append(f"  merged with what LoRA learned beside them: {_listed(self.merged)}")
        for rule in dict.fromkeys(plan.fresh.values()):
            lines.append(f"  fresh by {rule!r}: {_listed([path for path, by in plan.fresh.items() if by == rule])}")
        if self.unused:
            lines.append(f"  not used of it: {_listed(self.unused)}")
        return lines + [f"  note: {note}" for note in self.source.notes]


class Prepared(NamedTuple):
    """The plan before any array is read, and what it reads from."""

    source: Source
    report: Report


def prepare(config: InitialiseFrom, model: Model, abstract: Variables, workdir: Path | None) -> Prepared:
    """Open the source, and plan on shapes alone what is taken from it; all processes do it together.

    `abstract` are the shapes of the model's variables; `workdir` is the new run's, None without one.

    Errors: UserError as `initial_sources.open_source` and `initialisation_plan.plan`.
    """
    source = open_source(config.run, config.step, config.average, workdir)
    planned = plan(_targets(model, abstract), source.leaves, [parse(rule) for rule in config.rules])
    averaged = sum(taken.source in source.averaged for taken in planned.taken.values())
    return Prepared(source, Report(config.run, source, config.average, planned, averaged, _to_merge(planned, source)))


def check_scale(prepared: Prepared, lora: LoraConfig | None) -> None:
    """Refuse to go on with what a source learned by LoRA under another scale, by which the model would change.

    Errors: UserError.
    """
    source, plan = prepared.source, prepared.report.plan
    if not lora or not lora.rank or not source.lora or not any(low_rank(path) for path in plan.taken):
        return
    if lora.scale != source.lora.scale:
        raise UserError(
            f"config.model.lora.alpha={lora.alpha} scales what {prepared.report.run} learned by {lora.scale:g}, which "
            f"scaled it by {source.lora.scale:g}: say config.model.lora.alpha={source.lora.scale * lora.rank:g}, or "
            "leave it fresh with '*/lora/* = fresh'"
        )


def _to_merge(planned: Plan, source: Source) -> tuple[str, ...]:
    """The targets whose matrix has something beside it in the source that nothing here goes on with."""
    return tuple(
        path
        for path, taken in planned.taken.items()
        if has_low_rank(taken.source, source.leaves) and beside(path)[0] not in planned.taken
    )


def initialised(
    config: InitialiseFrom, assembly: Beginning, key: jax.Array, workdir: Path
) -> tuple[TrainState, Report | None]:
    """The state before the first step, its variables taken from the run that the config names, if it names any.

    The other variables are initialised by the key as in any run. All processes do it together.

    Errors: as `prepare`, before anything is compiled; checkpoint.DamagedCheckpoint for bytes that changed.
    """
    if not config.run:
        return assembly.initialise(key), None
    fresh = functools.partial(_variables_of, assembly.initialise, key)
    variables, report = take(config, assembly.model, assembly.abstract.variables, fresh, workdir)
    return assembly.initialise(key, variables), report


def take(
    config: InitialiseFrom,
    model: Model,
    abstract: Variables,
    fresh: Callable[[], Variables],
    workdir: Path | None = None,
) -> tuple[Variables, Report]:
    """A model's variables from the run that the config names; `fresh` makes initial ones.

    Errors: as `initialised`.
    """
    source, report = prepare(config, model, abstract, workdir)
    where = flat(abstract)
    values = _read(source, report, where)
    drawn = flat(fresh()) if report.plan.fresh or report.plan.resized else {}
    values |= _fitted(report.plan, drawn, values, where)
    leaves = [values[path] if path in values else drawn[path] for path in where]
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves), report


def _variables_of(initialise: Callable[..., TrainState], key: jax.Array) -> Variables:
    return initialise(key).variables  # the rest of that state is freed before another is made


def begin(
    config: InitialiseFrom, assembly: Beginning, key: jax.Array, directory: RunDirectory, *, aloud: bool = True
) -> TrainState:
    """As `initialised`; what was taken is recorded in the run directory and, where `aloud`, printed."""
    state, report = initialised(config, assembly, key, directory.path)
    if report is not None and primary():
        directory.record(initialised_from=report.facts())
        if aloud:
            print("\n".join(report.lines()), flush=True)
    return state


def bring_tokenizer(config: InitialiseFrom, workdir: Path) -> None:
    """Save the other run's tokenizer in a run directory that has none, where the config asks for it.

    Errors: UserError for a run that is missing, or has no tokenizer.
    """
    if not (config.run and config.tokenizer) or saved_in(workdir):
        return
    tokenizer_of(config.run, workdir).save(workdir)


def flat(variables: Variables, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """The leaves of a model's variables by their paths in rules, in the order of `jax.tree`.

    Errors: ValueError where a parameter's path and one of the state are the same.
    """
    params = by_path(variables.params, is_leaf)
    state = {f"state/{path}": leaf for path, leaf in by_path(variables.state, is_leaf).items()}
    if params.keys() & state.keys():
        raise ValueError(f"the parameter {min(params.keys() & state.keys())!r} has the path of a leaf of the state")
    return params | state


def _targets(model: Model, abstract: Variables) -> dict[str, Leaf]:
    axes = flat(model.axes(), is_names)
    return {path: Leaf(tuple(leaf.shape), str(leaf.dtype), axes.get(path, ())) for path, leaf in flat(abstract).items()}


def _read(source: Source, report: Report, where: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """The values of every target that has a source, with what was learned beside them."""
    values: dict[str, jax.Array] = {}
    waiting = dict(report.plan.taken)
    while waiting:  # again only where several targets take one source
        paths = {taken.source: path for path, taken in waiting.items()}
        stored = source.read({name: _stored(where[path], waiting.pop(path).leaf) for name, path in paths.items()})
        values |= {path: stored[name] for name, path in paths.items()}
    for path in report.merged:
        assert source.lora is not None
        names = beside(report.plan.taken[path].source)
        low = source.read({name: _whole(where[path], source.leaves[name]) for name in names})
        merge = jax.jit(with_low_rank, static_argnames="scale", out_shardings=values[path].sharding)
        values[path] = merge(values[path], *(low[name] for name in names), scale=source.lora.scale)
    return values


def _whole(target: jax.ShapeDtypeStruct, leaf: Leaf) -> jax.ShapeDtypeStruct:
    """A small array as it is read: whole on every device of its target's."""
    sharding = target.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=sharding)


def _stored(target: jax.ShapeDtypeStruct, leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The sharding that a source is read with: its target's, but whole along axes that its size does not divide."""
    dtype = target.dtype if str(target.dtype) == leaf.dtype else jnp.dtype(leaf.dtype)
    sharding = target.sharding
    if isinstance(sharding, NamedSharding) and leaf.shape != target.shape:
        spec = [
            axes if size % math.prod(sharding.mesh.shape[axis] for axis in _several(axes)) == 0 else None
            for axes, size in zip(sharding.spec, leaf.shape, strict=False)
        ]
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


def _several(axes: Any) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _fitted(
    plan: Plan,
    fresh: Mapping[str, jax.Array],
    values: Mapping[str, jax.Array],
    where: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
    """The values of another type or size than their target, cast and resized to it."""

    def fit(fresh: Mapping[str, jax.Array], values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        fitted = {path: value.astype(where[path].dtype) for path, value in values.items()}
        for path, into in fresh.items():
            common = jax.lax.slice(fitted[path], [0] * into.ndim, list(map(min, into.shape, fitted[path].shape)))
            fitted[path] = jax.lax.dynamic_update_slice(into, common, [0] * into.ndim)
        return fitted

    unfit = sorted({*plan.resized, *plan.cast})
    if not unfit:
        return {}
    placed = {path: where[path].sharding or values[path].sharding for path in unfit}
    arguments = {path: fresh[path] for path in plan.resized}, {path: values[path] for path in unfit}
    return jax.jit(fit, out_shardings=placed)(*arguments)


def _listed(paths: Sequence[str], shown: int = 6) -> str:
    """The paths, or their folders if they are many."""
    if len(paths) <= shown:
        return ", ".join(paths)
    folders: dict[str, int] = {}
    for path in paths:
        first, slash, _ = path.partition("/")
        folders[first + ("/*" if slash else "")] = folders.get(first + ("/*" if slash else ""), 0) + 1
    return ", ".join(f"{folder} ({count})" if folder.endswith("*") else folder for folder, count in folders.items())
