"""What each head is worth, as the page shows it: the record of `launch.ablate_heads` by the store's modules."""

from collections.abc import Sequence
from typing import Any

from transformer.attention.sites import Site
from transformer.maps.head_ablation_record import (
    CheckpointAblation,
    HeadAblationRecord,
    LossDifference,
    read_head_ablation,
)
from transformer.runs.run_directory import RunDirectory


def head_ablation_payload(directory: RunDirectory, sites: Sequence[Site]) -> dict[str, Any] | None:
    """Return the page's facts about a run's head ablation; None if its heads were not ablated.

    Args:
        directory: The run directory.
        sites: The attention modules of the page, which number the heads.

    Raises:
        UserError: If the record cannot be read.
    """
    record = read_head_ablation(directory)
    if record is None or not record.checkpoints:
        return None
    return {
        "split": record.split,
        "unit": record.unit,
        "checkpoints": [_checkpoint_payload(checkpoint, sites) for checkpoint in record.checkpoints],
        "pruning": _pruning_payload(record),
    }


def _checkpoint_payload(checkpoint: CheckpointAblation, sites: Sequence[Site]) -> dict[str, Any]:
    numbers = {site.name: number for number, site in enumerate(sites)}
    return {
        "step": checkpoint.step,
        "loss": checkpoint.loss,
        "units": checkpoint.num_units,
        "correlations": [checkpoint.zero_correlation, checkpoint.mean_correlation],
        "heads": [
            [
                numbers[head.site],
                head.layer,
                head.head,
                _difference_payload(head.zero),
                _difference_payload(head.mean),
                head.importance,
            ]
            for head in checkpoint.heads
            if head.site in numbers
        ],
    }


def _difference_payload(difference: LossDifference) -> list[float | None]:
    return [difference.value, difference.low, difference.high]


def _pruning_payload(record: HeadAblationRecord) -> dict[str, Any] | None:
    """The pruning curves of the last checkpoint that has some."""
    pruned = [checkpoint for checkpoint in record.checkpoints if checkpoint.pruning]
    if not pruned:
        return None
    curves = [[curve.order.value, curve.losses] for curve in pruned[-1].pruning]
    return {"step": pruned[-1].step, "curves": curves}
