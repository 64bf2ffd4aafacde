"""The tasks by name, each with its config, its builder, and its rehearsal over made-up data."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import choice, from_config
from transformer.tasks import language_modelling, masked_language_modelling, translation
from transformer.tasks.contract import Task


class Kind(NamedTuple):
    """A task's config, its builder, and what builds it without its data."""

    config: type
    build: Callable[[Any, Path, int], Task]
    rehearse: Callable[[Any, int], Task]


TASKS: Mapping[str, Kind] = {
    "translation": Kind(translation.TranslationConfig, translation.build, translation.rehearse),
    "language_modelling": Kind(
        language_modelling.LanguageModellingConfig, language_modelling.build, language_modelling.rehearse
    ),
    "masked_language_modelling": Kind(
        masked_language_modelling.MaskedLanguageModellingConfig,
        masked_language_modelling.build,
        masked_language_modelling.rehearse,
    ),
}


def task_schema(values: Mapping[str, Any]) -> type:
    """The config dataclass of the task that `values["name"]` names.

    Errors: UserError for an unknown task.
    """
    return choice(values.get("name", ""), TASKS, "config.task.name").config


def task_config(values: Mapping[str, Any]) -> Any:
    """The checked config dataclass of the task that `values["name"]` names.

    Errors: UserError for an unknown task or key.
    """
    return from_config(task_schema(values), {k: v for k, v in values.items() if k != "name"}, "config.task")


def build(config: Any, directory: Path, rows_multiple: int = 1) -> Task:
    """The task of a config, its data and tokenizer in a run directory."""
    return TASKS[name_of(config)].build(config, directory, rows_multiple)


def rehearse(config: Any, rows_multiple: int = 1) -> Task:
    """The task of a config over made-up data of the very shapes that the config gives: no file is read.

    Its first batch is as large as any that the real one has. The vocabulary is as large as the config says, which a
    trained one may fall short of; the prompts of a language model are left out.
    """
    return TASKS[name_of(config)].rehearse(config, rows_multiple)


def name_of(config: Any) -> str:
    """The name under which a config's task is known."""
    for name, kind in TASKS.items():
        if isinstance(config, kind.config):
            return name
    raise TypeError(f"{type(config).__name__} is no task's config; known: {', '.join(TASKS)}")
