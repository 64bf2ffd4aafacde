"""The metadata of a checkpoint: the config, fingerprints of data, tokenizer and batch order, and the commit.

It is saved with every checkpoint and compared when one is read, so that a run never continues silently with other data
or another config than it was trained with.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import ABSENT, PositiveInt, UserError, config_differences, config_text, is_key_within
from transformer.data.batches import fingerprint
from transformer.data.tokenizers.load import tokenizer_digests
from transformer.runs.jsonl_reading import FileExtent, RecordsName, StepNumber
from transformer.runs.run_directory import RunDirectory
from transformer.storage.json_reading import parse_dataclass
from transformer.training.build import TrainingComponents
from transformer.training.checked_batches import BatchRange
from transformer.training.config import ExperimentConfig, changeable_keys, resolve_config

FINGERPRINTED_BATCHES = 3  # the first batches of a run, whose content is compared
_AGAIN = "put it back as it was, or choose another --workdir"


@dataclasses.dataclass(frozen=True)
class FirstBatchesFingerprint:
    """A fingerprint of the first batches.

    Attributes:
        parts: The number of parts that each batch is divided into, to which it is padded.
        content: The SHA-256 of their content.
    """

    parts: PositiveInt
    content: str


@dataclasses.dataclass(frozen=True)
class MetricWindow:
    """The sums of a metric accumulator since the last log.

    Attributes:
        steps: The number of steps.
        sums: The sums by name; a sum may be NaN.
    """

    steps: StepNumber
    sums: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not all(type(value) in (int, float) for value in self.sums.values()):
            raise ValueError("sums: each must be a number")


@dataclasses.dataclass(frozen=True)
class PendingReports:
    """What was pending when a run that was told to stop saved its state (transformer.training.loop.train_loop).

    Attributes:
        window: The sums since the last log.
        reports_done: Whether the reports due at the step had been made.
    """

    window: MetricWindow | None = None
    reports_done: bool = True


@dataclasses.dataclass(frozen=True)
class CheckpointMetadata:
    """The metadata of a checkpoint: that of `collect_metadata`, and what `CheckpointSaver` adds.

    Attributes:
        config: The resolved config.
        data: The SHA-256 of each split.
        tokenizer: The SHA-256 of each file of the tokenizer.
        batches: The fingerprint of the first batches.
        classes: The names of the classes that the model tells apart (`TaskInterface.class_names`).
        commit: The commit of the code.
        skipped_batches: The batches that the run has skipped.
        records: The extent of each record file at the step.
        progress: What was pending at the step.
    """

    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tokenizer: Mapping[str, str] = dataclasses.field(default_factory=dict)
    batches: FirstBatchesFingerprint | None = None
    classes: tuple[str, ...] = ()
    commit: str | None = None
    skipped_batches: tuple[BatchRange, ...] = ()
    records: Mapping[RecordsName, FileExtent] = dataclasses.field(default_factory=dict)
    progress: PendingReports = PendingReports()


def check_metadata(recorded: Mapping[str, Any], path: Path, step: int) -> None:
    """Check that the metadata of a checkpoint have the fields of `CheckpointMetadata`.

    Args:
        recorded: The metadata.
        path: The run directory, for the message.
        step: The step of the checkpoint, for the message.

    Raises:
        UserError: If they do not; the message names the checkpoint and the field.
    """
    parse_dataclass(CheckpointMetadata, recorded, f"the manifest of step {step} in {path}")


def collect_metadata(
    experiment: ExperimentConfig, components: TrainingComponents, directory: RunDirectory
) -> dict[str, Any]:
    """Return the metadata of all checkpoints of this start, ready for JSON."""
    source = components.task.training_batches(experiment.run.seed)
    batches = [source[number] for number in range(FINGERPRINTED_BATCHES)]
    arrays = (item for batch in batches for name in sorted(batch) for item in (name, np.asarray(batch[name])))
    # A batch is padded to a multiple of the parts that it is divided into.
    parts = components.placement.num_shards("batch") * experiment.run.num_microbatches
    return {
        "config": experiment.to_config(),
        "data": dict(components.task.fingerprint()),
        "tokenizer": tokenizer_digests(directory.path),
        "batches": {"parts": parts, "content": fingerprint(arrays)},
        "classes": list(components.class_names),
        "commit": directory.facts().get("commit"),
    }


def describe_config_change(recorded: Mapping[str, Any], config: Mapping[str, Any], step: int) -> str | None:
    """Describe the first key of a config that differs from the checkpoint's and may not change; None if there is none.

    Args:
        recorded: The metadata of the checkpoint. A key that they do not have is not compared.
        config: The config now.
        step: The step of the checkpoint, for the message.
    """
    for key, (current, was) in _differences(recorded, config, changeable=False).items():
        current_text = f"has no config.{key}" if current is ABSENT else f"says config.{key}={config_text(current)}"
        recorded_text = f"without config.{key}" if was is ABSENT else f"with config.{key}={config_text(was)}"
        return f"config.json {current_text}, but the checkpoint of step {step} was trained {recorded_text}"
    return None


def describe_config_changes(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Describe the allowed config changes since the checkpoint.

    Args:
        recorded: The metadata of the checkpoint.
        config: The config now.
    """
    return [
        f"{f'no config.{key}' if current is ABSENT else f'config.{key}={config_text(current)}'} from here on, "
        f"{'none' if was is ABSENT else config_text(was)} before"
        for key, (current, was) in _differences(recorded, config, changeable=True).items()
    ]


def _differences(
    recorded: Mapping[str, Any], config: Mapping[str, Any], *, changeable: bool
) -> dict[str, tuple[Any, Any]]:
    """Return the values now and before of the keys that differ: those that a resumed run may change, or the others."""
    if "config" not in recorded:
        return {}
    names = changeable_keys(resolve_config(config))
    return {
        key: values
        for key, values in config_differences(config, recorded["config"]).items()
        if is_key_within(key, names) == changeable
    }


def describe_tokenizer_change(recorded: Mapping[str, Any], path: Path, step: int) -> str | None:
    """Describe which file of the tokenizer has changed since the checkpoint; None if none has.

    Args:
        recorded: The metadata of the checkpoint.
        path: The run directory.
        step: The step of the checkpoint, for the message.
    """
    now = tokenizer_digests(path)
    for name, before in recorded.get("tokenizer", {}).items():
        if now.get(name) != before:
            what = "is missing" if name not in now else "has changed"
            return f"{name} {what} since the checkpoint of step {step}"
    return None


def describe_data_change(recorded: Mapping[str, Any], now: Mapping[str, Any], step: int) -> str | None:
    """Describe which split, or whether the order of batches, has changed since the checkpoint; None if nothing has.

    Args:
        recorded: The metadata of the checkpoint.
        now: The metadata of this start.
        step: The step of the checkpoint, for the message.
    """
    dataset, recorded_dataset = (
        metadata.get("config", {}).get("task", {}).get("dataset") for metadata in (now, recorded)
    )
    moved = (
        "" if dataset == recorded_dataset else f", which has config.task.dataset={recorded_dataset} and not {dataset}"
    )
    if moved and not recorded.get("data"):
        return f"config.task.dataset has changed since the checkpoint of step {step}{moved}"
    for split, before in recorded.get("data", {}).items():
        if now["data"].get(split) != before:
            return f"the {split} split of config.task.dataset has changed since the checkpoint of step {step}{moved}"
    batches = recorded.get("batches", now["batches"])
    if batches["parts"] == now["batches"]["parts"] and batches["content"] != now["batches"]["content"]:
        return (
            f"batches 1 to {FINGERPRINTED_BATCHES} are not those that the checkpoint of step {step} was trained on: "
            "this code "
            f"({now['commit']}) makes others than that ({recorded.get('commit')})"
        )
    return None


def refuse_change(path: Path, what: str | None) -> None:
    """Refuse a run directory if a change is described.

    Raises:
        UserError: If `what` is not None.
    """
    if what is not None:
        raise UserError(f"--workdir={path}: {what}; {_AGAIN}")
