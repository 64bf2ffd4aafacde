"""Mutants of transformer/layers."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/layers/attention_cell.py",
        "log_prob=jnp.where(soft_Bx1xQ, 0, weights.log_prob),",
        "log_prob=weights.log_prob,",
        (
            "tests/layers/test_attention_cell.py",
            "tests/models/test_recurrent_encoder_decoder.py",
        ),
    ),
    Mutant(
        "transformer/layers/attention_cell.py",
        "next_carry = jax.tree.map(lambda new, old: _select_rows(real_B, new, old), next_carry, carry)",
        "next_carry = jax.tree.map(lambda new, old: new, next_carry, carry)",
        (
            "tests/layers/test_attention_cell.py",
            "tests/models/test_recurrent_decoder.py",
        ),
    ),
    Mutant(
        "transformer/layers/attention_parameters.py",
        'logical_axes = tuple(head_axis if axis == "heads" else axis for axis in axes)',
        "logical_axes = tuple(axes)",
        ("tests/layers/test_attention_cell.py",),
    ),
    Mutant(
        "transformer/layers/batch_norm.py",
        "momentum = jnp.where(count > 0, self.momentum, 0)",
        "momentum = self.momentum",
        ("tests/layers/test_batch_norm.py",),
    ),
    Mutant(
        "transformer/layers/beam_rows.py",
        "jnp.repeat(leaf, num_beams, axis=axis)",
        "jnp.concatenate([leaf] * num_beams, axis=axis)",
        (
            "tests/layers/test_attention_cell.py",
            "tests/decoding/test_coverage.py",
        ),
    ),
    Mutant(
        "transformer/layers/convolution.py",
        "return (self.receptive_span - 1) // 2, self.receptive_span // 2",
        "return self.receptive_span // 2, (self.receptive_span - 1) // 2",
        ("tests/layers/test_convolution.py",),
    ),
    Mutant(
        "transformer/layers/elmo.py",
        "backward_layer(backward, lengths_B)",
        "backward_layer(backward)",
        ("tests/models/test_recurrent_classifier.py",),
    ),
    Mutant(
        "transformer/layers/embedding.py",
        "if rows is not None and rows < tokens:",
        "if rows is not None and rows <= tokens:",
        (
            "tests/models/test_sizes.py",
            "tests/models/test_registry.py",
            "tests/models/test_decoder.py",
        ),
    ),
    Mutant(
        "transformer/layers/embedding_and_head.py",
        "self.positions(positions_BxT + self.offset)",
        "self.positions(positions_BxT)",
        ("tests/models/test_encoder.py",),
    ),
    Mutant(
        "transformer/layers/embedding_and_head.py",
        "self.config.logit_scale.factor_for(self.config.resolved_base_width) / self.config.width_ratio",
        "self.config.logit_scale.factor_for(self.config.resolved_base_width)",
        (
            "tests/training/test_maximal_update.py",
            "tests/layers/test_initialization.py",
        ),
    ),
    Mutant(
        "transformer/layers/feed_forward.py",
        "functools.partial(jax.nn.gelu, approximate=False)",
        "functools.partial(jax.nn.gelu, approximate=True)",
        ("tests/layers/test_layers.py",),
    ),
    Mutant(
        "transformer/layers/fine_tuning_heads.py",
        "last_Bx1x1 = jnp.maximum(lengths_B - 1, 0)[:, None, None]",
        "last_Bx1x1 = jnp.full_like(lengths_B, x_BxTxE.shape[1] - 1)[:, None, None]",
        (
            "tests/models/test_decoder.py",
            "tests/models/test_recurrent_decoder.py",
        ),
    ),
    Mutant(
        "transformer/layers/functional_module.py",
        'if self.logits not in ("float32", self.compute):',
        'if self.logits not in ("float32", "bfloat16", self.compute):',
        ("tests/models/test_logit_types.py",),
    ),
    Mutant(
        "transformer/layers/functional_module.py",
        "key = None if initializer in CONSTANTS else next(self._keys)",
        "key = next(self._keys)",
        (
            "tests/models/test_initial_values.py",
            "tests/layers/test_functional_module.py",
        ),
    ),
    Mutant(
        "transformer/layers/grid_encoder.py",
        "return x_BxYxXxC + self.second(jax.nn.relu(self.second_norm(y)))",
        "return self.second(jax.nn.relu(self.second_norm(y)))",
        ("tests/layers/test_grid_encoder.py",),
    ),
    Mutant(
        "transformer/layers/grid_positions.py",
        "base = 10000.0 ** (quarter / max(quarter - 1, 1))",
        "base = 10000.0",
        ("tests/models/test_vit.py",),
    ),
    Mutant(
        "transformer/layers/image_grid_attention.py",
        "jnp.asarray(self.gamma[...], x_BxNxC.dtype)[None, None] * o_BxNxC + x_BxNxC",
        "jnp.asarray(self.gamma[...], x_BxNxC.dtype)[None, None] * (o_BxNxC + x_BxNxC)",
        ("tests/layers/test_image_grid_attention.py",),
    ),
    Mutant(
        "transformer/layers/initialization.py",
        "for one in jax.random.split(key, gates)]",
        "for one in [key] * gates]",
        (
            "tests/layers/test_recurrent.py",
            "tests/layers/test_initialization.py",
        ),
    ),
    Mutant(
        "transformer/layers/kv_cache.py",
        "return jnp.where((held_BxK >= 0)[:, :, None, None], picked, 0)",
        "return jnp.where((held_BxK > 0)[:, :, None, None], picked, 0)",
        ("tests/layers/test_kv_cache.py",),
    ),
    Mutant(
        "transformer/layers/kv_cache.py",
        "resolve_score_function(spec.score, None).scale(depth, spec.scale)",
        "resolve_score_function(spec.score, None).scale(depth, None)",
        ("tests/models/test_architecture_variants.py",),
    ),
    Mutant(
        "transformer/layers/linear.py",
        "fan_in, fan_out = math.prod(size for _, size in inputs), math.prod(output_sizes)",
        "fan_in, fan_out = inputs[-1][1], output_sizes[-1]",
        ("tests/layers/test_layers.py",),
    ),
    Mutant(
        "transformer/layers/lora.py",
        "if config.rank > min(fan_in, fan_out):",
        "if config.rank > max(fan_in, fan_out):",
        ("tests/layers/test_lora.py",),
    ),
    Mutant(
        "transformer/layers/lstmn.py",
        "            hidden_RxF,",
        "            state.hidden,",
        ("tests/models/test_recurrent_decoder.py",),
    ),
    Mutant(
        "transformer/layers/mixture_of_experts.py",
        "if self.count and not 2 <= self.top_k < self.count:",
        "if self.count and not 2 <= self.top_k <= self.count:",
        ("tests/layers/test_mixture_of_experts.py",),
    ),
    Mutant(
        "transformer/layers/mixture_of_experts.py",
        "gates_BxTxK = jnp.where(real_BxTx1, routing.gates, 0)",
        "gates_BxTxK = routing.gates",
        ("tests/layers/test_mixture_of_experts.py",),
    ),
    Mutant(
        "transformer/layers/multi_head_attention.py",
        "self.local_rotary = Rotary(config.local_rotary_base, fraction=config.rotary_fraction)",
        "self.local_rotary = Rotary(config.rotary_base, fraction=config.rotary_fraction)",
        ("tests/models/test_architecture_variants.py",),
    ),
    Mutant(
        "transformer/layers/multi_head_attention.py",
        "seen_RxK &= position_R[:, None] - cached_positions_RxK <= window",
        "seen_RxK &= position_R[:, None] - cached_positions_RxK < window",
        ("tests/models/test_architecture_variants.py",),
    ),
    Mutant(
        "transformer/layers/norm.py",
        "jax.lax.rsqrt(mean_square + self.epsilon)",
        "jax.lax.rsqrt(mean_square)",
        ("tests/layers/test_layers.py",),
    ),
    Mutant(
        "transformer/layers/recurrent.py",
        "output_RxF = jax.nn.sigmoid(output_RxF + to_output_F * memory_RxF)",
        "output_RxF = jax.nn.sigmoid(output_RxF + to_output_F * state.memory)",
        ("tests/layers/test_recurrent.py",),
    ),
    Mutant(
        "transformer/layers/recurrent.py",
        "layer_key, dropped = jax.random.fold_in(key, number), []",
        "layer_key, dropped = key, []",
        ("tests/layers/test_recurrent.py",),
    ),
    Mutant(
        "transformer/layers/residual.py",
        "features, depth = jax.random.split(key)",
        "features, depth = key, key",
        ("tests/layers/test_layers.py",),
    ),
    Mutant(
        "transformer/layers/segment_memory.py",
        "lengths_B = None if mask.key_lengths is None else mask.key_lengths + memory",
        "lengths_B = mask.key_lengths",
        (
            "tests/layers/test_segment_memory.py",
            "tests/models/test_xlnet.py",
            "tests/tasks/test_recurrent_memory.py",
        ),
    ),
    Mutant(
        "transformer/layers/sequence_lengths.py",
        "check_num_positions(width + length - 1, max_length, sequence)",
        "check_num_positions(width + length, max_length, sequence)",
        (
            "tests/decoding/test_cache.py",
            "tests/models/test_decoder.py",
        ),
    ),
    Mutant(
        "transformer/layers/sequence_lengths.py",
        "1 + jnp.sum(target_BxT[:, 1:] != pad, axis=1)",
        "jnp.sum(target_BxT != pad, axis=1)",
        ("tests/golden/test_families.py",),
    ),
    Mutant(
        "transformer/layers/transformer_block.py",
        "            text_length=length,",
        "            text_length=None,",
        ("tests/models/test_architecture_variants.py",),
    ),
    Mutant(
        "transformer/layers/transformer_block.py",
        "window=(window, 0 if mask.causal else window)",
        "window=(window, 0)",
        ("tests/models/test_architecture_variants.py",),
    ),
    Mutant(
        "transformer/layers/transformer_block.py",
        "return jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])",
        "return jnp.stack(leaves, axis=0).reshape(-1, *leaves[0].shape[1:])",
        (
            "tests/models/test_decoder.py",
            "tests/models/test_architecture_variants.py",
        ),
    ),
    Mutant(
        "transformer/layers/transformer_config.py",
        "dropout=self.attention_dropout,",
        "dropout=self.dropout,",
        (
            "tests/models/test_decoder.py",
            "tests/models/test_encoder_decoder.py",
        ),
    ),
    Mutant(
        "transformer/layers/transformer_config.py",
        "if self.heads % self.resolved_kv_heads:",
        "if self.heads < self.resolved_kv_heads:",
        ("tests/models/test_decoder.py",),
    ),
    Mutant(
        "transformer/layers/two_stream_attention.py",
        "content_BxT = jnp.where(real_BxT, order_BxT + 1, NOTHING).astype(jnp.int32)",
        "content_BxT = jnp.where(real_BxT, order_BxT, NOTHING).astype(jnp.int32)",
        ("tests/models/test_xlnet.py",),
    ),
)
