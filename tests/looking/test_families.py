"""Every family that reads texts is looked at, by the reader that its task exports, with none of the task's data."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests import programs
from tests.contracts.cases import CASES, Case
from transformer.attention.sites import Values
from transformer.looking.load import _model
from transformer.looking.loaded import Loaded
from transformer.tasks import registry as tasks
from transformer.training.assembly import assemble
from transformer.training.mesh import one_device
from transformer.training.optimizer import Algorithm

QUICK = ("language_modelling x recurrent_decoder", "classification x recurrent_classifier")
KINDS = {name: tasks.TASKS[name] for name in tasks.TASKS.names()}
READ = [case for case in CASES if (kind := KINDS.get(case.config["task"]["name"])) and kind.reader]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow) for case in READ],
)
def test_a_family_reads_texts(case: Case, tmp_path: Path) -> None:
    experiment = case.experiment(Algorithm.ADAM, 0.01)
    reader = tasks.TASKS[tasks.name_of(experiment.task)].reader
    assert reader is not None
    task = assemble(experiment, tmp_path, one_device()).task
    tokenizer = task.tokenizer  # type: ignore[attr-defined]  # of every task over texts
    assert reader.interface(experiment.task, tokenizer) == dataclasses.replace(task.interface, decoded=0)
    model = _model(experiment, tokenizer)
    loaded = Loaded(experiment, model, programs.initial(model.init), tokenizer, {})
    probed = next(iter(task.probed.values()))  # type: ignore[attr-defined]
    text = tokenizer.decode(probed[0][:6])
    sides = (text, text) if "target" in task.interface.inputs else (text,)
    language = tokenizer.languages[0] if len(sides) == 2 and tokenizer.languages else None
    if not model.sites:
        return
    maps = loaded.run_with_maps(*sides, language=language)
    for site in model.sites:
        layer = maps[site.name][-1]
        assert layer.shape[:2] == (1, len(site.heads))
        assert layer.shape[2:] == (len(layer.queries[0]), len(layer.keys[0]))
        if site.values is Values.PROBABILITY:
            rows = layer.weights.sum(-1)
            assert np.all((abs(rows - 1) < 1e-5) | (rows == 0))
