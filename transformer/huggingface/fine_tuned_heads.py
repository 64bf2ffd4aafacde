"""What the conversions of models with heads of fine-tuning share: which head a folder has, and its classes."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer.config import UserError
from transformer.huggingface.conversion_spec import Config, without_keys
from transformer.huggingface.tensor_layouts import Shape
from transformer.models.task_interface import TaskInterface

HEADS_WITH_CLASSES = ("classes", "token_classes")

# The end of the class name of a model with each of our heads; XLNet has a class of its own for questions.
FINE_TUNED_CLASSES = {
    "classes": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "token_classes": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}


def fine_tuned_head(architectures: Sequence[str], by_tensors: str | None, classes: Mapping[str, str]) -> str | None:
    """Return our head of a fine-tuned model; None if the model has none.

    Args:
        architectures: The architectures of config.json; empty if it has none.
        by_tensors: The head of which the file has tensors; None for none.
        classes: The end of the class name by head.

    Raises:
        UserError: If the architecture is fine-tuned for something else.
    """
    if by_tensors is None or not architectures:
        return by_tensors
    for head, ending in classes.items():
        if architectures[0].endswith(ending):
            return head
    raise UserError(
        f"config.json has architectures={architectures}: of the fine-tuned models only those "
        f"{', '.join(classes.values())} can be read"
    )


def num_classes(config: Config, head: str) -> int:
    """Return the number of classes that config.json names or counts; 0 if the head has none.

    Raises:
        UserError: If its outputs are no logits of classes of which one is true, and no single score.
    """
    labels, count = config.get("id2label"), config.get("num_labels", 2)
    count = (len(labels) if isinstance(labels, dict) else count) if head in HEADS_WITH_CLASSES else 0
    problem = config.get("problem_type")
    if head == "classes" and (
        problem == "multi_label_classification"
        or (problem == "regression" and count != 1)
        or (problem == "single_label_classification" and count == 1)
    ):
        raise UserError(
            f"config.json has problem_type={problem!r} with {count} outputs: only classes of which one is true "
            "(single_label_classification), or a single score (regression), can be read"
        )
    return count


def class_names_of_config(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the names of a published model's classes by number; those that it does not name are LABEL_0, and so on.

    Raises:
        UserError: If it names others than the classes 0 to `count` - 1.
    """
    labels = config.get("id2label") or {}
    if not isinstance(labels, dict) or not labels.keys() <= {str(number) for number in range(count)}:
        raise UserError(f"config.json has id2label={labels!r:.200}: it must name the classes 0 to {count - 1}")
    return tuple(str(labels.get(str(number), f"LABEL_{number}")) for number in range(count))


def output_names(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return what the outputs of a published model's head of classes are, as `TaskInterface.class_names`.

    A single output is a score. Empty if there is none, or if config.json names no class: LABEL_0, which the library
    writes for those, is no name.
    """
    if not count:  # BART's config.json names classes for a head that a model of next tokens has not
        return ()
    names = class_names_of_config(config, count)
    unnamed = names == tuple(f"LABEL_{number}" for number in range(count))
    return names if not unnamed else ("score",) if count == 1 else ()


def class_name_keys(names: Sequence[str]) -> dict[str, Any]:
    """Return the keys of config.json that name classes."""
    labels = {str(number): name for number, name in enumerate(names)}
    return {"id2label": labels, "label2id": {name: int(number) for number, name in labels.items()}}


def problem_type_keys(head: str, count: int) -> dict[str, str]:
    """Return the key of config.json that says what the outputs of a head of classes of texts are; empty for others."""
    if head != "classes":
        return {}
    return {"problem_type": "regression" if count == 1 else "single_label_classification"}


def without_head_keys(config: Config, keys: Sequence[str]) -> Config:
    """Return the config without `keys`, and without the number of classes if the head has none."""
    left_out = (*keys, *(() if config["head"] in HEADS_WITH_CLASSES else ("num_labels",)))
    return without_keys(config, *left_out)


def interface_with_classes(section: Config) -> TaskInterface:
    """Return the task interface of a model of tokens, with the classes of its head."""
    rows, classes = section["vocab_size"], section["classes"]
    sizes = {"tokens": rows, "joint": rows} | ({"classes": classes} if classes else {})
    return TaskInterface({}, sizes, pad_id=0, bos_id=0, eos_id=0)


def sizes_from_shapes(model: Any, shapes: Mapping[str, Shape]) -> Config:
    """Return the sizes of the vocabulary and of the head of classes, 0 without one."""
    return {"vocab_size": shapes["embedding/table"][0], "classes": shapes.get("classes/kernel", (0, 0))[1]}
