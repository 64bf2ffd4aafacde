"""Compute the alignment error rate of a run's attention."""

import dataclasses
import sys
from pathlib import Path

from launch.cli import run
from launch.command import Arguments, Command, flag, trust_flag
from launch.compilation_cache import enable_compilation_cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlignmentErrorRateArguments(Arguments):
    """The arguments of `alignment_error_rate`."""

    workdir: str = flag("the run directory", required=True)
    source_text: str = flag("the file of source sentences", required=True)
    target_text: str = flag("the file of target sentences", required=True)
    alignments: str = flag("the file of gold alignments, SOURCE-TARGET word indices", required=True)
    target_first: bool = flag("the alignments are TARGET-SOURCE", False)
    first_word_index: int = flag("the index of the first word of a sentence: 0 or 1", 0)
    target_language: str = flag("the target language, if the run has learned several", "")
    step: int | None = flag("the step of the checkpoint (default: the latest)")
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data, if it has moved")


COMMAND = Command(
    name="alignment_error_rate",
    description=(
        "Compute the alignment error rate of a translation run's attention on sentence pairs with gold word "
        'alignments: three files with one pair per line, the alignments as "0-0 1-2 2p3" (p: possible). The best head '
        "is chosen on every second pair and measured on the others."
    ),
    example="--workdir=runs/attention --source_text=test.en --target_text=test.de --alignments=en-de.wa",
    arguments=AlignmentErrorRateArguments,
    before_jax=enable_compilation_cache,
)


def main(arguments: AlignmentErrorRateArguments) -> None:
    """Load the pairs and the run, and print the metrics."""
    from transformer.tasks.word_alignment_evaluation import read_alignment_files, word_alignment_evaluation
    from transformer.training.compiled_evaluation import compile_evaluations
    from transformer.training.run_loading import load_run

    files = [Path(path) for path in (arguments.source_text, arguments.target_text, arguments.alignments)]
    pairs = read_alignment_files(
        *files, first=arguments.first_word_index, reverse=arguments.target_first, language=arguments.target_language
    )
    changes = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    _, components, state = load_run(arguments.workdir, arguments.step, changes, arguments.trust)
    evaluation = word_alignment_evaluation(components.task, components.model, pairs)
    (evaluate,) = compile_evaluations(components.model, [evaluation], components.placement)
    report = evaluate(state)
    print(report.note)
    for name, value in report.scalars.items():
        print(f"  {name:<34} {value:.4f}")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
