"""Tracing by the defining equations in place of faster programs, so that FLOPs can be counted from what is traced."""

import contextlib
import contextvars
from collections.abc import Iterator

_by_definition: contextvars.ContextVar[bool] = contextvars.ContextVar("by_definition", default=False)


@contextlib.contextmanager
def trace_reference() -> Iterator[None]:
    """Trace what is inside by its equations: every logit of an attention, of experts the rows that chose them.

    What is traced has the products of the model, whatever a backend skips, pads or computes a second time. It is for
    abstract shapes: nothing of it is meant to run. It is entered inside the function that is traced, so that no trace
    is ever used for another purpose.
    """
    token = _by_definition.set(True)
    try:
        yield
    finally:
        _by_definition.reset(token)


def is_tracing_reference() -> bool:
    """Whether what is being traced is to be its equations."""
    return _by_definition.get()
