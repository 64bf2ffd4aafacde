"""What families over tokens decode by: a cache of a stack of blocks, and a step of one position."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.attention_parameters import SharedPositions
from transformer.layers.beams import repeat_rows
from transformer.layers.block import Layer, Memory
from transformer.layers.block_aux import BlockAux, BlockCapture, of_all
from transformer.layers.block_groups import step_layers
from transformer.layers.module import Module, unstacked
from transformer.layers.rings import KeysAndValues, first_ancestors, ring_of, sharing, with_own
from transformer.models.contract import Cache
from transformer.models.token_model import FinalNorm, TokenModel


class TokenDecoder(TokenModel):
    """A family over tokens that says them one by one."""

    def make_cache(
        self,
        stacked: Module,
        filled: Sequence[KeysAndValues],
        last_B: Int[Array, " B"],
        *,
        beams: int,
        length: int,
        examples: Mapping[str, Any],
    ) -> Cache:
        """The cache of a stack whose rings hold `filled` for each example, layer by layer, up to positions `last`."""
        rings = tuple(jax.tree.map(lambda leaf: ring_of(leaf, beams), of_layer) for of_layer in filled)
        position_R = repeat_rows(last_B, beams)
        ancestors_RxT = first_ancestors(len(position_R), beams, length)
        rows = {"position": position_R, "ancestors": ancestors_RxT}
        # What rows share is never re-ordered; a ring of each row's own is.
        shared, own = (rings, ()) if sharing(beams) > 1 else ((), rings)
        weights = {
            "layers": unstacked(stacked, len(filled) // self.config.experts.group),
            "scoring": self.scoring(self.dtype),
        }
        return Cache((), {**rows, "rings": own}, {**examples, "rings": shared}, weights)

    def step_rows(
        self,
        stacked: Module,
        cache: Cache,
        tokens_R: Int[Array, " R"],
        *,
        relative: SharedPositions | None,
        norm: FinalNorm,
        memories: Sequence[Memory | None],
        asked: BlockCapture,
    ) -> tuple[Float[Array, "R V"], Cache, BlockAux]:
        """One new position of every row: its logits, the grown cache, and what its layers returned beside.

        `memories` are what each layer reads beside its rings.

        Errors: ValueError for maps of self-attention over caches of unlike lengths, as layers of unlike windows have.
        """
        position_R, ancestors_RxT = cache.rows["position"], cache.rows["ancestors"]
        rings = cache.rows["rings"] or cache.examples["rings"]
        shared = rings[0][0].shape[2]
        ancestors_RxT = with_own(ancestors_RxT, position_R, shared)

        table = None if relative is None else relative()

        def of_layer(block: Any, x: Array, layer: Layer, given: Any) -> tuple[Array, Any]:
            held, memory = given
            output, *rest = block.step(
                x,
                layer,
                held,
                position_R,
                ancestors_RxT=ancestors_RxT,
                table=table,
                memory=memory,
                asked=asked,
            )
            return output, tuple(rest)

        x_RxE = self.embed(tokens_R[:, None], position_R[:, None], None)[:, 0]
        given = list(zip(rings, memories, strict=True))
        x_RxE, outputs = step_layers(stacked, self.config, cache.weights["layers"], of_layer, x_RxE, given)
        grown, aux = zip(*outputs, strict=True)
        of_self = [each.attention for each in aux if each.attention is not None]
        widths = {captured.weights.shape[-1] for captured in of_self if captured.weights is not None}
        if len(widths) > 1:
            raise ValueError(
                f"layers of unlike windows keep {sorted(widths)} keys, whose maps at one decoding step have no common "
                "shape: capture the maps of whole sequences instead"
            )
        logits_RxV = self.logits_by(cache.weights["scoring"], x_RxE if norm is None else norm(x_RxE))
        rows = {**cache.rows, "position": position_R + 1, "ancestors": ancestors_RxT}
        if shared > 1:
            cache = cache._replace(rows=rows, examples={**cache.examples, "rings": grown})
        else:
            cache = cache._replace(rows={**rows, "rings": grown})
        return logits_RxV, cache, of_all(aux, lambda *leaves: jnp.stack(leaves))
