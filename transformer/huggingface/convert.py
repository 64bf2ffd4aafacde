"""Import and export of models as Hugging Face folders (config.json, model.safetensors)."""

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer.config import UserError, shorten_value
from transformer.huggingface import (
    albert,
    bart,
    bert,
    clip,
    clip_text,
    cohere,
    deberta,
    dinov2,
    distilbert,
    electra,
    falcon,
    gemma,
    generation_config,
    gpt,
    gpt_neox,
    llama,
    marian,
    mixtures,
    modernbert,
    mpt,
    opt,
    preprocessor,
    safetensors_files,
    starcoder,
    t5,
    vit,
    xglm,
    xlnet,
)
from transformer.huggingface.conversion_spec import Config, ConversionSpec, InexpressibleModelError
from transformer.huggingface.decoder_heads import with_heads
from transformer.huggingface.generation_config import Generation
from transformer.huggingface.layer_keys import unread_rotary_keys
from transformer.huggingface.parameter_conversion import (
    MatchedTensorNames,
    PlannedTensor,
    match_tensors,
    parameter_shapes,
    params_to_tensors,
    plan_file_tensors,
    tensors_to_params,
)
from transformer.huggingface.safetensors_files import FLOAT_TYPES, TensorHeader, TensorSpec
from transformer.huggingface.tensor_layouts import Shape
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import PyTree, leaves_by_path
from transformer.models.task_interface import TaskInterface
from transformer.storage.json_reading import read_json_object
from transformer.storage.paths import storage_of

_LANGUAGE = (
    gpt.GPT2,
    gpt.GPT1,
    gpt.GPTJ,
    gpt.BLOOM,
    llama.LLAMA,
    llama.MISTRAL,
    llama.QWEN2,
    llama.QWEN3,
    llama.MINISTRAL,
    llama.SMOLLM3,
    llama.GRANITE,
    llama.OLMO2,
    llama.OLMO3,
    gemma.GEMMA,
    gemma.GEMMA2,
    gemma.GEMMA3,
    gpt_neox.GPT_NEOX,
    gpt_neox.STABLELM,
    gpt_neox.PHI,
    gpt_neox.PHI3,
    cohere.COHERE,
    cohere.COHERE2,
    starcoder.GPT_BIGCODE,
    starcoder.STARCODER2,
    falcon.FALCON,
    mpt.MPT,
    opt.OPT,
    mixtures.MIXTRAL,
    mixtures.QWEN2_MOE,
    mixtures.QWEN3_MOE,
    mixtures.OLMOE,
    mixtures.GPT_OSS,
    xglm.XGLM,
)
_OTHERS = (
    bert.BERT,
    bert.ROBERTA,
    bert.XLM_ROBERTA,
    bert.CAMEMBERT,
    distilbert.DISTILBERT,
    electra.ELECTRA,
    albert.ALBERT,
    modernbert.MODERNBERT,
    deberta.DEBERTA_V2,
    marian.MARIAN,
    bart.BART,
    bart.MBART,
    bart.BLENDERBOT,
    bart.PEGASUS,
    bart.M2M_100,
    t5.T5,
    t5.MT5,
    vit.VIT,
    vit.DEIT,
    dinov2.DINOV2,
    clip.SIGLIP_VISION,
    clip.SIGLIP,
    clip.CLIP_VISION,
    clip.CLIP,
    clip_text.CLIP_TEXT,
    xlnet.XLNET,
)
CONVERSIONS = {family.model_type: family for family in (*map(with_heads, _LANGUAGE), *_OTHERS)}
"""The conversion specs by `model_type`; of two that can express a model of ours, the first is used."""

OTHER_CLASSES = t5.OTHER_CLASSES
"""The conversion specs of classes of some of these types whose tensors or models are others."""

CONFIG = "config.json"
_COMPUTED_TOLERANCE = 1e-2  # of values up to 1 in bfloat16


class PublishedModel(NamedTuple):
    """A checked model of a Hugging Face folder, whose parameters are not yet read.

    Attributes:
        config: The content of config.json.
        model: The `config.model` section of ours.
        interface: The interface that a task must have for the model.
        param_shapes: The shapes of the parameters.
        notes: Notes for the user: what was converted, dropped or not read.
        preprocessing: For an image model, the values of our task config from its preprocessor_config.json.
        generation: How a model that generates does so, from its generation_config.json or config.json.
        read_params: Reads the parameters, as NumPy arrays.
    """

    config: Config
    model: Config
    interface: TaskInterface
    param_shapes: PyTree
    notes: list[str]
    preprocessing: Config
    generation: Generation
    read_params: Callable[[], PyTree]


def open_model_folder(folder: Path, dtype: str = "float32") -> PublishedModel:
    """Open and check the model of a Hugging Face folder without reading its parameters.

    Args:
        folder: A folder with config.json and model.safetensors or its shards.
        dtype: The type of the parameters that are read later.

    Returns:
        The model, whose `read_params` reads the parameters.

    Raises:
        UserError: If our models cannot express the config (gives the key and its value); if a tensor is missing,
            unknown or of another shape (gives the tensor); or if the file is a pickle or damaged.
    """
    headers = safetensors_files.read_folder_headers(folder)
    config = read_config(folder)
    try:
        family = _find_conversion_spec(config)
        section, interface = family.convert_config(config, frozenset(headers))
        shapes = registry.build(registry.model_config(section), interface, Precision()).functional.shapes()
        plan = plan_file_tensors(family, parameter_shapes(shapes))
        names = match_tensors(family, headers, plan)
        _check_aliases(family, names, headers)
        _check_computed_tensors(family, config, headers)
        preprocessing = _convert_preprocessing(folder, family, interface)
        generation = _convert_generation(folder, family, config, section)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    notes = _make_notes(names, headers, dtype)
    notes += family.config_notes(config) + generation.notes
    fields = {key.our_key for key in family.config_keys}
    if "rope_scaling" in family.simplified_keys and (unread := unread_rotary_keys(config, fields)):
        notes.append(f"keys of rotary positions that are not read: {', '.join(unread)}")
    if preprocessing and not (folder / preprocessor.FILE).is_file():
        notes.append(f"no {preprocessor.FILE}: images are resized and normalized as its defaults would have it")
    read = functools.partial(_read_params, plan, names, headers, dtype)
    return PublishedModel(config, section, interface, shapes, notes, preprocessing, generation, read)


def write_model_folder(
    folder: Path,
    model: Any,
    params: PyTree,
    tokens: Mapping[str, int | None] | None = None,
    keys: Mapping[str, Any] | None = None,
    model_type: str | None = None,
    preferred_type: str | None = None,
) -> ConversionSpec:
    """Write config.json and model.safetensors of a model of ours into a new folder.

    Args:
        folder: A folder that is absent or empty.
        model: The config of the model.
        params: Its parameters.
        tokens: Special tokens by key of config.json, such as `pad_token_id`.
        keys: Further keys of config.json.
        model_type: The `model_type` to write; None for the first that can express the model.
        preferred_type: The `model_type` to write if it can express the model.

    Returns:
        The conversion spec that was used.

    Raises:
        UserError: If no Hugging Face architecture can express the model (says what the nearest lacks), if it fixes a
            special token that differs from that in `tokens`, or if the folder is not empty.
    """
    family, config, plan = find_conversion(model, params, model_type, preferred_type)
    config |= {"dtype": str(np.asarray(next(iter(leaves_by_path(params).values()))).dtype), **(keys or {})}
    for name, number in (tokens or {}).items():
        if config.get(name, number) != number:
            raise UserError(f"{family.model_type} needs {name}={config[name]}, but the run's tokenizer has {number}")
        config[name] = number
    make_empty_folder(folder, "--save_pretrained")
    leaves = leaves_by_path(params)
    kinds = {planned.tensor_name: np.dtype(leaves[planned.leaf_paths[0]].dtype) for planned in plan}
    constants = {name: value.astype(config["dtype"]) for name, value in family.constant_tensors(config).items()}
    shapes: dict[str, Shape] = {planned.tensor_name: planned.shape for planned in plan}
    shapes |= {name: value.shape for name, value in constants.items()}
    safetensors_files.write_tensors(
        folder,
        {
            name: TensorSpec.from_type(kinds.get(name, np.dtype(config["dtype"])), shape)
            for name, shape in shapes.items()
        },
        itertools.chain(params_to_tensors(plan, params), constants.items()),
    )
    # Last: a folder with a config.json is whole.
    storage_of(folder).replace(folder / CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())
    return family


def find_conversion(
    model: Any, params: PyTree, model_type: str | None = None, preferred_type: str | None = None
) -> tuple[ConversionSpec, Config, list[PlannedTensor]]:
    """Find the Hugging Face architecture that expresses a model of ours.

    Args:
        model: The config of the model.
        params: Its parameters, or their shapes.
        model_type: The only `model_type` to be considered; None for all.
        preferred_type: The `model_type` to be considered first.

    Returns:
        The conversion spec, the content of config.json, and the plan of the tensors.

    Raises:
        UserError: If there is none; says what the nearest cannot express, or which families can be exported.
    """
    shapes, name = parameter_shapes(params), registry.family_name(model)
    refusals: list[InexpressibleModelError] = []
    specs = (*CONVERSIONS.values(), *OTHER_CLASSES)
    for family in sorted(specs, key=lambda family: family.model_type != preferred_type):
        if family.model_family != name or model_type not in (None, family.model_type):
            continue
        try:
            return family, family.write_config(model, shapes), plan_file_tensors(family, shapes)
        except InexpressibleModelError as error:
            refusals.append(error)
    if not refusals:
        exportable = ", ".join(sorted({family.model_family for family in CONVERSIONS.values()}))
        raise UserError(
            f"Hugging Face has no model of config.model.family={name!r}: --save_pretrained writes {exportable} alone"
        )
    nearest = min(refusals, key=lambda error: len(error.reasons))
    raise UserError(f"Hugging Face has no such model; the nearest is {nearest}") from nearest


def read_config(folder: Path) -> Config:
    """Read the config.json of a folder.

    Raises:
        UserError: If it is missing or is not a JSON object.
    """
    if not (folder / CONFIG).is_file():
        is_what = "has no config.json" if folder.is_dir() else "is no folder with a config.json"
        raise UserError(
            f"{folder} {is_what}: name one that has, a run or a published model with model.safetensors and its "
            "tokenizer; nothing is downloaded"
        )
    return read_json_object(folder / CONFIG)


def make_empty_folder(folder: Path, flag: str) -> None:
    """Create a folder, or accept an empty one.

    Args:
        folder: The folder.
        flag: The name of the command-line flag, for the error.

    Raises:
        UserError: If it exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{flag}={folder} exists and is not empty; name a new directory")
    folder.mkdir(parents=True, exist_ok=True)


def _convert_preprocessing(folder: Path, family: ConversionSpec, interface: TaskInterface) -> Config:
    """Return the values of our task config from an image model's preprocessor_config.json; empty for other models."""
    if "image" not in interface.inputs:
        return {}
    file = folder / preprocessor.FILE
    side = interface.inputs["image"].shape[1]
    return preprocessor.convert_preprocessor_config(
        read_json_object(file) if file.is_file() else {}, family.model_type, side
    )


def _convert_generation(folder: Path, family: ConversionSpec, config: Config, section: Config) -> Generation:
    """Return how a model generates; nothing for one that does not."""
    if family.model_family not in ("decoder", "encoder_decoder") or section["head"] != "next_tokens":
        return Generation({}, None, [])
    file = folder / generation_config.FILE
    content = read_json_object(file) if file.is_file() else None
    searches = family.model_family == "encoder_decoder"
    return generation_config.convert_generation_config(config, content, section["vocab_size"], searches=searches)


@contextlib.contextmanager
def atomic_output_folder(folder: Path, flag: str) -> Iterator[None]:
    """Create a folder for the context; an error empties it again, so that no half-written model is left.

    Args:
        folder: The folder.
        flag: The name of the command-line flag, for the error.

    Raises:
        UserError: If the folder exists and is not empty.
    """
    is_created = not folder.exists()
    make_empty_folder(folder, flag)
    try:
        yield
    except BaseException:
        for entry in folder.iterdir():
            entry.unlink()
        if is_created:
            folder.rmdir()
        raise


def _find_conversion_spec(config: Config) -> ConversionSpec:
    """Return the conversion spec of a config.json.

    Raises:
        UserError: If models of its `model_type` cannot be read; gives those that can, by what they are.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in CONVERSIONS:
        architecture, *_ = config.get("architectures") or (None,)
        others = (spec for spec in OTHER_CLASSES if (spec.model_type, spec.architecture) == (model_type, architecture))
        return next(others, CONVERSIONS[model_type])
    similar = {re.sub(r"\W|_", "", name): name for name in CONVERSIONS}.get(
        re.sub(r"\W|_", "", str(model_type).lower())
    )
    families: dict[str, list[str]] = {}
    for family in CONVERSIONS.values():
        families.setdefault(family.model_family, []).append(family.model_type)
    readable = "; ".join(f"{name}: {', '.join(types)}" for name, types in families.items())
    raise UserError(
        f"{CONFIG} has model_type={shorten_value(model_type)}, which cannot be read"
        + (f": did you mean {similar!r}?" if similar else f"; by our families, those that can are {readable}")
    )


def _read_params(
    plan: list[PlannedTensor], names: MatchedTensorNames, headers: Mapping[str, TensorHeader], dtype: str
) -> PyTree:
    ours = {names.tensors[planned.tensor_name]: planned.tensor_name for planned in plan}
    kind = jnp.dtype(dtype)
    tensors = safetensors_files.read_tensors(headers, list(ours), kind)
    return tensors_to_params(plan, ((ours[name], tensor) for name, tensor in tensors), kind)


def _check_aliases(family: ConversionSpec, names: MatchedTensorNames, headers: Mapping[str, TensorHeader]) -> None:
    """Raise if a second copy of a tensor has other values, since the file then contradicts the config."""
    for alias, name in names.aliases.items():
        original = names.tensors.get(family.tensor_aliases[alias], name)
        if original == name:
            continue
        tensors = dict(safetensors_files.read_tensors(headers, [name, original]))
        if not np.array_equal(tensors[name], tensors[original]):
            raise UserError(f"the tensor {name!r} is not {original!r} once more, as its config.json has it")


def _check_computed_tensors(family: ConversionSpec, config: Config, headers: Mapping[str, TensorHeader]) -> None:
    """Raise if a tensor has other values than those that ours compute: the library would read the tensor."""
    computed = family.computed_tensors(family.complete_config(config))
    file_names = {
        name: next(
            (spelled for spelled in (name, name.removeprefix(family.optional_prefix)) if spelled in headers), None
        )
        for name in computed
    }
    tensors = dict(safetensors_files.read_tensors(headers, [name for name in file_names.values() if name is not None]))
    for name, file_name in file_names.items():
        if file_name is None:
            continue
        tensor, expected = tensors[file_name], computed[name]
        if tensor.shape != expected.shape or not np.allclose(tensor, expected, rtol=0, atol=_COMPUTED_TOLERANCE):
            raise UserError(
                f"the tensor {file_name!r} has other values than the sinusoids of its class, the only ones that can be "
                "read"
            )


def _make_notes(names: MatchedTensorNames, headers: Mapping[str, TensorHeader], dtype: str) -> list[str]:
    file_types = sorted({FLOAT_TYPES[headers[name].dtype] for name in names.tensors.values()} - {dtype})
    notes = [f"the file holds {', '.join(file_types)}; the run's parameters are {dtype}"] if file_types else []
    if names.dropped:
        notes.append(f"left out, as its class does not read them: {', '.join(sorted(names.dropped))}")
    return notes
