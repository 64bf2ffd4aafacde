"""Conversion of BART (Lewis et al. 2020) and of the encoder-decoders that descend from it.

mBART (Liu et al. 2020) and Blenderbot (Roller et al. 2021) have norms before sub-layers, PEGASUS (Zhang et al. 2020)
and M2M-100 (Fan et al. 2021), whose classes NLLB has too, also positions without a trained table. Their tensors have
the names of Marian's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    WINDOWLESS_KEYS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    embedding_entries,
    linear_entries,
    norm_entries,
    without_keys,
)
from transformer.huggingface.fine_tuned_heads import (
    FINE_TUNED_CLASSES,
    interface_with_classes,
    num_classes,
    problem_type_keys,
    sizes_from_shapes,
    without_head_keys,
)
from transformer.huggingface.marian import (
    COMPUTED_POSITIONS,
    SIDE_PAIRS,
    SIZE_KEYS,
    check_equal_sides,
    position_constants,
    stack_entries,
)
from transformer.huggingface.tensor_layouts import ROW_VECTOR

_BIAS = "final_logits_bias"
_WITHOUT_EFFECT = ("is_decoder",)  # the classes of generation have a decoder in any case
_CONFIG_KEYS = (
    *SIZE_KEYS,
    ConfigKey("scale_embedding", "embedding_scale", values={False: "none", True: "sqrt_width", None: "none"}),
)
_FIXED_FIELDS = {
    "score": "scaled_dot",
    "cross": "attention",
    "norm": "layer",
    "norm_epsilon": 1e-5,
    "norm_bias": True,
    "biases": "all",
    "attention_windows": (),
    "logit_scale": "none",
    "tie_embeddings": True,
    "head": "next_tokens",
}
_TENSOR_ENTRIES = (
    *embedding_entries("model.shared", "embedding"),
    *embedding_entries("model.encoder.embed_positions", "source_positions"),
    *embedding_entries("model.decoder.embed_positions", "positions"),
    *norm_entries("model.encoder.layernorm_embedding", "source_embedding_norm"),
    *norm_entries("model.decoder.layernorm_embedding", "embedding_norm"),
    *stack_entries("encoder"),
    *stack_entries("decoder"),
    *norm_entries("model.encoder.layer_norm", "encoder_norm"),
    *norm_entries("model.decoder.layer_norm", "decoder_norm"),
    TensorEntry(_BIAS, ("output_bias/bias",), ROW_VECTOR),
)


def _simplify_config(config: Config, names: TensorNames) -> Config:
    """The bias of the logits is a constant 0 unless the file has it; a body has the logits of the table."""
    check_equal_sides(config, *SIDE_PAIRS)
    is_body = (config["architectures"] or ("",))[0].endswith("Model")
    return {**config, "output_bias": _BIAS in names if names else not is_body}


def _simplify_bart(config: Config, names: TensorNames) -> Config:
    """A class of texts' classes or of answers has a head in place of the bias."""
    architecture = (config["architectures"] or ("",))[0]
    if architecture:
        head = next((head for head in _BART_HEADS if architecture.endswith(FINE_TUNED_CLASSES[head])), "next_tokens")
    else:
        head = next((head for head, layer in _BART_HEADS.items() if f"{layer}.weight" in names), "next_tokens")
    simplified = _simplify_config(config, names)
    # Its class has three classes where config.json names none.
    counted = {"num_labels": 3, **config}
    is_biased = simplified["output_bias"] and head == "next_tokens"
    return {**simplified, "output_bias": is_biased, "head": head, "num_labels": num_classes(counted, head)}


# The last layer of each head.
_BART_HEADS = {"classes": "classification_head.out_proj", "span": "qa_outputs"}


def _restore_bart(config: Config) -> Config:
    head, classes = config["head"], config["num_labels"]
    if head not in ("next_tokens", *_BART_HEADS):
        raise UserError(f"config.model.head={head} is none of next_tokens, {', '.join(_BART_HEADS)}")
    restored = _restore_config(without_head_keys(config, ("head",)))
    if head == "next_tokens":
        return restored
    return {
        **restored,
        **problem_type_keys(head, classes),
        "architectures": [f"Bart{FINE_TUNED_CLASSES[head]}"],
    }


def _restore_config(config: Config) -> Config:
    """The class without a head is that without a bias; it predicts the same tokens."""
    base = config["architectures"][0].removesuffix("ForConditionalGeneration")
    return {
        **without_keys(config, "output_bias"),
        "architectures": config["architectures"] if config.get("output_bias", True) else [f"{base}Model"],
        "decoder_attention_heads": config["encoder_attention_heads"],
        "decoder_ffn_dim": config["encoder_ffn_dim"],
    }


def _simplify_m2m_100(config: Config, names: TensorNames) -> Config:
    """Padding has the row of its own number, and positions begin behind it."""
    check_equal_sides(config, *SIDE_PAIRS)
    padding, start = config["pad_token_id"], config["decoder_start_token_id"]
    if padding is None or padding < 0:
        raise UserError(f"config.json has pad_token_id={padding}, behind which positions begin: it must be 0 or more")
    if start == padding:
        raise UserError(f"config.json has decoder_start_token_id={start}, the padding token, which has no position")
    return {**config, "position_offset": padding + 1}


def _restore_m2m_100(config: Config) -> Config:
    if not config["position_offset"]:
        raise UserError("config.model.position_offset=0 leaves no row of padding before the first position")
    return {
        **_restore_config(without_keys(config, "position_offset")),
        "pad_token_id": config["position_offset"] - 1,
        # Ours drop no layers, and the defaults of the class do.
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    }


def _make_spec(model_type: str, name: str, fixed_fields: Mapping[str, Any], **options: Any) -> ConversionSpec:
    """Make the conversion spec of a type; `name` begins the names of its classes."""
    values: dict[str, Any] = {
        "config_keys": (*_CONFIG_KEYS, ConfigKey("output_bias", "output_bias")),
        "tensor_entries": _TENSOR_ENTRIES,
        "fixed_keys": (FixedConfigKey("is_encoder_decoder", True, is_written=True, null=False), *WINDOWLESS_KEYS),
        "training_keys": {"activation_dropout": "", "encoder_layerdrop": "", "decoder_layerdrop": ""},
        "optional_prefix": "model.",
        "tensor_aliases": {
            "model.encoder.embed_tokens.weight": "model.shared.weight",
            "model.decoder.embed_tokens.weight": "model.shared.weight",
            "lm_head.weight": "model.shared.weight",
        },
        "key_aliases": {
            "hidden_size": "d_model",
            "num_attention_heads": "encoder_attention_heads",
            "num_hidden_layers": "encoder_layers",
        },
        "simplify_config": _simplify_config,
        "simplified_keys": frozenset({"decoder_attention_heads", "decoder_ffn_dim", *_WITHOUT_EFFECT}),
        "restore_config": _restore_config,
    }
    return ConversionSpec(
        model_type=model_type,
        architecture=f"{name}ForConditionalGeneration",
        model_family="encoder_decoder",
        fixed_fields={**_FIXED_FIELDS, **fixed_fields},
        training_defaults={"initialization": "gpt"},
        bare_architecture=f"{name}Model",
        other_architectures=(f"{name}Model",),
        **values | options,
    )


_TABLES = {"positions": "learned", "side_embeddings": "separate"}

_BART = _make_spec("bart", "Bart", {**_TABLES, "norm_placement": "post", "position_offset": 2, "embedding_norm": True})
BART = dataclasses.replace(
    _BART,
    other_architectures=(*_BART.other_architectures, *(f"Bart{FINE_TUNED_CLASSES[head]}" for head in _BART_HEADS)),
    config_keys=(*_BART.config_keys, ConfigKey("head", "head"), ConfigKey("num_labels", "classes")),
    fixed_fields=without_keys(dict(_BART.fixed_fields), "head"),
    tensor_entries=(
        *_BART.tensor_entries,
        *linear_entries("classification_head.dense", "pooler"),
        *linear_entries("classification_head.out_proj", "classes"),
        *linear_entries("qa_outputs", "span"),
    ),
    simplify_config=_simplify_bart,
    restore_config=_restore_bart,
    make_task_interface=interface_with_classes,
    interface_keys=frozenset({"classes"}),
    infer_fields_from_shapes=sizes_from_shapes,
)
MBART = _make_spec("mbart", "MBart", {**_TABLES, "norm_placement": "pre", "position_offset": 2, "embedding_norm": True})
BLENDERBOT = _make_spec(
    "blenderbot", "Blenderbot", {**_TABLES, "norm_placement": "pre", "position_offset": 0, "embedding_norm": False}
)
PEGASUS = _make_spec(
    "pegasus",
    "Pegasus",
    {
        "positions": "sinusoidal_halves",
        "side_embeddings": "shared",
        "norm_placement": "pre",
        "position_offset": 0,
        "embedding_norm": False,
    },
    # The library has them in every file.
    constant_tensors=position_constants,
    computed_tensors=position_constants,
    ignored_tensors=COMPUTED_POSITIONS,
)
M2M_100 = _make_spec(
    "m2m_100",
    "M2M100",
    {
        "positions": "sinusoidal_tensor2tensor",
        "side_embeddings": "shared",
        "norm_placement": "pre",
        "embedding_norm": False,
        "output_bias": False,
    },
    config_keys=(*_CONFIG_KEYS, ConfigKey("position_offset", "position_offset")),
    # The sinusoids, which earlier versions of the library wrote.
    ignored_tensors=(r"(model\.)?(encoder|decoder)\.embed_positions\.weights",),
    simplify_config=_simplify_m2m_100,
    simplified_keys=frozenset({"decoder_attention_heads", "decoder_ffn_dim", "pad_token_id", "decoder_start_token_id"}),
    restore_config=_restore_m2m_100,
)
