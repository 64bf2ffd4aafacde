"""Families that carry nothing from one step to the next."""

from jaxtyping import Array, Key

from transformer.layers.module import Module


class Stateless(Module):
    """A module without batch statistics or the like: `Variables.state` is empty."""

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Nothing; the key is not needed."""
        return {}
