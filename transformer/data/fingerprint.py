"""Fingerprints of data: what a run has read, so that a resumed run notices that it has changed."""

import hashlib
from collections.abc import Iterable

import numpy as np


def fingerprint(items: Iterable[str | int | np.ndarray | None]) -> str:
    """The SHA-256 of a sequence of texts, numbers and arrays: of each its kind, its length and its content."""
    total = hashlib.sha256()
    for item in items:
        if isinstance(item, np.ndarray):
            content = np.ascontiguousarray(item)
            total.update(f"{content.dtype}{content.shape}:".encode())
            total.update(content)
        else:
            text = repr(item).encode("utf-8", "surrogatepass")
            total.update(b"%d:" % len(text))
            total.update(text)
    return total.hexdigest()
