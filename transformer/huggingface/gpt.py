"""GPT-1 and GPT-2 (Radford et al. 2018, 2019), GPT-J (Wang and Komatsuzaki 2021) and BLOOM (Scao et al. 2022)."""

from transformer.config import UserError
from transformer.huggingface.conversion_spec import (
    ACTIVATIONS,
    Config,
    Entry,
    Family,
    FixedKey,
    Key,
    Names,
    fused,
    linear,
    norm,
    table,
    unembedding,
)
from transformer.huggingface.tensor_layouts import (
    FROM_HEADS,
    LINEAR_BY_HEADS,
    TABLE,
    TABLE_FROM_HEADS,
    VECTOR,
    VECTOR_BY_HEADS,
)

_H = "transformer.h.{layer}"
_MASKS = (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",)  # the causal mask, a constant
_SPELLINGS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
_PLAIN = {
    "score": "scaled_dot",
    "norm": "layer",
    "windows": (),
    "embedding_scale": "none",
    "logit_scale": "none",
    "embedding_norm": False,
    "output_bias": False,
    "biases": "all",
}


def _sizes(epsilon: float, dropout: float, tied: bool) -> tuple[Key, ...]:
    return (
        Key("vocab_size", "embedding_rows"),
        Key("n_embd", "width"),
        Key("n_layer", "layers"),
        Key("n_head", "heads"),
        Key("n_inner", "feed_forward"),
        Key("n_positions", "max_length"),
        Key("layer_norm_epsilon", "norm_epsilon", epsilon),
        Key("resid_pdrop", "dropout", dropout),
        Key("attn_pdrop", "attention_dropout", dropout),
        Key("tie_word_embeddings", "tied", tied),
    )


def _one_dropout(config: Config, default: float) -> None:
    embedding, residual = (config.get(name, default) for name in ("embd_pdrop", "resid_pdrop"))
    if embedding != residual:
        raise UserError(f"config.json has embd_pdrop={embedding}, not resid_pdrop={residual}; they must be equal")


def _four_widths(config: Config) -> Config:
    return {**config, "n_inner": config.get("n_inner") or 4 * config.get("n_embd", 0)}


def _simplify_gpt(config: Config, names: Names) -> Config:
    _one_dropout(config, 0.1)
    return _four_widths(config)


def _publish_gpt(config: Config) -> Config:
    return {**config, "embd_pdrop": config["resid_pdrop"]}


def _simplify_gpt1(config: Config, names: Names) -> Config:
    _one_dropout(config, 0.1)
    return {**config, "n_inner": 4 * config.get("n_embd", 0)}


def _without_inner(config: Config, width: str) -> Config:
    if config["n_inner"] != 4 * config[width]:
        raise UserError(f"config.model.feed_forward={config['n_inner']} is not 4 x width={4 * config[width]}")
    return {name: value for name, value in config.items() if name != "n_inner"}


def _gpt_entries(embedding: str, positions: str) -> tuple[Entry, ...]:
    return (
        *table(f"transformer.{embedding}", "embedding"),
        *table(f"transformer.{positions}", "positions"),
        *norm(f"{_H}.ln_1", "layers/attention_residual/norm"),
        *fused(f"{_H}.attn.c_attn", "layers/attention", TABLE, VECTOR),
        *linear(f"{_H}.attn.c_proj", "layers/attention/output", TABLE_FROM_HEADS),
        *norm(f"{_H}.ln_2", "layers/feed_forward_residual/norm"),
        *linear(f"{_H}.mlp.c_fc", "layers/feed_forward/expand", TABLE),
        *linear(f"{_H}.mlp.c_proj", "layers/feed_forward/contract", TABLE),
        *norm("transformer.ln_f", "norm"),
        *unembedding(),
    )


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    model="decoder",
    keys=(*_sizes(1e-5, 0.1, True), Key("activation_function", "activation", "gelu_new", ACTIVATIONS)),
    fixed={**_PLAIN, "norm_placement": "pre", "positions": "learned"},
    begun={"initialization": "gpt2"},
    only=(
        FixedKey("scale_attn_weights", True),
        FixedKey("scale_attn_by_inverse_layer_idx", False),
        FixedKey("add_cross_attention", False),
    ),
    entries=_gpt_entries("wte", "wpe"),
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.wte.weight"},
    harmless=_MASKS,
    spellings=_SPELLINGS,
    simplify=_simplify_gpt,
    simplified=frozenset({"embd_pdrop"}),
    publish=_publish_gpt,
)

GPT1 = Family(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    model="decoder",
    keys=(
        *_sizes(1e-5, 0.1, True),
        # Their "gelu" is the tanh approximation.
        Key("afn", "activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
    ),
    fixed={**_PLAIN, "norm_placement": "post", "positions": "learned"},
    begun={"initialization": "gpt"},
    entries=_gpt_entries("tokens_embed", "positions_embed"),
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.tokens_embed.weight"},
    harmless=_MASKS,
    spellings=_SPELLINGS,
    simplify=_simplify_gpt1,
    simplified=frozenset({"embd_pdrop"}),
    publish=lambda config: _publish_gpt(_without_inner(config, "n_embd")),
)


def _simplify_gptj(config: Config, names: Names) -> Config:
    _one_dropout(config, 0.0)
    depth, turned = config.get("n_embd", 0) // max(config.get("n_head", 1), 1), config.get("rotary_dim")
    if turned != depth:
        raise UserError(f"config.json has rotary_dim={turned}; only whole heads can rotate: it must be {depth}")
    return _four_widths(config)


def _publish_gptj(config: Config) -> Config:
    return _publish_gpt({**config, "rotary_dim": config["n_embd"] // config["n_head"]})


GPTJ = Family(
    model_type="gptj",
    architecture="GPTJForCausalLM",
    model="decoder",
    keys=(*_sizes(1e-5, 0.0, False), Key("activation_function", "activation", "gelu_new", ACTIVATIONS)),
    fixed={
        **_PLAIN,
        "norm_placement": "parallel",
        "positions": "rotary",
        "rotary_base": 10000.0,
        "biases": "feed_forward",
        "output_bias": True,
    },
    begun={"initialization": "gpt2"},
    entries=(
        *table("transformer.wte", "embedding"),
        *norm(f"{_H}.ln_1", "layers/attention_residual/norm"),
        *linear(f"{_H}.attn.q_proj", "layers/attention/query"),
        *linear(f"{_H}.attn.k_proj", "layers/attention/key"),
        *linear(f"{_H}.attn.v_proj", "layers/attention/value"),
        *linear(f"{_H}.attn.out_proj", "layers/attention/output", FROM_HEADS),
        *linear(f"{_H}.mlp.fc_in", "layers/feed_forward/expand"),
        *linear(f"{_H}.mlp.fc_out", "layers/feed_forward/contract"),
        *norm("transformer.ln_f", "norm"),
        *unembedding(),
    ),
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.wte.weight"},
    harmless=_MASKS,
    spellings=_SPELLINGS,
    simplify=_simplify_gptj,
    simplified=frozenset({"embd_pdrop", "rotary_dim"}),
    publish=_publish_gptj,
)

BLOOM = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    model="decoder",
    keys=(
        Key("vocab_size", "embedding_rows"),
        Key("hidden_size", "width"),
        Key("n_layer", "layers"),
        Key("n_head", "heads"),
        Key("n_inner", "feed_forward"),
        Key("seq_length", "max_length", 2048),
        Key("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Key("hidden_dropout", "dropout", 0.0),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("tie_word_embeddings", "tied", True),
    ),
    fixed={
        **_PLAIN,
        "activation": "gelu_tanh",
        "norm_placement": "pre",
        "positions": "alibi",
        "embedding_norm": True,
    },
    begun={"initialization": "gpt"},
    only=(FixedKey("apply_residual_connection_post_layernorm", False),),
    entries=(
        *table("transformer.word_embeddings", "embedding"),
        *norm("transformer.word_embeddings_layernorm", "embedding_norm"),
        *norm(f"{_H}.input_layernorm", "layers/attention_residual/norm"),
        *fused(f"{_H}.self_attention.query_key_value", "layers/attention", LINEAR_BY_HEADS, VECTOR_BY_HEADS),
        *linear(f"{_H}.self_attention.dense", "layers/attention/output", FROM_HEADS),
        *norm(f"{_H}.post_attention_layernorm", "layers/feed_forward_residual/norm"),
        *linear(f"{_H}.mlp.dense_h_to_4h", "layers/feed_forward/expand"),
        *linear(f"{_H}.mlp.dense_4h_to_h", "layers/feed_forward/contract"),
        *norm("transformer.ln_f", "norm"),
        *unembedding(),
    ),
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.word_embeddings.weight"},
    spellings={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    simplify=lambda config, names: {**config, "n_inner": 4 * config.get("hidden_size", 0)},
    publish=lambda config: _without_inner(config, "hidden_size"),
)
