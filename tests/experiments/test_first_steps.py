"""Every config, with every argument that it takes, makes batches and takes two steps at a small size."""

import numpy as np
import pytest

from tests.experiments.first_steps import configs, first_steps


@pytest.mark.slow
@pytest.mark.parametrize("name", configs())
def test_a_config_takes_two_steps(name: str) -> None:
    steps = first_steps(name, None, num_steps=2, largest=0)["steps"]
    assert len(steps) == 2
    for step in steps:
        assert [metric for metric, value in step.items() if not np.isfinite(value).all()] == []
        assert [step[metric] for metric in step if "skipped_updates" in metric] == [0]
