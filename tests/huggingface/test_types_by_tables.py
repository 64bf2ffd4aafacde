"""Types whose tables differ in a few keys: what they refuse, what they leave out, and that the guide lists them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden.recordings import recording
from tests.huggingface.test_convert import read
from transformer.config import UserError
from transformer.huggingface.convert import CONVERSIONS, write_model_folder
from transformer.huggingface.decoder_heads import HEAD_LAYERS
from transformer.layers.functional_module import Precision
from transformer.models.model import leaves_by_path
from transformer.models.registry import build, model_config

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "hugging_face.md"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("cohere", "use_qk_norm", True),
        ("cohere", "logit_scale", None),
        ("cohere2", "sliding_window_pattern", 0),
        ("cohere2", "layer_types", ["sliding_attention", "chunked_attention"] * 2),
        ("starcoder2_window", "sliding_window", 1),
        ("gpt_bigcode", "add_cross_attention", True),
        ("falcon", "alibi", True),
        ("falcon", "parallel_attn", False),
        ("falcon", "num_ln_in_parallel_attn", 2),
        ("falcon_groups", "num_ln_in_parallel_attn", 3),
        ("falcon_heads", "num_kv_heads", 2),
        ("mpt", "attn_config", {"clip_qkv": 6.0}),
        ("opt", "word_embed_proj_dim", 16),
        ("opt", "_remove_final_layer_norm", True),
        ("opt", "layer_norm_elementwise_affine", False),
        ("xlm_roberta", "pad_token_id", None),
        ("camembert", "hidden_act", "relu"),
        ("distilbert", "tie_word_embeddings", False),
        ("albert", "inner_group_num", 2),
        ("albert", "num_hidden_groups", 3),
        ("modernbert", "classifier_activation", "relu"),
        ("modernbert", "local_attention", 1),
        ("modernbert", "layer_types", ["full_attention"]),
        ("modernbert", "rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("electra", "hidden_act", "relu"),
        ("mt5", "is_decoder", True),
    ],
)
def test_a_key_of_another_model_is_refused(tmp_path: Path, name: str, key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        read(recording(name), tmp_path, **{key: value})
    said = str(caught.value)
    assert key in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "architecture", "reason"),
    [
        ("distilbert", "DistilBertForMultipleChoice", "a head that chooses among texts"),
        ("electra", "ElectraForPreTraining", "other heads of pre-training"),
        ("albert", "AlbertForPreTraining", "other heads of pre-training"),
        ("modernbert", "ModernBertForMultipleChoice", "a head that chooses among texts"),
    ],
)
def test_heads_that_no_encoder_has_are_refused(tmp_path: Path, name: str, architecture: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read(recording(name), tmp_path, architectures=[architecture])


def test_the_body_of_a_discriminator_is_read(tmp_path: Path) -> None:
    recorded = recording("electra")
    body = {key: value for key, value in recorded.weights.items() if key.startswith("electra.")}
    predictions = {"discriminator_predictions.dense_prediction.bias": np.zeros(1, np.float32)}
    foreign = read(recorded._replace(weights=body | predictions), tmp_path, architectures=["ElectraModel"])
    assert foreign.model["head"] == "none"
    assert foreign.notes == [
        "left out, as its class does not read them: discriminator_predictions.dense_prediction.bias"
    ]


@pytest.mark.parametrize(("name", "classes"), [("distilbert", 3), ("electra", 3)])
def test_heads_of_fine_tuning_go_in_and_out(tmp_path: Path, name: str, classes: int) -> None:
    recorded = recording(name)
    bare = CONVERSIONS[name].other_architectures[0]
    weights = {key: value for key, value in recorded.weights.items() if key.startswith(f"{name}.")}
    weights |= {"classifier.weight": np.ones((classes, 32), np.float32), "classifier.bias": np.ones(classes, "float32")}
    labels = {"id2label": {str(number): f"L{number}" for number in range(classes)}}
    architecture = bare.replace("Model", "ForTokenClassification")
    foreign = read(recorded._replace(weights=weights), tmp_path / "in", architectures=[architecture], **labels)
    assert foreign.model["head"] == "token_classes"
    write_model_folder(tmp_path / "out", model_config(foreign.model), foreign.read_params(), model_type=name)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {key: value.tobytes() for key, value in written.items()} == {
        key: value.tobytes() for key, value in weights.items()
    }
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [architecture]


def test_of_types_that_express_a_model_the_first_is_written(tmp_path: Path) -> None:
    foreign = read(recording("xlm_roberta"), tmp_path / "in")
    model = model_config(foreign.model)
    assert write_model_folder(tmp_path / "first", model, foreign.read_params()).model_type == "roberta"
    chosen = write_model_folder(tmp_path / "chosen", model, foreign.read_params(), model_type="camembert")
    assert chosen.model_type == "camembert"
    for preferred, expected in (("camembert", "camembert"), ("distilbert", "roberta")):
        folder = tmp_path / preferred
        written = write_model_folder(folder, model, foreign.read_params(), preferred_type=preferred)
        assert written.model_type == expected
    with pytest.raises(UserError, match=r"the nearest is distilbert: "):
        write_model_folder(tmp_path / "none", model, foreign.read_params(), model_type="distilbert")


def test_an_mt5_has_a_head_of_its_own_where_its_file_has_one(tmp_path: Path) -> None:
    untied, tied = recording("mt5"), recording("mt5_tied")
    assert not read(untied, tmp_path / "a", tie_word_embeddings=True).model["tie_embeddings"]
    assert read(tied, tmp_path / "b", tie_word_embeddings=False).model["tie_embeddings"]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("cohere_bias", {"norm_bias": True}, "config.model.norm_bias=True"),
        ("cohere2", {"rotary_pattern": ()}, r"config.model.rotary_pattern=\(\) is not global in the layers"),
        ("starcoder2", {"biases": "feed_forward"}, "config.model.biases=feed_forward"),
        ("gpt_bigcode", {"kv_heads": 2}, "config.model.kv_heads=2 is neither 1 nor heads=4"),
        ("gpt_bigcode", {"attention_scale": 0.5}, "config.model.attention_scale=0.5"),
        ("falcon", {"norm_placement": "pre"}, "config.model.norm_placement=pre"),
        ("falcon", {"norm_bias": False}, "config.model.norm_bias=False"),
        ("mpt", {"feed_forward": 96}, "config.model.feed_forward=96 is not 4 x width=128"),
        ("opt", {"position_offset": 1}, "config.model.position_offset=1 is not 2"),
        ("gpt2", {"position_offset": 1}, "config.model.position_offset=1 is not 0"),
        ("distilbert", {"num_token_types": 2}, "config.model.num_token_types=2 is not 0"),
        ("electra", {"activation": "relu"}, "config.model.activation=relu is not gelu"),
        ("bert_pretraining", {"pooler_activation": "relu"}, "config.model.pooler_activation=relu is not tanh"),
        ("bert", {"layer_groups": 1}, "config.model.layer_groups=1 is not None"),
        ("bert", {"pooling": "mean"}, "config.model.pooling=mean is not first"),
        ("electra_small", {"embedding_width": 32}, "config.model.embedding_width=32 has a projection"),
        ("albert", {"layer_groups": None}, "config.model.layer_groups=None, which it always has there"),
        ("modernbert", {"norm_placement": "pre"}, "config.model.norm_placement=pre is not pre_normed_input"),
        ("modernbert", {"head_biases": "blocks"}, "config.model.head_biases=blocks is none of last, all"),
        ("modernbert", {"attention_windows": (1, 2), "rotary_pattern": ("local",)}, "are of several sizes"),
    ],
)
def test_an_export_as_a_type_names_what_that_cannot_express(
    tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    recorded = recording(name)
    foreign = read(recorded, tmp_path / "in")
    model = model_config(foreign.model | changes)
    shapes = build(model, foreign.interface, Precision()).functional.shapes()
    with pytest.raises(UserError, match=said):
        write_model_folder(tmp_path / "out", model, shapes, model_type=recorded.config["model_type"])


def test_the_guide_lists_every_type() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([\w-]+)` \| `(\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    assert dict(rows) == {name: family.model_family for name, family in CONVERSIONS.items()}


def test_the_guide_lists_the_heads_of_every_decoder() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([\w-]+)` \| `decoder` \| ([^|]+) \|", GUIDE.read_text(), re.MULTILINE)
    words = {
        (): "next token",
        ("classes",): "next token, classes of texts",
        ("classes", "span"): "next token, classes of texts, answers",
        ("classes", "token_classes"): "next token, classes of texts and of tokens",
        ("classes", "token_classes", "span"): "next token, fine-tuning",
    }
    assert dict(rows) == {name: words[tuple(HEAD_LAYERS.get(name, ()))] for name, _ in rows}


def test_the_first_mpt_files_name_their_class_otherwise() -> None:
    recorded = recording("mpt")
    usual, first = (
        CONVERSIONS["mpt"].convert_config({**recorded.config, "architectures": [name]}, frozenset(recorded.weights))
        for name in ("MptForCausalLM", "MPTForCausalLM")
    )
    assert usual == first


@pytest.mark.parametrize(
    ("architecture", "changes", "parameters"),
    [
        ("AlbertModel", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}, 11_683_584),
        ("AlbertForMaskedLM", {}, 206_368_944),
        ("ElectraModel", {}, 13_483_008),
        ("ModernBertForMaskedLM", {}, 149_655_232),
        (
            "ModernBertForMaskedLM",
            {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 2624},
            395_881_664,
        ),
    ],
)
def test_published_encoders_have_as_many_parameters_as_there(
    architecture: str, changes: dict[str, Any], parameters: int
) -> None:
    """The numbers are those of transformers 5.24.0: a block that layers share counts once."""
    model_type = re.sub(r"(Model|ForMaskedLM)$", "", architecture).lower()
    pooler = frozenset({"albert.pooler.weight"} if architecture == "AlbertModel" else ())
    config = {"model_type": model_type, "architectures": [architecture], **changes}
    section, interface = CONVERSIONS[model_type].convert_config(config, pooler)
    shapes = build(model_config(section), interface, Precision()).functional.shapes()
    assert sum(leaf.size for leaf in leaves_by_path(shapes).values()) == parameters
