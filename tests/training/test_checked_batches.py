"""The batches of a run: tokens of no vocabulary are refused by name, and batches that are left out leave no gap."""

import numpy as np
import pytest

from transformer.config import UserError
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.training.checked_batches import CheckedBatches, batch_number, merge_ranges

SIDE = InputSpec((2, 3))
INTERFACE = TaskInterface({"source": SIDE, "target": SIDE, "lengths": InputSpec((2,))}, {"joint": 10})


class Numbered:
    """Batch n holds the tokens that it is given, and its own number."""

    def __init__(self, **arrays: np.ndarray):
        self._arrays = arrays

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        return {"number": np.array(step), **self._arrays}


@pytest.mark.parametrize("name", ["source", "target", "labels"])
@pytest.mark.parametrize("token", [-7, 10, 10**6])
def test_a_token_of_no_vocabulary_is_refused_by_name(name: str, token: int) -> None:
    tokens = np.zeros((2, 3), np.int32)
    tokens[1, 2] = token
    says = rf"batch 5 \(counted from 0\) has {name}\[1, 2\] = {token}, no token of a vocabulary of 10, 0 to 9"
    with pytest.raises(UserError, match=says):
        CheckedBatches(Numbered(**{name: tokens}), INTERFACE)[5]


def test_what_is_no_token_may_be_anything() -> None:
    fine = CheckedBatches(Numbered(source=np.array([[0, 9]]), lengths=np.array([11]), index=np.array([-1])), INTERFACE)[
        0
    ]
    assert set(fine) == {"number", "source", "lengths", "index"}
    points = TaskInterface({"points": InputSpec((2, 3, 2), np.float32, Modality.POINTS), "target": SIDE}, {})
    assert CheckedBatches(Numbered(target=np.array([[99]]), labels=np.array([[99]])), points)[0]["number"] == 0


def test_labels_of_classes_are_held_against_the_classes() -> None:
    classes = TaskInterface({"tokens": SIDE}, {"tokens": 10, "classes": 2})
    with pytest.raises(UserError, match=r"labels\[1\] = 2, no token of a vocabulary of 2"):
        CheckedBatches(Numbered(labels=np.array([1, 2])), classes)[0]


def test_batches_that_are_left_out_are_in_no_step_and_all_others_in_one() -> None:
    skipped_ranges = [(3, 2), (9, 1), (4, 3)]
    assert merge_ranges(skipped_ranges) == [(3, 4), (9, 1)]
    batches = CheckedBatches(Numbered(), INTERFACE, skipped_ranges)
    assert [int(batches[step]["number"]) for step in range(7)] == [0, 1, 2, 7, 8, 10, 11]
    assert [batch_number(step, []) for step in range(3)] == [0, 1, 2]
