"""Arms that are compared see the same data, and how much of their beginnings they share is counted."""

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.studies.tiny import ablation, base
from tests.training import small_run
from transformer.config import UserError
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer
from transformer.models.model import leaves_by_path
from transformer.studies.ablations.comparability import (
    check_metric_splits,
    check_shared_data,
    compare_initial_parameters,
    compute_initial_parameters,
)
from transformer.studies.ablations.run_plan import PlannedRun, plan_runs
from transformer.tasks import translation
from transformer.training.build import build_components
from transformer.training.config import resolve_config
from transformer.training.partitioning import single_device_placement


def planned(**changes) -> list[PlannedRun]:
    return plan_runs(ablation(**changes), base())


def refusal(folder: Path, **changes) -> str:
    with pytest.raises(UserError) as told:
        check_shared_data(planned(**changes), folder)
    return str(told.value)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"task.dataset": "phrases/train=48,validation=16,test=16"}, "training batch 0 (config.task.dataset='phrases/"),
        ({"task.tokens_per_batch": 96}, "training batch 0 (config.task.tokens_per_batch=384 against 96)"),
        (
            {"task.num_decoded_examples": 4},
            "evaluation 'translation' of validation, batch 0 (config.task.num_decoded_examples=2 against 4)",
        ),
    ],
    ids=["data set", "batch size", "evaluated sentences"],
)
def test_arms_whose_data_differ_are_refused_naming_both_and_the_keys(tmp_path, overrides, says):
    said = refusal(tmp_path, arms={"post": {"model.norm_placement": "post"}, "other": overrides})
    assert said.startswith("arms whose data differ: 'post' and 'other' get another ")
    assert says in said
    assert "\n" not in said


def test_values_that_are_tried_share_their_data_too(tmp_path):
    said = refusal(tmp_path, tuning_grid={"task.tokens_per_batch": (384, 96)})
    assert "(arm 'post', seed 1, task.tokens_per_batch=96)" in said


def test_task_keys_that_leave_the_data_alone_may_differ_and_tasks_may_have_data_of_their_own(tmp_path):
    arms = {"smooth": {}, "sharp": {"task.label_smoothing": 0.0}}
    tasks = {"whole": {}, "half": {"task.tokens_per_batch": 192}}
    found = check_shared_data(planned(arms=arms, tasks=tasks, reference="smooth"), tmp_path)
    assert [task.config.label_smoothing for task in found.values()] == [0.1, 0.0]


def test_an_order_that_differs_is_seen(tmp_path, monkeypatch):
    """Equal sections of two tasks are trusted to give equal batches; other sections are looked at, batch by batch."""
    arms = {"smooth": {}, "sharp": {"task.label_smoothing": 0.0}}
    source = translation.Translation.training_batches
    monkeypatch.setattr(
        translation.Translation,
        "training_batches",
        lambda self, seed: source(self, seed + (self.config.label_smoothing == 0)),
    )
    assert "training batch 0 (config.task.label_smoothing" in refusal(tmp_path, arms=arms, reference="smooth")


def test_arms_may_begin_with_the_tokenizers_of_other_runs_where_these_agree(tmp_path):
    """As fine-tuned models do, of two families for example, each pre-trained on the same text."""
    for name, roles in (("one", ()), ("same", ()), ("other", ("end",))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"name": "a run"}')
        byte_tokenizer(roles).save(tmp_path / name)

    def arms(*names: str):
        begun = {name: {"initialize_from.run": str(tmp_path / name)} for name in names}
        task = {**small_run.CONFIG["task"], "tokenizer": "existing"}
        section = {"run": str(tmp_path / "one"), "copy_tokenizer": True, "rules": ("* = fresh",)}
        config = {**small_run.CONFIG, "seed": 1, "task": task, "initialize_from": section}
        return plan_runs(ablation(arms=begun, reference=names[0]), config)

    assert check_shared_data(arms("one", "same"), tmp_path / "agree").keys() == {"one", "same"}
    with pytest.raises(UserError, match=r"get another .* .config.initialize_from.run='.*one' against '.*other'"):
        check_shared_data(arms("one", "other"), tmp_path / "differ")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    arms = {
        "post": {"model.norm_placement": "post"},
        "pre": {"model.norm_placement": "pre"},
        "wide": {"model.norm_placement": "post", "model.feed_forward": 48, "model.initialization": "gpt"},
    }
    # Of a language model, whose first state takes half as long to compile.
    model = {**small_run.CONFIG["model"], "initialization": "xavier", "norm_placement": "pre"}
    runs = plan_runs(ablation(arms=arms), {**small_run.CONFIG, "seed": 1, "model": model})
    return runs, check_shared_data(runs, tmp_path_factory.mktemp("data"))


def test_metrics_of_splits_that_nothing_reports_are_refused(study):
    _, tasks = study
    check_metric_splits(ablation(), tasks["post"])
    with pytest.raises(UserError, match=r"'dev/loss' is of a split that no run reports; say test or train or valid"):
        check_metric_splits(ablation(selection_metric="dev/loss"), tasks["post"])


@pytest.mark.slow
def test_beginnings_are_counted_and_named(study):
    """Counted here from the arrays themselves."""
    runs, tasks = study
    found = compare_initial_parameters(runs, "post", tasks)
    first = {each.arm_name: each for each in reversed(runs)}
    arrays = {
        arm: {
            path: np.asarray(leaf)
            for path, leaf in leaves_by_path(
                compute_initial_parameters(resolve_config(first[arm].trial.config), tasks[arm])
            ).items()
        }
        for arm in tasks
    }
    for arm, (num_parameters, beginning) in found.items():
        own, other = arrays[arm], arrays["post"]
        shaped = {path for path in own if path in other and own[path].shape == other[path].shape}
        equal = {path for path in shaped if own[path].tobytes() == other[path].tobytes()}
        assert num_parameters == sum(array.size for array in own.values())
        assert (beginning.num_equal_arrays, beginning.num_arrays) == (len(equal), len(own))
        assert set(beginning.differing_paths) == shaped - equal
        assert set(beginning.unmatched_paths) == set(own) - shaped
    shared = {arm: beginning for arm, (_, beginning) in found.items()}
    assert shared["post"].num_equal_arrays == shared["post"].num_arrays > 0
    assert any("feed_forward" in path for path in shared["wide"].unmatched_paths)
    assert shared["wide"].differing_paths


def test_a_run_begins_with_these_very_parameters(study, tmp_path):
    runs, tasks = study
    experiment = resolve_config(runs[0].trial.config)
    setting = build_components(experiment, tmp_path, single_device_placement())
    begun = setting.init_state(jax.random.key(experiment.run.seed)).variables.params
    found = leaves_by_path(compute_initial_parameters(experiment, tasks[runs[0].arm_name]))
    assert {path: np.asarray(leaf).tobytes() for path, leaf in leaves_by_path(begun).items()} == {
        path: np.asarray(leaf).tobytes() for path, leaf in found.items()
    }
