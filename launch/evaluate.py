"""Evaluate a trained run."""

import dataclasses
import sys
from typing import Any

from launch.cli import run
from launch.command import (
    Arguments,
    Command,
    ensemble_flag,
    flag,
    language_model_flag,
    language_model_weight_flag,
    trust_flag,
)
from launch.compilation_cache import enable_compilation_cache
from launch.flag_parsing import parse_integers
from transformer.config import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateArguments(Arguments):
    """The arguments of `evaluate`."""

    workdir: str = flag("the run directory", required=True)
    step: int | None = flag("the step of the checkpoint (default: the latest)")
    split: str | None = flag("evaluate this split only")
    ensemble: tuple[str, ...] = ensemble_flag()
    language_model: str | None = language_model_flag()
    language_model_weight: float = language_model_weight_flag()
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data, if it has moved")
    parameters: str | None = flag(
        'which parameters to evaluate: "raw" or the name of an average (default: the config\'s)'
    )
    num_questions: int | None = flag("the number of cloze and last-word questions, for a language model")
    num_shots: str | None = flag(
        "the numbers of example passages before each question, or of pairs in an episode, such as 0,1,4 "
        "(default: the config's)"
    )
    fine_tuning_steps: int | None = flag(
        "compare learning in context with this many updates on the examples of an episode (default: the config's)"
    )
    fine_tuning_learning_rate: float | None = flag("the learning rate of --fine_tuning_steps")
    num_beams: int | None = flag("the beam size; 1 decodes greedily (default: the config's)")
    length_penalty: float | None = flag("the exponent of the length penalty (default: the config's)")
    coverage_penalty: float | None = flag("the weight of the coverage penalty (default: the config's)")
    length_power: float | None = flag(
        "search as transformers does, with this length_penalty of its own",
        excludes=("length_penalty", "coverage_penalty"),
        because="they are of different searches",
    )
    early_stopping: str | None = flag("with --length_power, when the search stops: estimate, full or never")
    replace_unknown: str | None = flag("replace unknown words of translations: none, copy or dictionary")
    unknown_dictionary: str | None = flag(
        'the .tsv file of --replace_unknown=dictionary, "source<TAB>target" in each line'
    )


COMMAND = Command(
    name="evaluate",
    description=(
        "Run every evaluation of a trained run on its latest checkpoint, or on the checkpoint of --step, and print the "
        "metrics. Nothing in the run directory changes."
    ),
    example="--workdir=runs/demo --split=test --num_beams=4",
    arguments=EvaluateArguments,
    before_jax=enable_compilation_cache,
)


def main(arguments: EvaluateArguments) -> None:
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
        "replace_unknown": arguments.replace_unknown,
        "unknown_dictionary": arguments.unknown_dictionary,
    }
    config_changes = {name: value for name, value in changes.items() if value is not None} | search_changes(arguments)
    runs = [arguments.workdir, *arguments.ensemble]
    loaded = load_ensemble(runs, arguments.step, config_changes, arguments.trust)
    _, components, state = add_shallow_fusion(
        loaded, arguments.language_model, arguments.language_model_weight, arguments.trust
    )
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


def search_changes(arguments: EvaluateArguments) -> dict[str, Any]:
    """Return the fields of the task's config that say how a beam search ranks, with those of the other search reset."""
    from transformer.runs.run_directory import RunDirectory
    from transformer.tasks.translation_data import TranslationConfig

    changes = {
        "length_penalty": arguments.length_penalty,
        "coverage_penalty": arguments.coverage_penalty,
        "decoding.length_power": arguments.length_power,
        "decoding.early_stopping": arguments.early_stopping,
    }
    if arguments.length_power is not None:
        changes |= {"length_penalty": TranslationConfig.length_penalty, "coverage_penalty": 0.0}
    set_changes: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    own = RunDirectory.open(arguments.workdir).config().get("task", {}).get("decoding", {})
    if arguments.length_power is None and {"length_penalty", "coverage_penalty"} & set_changes.keys():
        set_changes |= {f"decoding.{name}": None for name in ("length_power", "early_stopping") if own.get(name)}
    return set_changes


def parse_num_shots(arguments: EvaluateArguments) -> tuple[int, ...] | None:
    """Parse --num_shots; None if the config decides.

    Raises:
        UserError: If an entry is not a whole number of at least 0.
    """
    if arguments.num_shots is None:
        return None
    return tuple(parse_integers(arguments.num_shots, "--num_shots", minimum=0))


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
