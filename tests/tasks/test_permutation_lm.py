"""The totals of predictions in random orders, of logits made by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from transformer.tasks.permutation_lm import TASK
from transformer.tasks.task import StateView

TOKENS = np.int32([[5, 3, 8, 1, 0, 2], [7, 4, 6, 0, 0, 0]])
PREDICTED = np.int32([[0, 3, 5], [1, 2, 3]])
LOGITS = np.random.default_rng(0).standard_normal((2, 3, 9)).astype(np.float32)


@pytest.fixture(scope="module")
def task() -> Any:
    return TASK.build_synthetic(TASK.config_class(vocab_size=9, context_length=6, batch_size=2), 1)


def view_of(*, train: bool) -> StateView:
    """A model that gives these logits of the predicted positions, whatever it reads."""
    aux = SimpleNamespace(extras={}, state={}, maps={}, losses={})
    model: Any = SimpleNamespace(
        apply=lambda variables, inputs, **options: (LOGITS, aux), logits=lambda variables, hidden: hidden
    )
    return StateView(model, None, {}, {}, np.int32(0), train)  # type: ignore[arg-type]


def by_hand(places: list[tuple[int, int]]) -> tuple[float, int]:
    """The nats of the tokens at some of the predicted positions, and how many are the most probable ones."""
    nats, right = 0.0, 0
    for row, number in places:
        logits, token = LOGITS[row, number].astype(np.float64), TOKENS[row, PREDICTED[row, number]]
        nats += np.log(np.exp(logits).sum()) - logits[token]
        right += int(logits.argmax() == token)
    return nats, right


ALL = [(row, number) for row in range(2) for number in range(3)]


def test_the_loss_is_the_mean_over_the_predicted_positions(task: Any) -> None:
    batch = {"tokens": TOKENS, "order": np.tile(np.arange(6), (2, 1)), "predicted": PREDICTED}
    loss, aux = task.objectives[0].loss_fn(view_of(train=True), batch, task.denominators(batch), None)
    nats, right = by_hand(ALL)
    assert float(loss) == pytest.approx(nats / 6, rel=1e-5)
    assert {name: float(value) for name, value in aux.metrics.items()} == pytest.approx(
        {"loss": nats / 6, "accuracy": right / 6}, rel=1e-5
    )


def test_positions_behind_the_end_of_a_text_are_not_predicted(task: Any) -> None:
    """The second text has three tokens: of its predicted positions the last lies behind them."""
    batch = {"tokens": TOKENS, "order": np.tile(np.arange(6), (2, 1)), "predicted": PREDICTED, "lengths": [6, 3]}
    sums, _ = task._sums(view_of(train=False), batch, None)
    nats, right = by_hand(ALL[:-1])
    assert {name: float(value) for name, value in sums.items()} == pytest.approx(
        {"loss": nats, "accuracy": right, "tokens": 5}, rel=1e-5
    )
