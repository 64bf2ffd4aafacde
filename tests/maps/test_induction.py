"""The experiment on induction, whole: its run says by itself when a head began to copy what followed."""

from pathlib import Path

import pytest

from launch.config_files import load_config
from transformer.maps.report.head_history import describe_role, last_step_roles
from transformer.maps.role_rules import Role
from transformer.maps.store import MapStore
from transformer.runs.jsonl_reading import read_records
from transformer.training.config import resolve_config
from transformer.training.driver import train

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_run_names_its_induction_heads_and_their_onset(tmp_path: Path) -> None:
    train(
        resolve_config(
            load_config(str(CHECKOUT / "experiments/induction_heads/configs/two_layer_transformer.py")).to_dict()
        ),
        tmp_path / "run",
    )
    store = MapStore.open_existing(tmp_path / "run" / "maps")
    found = [role for role in last_step_roles(store) if role.role is Role.INDUCTION]
    assert found
    # It takes two layers: one finds what stood before, the next looks for it.
    assert {role.layer for role in found} == {1}
    onset = found[0].onset_step
    assert 200 <= onset <= 600
    assert f"became an induction head at step {onset}" in describe_role(found[0], store)
    losses = {
        line["step"]: line["loss"]
        for line in read_records(tmp_path / "run" / "metrics.jsonl")
        if line["split"] == "train"
    }
    # The loss falls where the head rises: more in the 200 steps around the onset than in all the steps before.
    assert losses[onset - 100] - losses[onset + 100] > losses[25] - losses[onset - 100]
    assert losses[onset - 100] - losses[onset + 100] > 1
