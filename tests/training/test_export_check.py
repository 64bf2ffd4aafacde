"""What a run says of its export is what the export does."""

from pathlib import Path
from typing import Any

import pytest

from tests.training import small_run
from transformer.tasks import registry as tasks
from transformer.training import driver
from transformer.training.config import resolve_config
from transformer.training.export_check import describe_export


def said(model: dict[str, Any]) -> str:
    experiment = resolve_config({**small_run.CONFIG, "model": model})
    return describe_export(experiment, tasks.build_synthetic_task(experiment.task))


def test_a_model_exports_as_the_first_type_that_fits_or_says_the_nearest_and_what_it_lacks() -> None:
    model = small_run.CONFIG["model"]
    assert said({**model, "biases": "all"}) == "exports as gpt2 of Hugging Face"
    assert said({**model, "biases": "all", "lora": {"rank": 2}}) == "exports as gpt2 of Hugging Face"
    assert said(model) == (
        "has no export to Hugging Face, which training does not need: the nearest type is gpt2, but "
        "config.model.biases=none is not all"
    )
    several = said({**model, "head_dim": 3})
    assert several.endswith(" (and 1 more)")
    assert several.count("config.model.") == 1
    assert said({"family": "recurrent_decoder", "width": 8}).startswith(
        "has no export to Hugging Face, which training does not need: Hugging Face has no model of "
        "config.model.family='recurrent_decoder': "
    )


class Reached(Exception):
    """The training step is about to be made."""


@pytest.mark.parametrize(("biases", "says"), [("all", ["exports as gpt2 of Hugging Face"]), ("none", [])])
def test_a_run_says_before_it_compiles_that_it_exports_and_nothing_if_it_does_not(
    biases: str,
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def reached(*about: Any) -> None:
        raise Reached

    monkeypatch.setattr(driver, "compile_run_probe", reached)
    with pytest.raises(Reached):
        driver.train(
            resolve_config({**small_run.CONFIG, "model": {**small_run.CONFIG["model"], "biases": biases}}),
            tmp_path / "run",
        )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "export" in line] == says
