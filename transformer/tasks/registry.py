"""The registry of tasks: each is a module that exports a TASK."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.config import UserError, from_config
from transformer.storage.paths import check_data_dir
from transformer.system.module_registry import ModuleRegistry
from transformer.tasks.task import Task, TaskSpec

# `config.task.name` is the name of a module: "language_modeling" is transformer/tasks/language_modeling.py, a dotted
# path any other, such as experiments.graphs.task. Each module exports its `TASK`.
TASKS = ModuleRegistry("transformer.tasks", "TASK", TaskSpec, "config.task.name")


def task_schema(values: Mapping[str, Any]) -> type:
    """Return the config dataclass of the task that `values["name"]` names.

    Raises:
        UserError: If the task is unknown.
    """
    return TASKS[values.get("name", "")].config_class


def task_config(values: Mapping[str, Any]) -> Any:
    """Build the checked config of a task, with what it leaves to the data (`TaskSpec.complete_config`).

    Args:
        values: The `task` section of a config; `name` is the name of the task.

    Returns:
        An instance of the task's config dataclass.

    Raises:
        UserError: If the task or a key is unknown, or a value is invalid.
    """
    task = TASKS[values.get("name", "")]
    config: Any = from_config(task.config_class, {k: v for k, v in values.items() if k != "name"}, "config.task")
    return config if task.complete_config is None else task.complete_config(config)


def build_task(config: Any, directory: Path, rows_multiple: int = 1) -> Task:
    """Build a task with its data.

    Args:
        config: The task's config.
        directory: The run directory, where the task finds or keeps its tokenizer.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.

    Raises:
        UserError: If `config.data_dir` is not a folder.
    """
    data_dir = getattr(config, "data_dir", None)
    check_data_dir(data_dir or "")
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise UserError(f"config.task.data_dir={data_dir} (--data_dir) is no folder: name the one that holds the data")
    task = TASKS[task_name(config)]
    return (
        task.build_synthetic(config, rows_multiple)
        if task.build is None
        else task.build(config, directory, rows_multiple)
    )


def build_synthetic_task(config: Any, rows_multiple: int = 1) -> Task:
    """Build a task over synthetic data of the shapes that the config implies, without reading a file.

    Its first batch has the largest shape of the real task's batches. Its vocabulary has the size that the config gives,
    although a trained one may turn out smaller; the prompts of a language model are left out.

    Args:
        config: The task's config.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
    """
    return TASKS[task_name(config)].build_synthetic(config, rows_multiple)


def task_name(config: Any) -> str:
    """Return the registered name of a config's task."""
    return TASKS.name_of(config)
