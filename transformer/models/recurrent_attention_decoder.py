"""What all recurrent decoders with attention share: teacher forcing is a scan of the very step that decodes.

A family says four equations: `encode`, `words` with `chosen`, `advance` and `read_out`.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, Captured, capture_at, capture_weights, captured_at, one_layer
from transformer.attention.masks import Mask
from transformer.layers.attention_cell import Alignment, AttentionCell, AttentionMemory, scan_steps
from transformer.layers.beam_rows import repeat_rows
from transformer.layers.embedding import Embedding
from transformer.layers.functional_module import Builder
from transformer.layers.linear import Linear
from transformer.layers.sequence_lengths import target_lengths
from transformer.models.model import Aux, Cache, Inputs, PyTree, StatelessModule
from transformer.models.task_interface import TaskInterface

SITE = "decoder/attention"


class EncodedSource(NamedTuple):
    """What every step reads of a source: the memory of an attention, or one vector for all steps.

    A family that reads more has a class of its own, with `lengths`: 0 for a row that only fills the batch.
    """

    lengths: Int[Array, " B"]
    memory: AttentionMemory | None = None
    vector: Float[Array, "B M"] | None = None


class StepInput(NamedTuple):
    """What a step is given: the word before, and, in training, what was drawn for it.

    `own`: whether it reads its own last word instead (`sample_own_words`); `soft`: whether an attention that draws
    reads by its probabilities (`sample_soft_examples`).
    """

    word: Float[Array, "*B E"]
    own: Bool[Array, "*B"] | None = None
    soft: Bool[Array, "*B"] | None = None


class DecoderSteps(NamedTuple):
    """Steps of a decoder: all of a known target [B, T, ...], or one of every row [R, ...].

    `outputs` is what `advance` handed out, `lengths` how many steps of each row are real, and `key` what is drawn by
    behind them; None in decoding, as the key is outside of training.
    """

    source: Any
    inputs: Any
    outputs: Any
    lengths: Int[Array, " B"]
    key: Key[Array, ""] | None = None


class RecurrentAttentionDecoder(StatelessModule):
    """A decoder over words that reads an encoded source step by step.

    inputs: `target` [B, T], the words behind a begin token, padded at the end, and what `encode` reads.

    `streams` names the places that draw in training; each has a key of its own (`stream`).
    """

    streams: ClassVar[tuple[str, ...]] = ()
    embedding: Embedding
    output: Linear

    def __init__(self, interface: TaskInterface, builder: Builder):
        if interface.pad is None or interface.begin is None:
            raise ValueError(f"{type(self).__name__} needs interface.pad and interface.begin, the tokens' numbers")
        self.pad, self.begin, self.dtype = interface.pad, interface.begin, builder.dtype

    # What a family says.

    def encode(self, inputs: Inputs, key: Key[Array, ""] | None) -> tuple[PyTree, PyTree]:
        """The source as all steps read it (`EncodedSource`, or what has `lengths`), and the carry before the first."""
        raise NotImplementedError

    def step_inputs(self, state: PyTree, inputs: Inputs, source: PyTree, key: Key[Array, ""] | None) -> PyTree:
        """What each step over a known target is given, [B, T, ...]: the word before."""
        return StepInput(self.embedding(jnp.asarray(inputs["target"]), self.dtype))

    def next_step_input(self, tokens_R: Int[Array, " R"], source: PyTree, carry: PyTree) -> PyTree:
        """What the next step is given of the tokens that were chosen, [R, ...]."""
        return StepInput(self.embedding(tokens_R, self.dtype))

    def advance(
        self, source: PyTree, carry: PyTree, given: PyTree, key: Key[Array, ""] | None, *, train: bool
    ) -> tuple[PyTree, PyTree, Alignment | None]:
        """One step of every row: the next carry, its outputs, and how it attended; rows are examples x beams."""
        raise NotImplementedError

    def read_out(self, given: PyTree, outputs: PyTree) -> Float[Array, "*B E"]:
        """What the next word is scored from; for the family that says nothing else, what the step outputs."""
        return outputs

    def logits(self, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """The score of every word from what was read out, in at least float32."""
        logits = self.output(hidden)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    # What follows from it.

    def unroll(
        self,
        state: PyTree,
        inputs: Inputs,
        *,
        train: bool,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[DecoderSteps, Aux]:
        """Teacher forcing: all steps over a known target, and the maps of their attention."""
        key = key if train else None
        source, carry = self.encode(inputs, key)
        given = self.step_inputs(state, inputs, source, key)
        lengths_B = target_lengths(jnp.asarray(inputs["target"]), source.lengths, self.pad)
        mask, asked = Mask(query_lengths=lengths_B, key_lengths=source.lengths), capture_at(SITE, capture)
        outputs, captured = self.run_steps(source, carry, given, mask, key, train=train, capture=asked)
        maps = {} if captured is None else {SITE: captured}
        return DecoderSteps(source, given, outputs, lengths_B, key), Aux(maps, {}, state)

    def run_steps(
        self,
        source: PyTree,
        carry: PyTree,
        given: PyTree,
        mask: Mask,
        key: Key[Array, ""] | None,
        *,
        train: bool,
        capture: Capture | None,
    ) -> tuple[PyTree, Captured | None]:
        """The outputs of all steps, and what was captured of them: one after another.

        A family whose states read nothing of the source may attend for all of them at once, which is faster.
        """

        def step(carry: PyTree, given: PyTree, key: Key[Array, ""] | None) -> tuple[PyTree, PyTree, Alignment | None]:
            return self.advance(source, carry, given, key, train=train)

        of_steps = self.stream_key(key, "steps") if "steps" in self.streams else None
        _, outputs, captured = scan_steps(step, carry, given, mask=mask, key=of_steps, capture=capture)
        return outputs, captured

    def hidden(self, state: PyTree, inputs: Inputs, **options: Any) -> tuple[Float[Array, "B T E"], Aux]:
        """What `logits` scores the words of a known target from."""
        steps, aux = self.unroll(state, inputs, **options)
        return self.read_out(steps.inputs, steps.outputs), aux

    def forward(self, state: PyTree, inputs: Inputs, **options: Any) -> tuple[Float[Array, "B T V"], Aux]:
        """The score of every word at every position of the target."""
        hidden_BxTxE, aux = self.hidden(state, inputs, **options)
        return self.logits(hidden_BxTxE), aux

    def init_cache(self, state: PyTree, inputs: Inputs, *, beams: int, length: int) -> tuple[Cache, Int[Array, " R"]]:
        """Rows are examples x beams; the source is encoded once and lies in `examples`, the same for all beams."""
        source, carry = self.encode(inputs, None)
        begin_R = jnp.full(len(source.lengths) * beams, self.begin, jnp.int32)
        return Cache(layers=(), rows=repeat_rows(carry, beams), examples=source), begin_R

    def extend(
        self,
        state: PyTree,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        key: Key[Array, ""] | None = None,
        capture: Capture | None = None,
    ) -> tuple[DecoderSteps, Cache, Aux]:
        """The same step as in training, on the tokens that were chosen."""
        source, maps = cache.examples, {}
        given = self.next_step_input(tokens_R, source, cache.rows)
        rows, outputs, alignment = self.advance(source, cache.rows, given, None, train=False)
        if alignment is not None:
            weights, logits = alignment.weights[:, :, None], alignment.logits[:, :, None]
            captured = capture_weights(weights, capture_at(SITE, capture), logits=logits)
            maps = captured_at(SITE, captured, capture)
        lengths_R = jnp.ones(len(tokens_R), jnp.int32)
        return DecoderSteps(source, given, outputs, lengths_R), cache._replace(rows=rows), Aux(maps, {}, state)

    def step(
        self, state: PyTree, cache: Cache, tokens_R: Int[Array, " R"], **options: Any
    ) -> tuple[Float[Array, "R V"], Cache, Aux]:
        """The score of every next word."""
        steps, cache, aux = self.extend(state, cache, tokens_R, **options)
        return self.logits(self.read_out(steps.inputs, steps.outputs)), cache, aux

    def stream_key(self, key: Key[Array, ""] | None, name: str) -> Key[Array, ""] | None:
        """The key of one of the places that draw; None without a key."""
        return None if key is None else jax.random.fold_in(key, self.streams.index(name))


def read_context(
    attention: AttentionCell | None, source: EncodedSource, query_RxE: Float[Array, "R E"], **facts: Any
) -> tuple[Float[Array, "R C"], Alignment | None]:
    """The context that a state reads of a source, and how; `facts` as of `AttentionCell.step`."""
    if attention is not None:
        assert source.memory is not None
        return attention.step(query_RxE, source.memory, **facts)
    assert source.vector is not None
    return repeat_rows(source.vector, len(query_RxE) // len(source.vector)), None


def capture_all_steps(alignment: Alignment, capture: Capture | None, mask: Mask) -> Captured | None:
    """What was asked for of steps that attended together, as `scan_steps` returns it."""
    captured = capture_weights(alignment.weights, capture, logits=alignment.logits, mask=mask)
    return None if captured is None else one_layer(captured)


def sampling_extras(alignment: Alignment | None) -> dict[str, Array]:
    """Of an attention that draws and learns by REINFORCE, the entries of `Aux.extras`, [..., H].

    `attention_log_prob` of each draw, and `attention_entropy` of what it was drawn from.
    """
    if alignment is None or alignment.log_prob is None or alignment.entropy is None:
        return {}
    return {"attention_log_prob": alignment.log_prob, "attention_entropy": alignment.entropy}


def sample_soft_examples(
    key: Key[Array, ""], share: Float[Array, ""] | float, target_BxT: Int[Array, "B T"]
) -> Bool[Array, "B T"]:
    """Which examples are read by the probabilities in place of draws (Xu et al. 2015, section 4.1)."""
    drawn_Bx1 = jax.random.bernoulli(key, share, (len(target_BxT), 1))
    return jnp.broadcast_to(drawn_Bx1, target_BxT.shape)


def sample_own_words(
    key: Key[Array, ""], share: Float[Array, ""] | float, target_BxT: Int[Array, "B T"]
) -> Bool[Array, "B T"]:
    """Which words the decoder reads of its own draws (Bengio et al. 2015); never the begin token."""
    return jax.random.bernoulli(key, share, target_BxT.shape).at[:, 0].set(False)
