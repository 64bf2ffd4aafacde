"""Measure how well a run's attention aligns words."""

import sys
from pathlib import Path

from launch.cli import run
from launch.command import TRUST, Arguments, Command, Flag
from launch.compiled import keep_compiled

COMMAND = Command(
    name="align",
    description=(
        "The alignment error rate of a translation run's attention on sentence pairs that were aligned by hand: three "
        'files with a pair a line, the links as "0-0 1-2 2p3" (p: possible). Of several heads the best on every '
        "second pair is measured on the others."
    ),
    example="--workdir=runs/attention --source=test.en --target=test.de --links=en-de.wa",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("source", "the file of source sentences", required=True),
        Flag("target", "the file of target sentences", required=True),
        Flag("links", "the file of links, source word before target word", required=True),
        Flag("reverse", "links name the target's word first", default=False, kind=bool),
        Flag("first_word", "the number of a sentence's first word", default=0, kind=int),
        Flag("language", "the target language, where the run has learned several", default=""),
        Flag("step", "the checkpoint's step; the latest by default", kind=int),
        TRUST,
        Flag("data_dir", "where the data lies, if it has moved"),
    ),
    before_jax=keep_compiled,
)


def main(arguments: Arguments) -> None:
    """Read the pairs, then the run, and print the report."""
    from transformer.tasks.aligned_texts import alignment_of, read_aligned
    from transformer.training.evaluate import compile_evaluations
    from transformer.training.trained_run import load

    files = [Path(each) for each in (arguments.source, arguments.target, arguments.links)]
    pairs = read_aligned(*files, first=arguments.first_word, reverse=arguments.reverse, language=arguments.language)
    changes = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    _, assembly, state = load(arguments.workdir, arguments.step, changes, arguments.trusted)
    evaluation = alignment_of(assembly.task, assembly.model, pairs)
    (evaluate,) = compile_evaluations(assembly.model, [evaluation], assembly.placement)
    report = evaluate(state)
    print(report.note)
    for name, value in report.scalars.items():
        print(f"  {name:<34} {value:.4f}")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
