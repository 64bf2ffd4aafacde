"""The decoding loop: step the model, let a strategy choose tokens, reorder the cache."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.decoding.constraints import Constraints, Prompt
from transformer.decoding.shallow_fusion import ShallowFusion
from transformer.layers.beam_rows import repeat_per_beam
from transformer.models.model import Inputs, Model, Variables

# A position that was never attended to counts as if it had been by this much: the penalty stays finite.
MIN_COVERAGE = 1e-6
# The number of the model's stream within the key; strategies draw from others.
_MODEL_STREAM = 2**32 - 1


class SpecialTokens(NamedTuple):
    """The special tokens; None for one that the vocabulary does not have.

    Attributes:
        pad_id: Padding.
        bos_id: The begin token.
        eos_id: The end token.
        vocab_size: The number of tokens, for a model whose embedding has more rows; those are never generated.
        other_end_ids: Further tokens that end a text as the end token does.
    """

    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    vocab_size: int | None = None
    other_end_ids: tuple[int, ...] = ()

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return (*(() if self.eos_id is None else (self.eos_id,)), *self.other_end_ids)

    @property
    def never_generated_ids(self) -> list[int]:
        """The tokens that are never generated: padding and begin, unless begin is also the end, as in GPT-2."""
        return [token for token in (self.pad_id, self.bos_id) if token is not None and token not in self.end_ids]

    @property
    def fill_id(self) -> int:
        """The token that fills a sequence after its end: padding, else the end token, else token 0."""
        return next((token for token in (self.pad_id, self.eos_id) if token is not None), 0)

    def with_one_end(self, tokens: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
        """Return generated tokens with the end token in place of the others that end a text."""
        if self.eos_id is None or not self.other_end_ids:
            return tokens
        return jnp.where(jnp.isin(tokens, jnp.array(self.other_end_ids)), self.eos_id, tokens)


class DecodedSequences(NamedTuple):
    """The result of decoding: N sequences per example, the best hypothesis first, or samples in the order of sampling.

    Attributes:
        tokens: The tokens, without the prompt; after the end `SpecialTokens.fill_id`.
        scores: The score by which the strategy ranks, in nats.
        lengths: The number of tokens, including the one that ended the sequence, if any.
    """

    tokens: Int[Array, "B N T"]
    scores: Float[Array, "B N"]
    lengths: Int[Array, "B N"]


class DecodingStrategy(Protocol):
    """Chooses the next token of every row: greedy search, beam search or sampling."""

    @property
    def num_beams(self) -> int:
        """The number of rows of each example."""

    @property
    def limits_log_probabilities(self) -> bool:
        """Whether limits change log-probabilities, which then need not sum to one, and not the logits before them."""

    def start(self, examples: int, length: int, tokens: SpecialTokens, key: Key[Array, ""] | None) -> Any:
        """Return the state before the first step.

        Args:
            examples: Number of examples.
            length: The largest number of generated tokens.
            tokens: The special tokens.
            key: Random key, for strategies that sample.

        Returns:
            The state.
        """

    def choose(
        self,
        state: Any,
        log_probability_RxV: Float[Array, "R V"],
        ends_RxV: Bool[Array, "R V"],
        step: Int[Array, ""],
        tokens: SpecialTokens,
    ) -> tuple[Any, Int[Array, " R"], Int[Array, " R"] | None]:
        """Choose the next token of every row.

        Args:
            state: The state of the strategy.
            log_probability_RxV: The log-probability of every next token.
            ends_RxV: Which tokens would end a row.
            step: The index of the step.
            tokens: The special tokens.

        Returns:
            The next state, each row's token, and the row that each row continues (None: itself).
        """

    def done(self, state: Any, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Return whether no further step can change the result; `step` is the index of the next step."""

    def finish(self, state: Any, tokens: SpecialTokens) -> DecodedSequences:
        """Return the result from the final state."""


class CoverageStrategy(DecodingStrategy, Protocol):
    """A strategy that ranks hypotheses by a penalty as well as by their probability."""

    def with_penalty(self, state: Any, penalty_R: Float[Array, " R"]) -> Any:
        """Return the state with the coverage penalties of the hypotheses that are extended next."""


class CoveragePenalty(NamedTuple):
    """The coverage penalty cp(X; Y) = weight sum_i log(min(sum_j p_ij, 1)) (Wu et al. 2016, equation 14), at most 0.

    p_ij is the attention weight of source position i at step j, the mean over all layers and heads of the sites.

    Attributes:
        weight: The weight of the penalty.
        sites: The names of the attention sites over the source.
        real_BxS: False for the padding of the source.
    """

    weight: float
    sites: tuple[str, ...]
    real_BxS: Bool[Array, "B S"]

    @property
    def capture(self) -> Capture:
        """The attention maps to capture at every step."""
        return Capture(self.sites)

    def initial(self, num_beams: int) -> Float[Array, "R S"]:
        """Return the summed attention before the first step: zeros for `num_beams` rows of each example."""
        return jnp.zeros((len(self.real_BxS) * num_beams, self.real_BxS.shape[1]))

    def step_attention(self, maps: Mapping[str, CapturedAttention]) -> Float[Array, "R S"]:
        """Return the mean attention weight of each source position at one step."""
        site_weights = []
        for site in self.sites:
            weights_LxRxHx1xS = maps[site].weights
            assert weights_LxRxHx1xS is not None
            site_weights.append(jnp.mean(weights_LxRxHx1xS[:, :, :, 0], axis=(0, 2)))
        return jnp.mean(jnp.stack(site_weights), axis=0)

    def penalty(self, attended_RxS: Float[Array, "R S"]) -> Float[Array, " R"]:
        """Return the penalty of hypotheses from their attention to each source position, summed over steps."""
        real_RxS = repeat_per_beam(self.real_BxS, len(attended_RxS) // len(self.real_BxS))
        covered_RxS = jnp.log(jnp.clip(attended_RxS, MIN_COVERAGE, 1))
        return self.weight * jnp.sum(jnp.where(real_RxS, covered_RxS, 0), axis=1)


def generate(
    model: Model,
    variables: Variables,
    inputs: Inputs,
    *,
    strategy: DecodingStrategy,
    length: int,
    tokens: SpecialTokens,
    key: Key[Array, ""] | None = None,
    prompt: Prompt | None = None,
    constraints: Constraints | None = None,
    coverage: CoveragePenalty | None = None,
) -> DecodedSequences:
    """Decode at most `length` tokens for every example; the loop stops when all are done.

    Each step takes the model's logits, applies the constraints, excludes padding and begin, forces tokens, normalizes
    (except for a `ShallowFusion` model; a strategy with `limits_log_probabilities` first), and lets the strategy
    choose; scores are sums of these log-probabilities. A row ends with an end token or with the token that completes a
    stop string. Jit it with `model`, `strategy`, `length` and `tokens` static.

    Args:
        model: The model.
        variables: Its variables.
        inputs: Its inputs, [B, ...].
        strategy: How the next token is chosen.
        length: The largest number of generated tokens.
        tokens: The special tokens.
        key: The random key: one stream for the strategy, another for the model's steps. None of the library's families
            samples in its steps; hard attention takes its most probable key.
        prompt: The tokens that the inputs begin with, for constraints on repetition; they are not part of the result.
        constraints: Limits on the tokens; None for none.
        coverage: A coverage penalty on finished hypotheses; `strategy` must then be a `CoverageStrategy`.

    Returns:
        The sequences of each example.

    Raises:
        ValueError: If a forbidden token or the stop strings do not fit the vocabulary, if a strategy that samples has
            no key, or if a coverage penalty is used with a strategy that does not rank hypotheses.

    Example:
        ```python
        import functools, jax, jax.numpy as jnp
        from transformer.decoding.generation import SpecialTokens, generate
        from transformer.decoding.sampling import Sampling
        from transformer.layers.functional_module import Precision
        from transformer.models.registry import build, model_config
        from transformer.models.task_interface import TaskInterface

        config = model_config({"family": "decoder", "layers": 2, "width": 16, "heads": 2, "feed_forward": 32})
        model = build(config, TaskInterface({}, {"tokens": 11}), Precision())
        variables, prompts = model.init(jax.random.key(0)), jnp.array([[3, 4], [5, 6]])
        strategy, tokens = Sampling(temperature=0.8, num_beams=4), SpecialTokens(eos_id=0)
        run = jax.jit(functools.partial(generate, model, strategy=strategy, length=5, tokens=tokens))
        run(variables, {"tokens": prompts}, key=jax.random.key(1)).tokens.shape  # (2, 4, 5)
        ```
    """
    limits = Constraints() if constraints is None else constraints
    cache, first_R = model.init_cache(variables, inputs, num_beams=strategy.num_beams, length=length)
    rows = first_R.shape[0]
    vocabulary = jax.eval_shape(model.step, variables, cache, first_R)[0].shape[-1]
    model_key = None if key is None else jax.random.fold_in(key, _MODEL_STREAM)
    limits.check(vocabulary)
    end_V = np.isin(np.arange(vocabulary), tokens.end_ids)

    def advance(carry: tuple) -> tuple:
        step, tokens_R, cache, constraint_state, total_attention, state = carry
        step_key = None if model_key is None else jax.random.fold_in(model_key, step)
        capture = None if coverage is None else coverage.capture
        logits_RxV, cache, aux = model.step(variables, cache, tokens_R, key=step_key, capture=capture)
        if coverage is not None:
            total_attention = total_attention + coverage.step_attention(aux.maps)
            state = require_coverage_strategy(strategy).with_penalty(state, coverage.penalty(total_attention))
        if tokens.vocab_size is not None:
            logits_RxV = logits_RxV.at[:, tokens.vocab_size :].set(-jnp.inf)
        # What a language model has weighed are scores already.
        is_normalized = isinstance(model, ShallowFusion)
        if strategy.limits_log_probabilities and not is_normalized:
            logits_RxV, is_normalized = jax.nn.log_softmax(logits_RxV), True
        logits_RxV = limits.apply(logits_RxV, constraint_state, step, end_V)
        if tokens.never_generated_ids:
            logits_RxV = logits_RxV.at[:, jnp.array(tokens.never_generated_ids)].set(-jnp.inf)
        logits_RxV = limits.force(logits_RxV, step, length)
        ends_RxV = jnp.broadcast_to(end_V, logits_RxV.shape) | limits.stop_string_ends(constraint_state)
        log_probability_RxV = logits_RxV if is_normalized else jax.nn.log_softmax(logits_RxV)
        state, tokens_R, parents_R = strategy.choose(state, log_probability_RxV, ends_RxV, step, tokens)
        if parents_R is not None:
            cache = cache._replace(
                layers=jax.tree.map(lambda leaf: leaf[:, parents_R], cache.layers),
                rows=jax.tree.map(lambda leaf: leaf[parents_R], cache.rows),
            )
            constraint_state, total_attention = jax.tree.map(
                lambda leaf: leaf[parents_R], (constraint_state, total_attention)
            )
        return step + 1, tokens_R, cache, limits.advance(constraint_state, tokens_R), total_attention, state

    def unfinished(carry: tuple) -> Array:
        step, *_, state = carry
        return (step < length) & ~strategy.done(state, step)

    constraint_state = limits.start(rows, vocabulary, prompt, length)
    strategy_state = strategy.start(rows // strategy.num_beams, length, tokens, key)
    attended = None if coverage is None else coverage.initial(strategy.num_beams)
    *_, state = jax.lax.while_loop(
        unfinished, advance, (jnp.int32(0), first_R, cache, constraint_state, attended, strategy_state)
    )
    return strategy.finish(state, tokens)


def require_coverage_strategy(strategy: DecodingStrategy) -> CoverageStrategy:
    """Return the strategy, typed as one that takes a coverage penalty.

    Raises:
        ValueError: If it does not rank hypotheses.
    """
    if not hasattr(strategy, "with_penalty"):
        raise ValueError(f"coverage needs a strategy that ranks hypotheses, a beam search: this is {strategy}")
    return cast(CoverageStrategy, strategy)
