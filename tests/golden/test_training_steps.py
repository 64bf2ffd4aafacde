"""The loss before and after one step of gradient descent is that recorded of transformers."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden.recordings import model_of, recording
from transformer.models.model import Variables

RECORDED = json.loads(Path(__file__).with_name("training_steps.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED["losses"])
def test_one_step_of_gradient_descent_has_the_losses_recorded(name: str, tmp_path: Path) -> None:
    recorded = recording(name)
    model, params = model_of(name, recorded, tmp_path)
    arrays, decodes = recorded.arrays, recorded.about["kind"] == "encoder_decoder"
    inputs = (
        {"source": arrays["ids"], "target": arrays["target"]}
        if decodes
        else {"tokens": arrays["ids"], "lengths": arrays["lengths"]}
    )
    read, lengths = (arrays["target"], arrays["target_lengths"]) if decodes else (arrays["ids"], arrays["lengths"])
    counts = (np.arange(1, read.shape[1]) < lengths[:, None]).astype(np.float32)

    def loss(params: Any) -> Any:
        logits, _ = model.apply(Variables(params, {}), inputs, train=False)
        likelihood = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), read[:, 1:, None], axis=2)[..., 0]
        return -jnp.sum(likelihood * counts) / counts.sum()

    @jax.jit
    def losses(params: Any) -> Any:
        before, gradient = jax.value_and_grad(loss)(params)
        after = jax.tree.map(lambda value, slope: value - RECORDED["rate"] * slope, params, gradient)
        constants = {name: params[name] for name in ("output_bias",) if name in params}
        return before, loss({**after, **constants})

    with jax.default_matmul_precision("highest"):
        found = jax.device_get(losses(jax.tree.map(jnp.asarray, params)))
    assert found[0] - found[1] > 0.1
    np.testing.assert_allclose(found, RECORDED["losses"][name], rtol=0, atol=1e-5)
