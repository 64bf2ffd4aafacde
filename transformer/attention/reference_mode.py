"""Tracing the defining equations in place of faster programs, so that FLOPs can be counted from the trace."""

import contextlib
import contextvars
from collections.abc import Iterator

_by_definition: contextvars.ContextVar[bool] = contextvars.ContextVar("by_definition", default=False)


@contextlib.contextmanager
def trace_reference() -> Iterator[None]:
    """Trace the code inside by its defining equations: every logit of attention, and the chosen rows of each expert.

    The trace has the model's products, whatever a backend skips, pads or recomputes. It is for abstract shapes and
    never meant to run. Enter it inside the function that is traced, so that the cached trace serves no other purpose.
    """
    token = _by_definition.set(True)
    try:
        yield
    finally:
        _by_definition.reset(token)


def is_tracing_reference() -> bool:
    """Whether the current trace is of the defining equations."""
    return _by_definition.get()
