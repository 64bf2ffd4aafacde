"""Measure a trained run."""

import sys

from launch.cli import run
from launch.command import ENSEMBLE, LANGUAGE_MODEL, LANGUAGE_WEIGHT, TRUST, Arguments, Command, Flag
from launch.compiled import keep_compiled
from launch.parsing import whole_numbers
from transformer.config import UserError

COMMAND = Command(
    name="evaluate",
    description=(
        "Run every evaluation of a trained run on its latest checkpoint, or on the checkpoint of --step, and print "
        "the results. Nothing in the run directory changes."
    ),
    example="--workdir=runs/demo --split=test --beams=4",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("step", "the checkpoint's step; the latest by default", kind=int),
        Flag("split", "only this split"),
        ENSEMBLE,
        LANGUAGE_MODEL,
        LANGUAGE_WEIGHT,
        TRUST,
        Flag("data_dir", "where the data lies, if it has moved"),
        Flag("parameters", 'what to evaluate: "raw" or the name of an average; as in the config by default'),
        Flag("questions", "gaps and last words of the validation text, for a language model", kind=int),
        Flag(
            "shots",
            "so many passages before each of --questions, or pairs of an episode, such as 0,1,4; "
            "as in the config by default",
        ),
        Flag("beams", "beams of the search, 1 for greedy; as in the config by default", kind=int),
        Flag("length_penalty", "exponent of the length penalty; as in the config by default", kind=float),
        Flag("coverage_penalty", "weight of the coverage penalty of beams; as in the config by default", kind=float),
    ),
    before_jax=keep_compiled,
)


def main(arguments: Arguments) -> None:
    """Load the run, evaluate, print."""
    from transformer.training.evaluate import compile_evaluations
    from transformer.training.trained_run import load_ensemble, with_language_model

    changes = {
        "data_dir": arguments.data_dir,
        "eval_parameters": arguments.parameters,
        "num_cloze_questions": arguments.questions,
        "shots": shots_of(arguments),
        "beams": arguments.beams,
        "length_penalty": arguments.length_penalty,
        "coverage_penalty": arguments.coverage_penalty,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    runs = [arguments.workdir, *arguments.ensembled]
    loaded = load_ensemble(runs, arguments.step, given, arguments.trusted)
    _, assembly, state = with_language_model(loaded, *arguments.language_model_and_weight, arguments.trusted)
    splits = sorted({evaluation.split for evaluation in assembly.task.evaluations})
    if arguments.split not in (None, *splits):
        raise UserError(f"--split={arguments.split} is not evaluated by this run; say one of: {', '.join(splits)}")
    chosen = [each for each in assembly.evaluations if arguments.split in (None, each.split)]
    compiled = compile_evaluations(assembly.model, chosen, assembly.placement)
    for evaluation, evaluate in zip(chosen, compiled, strict=True):
        report = evaluate(state)
        print(f"step {int(state.step)}  {evaluation.split}  {evaluation.name}  {report.note}")
        for name, value in report.scalars.items():
            print(f"  {name:<34} {value:.4f}")


def shots_of(arguments: Arguments) -> tuple[int, ...] | None:
    """The numbers of passages; None where the config says them.

    Raises:
        UserError: For anything but whole numbers.
    """
    if arguments.shots is None:
        return None
    return tuple(whole_numbers(arguments.shots, "--shots", least=0))


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
