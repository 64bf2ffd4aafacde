"""Transformer-XL: a decoder that reads a long text in segments, with a memory of earlier ones (Dai et al. 2019)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.positions import AttentionPosition
from transformer.attention.sites import Site
from transformer.config import NonNegativeInt, UserError
from transformer.layers.segment_memory import (
    TOKENS,
    apply_block_with_memory,
    mask_after_memory,
    split_memory_by_layer,
    stack_memory_of_layers,
)
from transformer.layers.transformer_block import scan_blocks, stack_by_layer
from transformer.layers.transformer_config import SEGMENT_MODEL_POSITIONS, PositionEncoding, check_ring_attention
from transformer.models.decoder import STACK, Decoder, DecoderConfig, DecoderHead
from transformer.models.model import Aux, ForwardPass, Inputs, split_key
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import LANGUAGE_MODELING, TaskInterface
from transformer.models.transformer_base import (
    capture_for_stack,
    causal_mask,
    expert_losses,
    final_states,
    gates_for_stack,
    maps_of_stack,
    sites_of_stack,
)


@dataclasses.dataclass(frozen=True)
class TransformerXLConfig(DecoderConfig):
    """The configuration of Transformer-XL; the other keys are those of `DecoderConfig`.

    Attributes:
        positions: Must be relative, within attention: absolute positions, counted from a segment's beginning, would
            confuse the memory's tokens with the segment's (section 3.2).
        memory_length: How many positions of earlier segments every layer attends to.

    Raises:
        UserError: If a value is out of range, or if `positions` are absolute.
    """

    positions: PositionEncoding = SEGMENT_MODEL_POSITIONS
    memory_length: NonNegativeInt = 128

    def _check(self) -> None:
        super()._check()
        if self.head is not DecoderHead.NEXT_TOKENS:
            raise UserError(
                f"config.model.head={self.head.value} is of config.model.family=decoder: this family predicts next "
                "tokens alone, say next_tokens"
            )
        self.check_memory_of_inputs()
        if self.positions.within_attention is AttentionPosition.NONE and self.positions is not PositionEncoding.NONE:
            raise UserError(
                f"config.model.positions={self.positions.value} counts from the beginning of each segment, so that a "
                "memory's places would be mistaken for the segment's: say transformer_xl, or another within attention"
            )


class TransformerXLDecoder(Decoder):
    """Transformer-XL: a decoder whose segments attend to a memory of earlier segments.

    inputs: those of the decoder, whole or padded texts; optionally `memory` [B, L, M, E], returned for the earlier
    segments, and `past` [B], how many positions of the same text come before the segment: the last that many positions
    of the memory are real. Outputs: the decoder's; the next memory is in the extras as `memory`. Decoding does not use
    a memory: the whole prompt is in the cache.
    """

    config: TransformerXLConfig

    @jax.named_scope(STACK)
    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the final hidden states, from which `logits` computes the logits."""
        config, tokens_BxT, mask = self.config, jnp.asarray(inputs["tokens"]), causal_mask(inputs)
        memory = inputs.get("memory")
        if memory is not None:
            if "segments" in inputs:
                raise ValueError("inputs has segments and a memory: packed texts do not follow one another")
            mask = mask_after_memory(mask, memory.shape[2], jnp.asarray(inputs["past"]), tokens_BxT.shape[1])
        embedding_key, layers_key = split_key(forward_pass.training_key)
        positions_1xT = jnp.arange(tokens_BxT.shape[1])[None]
        x_BxTxE, outputs = scan_blocks(
            self.layers,
            config,
            self.count,
            functools.partial(
                apply_block_with_memory,
                memory_length=config.memory_length,
                mask=mask,
                relative_positions=self.relative(),
                capture=capture_for_stack(STACK, forward_pass.capture),
            ),
            self.embed(tokens_BxT, positions_1xT, embedding_key),
            key=layers_key,
            gates=gates_for_stack(STACK, forward_pass.capture),
            segment_memories=split_memory_by_layer(memory, len(config.layer_pattern)),
        )
        layers_aux, memories = zip(*outputs, strict=True)
        aux = stack_by_layer(layers_aux)
        extras = {"memory": stack_memory_of_layers(memories)} if config.memory_length else {}
        return final_states(self.norm, x_BxTxE), Aux(
            maps_of_stack(STACK, aux), extras, state, expert_losses(STACK, aux, config.experts)
        )


def attention_sites(config: TransformerXLConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model."""
    return sites_of_stack(STACK, config, config.layers, TOKENS, TOKENS, causal=True)


FAMILY = ModelFamily(
    TransformerXLConfig,
    TransformerXLDecoder,
    frozenset({LANGUAGE_MODELING}),
    check_ring_attention_placement=check_ring_attention,
    sites=attention_sites,
)
