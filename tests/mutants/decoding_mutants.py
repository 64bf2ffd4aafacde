"""Mutants of transformer/decoding."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/decoding/beam.py",
        "penalty = jnp.take_along_axis(state.penalty, parent, axis=1)",
        "penalty = state.penalty",
        ("tests/decoding/test_coverage.py",),
    ),
    Mutant(
        "transformer/decoding/beam.py",
        "longest = state.tokens.shape[-1] if self.length_penalty >= 0 else step + 1",
        "longest = state.tokens.shape[-1]",
        ("tests/decoding/test_greedy_and_beam_search.py",),
    ),
    Mutant(
        "transformer/decoding/beam.py",
        "live_scores = state.log_probability / self.penalty(state.tokens.shape[-1]) + state.penalty",
        "live_scores = state.log_probability / self.penalty(state.tokens.shape[-1])",
        ("tests/decoding/test_coverage.py",),
    ),
    Mutant(
        "transformer/decoding/constraints.py",
        "begins_RxS = jnp.arange(starts) + size - 1 < self.lengths[:, None]",
        "begins_RxS = jnp.arange(starts) + size - 1 <= self.lengths[:, None]",
        (
            "tests/golden/test_generation.py",
            "tests/decoding/test_constraints.py",
        ),
    ),
    Mutant(
        "transformer/decoding/constraints.py",
        "if max(self._named_ids, default=0) >= vocabulary:",
        "if max(self._named_ids, default=0) > vocabulary:",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutant(
        "transformer/decoding/constraints.py",
        "(step < self.min_new_tokens) & end_V",
        "(step <= self.min_new_tokens) & end_V",
        (
            "tests/golden/test_generation.py",
            "tests/decoding/test_constraints.py",
        ),
    ),
    Mutant(
        "transformer/decoding/constraints.py",
        "inside_BxP = jnp.arange(width) < jnp.asarray(prompt.lengths)[:, None]",
        "inside_BxP = jnp.arange(width) <= jnp.asarray(prompt.lengths)[:, None]",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutant(
        "transformer/decoding/ensemble.py",
        "min(lengths, default=None)",
        "max(lengths, default=None)",
        ("tests/decoding/test_ensemble.py",),
    ),
    Mutant(
        "transformer/decoding/generation.py",
        "covered_RxS = jnp.log(jnp.clip(attended_RxS, MIN_COVERAGE, 1))",
        "covered_RxS = jnp.log(jnp.clip(attended_RxS, MIN_COVERAGE))",
        ("tests/decoding/test_coverage.py",),
    ),
    Mutant(
        "transformer/decoding/generation.py",
        "model_key = None if key is None else jax.random.fold_in(key, _MODEL_STREAM)",
        "model_key = key",
        (
            "tests/models/test_decoding_steps.py",
            "tests/decoding/test_sampling.py",
        ),
    ),
    Mutant(
        "transformer/decoding/generation.py",
        "logits_RxV.at[:, tokens.vocab_size :].set(-jnp.inf)",
        "logits_RxV.at[:, tokens.vocab_size + 1 :].set(-jnp.inf)",
        (
            "tests/decoding/test_constraints.py",
            "tests/decoding/test_greedy_and_beam_search.py",
        ),
    ),
    Mutant(
        "transformer/decoding/greedy.py",
        "self.log_probability + jnp.where(self.ended, 0, log_probability_R)",
        "self.log_probability + log_probability_R",
        ("tests/decoding/test_greedy_and_beam_search.py",),
    ),
    Mutant(
        "transformer/decoding/sampling.py",
        "keys_R = jax.vmap(jax.random.fold_in, (0, None))(state.keys, step)",
        "keys_R = state.keys",
        ("tests/decoding/test_sampling.py",),
    ),
    Mutant(
        "transformer/decoding/sampling.py",
        "scaled = jnp.where(before_RxK < self.top_p, scaled, -jnp.inf)",
        "scaled = jnp.where(before_RxK + probability_RxK < self.top_p, scaled, -jnp.inf)",
        ("tests/decoding/test_sampling.py",),
    ),
    Mutant(
        "transformer/decoding/shallow_fusion.py",
        "language_RxV = jax.nn.log_softmax(logits_RxW)[:, token_map_V]",
        "language_RxV = jax.nn.log_softmax(logits_RxW[:, token_map_V])",
        ("tests/decoding/test_shallow_fusion.py",),
    ),
    Mutant(
        "transformer/decoding/stop_sequences.py",
        "        if fallback[state] in complete:",
        "        if state in complete:",
        ("tests/decoding/test_stop_sequences.py",),
    ),
)
