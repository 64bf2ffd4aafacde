"""What a run says before the silence in which its programs are compiled."""

import pytest

from tests.training.small_run import CONFIG
from transformer.training import driver
from transformer.training.config import resolve_config


class Reached(Exception):
    """The training step is about to be made."""


def test_a_run_says_what_it_waits_for_before_its_step_is_compiled(tmp_path, monkeypatch, capsys):
    def reached(*about):
        raise Reached

    monkeypatch.setattr(driver, "compile_run_probe", reached)  # the first thing of a run that compiles for long
    with pytest.raises(Reached):
        driver.train(resolve_config(CONFIG), tmp_path / "run")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("small: ")
    assert first.endswith(f"training to step 8; run directory {tmp_path / 'run'}")
    assert last == "compiling the train step; metrics follow after compilation"


def test_a_warmup_that_the_run_does_not_reach_the_end_of_is_told(tmp_path, monkeypatch, capsys):
    def reached(*about):
        raise Reached

    monkeypatch.setattr(driver, "compile_run_probe", reached)
    for warmup in (8, 9):
        values = {**CONFIG, "optimizer": {**CONFIG["optimizer"], "warmup_steps": warmup}}
        with pytest.raises(Reached):
            driver.train(resolve_config(values), tmp_path / f"run-{warmup}")
        told = "config.optimizer.warmup_steps=9 is beyond config.steps=8" in capsys.readouterr().out
        assert told == (warmup == 9)
