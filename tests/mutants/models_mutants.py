"""Mutants of transformer/models."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/models/bidirectional_language_model.py",
        "real_BxS = real_positions(lengths_B, count)[:, 1:]",
        "real_BxS = real_positions(lengths_B, count)[:, :-1]",
        ("tests/models/test_bidirectional_language_model.py",),
    ),
    Mutant(
        "transformer/models/bytenet.py",
        "return math.ceil(round(self.length_factor * length + self.length_offset, 6))",
        "return math.ceil(self.length_factor * length + self.length_offset)",
        ("tests/models/test_convolutional.py",),
    ),
    Mutant(
        "transformer/models/bytenet_base.py",
        "return tuple(2**power for power in range(self.max_dilation.bit_length()))",
        "return tuple(2**power for power in range(self.max_dilation.bit_length() - 1))",
        ("tests/models/test_bytenet_decoder.py",),
    ),
    Mutant(
        "transformer/models/bytenet_decoder.py",
        "in_prompt_Bx1x1 = (position < last_B)[:, None, None]",
        "in_prompt_Bx1x1 = (position <= last_B)[:, None, None]",
        ("tests/models/test_bytenet_decoder.py",),
    ),
    Mutant(
        "transformer/models/convolutional_classifier.py",
        "not 0 <= at < count for at in self.attention_stages",
        "not at < count for at in self.attention_stages",
        ("tests/models/test_convolutional_classifier.py",),
    ),
    Mutant(
        "transformer/models/convs2s.py",
        "retained=1 - config.dropout",
        "retained=config.dropout",
        ("tests/models/test_convolutional.py",),
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
        "transformer/models/decoder.py",
        "class_features_BxTxE = x_BxTxE if ratio == 1 else x_BxTxE / ratio",
        "class_features_BxTxE = x_BxTxE",
        ("tests/training/test_maximal_update.py",),
    ),
    Mutant(
        "transformer/models/encoder.py",
        'if config.num_token_types < 2 and "types" in interface.inputs:',
        'if config.num_token_types < 1 and "types" in interface.inputs:',
        ("tests/models/test_encoder.py",),
    ),
    Mutant(
        "transformer/models/encoder_decoder.py",
        "residuals = (2 * config.encoder_layers, 3 * config.decoder_layers)",
        "residuals = (2 * config.encoder_layers, 2 * config.decoder_layers)",
        ("tests/models/test_initial_values.py",),
    ),
    Mutant(
        "transformer/models/model.py",
        "return logits, cache, _select_layers(aux, capture)",
        "return logits, cache, aux",
        ("tests/models/test_decoding_steps.py",),
    ),
    Mutant(
        "transformer/models/model_family.py",
        'width_ratio=getattr(config, "width_ratio", 1.0),',
        "width_ratio=1.0,",
        ("tests/training/test_maximal_update.py",),
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
        "transformer/models/recurrent_attention_decoder_base.py",
        "jax.random.bernoulli(key, share, target_BxT.shape).at[:, 0].set(False)",
        "jax.random.bernoulli(key, share, target_BxT.shape)",
        ("tests/models/test_recurrent_encoder_decoder.py",),
    ),
    Mutant(
        "transformer/models/recurrent_classifier.py",
        "jnp.maximum(lengths_B, 1)[:, None].astype(h_BxTxF.dtype)",
        "jnp.full_like(lengths_B, h_BxTxF.shape[1])[:, None].astype(h_BxTxF.dtype)",
        ("tests/models/test_recurrent_classifier.py",),
    ),
    Mutant(
        "transformer/models/recurrent_decoder.py",
        "None if key is None else jax.random.fold_in(key, index)",
        "key",
        ("tests/models/test_recurrent_decoder.py",),
    ),
    Mutant(
        "transformer/models/recurrent_encoder_decoder.py",
        'jnp.minimum(state["steps"] / config.scheduled_sampling_steps, 1) * config.scheduled_sampling',
        'state["steps"] / config.scheduled_sampling_steps * config.scheduled_sampling',
        ("tests/models/test_recurrent_encoder_decoder.py",),
    ),
    Mutant(
        "transformer/models/recurrent_encoder_decoder.py",
        "carry.states[0 if bottom else -1].hidden",
        "carry.states[-1].hidden",
        ("tests/models/test_recurrent_encoder_decoder.py",),
    ),
    Mutant(
        "transformer/models/recurrent_encoder_decoder.py",
        "if forward_pass.train and self.config.scheduled_sampling:",
        "if self.config.scheduled_sampling:",
        ("tests/models/test_recurrent_encoder_decoder.py",),
    ),
    Mutant(
        "transformer/models/registry.py",
        "if key not in fixed or not _is_same_value(value, fixed[key])",
        "if key not in fixed",
        ("tests/models/test_registry.py",),
    ),
    Mutant(
        "transformer/models/regression_decoder.py",
        "dropout(self.embed(vectors_BxTxI) + positions_TxE[None], self.config.dropout, embedding_key)",
        "dropout(self.embed(vectors_BxTxI), self.config.dropout, embedding_key)",
        ("tests/models/test_regression_decoder.py",),
    ),
    Mutant(
        "transformer/models/snail.py",
        "embedded_NxE, after = self.embedding(flat, state, train=train)",
        "embedded_NxE, after = self.embedding(flat, state, train=True)",
        ("tests/models/test_snail.py",),
    ),
    Mutant(
        "transformer/models/task_interface.py",
        "if spec.positions is not None and spec.positions > max_length:",
        "if spec.positions is not None and spec.positions >= max_length:",
        ("tests/models/test_decoder.py",),
    ),
    Mutant(
        "transformer/models/task_interface.py",
        "if interface.max_decoded_length > max_length:",
        "if interface.max_decoded_length > max_length + 1:",
        (
            "tests/tasks/test_text_generation.py",
            "tests/tasks/test_language_modeling.py",
        ),
    ),
    Mutant(
        "transformer/models/transformer_base.py",
        "AuxiliaryLoss(positions * jnp.sum(unevenness_L), positions, weight)",
        "AuxiliaryLoss(positions * jnp.mean(unevenness_L), positions, weight)",
        ("tests/models/test_experts_in_models.py",),
    ),
    Mutant(
        "transformer/models/transformer_base.py",
        "lengths_B = jnp.sum(segments_BxT > 0, axis=1)",
        "lengths_B = jnp.sum(segments_BxT >= 0, axis=1)",
        ("tests/models/test_decoder.py",),
    ),
    Mutant(
        "transformer/models/transformer_xl.py",
        '            if "segments" in inputs:',
        '            if "segments" in inputs and memory.shape[2] == 0:',
        (
            "tests/models/test_xlnet.py",
            "tests/tasks/test_recurrent_memory.py",
        ),
    ),
    Mutant(
        "transformer/models/transformer_xl.py",
        'mask_after_memory(mask, memory.shape[2], jnp.asarray(inputs["past"]), tokens_BxT.shape[1])',
        "mask_after_memory(mask, memory.shape[2], jnp.full(len(tokens_BxT), memory.shape[2]), tokens_BxT.shape[1])",
        (
            "tests/models/test_xlnet.py",
            "tests/tasks/test_recurrent_memory.py",
        ),
    ),
    Mutant(
        "transformer/models/vit.py",
        "self.distilled.logits(x_BxNxE[:, 1])",
        "self.distilled.logits(x_BxNxE[:, 0])",
        ("tests/models/test_vit.py",),
    ),
    Mutant(
        "transformer/models/xlnet.py",
        "return self.memory_length if self.head is XLNetHead.PERMUTED else 0",
        "return self.memory_length",
        ("tests/models/test_xlnet.py",),
    ),
)
