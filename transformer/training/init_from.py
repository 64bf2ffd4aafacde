"""Initialize a run from another run or a published model: fine-tuning, longer contexts."""

import contextlib
import dataclasses
import functools
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.config import UserError, from_config, suggest_nearest
from transformer.data.tokenizers.chat_template import load_chat_template, read_published_chat_template
from transformer.data.tokenizers.huggingface_tokenizers import load_huggingface_tokenizer
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.tokenizer import FILE, Tokenizer, has_tokenizer
from transformer.layers.lora import LoraConfig, add_low_rank_product, is_lora_path, lora_paths
from transformer.models.model import Model, Variables, leaves_by_path
from transformer.runs.checkpoint import Checkpoints, LeafShape
from transformer.runs.distributed import is_primary
from transformer.runs.run_directory import RunDirectory, check_regular_files
from transformer.storage.json_reading import read_json_object
from transformer.storage.paths import parse_path, storage_of
from transformer.system.command_invocation import shell_command
from transformer.training.build import TrainingComponents
from transformer.training.entry_names import NameMatch, match_classes, match_tokens
from transformer.training.finite_checks import find_non_finite
from transformer.training.init_plan import ArrayInfo, InitializeFromConfig, InitPlan, parse_init_rule, plan_parameters
from transformer.training.partitioning import is_axis_names
from transformer.training.state import AVERAGES, PARAMS, STATE, TrainState

Wanted = Mapping[str, jax.ShapeDtypeStruct]


class InitSource(NamedTuple):
    """The arrays of a source.

    Attributes:
        description: The name of the source in reports.
        step: The step of a run; None for a folder.
        leaves: The shape and type of each array, by its path in rules.
        read_arrays: A function that reads the arrays of some paths and places them as given.
        averaged_paths: The paths whose values are an average's.
        lora: How the source scales its LoRA updates; None if it has none.
        class_names: The names of its classes (`TaskInterface.class_names`); empty if they are unknown.
        load_tokenizer: A function that loads its tokenizer; None if it has none.
        notes: Warnings for the user.
    """

    description: str
    step: int | None
    leaves: Mapping[str, ArrayInfo]
    read_arrays: Callable[[Wanted], dict[str, jax.Array]]
    averaged_paths: frozenset[str] = frozenset()
    lora: LoraConfig | None = None
    class_names: tuple[str, ...] = ()
    load_tokenizer: Callable[[], Tokenizer] | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Initialization:
    """What a run takes from its source, decided before an array is read.

    Attributes:
        config: The config that names the source.
        source: The source's arrays.
        plan: Where the values of every parameter come from.
    """

    config: InitializeFromConfig
    source: InitSource
    plan: InitPlan

    @property
    def num_averaged(self) -> int:
        """The number of parameters taken from the average."""
        matched_sources = self.plan.matched_sources.values()
        return sum(matched.source_path in self.source.averaged_paths for matched in matched_sources)

    def to_dict(self) -> dict[str, Any]:
        """Return a report as plain values, for the run directory."""
        plan = self.plan
        return {
            "run": self.config.run,
            "step": self.source.step,
            "average": self.config.average,
            "loaded": {path: matched.source_path for path, matched in plan.matched_sources.items()},
            "resized": {
                path: [list(plan.matched_sources[path].array_info.shape), list(plan.targets[path].shape)]
                for path in plan.resized_paths
            },
            "cast": {
                path: [plan.matched_sources[path].array_info.dtype, plan.targets[path].dtype]
                for path in plan.cast_paths
            },
            "averaged": self.num_averaged,
            "matched_by_name": {
                axis: {"paths": list(plan.paths_matched_along(axis)), "matched": match.num_matched}
                for axis, match in plan.names.items()
            },
            "merged": list(plan.merged_paths),
            "fresh": dict(plan.newly_initialized),
            "unused": list(plan.unused_paths),
            "notes": list(self.source.notes),
        }

    def format_lines(self) -> list[str]:
        """Return a report as lines of text."""
        plan = self.plan
        numbers = sum(
            math.prod(matched.taken_shape(plan.targets[path])) for path, matched in plan.matched_sources.items()
        )
        renamed = sum(path != matched.source_path for path, matched in plan.matched_sources.items())
        loaded = f"  loaded: {len(plan.matched_sources)} parameters ({numbers:,} numbers)"
        if renamed:
            loaded += f", {renamed} from another path"
        if self.config.average:
            loaded += f", {self.num_averaged} as the average {self.config.average!r} has them"
        lines = [f"initialized from {self.source.description}", loaded]
        for path in plan.resized_paths:
            matched, target = plan.matched_sources[path], plan.targets[path]
            axis = matched.resized_axis or 0
            lines.append(
                f"  resized: {path} {matched.array_info.shape} -> {target.shape}, {matched.taken_shape(target)[axis]} "
                f"along axis {axis} kept"
            )
        for axis_name, match in plan.names.items():
            if paths := plan.paths_matched_along(axis_name):
                lines.append(f"  {match.describe()} ({_list_paths(paths)})")
        casts = Counter(
            f"{plan.matched_sources[path].array_info.dtype} -> {plan.targets[path].dtype}" for path in plan.cast_paths
        )
        lines += [f"  cast: {count} parameters {change}" for change, count in casts.items()]
        if plan.merged_paths:
            lines.append(f"  merged with their LoRA updates: {_list_paths(plan.merged_paths)}")
        for rule in dict.fromkeys(plan.newly_initialized.values()):
            paths = tuple(path for path, by in plan.newly_initialized.items() if by == rule)
            lines.append(f"  initialized randomly by rule {rule!r}: {_list_paths(paths)}")
        if plan.unused_paths:
            lines.append(f"  not used: {_list_paths(plan.unused_paths)}")
        return lines + [f"  note: {note}" for note in self.source.notes]


def initialize_run(
    config: InitializeFromConfig,
    components: TrainingComponents,
    key: jax.Array,
    directory: RunDirectory,
    *,
    aloud: bool = True,
) -> TrainState:
    """Make the initial state of a run, and record in its directory, and print if `aloud`, what was taken."""
    state, initialization = build_initial_state(config, components, key, directory.path)
    if initialization is not None and is_primary():
        directory.record(initialized_from=initialization.to_dict())
        if aloud:
            print("\n".join(initialization.format_lines()), flush=True)
    return state


def build_initial_state(
    config: InitializeFromConfig, components: TrainingComponents, key: jax.Array, workdir: Path
) -> tuple[TrainState, Initialization | None]:
    """Make the state before the first step, with variables from the source that the config names, if any.

    Variables that are not taken are initialized with the key. All processes call it together.

    Returns:
        The state, and what was taken; None without a source.

    Raises:
        UserError: If the source is missing or unreadable, or does not fit the model; raised before anything is
            compiled.
        DamagedCheckpoint: If the bytes of the source's checkpoint changed.
    """
    if not config.run:
        return components.init_state(key), None
    variables, initialization = load_variables_from_source(
        config,
        components.model,
        components.abstract_state.variables,
        lambda: components.init_state(key).variables,  # the rest of that state is freed before another is made
        workdir,
        components.class_names,
    )
    return components.init_state(key, variables), initialization


def load_variables_from_source(
    config: InitializeFromConfig,
    model: Model,
    abstract: Variables,
    fresh: Callable[[], Variables],
    workdir: Path | None = None,
    class_names: tuple[str, ...] = (),
) -> tuple[Variables, Initialization]:
    """Load a model's variables from the source that the config names.

    Args:
        config: The source.
        model: The model.
        abstract: The shapes and shardings of its variables.
        fresh: A function that makes initial variables, for those that are not taken.
        workdir: The new run's directory, if there is one.
        class_names: The names of its classes; empty if it has none.

    Raises:
        UserError: If the source is missing or unreadable, or does not fit the model.
        DamagedCheckpoint: If the bytes of the source's checkpoint changed.
    """
    initialization = plan_initialization(config, model, abstract, workdir, class_names)
    plan, where = initialization.plan, flatten_variables(abstract)
    values = _read_values(initialization, where)
    initial = flatten_variables(fresh()) if plan.newly_initialized or plan.partial_paths else {}
    values |= _cast_and_resize(plan, initial, values, where)
    leaves = [values[path] if path in values else initial[path] for path in where]
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves), initialization


def plan_initialization(
    config: InitializeFromConfig,
    model: Model,
    abstract: Variables,
    workdir: Path | None,
    class_names: tuple[str, ...] = (),
) -> Initialization:
    """Open the source, and plan from shapes and names what is taken from it. All processes call it together.

    The arguments are those of `load_variables_from_source`.

    Raises:
        UserError: If the source is missing or unreadable, or does not fit the model under the rules.
    """
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(abstract.params)}
    # In one type a published model takes no more memory than its parameters will.
    source = open_init_source(config, workdir, dtypes.pop() if len(dtypes) == 1 else "float32")
    plan = plan_parameters(
        _targets(model, abstract),
        source.leaves,
        [parse_init_rule(rule) for rule in config.rules],
        _match_names(source, class_names, workdir),
    )
    notes = (*source.notes, *_notes_on_names(config.run, source, plan, class_names))
    return Initialization(config, source._replace(notes=notes), plan)


def _match_names(source: InitSource, class_names: tuple[str, ...], workdir: Path | None) -> dict[str, NameMatch]:
    """Match the entries of the axes that have names, where they differ between the source and the new run."""
    tokens = None
    if source.load_tokenizer is not None and workdir is not None and has_tokenizer(workdir):
        tokens = match_tokens(source.load_tokenizer(), load_tokenizer(workdir))
    matches = {"classes": match_classes(source.class_names, class_names), "vocabulary": tokens}
    return {axis: match for axis, match in matches.items() if match is not None}


def _notes_on_names(run: str, source: InitSource, plan: InitPlan, class_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is taken by number although its entries have, or may have, other names."""
    matched_axes = {axis for path in plan.matched_sources for axis in plan.targets[path].axes}
    axes = {axis for target in plan.targets.values() for axis in target.axes}
    notes = [
        f"{source.description}: no parameter of this family has the axis {axis!r}, so that entries are taken by "
        f"number; the {match.describe_names()}"
        for axis, match in plan.names.items()
        if axis not in axes
    ]
    if "classes" in matched_axes and len(class_names) > 1 and not source.class_names:
        notes.append(f"{run} names no class: its outputs are taken to be {', '.join(class_names)}, in this order")
    return tuple(notes)


def check_lora_scale(initialization: Initialization, lora: LoraConfig | None) -> None:
    """Check that a source's LoRA parameters have the scale of this run's LoRA config, if its model has one.

    Raises:
        UserError: If the scales differ.
    """
    source, matched_paths = initialization.source, initialization.plan.matched_sources
    if not lora or not lora.rank or not source.lora or not any(map(is_lora_path, matched_paths)):
        return
    if lora.scale != source.lora.scale:
        raise UserError(
            f"config.model.lora.alpha={lora.alpha} scales what {initialization.config.run} learned "
            f"by {lora.scale:g}, which scaled it by {source.lora.scale:g}: "
            f"say config.model.lora.alpha={source.lora.scale * lora.rank:g}, or "
            "leave it fresh with '*/lora/* = fresh'"
        )


def copy_source_tokenizer(config: InitializeFromConfig, workdir: Path) -> None:
    """Save the source's tokenizer and chat template in a run directory that has none, if the config asks for it.

    Raises:
        UserError: If the source is missing or has no tokenizer.
    """
    if not (config.run and config.copy_tokenizer) or has_tokenizer(workdir):
        return
    source = find_source(config.run, workdir)
    load_source_tokenizer = _tokenizer_loader(source)
    if load_source_tokenizer is None:
        raise UserError(f"config.initialize_from.copy_tokenizer=True, but {config.run} holds no tokenizer")
    read_template = read_published_chat_template if is_huggingface_folder(source) else load_chat_template
    if (chat_template := read_template(source)) is not None:
        chat_template.save(workdir)
    load_source_tokenizer().save(workdir)


def _tokenizer_loader(path: Path) -> Callable[[], Tokenizer] | None:
    """Return a function that loads the tokenizer of a run or of a folder; None for a run that has none."""
    if is_huggingface_folder(path):
        return functools.partial(load_huggingface_tokenizer, path)
    return functools.partial(load_tokenizer, path) if has_tokenizer(path) else None


def open_init_source(config: InitializeFromConfig, workdir: Path | None, dtype: str = "float32") -> InitSource:
    """Open the run directory or folder that the config names; no array is read.

    Args:
        config: The source.
        workdir: The new run's directory, if there is one.
        dtype: The type in which the arrays of a published model are read; those of a run have their own.

    Raises:
        UserError: If the source is missing, unreadable or `workdir` itself, or lacks the step or the average.
    """
    path = find_source(config.run, workdir)
    if not is_huggingface_folder(path):
        return _source_of_run(path, config, workdir)
    for key, option in (("step", config.step), ("average", config.average)):
        if option not in (None, ""):
            raise UserError(
                f"config.initialize_from.{key}={option!r} is of runs: {config.run} is a published model, which has none"
            )
    return _source_of_folder(path, config.run, dtype)


def find_source(run: str, workdir: Path | None) -> Path:
    """Return the path of the run directory or folder of this name.

    Args:
        run: The name, as the config gives it.
        workdir: The new run's directory, if there is one.

    Raises:
        UserError: If it is missing, unreadable, neither a run nor a folder of a published model, or `workdir` itself.
    """
    path = parse_path(run)
    if workdir is not None and path.resolve() == parse_path(workdir).resolve():
        raise UserError(f"config.initialize_from.run={run} is this very run: name another")
    try:
        storage_of(path).reach(path)
        recorded = RunDirectory(path).is_run()
    except OSError as error:
        raise UserError(f"config.initialize_from.run={run} cannot be read: {error.strerror or error}") from error
    if not recorded:
        what = "is no run directory: it has no config.json" if path.is_dir() else "is missing"
        raise UserError(
            f"config.initialize_from.run={run} {what}; name the --workdir of a run, or a folder with config.json and "
            "model.safetensors"
        )
    return path


def is_huggingface_folder(path: Path) -> bool:
    """Whether this is a folder in Hugging Face format: its config.json has a model_type, that of a run does not."""
    file = RunDirectory(path).config_file
    return file.exists() and "model_type" in read_json_object(file)  # a run may lack its config.json


def _source_of_run(path: Path, config: InitializeFromConfig, workdir: Path | None) -> InitSource:
    run = config.run
    with _open_checkpoints(path, run) as checkpoints:
        steps = checkpoints.steps()
        at = steps[-1] if config.step is None else config.step
        if at not in steps:
            raise UserError(f"config.initialize_from.step={at}: {run} has checkpoints of {steps} alone")
        checkpoint = checkpoints.read(at)
    stored, classes = checkpoint.leaves, checkpoint.metadata.get("classes", [])
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"the manifest of step {at} in {path} is not usable: classes: must be a list of names")
    names = _leaf_names(stored, run, config.average)

    def read(requests: Wanted) -> dict[str, jax.Array]:
        with _open_checkpoints(path, run) as checkpoints:
            leaves = checkpoints.read(at).restore_leaves({names[name]: leaf for name, leaf in requests.items()})
        return {name: leaves[names[name]] for name in requests}

    return InitSource(
        description=f"{run} at step {at}",
        step=at,
        leaves={path: ArrayInfo(stored[name].shape, stored[name].dtype) for path, name in names.items()},
        read_arrays=read,
        averaged_paths=frozenset(path for path, name in names.items() if name.startswith(AVERAGES)),
        lora=_read_lora_config(path),
        class_names=tuple(classes),
        load_tokenizer=_tokenizer_loader(path),
        notes=_notes_of_run(path, workdir),
    )


@contextlib.contextmanager
def _open_checkpoints(path: Path, run: str) -> Iterator[Checkpoints]:
    """Open the checkpoints of a run that has at least one."""
    folder = RunDirectory(path).checkpoints_dir
    if folder.is_dir():
        check_regular_files(path)
        with Checkpoints.open_read_only(folder) as checkpoints:
            if checkpoints.steps():
                yield checkpoints
                return
    convert = shlex.join(shell_command("convert"))
    raise UserError(
        f"config.initialize_from.run={run} has no checkpoint yet; train it, or make a run of published weights with "
        f"{convert} --from_pretrained=FOLDER --workdir=RUN"
    )


def _leaf_names(leaves: Mapping[str, LeafShape], run: str, average: str) -> dict[str, str]:
    """Return the names of the checkpoint's leaves that can be taken, by their paths in rules."""
    names = {name.removeprefix(PARAMS): name for name in leaves if name.startswith(PARAMS)}
    if average:
        averages = sorted({name.split("/")[1] for name in leaves if name.startswith(AVERAGES)})
        if average not in averages:
            near = suggest_nearest(average, averages) if averages else "it has none"
            raise UserError(f"config.initialize_from.average={average!r} is no average of {run}: {near}")
        inside = f"{AVERAGES}{average}/"
        names |= {path: f"{inside}{path}" for path in names if f"{inside}{path}" in leaves}
    return names | {f"state/{name.removeprefix(STATE)}": name for name in leaves if name.startswith(STATE)}


def _read_lora_config(path: Path) -> LoraConfig | None:
    """Return the LoRA config of a run; None if its model has no LoRA parameters."""
    model = RunDirectory(path).config().get("model", {})
    section = model.get("lora") if isinstance(model, Mapping) else None
    return None if not section or not section.get("rank") else from_config(LoraConfig, section, "config.model.lora")


def _notes_of_run(path: Path, workdir: Path | None) -> tuple[str, ...]:
    """Warn if the tokenizers differ, though their tokens may be the same."""
    files = [folder / FILE for folder in (path, parse_path(workdir or path))]
    if not all(file.is_file() for file in files) or files[0].read_bytes() == files[1].read_bytes():
        return ()
    return (f"{path} has another tokenizer (config.initialize_from.copy_tokenizer=True brings it along)",)


def _source_of_folder(path: Path, run: str, dtype: str) -> InitSource:
    from transformer.huggingface.convert import open_model_folder  # which few runs need, and which takes a while
    from transformer.huggingface.fine_tuned_heads import output_names

    try:
        published = open_model_folder(path, dtype)
    except UserError as error:
        raise UserError(f"config.initialize_from.run: {error}") from error
    arrays: dict[str, np.ndarray] = {}

    def read(requests: Wanted) -> dict[str, jax.Array]:
        if not arrays:
            arrays.update(leaves_by_path(published.read_params()))
        return {source: _placed_array(arrays[source], leaf) for source, leaf in requests.items()}

    leaves = {
        name: ArrayInfo(tuple(leaf.shape), dtype) for name, leaf in leaves_by_path(published.param_shapes).items()
    }
    reads_images = "image" in published.interface.inputs
    return InitSource(
        description=f"{run}, a {published.config['model_type']} model as Hugging Face publishes it",
        step=None,
        leaves=leaves,
        read_arrays=read,
        class_names=output_names(published.config, published.interface.vocabularies.get("classes", 0)),
        load_tokenizer=None if reads_images else _tokenizer_loader(path),
        notes=tuple(published.notes),
    )


def _placed_array(array: np.ndarray, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if leaf.sharding is None:
        return jax.device_put(array)
    return jax.make_array_from_callback(array.shape, leaf.sharding, array.__getitem__)


def flatten_variables(variables: Variables, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return the leaves of a model's variables by their paths in rules, in the order of `jax.tree`.

    Args:
        variables: The variables. The paths of their state begin with "state/".
        is_leaf: Which nodes count as leaves, as in `jax.tree.map`.

    Raises:
        ValueError: If a parameter and a leaf of the state have the same path.
    """
    params = leaves_by_path(variables.params, is_leaf)
    state = {f"state/{path}": leaf for path, leaf in leaves_by_path(variables.state, is_leaf).items()}
    if params.keys() & state.keys():
        raise ValueError(f"the parameter {min(params.keys() & state.keys())!r} has the path of a leaf of the state")
    return params | state


def _targets(model: Model, abstract: Variables) -> dict[str, ArrayInfo]:
    axes = flatten_variables(model.axes(), is_axis_names)
    return {
        path: ArrayInfo(tuple(leaf.shape), str(leaf.dtype), axes.get(path, ()))
        for path, leaf in flatten_variables(abstract).items()
    }


def _read_values(initialization: Initialization, where: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Read the values of every target that has a source, with LoRA updates merged."""
    source, matched_sources = initialization.source, initialization.plan.matched_sources
    values: dict[str, jax.Array] = {}
    waiting = dict(matched_sources)
    while waiting:  # repeats only if several targets take one source
        paths = {matched.source_path: path for path, matched in waiting.items()}
        stored = source.read_arrays(
            {name: _stored_leaf(where[path], waiting.pop(path).array_info) for name, path in paths.items()}
        )
        values |= {path: stored[name] for name, path in paths.items()}
    for path in initialization.plan.merged_paths:
        assert source.lora is not None
        names = lora_paths(matched_sources[path].source_path)
        low = source.read_arrays({name: _replicated_leaf(where[path], source.leaves[name]) for name in names})
        merge = jax.jit(add_low_rank_product, static_argnames="scale", out_shardings=values[path].sharding)
        values[path] = merge(values[path], *(low[name] for name in names), scale=source.lora.scale)
    if (non_finite := find_non_finite(values)) is not None:
        raise UserError(
            f"config.initialize_from.run={initialization.config.run} holds NaN or infinity in what {non_finite} takes: "
            "name another run, or an earlier config.initialize_from.step"
        )
    return values


def _replicated_leaf(target: jax.ShapeDtypeStruct, leaf: ArrayInfo) -> jax.ShapeDtypeStruct:
    """Return how a small array is read: replicated on the devices of its target."""
    sharding = target.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype), sharding=sharding)


def _stored_leaf(target: jax.ShapeDtypeStruct, leaf: ArrayInfo) -> jax.ShapeDtypeStruct:
    """Return how a source is read: sharded like its target, except along axes that its size does not divide."""
    dtype = target.dtype if str(target.dtype) == leaf.dtype else jnp.dtype(leaf.dtype)
    sharding = target.sharding
    if isinstance(sharding, NamedSharding) and leaf.shape != target.shape:
        spec = [
            axes if size % math.prod(sharding.mesh.shape[axis] for axis in _axes_tuple(axes)) == 0 else None
            for axes, size in zip(sharding.spec, leaf.shape, strict=False)
        ]
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


def _axes_tuple(axes: Any) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _cast_and_resize(
    plan: InitPlan,
    fresh: Mapping[str, jax.Array],
    values: Mapping[str, jax.Array],
    where: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
    """Cast and resize the values whose type, size or order differs from their target's."""

    def fit(fresh: Mapping[str, jax.Array], values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        fitted = {path: value.astype(where[path].dtype) for path, value in values.items()}
        for path, into in fresh.items():
            matched = plan.matched_sources[path]
            if matched.named_axis is not None:
                fitted[path] = select_entries(fitted[path], into, matched.named_axis, matched.entries)
                continue
            common = jax.lax.slice(fitted[path], [0] * into.ndim, list(map(min, into.shape, fitted[path].shape)))
            fitted[path] = jax.lax.dynamic_update_slice(into, common, [0] * into.ndim)
        return fitted

    unfit = sorted({*plan.partial_paths, *plan.cast_paths})
    if not unfit:
        return {}
    placed = {path: where[path].sharding or values[path].sharding for path in unfit}
    arguments = {path: fresh[path] for path in plan.partial_paths}, {path: values[path] for path in unfit}
    return jax.jit(fit, out_shardings=placed)(*arguments)


def select_entries(values: jax.Array, fresh: jax.Array, axis: int, entries: Sequence[int]) -> jax.Array:
    """Return `fresh` with entries along an axis taken from `values`.

    Args:
        values: The array to take from.
        fresh: The array that keeps its other entries.
        axis: The axis.
        entries: For every entry of `fresh` that of `values`; -1 for none.
    """
    places = np.array(entries)
    selected = jnp.take(values, np.maximum(places, 0), axis=axis)
    shape = [1] * fresh.ndim
    shape[axis] = len(places)
    return jnp.where((places >= 0).reshape(shape), selected, fresh)


def _list_paths(paths: Sequence[str], limit: int = 6) -> str:
    """List paths, or their folders if there are many."""
    if len(paths) <= limit:
        return ", ".join(paths)
    folders: dict[str, int] = {}
    for path in paths:
        first, slash, _ = path.partition("/")
        folders[first + ("/*" if slash else "")] = folders.get(first + ("/*" if slash else ""), 0) + 1
    return ", ".join(f"{folder} ({count})" if folder.endswith("*") else folder for folder, count in folders.items())
