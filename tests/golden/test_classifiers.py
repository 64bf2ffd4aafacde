"""Encoders that classify texts: logits, loss and one step of gradient descent are those of transformers, both ways."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden.recordings import Recording, recording
from transformer.config import UserError
from transformer.huggingface.convert import read_model_folder, write_model_folder
from transformer.layers.functional_module import Precision
from transformer.models.model import PyTree, Variables
from transformer.models.registry import build, model_config
from transformer.tasks.losses import class_loss

FOLDER = Path(__file__).with_name("classifiers")


@pytest.mark.parametrize("name", ["bert", "bert_score", "roberta"])
def test_logits_loss_and_one_step_are_those_recorded(name: str, tmp_path: Path) -> None:
    recorded = recording(name, FOLDER)
    recorded.write(tmp_path / "published")
    imported = read_model_folder(tmp_path / "published")
    config = model_config(imported.model)
    model = build(config, imported.interface, Precision())
    names = {"ids": "tokens", "lengths": "lengths", "types": "types"}
    inputs = {ours: recorded.arrays[theirs] for theirs, ours in names.items() if theirs in recorded.arrays}
    labels_B = jnp.asarray(recorded.arrays["labels"])

    def loss(params: PyTree) -> tuple[jax.Array, jax.Array]:
        logits_BxC, _ = model.apply(Variables(params, {}), inputs, train=False)
        if name == "bert_score":
            return jnp.mean((logits_BxC[:, 0] - labels_B) ** 2), logits_BxC
        return class_loss(logits_BxC, labels_B, jnp.full(len(labels_B), True)).cross_entropy / len(labels_B), logits_BxC

    with jax.default_matmul_precision("highest"):
        (found, logits_BxC), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(imported.params)
    np.testing.assert_allclose(logits_BxC, recorded.arrays["logits"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found, recorded.arrays["loss"], rtol=1e-5)
    rate = recorded.about["learning_rate"]
    updated = jax.tree.map(lambda leaf, change: np.asarray(leaf - rate * change), imported.params, gradient)
    write_model_folder(tmp_path / "written", config, updated)
    assert_holds(tmp_path / "written", recorded)


def assert_holds(folder: Path, recorded: Recording) -> None:
    """A folder has the recorded class and the recorded tensors behind the step."""
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    assert config["architectures"] == [recorded.about["architecture"]]
    assert config["num_labels"] == recorded.arrays["logits"].shape[1]
    expected = {key.removeprefix("updated/"): value for key, value in recorded.arrays.items() if "/" in key}
    assert tensors.keys() == expected.keys()
    for key, value in expected.items():
        moved = np.abs(value - recorded.weights[key]).max()
        assert moved > 1e-4 or "key.bias" in key, f"{key} has no gradient, which would prove nothing"
        np.testing.assert_allclose(tensors[key], value, rtol=0, atol=1e-5, err_msg=key)


def read(tmp_path: Path, **changed: Any) -> Any:
    recorded = recording("bert", FOLDER)
    recorded = recorded._replace(about={**recorded.about, "config": recorded.config | changed})
    recorded.write(tmp_path)
    return read_model_folder(tmp_path)


def test_classes_are_counted_by_their_names_and_heads_of_other_problems_are_told(tmp_path: Path) -> None:
    imported = read(tmp_path / "nameless", architectures=None)
    assert (imported.model["head"], imported.interface.vocabularies["classes"]) == ("classes", 3)
    with pytest.raises(UserError, match=r"'classifier.weight' has the shape \(3, 32\); its config asks for \(2, 32\)"):
        read(tmp_path / "fewer", id2label={"0": "no", "1": "yes"})
    with pytest.raises(UserError, match=r"architectures=\['BertForTokenClassification'\]: of the models with a class"):
        read(tmp_path / "tokens", architectures=["BertForTokenClassification"])
