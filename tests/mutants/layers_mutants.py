"""Mutants of transformer/layers."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/layers/attention_cell.py",
        "log_prob=jnp.where(soft_Bx1xQ, 0, weights.log_prob),",
        "log_prob=weights.log_prob,",
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
        ("tests/layers/test_attention_cell.py",),
    ),
    Mutant(
        "transformer/layers/convolution.py",
        "return (self.receptive_span - 1) // 2, self.receptive_span // 2",
        "return self.receptive_span // 2, (self.receptive_span - 1) // 2",
        ("tests/layers/test_convolution.py",),
    ),
    Mutant(
        "transformer/layers/functional_module.py",
        'if self.logits not in ("float32", self.compute):',
        'if self.logits not in ("float32", "bfloat16", self.compute):',
        ("tests/models/test_logit_types.py",),
    ),
    Mutant(
        "transformer/layers/grid_encoder.py",
        "return x_BxYxXxC + self.second(jax.nn.relu(self.second_norm(y)))",
        "return self.second(jax.nn.relu(self.second_norm(y)))",
        ("tests/layers/test_grid_encoder.py",),
    ),
    Mutant(
        "transformer/layers/feed_forward.py",
        'self.activation.function(checkpoint_name(activated, "before_activation"))',
        'checkpoint_name(self.activation.function(activated), "before_activation")',
        ("tests/golden/test_activations.py",),
    ),
    Mutant(
        "transformer/layers/image_grid_attention.py",
        "jnp.asarray(self.gamma[...], x_BxNxC.dtype)[None, None] * o_BxNxC + x_BxNxC",
        "jnp.asarray(self.gamma[...], x_BxNxC.dtype)[None, None] * (o_BxNxC + x_BxNxC)",
        ("tests/layers/test_image_grid_attention.py",),
    ),
    Mutant(
        "transformer/layers/kv_cache.py",
        "return jnp.where((held_BxK >= 0)[:, :, None, None], picked, 0)",
        "return jnp.where((held_BxK > 0)[:, :, None, None], picked, 0)",
        ("tests/layers/test_kv_cache.py",),
    ),
    Mutant(
        "transformer/layers/lora.py",
        "if config.rank > min(fan_in, fan_out):",
        "if config.rank > max(fan_in, fan_out):",
        ("tests/layers/test_lora.py",),
    ),
    Mutant(
        "transformer/layers/multi_head_attention.py",
        'return checkpoint_name(k_BxKxGxD, "keys"), checkpoint_name(v_BxKxGxD, "values")',
        'return checkpoint_name(k_BxKxGxD, "values"), checkpoint_name(v_BxKxGxD, "keys")',
        ("tests/golden/test_activations.py",),
    ),
    Mutant(
        "transformer/layers/recurrent.py",
        "layer_key, dropped = jax.random.fold_in(key, number), []",
        "layer_key, dropped = key, []",
        ("tests/layers/test_recurrent.py",),
    ),
    Mutant(
        "transformer/layers/residual.py",
        """            return checkpoint_name(x, "residual")""",
        """            return checkpoint_name(x - y, "residual") + y""",
        ("tests/golden/test_activations.py",),
    ),
    Mutant(
        "transformer/layers/residual.py",
        "features, depth = jax.random.split(key)",
        "features, depth = key, key",
        ("tests/layers/test_layers.py",),
    ),
)
