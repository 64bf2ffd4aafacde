"""Types whose tables differ in a few keys: what they refuse, what they leave out, and what an export writes."""

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
from transformer.costs.model_sizes import count_active_parameters
from transformer.huggingface.convert import CONVERSIONS, write_model_folder
from transformer.huggingface.parameter_conversion import parameter_shapes
from transformer.layers.functional_module import Precision
from transformer.models.model import leaves_by_path
from transformer.models.registry import build, model_config

EXPERTS = {"count": 5, "gating": "top_k"}


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
        ("deberta", "conv_kernel_size", 3),
        ("deberta", "share_att_key", False),
        ("deberta", "pos_att_type", ["c2p"]),
        ("deberta", "position_biased_input", True),
        ("deberta", "embedding_size", 12),
        ("deberta", "attention_head_size", 8),
        ("deberta", "tie_word_embeddings", False),
        ("deberta", "max_relative_positions", 3),
        ("deberta", "position_buckets", 5),
        ("deberta_absolute", "pos_att_type", ["c2p"]),
        ("electra", "hidden_act", "relu"),
        ("mt5", "is_decoder", True),
        ("mixtral", "num_experts_per_tok", 6),
        ("mixtral", "num_local_experts", 0),
        ("qwen2_moe", "shared_expert_intermediate_size", 0),
        ("qwen2_moe", "layer_types", ["chunked_attention", "full_attention"]),
        ("qwen3_moe", "decoder_sparse_step", 2),
        ("qwen3_moe", "mlp_only_layers", [1]),
        ("qwen3_moe_window", "sliding_window", 1),
        ("olmoe", "clip_qkv", 8.0),
        ("gpt_oss", "swiglu_limit", 5.0),
        ("gpt_oss", "swiglu_alpha", 1.0),
        ("gpt_oss", "layer_types", ["sliding_attention", "chunked_attention"]),
    ],
)
def test_a_key_of_another_model_is_refused(tmp_path: Path, name: str, key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        read(recording(name), tmp_path, **{key: value})
    said = str(caught.value)
    assert key in said
    assert "\n" not in said


_QWEN3_30B = {
    "num_hidden_layers": 48,
    "head_dim": 128,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "max_window_layers": 48,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
}


@pytest.mark.parametrize(
    ("model_type", "config", "billions", "active"),
    [
        # Jiang et al. 2024 and their announcement; all other keys of their config.json have the defaults of its class.
        ("mixtral", {}, 46.7, 12.9),
        # Yang et al. 2025, table 2.
        ("qwen3_moe", _QWEN3_30B, 30.5, 3.3),
        # Muennighoff et al. 2024, table 1.
        ("olmoe", {"intermediate_size": 1024}, 6.9, 1.3),
        # OpenAI 2025, table 1, which leaves the embedding table out of the active parameters.
        ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}, 20.91, 3.61),
        ("gpt_oss", {}, 116.83, 5.13),
        # Qwen1.5-MoE-A2.7B.
        ("qwen2_moe", {}, 14.3, 2.7),
    ],
)
def test_a_published_mixture_has_the_published_number_of_parameters(
    model_type: str, config: dict[str, Any], billions: float, active: float
) -> None:
    section, interface = CONVERSIONS[model_type].convert_config(
        {"model_type": model_type, "vocab_size": CONVERSIONS[model_type].class_keys["vocab_size"][1], **config},
        frozenset(),
    )
    model = model_config(section)
    shapes = parameter_shapes(build(model, interface, Precision()).functional.shapes())
    sizes = {path: int(np.prod(shape)) for path, shape in shapes.items()}
    assert sum(sizes.values()) / 1e9 == pytest.approx(billions, rel=0.003)
    table = sizes["embedding/table"] if model_type == "gpt_oss" else 0
    assert (count_active_parameters(model, sizes) - table) / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gpt_oss", r"experts in MXFP4 are not read; .*quantization_config=Mxfp4Config\(dequantize=True\)"),
        ("llama", r"only float weights can be read; .*dequantize=True"),
    ],
)
def test_quantized_weights_are_refused_with_what_to_do(tmp_path: Path, name: str, advice: str) -> None:
    with pytest.raises(UserError, match=rf"quantization_config=\{{'quant_method': 'mxfp4'\}}.*: {advice}"):
        read(recording(name), tmp_path, quantization_config={"quant_method": "mxfp4"})


def test_experts_are_balanced_where_the_library_balances_them(tmp_path: Path) -> None:
    weights = [
        read(recording("mixtral"), tmp_path / str(shown), output_router_logits=shown).model["experts"]["balance_loss"]
        for shown in (True, False)
    ]
    assert weights == [0.05, 0.0]
    noted = read(recording("mixtral"), tmp_path / "noise", router_jitter_noise=0.1).notes
    assert noted == ["config.json has router_jitter_noise=0.1; further training has no such dropout"]


def test_rotary_positions_that_gpt_oss_does_not_name_are_those_of_its_class(tmp_path: Path) -> None:
    scaled = read(recording("gpt_oss"), tmp_path / "scaled", rope_parameters=None).model
    assert scaled["rotary_base"] == 150000.0
    assert (scaled["rotary_scaling"]["kind"], scaled["rotary_scaling"]["factor"]) == ("yarn", 32.0)
    assert not scaled["rotary_scaling"]["truncate"]
    plain = read(recording("gpt_oss"), tmp_path / "plain", rope_parameters={"rope_type": "default"}).model
    assert (plain["rotary_base"], plain["rotary_scaling"]["kind"]) == (150000.0, "none")


@pytest.mark.parametrize(
    ("name", "architecture", "reason"),
    [
        ("electra", "ElectraForPreTraining", "other heads of pre-training"),
        ("albert", "AlbertForPreTraining", "other heads of pre-training"),
    ],
)
def test_heads_that_no_encoder_has_are_refused(tmp_path: Path, name: str, architecture: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read(recording(name), tmp_path, architectures=[architecture])


def test_either_name_of_debertas_head_is_read_as_its_class_reads_it(tmp_path: Path) -> None:
    recorded = recording("deberta")
    usual = read(recorded, tmp_path / "usual")
    names = {
        "cls.predictions.transform.": "lm_predictions.lm_head.",
        "cls.predictions.bias": "lm_predictions.lm_head.bias",
    }
    weights = dict(recorded.weights)
    for old, new in names.items():
        weights = {key.replace(old, new): value for key, value in weights.items()}
    published = recorded._replace(weights=weights)
    other = read(published, tmp_path / "new", legacy=False)
    assert other.model == usual.model
    # A head of classes that is added to it begins with a pooler as its class has it.
    assert usual.model["pooler_activation"] == "gelu"
    found, expected = (leaves_by_path(foreign.read_params()) for foreign in (other, usual))
    assert all(np.array_equal(found[path], leaf) for path, leaf in expected.items())
    with pytest.raises(UserError, match=r"legacy=true, .* the file has lm_predictions.lm_head: say legacy=false"):
        read(published, tmp_path / "wrong")
    # The published files name no class: what AutoModel reads of them is the body.
    body = read(published, tmp_path / "body", architectures=None)
    assert body.model["head"] == "none"
    assert any("does not read them: lm_predictions.lm_head.LayerNorm.bias" in note for note in body.notes)


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
        ("mixtral", {"experts": {}}, "config.model.experts.count=0 is not above 0"),
        (
            "mixtral",
            {"experts": EXPERTS | {"gating": "softmax"}},
            "config.model.experts.gating=softmax is none of top_k",
        ),
        ("olmoe", {"experts": {"count": 5}}, "config.model.experts.gating=noisy_top_k is none of top_k, softmax"),
        ("olmoe", {"experts": EXPERTS | {"router_bias": True}}, "config.model.experts.router_bias=True is not False"),
        ("qwen2_moe", {"experts": EXPERTS}, "config.model.experts.shared_feed_forward=0 is not above 0"),
        ("qwen3_moe", {"experts": EXPERTS | {"shared_feed_forward": 8}}, "shared_feed_forward=8 is not 0"),
        ("gpt_oss", {"experts": EXPERTS}, "config.model.experts.router_bias=False is not True"),
        ("gpt_oss", {"attention_sinks": False}, "config.model.attention_sinks=False is not True"),
        (
            "qwen3_moe",
            {"experts": EXPERTS | {"every_n_layers": 2}},
            "config.model.experts.every_n_layers=2 is not 1",
        ),
        ("llama", {"experts": EXPERTS}, "config.model.experts.count=5 is not 0"),
        ("distilbert", {"num_token_types": 2}, "config.model.num_token_types=2 is not 0"),
        ("electra", {"activation": "relu"}, "config.model.activation=relu is not gelu"),
        ("bert_pretraining", {"pooler_activation": "relu"}, "config.model.pooler_activation=relu is not tanh"),
        ("bert", {"layer_groups": 1}, "config.model.layer_groups=1 is not None"),
        ("bert", {"pooling": "mean"}, "config.model.pooling=mean is not first"),
        ("electra_small", {"embedding_width": 32}, "config.model.embedding_width=32 has a projection"),
        ("albert", {"layer_groups": None}, "config.model.layer_groups=None, which it always has there"),
        ("deberta", {"pooler_activation": "gelu", "head": "pretraining"}, "head=pretraining is none of masked, none"),
        ("deberta", {"add_pooling_layer": True}, "config.model.add_pooling_layer=True with head=masked"),
        ("bert", {"positions": "disentangled"}, "config.model.positions=disentangled is not learned"),
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


def test_the_first_mpt_files_name_their_class_otherwise() -> None:
    recorded = recording("mpt")
    usual, first = (
        CONVERSIONS["mpt"].convert_config({**recorded.config, "architectures": [name]}, frozenset(recorded.weights))
        for name in ("MptForCausalLM", "MPTForCausalLM")
    )
    assert usual == first


_DEBERTA_V3_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": "p2c|c2p",
    "share_att_key": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
}


@pytest.mark.parametrize(
    ("architecture", "changes", "parameters"),
    [
        ("AlbertModel", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}, 11_683_584),
        ("AlbertForMaskedLM", {}, 206_368_944),
        ("ElectraModel", {}, 13_483_008),
        ("ModernBertForMaskedLM", {}, 149_655_232),
        ("DebertaV2Model", _DEBERTA_V3_BASE, 183_831_552),
        (
            "DebertaV2Model",
            _DEBERTA_V3_BASE | {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
            70_682_112,
        ),
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
    model_type = re.sub(r"(Model|ForMaskedLM)$", "", architecture).lower().replace("v2", "-v2")
    pooler = frozenset({"albert.pooler.weight"} if architecture == "AlbertModel" else ())
    config = {"model_type": model_type, "architectures": [architecture], **changes}
    section, interface = CONVERSIONS[model_type].convert_config(config, pooler)
    shapes = build(model_config(section), interface, Precision()).functional.shapes()
    assert sum(leaf.size for leaf in leaves_by_path(shapes).values()) == parameters


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "cohere2", "olmo3", "ministral", "smollm3", "qwen2_moe_window"])
def test_without_sliding_layers_no_window_is_written(name: str) -> None:
    """The classes compute with a window in any case: null would be none, and an absent key is that of the class."""
    recorded = recording(name)
    spec, names = CONVERSIONS[recorded.config["model_type"]], frozenset(recorded.weights)
    kinds = {"layer_types": ["full_attention"] * recorded.config["num_hidden_layers"]}
    section, interface = spec.convert_config(recorded.config | kinds, names)
    model = model_config(section)
    shapes = parameter_shapes(build(model, interface, Precision()).functional.shapes())
    written = spec.write_config(model, shapes)
    assert "sliding_window" not in written
    # What only sliding layers read, such as a base of their own, is not written.
    assert model_config(spec.convert_config(written, names)[0]).attention_windows == model.attention_windows
    windows, _ = spec.convert_config(recorded.config, names)
    shapes = parameter_shapes(build(model_config(windows), interface, Precision()).functional.shapes())
    if recorded.config.get("sliding_window") and any(windows["attention_windows"]):
        assert spec.write_config(model_config(windows), shapes)["sliding_window"] == recorded.config["sliding_window"]
