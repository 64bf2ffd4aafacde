"""Training batches of every task: a restarted run reads what the uninterrupted one reads, and no seed another's."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.contracts.case import with_defaults
from tests.contracts.cases import CASES
from tests.contracts.library_cases import MASKED_LANGUAGE_MODELING
from transformer.tasks.registry import TASKS, build_task, task_config

OF_TASK = {case.config["task"]["name"]: case.config["task"] for case in CASES}
# Of the registered tasks one config each, and what a config of theirs may read in another way.
CONFIGS: dict[str, Mapping[str, Any]] = {
    **{name: OF_TASK[name] for name in TASKS.all_names()},
    "language_modeling of windows": OF_TASK["language_modeling"] | {"batching": "windows"},
    "language_modeling of packed texts": OF_TASK["language_modeling"] | {"batching": "packed"},
    "masked_lm of windows": with_defaults(MASKED_LANGUAGE_MODELING) | {"input_format": "windows"},
    "masked_lm of crops": with_defaults(MASKED_LANGUAGE_MODELING) | {"input_format": "crops"},
    "masked_lm of pairs": OF_TASK["masked_lm"] | {"input_format": "pairs", "masking": "dynamic"},
    "few_shot of several shots": OF_TASK["experiments.few_shot.task"]
    | {"shots": (1, 2), "dataset": "strokes/train=6,validation=3,test=3,num_drawers=4"},
    "in_context_learning of authors": {
        "name": "experiments.in_context_learning.task",
        "problem": "style",
        "batch_size": 4,
        "num_eval_examples": 4,
    },
}
# Every step reads all data, of which another seed has no other order.
WHOLE = ("experiments.kernel_regression.task",)
# As data prepared in advance: every epoch has the same pairs in the same order.
REPEATED = "fixed_pairs"


def differ(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return any(
        np.shape(one[name]) != np.shape(other[name]) or np.any(np.asarray(one[name]) != np.asarray(other[name]))
        for name in one
    )


@pytest.fixture(scope="module")
def task_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    return functools.cache(lambda name: build_task(task_config(CONFIGS[name]), tmp_path_factory.mktemp("task")))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_restarted_run_reads_the_batches_of_the_uninterrupted_one(name: str, task_of: Callable[[str], Any]) -> None:
    task = task_of(name)
    source = task.training_batches(3)
    epoch = getattr(source, "batches_per_epoch", 2)
    # The first, both sides of an epoch's end, and steps of the second epoch; a long epoch is not read whole.
    steps = sorted({0, 1, epoch - 1, epoch, epoch + 1})
    read = {step: source[step] for step in steps}
    for step in reversed(steps):
        restarted, other = task.training_batches(3), task.training_batches(4)
        restarted[step - 1 if step else 1]
        again = restarted[step]
        assert again.keys() == read[step].keys()
        for array, values in read[step].items():
            np.testing.assert_array_equal(again[array], values, err_msg=f"{array} of step {step}")
            assert again[array].dtype == values.dtype
        assert differ(other[step], read[step]) == (name not in WHOLE), f"another seed's batch of step {step}"
    if name in WHOLE:
        return
    if epoch > 1:
        assert differ(read[0], read[1])
    assert differ(read[0], read[epoch]) == (CONFIGS[name].get("input_format") != REPEATED), "the second epoch's order"


@pytest.mark.parametrize("name", CONFIGS)
def test_no_split_is_evaluated_on_the_batches_of_another(name: str, task_of: Callable[[str], Any]) -> None:
    task = task_of(name)
    # The last: heads that are chosen on validation texts are measured on test texts behind them.
    last = {(each.name, each.split): each.batches[len(each.batches) - 1] for each in task.evaluations}
    for evaluation, split in last:
        for other in {other for same, other in last if same == evaluation and other != split}:
            assert differ(last[evaluation, split], last[evaluation, other]), (evaluation, split, other)
    drawn = task.training_batches(3)[0]
    for (evaluation, split), batch in last.items():
        assert batch.keys() != drawn.keys() or differ(batch, drawn), (evaluation, split)
