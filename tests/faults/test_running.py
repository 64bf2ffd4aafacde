"""A few of the attacks on a running run; `python -m tests.faults.running` makes all of them."""

from pathlib import Path

import pytest

from tests.faults import poison, running
from tests.faults.groups import together


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "work"), [("step 23", "train"), ("batch 1 of", "evaluate")])
def test_a_run_that_is_told_to_stop_stops_saved_and_goes_on_bit_for_bit(tmp_path: Path, unit: str, work: str) -> None:
    plan = {"process": 0, "unit": unit, "act": "SIGTERM", "delay": 0.0}
    assert running.wrong_stop(together(tmp_path / "run", 1, plan), tmp_path / "run", work) == []
    assert running.wrong_rest(tmp_path / "run", 1, {}) == []


@pytest.mark.slow
def test_ten_batches_of_padding_stop_a_run_that_can_go_past_them(tmp_path: Path) -> None:
    with poison.one_device():
        assert poison.ten_times(tmp_path / "run", poison.config(), 7, poison.padded) == []


@pytest.mark.slow
def test_ten_more_of_them_at_the_same_steps_are_gone_past_as_the_run_says(tmp_path: Path) -> None:
    with poison.one_device():
        assert poison.twice_ten_times(tmp_path / "run", poison.config(), poison.padded) == []


@pytest.mark.slow
def test_a_token_of_no_vocabulary_stops_a_run_that_can_go_past_it(tmp_path: Path) -> None:
    with poison.one_device():
        assert poison.bad_token(tmp_path / "run", poison.config(), 8, -7) == []


@pytest.mark.slow
def test_signals() -> None:
    assert running.signals(6, seed=2).faults == []


@pytest.mark.slow
def test_a_second_signal() -> None:
    assert running.second_signal(1, seed=2).faults == []


@pytest.mark.slow
def test_a_lost_process() -> None:
    assert running.lost(4, seed=2).faults == []


@pytest.mark.slow
def test_numbers() -> None:
    assert running.numbers(seed=2).faults == []
