"""Evaluate a trained run."""

import sys

from launch.cli import run
from launch.command import ENSEMBLE, LANGUAGE_MODEL, LANGUAGE_WEIGHT, TRUST, Arguments, Command, Flag
from launch.compilation_cache import enable_compilation_cache
from launch.flag_parsing import parse_integers
from transformer.config import UserError

COMMAND = Command(
    name="evaluate",
    description=(
        "Run every evaluation of a trained run on its latest checkpoint, or on the checkpoint of --step, and print the "
        "metrics. Nothing in the run directory changes."
    ),
    example="--workdir=runs/demo --split=test --num_beams=4",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("step", "the step of the checkpoint (default: the latest)", value_type=int),
        Flag("split", "evaluate this split only"),
        ENSEMBLE,
        LANGUAGE_MODEL,
        LANGUAGE_WEIGHT,
        TRUST,
        Flag("data_dir", "the folder of the data, if it has moved"),
        Flag("parameters", 'which parameters to evaluate: "raw" or the name of an average (default: the config\'s)'),
        Flag("num_questions", "the number of cloze and last-word questions, for a language model", value_type=int),
        Flag(
            "num_shots",
            "the numbers of example passages before each question, or of pairs in an episode, such as 0,1,4 "
            "(default: the config's)",
        ),
        Flag(
            "fine_tuning_steps",
            "compare learning in context with this many updates on the examples of an episode (default: the config's)",
            value_type=int,
        ),
        Flag("fine_tuning_learning_rate", "the learning rate of --fine_tuning_steps", value_type=float),
        Flag("num_beams", "the beam size; 1 decodes greedily (default: the config's)", value_type=int),
        Flag("length_penalty", "the exponent of the length penalty (default: the config's)", value_type=float),
        Flag("coverage_penalty", "the weight of the coverage penalty (default: the config's)", value_type=float),
        Flag("replace_unknown", "replace unknown words of translations: none, copy or dictionary"),
        Flag("unknown_dictionary", 'the .tsv file of --replace_unknown=dictionary, "source<TAB>target" in each line'),
    ),
    before_jax=enable_compilation_cache,
)


def main(arguments: Arguments) -> None:
    """Load the run, evaluate it and print the metrics."""
    from transformer.training.compiled_evaluation import compile_evaluations
    from transformer.training.run_loading import add_shallow_fusion, load_ensemble

    changes = {
        "data_dir": arguments.data_dir,
        "eval_parameters": arguments.parameters,
        "num_cloze_questions": arguments.num_questions,
        "shots": parse_num_shots(arguments),
        "fine_tuning_steps": arguments.fine_tuning_steps,
        "fine_tuning_learning_rate": arguments.fine_tuning_learning_rate,
        "num_beams": arguments.num_beams,
        "length_penalty": arguments.length_penalty,
        "coverage_penalty": arguments.coverage_penalty,
        "replace_unknown": arguments.replace_unknown,
        "unknown_dictionary": arguments.unknown_dictionary,
    }
    config_changes = {name: value for name, value in changes.items() if value is not None}
    runs = [arguments.workdir, *arguments.ensembled]
    loaded = load_ensemble(runs, arguments.step, config_changes, arguments.trusted)
    _, components, state = add_shallow_fusion(loaded, *arguments.language_model_and_weight, arguments.trusted)
    splits = sorted({evaluation.split for evaluation in components.task.evaluations})
    if arguments.split not in (None, *splits):
        raise UserError(f"--split={arguments.split} is not evaluated by this run; choose one of: {', '.join(splits)}")
    selected = [evaluation for evaluation in components.evaluations if arguments.split in (None, evaluation.split)]
    compiled = compile_evaluations(components.model, selected, components.placement)
    for evaluation, evaluate in zip(selected, compiled, strict=True):
        report = evaluate(state)
        print(f"step {int(state.step)}  {evaluation.split}  {evaluation.name}  {report.note}")
        for name, value in report.scalars.items():
            print(f"  {name:<34} {value:.4f}")


def parse_num_shots(arguments: Arguments) -> tuple[int, ...] | None:
    """Parse --num_shots; None if the config decides.

    Raises:
        UserError: If an entry is not a whole number of at least 0.
    """
    if arguments.num_shots is None:
        return None
    return tuple(parse_integers(arguments.num_shots, "--num_shots", minimum=0))


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
