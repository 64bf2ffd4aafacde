"""Heads of decoders, and models without a head: outputs are those of transformers, and folders go in and out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden.recordings import head_recording, recorded_heads
from transformer.config import UserError
from transformer.huggingface.convert import CONVERSIONS, PublishedModel, open_model_folder, write_model_folder
from transformer.huggingface.decoder_heads import HEAD_LAYERS
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface

CASES = sorted(recorded_heads()[0]["cases"])
# XLNet's choice writes zeros for what it does not read.
TYPES = [case for case in CASES if case not in ("bert/none", "xlnet/choice")]


def read(case: str, folder: Path, *, without: tuple[str, ...] = (), **config: Any) -> PublishedModel:
    found = head_recording(case)
    weights = {key: value for key, value in found.weights.items() if key not in without}
    found._replace(about={**found.about, "config": found.config | config}, weights=weights).write(folder)
    return open_model_folder(folder)


# One of every head and of every kind of body; `make slow` takes the others.
QUICK = (
    "gpt2/classes",
    "llama/token_classes",
    "llama/none",
    "qwen3/span",
    "vit/none",
    "xlnet/none",
    "marian/none",
    "t5/classes",
    "t5/token_classes",
    "electra/choice",
)


def quick_or_slow(cases: list[str]) -> list[Any]:
    return [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in cases]


@pytest.mark.parametrize("case", quick_or_slow(CASES))
def test_outputs_are_those_recorded(case: str, tmp_path: Path) -> None:
    found, foreign = head_recording(case), read(case, tmp_path)
    interface, kind = foreign.interface, found.about["kind"]
    inputs = {}
    lengths = np.array(recorded_heads()[0]["target_lengths" if kind == "encoder_decoder" else "lengths"], np.int32)
    if kind == "encoder_decoder":
        rows, start = foreign.model["vocab_size"], found.config["decoder_start_token_id"]
        interface = TaskInterface({}, {"tokens": rows, "joint": rows}, found.config["pad_token_id"], start, None)
        inputs = {"source": found.arrays["ids"], "target": found.arrays["target"]}
    elif kind == "image":
        inputs = {"image": found.arrays["image"].transpose(0, 2, 3, 1)}
    else:
        lengths = found.arrays.get("lengths", lengths).astype(np.int32)
        inputs = {"tokens": found.arrays["ids"], "lengths": lengths}
        interface = dataclasses.replace(interface, bos_id=found.config.get("decoder_start_token_id"))
    model = build(model_config(foreign.model), interface, Precision())
    params = foreign.read_params()
    # A body whose config ties it has the head of next tokens: its states are what that reads.
    method = "forward" if foreign.model.get("head") != "next_tokens" else "hidden"
    with jax.default_matmul_precision("highest"), jax.disable_jit():
        outputs, aux = model.apply(Variables(params, {}), inputs, method=method, train=False)
    expected = found.arrays["outputs"]
    outputs = np.asarray(outputs)
    if expected.ndim == 3 and kind != "image":
        outputs = np.where((np.arange(expected.shape[1]) < lengths[:, None])[..., None], outputs, 0)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-4)
    if "pooled" in found.arrays:
        np.testing.assert_allclose(aux.extras["pooled"], found.arrays["pooled"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", quick_or_slow(TYPES))
def test_a_round_trip_has_the_same_class_and_the_same_bits(case: str, tmp_path: Path) -> None:
    found, foreign = head_recording(case), read(case, tmp_path / "in")
    model_type = found.config["model_type"]
    write_model_folder(tmp_path / "out", model_config(foreign.model), foreign.read_params(), model_type=model_type)
    written = load_file(tmp_path / "out" / "model.safetensors")
    # The positions of these are computed; an export has them, too.
    computed = model_type in ("marian", "pegasus")
    constants = {name: written.pop(name) for name in list(written) if computed and "embed_positions" in name}
    if computed:
        angles = np.arange(24)[:, None] / 10000 ** (np.arange(32) // 2 * 2 / 32)
        expected = np.concatenate([np.sin(angles[:, ::2]), np.cos(angles[:, 1::2])], axis=1)
        assert len(constants) == 2
        for value in constants.values():
            np.testing.assert_allclose(value, expected, atol=1e-7)
        found = found._replace(
            weights={name: value for name, value in found.weights.items() if "embed_pos" not in name}
        )
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    # A body that its config ties is written as the model of next tokens that it was read as.
    spec, tied = CONVERSIONS[model_type], case.endswith("/none") and foreign.model.get("head") == "next_tokens"
    # The class of these that predicts tokens has a bias of its logits, which the body has not.
    biased = model_type in ("marian", "bart", "mbart", "blenderbot", "pegasus")
    expected_class = spec.architecture if tied and not biased else found.about["architecture"]
    assert config["architectures"] == [expected_class]
    prefix = spec.optional_prefix
    names = {name if name in written else prefix + name: value for name, value in found.weights.items()}
    assert {name: value.tobytes() for name, value in written.items()} == {
        name: value.tobytes() for name, value in names.items()
    }
    again = open_model_folder(tmp_path / "out")
    assert (again.model, again.interface) == (foreign.model, foreign.interface)
    assert [note for note in again.notes if not note.startswith("no preprocessor_config.json")] == []
    if case.endswith("/classes"):
        assert (config["num_labels"], config["problem_type"]) == (3, "single_label_classification")


def test_the_classes_of_every_type_are_those_that_were_recorded() -> None:
    for model_type, spec in CONVERSIONS.items():
        if spec.model_family == "decoder":
            heads = {case.partition("/")[2] for case in CASES if case.startswith(f"{model_type}/")}
            assert heads == {*HEAD_LAYERS.get(model_type, {}), "none"}, model_type


KNOWN_BY_TENSORS = [
    case
    for case in CASES
    if case.partition("/")[0] in (*HEAD_LAYERS, "bert_pair", "electra", "bart") and not case.endswith("/choice")
]


@pytest.mark.parametrize("case", quick_or_slow(KNOWN_BY_TENSORS))
def test_a_folder_that_names_no_class_is_known_by_its_tensors(case: str, tmp_path: Path) -> None:
    named, unnamed = read(case, tmp_path / "named"), read(case, tmp_path / "unnamed", architectures=None)
    assert unnamed.model == named.model


def test_the_state_of_the_last_token_is_read_and_not_that_of_padding(tmp_path: Path) -> None:
    """As the class finds it by the padding token: a longer or a shorter text has other logits."""
    found, foreign = head_recording("gpt2/classes"), read("gpt2/classes", tmp_path)
    model = build(model_config(foreign.model), foreign.interface, Precision())
    lengths = np.array(recorded_heads()[0]["lengths"], np.int32)
    ids = found.arrays["ids"]
    # What stands in the padding, the class's own rule included, changes nothing.
    padding = np.arange(ids.shape[1]) >= lengths[:, None]
    for inputs, equal in (
        ({"tokens": np.where(padding, 7, ids), "lengths": lengths}, True),
        ({"tokens": ids, "lengths": np.maximum(lengths - 1, 1)}, False),
    ):
        with jax.disable_jit():
            logits, _ = model.apply(Variables(foreign.read_params(), {}), inputs, train=False)
        assert (np.abs(logits - found.arrays["outputs"]).max() < 1e-4) == equal


@pytest.mark.parametrize(
    ("case", "changes", "reason"),
    [
        ("gpt2/classes", {"problem_type": "multi_label_classification"}, "problem_type='multi_label_classification'"),
        ("llama/classes", {"problem_type": "regression"}, "problem_type='regression' with 3 outputs"),
        ("mistral/classes", {"architectures": ["MistralForMultipleChoice"]}, "which has a head that chooses among"),
        ("granite/none", {"architectures": ["GraniteForSequenceClassification"]}, "which has a head of classes of"),
        ("mbart/none", {"architectures": ["MBartForQuestionAnswering"]}, "which has a head that finds answers"),
        ("electra/choice", {"summary_activation": "relu"}, "summary_activation='relu'; only 'gelu' can be read"),
        ("vit/none", {"pooler_act": "relu"}, "pooler_act='relu'; only 'tanh' can be read"),
        ("vit/none", {"architectures": ["ViTForMaskedImageModeling"]}, "which has a head that restores images"),
    ],
)
def test_a_class_of_which_ours_know_nothing_is_refused_by_name(
    case: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        read(case, tmp_path, **changes)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_tensor_of_a_head_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the tensor 'score\.weight' of shape \(3, 32\) is missing"):
        read("llama/classes", tmp_path, without=("score.weight",))


def test_a_model_with_two_heads_has_no_class(tmp_path: Path) -> None:
    foreign = read("gpt2/classes", tmp_path / "in")
    both = model_config(foreign.model | {"head": "next_tokens"})
    shapes = build(both, foreign.interface, Precision()).functional.shapes()
    with pytest.raises(UserError, match=r"config\.model\.head=next_tokens with 3 classes is two heads"):
        write_model_folder(tmp_path / "out", both, shapes, model_type="gpt2")
    model_with_classes = model_config(read("granite/none", tmp_path / "body").model | {"head": "classes"})
    shapes = build(model_with_classes, foreign.interface, Precision()).functional.shapes()
    with pytest.raises(UserError, match=r"config\.model\.head=classes is none of next_tokens, none"):
        write_model_folder(tmp_path / "other", model_with_classes, shapes, model_type="granite")


def test_a_body_has_no_logits_of_tokens(tmp_path: Path) -> None:
    foreign = read("llama/none", tmp_path)
    assert foreign.model["head"] == "none"
    model = build(model_config(foreign.model), foreign.interface, Precision())
    params = foreign.read_params()
    assert "unembedding" not in params
    with pytest.raises(ValueError, match="no head of next tokens"):
        model.logits(Variables(params, {}), jnp.zeros((1, 2, 32)))
