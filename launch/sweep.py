"""Run a hyperparameter sweep, or resume one that was stopped."""

import dataclasses
import shlex
from typing import TYPE_CHECKING, Literal, NamedTuple

from launch.cli import run
from launch.command import Command, TrainingArguments, flag, trackers_flag, trust_flag, vmap_flag
from launch.config_files import load_function
from launch.platform import exit_process
from launch.retrain_command import retrain_command
from launch.workers import become_worker, divide_machine, run_as_worker, run_workers
from transformer.config import SEEDS, UserError
from transformer.system.command_invocation import shell_command, subprocess_command

if TYPE_CHECKING:
    from transformer.runs.jsonl_reading import MetricName
    from transformer.studies.sweeps.page import SweepPage
    from transformer.studies.sweeps.search_algorithm import SearchAlgorithm
    from transformer.studies.sweeps.search_space import SearchSpace
    from transformer.studies.sweeps.trial_store import TrialStore
    from transformer.studies.sweeps.trials import Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepArguments(TrainingArguments):
    """The arguments of `sweep`."""

    workdir: str = flag("the sweep's directory", required=True)
    num_workers: int | None = flag("processes on this machine (default: 1)")
    num_trials: int | None = flag("the total number of trials (default: every point of a finite space)")
    search_algorithm: str | None = flag("grid, random, tpe, gp or hyperband (default: grid if the space is finite)")
    metric: str = flag("the objective, as SPLIT/NAME", "validation/loss")
    direction: Literal["minimize", "maximize"] = flag("the direction of the objective", "minimize")
    seed: int | None = flag("the random seed of the search algorithm (default: 0)", range=SEEDS)
    trackers: str | None = trackers_flag()
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data on this machine, for data sets that are not generated")
    vmap: int | None = vmap_flag()
    retry_failed: bool = flag("run failed trials again", False)
    worker: bool = flag(
        "be one worker, in this process",
        False,
        excludes=("num_workers",),
        because="--worker is one worker itself, of which you can start any number",
    )


def _become_worker(arguments: SweepArguments) -> None:
    """Prepare a worker process before reading the config imports jax."""
    if arguments.worker:
        become_worker()


COMMAND = Command(
    name="sweep",
    description=(
        "Train the trials of the search space that get_sweep() of a config file returns, each in its own run "
        "directory, on several workers. --num_trials is a total: the same command again completes it. A worker that "
        "dies is replaced, and its trial resumes from its last checkpoint. With --worker this process is one worker: "
        "Slurm or Kubernetes can start any number of them on a shared disk."
    ),
    example="--config=experiments/translation/configs/demo_learning_rate_sweep.py --workdir=runs/sweep --num_workers=2",
    arguments=SweepArguments,
    before_jax=_become_worker,
)


def main(arguments: SweepArguments) -> None:
    """Check everything, then work or start workers, and print the results."""
    workers = 1 if arguments.num_workers is None else arguments.num_workers
    if not arguments.worker:
        divide_machine(workers, range(workers))  # mistakes are reported before anything is written
    from transformer.runs.jsonl_reading import parse_metric_name
    from transformer.studies.sweeps.sweep_progress import best_finished, read_trial_statuses, summarize_sweep, write_csv
    from transformer.training.writers.trackers import parse_trackers

    metric = parse_metric_name(arguments.metric)
    trackers = parse_trackers(arguments.trackers)
    sweep = _open_sweep(arguments)
    trial_store, total = sweep.trial_store, sweep.total
    if arguments.worker:
        run_as_worker(
            trial_store,
            sweep.search_algorithm,
            total=total,
            metric=arguments.metric,
            vmap=arguments.vmap or 1,
            data_dir=arguments.data_dir,
            trusted_names=sweep.trusted_names,
            trackers=trackers,
        )
    else:
        page = _build_page(arguments, sweep, metric)
        print(f"the page of the sweep: {page.path}", flush=True)
        run_workers(
            [
                *subprocess_command("sweep"),
                *arguments.omit_flags("num_workers", "retry_failed", "no_retry_failed", "no_worker"),
            ],
            trial_store,
            workers=workers,
            total=total,
            metric=arguments.metric,
            maximize=arguments.direction == "maximize",
            on_progress=page.write,
        )
    rows = read_trial_statuses(trial_store, trial_store.trials()[:total], metric)
    table = write_csv(trial_store, rows, metric)
    if not arguments.worker:
        best = best_finished(rows, maximize=arguments.direction == "maximize")
        print(
            summarize_sweep(
                trial_store,
                rows,
                metric,
                best,
                "" if best is None else _format_retrain_command(arguments, trial_store, best.trial),
            )
        )
        print(f"all trials: {page.path} and {table}")


def _build_page(arguments: SweepArguments, sweep: "_Sweep", metric: "MetricName") -> "SweepPage":
    from transformer.studies.sweeps.page import SweepPage
    from transformer.studies.sweeps.sweep_page_data import SweepInfo

    command = shlex.join([*shell_command("sweep"), *arguments.omit_flags("retry_failed", "no_retry_failed")])
    name = str(arguments.config["name"])
    info = SweepInfo(name, metric, arguments.direction == "maximize", sweep.total, command)
    return SweepPage(
        sweep.trial_store, info, lambda trial: _format_retrain_command(arguments, sweep.trial_store, trial)
    )


def _format_retrain_command(arguments: SweepArguments, trial_store: "TrialStore", trial: "Trial") -> str:
    """Return the command that trains a trial again."""
    return retrain_command(
        arguments.config_file,
        arguments.config_overrides,
        trial,
        recorded=str(trial_store.directory(trial)),
        workdir="runs/best",
        data_dir=arguments.data_dir,
    )


class _Sweep(NamedTuple):
    """A sweep that is ready for workers."""

    trial_store: "TrialStore"
    total: int
    search_algorithm: "SearchAlgorithm | None"
    trusted_names: frozenset[str]


def _open_sweep(arguments: SweepArguments) -> _Sweep:
    """Open the sweep that the flags describe, and plan its trials as far as possible.

    Raises:
        UserError: If flags are invalid, or the directory holds another sweep.
    """
    from transformer.runs.trust import named_resources
    from transformer.storage.paths import parse_path
    from transformer.studies.sweeps.search_algorithm import (
        PLANNED_AHEAD,
        choose_algorithm,
        plan_trials,
        resolve_num_trials,
        sample_valid_trials,
    )
    from transformer.studies.sweeps.trial_store import TrialStore
    from transformer.studies.sweeps.trials import check_recorded_trial

    base = arguments.config
    space = _load_search_space(arguments)
    arguments.refuse_keys_of_study([("get_sweep()", space.keys)])
    engine = choose_algorithm(arguments.search_algorithm, space)
    total = resolve_num_trials(arguments.num_trials, space)
    _check_flags(arguments, engine)
    seed = arguments.seed or 0
    facts = {
        "config": base,
        "space": space.describe(),
        "engine": engine,
        "seed": None if engine == "grid" else seed,
        "metric": arguments.metric,
        "direction": arguments.direction,
    }
    # Before the directory is touched; points that are not known yet are sampled, to check keys and types.
    trials = (
        plan_trials(engine, base, space, total, seed)
        if engine in PLANNED_AHEAD
        else sample_valid_trials(base, space, total, seed)
    )
    if (engine in PLANNED_AHEAD or space.num_points is not None) and len(trials) < total:
        # Without this, a sweep whose points overlap would wait for trials that nothing can propose.
        if arguments.num_trials is not None:
            print(f"the space holds {len(trials)} different trials, fewer than --num_trials={total}: all are tried")
        total = len(trials)
    trial_store = TrialStore.open(parse_path(arguments.workdir), facts)
    trusted_names = frozenset(arguments.trust).union(*map(named_resources, (base, *(trial.config for trial in trials))))
    for trial in trial_store.trials():
        check_recorded_trial(trial, trusted_names)
    if arguments.retry_failed:
        print(f"{trial_store.forget_failed()} failed trials are pending again")
    if engine in PLANNED_AHEAD:
        trial_store.append_trials(trials)
        return _Sweep(trial_store, total, None, trusted_names)
    if not arguments.worker:
        return _Sweep(trial_store, total, None, trusted_names)  # each worker asks the engine itself
    from transformer.studies.sweeps.optuna_search import open_optuna_search

    maximize = arguments.direction == "maximize"
    search_algorithm = open_optuna_search(engine, trial_store, base, space, seed=seed, maximize=maximize)
    return _Sweep(trial_store, total, search_algorithm, trusted_names)


def _load_search_space(arguments: SweepArguments) -> "SearchSpace":
    from transformer.studies.sweeps.search_space import SearchSpace, SearchSpaceBuilder

    name = arguments.config_file
    get_sweep = load_function(name, "get_sweep")
    if get_sweep is None:
        raise UserError(
            f"config file {name!r} has no get_sweep(sweep): define one beside get_config that returns for example "
            "sweep.choice('seed', [1, 2, 3])"
        )
    space = get_sweep(SearchSpaceBuilder())
    if not isinstance(space, SearchSpace):
        raise UserError(
            f"config file {name!r}: get_sweep returned a {type(space).__name__}; it must return what sweep.product, "
            "zip, chain, choice or log_uniform makes"
        )
    return space


def _check_flags(arguments: SweepArguments, engine: str) -> None:
    """Raise UserError for a flag that has no effect with this engine, and for a missing package."""
    from transformer.studies.sweeps.optuna_search import check_installed, hyperband_resources
    from transformer.studies.sweeps.search_algorithm import PLANNED_AHEAD

    optuna = engine not in PLANNED_AHEAD
    if engine == "grid" and arguments.seed is not None:
        raise UserError("--seed has no effect on a grid: omit it, or pass --search_algorithm=random")
    if optuna and arguments.vmap is not None:
        raise UserError(
            f"--vmap needs many trials at once, and --search_algorithm={engine} suggests one after another: omit one "
            "of them"
        )
    if optuna:
        check_installed(engine)
    if engine == "hyperband":
        hyperband_resources(arguments.config)


if __name__ == "__main__":
    exit_process(run(COMMAND, main))
