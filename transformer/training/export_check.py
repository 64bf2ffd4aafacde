"""Whether a model of ours can be exported to Hugging Face, from its config and shapes alone."""

import dataclasses

from transformer.config import UserError
from transformer.layers.lora import LoraConfig
from transformer.models import registry
from transformer.tasks import registry as tasks
from transformer.tasks.task import Task
from transformer.training.config import ExperimentConfig


def describe_export(experiment: ExperimentConfig, task: Task) -> str:
    """Say in one line as which type of Hugging Face a run's model can be exported, or what stands against it.

    Args:
        experiment: The experiment.
        task: Its task.
    """
    # Imported here: of all that a training needs, only its first start reads the types of Hugging Face.
    from transformer.huggingface.convert import find_conversion

    name = tasks.task_name(experiment.task)
    if tasks.TASKS[name].input_reader is None:
        return f"cannot be exported: Hugging Face has no model of config.task.name={name!r}"
    model = experiment.model
    if getattr(model, "lora", LoraConfig()).rank:  # an export merges it into the matrices beside it
        model = dataclasses.replace(model, lora=LoraConfig())
    interface = dataclasses.replace(task.interface, output=None)
    shapes = registry.build(model, interface, experiment.precision).functional.shapes()
    try:
        conversion_spec, _, _ = find_conversion(model, shapes)
    except UserError as error:
        return f"cannot be exported: {error}"
    return f"exports as {conversion_spec.model_type} of Hugging Face"
