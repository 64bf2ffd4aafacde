"""What trains trials: the code that a trial store names is only run where somebody vouches for it."""

import sys
from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory
from transformer.studies.sweeps.model_trainer import ModelTrainer
from transformer.studies.sweeps.trials import trial_from_config

FAMILY = "lab_of_a_stranger.model"
CONFIG = {"name": "x", "steps": 1, "task": {"name": "translation"}, "model": {"family": FAMILY}, "optimizer": {}}
CODE = trial_from_config({}, CONFIG)


def test_a_trial_runs_no_code_that_nobody_vouches_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_of_a_stranger").mkdir()
    (tmp_path / "lab_of_a_stranger" / "model.py").write_text("raise RuntimeError('executed')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    trainer, directory = ModelTrainer(), RunDirectory(tmp_path / "run")
    for act in (
        lambda: trainer.train(CODE, directory, lambda *told: None),
        lambda: trainer.program_key(CODE),
        lambda: trainer.train_together([CODE], [directory]),
    ):
        with pytest.raises(UserError, match=f"add --trust={FAMILY} if"):
            act()
    assert not any(name.startswith("lab_of_a_stranger") for name in sys.modules)
    with pytest.raises(RuntimeError, match="executed"):
        ModelTrainer(trusted_names=[FAMILY]).program_key(CODE)
