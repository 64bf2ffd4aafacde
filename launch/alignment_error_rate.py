"""Compute the alignment error rate of a run's attention."""

import sys
from pathlib import Path

from launch.cli import run
from launch.command import TRUST, Arguments, Command, Flag
from launch.compilation_cache import enable_compilation_cache

COMMAND = Command(
    name="alignment_error_rate",
    description=(
        "Compute the alignment error rate of a translation run's attention on sentence pairs with gold word "
        'alignments: three files with one pair per line, the alignments as "0-0 1-2 2p3" (p: possible). The best head '
        "is chosen on every second pair and measured on the others."
    ),
    example="--workdir=runs/attention --source_text=test.en --target_text=test.de --alignments=en-de.wa",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("source_text", "the file of source sentences", required=True),
        Flag("target_text", "the file of target sentences", required=True),
        Flag("alignments", "the file of gold alignments, SOURCE-TARGET word indices", required=True),
        Flag("target_first", "the alignments are TARGET-SOURCE", default=False, value_type=bool),
        Flag("first_word_index", "the index of the first word of a sentence: 0 or 1", default=0, value_type=int),
        Flag("target_language", "the target language, if the run has learned several", default=""),
        Flag("step", "the step of the checkpoint (default: the latest)", value_type=int),
        TRUST,
        Flag("data_dir", "the folder of the data, if it has moved"),
    ),
    before_jax=enable_compilation_cache,
)


def main(arguments: Arguments) -> None:
    """Load the pairs and the run, and print the metrics."""
    from transformer.tasks.word_alignment_evaluation import read_alignment_files, word_alignment_evaluation
    from transformer.training.compiled_evaluation import compile_evaluations
    from transformer.training.run_loading import load_run

    files = [Path(path) for path in (arguments.source_text, arguments.target_text, arguments.alignments)]
    pairs = read_alignment_files(
        *files, first=arguments.first_word_index, reverse=arguments.target_first, language=arguments.target_language
    )
    changes = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    _, components, state = load_run(arguments.workdir, arguments.step, changes, arguments.trusted)
    evaluation = word_alignment_evaluation(components.task, components.model, pairs)
    (evaluate,) = compile_evaluations(components.model, [evaluation], components.placement)
    report = evaluate(state)
    print(report.note)
    for name, value in report.scalars.items():
        print(f"  {name:<34} {value:.4f}")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
