"""The page's data other than the weights, in half precision: value norms and, if asked for, queries and keys."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.attention.capture import CapturedAttention
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.maps.report.payload import DataBlock, compress_to_base64
from transformer.tasks.axis_labels import AxisLabels

LARGEST = 8_000_000  # bytes of all queries and keys of a page
_MAX_HALF = float(np.finfo(np.float16).max)


def check_query_key_vectors_size(traced: Mapping[str, CapturedAttention]) -> None:
    """Check that queries and keys do not make the page too large; `traced` may be abstract.

    Raises:
        UserError: If they take more than `LARGEST` bytes.
    """
    sides = [
        side
        for site_capture in traced.values()
        if site_capture.query_key_vectors is not None
        for side in site_capture.query_key_vectors[:2]
    ]
    size = sum(2 * math.prod(side.shape) for side in sides)
    if size > LARGEST:
        layers, texts, tokens, heads, depth = max((side.shape for side in sides), key=math.prod)
        several = f" of {texts} texts" if texts > 1 else ""
        raise UserError(
            f"query_key_vectors=True would put queries and keys of {size / 1e6:.0f} MB into the page ({layers} layers "
            f"x {tokens} tokens{several} x {heads} heads x {depth} components), and {LARGEST / 1e6:.0f} MB are the "
            "most: give a shorter text"
        )


def encode_projections(
    sites: Sequence[Site], labels: AxisLabels, captured: Mapping[str, CapturedAttention], query_key_vectors: bool
) -> tuple[list[dict[str, Any]], list[DataBlock]]:
    """Encode the value norms of each module, and its queries and keys, for the page.

    Args:
        sites: The attention modules.
        labels: The labels of the texts' positions.
        captured: What a pass captured, by the name of the module.
        query_key_vectors: Whether queries and keys were asked for, so that the page can say if a module has none.

    Returns:
        The facts of each module, and the page blocks: one of norms [layer, head, key] for each text, and one of queries
        and then keys [head, position, component] for each text and layer, cut to the text's own tokens.
    """
    facts: list[dict[str, Any]] = []
    blocks: list[DataBlock] = []
    for number, site in enumerate(sites):
        norms, products = captured[site.name].value_norms, captured[site.name].query_key_vectors
        lengths = [[len(tokens) for tokens in labels.tokens[axis.name]] for axis in (site.query, site.key)]
        facts.append({"valueNorms": norms is not None, "vectorsRequested": query_key_vectors, "queryKeyVectors": None})
        if norms is not None:
            blocks += [
                DataBlock(f"norms-{number}-{example}", _encode_half_precision(np.asarray(norms)[:, example, :, :keys]))
                for example, keys in enumerate(lengths[1])
            ]
        if products is None:
            continue
        q, k = (np.moveaxis(np.asarray(side, np.float32), 3, 2) for side in (products.q, products.k))
        scale, is_whole_logit = float(np.asarray(products.scale)[0]), bool(np.asarray(products.is_whole_logit)[0])
        facts[-1]["queryKeyVectors"] = {
            "depth": q.shape[-1],
            "groups": k.shape[2],
            "scale": scale,
            "whole": is_whole_logit,
        }
        blocks += [
            DataBlock(
                f"vectors-{number}-{example}-{layer}",
                _encode_half_precision(q[layer, example, :, :of], k[layer, example, :, :to]),
            )
            for example, (of, to) in enumerate(zip(*lengths, strict=True))
            for layer in range(len(q))
        ]
    return facts, blocks


def _encode_half_precision(*arrays: np.ndarray) -> str:
    """Encode numbers as half precision, low byte first; NaN, as beyond a text's end, becomes 0."""
    finite = (np.clip(np.nan_to_num(np.asarray(array, np.float32)), -_MAX_HALF, _MAX_HALF) for array in arrays)
    return compress_to_base64(b"".join(np.ascontiguousarray(values, "<f2").tobytes() for values in finite))
