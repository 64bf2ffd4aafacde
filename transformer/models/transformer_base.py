"""Base classes of the Transformer families: stacks of blocks, models over tokens, and decoding with a cache."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from transformer.attention.capture import Capture, CapturedAttention, capture_for_site, gates_for_site
from transformer.attention.masks import Mask
from transformer.attention.positions import PositionScheme
from transformer.attention.sites import Axis, AxisKind, MapValues, Site
from transformer.layers.attention_parameters import SharedPositions
from transformer.layers.beam_rows import repeat_per_beam
from transformer.layers.embedding_and_head import EmbeddingAndHead
from transformer.layers.functional_module import Module, ParameterBuilder, unstack_layers
from transformer.layers.initialization import DeepNorm
from transformer.layers.kv_cache import KeysAndValues, initial_ancestors, repeat_cache, rows_per_cache, update_ancestors
from transformer.layers.lora import add_lora
from transformer.layers.mixture_of_experts import ExpertBalance, Gating, MixtureOfExpertsConfig
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_block import (
    Block,
    BlockAux,
    BlockCapture,
    BlockGates,
    BlockGroup,
    EncoderMemory,
    stack_aux,
    unroll_blocks,
)
from transformer.layers.transformer_config import TransformerConfig
from transformer.models.model import Aux, AuxiliaryLoss, Cache, ForwardPass, Inputs, StatelessModule


class BlockStacks(StatelessModule):
    """Base class of families with stacks of Transformer blocks.

    Attributes:
        config: The configuration of the blocks.
    """

    config: TransformerConfig

    def make_blocks(self, count: int, *, cross: bool, deep: DeepNorm, builder: ParameterBuilder) -> Module:
        """Build a stack of blocks as one module with stacked parameters.

        Args:
            count: Number of blocks.
            cross: Whether they have cross-attention.
            deep: DeepNorm's constants.
            builder: Makes the parameters.

        Returns:
            The stacked module.
        """
        config = self.config
        alpha = deep.alpha if config.norm_placement is NormPlacement.DEEPNORM else 1.0

        def make_block(experts: bool, builder: ParameterBuilder) -> Block:
            block = Block(config, cross=cross, experts=experts, alpha=alpha, builder=builder)
            return add_lora(block, config.lora, builder)

        group = config.experts.layer_period
        if group == 1:
            return builder.stack(functools.partial(make_block, bool(config.experts.count)), count)
        return builder.stack(lambda builder: BlockGroup(make_block, group, builder), count // group)

    def make_relative_positions(
        self, *, bidirectional: bool, builder: ParameterBuilder
    ) -> Callable[[], PositionScheme | None]:
        """Build the relative position parameters that all layers of a stack share; without any, a call returns None."""
        if not self.config.positions.scheme.shared_by_layers:
            return no_shared_positions
        return SharedPositions(self.config, bidirectional=bidirectional, builder=builder)

    def make_final_norm(self, builder: ParameterBuilder) -> Callable[[Array], Array]:
        """Build the norm after the last block; the identity if the norm placement has none."""
        return self.config.make_norm(builder) if self.config.norm_placement.final_norm else identity


def no_shared_positions() -> None:
    """Stand for the shared relative positions of a stack that has none."""


def final_states(norm: Callable[[Array], Array], x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
    """Apply the final norm of a stack to its residual stream: the activation `states` of the stack."""
    with jax.named_scope("final_norm"):
        x = norm(x)
    return checkpoint_name(x, "states")


def identity(x: Array) -> Array:
    """Stand for the final norm of a stack that has none."""
    return x


class TokenModel(BlockStacks, EmbeddingAndHead):
    """Base class of Transformers over tokens; a family implements `hidden`, whose outputs `logits` maps to logits."""

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T _"], Aux]:
        """Return the logits of every position."""
        hidden_BxTxE, aux = self.hidden(state, inputs, forward_pass)
        return self.logits(hidden_BxTxE), aux

    def hidden(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B T E"], Aux]:
        """Return the final hidden states, from which `logits` computes the logits."""
        raise NotImplementedError


def capture_for_stack(stack: str, capture: Capture | None) -> BlockCapture:
    """Return the parts of a capture request that concern the sites of a stack."""
    return BlockCapture(*(capture_for_site(f"{stack}/{site}", capture) for site in ("self", "cross", "experts")))


def gates_for_stack(stack: str, capture: Capture | None) -> BlockGates:
    """Return the gates of all layers of a stack, by which the importance of heads and branches is measured."""
    cross = gates_for_site(f"{stack}/cross", capture)
    # A layer has one feed-forward network, whose gate is that of self-attention's site.
    cross = None if cross is None else cross._replace(feed_forward=None)
    return BlockGates(gates_for_site(f"{stack}/self", capture), cross)


def sites_of_stack(
    stack: str,
    config: TransformerConfig,
    layers: int,
    query: Axis,
    key: Axis,
    *,
    causal: bool = False,
    memory: Axis | None = None,
) -> tuple[Site, ...]:
    """Return the attention sites of a stack.

    Args:
        stack: The name of the stack, such as "decoder".
        config: The config of the blocks.
        layers: The number of layers.
        query: The axis of the queries.
        key: The axis of the keys of self-attention.
        causal: Whether self-attention is causal.
        memory: The axis of the keys of cross-attention; None if there is none.

    Returns:
        The sites: self-attention, cross-attention and experts, as far as they exist.
    """
    heads, numbers = tuple(map(str, range(config.heads))), tuple(map(str, range(layers)))
    sites = [Site(f"{stack}/self", query, key, numbers, heads, causal=causal, values=config.map_values)]
    if memory is not None:
        sites.append(Site(f"{stack}/cross", query, memory, numbers, heads, values=config.map_values))
    if expert_layers := config.experts.expert_layer_indices(layers):
        experts = Axis("experts", AxisKind.EXPERTS, num_positions=config.experts.count)
        sums_to_one = config.experts.gating is not Gating.SOFTMAX
        values = MapValues.PROBABILITY if sums_to_one else MapValues.REWEIGHTED
        numbers = tuple(map(str, expert_layers))
        sites.append(Site(f"{stack}/experts", query, experts, numbers, heads=("0",), values=values))
    return tuple(sites)


def maps_of_stack(stack: str, aux: BlockAux) -> dict[str, CapturedAttention]:
    """Return what a stack captured, by site."""
    sites = {f"{stack}/self": aux.attention, f"{stack}/cross": aux.cross, f"{stack}/experts": aux.expert_gates}
    return {site: captured for site, captured in sites.items() if captured is not None}


def expert_losses(stack: str, aux: BlockAux, config: MixtureOfExpertsConfig) -> dict[str, AuxiliaryLoss]:
    """Return the losses that balance a stack's experts: importance and load, summed over its layers, or balance.

    These are not sums over positions: microbatches are weighted by their numbers of real positions.

    Args:
        stack: The name of the stack.
        aux: The auxiliary results of its layers, stacked.
        config: The losses' weights.

    Returns:
        The losses by name; empty without experts.
    """
    balance = aux.expert_balance
    if balance is None:
        return {}
    losses: tuple[tuple[str, Array, float], ...]
    if isinstance(balance, ExpertBalance):
        losses = (
            ("importance", jnp.sum(balance.importance), config.importance_loss),
            ("load", jnp.sum(balance.load), config.load_loss),
        )
    else:
        losses = (("balance", balance.balance_loss(), config.balance_loss),)
    positions = balance.positions[0]
    return {f"{stack}/{name}": AuxiliaryLoss(positions * loss, positions, weight) for name, loss, weight in losses}


class TokenDecoder(TokenModel):
    """Base class of Transformers that decode token by token with a key-value cache.

    Attributes:
        predicts_tokens: Whether the model has a head of next tokens.
    """

    predicts_tokens: bool = True

    def output_matrix(self, dtype: jax.typing.DTypeLike) -> Float[Array, "E V"]:
        """The matrix that computes logits, in `dtype`.

        Raises:
            ValueError: If the model has no head of next tokens.
        """
        if not self.predicts_tokens:
            raise ValueError("this model has no head of next tokens: build it with config.model.head=next_tokens")
        return super().output_matrix(dtype)

    def make_cache(
        self,
        stacked: Module,
        filled: Sequence[KeysAndValues],
        last_B: Int[Array, " B"],
        *,
        num_beams: int,
        length: int,
        examples: Mapping[str, Any],
    ) -> Cache:
        """Make the cache of a stack.

        Args:
            stacked: The stack.
            filled: The keys and values of each layer, prefilled for each example.
            last_B: The last prefilled position of each example.
            num_beams: The number of rows of each example.
            length: The largest number of positions.
            examples: Further arrays that all beams of an example share.

        Returns:
            The cache.
        """
        caches = tuple(jax.tree.map(lambda leaf: repeat_cache(leaf, num_beams), layer) for layer in filled)
        position_R = repeat_per_beam(last_B, num_beams)
        ancestors_RxT = initial_ancestors(len(position_R), num_beams, length)
        # What rows share is never re-ordered; a cache of each row's own is.
        shared_caches, own_caches = (caches, ()) if rows_per_cache(num_beams) > 1 else ((), caches)
        return Cache(
            layers=(),
            rows={"position": position_R, "ancestors": ancestors_RxT, "kv_caches": own_caches},
            examples={**examples, "kv_caches": shared_caches},
            weights={
                "layers": unstack_layers(stacked, len(filled) // self.config.experts.layer_period),
                "output_matrix": self.output_matrix(self.dtype),
            },
        )

    def step_rows(
        self,
        stack: str,
        stacked: Module,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        relative: Callable[[], PositionScheme | None],
        norm: Callable[[Array], Array],
        memories: Sequence[EncoderMemory | None],
        capture: BlockCapture,
    ) -> tuple[Float[Array, "R V"], Cache, BlockAux]:
        """Run one new position of every row through a stack.

        Args:
            stack: The name of the stack.
            stacked: The stack.
            cache: The cache.
            tokens_R: The token that each row reads.
            relative: The relative positions that layers share.
            norm: The final norm.
            memories: What the cross-attention of each layer reads; None without cross-attention.
            capture: Which maps to capture.

        Returns:
            The logits, the next cache, and the auxiliary results of the layers.

        Raises:
            ValueError: If maps are captured whose caches have different lengths, as layers with different windows have.
        """
        position_R = cache.rows["position"]
        caches = cache.rows["kv_caches"] or cache.examples["kv_caches"]
        rows_sharing = caches[0][0].shape[2]
        ancestors_RxT = update_ancestors(cache.rows["ancestors"], position_R, rows_sharing)

        with jax.named_scope(stack):
            table = relative()
            x_RxE = self.embed(tokens_R[:, None], position_R[:, None], None)[:, 0]
            blocks = unroll_blocks(stacked, self.config, cache.weights["layers"])
            grown_caches: tuple[KeysAndValues, ...] = ()
            aux: tuple[BlockAux, ...] = ()
            for (block, layer), layer_cache, memory in zip(blocks, caches, memories, strict=True):
                x_RxE, grown_cache, layer_aux = block.step(
                    x_RxE,
                    layer,
                    layer_cache,
                    position_R,
                    ancestors_RxT=ancestors_RxT,
                    relative_positions=table,
                    memory=memory,
                    capture=capture,
                )
                grown_caches, aux = (*grown_caches, grown_cache), (*aux, layer_aux)
            states_RxE = final_states(norm, x_RxE[:, None])[:, 0]
        self_attention = [layer_aux.attention for layer_aux in aux if layer_aux.attention is not None]
        widths = {captured.weights.shape[-1] for captured in self_attention if captured.weights is not None}
        if len(widths) > 1:
            raise ValueError(
                f"layers of unlike windows keep {sorted(widths)} keys, whose maps at one decoding step have no common "
                "shape: capture the maps of whole sequences instead"
            )
        logits_RxV = self.logits_from_matrix(cache.weights["output_matrix"], states_RxE)
        rows = {**cache.rows, "position": position_R + 1, "ancestors": ancestors_RxT}
        if rows_sharing > 1:
            cache = cache._replace(rows=rows, examples={**cache.examples, "kv_caches": grown_caches})
        else:
            cache = cache._replace(rows={**rows, "kv_caches": grown_caches})
        return logits_RxV, cache, stack_aux(aux, lambda *leaves: jnp.stack(leaves))


def causal_mask(inputs: Inputs) -> Mask:
    """Return the mask of causal self-attention, within segments of packed rows and without padding."""
    if "segments" in inputs:
        segments_BxT = jnp.asarray(inputs["segments"])
        lengths_B = jnp.sum(segments_BxT > 0, axis=1)
        return Mask(causal=True, query_lengths=lengths_B, key_lengths=lengths_B, segments=(segments_BxT, segments_BxT))
    if "lengths" in inputs:
        lengths_B = jnp.asarray(inputs["lengths"])
        return Mask(causal=True, query_lengths=lengths_B, key_lengths=lengths_B)
    return Mask(causal=True)
