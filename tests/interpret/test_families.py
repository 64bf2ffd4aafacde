"""Every family that reads texts by a tokenizer is looked at, by its task's reader, with none of the task's data."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.case import Case
from tests.contracts.cases import CASES
from tests.models.random_models import fresh_variables
from transformer.attention.sites import MapValues
from transformer.interpret.load import LoadedModel, _build_model
from transformer.tasks import registry as tasks
from transformer.tasks.fine_tuning import TEXT_SEPARATOR, FineTuningConfig
from transformer.tasks.question_answering import QuestionAnsweringConfig
from transformer.tasks.task import load_run_tokenizer
from transformer.training.build import build_components
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.partitioning import single_device_placement

QUICK = ("language_modeling x recurrent_decoder", "classification x recurrent_classifier")
READERS = {name: tasks.TASKS[name].input_reader for name in tasks.TASKS.all_names()}
READ = [
    case
    for case in CASES
    if (reader := READERS.get(case.task["name"])) is not None and reader.load_preprocessor is load_run_tokenizer
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow) for case in READ],
)
def test_a_family_reads_texts(case: Case, tmp_path: Path) -> None:
    experiment = case.experiment(OptimizerAlgorithm.ADAM, 0.01)
    reader = tasks.TASKS[tasks.task_name(experiment.task)].input_reader
    assert reader is not None
    task = build_components(experiment, tmp_path, single_device_placement()).task
    tokenizer = task.tokenizer  # type: ignore[attr-defined]  # of every task over texts
    interfaces = (reader.make_task_interface(experiment.task, tokenizer), task.interface)
    # How long a run's own prompts are only their data say.
    read, own = (dataclasses.replace(interface, max_decoded_length=0) for interface in interfaces)
    assert read == own
    model = _build_model(experiment, tokenizer)
    loaded = LoadedModel(experiment, model, fresh_variables(model), tokenizer, {})
    probed = next(iter(task.probe_batch.values()))  # type: ignore[attr-defined]
    match experiment.task:
        case FineTuningConfig():
            texts = experiment.task.shape.num_texts
        case QuestionAnsweringConfig():
            texts = 2  # the question and its context
        case _:
            texts = 1
    text = TEXT_SEPARATOR.join([tokenizer.decode(probed[0][:6])] * texts)
    sides = (text, text) if "target" in task.interface.inputs else (text,)
    language = tokenizer.languages[0] if len(sides) == 2 and tokenizer.languages else None
    if not model.sites:
        return
    maps = loaded.run_with_maps(*sides, language=language)
    for site in model.sites:
        layer = maps[site.name][-1]
        # A context is read with each of its answers.
        assert layer.shape[:2] == (max(texts - 1, 1), len(site.heads))
        assert layer.shape[2:] == (len(layer.queries[0]), len(layer.keys[0]))
        if site.values is MapValues.PROBABILITY:
            rows = layer.weights.sum(-1)
            assert np.all((abs(rows - 1) < 1e-5) | (rows == 0))
