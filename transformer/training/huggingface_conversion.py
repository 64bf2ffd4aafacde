"""Conversion between run directories and Hugging Face model folders."""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jaxtyping import Array, Key
from tokenizers import processors

from transformer.config import UserError
from transformer.data.datasets.text_classification import has_own_labels
from transformer.data.datasets.word_labels import is_conll_file
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat
from transformer.data.images import ImageSpec
from transformer.data.tokenizers.chat_template import (
    PUBLISHED_FILE,
    load_chat_template,
    read_published_chat_template,
)
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.huggingface_tokenizers import load_huggingface_tokenizer
from transformer.data.tokenizers.load import TOKENIZER_FILES
from transformer.data.tokenizers.tokenizer import FILE as TOKENIZER_FILE
from transformer.data.tokenizers.tokenizer import ROLES_FILE, Tokenizer
from transformer.huggingface import generation_config, preprocessor
from transformer.huggingface.convert import (
    PublishedModel,
    atomic_output_folder,
    open_model_folder,
    write_model_folder,
)
from transformer.huggingface.fine_tuned_heads import class_name_keys, class_names_of_config, output_names
from transformer.layers.lora import LoraConfig, merge_lora_params
from transformer.models import registry
from transformer.models.model import PyTree, Variables, count_parameters, leaves_by_path
from transformer.runs.checkpoint import Checkpoints, last_saved_step
from transformer.runs.run_directory import RunDirectory, write_json
from transformer.storage.paths import storage_of
from transformer.tasks import registry as tasks
from transformer.tasks.task import StateView
from transformer.training.build import TrainingComponents, build_components, jit_for_one_call
from transformer.training.checkpoint_metadata import collect_metadata
from transformer.training.config import ExperimentConfig, changeable_keys, resolve_config
from transformer.training.entry_names import match_classes
from transformer.training.init_from import load_variables_from_source
from transformer.training.init_plan import FRESH, InitializeFromConfig
from transformer.training.parameter_averages import init_average
from transformer.training.partitioning import is_axis_names, single_device_placement
from transformer.training.run_loading import open_run
from transformer.training.state import TrainState, derive_key

TASK_OF_FAMILY = {
    "decoder": "language_modeling",
    "encoder": "masked_lm",
    "encoder_decoder": "translation",
    "vit": "image_classification",
    "xlnet": "permutation_lm",
}
"""The task on which an imported model of each family is trained further, unless it has one of the heads below."""

TASK_OF_HEAD = {
    "classes": "fine_tuning",
    "choice": "fine_tuning",
    "token_classes": "token_classification",
    "span": "question_answering",
}
"""The task of each head with which a model of FINE_TUNED_FAMILIES is fine-tuned."""

FINE_TUNED_FAMILIES = ("decoder", "encoder", "xlnet")
"""The families of which every model can be fine-tuned on texts of one's own."""

IMPORTED_DTYPES = ("float32", "bfloat16", "float16")
"""The types in which the parameters of an imported model can be stored."""

IMAGE_HEADS = ("head", "distilled")
"""The parameters of an image model that score its classes, by the first name of their path."""

TEXT_HEADS = ("classes", "choice", "pooler", "span", "head", "unembedding", "output_bias")
"""The parameters of the heads of a model of texts, by the first name of their path."""

# What the head of pre-training needs in a `config.model` section, by family, for a body that has none.
_PRETRAINING_HEADS: Mapping[str, Mapping[str, Any]] = {
    "decoder": {"head": "next_tokens"},
    "encoder": {"head": "masked", "output_bias": True, "add_pooling_layer": False},
    "encoder_decoder": {"head": "next_tokens"},
    "xlnet": {"head": "permuted", "output_bias": True},
}

_FILES = {
    "fine_tuning": "FILE.tsv",
    "token_classification": "FILE.conll",
    "question_answering": "FILE.json",
}
# How each model has its texts, by `model_type`; those of DistilBERT, ModernBERT and DeBERTa are BERT's without token
# types. Decoders have them plain.
_SEQUENCE_FORMATS = {
    "bert": SequenceFormat.BERT,
    "electra": SequenceFormat.BERT,
    "albert": SequenceFormat.BERT,
    "modernbert": SequenceFormat.BERT,
    "deberta-v2": SequenceFormat.BERT,
    "distilbert": SequenceFormat.BERT,
    "roberta": SequenceFormat.ROBERTA,
    "xlm-roberta": SequenceFormat.ROBERTA,
    "camembert": SequenceFormat.ROBERTA,
    "xlnet": SequenceFormat.XLNET,
    "bart": SequenceFormat.BART,
    "t5": SequenceFormat.T5,
    "mt5": SequenceFormat.T5,
}
# Those whose tokenizers put an end token after a text alone, unless their own templates say otherwise.
_ENCODER_DECODERS = ("marian", "bart", "mbart", "blenderbot", "pegasus", "m2m_100", "t5", "mt5")
_WITH_TOKEN_TYPES = ("bert", "electra", "albert", "deberta-v2", "xlnet")
_SPECIAL = {
    "pad": ("pad_token",),
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}


@dataclasses.dataclass(frozen=True)
class FineTuningOptions:
    """How an imported model is fine-tuned. Fields that are None take the task's own defaults.

    Attributes:
        dataset: The data set, as in `config.task.dataset`.
        data_dir: The folder of the data.
        problem: The problem that texts of your own pose: "token_classification", "question_answering", or one of
            `config.task.problem`.
        classes: The names of their classes, as in `config.task.classes`.
        test_split: The name of the test split.
        context_length: The largest length of a text in tokens, at most the model's own.
        batch_size: Texts of that length, or images, in a batch.
        steps: The number of training steps.
        learning_rate: The learning rate.
        seed: The seed of the run.
        dtype: The type in which parameters are stored and computed with.

    Raises:
        UserError: If the batch size or the context length is too small, or the type is none of `IMPORTED_DTYPES`.
    """

    dataset: str | None = None
    data_dir: str | None = None
    problem: str | None = None
    classes: tuple[str, ...] = ()
    test_split: str | None = None
    context_length: int = 128
    batch_size: int = 16
    steps: int = 1000
    learning_rate: float = 5e-5
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"--batch_size={self.batch_size} must be at least 1")
        if self.context_length < 2:
            raise UserError(f"--context_length={self.context_length} must be at least 2 tokens")
        if self.dtype not in IMPORTED_DTYPES:
            raise UserError(f"dtype={self.dtype} is none of {', '.join(IMPORTED_DTYPES)}")


@dataclasses.dataclass(frozen=True)
class ConversionResult:
    """The result of a conversion.

    Attributes:
        kind: The task of an imported run, or the model type of an exported model.
        num_parameters: The number of parameters.
        notes: Notes for the user.
    """

    kind: str
    num_parameters: int
    notes: tuple[str, ...] = ()


def import_from_huggingface(source: Path, workdir: Path, fine_tuning: FineTuningOptions) -> ConversionResult:
    """Make a run directory from a model folder in Hugging Face format.

    The run has the model's config and tokenizer, and a checkpoint at step 0 to train further.

    Args:
        source: The model folder.
        workdir: The new run directory.
        fine_tuning: How the run is to be trained.

    Raises:
        UserError: If the folder cannot be read, data are missing, or the run directory is not empty.
    """
    # A refused start leaves a lock file, which does not count.
    if workdir.exists() and (not workdir.is_dir() or {entry.name for entry in workdir.iterdir()} - {"lock"}):
        raise UserError(f"--workdir={workdir} exists and is not empty; name a new directory")
    imported = open_model_folder(source, fine_tuning.dtype)
    preprocessing, chat_template = load_preprocessing(source, imported), read_published_chat_template(source)
    if isinstance(preprocessing, ImageSpec):
        imported = imported._replace(model={**imported.model, "add_pooling_layer": False})
    if isinstance(preprocessing, ImageSpec) and fine_tuning.dataset is None:
        raise UserError("a model of images needs images: give --dataset=FOLDER, with images in train/CLASS/")
    if fine_tuning.problem is not None or fine_tuning.classes:
        imported = _replace_head(imported, fine_tuning.problem)
    elif imported.model.get("head") in ("none", "next_sentence"):
        head = _PRETRAINING_HEADS[imported.model["family"]]
        imported = imported._replace(model={**imported.model, **head})
    task_name = task_of_model(imported.model)
    if task_name in _FILES and fine_tuning.dataset is None:
        raise UserError(f"a model for {task_name} needs its data: give --dataset={_FILES[task_name]}")
    experiment = resolve_config(fine_tuning_config(imported, preprocessing, fine_tuning, name=workdir.resolve().name))
    with RunDirectory.claim(workdir, experiment.to_config(), may_change=changeable_keys(experiment)) as directory:
        try:
            # Recorded first, so that a run whose checkpoint is lost is refused and not trained from scratch.
            directory.record(converted={"model_type": imported.config["model_type"], "notes": imported.notes})
            if not isinstance(preprocessing, ImageSpec):
                preprocessing.save(directory.path)
            if chat_template is not None:
                chat_template.save(directory.path)
            parameters, notes = _save_start(experiment, directory, source, imported)
        except BaseException:
            if last_saved_step(directory.checkpoints_dir) is None:
                # Otherwise the same command would be refused once the disk has space again.
                if directory.checkpoints_dir.exists():
                    storage_of(directory.checkpoints_dir).remove_tree(directory.checkpoints_dir)
                directory.abandon()
            raise
    if chat_template is not None and chat_template.unread_names:
        notes = (*notes, f"left out, chat templates beside the default: {', '.join(chat_template.unread_names)}")
    return ConversionResult(task_name, parameters, notes)


def task_of_model(model: Mapping[str, Any]) -> str:
    """Return the name of the task on which an imported model is trained further, from its `config.model` section."""
    return TASK_OF_HEAD.get(model.get("head", ""), TASK_OF_FAMILY[model["family"]])


def _replace_head(imported: PublishedModel, problem: str | None) -> PublishedModel:
    """Return a model with the head of a problem: its own, or one that is still to be initialized.

    Raises:
        UserError: If the model's family has no heads of fine-tuning.
    """
    model_type = imported.config["model_type"]
    if imported.model["family"] not in FINE_TUNED_FAMILIES and model_type not in _SEQUENCE_FORMATS:
        raise UserError(
            "--problem and --classes are for models that are fine-tuned on texts, decoders and those of model_type "
            f"{', '.join(_SEQUENCE_FORMATS)}, not for {model_type}"
        )
    if imported.model["family"] == "encoder_decoder" and problem == "token_classification":
        raise UserError(
            f"{model_type} with a decoder has no head of token classes: save its encoder alone, as T5EncoderModel does"
        )
    own = imported.model["head"]
    if not problem:
        head = own if own in TASK_OF_HEAD else "classes"
    elif problem == "choice" and imported.model["family"] in ("encoder", "xlnet"):
        head = "choice"
    else:  # the other problems are those of the task of classes
        head = {"token_classification": "token_classes", "question_answering": "span"}.get(problem, "classes")
    # Only classes of whole texts are read from an encoder's pooler; XLNet's is a part of that head.
    unread = imported.model["family"] == "encoder" and head not in ("classes", "choice")
    pooler = {"add_pooling_layer": False} if unread else {}
    return imported._replace(model={**imported.model, "head": head, **pooler})


def load_preprocessing(source: Path, imported: PublishedModel) -> Tokenizer | ImageSpec:
    """Load what a published model reads its inputs with.

    Returns:
        Its tokenizer; for images, their size and the names of the classes.
    """
    if not _reads_images(imported):
        return load_huggingface_tokenizer(source)
    _, height, width, channels = imported.interface.inputs["image"].shape
    count = imported.interface.vocabularies.get("classes", 0)
    return ImageSpec((height, width, channels), class_names_of_config(imported.config, count) if count else ())


def _reads_images(imported: PublishedModel) -> bool:
    return "image" in imported.interface.inputs


def _find_fresh_heads(
    imported: PublishedModel, components: TrainingComponents, heads: Mapping[str, PyTree]
) -> tuple[list[str], list[str]]:
    """Return those of the run's heads that begin anew, by shapes and the names of classes, and notes why."""
    shapes, class_names = imported.param_shapes, components.class_names
    axes = leaves_by_path(components.model.axes().params, is_axis_names)
    scoring = {path.partition("/")[0] for path, names in axes.items() if "classes" in names}
    fresh = [name for name, head in heads.items() if _shapes(shapes.get(name)) != _shapes(head)]
    notes = []
    if any(name in shapes and name in scoring for name in fresh):
        notes.append(f"the head begins anew: the data's {len(class_names)} classes are not those of the folder")
    source_names = output_names(imported.config, imported.interface.vocabularies.get("classes", 0))
    match = match_classes(source_names, class_names)
    reason = None
    if match is not None and not match.num_matched:
        reason = f"the {match.describe_names()}"
    elif _reads_images(imported) and not source_names:  # the data's are names of folders, in the order of the alphabet
        reason = f"config.json names no class, and the data's are {', '.join(class_names)}"
    loaded = [name for name in heads if name in scoring and name not in fresh]
    if loaded and reason is not None:
        fresh += loaded
        notes.append(f"the head begins anew: {reason}")
    return fresh, notes


def _save_start(
    experiment: ExperimentConfig, directory: RunDirectory, source: Path, imported: PublishedModel
) -> tuple[int, tuple[str, ...]]:
    """Save the imported parameters as the checkpoint of step 0; return their number, and notes for the user.

    The optimizers are not made: `transformer.training.restore` makes them if the run is trained.
    """
    components = build_components(experiment, directory.path, single_device_placement())
    key, abstract = jax.random.key(experiment.run.seed), components.abstract_state.variables
    names = IMAGE_HEADS if _reads_images(imported) else TEXT_HEADS
    heads = abstract._replace(params={name: abstract.params[name] for name in names if name in abstract.params})
    fresh, notes = _find_fresh_heads(imported, components, heads.params)

    def init_heads(key: Key[Array, ""]) -> Variables:
        # The others are read from the folder: to initialize them as well takes longer than to train a step.
        variables = components.model.init(derive_key(key, 0, "init"))
        return variables._replace(params={name: variables.params[name] for name in heads.params})

    shardings = jax.tree.map(lambda leaf: leaf.sharding, heads)
    rules = tuple(f"{name}/* = {FRESH}" for name in (*fresh, *(["state"] if abstract.state else [])))
    variables, initialization = load_variables_from_source(
        InitializeFromConfig(str(source), rules=rules),
        components.model,
        abstract,
        lambda: jit_for_one_call(init_heads, components.placement, shardings)(key),
        class_names=components.class_names,
    )
    plan = initialization.plan
    notes = [*initialization.source.notes, *notes]
    notes += [match.describe() for axis, match in plan.names.items() if plan.paths_matched_along(axis)]
    if fresh:
        notes.append(f"initialized randomly: {', '.join(fresh)}")
    count = count_parameters(variables.params)
    state = _starting_state(experiment, components, key, variables)
    metadata = collect_metadata(experiment, components, directory)
    with Checkpoints(directory.checkpoints_dir, experiment.run.keep_checkpoints) as checkpoints:
        checkpoints.save(0, state, metadata)
        del variables, initialization, state  # before the checkpoint is read back
    directory.record(parameters=count)
    return count, tuple(notes)


def _starting_state(
    experiment: ExperimentConfig, components: TrainingComponents, key: Key[Array, ""], variables: Variables
) -> TrainState:
    """Return the state before the first step, without the optimizers, which take twice the memory of the parameters."""

    def begin(key: Key[Array, ""]) -> PyTree:
        # What a task begins with depends on the shapes of the model alone, so that nothing is drawn here.
        variables = components.model.init(key)
        view = StateView(components.model, variables, {}, {}, jnp.int32(0), train=True)
        return components.task.init_task_state(view, derive_key(key, 0, "extra"))

    averages = {name: init_average(kind, variables.params) for name, kind in experiment.parameter_averages.items()}
    task_state = jit_for_one_call(begin, components.placement)(key)
    return TrainState(jnp.int32(0), key, variables, {}, averages, task_state, {})


def _shapes(params: PyTree) -> PyTree:
    return jax.tree.map(np.shape, params)


def fine_tuning_config(
    imported: PublishedModel,
    preprocessing: Tokenizer | ImageSpec,
    fine_tuning: FineTuningOptions,
    *,
    name: str,
) -> dict[str, Any]:
    """Return the config of a run that trains an imported model further.

    Args:
        imported: The imported model.
        preprocessing: Its tokenizer, or the size and classes of its images.
        fine_tuning: How it is trained.
        name: The name of the run.

    Raises:
        UserError: If the tokenizer has more tokens than the model.
    """
    if isinstance(preprocessing, ImageSpec):
        task = _image_task(imported, fine_tuning)
    else:
        task = _text_task(imported, preprocessing, fine_tuning)
    return {
        "name": name,
        "seed": fine_tuning.seed,
        "steps": fine_tuning.steps,
        "task": task,
        "model": imported.model,
        "precision": {"parameters": fine_tuning.dtype, "compute": fine_tuning.dtype},
        # A schedule without an end allows more steps later.
        "optimizer": {
            "algorithm": "adamw",
            "learning_rate": fine_tuning.learning_rate,
            "schedule": "constant",
            "warmup_steps": min(100, fine_tuning.steps),
            "beta2": 0.999,
            "epsilon": 1e-8,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
        },
    }


def _fine_tuning_options(imported: PublishedModel, fine_tuning: FineTuningOptions) -> dict[str, Any]:
    options = {"dataset": fine_tuning.dataset, "data_dir": fine_tuning.data_dir, "test_split": fine_tuning.test_split}
    return {"name": task_of_model(imported.model)} | {key: value for key, value in options.items() if value is not None}


def _image_task(imported: PublishedModel, fine_tuning: FineTuningOptions) -> dict[str, Any]:
    """Return the config of a task over images, which are resized and normalized as preprocessor_config.json says."""
    return {
        "dataset": "images",
        **_fine_tuning_options(imported, fine_tuning),
        **imported.preprocessing,
        "batch_size": fine_tuning.batch_size,
    }


def _text_task(imported: PublishedModel, tokenizer: Tokenizer, fine_tuning: FineTuningOptions) -> dict[str, Any]:
    model, task = imported.model, _fine_tuning_options(imported, fine_tuning)
    rows, name = model["vocab_size"], task["name"]
    if tokenizer.vocab_size > rows:
        raise UserError(f"the tokenizer has {tokenizer.vocab_size} tokens, more than the model's vocab_size={rows}")
    context = min(fine_tuning.context_length, model.get("max_length", fine_tuning.context_length))
    if name in TASK_OF_HEAD.values():
        return {
            **task,
            **_labeled_text_task(imported, fine_tuning, name, context),
            "sequence_format": _sequence_format(imported.config["model_type"], name).value,
            "tokenizer": "existing",
            "bucket_lengths": (context,),
            "batch_size": fine_tuning.batch_size,
        }
    generation = imported.generation
    decoding = {"decoding": generation.decoding} if generation.decoding else {}
    if name == "translation":
        lengths = tuple(length for length in (32, 64) if length < context)
        beams = {} if generation.num_beams is None else {"num_beams": generation.num_beams}
        batches = {"bucket_lengths": (*lengths, context), "tokens_per_batch": fine_tuning.batch_size * context}
        return {**task, **batches, **beams, **decoding, **_source_frame(tokenizer)}
    return {
        **task,
        **decoding,
        "tokenizer": "existing",
        "context_length": context,
        "batch_size": fine_tuning.batch_size,
    }


def _source_frame(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what a tokenizer's template has around a text, beside the end token, as fields of a translation task."""
    if not isinstance(tokenizer, FastTokenizer):
        return {}
    ids = tokenizer.backend.encode("", add_special_tokens=True).ids
    place = ids.index(tokenizer.eos_id) if tokenizer.eos_id in ids else len(ids)
    frame = {"source_start_ids": tuple(ids[:place]), "source_end_ids": tuple(ids[place + 1 :])}
    return {name: numbers for name, numbers in frame.items() if numbers}


def _sequence_format(model_type: str, task_name: str) -> SequenceFormat:
    """Return the special tokens around and between a model's texts; a question has to be parted from its context."""
    decoder_format = SequenceFormat.ROBERTA if task_name == "question_answering" else SequenceFormat.PLAIN
    return _SEQUENCE_FORMATS.get(model_type, decoder_format)


def _labeled_text_task(
    imported: PublishedModel, fine_tuning: FineTuningOptions, name: str, context: int
) -> dict[str, Any]:
    """Return what is particular to a task: its problem and its classes, with the names of config.json."""
    count, dataset = imported.interface.vocabularies.get("classes", 0), fine_tuning.dataset or ""
    classes = fine_tuning.classes or (class_names_of_config(imported.config, count) if count > 1 else ())
    match name:
        case "token_classification":
            return {"classes": classes} if is_conll_file(dataset) else {}
        case "question_answering":
            # As of SQuAD, where windows of 384 tokens begin every 128; short ones overlap by a token at least.
            question = min(64, context // 2)
            room = context - question - 4  # special tokens at most
            return {"max_question_length": question, "window_stride": max(min(context // 3, room - 1), 1)}
        case _ if dataset and has_own_labels(dataset, fine_tuning.data_dir):
            scored = count == 1 and not fine_tuning.classes
            usual = "choice" if imported.model["head"] == "choice" else "similarity" if scored else "classification"
            problem = fine_tuning.problem or usual
            return {"problem": problem, "classes": classes, "auxiliary": 0.0}
        case _:
            return {"auxiliary": 0.0}


def export_to_huggingface(
    workdir: Path, target: Path, step: int | None = None, trusted: Collection[str] = ()
) -> ConversionResult:
    """Write a run's parameters, config and tokenizer in Hugging Face format; LoRA updates are merged.

    The parameters are those by which the run is judged: raw, or those of an average.

    Args:
        workdir: The run directory.
        target: The new model folder.
        step: The step of the checkpoint; None is the newest valid one.
        trusted: Names that the run's config may load code from, as in `open_run`.

    Raises:
        UserError: If the directory is not a run, there is no checkpoint of the step, or Hugging Face has no class that
            can express the model.
    """
    run = open_run(workdir, trusted)
    directory, experiment = run
    reader = tasks.TASKS[tasks.task_name(experiment.task)].input_reader
    if reader is None:
        raise UserError(f"{workdir} is of the task {tasks.task_name(experiment.task)}: Hugging Face has no such model")
    saved_preprocessor = reader.load_preprocessor(directory.path)
    interface = dataclasses.replace(reader.make_task_interface(experiment.task, saved_preprocessor), output=None)
    shapes = registry.build(experiment.model, interface, experiment.precision).functional.shapes()
    # Arrays of these shapes that take no memory: NumPy's are read without a second copy.
    shapes = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes)
    step, params = run.read_checkpoint(step, lambda checkpoint: run.restore_eval_parameters(checkpoint, shapes))
    notes = [f"step {step}"]
    if experiment.eval_parameters != "raw":
        notes.append(f"the parameters are the average {experiment.eval_parameters!r}, by which the run is judged")
    model, params = merge_lora(experiment.model, params)
    if model is not experiment.model:
        notes.append(f"what LoRA learned, of rank {experiment.model.lora.rank}, is merged into the matrices beside it")
    # An imported run goes out as it came in, if another type could express it, too.
    preferred_type = (directory.facts().get("converted") or {}).get("model_type")
    if isinstance(saved_preprocessor, ImageSpec):
        height, width, channels = saved_preprocessor.shape
        if height != width:
            raise UserError(f"{workdir} has images of {width} x {height} pixels: Hugging Face's are square")
        with atomic_output_folder(target, "--save_pretrained"):
            keys = class_name_keys(saved_preprocessor.classes)
            family = write_model_folder(target, model, params, keys=keys, preferred_type=preferred_type)
            content = preprocessor.preprocessor_config(family.model_type, height, experiment.task, channels)
            write_json(target / preprocessor.FILE, content)
    else:
        keys = class_name_keys(interface.class_names) if len(interface.class_names) > 1 else {}
        if (
            registry.family_name(model) == "decoder"
            and model.head.value == "classes"
            and saved_preprocessor.pad_id is None
        ):
            notes.append("the tokenizer has no padding token, without which transformers classifies one text at a time")
        with atomic_output_folder(target, "--save_pretrained"):
            tokens = _token_keys(experiment, saved_preprocessor)
            family = write_model_folder(target, model, params, tokens, keys, preferred_type=preferred_type)
            _write_tokenizer(directory.path, target, saved_preprocessor, experiment.model.max_length, family.model_type)
            task = experiment.task
            if decoding := getattr(task, "decoding", None):
                content = generation_config.generation_config(decoding, getattr(task, "num_beams", None), tokens)
                if content:
                    write_json(target / generation_config.FILE, content)
    return ConversionResult(family.model_type, count_parameters(params), tuple(notes))


def merge_lora(model: Any, params: PyTree) -> tuple[Any, PyTree]:
    """Merge LoRA updates into the parameters.

    Args:
        model: The config of the model.
        params: Its parameters.

    Returns:
        The config without LoRA, and the merged parameters; both unchanged if there is no LoRA.
    """
    lora = getattr(model, "lora", LoraConfig())
    return (
        (dataclasses.replace(model, lora=LoraConfig()), merge_lora_params(params, lora))
        if lora.rank
        else (model, params)
    )


def _token_keys(experiment: ExperimentConfig, tokenizer: Tokenizer) -> dict[str, int | None]:
    keys = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
    if hasattr(experiment.model, "decoder_layers"):
        return {**keys, "decoder_start_token_id": tokenizer.bos_id}
    return {**keys, "bos_token_id": tokenizer.bos_id}


def _write_tokenizer(run: Path, target: Path, tokenizer: Tokenizer, max_length: int, model_type: str) -> None:
    for name in TOKENIZER_FILES:
        if name != ROLES_FILE and (run / name).is_file():
            storage_of(target).replace(target / name, (run / name).read_bytes())
    chat_template = load_chat_template(run)
    if chat_template is not None:
        storage_of(target).replace(target / PUBLISHED_FILE, chat_template.source.encode())
    if isinstance(tokenizer, FastTokenizer):
        framed = add_sequence_template(tokenizer, model_type)
        if framed is not None:
            storage_of(target).replace(target / TOKENIZER_FILE, framed.to_str(pretty=True).encode())
        content = dict(tokenizer_config(tokenizer, max_length, model_type))
        if chat_template is not None:
            # A template may write a token by its name, or where it has none, nothing.
            content = {key: value for key, value in content.items() if not key.endswith("_token")}
            content |= chat_template.special_tokens
        write_json(target / "tokenizer_config.json", content)


def add_sequence_template(tokenizer: FastTokenizer, model_type: str) -> tokenizers.Tokenizer | None:
    """Return the tokenizer with the special tokens that our tasks put around and between texts for such a model.

    Returns:
        The tokenizer; None if it puts special tokens around texts already, or there is nothing to put.
    """
    begin, end = tokenizer.bos_id, tokenizer.eos_id
    if tokenizer.backend.encode("", add_special_tokens=True).ids:
        return None
    types = 2
    if model_type in _ENCODER_DECODERS and end is not None:
        between_ids = (end,) if _SEQUENCE_FORMATS.get(model_type) is SequenceFormat.T5 else ()
        delimiters, types = DelimiterTokens((), between_ids, (end,)), 1
    elif model_type in _SEQUENCE_FORMATS and begin is not None and end is not None:
        sequence_format = _SEQUENCE_FORMATS[model_type]
        delimiters = DelimiterTokens.from_format(sequence_format, tokenizer.vocab_size, begin, end)
        types = sequence_format.num_token_types if sequence_format.has_token_types(2) else 1
    elif model_type in _SEQUENCE_FORMATS:
        delimiters = DelimiterTokens(*(() if number is None else (number,) for number in (begin, None, end)))
    else:
        return None
    names = {number: tokenizer.backend.id_to_token(number) for number in {*itertools.chain.from_iterable(delimiters)}}
    if not names or None in names.values():
        return None

    def piece(ids: Iterable[int], type_id: int) -> list[str]:
        return [f"{names[number]}:{type_id}" for number in ids]

    second = min(1, types - 1)
    # XLNet's last token has a type of its own.
    cut = len(delimiters.end_ids) - delimiters.begin_is_last * (types > 2)
    start, between = piece(delimiters.start_ids, 0), piece(delimiters.between_ids, 0)
    closing, last = delimiters.end_ids[:cut], piece(delimiters.end_ids[cut:], types - 1)
    framed = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    framed.post_processor = processors.TemplateProcessing(
        single=[*start, "$A:0", *piece(closing, 0), *last],
        pair=[*start, "$A:0", *between, f"$B:{second}", *piece(closing, second), *last],
        special_tokens=[(name, number) for number, name in names.items()],
    )
    return framed


def tokenizer_config(tokenizer: FastTokenizer, max_length: int, model_type: str) -> Mapping[str, Any]:
    """Return the content of tokenizer_config.json: the special tokens by role.

    Args:
        tokenizer: The tokenizer.
        max_length: The model's number of positions.
        model_type: The `model_type` of the model.
    """
    tokens = tokenizer.ids_by_role
    texts = {role: tokenizer.backend.id_to_token(number) for role, number in tokens.items() if number is not None}
    # config.json may name a token number that the tokenizer lacks.
    roles = {name: text for role, text in texts.items() if text is not None for name in _SPECIAL[role]}
    # The library's XLNet classifies the state at the last place of a batch, which must not be padding.
    padding = {"padding_side": "left"} if model_type == "xlnet" else {}
    typed = ["token_type_ids"] if model_type in _WITH_TOKEN_TYPES else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *typed, "attention_mask"],
        "model_max_length": max_length,
        **padding,
        **roles,
    }
