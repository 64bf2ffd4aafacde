"""Which activations a traced forward pass has to compute although it could do without them."""

import contextlib
import contextvars
from collections.abc import Iterable, Iterator

# The whole maps of logits and weights, which fused backends never have in memory.
LOGITS, WEIGHTS = "logits", "weights"
# What each head adds to the output of attention, which is the product with the whole output matrix otherwise.
HEAD_CONTRIBUTIONS = "head_contributions"
# What each head returns, before the output matrix; by this name a rematerialization policy keeps it.
HEAD_OUTPUTS = "head_outputs"
# The steps of a recurrent decoder one by one, which some attend for all at once.
RECURRENT = ("recurrent_states", "alignments", "contexts", HEAD_OUTPUTS)
ON_REQUEST = (LOGITS, WEIGHTS, HEAD_CONTRIBUTIONS, *RECURRENT)

_requested: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "requested_activations", default=frozenset()
)


@contextlib.contextmanager
def request_activations(names: Iterable[str]) -> Iterator[None]:
    """Trace the code inside such that the activations exist, those of attention by the EINSUM backend.

    Enter it inside the function that is traced, so that the cached trace serves no other purpose.

    Args:
        names: The names of activations, such as "decoder/self/weights".
    """
    token = _requested.set(frozenset(name.rpartition("/")[2] for name in names if "/" in name))
    try:
        yield
    finally:
        _requested.reset(token)


def is_requested(activation: str) -> bool:
    """Whether the current trace has to compute an activation, at whatever site."""
    return activation in _requested.get()
