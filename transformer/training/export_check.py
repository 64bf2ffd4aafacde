"""Whether a model of ours can be exported to Hugging Face, from its config and shapes alone."""

import dataclasses

from transformer.config import UserError
from transformer.layers.lora import LoraConfig
from transformer.models import registry
from transformer.tasks import registry as tasks
from transformer.tasks.task import Task
from transformer.training.config import ExperimentConfig


def describe_export(experiment: ExperimentConfig, task: Task) -> str:
    """Say in one line as which type of Hugging Face a run's model can be exported, or the first reason why it cannot.

    Args:
        experiment: The experiment.
        task: Its task.
    """
    try:
        return f"exports as {find_export_type(experiment, task)} of Hugging Face"
    except UserError as error:
        return f"has no export to Hugging Face, which training does not need: {_first_reason(error)}"


def find_export_type(experiment: ExperimentConfig, task: Task) -> str:
    """Return as which type of Hugging Face a run's model can be exported.

    Raises:
        UserError: If it cannot be exported.
    """
    # Imported here: of all that a training needs, only its first start reads the types of Hugging Face.
    from transformer.huggingface.convert import find_conversion

    name = tasks.task_name(experiment.task)
    if tasks.TASKS[name].input_reader is None:
        raise UserError(f"Hugging Face has no model of config.task.name={name!r}")
    model = experiment.model
    if getattr(model, "lora", LoraConfig()).rank:  # an export merges it into the matrices beside it
        model = dataclasses.replace(model, lora=LoraConfig())
    interface = dataclasses.replace(task.interface, output=None)
    shapes = registry.build(model, interface, experiment.precision).functional.shapes()
    conversion_spec, _, _ = find_conversion(model, shapes)
    return conversion_spec.model_type


def _first_reason(error: UserError) -> str:
    """Return the first of the reasons against the nearest type; an export names all."""
    from transformer.huggingface.conversion_spec import InexpressibleModelError

    nearest = error.__cause__
    if not isinstance(nearest, InexpressibleModelError):
        return str(error)
    num_others = len(nearest.reasons) - 1
    suffix = f" (and {num_others} more)" if num_others else ""
    return f"the nearest type is {nearest.model_type}, but {nearest.reasons[0]}{suffix}"
