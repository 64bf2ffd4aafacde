"""Spectral normalization of kernels, with state: `initial_state(key)`, and each call returns the next state."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.layers.functional_module import Module


class SpectralState(NamedTuple):
    """The unit vector that approximates the kernel's first singular vector on the output side."""

    u: Float[Array, " F"]


class SpectralNorm(Module):
    """Spectral normalization W / sigma(W), sigma the largest singular value (Miyato et al. 2018, algorithm 1).

    The kernel is read as a matrix whose columns are its last `outputs` axes. Each call iterates v = W u / |W u|,
    u' = W' v / |W' v| and takes sigma = v' W u', with no gradient through u and v; in training u' is the next state.
    It has no parameters: pass its result to the layer that has the kernel, as in Linear(x, kernel).

    Args:
        shape: Shape of the kernel.
        outputs: Number of output axes.
        iterations: Power iterations per call.
        epsilon: The least norm to divide by.

    Raises:
        ValueError: If `iterations` is below 1.
    """

    def __init__(self, shape: tuple[int, ...], *, outputs: int = 1, iterations: int = 1, epsilon: float = 1e-12):
        if iterations < 1:
            raise ValueError(f"iterations={iterations} of a spectral norm must be at least 1")
        self.columns = math.prod(shape[-outputs:])
        self.iterations, self.epsilon = iterations, epsilon

    def initial_state(self, key: Key[Array, ""]) -> SpectralState:
        """A uniformly random direction."""
        return SpectralState(self._normalize(jax.random.normal(key, (self.columns,))))

    def __call__(
        self, kernel: Float[Array, "..."], state: SpectralState, *, train: bool
    ) -> tuple[Float[Array, "..."], SpectralState]:
        """Divide a kernel by its largest singular value.

        Args:
            kernel: The kernel W.
            state: The vector u of the last step.
            train: Whether to return the next u; otherwise the state stays the same.

        Returns:
            The kernel, in its type, with a largest singular value of about 1, and the next state.
        """
        matrix_IxF = kernel.reshape(-1, self.columns)
        matrix_IxF = matrix_IxF.astype(jnp.promote_types(kernel.dtype, jnp.float32))
        fixed_IxF, u_F = jax.lax.stop_gradient(matrix_IxF), state.u.astype(matrix_IxF.dtype)
        for _ in range(self.iterations):
            v_I = self._normalize(fixed_IxF @ u_F)
            u_F = self._normalize(v_I @ fixed_IxF)
        sigma = v_I @ matrix_IxF @ u_F
        normed = (matrix_IxF / sigma).reshape(kernel.shape).astype(kernel.dtype)
        return normed, SpectralState(u_F.astype(state.u.dtype)) if train else state

    def _normalize(self, x_N: Array) -> Array:
        return x_N / jnp.maximum(jnp.linalg.norm(x_N), self.epsilon)
