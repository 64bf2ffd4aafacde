"""Mutants of transformer/models."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
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
