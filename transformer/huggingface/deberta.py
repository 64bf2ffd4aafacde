"""Conversion of DeBERTa's second and third version (He et al. 2021; 2023): attention with relative embeddings."""

from transformer.config import UserError, convert_value
from transformer.huggingface.bert import FIXED, accepted_architectures, infer_heads
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    ConfigKey,
    ConversionSpec,
    FixedConfigKey,
    TensorEntry,
    TensorNames,
    attention_entries,
    embedding_entries,
    linear_entries,
    norm_entries,
    without_keys,
)
from transformer.huggingface.fine_tuned_heads import (
    FINE_TUNED_CLASSES,
    interface_with_classes,
    problem_type_keys,
    sizes_from_shapes,
    without_head_keys,
)
from transformer.huggingface.tensor_layouts import VECTOR

_BARE = "DebertaV2Model"
_EMBEDDINGS, _ENCODER = "deberta.embeddings", "deberta.encoder"
_LAYER = f"{_ENCODER}.layer.{{layer}}"
_PROJECTIONS = ("self.query_proj", "self.key_proj", "self.value_proj", "output.dense")
_TRANSFORM = "cls.predictions.transform"
# The head of masked tokens as classes with legacy=false, and the published files, name it.
_NEW_HEAD = "lm_predictions.lm_head"
_TERMS = ("p2c", "c2p")
_POOLED_HEADS = ("classes", "choice")
_POOLER_ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "tanh": "tanh", "relu": "relu"}
# Keys that no config class has and the library reads all the same, each with the default there.
_KEYS_BEYOND_CLASS = {"position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none"}


def _simplify_deberta(config: Config, names: TensorNames) -> Config:
    config = {**_KEYS_BEYOND_CLASS, **config}
    transform = f"{_name_of_transform(config, names)}.dense.weight"
    simplified = infer_heads(config, names, "deberta", transform, "classifier.weight")
    width, pooled = config["hidden_size"], simplified["head"] in _POOLED_HEADS
    sizes = {"embedding_size": width, "attention_head_size": width // max(config["num_attention_heads"], 1)}
    for key, size in (sizes | ({"pooler_hidden_size": width} if pooled else {})).items():
        FixedConfigKey(key, size, null=False).check(config)
    if not pooled and simplified["pooler_hidden_act"] not in _POOLER_ACTIVATIONS:
        simplified["pooler_hidden_act"] = "gelu"  # of the pooler that a head of classes would begin with
    # The pooler is a part of the head of texts' classes.
    return {**simplified, "pooler": False, **_simplify_positions(config)}


def _name_of_transform(config: Config, names: TensorNames) -> str:
    """Return the name that the class gives to the transformation in its head of masked tokens.

    Raises:
        UserError: If the file has that of the other value of `legacy` alone, which the class would not read.
    """
    ours, other = (_TRANSFORM, _NEW_HEAD) if config["legacy"] else (_NEW_HEAD, _TRANSFORM)
    predicts = (config["architectures"] or ("",))[0].endswith("MaskedLM")
    if predicts and f"{ours}.dense.weight" not in names and f"{other}.dense.weight" in names:
        legacy = str(config["legacy"]).lower()
        raise UserError(
            f"config.json has legacy={legacy}, with which the head of a DebertaV2ForMaskedLM is {ours}; the file has "
            f"{other}: say legacy={'false' if config['legacy'] else 'true'}"
        )
    return ours


def _simplify_positions(config: Config) -> Config:
    """Return the positions as our config has them.

    Raises:
        UserError: If they are of a kind that cannot be read.
    """
    biased, terms = config["position_biased_input"], config["pos_att_type"]
    terms = tuple(part.strip() for part in terms.lower().split("|")) if isinstance(terms, str) else terms or ()
    if not config["relative_attention"]:
        FixedConfigKey("pos_att_type", None).check({"pos_att_type": list(terms) or None})
        FixedConfigKey("norm_rel_ebd", "none").check(config)
        plain = {"relative_rows": 32, "max_relative_positions": 128, "norm_rel_ebd": False}
        return {"positions": "learned" if biased else "none", **plain}
    for key, only in (("position_biased_input", False), ("share_att_key", True)):
        if config[key] is not only:
            raise UserError(
                f"config.json has {key}={config[key]!r}; with relative_attention=True only {only!r} can be read"
            )
    if sorted(set(terms)) != sorted(_TERMS):
        raise UserError(
            f"config.json has pos_att_type={config['pos_att_type']!r}; with relative_attention=True only both of "
            f"{', '.join(_TERMS)} can be read"
        )
    buckets = convert_value(int, config["position_buckets"], "config.json: position_buckets")
    norms = convert_value(str, config["norm_rel_ebd"], "config.json: norm_rel_ebd")
    farthest = config["max_relative_positions"]
    farthest = config["max_position_embeddings"] if farthest < 1 else farthest
    if buckets > 0 and (buckets % 2 or farthest <= buckets // 2 + 1):
        raise UserError(
            f"config.json has position_buckets={buckets} and max_relative_positions={farthest}; only even buckets, "
            "half of which end before the last position but one, can be read"
        )
    return {
        "positions": "disentangled",
        "relative_rows": 2 * max(buckets, 0),
        "max_relative_positions": farthest,
        "norm_rel_ebd": "layer_norm" in [name.strip() for name in norms.lower().split("|")],
    }


def _restore_deberta(config: Config) -> Config:
    head, positions, farthest = config["head"], config["positions"], config["max_relative_positions"]
    if head not in ("masked", "none", *FINE_TUNED_CLASSES):
        raise UserError(f"config.model.head={head} is none of masked, none, {', '.join(FINE_TUNED_CLASSES)}")
    if config["pooler"] and head not in _POOLED_HEADS:
        raise UserError(
            f"config.model.add_pooling_layer=True with head={head}; only {', '.join(_POOLED_HEADS)} has one"
        )
    keys = ("pooler", "head", "positions", "relative_rows", "output_bias", "norm_rel_ebd", "max_relative_positions")
    restored = without_head_keys(config, keys) | {"pooler_hidden_size": config["hidden_size"]}
    restored |= {"legacy": True, "position_biased_input": positions == "learned"}
    if positions == "disentangled":
        restored |= {
            "relative_attention": True,
            "pos_att_type": list(_TERMS),
            "share_att_key": True,
            "position_buckets": config["relative_rows"] // 2 or -1,
            # Without the key, as many as the model has positions.
            "max_relative_positions": -1 if farthest == config["max_position_embeddings"] else farthest,
            "norm_rel_ebd": "layer_norm" if config["norm_rel_ebd"] else "none",
        }
    if head != "masked":
        restored["architectures"] = [_BARE if head == "none" else _BARE.replace("Model", FINE_TUNED_CLASSES[head])]
    return restored | problem_type_keys(head, config["num_labels"])


DEBERTA_V2 = ConversionSpec(
    model_type="deberta-v2",
    architecture="DebertaV2ForMaskedLM",
    model_family="encoder",
    config_keys=(
        ConfigKey("vocab_size", "vocab_size"),
        ConfigKey("hidden_size", "width"),
        ConfigKey("num_hidden_layers", "layers"),
        ConfigKey("num_attention_heads", "heads"),
        ConfigKey("intermediate_size", "feed_forward"),
        ConfigKey("max_position_embeddings", "max_length"),
        ConfigKey("type_vocab_size", "num_token_types"),
        ConfigKey("layer_norm_eps", "norm_epsilon"),
        ConfigKey("hidden_dropout_prob", "dropout"),
        ConfigKey("attention_probs_dropout_prob", "attention_dropout"),
        ConfigKey("hidden_act", "activation", values=ACTIVATIONS),
        ConfigKey("positions", "positions", values={name: name for name in ("disentangled", "learned", "none")}),
        ConfigKey("relative_rows", "relative_attention_num_buckets"),
        ConfigKey("max_relative_positions", "relative_attention_max_distance"),
        ConfigKey("norm_rel_ebd", "relative_embedding_norm"),
        ConfigKey("pooler", "add_pooling_layer"),
        ConfigKey("pooler_hidden_act", "pooler_activation", values=_POOLER_ACTIVATIONS),
        ConfigKey("head", "head"),
        ConfigKey("output_bias", "output_bias"),
        ConfigKey("num_labels", "classes"),
    ),
    fixed_fields={**without_keys(FIXED, "positions"), "position_offset": 0},
    training_defaults={"initialization": "bert"},
    other_architectures=accepted_architectures(_BARE),
    # Of the 1.5 billion parameters of the second version: a convolution beside its first layer.
    fixed_keys=(FixedConfigKey("conv_kernel_size", 0),),
    # Ours drop no relative embeddings, either.
    training_keys={"cls_dropout": "hidden_dropout_prob", "pooler_dropout": ""},
    tensor_entries=(
        *embedding_entries(f"{_EMBEDDINGS}.word_embeddings", "embedding"),
        *embedding_entries(f"{_EMBEDDINGS}.position_embeddings", "positions"),
        *embedding_entries(f"{_EMBEDDINGS}.token_type_embeddings", "types"),
        *norm_entries(f"{_EMBEDDINGS}.LayerNorm", "embedding_norm"),
        *embedding_entries(f"{_ENCODER}.rel_embeddings", "relative"),
        *norm_entries(f"{_ENCODER}.LayerNorm", "relative/norm"),
        *attention_entries(f"{_LAYER}.attention", "layers/attention", _PROJECTIONS),
        *norm_entries(f"{_LAYER}.attention.output.LayerNorm", "layers/attention_residual/norm"),
        *linear_entries(f"{_LAYER}.intermediate.dense", "layers/feed_forward/expand"),
        *linear_entries(f"{_LAYER}.output.dense", "layers/feed_forward/contract"),
        *norm_entries(f"{_LAYER}.output.LayerNorm", "layers/feed_forward_residual/norm"),
        *linear_entries("pooler.dense", "pooler"),
        *linear_entries(f"{_TRANSFORM}.dense", "head/transform"),
        *norm_entries(f"{_TRANSFORM}.LayerNorm", "head/norm"),
        TensorEntry("cls.predictions.bias", ("output_bias/bias",), VECTOR),
        *linear_entries("classifier", "classes"),
        *linear_entries("classifier", "choice"),
        *linear_entries("qa_outputs", "span"),
    ),
    optional_prefix="deberta.",
    tensor_aliases={
        "cls.predictions.decoder.weight": f"{_EMBEDDINGS}.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored_tensors=(r"(deberta\.)?embeddings\.position_ids",),
    # Heads of pre-training that the class does not read, and tables that relative positions replace.
    dropped_tensors=(
        r"(mask_predictions|lm_predictions)\..*",
        r"(deberta\.)?embeddings\.position_embeddings\.weight",
        r"pooler\.dense\.(weight|bias)",
    ),
    tensor_renames={
        r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias",
        r"^lm_predictions\.lm_head\.": f"{_TRANSFORM}.",
    },
    simplify_config=_simplify_deberta,
    simplified_keys=frozenset(
        {
            "legacy",
            "relative_attention",
            "position_biased_input",
            "pos_att_type",
            "share_att_key",
            "position_buckets",
            "norm_rel_ebd",
            "embedding_size",
            "attention_head_size",
            "pooler_hidden_size",
            "pooler_hidden_act",
            "conv_groups",
            "conv_act",
        }
    ),
    restore_config=_restore_deberta,
    make_task_interface=interface_with_classes,
    interface_keys=frozenset({"classes"}),
    infer_fields_from_shapes=sizes_from_shapes,
)
