"""Entries that the tables of several families share."""

from collections.abc import Iterator

from transformer.interop.family import Entry
from transformer.interop.layouts import FROM_HEADS, LINEAR, TABLE, VECTOR, Layout

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
}


def norm(tensor: str, leaf: str) -> Iterator[Entry]:
    """A norm's scale, and its bias where it has one."""
    yield Entry(f"{tensor}.weight", (f"{leaf}/scale",), VECTOR)
    yield Entry(f"{tensor}.bias", (f"{leaf}/bias",), VECTOR)


def linear(tensor: str, leaf: str, layout: Layout = LINEAR) -> Iterator[Entry]:
    """A projection's matrix, and its bias where it has one."""
    yield Entry(f"{tensor}.weight", (f"{leaf}/kernel",), layout)
    yield Entry(f"{tensor}.bias", (f"{leaf}/bias",), VECTOR)


def attention(tensor: str, leaf: str, names: tuple[str, str, str, str]) -> Iterator[Entry]:
    """The projections of attention: `names` are those of queries, keys, values and output."""
    for name, ours in zip(names, ("query", "key", "value", "output"), strict=True):
        yield from linear(f"{tensor}.{name}", f"{leaf}/{ours}", FROM_HEADS if ours == "output" else LINEAR)


def fused(tensor: str, leaf: str, kernel: Layout, bias: Layout) -> Iterator[Entry]:
    """Queries, keys and values in one matrix."""
    parts = tuple(f"{leaf}/{name}" for name in ("query", "key", "value"))
    yield Entry(f"{tensor}.weight", tuple(f"{part}/kernel" for part in parts), kernel)
    yield Entry(f"{tensor}.bias", tuple(f"{part}/bias" for part in parts), bias)


def table(tensor: str, leaf: str) -> Iterator[Entry]:
    """A table of vectors."""
    yield Entry(f"{tensor}.weight", (f"{leaf}/table",), TABLE)


def unembedding(tensor: str = "lm_head") -> Iterator[Entry]:
    """The matrix that scores the tokens, where it is not the embedding, and their bias."""
    yield Entry(f"{tensor}.weight", ("unembedding/kernel",), LINEAR)
    yield Entry(f"{tensor}.bias", ("output_bias/bias",), VECTOR)
