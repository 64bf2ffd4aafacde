"""Base class of recurrent decoders with attention: teacher forcing scans the same step that decodes.

A family implements `encode`, `advance` and `output_features`, and overrides `step_inputs` and `next_step_input` if
its steps read more than the previous word.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import (
    Capture,
    CapturedAttention,
    add_layer_axis,
    capture_for_site,
    capture_weights,
    single_layer_maps,
)
from transformer.attention.masks import Mask
from transformer.attention.requested_activations import HEAD_OUTPUTS
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionMemory, scan_decoder_steps
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.linear import Linear
from transformer.layers.sequence_lengths import target_lengths
from transformer.models.model import Aux, Cache, ForwardPass, Inputs, PyTree, StatelessModule
from transformer.models.task_interface import TaskInterface

SITE = "decoder/attention"


class EncodedSource(NamedTuple):
    """The encoded source, which every step reads.

    A family that reads more has a class of its own, with `lengths`.

    Attributes:
        lengths: The length of each source; 0 for a row that only fills the batch.
        memory: The annotations that the decoder attends to.
        vector: One vector for all steps, instead of attention.
    """

    lengths: Int[Array, " B"]
    memory: AttentionMemory | None = None
    vector: Float[Array, "B M"] | None = None


class StepInput(NamedTuple):
    """The input of a step.

    Attributes:
        word: The embedding of the previous word.
        use_sampled_word: Whether the step reads the word that the model sampled last instead (scheduled sampling,
            `sample_scheduled_sampling_mask`).
        use_soft_attention: Whether hard attention uses its probabilities instead of a sample
            (`sample_soft_attention_examples`).
    """

    word: Float[Array, "*B E"]
    use_sampled_word: Bool[Array, "*B"] | None = None
    use_soft_attention: Bool[Array, "*B"] | None = None


class DecoderSteps(NamedTuple):
    """The steps of a decoder: all steps of a known target [B, T, ...], or one step of every row [R, ...].

    Attributes:
        source: The encoded source.
        inputs: The inputs of the steps.
        outputs: The outputs of `advance`.
        lengths: How many steps of each row are real.
        key: The random key for what follows the steps; None outside training.
    """

    source: Any
    inputs: Any
    outputs: Any
    lengths: Int[Array, " B"]
    key: Key[Array, ""] | None = None


class RecurrentAttentionDecoder(StatelessModule):
    """Base class of recurrent decoders that read an encoded source step by step.

    inputs: `target` [B, T], the target after a begin token, padded at the end, and what `encode` reads.

    Attributes:
        streams: Names of the random streams of training; each has its own key (`random_stream_key`), by its index.
        embedding: The embedding of the target's words.
        output: The linear map from `output_features` to logits.
    """

    streams: ClassVar[tuple[str, ...]] = ()
    embedding: Embedding
    output: Linear

    def __init__(self, interface: TaskInterface, builder: ParameterBuilder):
        if interface.pad_id is None or interface.bos_id is None:
            raise ValueError(f"{type(self).__name__} needs interface.pad_id and interface.bos_id, the tokens' numbers")
        self.pad, self.begin, self.dtype = interface.pad_id, interface.bos_id, builder.dtype

    # What a family implements.

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[PyTree, PyTree]:
        """Encode the source.

        Args:
            inputs: The model's inputs.
            key: Random key; None outside training.

        Returns:
            The encoded source (`EncodedSource`, or another tree with `lengths`), and the carry before the first step.
        """
        raise NotImplementedError

    def step_inputs(self, state: PyTree, inputs: Inputs, source: PyTree, key: Key[Array, ""] | None) -> PyTree:
        """Return the inputs of all steps over a known target, [B, T, ...]; by default the previous words.

        Args:
            state: The model's state.
            inputs: The model's inputs.
            source: The encoded source.
            key: Random key; None outside training.

        Returns:
            `StepInput` or another tree.
        """
        return StepInput(self.embedding(jnp.asarray(inputs["target"]), self.dtype))

    def next_step_input(self, tokens_R: Int[Array, " R"], source: PyTree, carry: PyTree) -> PyTree:
        """Return the inputs of the next decoding step, [R, ...]; by default the chosen words.

        Args:
            tokens_R: The chosen tokens.
            source: The encoded source.
            carry: The carry of every row.

        Returns:
            `StepInput` or another tree.
        """
        return StepInput(self.embedding(tokens_R, self.dtype))

    def advance(
        self, source: PyTree, carry: PyTree, step_input: PyTree, forward_pass: ForwardPass
    ) -> tuple[PyTree, PyTree, Alignment | None]:
        """Run one step of every row (rows are examples x beams).

        Args:
            source: The encoded source, an entry per example.
            carry: The carry before.
            step_input: The inputs of the step.
            forward_pass: Whether to apply dropout and sampling, and their key of this step; None outside training.

        Returns:
            The next carry, the outputs of the step, and its attention, None without one.
        """
        raise NotImplementedError

    def output_features(self, step_inputs: PyTree, outputs: PyTree) -> Float[Array, "*B E"]:
        """Return the features from which `logits` computes the logits; by default the outputs of the step.

        Args:
            step_inputs: The inputs of the steps.
            outputs: The outputs of `advance`.

        Returns:
            The features.
        """
        return outputs

    def logits(self, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logits from the features of `output_features`, in float32 or wider."""
        return checkpoint_name(self.output.logits(hidden), "logits")

    # What all families share.

    def unroll(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[DecoderSteps, Aux]:
        """Run all steps over a known target (teacher forcing), and capture their attention.

        Args:
            state: The model's state.
            inputs: The model's inputs.
            forward_pass: Whether to apply dropout and sampling, their key, and what to capture.

        Returns:
            The steps, and the auxiliary results.
        """
        key = forward_pass.training_key
        with jax.named_scope("encoder"):
            source, carry = self.encode(inputs, key)
        step_inputs = self.step_inputs(state, inputs, source, key)
        lengths_B = target_lengths(jnp.asarray(inputs["target"]), source.lengths, self.pad)
        mask = Mask(query_lengths=lengths_B, key_lengths=source.lengths)
        outputs, captured = self.run_steps(source, carry, step_inputs, mask, forward_pass)
        maps = {} if captured is None else {SITE: captured}
        return DecoderSteps(source, step_inputs, outputs, lengths_B, key), Aux(maps, {}, state)

    def run_steps(
        self, source: PyTree, carry: PyTree, step_inputs: PyTree, mask: Mask, forward_pass: ForwardPass
    ) -> tuple[PyTree, CapturedAttention | None]:
        """Run all steps in order.

        A family whose states do not depend on the context may override it to attend for all steps at once.

        Args:
            source: The encoded source.
            carry: The carry before the first step.
            step_inputs: The inputs of all steps.
            mask: The lengths of targets and sources.
            forward_pass: Whether to apply dropout and sampling, their key, and what to capture.

        Returns:
            The outputs of the steps, and what was captured.
        """

        def step(
            carry: PyTree, step_input: PyTree, key: Key[Array, ""] | None
        ) -> tuple[PyTree, PyTree, Alignment | None]:
            return self.advance(source, carry, step_input, ForwardPass(forward_pass.train, key))

        steps_key = self.random_stream_key(forward_pass.training_key, "steps") if "steps" in self.streams else None
        capture = capture_for_site(SITE, forward_pass.capture)
        with jax.named_scope("decoder"):
            _, outputs, captured = scan_decoder_steps(
                step, carry, step_inputs, mask=mask, key=steps_key, capture=capture
            )
        return outputs, captured

    def hidden(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the features from which `logits` computes the logits of a known target."""
        steps, aux = self.unroll(state, inputs, forward_pass)
        return self.output_features(steps.inputs, steps.outputs), aux

    def forward(self, state: PyTree, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T V"], Aux]:
        """Return the logits at every position of the target."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        return self.logits(hidden_BxTxE), aux

    def init_cache(
        self, state: PyTree, inputs: Inputs, *, num_beams: int, length: int
    ) -> tuple[Cache, Int[Array, " R"]]:
        """Encode the source once, for all beams; every row starts with the begin token."""
        with jax.named_scope("encoder"):
            source, carry = self.encode(inputs, None)
        begin_R = jnp.full(len(source.lengths) * num_beams, self.begin, jnp.int32)
        return Cache(layers=(), rows=repeat_per_beam(carry, num_beams), examples=source), begin_R

    def extend(
        self, state: PyTree, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[DecoderSteps, Cache, Aux]:
        """Run the same step as in training on the chosen tokens.

        Args:
            state: The model's state.
            cache: The cache of the previous steps.
            tokens_R: The token that each row reads.
            forward_pass: Which maps to capture; its key is ignored, since decoding does not sample in the model.

        Returns:
            The step, the next cache, and the auxiliary results.
        """
        source, maps = cache.examples, {}
        step_input = self.next_step_input(tokens_R, source, cache.rows)
        with jax.named_scope("decoder"):
            rows, outputs, alignment = self.advance(source, cache.rows, step_input, ForwardPass(train=False))
        if alignment is not None:
            weights, logits = alignment.weights[:, :, None], alignment.logits[:, :, None]
            captured = capture_weights(weights, capture_for_site(SITE, forward_pass.capture), logits=logits)
            maps = single_layer_maps(SITE, captured, forward_pass.capture)
        lengths_R = jnp.ones(len(tokens_R), jnp.int32)
        return DecoderSteps(source, step_input, outputs, lengths_R), cache._replace(rows=rows), Aux(maps, {}, state)

    def step(
        self, state: PyTree, cache: Cache, tokens_R: Int[Array, " R"], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """Return the logits of the next token, the next cache and the auxiliary results."""
        steps, cache, aux = self.extend(state, cache, tokens_R, forward_pass)
        return self.logits(self.output_features(steps.inputs, steps.outputs)), cache, aux

    def random_stream_key(self, key: Key[Array, ""] | None, name: str) -> Key[Array, ""] | None:
        """Return the key of a random stream; None without a key."""
        return None if key is None else jax.random.fold_in(key, self.streams.index(name))


def compute_context(
    attention: AttentionCell | None, source: EncodedSource, query_RxE: Float[Array, "R E"], **facts: Any
) -> tuple[Float[Array, "R C"], Alignment | None]:
    """Return the context vector that a decoder state reads, and its attention, None without one.

    Args:
        attention: The attention; None to read the source's vector.
        source: The encoded source.
        query_RxE: The decoder states.
        **facts: Keyword arguments of `AttentionCell.step`.

    Returns:
        The context of each row, and the alignment.
    """
    if attention is not None:
        assert source.memory is not None
        context_RxC, alignment = attention.step(query_RxE, source.memory, **facts)
        with jax.named_scope("attention"):
            context_Rx1xHxD = context_RxC.reshape(len(context_RxC), 1, attention.config.heads, -1)
            context_RxC = checkpoint_name(context_Rx1xHxD, HEAD_OUTPUTS).reshape(context_RxC.shape)
        return checkpoint_name(context_RxC, "contexts"), alignment
    assert source.vector is not None
    context_RxC = repeat_per_beam(source.vector, len(query_RxE) // len(source.vector))
    return checkpoint_name(context_RxC, "contexts"), None


def capture_all_steps(alignment: Alignment, capture: Capture | None, mask: Mask) -> CapturedAttention | None:
    """Capture the attention of steps computed at once, in the layout of `scan_decoder_steps`.

    Args:
        alignment: The attention of all steps.
        capture: The request for the attention site; None captures nothing.
        mask: The lengths of targets and sources.

    Returns:
        What was captured, with a layer axis of 1; None without a request.
    """
    captured = capture_weights(alignment.weights, capture, logits=alignment.logits, mask=mask)
    return None if captured is None else add_layer_axis(captured)


def reinforce_extras(alignment: Alignment | None) -> dict[str, Array]:
    """Return the entries of `Aux.extras` that REINFORCE needs for hard attention, each [..., H].

    Returns:
        `attention_log_prob` of each sample and `attention_entropy` of its distribution; empty for other attention.
    """
    if alignment is None or alignment.log_prob is None or alignment.entropy is None:
        return {}
    return {"attention_log_prob": alignment.log_prob, "attention_entropy": alignment.entropy}


def sample_soft_attention_examples(
    key: Key[Array, ""], share: Float[Array, ""] | float, target_BxT: Int[Array, "B T"]
) -> Bool[Array, "B T"]:
    """Sample the examples for which hard attention uses its probabilities (Xu et al. 2015, section 4.1).

    Args:
        key: Random key.
        share: Probability of each example.
        target_BxT: The target, for its shape.

    Returns:
        True at every position of the sampled examples.
    """
    drawn_Bx1 = jax.random.bernoulli(key, share, (len(target_BxT), 1))
    return jnp.broadcast_to(drawn_Bx1, target_BxT.shape)


def sample_scheduled_sampling_mask(
    key: Key[Array, ""], share: Float[Array, ""] | float, target_BxT: Int[Array, "B T"]
) -> Bool[Array, "B T"]:
    """Sample the words that the decoder reads from its own output (scheduled sampling, Bengio et al. 2015).

    Args:
        key: Random key.
        share: Probability of each word.
        target_BxT: The target, for its shape.

    Returns:
        True at the sampled words; never at the first one.
    """
    return jax.random.bernoulli(key, share, target_BxT.shape).at[:, 0].set(False)
