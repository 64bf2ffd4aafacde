"""Conversion between Hugging Face folders (config.json, model.safetensors) and our models."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer.config import UserError, choice
from transformer.huggingface import bert, gpt, llama, marian, preprocessor, safetensors_files, t5, vit, xlnet
from transformer.huggingface.conversion_spec import Config, Family, Inexpressible
from transformer.huggingface.parameter_conversion import (
    FileNames,
    Slot,
    from_tensors,
    plan,
    shapes_of,
    sort_names,
    to_tensors,
)
from transformer.huggingface.safetensors_files import FLOATS, Tensor
from transformer.json_files import read_object
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import PyTree, leaves_by_path
from transformer.models.task_interface import TaskInterface
from transformer.storage.paths import storage_of

_LANGUAGE = (gpt.GPT2, gpt.GPT1, gpt.GPTJ, gpt.BLOOM, llama.LLAMA, llama.MISTRAL)
_OTHERS = (bert.BERT, bert.ROBERTA, marian.MARIAN, t5.T5, vit.VIT, vit.DEIT, xlnet.XLNET)
FAMILIES = {family.model_type: family for family in (*_LANGUAGE, *_OTHERS)}
"""By their `model_type`; of two that can express a model of ours, the first is used."""

CONFIG = "config.json"


class Foreign(NamedTuple):
    """A model that was read.

    Its config.json, our model section and what a task asks of it, the parameters, notes for the user, and of a model of
    images the values of our task that its preprocessor_config.json stands for.
    """

    config: Config
    model: Config
    interface: TaskInterface
    params: PyTree
    notes: list[str]
    images: Config


class Published(NamedTuple):
    """A model whose folder was opened and checked: as `Foreign`, with the shapes of its parameters and their reader."""

    config: Config
    model: Config
    interface: TaskInterface
    shapes: PyTree
    notes: list[str]
    images: Config
    read: Callable[[], PyTree]


def open_folder(folder: Path, dtype: str = "float32") -> Published:
    """The model of a Hugging Face folder, whose parameters, in the type `dtype`, are read when they are asked for.

    Raises:
        UserError: For a family or a config that our models cannot express, naming the key and its value; for a tensor
            that is missing, unknown or of another shape, naming it; for a pickle or a damaged file.
    """
    headers = safetensors_files.open_folder(folder)
    config = read_config(folder)
    family = choice(str(config.get("model_type")), FAMILIES, f"{folder / CONFIG}: model_type")
    try:
        section, interface = _section(family, config, frozenset(headers))
        shapes = registry.build(registry.model_config(section), interface, Precision()).functional.shapes()
        slots = plan(family, shapes_of(shapes))
        names = sort_names(family, headers, slots)
        _check(slots, names, headers)
        _check_aliases(family, names, headers)
        images = _images(folder, family, interface)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    notes = _notes(names, headers, dtype)
    if unread := family.unread(config):
        notes.append(f"keys of config.json that are not read: {', '.join(unread)}")
    if images and not (folder / preprocessor.FILE).is_file():
        notes.append(f"no {preprocessor.FILE}: images are resized and normalized as its defaults would have it")
    read = functools.partial(_read, slots, names, headers, dtype)
    return Published(config, section, interface, shapes, notes, images, read)


def read_folder(folder: Path, dtype: str = "float32") -> Foreign:
    """The model of a Hugging Face folder, its parameters in the type `dtype`, as NumPy arrays.

    Raises:
        UserError: As `open_folder`.
    """
    config, model, interface, _, notes, images, read = open_folder(folder, dtype)
    return Foreign(config, model, interface, read(), notes, images)


def write_folder(
    folder: Path,
    model: Any,
    params: PyTree,
    tokens: Mapping[str, int | None] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> Family:
    """Write config.json and model.safetensors of a model of ours into a new folder, and return their family.

    `tokens` are the numbers of tokens by key of config.json, such as pad_token_id, and `keys` further ones.

    Raises:
        UserError: Naming what Hugging Face's nearest arrangement cannot express, or a folder that is not empty.
    """
    family, config, slots = express(model, params)
    config |= {"dtype": str(np.asarray(next(iter(leaves_by_path(params).values()))).dtype), **(keys or {})}
    for name, number in (tokens or {}).items():
        if config.get(name, number) != number:
            raise UserError(f"{family.model_type} needs {name}={config[name]}, but the run's tokenizer has {number}")
        config[name] = number
    claim_folder(folder, "--save_pretrained")
    safetensors_files.write(folder / safetensors_files.WEIGHTS, to_tensors(slots, params))
    # Last: a folder with a config.json is whole.
    storage_of(folder).replace(folder / CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())
    return family


def express(model: Any, params: PyTree) -> tuple[Family, Config, list[Slot]]:
    """The arrangement of Hugging Face's that a model of ours is, its config.json, and its tensors.

    Raises:
        UserError: Naming what the nearest arrangement cannot express, or the families of which there is none.
    """
    shapes, name = shapes_of(params), registry.name_of(model)
    refusals: list[Inexpressible] = []
    for family in FAMILIES.values():
        if family.model != name:
            continue
        try:
            return family, family.write_config(model, shapes), plan(family, shapes)
        except Inexpressible as error:
            refusals.append(error)
    if not refusals:
        known = ", ".join(sorted({family.model for family in FAMILIES.values()}))
        raise UserError(
            f"Hugging Face has no model of config.model.family={name!r}: --save_pretrained writes {known} alone"
        )
    nearest = min(refusals, key=lambda error: len(error.faults))
    raise UserError(f"Hugging Face has no such model; the nearest is {nearest}") from nearest


def read_config(folder: Path) -> Config:
    """The config.json of a folder.

    Raises:
        UserError: If it is missing or no JSON object.
    """
    if not (folder / CONFIG).is_file():
        is_what = "has no config.json" if folder.is_dir() else "is no folder with a config.json"
        raise UserError(
            f"{folder} {is_what}: name one that has, a run or a published model with model.safetensors and its "
            "tokenizer; nothing is downloaded"
        )
    return read_object(folder / CONFIG)


def claim_folder(folder: Path, flag: str) -> None:
    """Make a folder that does not exist, or take one that is empty.

    Raises:
        UserError: For any other.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{flag}={folder} exists and is not empty; name a new directory")
    folder.mkdir(parents=True, exist_ok=True)


def _images(folder: Path, family: Family, interface: TaskInterface) -> Config:
    """The values of the task for a model of images."""
    if "image" not in interface.inputs:
        return {}
    file = folder / preprocessor.FILE
    side = interface.inputs["image"].shape[1]
    return preprocessor.read_preprocessor(read_object(file) if file.is_file() else {}, family.model_type, side)


@contextlib.contextmanager
def claimed_folder(folder: Path, flag: str) -> Iterator[None]:
    """A new or empty folder for the context, emptied again where an error ends it: half a model is none.

    Raises:
        UserError: As `claim_folder`.
    """
    made = not folder.exists()
    claim_folder(folder, flag)
    try:
        yield
    except BaseException:
        for entry in folder.iterdir():
            entry.unlink()
        if made:
            folder.rmdir()
        raise


def _section(family: Family, config: Config, names: frozenset[str]) -> tuple[Config, TaskInterface]:
    try:
        return family.read_config(config, names)
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"{CONFIG} has a value of the wrong kind for a {family.model_type} model: {error}") from error


def _check(slots: list[Slot], names: FileNames, headers: Mapping[str, Tensor]) -> None:
    for slot in slots:
        name = names.tensors[slot.tensor]
        header = headers[name]
        if header.shape != slot.shape:
            raise UserError(f"the tensor {name!r} has the shape {header.shape}; its config asks for {slot.shape}")
        if header.dtype not in FLOATS:
            raise UserError(f"the tensor {name!r} holds {header.dtype}; only {', '.join(FLOATS)} can be read")


def _read(slots: list[Slot], names: FileNames, headers: Mapping[str, Tensor], dtype: str) -> PyTree:
    ours = {names.tensors[slot.tensor]: slot.tensor for slot in slots}
    tensors = ((ours[name], tensor) for name, tensor in safetensors_files.read(headers, list(ours)))
    return from_tensors(slots, tensors, jnp.dtype(dtype))


def _check_aliases(family: Family, names: FileNames, headers: Mapping[str, Tensor]) -> None:
    """Refuse a second copy of a tensor with other values: the file contradicts the config."""
    for alias, name in names.aliases.items():
        original = names.tensors.get(family.aliases[alias], name)
        if original == name:
            continue
        tensors = dict(safetensors_files.read(headers, [name, original]))
        if not np.array_equal(tensors[name], tensors[original], equal_nan=True):
            raise UserError(f"the tensor {name!r} is not {original!r} once more, as its config.json has it")


def _notes(names: FileNames, headers: Mapping[str, Tensor], dtype: str) -> list[str]:
    held = sorted({FLOATS[headers[name].dtype] for name in names.tensors.values()} - {dtype})
    notes = [f"the file holds {', '.join(held)}; the run's parameters are {dtype}"] if held else []
    if names.left_out:
        notes.append(f"left out, as no model of ours has them: {', '.join(sorted(names.left_out))}")
    return notes
