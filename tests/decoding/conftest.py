"""What tests of decoding share."""

import jax
import pytest


@pytest.fixture
def key() -> jax.Array:
    """What is drawn by."""
    return jax.random.key(7)
