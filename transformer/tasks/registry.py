"""The tasks by name: each is a module that exports a TASK."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.config import UserError, from_config
from transformer.module_registry import Exports
from transformer.tasks.task import Task, TaskSpec

TASKS = Exports("transformer.tasks", "TASK", TaskSpec, "config.task.name")


def task_schema(values: Mapping[str, Any]) -> type:
    """The config dataclass of the task that `values["name"]` names.

    Raises:
        UserError: For an unknown task.
    """
    return TASKS[values.get("name", "")].config


def task_config(values: Mapping[str, Any]) -> Any:
    """The checked config dataclass of the task that `values["name"]` names.

    Raises:
        UserError: For an unknown task or key.
    """
    cls = task_schema(values)
    return from_config(cls, {k: v for k, v in values.items() if k != "name"}, "config.task")


def build(config: Any, directory: Path, rows_multiple: int = 1) -> Task:
    """The task of a config, its data and tokenizer in a run directory.

    Raises:
        UserError: For a folder of data that does not exist.
    """
    data_dir = getattr(config, "data_dir", None)
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise UserError(f"config.task.data_dir={data_dir} (--data_dir) is no folder: name the one that holds the data")
    task = TASKS[name_of(config)]
    return task.synthetic(config, rows_multiple) if task.build is None else task.build(config, directory, rows_multiple)


def synthetic(config: Any, rows_multiple: int = 1) -> Task:
    """The task of a config over made-up data of the shapes that the config gives; no file is read.

    Its first batch has the largest shape of the real task's. The vocabulary has the size that the config gives, which
    a trained one may fall short of; the prompts of a language model are left out.
    """
    return TASKS[name_of(config)].synthetic(config, rows_multiple)


def name_of(config: Any) -> str:
    """The name under which a config's task is known."""
    return TASKS.name_of(config)
