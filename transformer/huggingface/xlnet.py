"""XLNet (Yang et al. 2019)."""

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    Entry,
    Family,
    FixedKey,
    Key,
    Names,
    linear,
    norm,
    table,
)
from transformer.huggingface.tensor_layouts import ONE_ONE, OURS, OUTPUTS_FIRST, VECTOR

_LAYER = "transformer.layer.{layer}"
_ATTENTION = f"{_LAYER}.rel_attn"


def _simplify(config: Config, names: Names) -> Config:
    width, heads = config.get("d_model", 0), config.get("n_head", 1)
    if config.get("d_head", width // heads) * heads != width:
        raise UserError(f"config.json has d_head={config['d_head']}, not d_model / n_head={width // heads}")
    # Its code has one rate for all.
    return {**config, "attention_dropout": config.get("dropout", 0.1), "mem_len": config.get("mem_len") or 0}


def _publish(config: Config) -> Config:
    rest = {name: value for name, value in config.items() if name != "attention_dropout"}
    return {**rest, "d_head": config["d_model"] // config["n_head"]}


XLNET = Family(
    model_type="xlnet",
    architecture="XLNetLMHeadModel",
    model="xlnet",
    keys=(
        Key("vocab_size", "embedding_rows"),
        Key("d_model", "width"),
        Key("n_layer", "layers"),
        Key("n_head", "heads"),
        Key("d_inner", "feed_forward"),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "attention_dropout"),
        Key("ff_activation", "activation", "gelu", ACTIVATIONS),
        Key("mem_len", "memory"),
    ),
    fixed={
        "score": "scaled_dot",
        "norm": "layer",
        "norm_placement": "post",
        "biases": "feed_forward",
        "positions": "transformer_xl",
        "windows": (),
        "embedding_scale": "none",
        "logit_scale": "none",
        "embedding_norm": False,
        "output_bias": True,
        "tied": True,
        "kinds": True,
    },
    # Its positions have no end; its texts were of 512 tokens.
    begun={"initialization": "gpt", "max_length": 512},
    only=(
        FixedKey("attn_type", "bi", written=True),
        FixedKey("clamp_len", -1),
        FixedKey("same_length", False),
        # Of half of a batch the texts would run backwards, and a memory would be of a segment's first tokens.
        FixedKey("bi_data", False),
        FixedKey("reuse_len", 0),
        FixedKey("untie_r", True),
        FixedKey("tie_word_embeddings", True),
    ),
    entries=(
        *table("transformer.word_embedding", "embedding"),
        Entry("transformer.mask_emb", ("blank",), ONE_ONE),
        *(
            Entry(f"{_ATTENTION}.{theirs}", (f"layers/attention/{ours}",), layout)
            for theirs, ours, layout in (
                ("q", "query/kernel", OURS),
                ("k", "key/kernel", OURS),
                ("v", "value/kernel", OURS),
                ("o", "output/kernel", OUTPUTS_FIRST),
                ("r", "relative/weight", OURS),
                ("r_w_bias", "relative/content", OURS),
                ("r_r_bias", "relative/position", OURS),
                ("r_s_bias", "relative/kind_bias", OURS),
                ("seg_embed", "relative/kind", OURS),
            )
        ),
        *norm(f"{_ATTENTION}.layer_norm", "layers/attention_residual/norm"),
        *linear(f"{_LAYER}.ff.layer_1", "layers/feed_forward/expand"),
        *linear(f"{_LAYER}.ff.layer_2", "layers/feed_forward/contract"),
        *norm(f"{_LAYER}.ff.layer_norm", "layers/feed_forward_residual/norm"),
        Entry("lm_loss.bias", ("output_bias/bias",), VECTOR),
    ),
    prefix="transformer.",
    aliases={"lm_loss.weight": "transformer.word_embedding.weight"},
    simplify=_simplify,
    simplified=frozenset({"d_head"}),
    publish=_publish,
)
