"""Published folders in and out: nothing lost, nothing taken for something else, every refusal with its leaf."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.golden.recordings import EXCHANGED, Recording, recording
from transformer.config import UserError
from transformer.huggingface.conversion_spec import TRAINING_ONLY_FIELDS
from transformer.huggingface.convert import CONVERSIONS, ImportedModel, read_model_folder, write_model_folder
from transformer.huggingface.parameter_conversion import parameter_shapes, plan_file_tensors
from transformer.layers.functional_module import Precision
from transformer.models.registry import FAMILIES as MODELS
from transformer.models.registry import build, model_config

NEXT_SENTENCE = "cls.seq_relationship.weight"


def bits(tensors: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def read(recorded: Recording, folder: Path, **config: Any) -> ImportedModel:
    recorded = recorded._replace(about={**recorded.about, "config": recorded.config | config})
    recorded.write(folder)
    return read_model_folder(folder)


@pytest.mark.parametrize("name", EXCHANGED)
def test_a_round_trip_is_the_same_in_every_bit(name: str, tmp_path: Path) -> None:
    recorded = recording(name)
    foreign = read(recorded, tmp_path / "in")
    family = write_model_folder(tmp_path / "out", model_config(foreign.model), foreign.params)
    written = load_file(tmp_path / "out" / "model.safetensors")
    expected = recorded.weights
    assert bits(written) == bits(expected)
    assert {key: value.shape for key, value in written.items()} == {key: value.shape for key, value in expected.items()}
    assert family.model_type == recorded.config["model_type"]
    again = read_model_folder(tmp_path / "out")
    assert again.model == foreign.model
    assert again.notes == []
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    unsaid = {"rope_theta", "n_positions", "seq_length", "static_position_embeddings", "architectures"}
    for key in said.keys() - unsaid:
        assert said[key] == recorded.config.get(key) or (said[key], recorded.config[key]) == ("silu", "swish")


def test_what_has_no_place_is_said(tmp_path: Path) -> None:
    recorded = recording("bert_pretraining")
    alone = {name: value for name, value in recorded.weights.items() if not name.startswith("cls.predictions")}
    foreign = read(recorded._replace(weights=alone), tmp_path, architectures=["BertModel"])
    assert foreign.notes == [
        "left out, as its class does not read them: cls.seq_relationship.bias, cls.seq_relationship.weight"
    ]
    assert foreign.model["add_pooling_layer"]
    assert foreign.model["head"] == "none"


def test_both_heads_of_pretraining_are_read_under_the_name_of_either_class(tmp_path: Path) -> None:
    recorded = recording("bert_pretraining")
    both, published = read(recorded, tmp_path / "a"), read(recorded, tmp_path / "b", architectures=["BertForMaskedLM"])
    assert both.model == published.model
    assert both.model["head"] == "pretraining"
    np.testing.assert_array_equal(both.params["next_sentence"]["kernel"].T, recorded.weights[NEXT_SENTENCE])
    write_model_folder(tmp_path / "out", model_config(published.model), published.params)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForPreTraining"]


def test_keys_that_are_not_read_are_said(tmp_path: Path) -> None:
    foreign = read(recording("gpt2"), tmp_path, rotary_share=0.5, query_norm=False, empty=None, torch_dtype="float16")
    assert foreign.notes == ["keys of config.json that are not read: query_norm, rotary_share"]


def test_a_model_without_padding_counts_its_positions_from_the_first_row(tmp_path: Path) -> None:
    recorded = recording("roberta")
    rows = recorded.config["max_position_embeddings"]
    assert read(recorded, tmp_path / "a").model["position_offset"] == recorded.config["pad_token_id"] + 1
    without = read(recorded, tmp_path / "b", pad_token_id=-1).model
    assert (without["position_offset"], without["max_length"]) == (0, rows)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_narrow_files_are_read_into_the_runs_type_and_that_is_said(tmp_path: Path, kind: Any) -> None:
    recorded = recording("llama_tied")
    narrow = {name: value.astype(kind) for name, value in recorded.weights.items()}
    foreign = read(recorded._replace(weights=narrow), tmp_path)
    assert foreign.notes == [f"the file holds {np.dtype(kind)}; the run's parameters are float32"]
    table = foreign.params["embedding"]["table"]
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, narrow["model.embed_tokens.weight"].astype(np.float32))


def test_parameters_of_another_type_are_written_in_it(tmp_path: Path) -> None:
    recorded = recording("llama_tied")
    recorded.write(tmp_path / "in")
    foreign = read_model_folder(tmp_path / "in", dtype="bfloat16")
    write_model_folder(tmp_path / "out", model_config(foreign.model), foreign.params)
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {"bfloat16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def renamed(recorded: Recording, rename: Callable[[str], str], **more: np.ndarray) -> Recording:
    return recorded._replace(weights={rename(name): value for name, value in recorded.weights.items()} | more)


@pytest.mark.parametrize(
    ("name", "rename"),
    [
        ("gpt2", lambda name: name.removeprefix("transformer.")),
        ("bloom", lambda name: name.removeprefix("transformer.")),
        ("bert", lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")),
        ("t5", lambda name: name.replace("shared", "encoder.embed_tokens")),
    ],
)
def test_published_spellings_are_read_as_the_same(tmp_path: Path, name: str, rename: Callable[[str], str]) -> None:
    recorded = recording(name)
    plain, other = read(recorded, tmp_path / "plain"), read(renamed(recorded, rename), tmp_path / "other")
    assert parameter_shapes(plain.params) == parameter_shapes(other.params)
    np.testing.assert_array_equal(plain.params["embedding"]["table"], other.params["embedding"]["table"])


@pytest.mark.parametrize(
    ("name", "harmless", "shape"),
    [
        ("gpt2", "h.0.attn.bias", (1, 1, 24, 24)),
        ("gpt2", "transformer.h.1.attn.masked_bias", ()),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", (4,)),
        ("bert", "bert.embeddings.position_ids", (1, 24)),
        ("roberta", "roberta.embeddings.position_ids", (1, 24)),
        ("marian", "model.encoder.embed_positions.weight", (24, 32)),
        ("t5", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", (8, 4)),
    ],
)
def test_known_constants_are_passed_over(tmp_path: Path, name: str, harmless: str, shape: tuple[int, ...]) -> None:
    recorded = recording(name)
    foreign = read(renamed(recorded, str, **{harmless: np.ones(shape, np.float32)}), tmp_path)
    assert foreign.notes == []


def test_a_second_copy_must_be_one(tmp_path: Path) -> None:
    recorded = recording("gpt2")
    table = recorded.weights["transformer.wte.weight"]
    read(renamed(recorded, str, **{"lm_head.weight": table}), tmp_path / "same")
    with pytest.raises(UserError, match=r"'lm_head\.weight' is not 'transformer\.wte\.weight' once more"):
        read(renamed(recorded, str, **{"lm_head.weight": table + 1}), tmp_path / "other")


@pytest.mark.parametrize("name", EXCHANGED)
def test_a_tensor_missing_extra_or_of_another_shape_is_named(tmp_path: Path, name: str) -> None:
    recorded = recording(name)
    leaf = next(key for key in recorded.weights if ".1." in key)
    rest = {key: value for key, value in recorded.weights.items() if key != leaf}
    with pytest.raises(UserError, match=rf"the tensor '{leaf}' of shape .* is missing"):
        read(recorded._replace(weights=rest), tmp_path / "missing")
    with pytest.raises(UserError, match="the tensor 'surplus' has no place"):
        read(recorded._replace(weights={**recorded.weights, "surplus": rest[min(rest)]}), tmp_path / "extra")
    longer = np.concatenate([recorded.weights[leaf]] * 2)
    with pytest.raises(UserError, match=rf"the tensor '{leaf}' has the shape .*; its config asks for"):
        read(recorded._replace(weights=rest | {leaf: longer}), tmp_path / "shape")
    whole = recorded.weights[leaf].astype(np.int32)
    with pytest.raises(UserError, match=rf"the tensor '{leaf}' holds I32"):
        read(recorded._replace(weights=rest | {leaf: whole}), tmp_path / "type")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "activation_function", "mish"),
        ("gpt2", "embd_pdrop", 0.5),
        ("openai_gpt", "afn", "tanh"),
        ("gptj", "rotary_dim", 4),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("llama", "rope_scaling", {"type": "linear", "factor": 2.0}),
        ("llama", "rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}),
        ("llama", "hidden_act", "relu2"),
        ("llama", "attention_bias", True),
        ("llama", "rope_parameters", {"rope_type": "default", "mrope_section": [2, 2]}),
        ("llama", "partial_rotary_factor", 0.5),
        ("mistral", "partial_rotary_factor", 0.5),
        ("mistral", "sliding_window", 1),
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("roberta", "tie_word_embeddings", False),
        ("marian", "normalize_before", True),
        ("marian", "share_encoder_decoder_embeddings", False),
        ("marian", "decoder_attention_heads", 2),
        ("marian", "activation_dropout", 0.1),
        ("t5", "feed_forward_proj", "gated-relu"),
        ("t5", "dense_act_fn", "silu"),
        ("t5", "is_gated_act", True),
        ("roberta", "pad_token_id", -2),
        ("roberta", "pad_token_id", None),
        ("gpt2", "model_type", "gpt_neox"),
    ],
)
def test_a_config_that_no_model_expresses_is_refused_by_its_key(
    tmp_path: Path, name: str, key: str, value: Any
) -> None:
    with pytest.raises(UserError) as caught:
        read(recording(name), tmp_path, **{key: value})
    assert key in str(caught.value)
    assert str(value) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key", "value"), [("gpt2", "n_embd", "32"), ("llama", "hidden_size", "x"), ("bert", "hidden_size", [32])]
)
def test_a_value_of_the_wrong_kind_is_refused(tmp_path: Path, name: str, key: str, value: Any) -> None:
    with pytest.raises(UserError, match=r"wrong kind|must be a int"):
        read(recording(name), tmp_path, **{key: value})


def test_a_key_that_a_config_needs_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no n_layer"):
        read(recording("gpt2"), tmp_path, n_layer=None)


def test_a_config_that_is_absent_or_broken_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has no config\.json"):
        read_model_folder(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"is not JSON|is no JSON object"):
            read_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gpt2", {"norm_placement": "sandwich"}, "config.model.norm_placement=sandwich is not pre"),
        ("gpt2", {"score": "additive"}, "config.model.score=additive is not scaled_dot"),
        (
            "gpt2",
            {"attention_windows": (0, 4, 0)},
            r"config.model.attention_windows=\(0, 4, 0\)|config.model.attention_windows=\[0, 4, 0\]",
        ),
        ("gpt2", {"activation": "swiglu"}, "config.model.activation=swiglu"),
        ("gpt2", {"kv_heads": 2}, "config.model.kv_heads=2 is not 4"),
        ("gpt2", {"projections": "none"}, "config.model.projections=none is not linear"),
        ("gpt2", {"base_width": 8}, "config.model.base_width=8 is not width=32"),
        ("llama", {"norm": "layer"}, "config.model.norm=layer is not rms"),
        ("bloom", {"feed_forward": 96}, "config.model.feed_forward=96 is not 4 x width=128"),
        ("t5", {"embedding_scale": "sqrt_width"}, "config.model.embedding_scale=sqrt_width is not none"),
        ("bert", {"norm_placement": "sandwich"}, "config.model.norm_placement=sandwich is not post"),
    ],
)
def test_an_export_names_what_cannot_be_expressed(
    tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    foreign = read(recording(name), tmp_path / "in")
    model = model_config(foreign.model | changes)
    shapes = build(model, foreign.interface, Precision()).functional.shapes()
    with pytest.raises(UserError, match=rf"Hugging Face has no such model; the nearest is .*{said}"):
        write_model_folder(tmp_path / "out", model, shapes)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    foreign = read(recording("gpt2"), tmp_path)
    with pytest.raises(UserError, match="exists and is not empty"):
        write_model_folder(tmp_path, model_config(foreign.model), foreign.params)


@pytest.mark.parametrize("family", CONVERSIONS.values(), ids=list(CONVERSIONS))
def test_every_field_of_a_model_is_translated_or_said_to_be_free(family: Any) -> None:
    fields = {field.name for field in dataclasses.fields(MODELS[family.model_family].config_class)}
    told = {key.our_key for key in family.config_keys} | family.fixed_fields.keys() | family.training_defaults.keys()
    # Compared alike for every family.
    told |= TRAINING_ONLY_FIELDS | {"kv_heads", "head_dim", "base_width", "projections", "experts", "position_join"}
    fixed = family.fixed_fields.get("positions")
    told |= set() if str(fixed).startswith("rotary") else {"rotary_base"}
    told |= set() if fixed == "t5" else {"relative_attention_num_buckets", "relative_attention_max_distance"}
    assert fields - told == set()


def test_gpt2_small_has_the_published_tensors() -> None:
    section, interface = CONVERSIONS["gpt2"].convert_config(
        {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024},
        frozenset(),
    )
    shapes = parameter_shapes(build(model_config(section), interface, Precision()).functional.shapes())
    plan = plan_file_tensors(CONVERSIONS["gpt2"], shapes)
    assert len(plan) == 148
    assert sum(int(np.prod(planned.shape)) for planned in plan) == 124_439_808
