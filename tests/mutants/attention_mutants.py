"""Mutants of transformer/attention."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/attention/api.py",
        "key, dropout_key = jax.random.split(key)",
        "dropout_key = key",
        ("tests/attention/test_dropout.py",),
    ),
    Mutant(
        "transformer/attention/argument_checks.py",
        "    if heads % kv_heads:",
        "    if heads < kv_heads:",
        ("tests/attention/test_attend_checks.py",),
    ),
    Mutant(
        "transformer/attention/argument_checks.py",
        "(numbers > 0).all()",
        "(numbers >= 0).all()",
        (
            "tests/attention/test_attend_checks.py",
            "tests/attention/test_stage_checks.py",
        ),
    ),
    Mutant(
        "transformer/attention/attend_checks.py",
        "if k.shape[1:3] != v.shape[1:3]:",
        "if k.shape[1] != v.shape[1]:",
        ("tests/attention/test_attend_checks.py",),
    ),
    Mutant(
        "transformer/attention/attention_spec.py",
        '        check_positive("temperature", self.temperature)',
        "",
        ("tests/attention/test_attend_checks.py",),
    ),
    Mutant(
        "transformer/attention/backends.py",
        'float(getattr(device, "compute_capability", "9.0")) < 9',
        'float(getattr(device, "compute_capability", "9.0")) <= 9',
        ("tests/attention/test_jax_kernels.py",),
    ),
    Mutant(
        "transformer/attention/blockwise.py",
        "last + jnp.max(mask.query_offset)",
        "last + jnp.min(mask.query_offset)",
        ("tests/attention/test_attend.py",),
    ),
    Mutant(
        "transformer/attention/blockwise.py",
        "key[-1] >= first - mask.window[0]",
        "key[-1] > first - mask.window[0]",
        ("tests/attention/test_masks.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "measured[name] * captured.counts[name]",
        "measured[name]",
        ("tests/attention/test_importance.py",),
    ),
    Mutant(
        "transformer/attention/importance.py",
        "jnp.sum(jnp.abs(sum_B + bias_gradient_B))",
        "jnp.sum(jnp.abs(sum_B))",
        ("tests/attention/test_importance.py",),
    ),
    Mutant(
        "transformer/attention/importance.py",
        "jnp.sum(jnp.abs(sum_BxH), axis=0)",
        "jnp.abs(jnp.sum(sum_BxH, axis=0))",
        ("tests/attention/test_importance.py",),
    ),
    Mutant(
        "transformer/attention/importance.py",
        "jnp.where(wide_gradient == 0, 0, x.astype(wide_gradient.dtype) * wide_gradient)",
        "x.astype(wide_gradient.dtype) * wide_gradient",
        ("tests/attention/test_importance.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "if isinstance(self.rows, int) and self.rows < 1:",
        "if isinstance(self.rows, int) and self.rows < 0:",
        ("tests/attention/test_capture.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "out_of_range = [layer for layer in layers if not 0 <= layer < len(self.weights)]",
        "out_of_range = [layer for layer in layers if not layer < len(self.weights)]",
        ("tests/attention/test_capture.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "round(index * (positions - 1) / steps)",
        "index * ((positions - 1) // steps)",
        ("tests/attention/test_capture_pooled.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "weights = jax.lax.stop_gradient(weights_BxHxQxK.astype(wide))",
        "weights = weights_BxHxQxK.astype(wide)",
        ("tests/attention/test_capture.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "example_B = first_example + jnp.arange(len(q), dtype=jnp.int32)",
        "example_B = jnp.arange(len(q), dtype=jnp.int32)",
        ("tests/attention/test_sharded_attention.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "return added[..., 0] / inputs.scaling.temperature",
        "return added[..., 0]",
        ("tests/attention/test_statistics.py",),
    ),
    Mutant(
        "transformer/attention/capture.py",
        "out_of_range = [head for head in capture.heads if not 0 <= head < heads]",
        "out_of_range = [head for head in capture.heads if not head < heads]",
        ("tests/attention/test_capture.py",),
    ),
    Mutant(
        "transformer/attention/cudnn_packed_rows.py",
        "scale = scaling.scale / scaling.temperature",
        "scale = scaling.scale",
        ("tests/attention/test_cudnn_packed_rows.py",),
    ),
    Mutant(
        "transformer/attention/kernels.py",
        "return terms.modification.cap / scaling.temperature if isinstance(terms.modification, Softcap) else None",
        "return terms.modification.cap if isinstance(terms.modification, Softcap) else None",
        ("tests/attention/test_jax_kernels.py",),
    ),
    Mutant(
        "transformer/attention/kernels.py",
        "bias = jnp.where(hidden, _HIDDEN_LOGIT, bias / scaling.temperature)",
        "bias = jnp.where(hidden, _HIDDEN_LOGIT, bias)",
        ("tests/attention/test_jax_kernels.py",),
    ),
    Mutant(
        "transformer/attention/kernels.py",
        "(before, 0 if mask.causal else after)",
        "(before, after)",
        ("tests/attention/test_jax_kernels.py",),
    ),
    Mutant(
        "transformer/attention/masks.py",
        "rules.append(take_at_keys(key_order, key)[:, None] < jnp.take",
        "rules.append(take_at_keys(key_order, key)[:, None] <= jnp.take",
        ("tests/attention/test_masks.py",),
    ),
    Mutant(
        "transformer/attention/masks.py",
        "if not are_integers or before < 0 or after < 0:",
        "if not are_integers or before < 0:",
        (
            "tests/attention/test_attend_checks.py",
            "tests/attention/test_stage_checks.py",
        ),
    ),
    Mutant(
        "transformer/attention/masks.py",
        "if mask.center is not None and before + after == 0:",
        "if mask.center is not None and before + after < 0:",
        ("tests/attention/test_attend_checks.py",),
    ),
    Mutant(
        "transformer/attention/normalizers.py",
        "return _sample_weights(logits_BxHxQxK, allowed, key if train else None, kind)",
        "return _sample_weights(logits_BxHxQxK, allowed, key, kind)",
        ("tests/attention/test_normalizers.py",),
    ),
    Mutant(
        "transformer/attention/normalizers.py",
        "probabilities = softmax(logits, allowed)",
        "probabilities = softmax(noisy, allowed)",
        ("tests/attention/test_normalizers.py",),
    ),
    Mutant(
        "transformer/attention/positions.py",
        "if self.max_distance <= exact:",
        "if self.max_distance < exact:",
        ("tests/attention/test_attend_checks.py",),
    ),
    Mutant(
        "transformer/attention/random_arrays.py",
        ".reshape(-1)[:size].reshape(shape)",
        ".reshape(-1)[-size:].reshape(shape)",
        ("tests/attention/test_random_arrays.py",),
    ),
    Mutant(
        "transformer/attention/ring_attention.py",
        "(2 * self.size - 1 - place) * length)",
        "(2 * self.size - place) * length)",
        ("tests/attention/test_ring_attention.py",),
    ),
)
