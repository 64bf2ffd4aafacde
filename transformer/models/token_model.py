"""What every family over tokens is built from: stacks of blocks between two ends, and running one over a sequence."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import Array, Float, Key

from transformer.attention.capture import Capture, Captured
from transformer.attention.masks import Mask
from transformer.layers.attention_parameters import SharedPositions
from transformer.layers.block import Block, by_layer, run_layers, windowed
from transformer.layers.ends import TokenEnds
from transformer.layers.initialisation import DeepNorm
from transformer.layers.module import Builder, Module
from transformer.layers.norm import LayerNorm, RmsNorm
from transformer.layers.residual import NormPlacement
from transformer.models.contract import Aux, Inputs

FinalNorm = LayerNorm | RmsNorm | None
OptionalKey = Key[Array, ""] | None


class TokenModel(TokenEnds):
    """A family over tokens: it says what its outputs before the vocabulary are, by `hidden`."""

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Nothing is carried between steps."""
        return {}

    def forward(
        self, state: dict, inputs: Inputs, *, train: bool, key: OptionalKey = None, capture: Capture | None = None
    ) -> tuple[Float[Array, "B T _"], Aux]:
        """The logits of every position."""
        hidden_BxTxE, aux = self.hidden(state, inputs, train=train, key=key, capture=capture)
        return self.logits(hidden_BxTxE), aux

    def hidden(
        self, state: dict, inputs: Inputs, *, train: bool, key: OptionalKey = None, capture: Capture | None = None
    ) -> tuple[Float[Array, "B T E"], Aux]:
        """What `logits` scores the tokens from."""
        raise NotImplementedError

    def make_blocks(self, count: int, *, cross: bool, deep: DeepNorm, builder: Builder) -> Module:
        """`count` blocks of the config's arrangement as one stacked module."""
        config = self.config
        alpha = deep.alpha if config.norm_placement is NormPlacement.DEEPNORM else 1.0
        return builder.stack(lambda builder: Block(config, cross=cross, alpha=alpha, builder=builder), count)

    def make_table(self, *, bidirectional: bool, builder: Builder) -> SharedPositions | None:
        """The relative positions that all layers of a stack share, where their scheme has such."""
        if not self.config.positions.scheme.shared:
            return None
        return SharedPositions(self.config, bidirectional=bidirectional, builder=builder)

    def make_final_norm(self, builder: Builder) -> FinalNorm:
        """The norm behind the last block, where the placement asks for one."""
        return self.config.make_norm(builder) if self.config.norm_placement.final_norm else None

    def run_self_attention(
        self,
        stacked: Module,
        count: int,
        x_BxTxE: Float[Array, "B T E"],
        mask: Mask,
        *,
        relative: SharedPositions | None,
        norm: FinalNorm,
        key: OptionalKey,
        capture: Capture | None,
    ) -> tuple[Float[Array, "B T E"], Captured | None]:
        """A stack without a memory over whole sequences and its final norm, and the maps asked for at its site."""
        table = None if relative is None else relative()
        x_BxTxE, found = run_layers(
            stacked,
            self.config,
            count,
            lambda block, x, layer, _: block(
                x, layer, mask=windowed(mask, layer.window), table=table, capture=(capture, None)
            ),
            x_BxTxE,
            key=key,
        )
        captured, _ = by_layer(found)
        return (x_BxTxE if norm is None else norm(x_BxTxE)), captured

    def step_layers(
        self,
        stacked: Module,
        count: int,
        step: Callable[..., tuple[Array, Any, tuple[Captured | None, Captured | None]]],
        x_RxE: Float[Array, "R E"],
        *,
        inputs: tuple[Any, ...],
    ) -> tuple[Float[Array, "R E"], tuple[Any, ...], tuple[Captured | None, Captured | None]]:
        """A stack over one new position: its output, the grown caches of each layer of a period, and the maps.

        Errors: ValueError for maps of self-attention over caches of unlike lengths, as layers of unlike windows have.
        """

        def of_layer(block: Module, x: Array, layer: Any, given: Any) -> tuple[Array, Any]:
            output, *rest = step(block, x, layer, given)
            return output, tuple(rest)

        x_RxE, outputs = run_layers(stacked, self.config, count, of_layer, x_RxE, inputs=inputs)
        grown, captured = zip(*outputs, strict=True)
        widths = {of_self.weights.shape[-1] for of_self, _ in captured if of_self and of_self.weights is not None}
        if len(widths) > 1:
            raise ValueError(
                f"layers of unlike windows keep {sorted(widths)} keys, whose maps at one decoding step have no common "
                "shape: capture the maps of whole sequences instead"
            )
        return x_RxE, grown, by_layer(captured)


def returned(captured: Mapping[str, Captured | None]) -> dict[str, Captured]:
    """The maps of the sites that were asked for."""
    return {site: of_site for site, of_site in captured.items() if of_site is not None}


def split_key(key: OptionalKey) -> tuple[OptionalKey, OptionalKey]:
    """Two keys of one, or none of none."""
    if key is None:
        return None, None
    first, second = jax.random.split(key)
    return first, second
