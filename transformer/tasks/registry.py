"""The tasks by name, each with its config and its builder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformer.config import choice, from_config
from transformer.tasks import language_modelling, masked_language_modelling, translation
from transformer.tasks.contract import Task

TASKS: dict[str, tuple[Any, Callable[..., Task]]] = {
    "translation": (translation.TranslationConfig, translation.build),
    "language_modelling": (language_modelling.LanguageModellingConfig, language_modelling.build),
    "masked_language_modelling": (
        masked_language_modelling.MaskedLanguageModellingConfig,
        masked_language_modelling.build,
    ),
}


def task_config(values: Mapping[str, Any]) -> Any:
    """The checked config dataclass of the task that `values["name"]` names.

    Errors: UserError for an unknown task or key.
    """
    config_class, _ = choice(values.get("name", ""), TASKS, "config.task.name")
    return from_config(config_class, {k: v for k, v in values.items() if k != "name"}, "config.task")


def build(config: Any, directory: Path, rows_multiple: int = 1) -> Task:
    """The task of a config, its data and tokenizer in a run directory."""
    for config_class, builder in TASKS.values():
        if isinstance(config, config_class):
            return builder(config, directory, rows_multiple)
    raise TypeError(f"{type(config).__name__} is no task's config; known: {', '.join(TASKS)}")


def name_of(config: Any) -> str:
    """The name under which a config's task is known."""
    return next(name for name, (config_class, _) in TASKS.items() if isinstance(config, config_class))
