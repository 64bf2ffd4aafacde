"""Measure what each attention head of a run is worth."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launch.cli import run
from launch.command import Arguments, Command, flag, trust_flag
from launch.compilation_cache import enable_compilation_cache
from launch.flag_parsing import parse_integers
from transformer.config import Range, UserError, suggest_nearest

if TYPE_CHECKING:  # imports jax
    from transformer.interpret.head_ablation import Head
    from transformer.maps.head_ablation_record import CheckpointAblation, LossDifference

_WITHIN_LAYERS = "layer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblateHeadsArguments(Arguments):
    """The arguments of `ablate_heads`."""

    workdir: str = flag("the run directory", required=True)
    steps: str | None = flag("the steps of the checkpoints, such as 100,200, or all (default: the latest)")
    split: str | None = flag("the data split (default: that of the evaluations during training)")
    num_batches: int | None = flag("measure the first N batches of the split (default: all)", range=Range(1))
    pairs: tuple[str, ...] = flag(
        "also remove two heads together: layer for all pairs of heads of a layer, or the heads of which all pairs are "
        "removed, such as decoder/self:0.1,decoder/self:1.0 for head 1 of layer 0 and head 0 of layer 1",
        (),
    )
    prune: bool = flag("also remove all heads one after the other, by importance, by knock-out and at random", False)
    heads_at_once: int = flag("the number of edited models that run at once: fewer take less memory", 8, range=Range(1))
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data, if it has moved")


COMMAND = Command(
    name="ablate_heads",
    description=(
        "Measure what each attention head of a run is worth: the change of its evaluation's loss on held-out data when "
        "the head's output is set to zero, and when it is replaced by its mean, with 95% intervals, beside the head's "
        "importance by gradients. Writes head_ablation.json into the run directory, which the run's page shows."
    ),
    example="--workdir=runs/demo --prune",
    arguments=AblateHeadsArguments,
    before_jax=enable_compilation_cache,
)


def main(arguments: AblateHeadsArguments) -> None:
    """Load the run, ablate its heads at every checkpoint, print the tables and write the record."""
    from transformer.interpret.head_ablation import ablate_heads, find_held_out_loss
    from transformer.maps.head_ablation_record import HeadAblationRecord, write_head_ablation
    from transformer.training.run_loading import load_run, open_run, read_state

    changes = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    recorded = open_run(arguments.workdir, arguments.trust, changes)
    steps = _parse_steps(arguments.steps, recorded.directory.saved_steps())
    _, components, state = load_run(arguments.workdir, steps[0], changes, arguments.trust)
    loss = find_held_out_loss(
        components,
        state,
        split=arguments.split,
        num_batches=arguments.num_batches,
        heads_at_once=arguments.heads_at_once,
    )
    pairs = parse_pairs(arguments.pairs, loss.heads)
    evaluation = loss.evaluation
    print(
        f"{len(loss.heads)} heads; evaluation {evaluation.name!r} on {evaluation.split}, "
        f"{len(loss.batches)} of {len(evaluation.batches)} batches"
    )
    checkpoints: list[CheckpointAblation] = []
    for step in steps:
        state = read_state(recorded, components, step) if checkpoints else state
        checkpoints.append(ablate_heads(loss, state, pairs=pairs, prune=arguments.prune))
        print(_describe_checkpoint(checkpoints[-1], loss.unit), flush=True)
    if len(checkpoints) > 1:
        print(_describe_correlations(checkpoints))
    record = HeadAblationRecord(evaluation.name, evaluation.split, loss.unit, tuple(checkpoints))
    write_head_ablation(recorded.directory, record)
    print(f"{recorded.directory.head_ablation_file} holds these numbers")


def _parse_steps(text: str | None, saved: Sequence[int]) -> list[int | None]:
    """Parse --steps; None stands for the latest checkpoint."""
    if text is None:
        return [None]
    if text == "all":
        return [*saved] or [None]
    return [*sorted(set(parse_integers(text, "--steps", minimum=0)))]


def parse_pairs(words: Sequence[str], heads: "Sequence[Head]") -> "list[tuple[Head, Head]]":
    """Parse --pairs.

    Args:
        words: The words of the flag.
        heads: The heads of the model.

    Raises:
        UserError: If a word is no head of the model, or a head is alone or named twice.
    """
    import itertools

    from transformer.interpret.head_ablation import pairs_within_layers

    if tuple(words) == (_WITHIN_LAYERS,):
        return pairs_within_layers(heads)
    by_name = {str(head): head for head in heads}
    for word in words:
        if word not in by_name:
            raise UserError(f"--pairs: {word!r} is no head of this model: {suggest_nearest(word, by_name)}")
    if words and (len(words) < 2 or len(set(words)) < len(words)):
        raise UserError(f"--pairs={','.join(words)} must name different heads, two or more, or be {_WITHIN_LAYERS}")
    return list(itertools.combinations((by_name[word] for word in words), 2))


def _describe_checkpoint(checkpoint: "CheckpointAblation", unit: str) -> str:
    """Return the tables of a checkpoint, the heads whose removal costs most first."""
    names = [f"{head.site}:{head.layer}.{head.head}" for head in checkpoint.heads]
    width = max(map(len, names))
    lines = [
        f"step {checkpoint.step}  loss {checkpoint.loss:.4f}  {checkpoint.num_units} {unit}",
        f"  {'head':<{width}}  {'set to zero':>27}  {'replaced by its mean':>27}  {'importance':>10}",
    ]
    for index in sorted(range(len(names)), key=lambda index: -checkpoint.heads[index].zero.value):
        head = checkpoint.heads[index]
        zero, mean = _format_difference(head.zero), _format_difference(head.mean)
        lines.append(f"  {names[index]:<{width}}  {zero:>27}  {mean:>27}  {head.importance:>10.4f}")
    lines.append(
        "  rank correlation of importance with the loss difference: "
        f"{checkpoint.zero_correlation:.2f} (zero), {checkpoint.mean_correlation:.2f} (mean)"
    )
    if checkpoint.pairs:
        lines.append(f"  {'two heads set to zero':<{2 * width + 3}}  {'loss difference':>27}  {'interaction':>27}")
    for pair in sorted(checkpoint.pairs, key=lambda pair: -pair.interaction.value):
        name = f"{names[pair.first]} + {names[pair.second]}"
        both, interaction = _format_difference(pair.both), _format_difference(pair.interaction)
        lines.append(f"  {name:<{2 * width + 3}}  {both:>27}  {interaction:>27}")
    if checkpoint.pruning:
        lines.append("  loss with 0, 1, 2 ... heads set to zero")
    for curve in checkpoint.pruning:
        losses = " ".join(f"{loss:.3f}" for loss in curve.losses)
        lines.append(f"  {curve.order.value.replace('_', '-') + ' order':<17} {losses}")
    return "\n".join(lines)


def _format_difference(difference: "LossDifference") -> str:
    if difference.low is None or difference.high is None:
        return f"{difference.value:+.4f}"
    return f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"


def _describe_correlations(checkpoints: "Sequence[CheckpointAblation]") -> str:
    """Return the table of rank correlations over training."""
    lines = [f"{'step':>8}  {'loss':>8}  rank correlation of importance with zero, with mean"]
    lines += [
        f"{one.step:>8}  {one.loss:>8.4f}  {one.zero_correlation:>8.2f}  {one.mean_correlation:>8.2f}"
        for one in checkpoints
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
