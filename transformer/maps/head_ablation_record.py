"""The record of a run's head ablation, `head_ablation.json`, which `launch.ablate_heads` writes and the page shows."""

import dataclasses
import enum

from transformer.config import NonNegativeInt, UserError, to_config
from transformer.runs.run_directory import RunDirectory, write_json
from transformer.storage.json_reading import read_dataclass


class PruningOrder(enum.Enum):
    """The order in which heads are removed.

    Attributes:
        IMPORTANCE: The least important first, by |dL/dgate|.
        KNOCK_OUT: The one first whose removal alone raises the loss least.
        RANDOM: In random order.
    """

    IMPORTANCE = "importance"
    KNOCK_OUT = "knock_out"
    RANDOM = "random"


@dataclasses.dataclass(frozen=True)
class LossDifference:
    """The loss of an edited model minus that of the unedited one, with a 95% interval.

    Attributes:
        value: The difference.
        low: The lower end of the interval; None if there are fewer than two examples or batches.
        high: The upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class HeadKnockOut:
    """What one head is worth.

    Attributes:
        site: The name of the attention module.
        layer: The index of the layer.
        head: The index of the head.
        zero: The loss difference when its output is set to zero.
        mean: The loss difference when its output is replaced by its mean over the data.
        importance: The mean over the examples of |dL/dg| for a gate g = 1 on its output, divided as the loss is.
        gradient: dL/dg of the loss itself, with its sign.
    """

    site: str
    layer: NonNegativeInt
    head: NonNegativeInt
    zero: LossDifference
    mean: LossDifference
    importance: float
    gradient: float


@dataclasses.dataclass(frozen=True)
class PairKnockOut:
    """Two heads that are set to zero together.

    Attributes:
        first: The index of the first head among the record's heads.
        second: The index of the second.
        both: The loss difference without both.
        interaction: `both` minus the differences of the two alone: above 0 where each makes up for the other.
    """

    first: NonNegativeInt
    second: NonNegativeInt
    both: LossDifference
    interaction: LossDifference


@dataclasses.dataclass(frozen=True)
class PruningCurve:
    """The loss while heads are set to zero one after the other.

    Attributes:
        order: What orders the heads.
        heads: The indices of the heads as they are removed.
        losses: The loss with 0, 1, 2 ... heads removed.
    """

    order: PruningOrder
    heads: tuple[NonNegativeInt, ...]
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.losses) != len(self.heads) + 1:
            raise UserError(f"the pruning of {len(self.heads)} heads has {len(self.losses)} losses: it has one more")


@dataclasses.dataclass(frozen=True)
class CheckpointAblation:
    """The head ablation of one checkpoint.

    Attributes:
        step: The training step.
        loss: The loss of the unedited model.
        num_units: The number of examples or batches of which an interval's sample consists.
        heads: Every head of every module.
        zero_correlation: Spearman's rank correlation of importance and the loss difference of zeroed heads.
        mean_correlation: The same with that of mean-ablated heads.
        pairs: The pairs of heads that were asked for.
        pruning: The pruning curves, if they were asked for.
    """

    step: NonNegativeInt
    loss: float
    num_units: NonNegativeInt
    heads: tuple[HeadKnockOut, ...]
    zero_correlation: float
    mean_correlation: float
    pairs: tuple[PairKnockOut, ...] = ()
    pruning: tuple[PruningCurve, ...] = ()


@dataclasses.dataclass(frozen=True)
class HeadAblationRecord:
    """The head ablation of a run.

    Attributes:
        evaluation: The name of the evaluation whose loss is measured.
        split: Its data split.
        unit: What an interval's sample consists of: "examples", or "batches" where the loss is no sum over examples.
        checkpoints: The checkpoints, in the order of their steps.
    """

    evaluation: str
    split: str
    unit: str
    checkpoints: tuple[CheckpointAblation, ...]


def write_head_ablation(directory: RunDirectory, record: HeadAblationRecord) -> None:
    """Write the record into its run directory, in place of an earlier one."""
    write_json(directory.head_ablation_file, to_config(record))


def read_head_ablation(directory: RunDirectory) -> HeadAblationRecord | None:
    """Read the record of a run; None if its heads were not ablated.

    Raises:
        UserError: If the file is no such record.
    """
    if not directory.head_ablation_file.exists():
        return None
    return read_dataclass(HeadAblationRecord, directory.head_ablation_file)
