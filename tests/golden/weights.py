"""Random weights that a recording and the tests that read it both rebuild from names, shapes and a seed."""

from collections.abc import Mapping

import numpy as np

TABLES = ("embed", "shared", "wte", "wpe")


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Float32 weights by name, drawn in the order of the sorted names by NumPy's default generator.

    Biases are 0.3 z and norm scales (one axis) 1 + 0.3 z, so that an exchange of two of them shows. Embedding tables
    are 0.3 z; other matrices 1.5 z / sqrt(smaller side), under which states stay of order one, attention is far from
    uniform, and the blocks outweigh the residual stream that they add to. Queries with a matrix of their own have 0.6
    for 1.5, because T5's scores have no scale and Gemma's norms add one to theirs. z is standard normal.
    """
    generator = np.random.default_rng(seed)
    weights = {}
    for name in sorted(shapes):
        shape = tuple(shapes[name])
        draw = generator.standard_normal(shape)
        if name.endswith("bias"):
            value = 0.3 * draw
        elif len(shape) == 1:
            value = 1 + 0.3 * draw
        elif any(part in name for part in TABLES):
            value = 0.3 * draw
        else:
            scale = 0.6 if name.endswith(("q_proj.weight", "Attention.q.weight")) else 1.5
            value = scale * draw / np.sqrt(min(shape[0], draw.size // shape[0]))
        weights[name] = value.astype(np.float32)
    return weights


def weights_of(architecture: str, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """The random weights of a class, with the sinusoids of those whose tables of positions are constants."""
    weights = random_weights(shapes, seed)
    if architecture.startswith(("Marian", "Pegasus")):
        for name in weights:
            if name.endswith("embed_positions.weight"):
                rows, width = weights[name].shape
                angles = np.arange(rows)[:, None] / 10000 ** (np.arange(width // 2) * 2 / width)
                weights[name] = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    return weights
