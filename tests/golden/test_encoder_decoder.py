"""The encoder-decoder with PyTorch's weights gives PyTorch's logits."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.functional_module import Precision
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Biases
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.model import Variables
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface

RENEW = (
    "the logits recorded from PyTorch are not reached. The weights are PyTorch's own, so a change of the model's "
    "equations is a fault here. Renew the file with tests/golden/make_encoder_decoder.py only to record other "
    "sizes or inputs; where only names or layouts of parameters changed, change `parameters` in this test"
)
HEADS, LAYERS = 4, 2


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).with_name("encoder_decoder.npz")) as file:
        return {name.removeprefix("weights/"): file[name] for name in file.files}


def parameters(recorded: dict[str, np.ndarray], placement: NormPlacement) -> dict[str, Any]:
    """PyTorch's weights by our names: kernels are transposed, heads have their own axis, layers are stacked."""
    width = recorded["embedding"].shape[1]

    def norm(name: str) -> dict[str, np.ndarray]:
        return {"scale": recorded[f"{name}.weight"], "bias": recorded[f"{name}.bias"]}

    def linear(name: str) -> dict[str, np.ndarray]:
        return {"kernel": recorded[f"{name}.weight"].T, "bias": recorded[f"{name}.bias"]}

    def attention(name: str) -> dict[str, Any]:
        found = {}
        kernels, biases = (np.split(recorded[f"{name}.in_proj_{part}"], 3) for part in ("weight", "bias"))
        for projection, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
            found[projection] = {"kernel": kernel.T.reshape(width, HEADS, -1), "bias": bias.reshape(HEADS, -1)}
        output = linear(f"{name}.out_proj")
        return found | {"output": output | {"kernel": output["kernel"].reshape(HEADS, -1, width)}}

    def layer(name: str, cross: bool) -> dict[str, Any]:
        found = {
            "attention": attention(f"{name}.self_attn"),
            "attention_residual": {"norm": norm(f"{name}.norm1")},
            "feed_forward": {"expand": linear(f"{name}.linear1"), "contract": linear(f"{name}.linear2")},
            "feed_forward_residual": {"norm": norm(f"{name}.norm{3 if cross else 2}")},
        }
        if cross:
            found["cross"] = attention(f"{name}.multihead_attn")
            found["cross_residual"] = {"norm": norm(f"{name}.norm2")}
        return found

    found: dict[str, Any] = {"embedding": {"table": recorded["embedding"]}}
    for side in ("encoder", "decoder"):
        layers = [layer(f"{side}.layers.{index}", side == "decoder") for index in range(LAYERS)]
        found[side] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
        if placement is NormPlacement.PRE:
            found[f"{side}_norm"] = norm(f"{side}.norm")
    return found


# PyTorch's modules have these two.
@pytest.mark.parametrize("placement", [NormPlacement.POST, NormPlacement.PRE], ids=lambda placement: placement.value)
def test_pytorchs_weights_give_pytorchs_logits(recorded: dict[str, np.ndarray], placement: NormPlacement) -> None:
    vocabulary, width = recorded["embedding"].shape
    inputs = {name: jnp.asarray(recorded[name]) for name in ("source", "target")}
    config = EncoderDecoderConfig(
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        width=width,
        heads=HEADS,
        feed_forward=recorded["encoder.layers.0.linear1.bias"].size,
        norm_placement=placement,
        biases=Biases.ALL,
    )
    shapes = {name: InputSpec(value.shape, value.dtype) for name, value in inputs.items()}
    model = build(config, TaskInterface(shapes, {"joint": vocabulary}, 0, 1, 2), Precision())
    params = parameters(recorded, placement)
    expected_shapes = jax.tree.map(lambda leaf: leaf.shape, model.functional.shapes())
    assert jax.tree.map(lambda leaf: leaf.shape, params) == expected_shapes
    with jax.default_matmul_precision("highest"):
        logits, _ = jax.jit(lambda params: model.apply(Variables(params, {}), inputs, train=False))(params)
    expected = recorded[f"logits/{placement.value}"]
    assert np.abs(expected).max() > 1
    # A padded target place sees nothing here and its own past there; its logits count nowhere.
    real = recorded["target"] != 0
    assert real.mean() > 0.5
    np.testing.assert_allclose(logits[real], expected[real], rtol=0, atol=1e-4, err_msg=RENEW)
