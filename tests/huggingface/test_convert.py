"""Published folders in and out: nothing lost, nothing taken for something else, every refusal with its leaf."""

import collections
import dataclasses
import json
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.golden.recordings import EXCHANGED, Recording, recording
from transformer.attention.rotary import NO_SCALING, RotaryScaling, rotated_features
from transformer.config import UserError, from_config
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    FIELDS_OF_SOME,
    comparable_config,
)
from transformer.huggingface.convert import (
    CONVERSIONS,
    PublishedModel,
    find_conversion,
    open_model_folder,
    write_model_folder,
)
from transformer.huggingface.generation_config import convert_generation_config, generation_config
from transformer.huggingface.parameter_conversion import parameter_shapes, plan_file_tensors
from transformer.layers.functional_module import Precision
from transformer.models import registry
from transformer.models.model import Model
from transformer.models.registry import FAMILIES as MODELS
from transformer.models.registry import build, model_config
from transformer.tasks.decoding_config import DecodingDefaults

# The tensors by which a head is known.
TENSORS_OF_HEADS = {
    "bert": frozenset(
        {
            "cls.predictions.transform.dense.weight",
            "bert.pooler.dense.weight",
            "cls.seq_relationship.weight",
        }
    ),
    "roberta": frozenset({"lm_head.dense.weight"}),
    "deberta-v2": frozenset({"cls.predictions.transform.dense.weight"}),
    "deberta-v2 absolute": frozenset({"classifier.weight", "pooler.dense.weight"}),
    "albert groups": frozenset({"classifier.weight", "albert.pooler.weight"}),
}
NEXT_SENTENCE = "cls.seq_relationship.weight"
# Fields that only say how a model is trained and run; an export ignores them. LoRA is merged before.
TRAINING_ONLY = frozenset(
    {"initialization", "stochastic_depth", "backend", "remat", "scan_unroll", "size", "attention_dropout", "lora"}
)


def bits(tensors: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def read(recorded: Recording, folder: Path, **config: Any) -> PublishedModel:
    recorded = recorded._replace(about={**recorded.about, "config": recorded.config | config})
    recorded.write(folder)
    return open_model_folder(folder)


@pytest.fixture(scope="module", autouse=True)
def _build_each_model_once() -> Iterator[None]:
    """Trace the parameters of a model once: each is read many times here, with this or that wrong in its files."""
    built: dict[str, Model] = {}
    trace = registry.build

    def build_once(*arguments: Any) -> Model:
        if (model := repr(arguments)) not in built:
            built[model] = trace(*arguments)
        return built[model]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "build", build_once)
        yield


# Models that another type expresses too, in which an export writes them.
WRITTEN_AS = {"phi3": "llama", "phi3_long": "llama"}


@pytest.mark.parametrize("name", EXCHANGED)
def test_a_round_trip_is_the_same_in_every_bit(name: str, tmp_path: Path) -> None:
    recorded = recording(name)
    foreign = read(recorded, tmp_path / "in")
    # Some types can express the same model: the name of the recorded one decides.
    model_type = recorded.config["model_type"]
    if name in WRITTEN_AS:
        assert find_conversion(model_config(foreign.model), foreign.read_params())[0].model_type == WRITTEN_AS[name]
    family = write_model_folder(
        tmp_path / "out", model_config(foreign.model), foreign.read_params(), model_type=model_type
    )
    written = load_file(tmp_path / "out" / "model.safetensors")
    expected = recorded.weights
    assert bits(written) == bits(expected)
    assert {key: value.shape for key, value in written.items()} == {key: value.shape for key, value in expected.items()}
    assert family.model_type == model_type
    again = open_model_folder(tmp_path / "out")
    assert again.model == foreign.model
    assert again.notes == []
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    unsaid = {"n_positions", "seq_length", "static_position_embeddings", "architectures", "attn_config"}
    # Written by other names than the library's own, or though they follow from others, and compared above.
    unsaid |= {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "head_dim"}
    unsaid |= {"rotary_emb_base", "rotary_pct"}
    unsaid.add("original_max_position_embeddings")
    # The rate of ours, which is not that of the file.
    unsaid.add("classifier_dropout_prob")
    complete = family.complete_config(recorded.config)
    # Rates of what ours never drop, which the defaults of a class are not.
    unsaid |= {"encoder_layerdrop", "decoder_layerdrop"}
    for key in said.keys() - unsaid:
        stated = recorded.config.get(key, complete.get(key))
        synonyms = ACTIVATIONS.get(str(said[key])) == ACTIVATIONS.get(str(stated), "none")
        assert said[key] == stated or synonyms, key


@pytest.mark.parametrize(
    ("name", "architecture", "reason"),
    [
        ("granite", "GraniteForSequenceClassification", "which has a head of classes of texts"),
        ("gpt2", "GPT2DoubleHeadsModel", "which has a second head, of multiple choice"),
        ("electra", "ElectraForNextSentencePrediction", "which has no head but that of whether a text follows"),
        ("bert", "BertLMHeadModel", "which reads texts in one direction"),
        ("gpt2", "GPT2ForMultipleChoice", "which has a head that chooses among texts"),
        ("pegasus", "PegasusEncoderModel", "which has no decoder"),
        ("bart", "BartForTokenClassification", "which has a head of classes of tokens"),
        ("gpt2", "MyOwnGPT2", "which is unknown"),
    ],
)
def test_a_class_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, name: str, architecture: str, reason: str
) -> None:
    recorded = recording(name)
    weights = {key: value for key, value in recorded.weights.items() if key != "lm_head.weight"}
    weights["score.weight"] = np.ones((2, 32), np.float32)
    with pytest.raises(UserError) as caught:
        read(recorded._replace(weights=weights), tmp_path, architectures=[architecture])
    assert f"architectures=['{architecture}'], {reason}" in str(caught.value)
    assert recorded.config["architectures"][0] in str(caught.value)
    assert "tensor" not in str(caught.value)


def test_a_model_without_a_head_of_its_own_is_read_with_the_table_as_head(tmp_path: Path) -> None:
    assert read(recording("gpt2"), tmp_path, architectures=["GPT2Model"]).model["tie_embeddings"]


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        (
            "blenderbot-small",
            "encoder_decoder: marian, bart, mbart, blenderbot, pegasus, m2m_100, t5, mt5; vit: vit, deit, dinov2, "
            "siglip_vision_model, siglip, ",
        ),
        ("rwkv", "decoder: gpt2, openai-gpt, gptj, bloom, llama, mistral, "),
        ("GPTNeoX", "did you mean 'gpt_neox'?"),
        ("OpenAI_GPT", "did you mean 'openai-gpt'?"),
        (None, "encoder: bert, roberta"),
        (["bert"], "did you mean 'bert'?"),
    ],
)
def test_an_unknown_model_type_is_refused_with_those_that_can_be_read(
    tmp_path: Path, model_type: Any, said: str
) -> None:
    with pytest.raises(UserError) as caught:
        read(recording("gpt2"), tmp_path, model_type=model_type)
    assert f"model_type={model_type!r}" in str(caught.value)
    assert said in str(caught.value)
    assert ("did you mean" in str(caught.value)) == said.startswith("did")


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
    np.testing.assert_array_equal(both.read_params()["next_sentence"]["kernel"].T, recorded.weights[NEXT_SENTENCE])
    write_model_folder(tmp_path / "out", model_config(published.model), published.read_params())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        (
            "gpt2",
            {"rotary_share": 0.5, "query_norm": False, "empty": None, "torch_dtype": "float16"},
            "keys of config.json that are not read: query_norm, rotary_share",
        ),
        (
            "gpt2",
            {"embd_pdrop": 0.5},
            "config.json has embd_pdrop=0.5; further training has the rate of resid_pdrop there, 0.1",
        ),
        (
            "bert",
            {"classifier_dropout": 0.5},
            "config.json has classifier_dropout=0.5; further training has the rate of hidden_dropout_prob there, 0.1",
        ),
        (
            "marian",
            {"activation_dropout": 0.2},
            "config.json has activation_dropout=0.2; further training has no such dropout",
        ),
    ],
)
def test_what_is_not_read_is_said(tmp_path: Path, name: str, keys: dict[str, Any], said: str) -> None:
    assert read(recording(name), tmp_path, **keys).notes == [said]


def test_of_two_names_of_a_key_the_alias_counts_as_in_transformers(tmp_path: Path) -> None:
    foreign = read(recording("gpt2"), tmp_path / "gpt2", num_attention_heads=2)
    assert foreign.model["heads"] == 2
    assert foreign.notes == [
        "config.json has n_head=4 and num_attention_heads=2: the second counts, as in transformers"
    ]
    section, _ = CONVERSIONS["t5"].convert_config({"num_layers": 2, "num_hidden_layers": 3}, frozenset())
    assert (section["encoder_layers"], section["decoder_layers"]) == (3, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    recorded = recording("gpt2")
    damaged = recorded.weights["transformer.h.1.ln_1.weight"].copy()
    damaged[3:5] = value
    with pytest.raises(UserError, match=r"'transformer\.h\.1\.ln_1\.weight' has 2 of 32 values that are not finite"):
        read(renamed(recorded, str, **{"transformer.h.1.ln_1.weight": damaged}), tmp_path).read_params()


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
    table = foreign.read_params()["embedding"]["table"]
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, narrow["model.embed_tokens.weight"].astype(np.float32))


def test_parameters_of_another_type_are_written_in_it(tmp_path: Path) -> None:
    recorded = recording("llama_tied")
    recorded.write(tmp_path / "in")
    foreign = open_model_folder(tmp_path / "in", dtype="bfloat16")
    write_model_folder(tmp_path / "out", model_config(foreign.model), foreign.read_params())
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
    assert parameter_shapes(plain.read_params()) == parameter_shapes(other.read_params())
    np.testing.assert_array_equal(plain.read_params()["embedding"]["table"], other.read_params()["embedding"]["table"])


@pytest.mark.parametrize(
    ("name", "harmless", "shape"),
    [
        ("gpt2", "h.0.attn.bias", (1, 1, 24, 24)),
        ("gpt2", "transformer.h.1.attn.masked_bias", ()),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", (4,)),
        ("bert", "bert.embeddings.position_ids", (1, 24)),
        ("roberta", "roberta.embeddings.position_ids", (1, 24)),
        ("t5", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", (8, 4)),
    ],
)
def test_known_constants_are_passed_over(tmp_path: Path, name: str, harmless: str, shape: tuple[int, ...]) -> None:
    recorded = recording(name)
    foreign = read(renamed(recorded, str, **{harmless: np.ones(shape, np.float32)}), tmp_path)
    assert foreign.notes == []


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_a_table_of_positions_that_is_computed_must_have_those_values(tmp_path: Path, name: str) -> None:
    recorded = recording(name)
    angles = np.arange(24)[:, None] / 10000 ** (np.arange(16) / 16)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float16).astype(np.float32)
    for number, tensor in enumerate(("model.encoder.embed_positions.weight", "decoder.embed_positions.weight")):
        place = f"model.{tensor.removeprefix('model.')}"
        without = recorded._replace(weights={key: value for key, value in recorded.weights.items() if key != place})
        assert read(renamed(without, str, **{tensor: table}), tmp_path / f"same{number}").notes == []
        with pytest.raises(UserError, match=rf"the tensor '{tensor}' has other values than the sinusoids"):
            read(renamed(without, str, **{tensor: table + 0.1}), tmp_path / f"other{number}")


def test_a_second_copy_must_be_one(tmp_path: Path) -> None:
    recorded = recording("gpt2")
    table = recorded.weights["transformer.wte.weight"]
    read(renamed(recorded, str, **{"lm_head.weight": table}), tmp_path / "same")
    with pytest.raises(UserError, match=r"'lm_head\.weight' is not 'transformer\.wte\.weight' once more"):
        read(renamed(recorded, str, **{"lm_head.weight": table + 1}), tmp_path / "other")


def test_a_tensor_by_two_spellings_is_refused(tmp_path: Path) -> None:
    recorded = recording("gpt2")
    again = recorded.weights["transformer.wte.weight"] + 1
    with pytest.raises(UserError, match=r"the tensors .* are both transformer\.wte\.weight"):
        read(renamed(recorded, str, **{"wte.weight": again}), tmp_path)


@pytest.mark.parametrize("name", EXCHANGED)
def test_a_tensor_missing_extra_or_of_another_shape_is_named(tmp_path: Path, name: str) -> None:
    recorded = recording(name)
    # Of the second layer, or of the one that all share.
    leaf = next(key for layer in (".1.", ".0.") for key in recorded.weights if layer in key)
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
        ("openai_gpt", "afn", "tanh"),
        ("gptj", "rotary_dim", 10),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("llama", "rope_scaling", {"type": "axial", "factor": 2.0}),
        ("llama", "rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}),
        ("llama", "rope_parameters", {"rope_type": ["linear"]}),
        ("llama", "hidden_act", "relu2"),
        ("gpt_neox", "head_dim", 4),
        ("stablelm", "qk_layernorm", True),
        ("phi", "qk_layernorm", True),
        ("gemma", "use_bidirectional_attention", True),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma3", "sliding_window_pattern", 0),
        ("gemma3", "rope_scaling", {"type": "linear", "factor": 8.0}),
        ("granite", "logits_scaling", 0.0),
        ("olmo3", "sliding_window", 1),
        ("mistral", "sliding_window", 1),
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("roberta", "tie_word_embeddings", False),
        ("marian", "normalize_before", True),
        ("marian", "share_encoder_decoder_embeddings", False),
        ("marian", "decoder_attention_heads", 2),
        ("t5", "feed_forward_proj", "gated-relu"),
        ("t5", "dense_act_fn", "silu"),
        ("t5", "is_gated_act", True),
        ("t5_gated", "is_gated_act", None),
        ("roberta", "pad_token_id", -2),
        ("roberta", "pad_token_id", None),
        ("gpt2", "is_causal", False),
        ("llama", "is_causal", None),
        ("gpt2", "vocab_size", 0),
        ("gpt2", "n_layer", 10**7),
        ("gpt2", "is_encoder_decoder", True),
        ("t5", "is_decoder", True),
        ("llama", "layer_types", ["sliding_attention", "full_attention"]),
        ("roberta", "hidden_act", "relu"),
        ("roberta", "max_position_embeddings", 2),
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


def test_yarn_that_is_not_truncated_is_refused_by_kind_of_layer(tmp_path: Path) -> None:
    rotary = recording("olmo3").config["rope_parameters"]
    bad = {**rotary, "full_attention": {**rotary["full_attention"], "truncate": False}}
    with pytest.raises(UserError, match="truncate=False in the rotary positions of full layers"):
        read(recording("olmo3"), tmp_path / "in", rope_parameters=bad)
    foreign = read(recording("olmo3"), tmp_path / "good")
    scaling = {**foreign.model["rotary_scaling"], "truncate": False}
    model = model_config(foreign.model | {"rotary_scaling": scaling})
    with pytest.raises(UserError, match=r"rotary_scaling\.truncate=False is not true"):
        write_model_folder(tmp_path / "out", model, foreign.read_params())


@pytest.mark.parametrize(
    ("name", "key", "value"), [("gpt2", "n_embd", "32"), ("llama", "hidden_size", "x"), ("bert", "hidden_size", [32])]
)
def test_a_value_of_the_wrong_kind_is_refused(tmp_path: Path, name: str, key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"config\.json: {key}=.* must be a int"):
        read(recording(name), tmp_path, **{key: value})


def test_a_key_that_must_not_be_null_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json: n_layer=None is a NoneType; it must be a int"):
        read(recording("gpt2"), tmp_path, n_layer=None)


def test_a_config_that_is_absent_or_broken_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has no config\.json"):
        open_model_folder(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"is not JSON|is no JSON object"):
            open_model_folder(tmp_path)


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


def test_the_head_of_roberta_has_gelu_whatever_its_blocks_have(tmp_path: Path) -> None:
    foreign = read(recording("roberta"), tmp_path)
    model = model_config(foreign.model | {"activation": "relu"})
    shapes = parameter_shapes(build(model, foreign.interface, Precision()).functional.shapes())
    with pytest.raises(UserError, match=r"roberta: config\.model\.activation=relu is not gelu, which its head has"):
        CONVERSIONS["roberta"].write_config(model, shapes)
    bare = model_config(foreign.model | {"activation": "relu", "head": "none", "output_bias": False})
    shapes = parameter_shapes(build(bare, foreign.interface, Precision()).functional.shapes())
    assert CONVERSIONS["roberta"].write_config(bare, shapes)["hidden_act"] == "relu"


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    foreign = read(recording("gpt2"), tmp_path)
    with pytest.raises(UserError, match="exists and is not empty"):
        write_model_folder(tmp_path, model_config(foreign.model), foreign.read_params())


@pytest.mark.parametrize(
    ("config", "file", "decoding"),
    [
        ({"eos_token_id": [2, 5, 5, 50256, -1]}, None, {"end_ids": (2, 5)}),
        ({"eos_token_id": 2}, {"eos_token_id": [3, 4, 3]}, {"end_ids": (3, 4)}),
        ({"eos_token_id": [2, 5]}, {"transformers_version": "5.24.0"}, {}),
        (
            {"eos_token_id": 2, "repetition_penalty": 1.3, "temperature": 0.2, "num_beams": 1, "max_length": 20},
            None,
            {"end_ids": (2,), "repetition_penalty": 1.3},
        ),
        (
            {},
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "suppress_tokens": [7], "bad_words_ids": [[8], [2]]}
            | {"eos_token_id": 2, "max_new_tokens": 9},
            {"end_ids": (2,), "forbidden_ids": (8, 7), "temperature": 0.6, "top_k": 50, "top_p": 0.9}
            | {"max_new_tokens": 9},
        ),
    ],
)
def test_generation_is_as_the_folder_has_it(
    tmp_path: Path, config: dict[str, Any], file: dict[str, Any] | None, decoding: dict[str, Any]
) -> None:
    if file is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(file))
    foreign = read(recording("gpt2"), tmp_path, **({"eos_token_id": None, "bos_token_id": None} | config))
    assert foreign.generation.decoding == decoding
    assert foreign.notes == []
    written = generation_config(DecodingDefaults(**decoding), None, {"eos_token_id": 2})
    again = convert_generation_config({}, written or {"eos_token_id": 2}, 53, searches=False).decoding
    assert again == {"end_ids": (2,)} | decoding | ({"end_ids": (2, 3, 4)} if decoding.get("end_ids") == (3, 4) else {})


@pytest.mark.parametrize(
    ("file", "decoding"),
    [
        (
            {"forced_bos_token_id": 7, "forced_eos_token_id": 2, "min_length": 3, "max_length": 12},
            {"forced_first_id": 7, "forced_last_id": 2, "min_new_tokens": 2, "max_new_tokens": 11},
        ),
        (
            {"forced_eos_token_id": [2], "max_length": 9, "max_new_tokens": 4},
            {"forced_last_id": 2, "max_new_tokens": 4},
        ),
    ],
)
def test_an_encoder_decoder_forces_tokens_and_counts_without_its_start(
    tmp_path: Path, file: dict[str, Any], decoding: dict[str, Any]
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2} | file))
    foreign = read(recording("bart"), tmp_path)
    assert foreign.generation.decoding == {"end_ids": (2,)} | decoding
    assert foreign.notes == []
    written = generation_config(DecodingDefaults(**decoding), 1, {"eos_token_id": 2})
    assert convert_generation_config({}, written, 53, searches=True).decoding == {"end_ids": (2,)} | decoding


@pytest.mark.parametrize(
    ("name", "config", "file", "said"),
    [
        (
            "gpt2",
            {"encoder_no_repeat_ngram_size": 3, "min_length": 5},
            None,
            "config.json has encoder_no_repeat_ngram_size=3, min_length=5, which generation does not honor here",
        ),
        (
            "gpt2",
            {},
            {"eta_cutoff": 0.05, "do_sample": True, "begin_suppress_tokens": [4], "num_beams": 1},
            "generation_config.json has begin_suppress_tokens=[4], eta_cutoff=0.05, which generation does not honor "
            "here",
        ),
        (
            "t5",
            {},
            {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "forced_bos_token_id": 99, "my_option": 1},
            "generation_config.json has forced_bos_token_id=99, my_option=1, which generation does not honor here",
        ),
        (
            "t5",
            {},
            {"num_beams": 4, "decoder_start_token_id": 3},
            "generation_config.json has decoder_start_token_id=3, which generation does not honor here",
        ),
    ],
)
def test_options_of_generation_that_are_not_honored_are_said(
    tmp_path: Path, name: str, config: dict[str, Any], file: dict[str, Any] | None, said: str
) -> None:
    if file is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(file))
    foreign = read(recording(name), tmp_path, **config)
    assert foreign.notes == [said]
    assert foreign.generation.num_beams == (4 if name == "t5" else None)


@pytest.mark.parametrize(
    "file", [{"eos_token_id": [2, 9.5]}, {"eos_token_id": "2"}, {"suppress_tokens": 1}, {"repetition_penalty": "x"}]
)
def test_options_of_generation_that_make_no_sense_are_refused(tmp_path: Path, file: dict[str, Any]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    with pytest.raises(UserError, match=f"generation_config.json: {next(iter(file))}"):
        read(recording("gpt2"), tmp_path)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "partial_rotary_factor", 0.5),
        ("qwen2_window", "partial_rotary_factor", 0.25),
        ("llama", "rope_parameters", {"rope_type": "default", "mrope_section": [2, 2]}),
        ("llama", "rope_scaling", {"full_attention": {"rope_type": "linear", "factor": 2.0}}),
        ("llama", "pruned_heads", {"0": [1]}),
        ("llama", "is_causal", 2),
        ("mistral", "attention_bias", True),
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("bert", "attention_chunk_size", 2),
        ("bert", "layer_types", ["sliding_attention", "full_attention"]),
    ],
)
def test_keys_that_change_nothing_there_change_nothing(name: str, key: str, value: Any, tmp_path: Path) -> None:
    """Values that leave the logits of transformers 5.24.0 as they are, in the record of `make hf`."""
    usual = read(recording(name), tmp_path / "usual")
    varied = read(recording(name), tmp_path / "with", **{key: value})
    assert varied.model == usual.model
    is_known = key in ("is_causal", "attn_logit_softcapping")
    assert any(key in note for note in set(varied.notes) - set(usual.notes)) != is_known


_RECORDED_SWEEP = json.loads((Path(__file__).parents[1] / "golden" / "config_sweep.json").read_text())
SWEEP = _RECORDED_SWEEP["classes"]
_OUTCOMES = {"s": "same", "o": "other", "n": "none"}
# What only training reads, or only the length and the memory of texts; logits of a short text do not depend on these.
_SHORT_LENGTH = 30
_NOT_IN_SHORT_TEXTS = {"dropout", "attention_dropout", "max_length", "memory_length", "relative_attention_max_distance"}


@pytest.mark.parametrize("model_type", sorted({case.split()[0] for case in SWEEP}))
def test_the_config_classes_are_those_recorded(model_type: str) -> None:
    recorded = SWEEP[model_type]["keys"]
    ours = CONVERSIONS[model_type].class_keys
    assert {key: default for key, (_, default) in ours.items()} == {
        key: value["default"] for key, value in recorded.items()
    }
    for key, (kind, _) in ours.items():
        words = set(recorded[key]["kind"].replace("typing.", "").replace("[", " ").replace("]", " ").split(" | "))
        assert ("None" in words) == (type(None) in typing.get_args(kind)), key
        for name in ("int", "float", "bool", "str"):
            assert (name in words) >= (kind is {"int": int, "float": float, "bool": bool, "str": str}[name]), key
    family = CONVERSIONS[model_type]
    for alias, name in SWEEP[model_type]["aliases"].items():
        # T5's number of decoder layers is that of the usual name.
        assert family.key_aliases.get(alias) == name or alias in family.simplified_keys


def in_short_texts(read: tuple[Any, Any]) -> tuple[Any, Any]:
    """What logits of a text of `_SHORT_LENGTH` positions depend on: windows that it reaches, and how features turn."""
    section = {key: value for key, value in read[0].items() if key not in _NOT_IN_SHORT_TEXTS}
    # Factors that only begin with this value are read from the file.
    section["layer_scale"] = section.get("layer_scale") is not None
    # What another head of the same body would read.
    if "head_transform" in section:
        unread = {
            "classes": ("output_bias", "tie_embeddings"),
            "masked": ("pooling", "pooler_activation"),
            "pretraining": ("pooling",),
        }
        for key in unread.get(section["head"], ("pooling", "output_bias", "tie_embeddings")):
            del section[key]
    section["experts"] = {key: value for key, value in section.get("experts", {}).items() if key != "balance_loss"}
    if "attention_windows" in section:
        windows = [window * (window < _SHORT_LENGTH) for window in section["attention_windows"]]
        section["attention_windows"] = windows if any(windows) else []
    if str(section.get("positions")).startswith("rotary"):
        turning = rotated_features(section["head_dim"], section.pop("rotary_fraction"))
        scaling = from_config(RotaryScaling, section.pop("rotary_scaling"), "rotary_scaling")
        base, local_base = section.pop("rotary_base"), section.pop("local_rotary_base")
        for name, scaled, number in (("global", scaling, base), ("local", NO_SCALING, local_base)):
            frequencies = np.asarray(scaled.scaled_frequencies(turning, number, _SHORT_LENGTH))
            section[f"{name} frequencies"] = [float(f"{scaled.magnitude:.5g}"), *(f"{f:.5g}" for f in frequencies)]
    return section, read[1]


def variations(case: str) -> Iterator[tuple[str, Any, str]]:
    """Each key with each value that was tried, and what transformers made of it."""
    for key, (numbers, outcomes) in SWEEP[case]["varied"].items():
        for number, outcome in zip(numbers, outcomes, strict=True):
            yield key, _RECORDED_SWEEP["values"][number], _OUTCOMES[outcome]


@pytest.mark.parametrize("case", SWEEP)
def test_no_variation_of_a_key_is_read_as_another_model(case: str) -> None:
    recorded, model_type = SWEEP[case], case.split()[0]
    family = CONVERSIONS[model_type]
    models: dict[str, Any] = {}

    def section_of(config: dict[str, Any]) -> tuple[Any, Any]:
        section, interface = family.convert_config(config, TENSORS_OF_HEADS.get(case, frozenset()))
        # As an export compares them: two ways to say one model are one. Most variations give one of a few sections.
        if (written := repr(section)) not in models:
            models[written] = comparable_config(model_config(section))
        return models[written], interface

    usual = section_of(recorded["config"])
    usual_in_short_texts = in_short_texts(usual)
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong, refusals = [], []
    for key, value, theirs in variations(case):
        rest = {name: stated for name, stated in recorded["config"].items() if name != key}
        try:
            found = section_of(rest if value == "absent" else {**rest, key: value})
            if found == usual:
                ours = "same"
            else:
                ours = theirs if in_short_texts(found) == usual_in_short_texts else "other"
        except UserError as error:
            ours = "refused"
            refusals.append((key, value, str(error)))
        outcomes[theirs, ours] += 1
        if theirs != "none" and ours not in (theirs, "refused"):
            wrong.append((key, value, theirs, ours))
    assert wrong == []
    assert [said for *_, said in refusals if "\n" in said] == []
    # Not all is refused, and little that changes nothing.
    read_there = sum(count for (theirs, _), count in outcomes.items() if theirs != "none")
    assert outcomes["same", "refused"] < read_there / 10
    assert outcomes["same", "same"] > 50
    assert outcomes["other", "other"] > 5


@pytest.mark.parametrize("family", CONVERSIONS.values(), ids=list(CONVERSIONS))
def test_every_field_of_a_model_is_translated_or_said_to_be_free(family: Any) -> None:
    fields = {field.name for field in dataclasses.fields(MODELS[family.model_family].config_class)}
    told = {key.our_key for key in family.config_keys} | family.fixed_fields.keys() | family.training_defaults.keys()
    # Compared alike for every family.
    told |= TRAINING_ONLY | {
        "kv_heads",
        "head_dim",
        "norm_bias",
        "base_width",
        "projections",
        "experts",
        "position_join",
    }
    told |= FIELDS_OF_SOME.keys()
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


def test_a_marian_whose_decoder_begins_with_another_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="decoder_start_token_id=3, not pad_token_id=52"):
        read(recording("marian"), tmp_path, decoder_start_token_id=3)
