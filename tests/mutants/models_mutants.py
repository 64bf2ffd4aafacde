"""Mutants of transformer/models."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/models/activation_names.py",
        'outside_layers = scopes and scopes[-1] in ("final_norm", "embedding_norm", "head")',
        'outside_layers = scopes and scopes[-1] in ("embedding_norm", "head")',
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/activations.py",
        "if decodes and position_RxT is None else position_RxT",
        "if position_RxT is None else position_RxT",
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/edits.py",
        "jnp.where(entries < 0, entries + size, entries)",
        "entries",
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/edits.py",
        "value = jnp.repeat(value, rows // value.shape[example], axis=example)",
        "value = jnp.tile(value, (1, rows // value.shape[example], *(1 for _ in axes[2:])))",
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/edits.py",
        "axis=position), index < length",
        "axis=position), index <= length",
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/edits.py",
        "return jnp.where(edit.mask, new, x)",
        "return new",
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/edits.py",
        "return replace(name, total / jnp.sum(counted_BxT), **where)",
        "return replace(name, total / counted_BxT.size, **where)",
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/named_values.py",
        "yield from paths * inner[2]",
        "yield from paths",
        ("tests/models/test_non_finite_values.py",),
    ),
    Mutant(
        "transformer/models/named_values.py",
        "return slice(start, start + count)",
        "return slice(0, count)",
        ("tests/models/test_activations.py",),
    ),
    Mutant(
        "transformer/models/non_finite_values.py",
        "for name, number in execution_order(closed):",
        "for name, number in sorted(execution_order(closed)):",
        ("tests/models/test_non_finite_values.py",),
    ),
    Mutant(
        "transformer/models/convolutional_classifier.py",
        "not 0 <= at < count for at in self.attention_stages",
        "not at < count for at in self.attention_stages",
        ("tests/models/test_convolutional_classifier.py",),
    ),
    Mutant(
        "transformer/models/convs2s.py",
        "hidden_BxTxE = dropout(self.leave_decoder(h_BxTxF), self.config.dropout, output_key)",
        "hidden_BxTxE = dropout(self.leave_decoder(h_BxTxF), self.config.dropout, embedding_key)",
        ("tests/models/test_convolutional.py",),
    ),
    Mutant(
        "transformer/models/decoder.py",
        "InitializationRule(config.initialization, 2 * config.layers, config.resolved_head_dim, deep.beta)",
        "InitializationRule(config.initialization, config.layers, config.resolved_head_dim, deep.beta)",
        ("tests/models/test_initial_values.py",),
    ),
    Mutant(
        "transformer/models/encoder_decoder.py",
        "residuals = (2 * config.encoder_layers, 3 * config.decoder_layers)",
        "residuals = (2 * config.encoder_layers, 2 * config.decoder_layers)",
        ("tests/models/test_initial_values.py",),
    ),
    Mutant(
        "transformer/models/published_sizes.py",
        '"gpt2-large": _gpt2(36, 1280, 20, 762e6),',
        '"gpt2-large": _gpt2(36, 1280, 16, 762e6),',
        ("tests/models/test_sizes.py",),
    ),
    Mutant(
        "transformer/models/recurrent_attention_decoder_base.py",
        "jax.random.fold_in(key, self.streams.index(name))",
        "jax.random.fold_in(key, 0)",
        ("tests/models/test_recurrent_encoder_decoder.py",),
    ),
    Mutant(
        "transformer/models/recurrent_decoder.py",
        "None if key is None else jax.random.fold_in(key, index)",
        "key",
        ("tests/models/test_recurrent_decoder.py",),
    ),
    Mutant(
        "transformer/models/registry.py",
        "if key not in fixed or not _is_same_value(value, fixed[key])",
        "if key not in fixed",
        ("tests/models/test_registry.py",),
    ),
)
