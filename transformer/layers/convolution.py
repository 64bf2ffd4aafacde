"""Convolutions over sequences and over grids."""

import dataclasses
import enum
import math
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.functional_module import Builder, Module
from transformer.layers.initialization import Role
from transformer.layers.linear import product
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import place


class Padding(enum.Enum):
    """How many zeros stand beyond the ends, where a window reaches over R positions.

    same: (R - 1) / 2 before the first and behind the last, one more behind where R is even: an output for every
      `stride`-th position, whose place does not depend on the length (with TensorFlow's SAME it does).
    causal: R - 1 before the first: no output reads a later position (van den Oord et al. 2016, section 2.1).
    valid: none, so that outputs are fewer than inputs.
    """

    SAME = "same"
    CAUSAL = "causal"
    VALID = "valid"


class ConvolutionActivation(enum.Enum):
    """What becomes of the sums a; a gated kind has as many sums b, of a second kernel.

    glu: a * sigmoid(b) (Dauphin et al. 2017, equation 1). gtu: tanh(a) * sigmoid(b) (van den Oord et al. 2016,
    equation 2).
    """

    NONE = "none"
    RELU = "relu"
    GLU = "glu"
    GTU = "gtu"

    @property
    def gated(self) -> bool:
        """Whether there is a second kernel."""
        return self in (ConvolutionActivation.GLU, ConvolutionActivation.GTU)

    def __call__(self, sums: Float[Array, "*B F"]) -> Float[Array, "*B _"]:
        """The outputs; of a gated kind the last axis has all a, then all b."""
        match self:
            case ConvolutionActivation.NONE:
                return sums
            case ConvolutionActivation.RELU:
                return jax.nn.relu(sums)
            case ConvolutionActivation.GLU:
                a, b = jnp.split(sums, 2, axis=-1)
                return a * jax.nn.sigmoid(b)
            case ConvolutionActivation.GTU:
                a, b = jnp.split(sums, 2, axis=-1)
                return jnp.tanh(a) * jax.nn.sigmoid(b)
            case _:
                assert_never(self)


@dataclasses.dataclass(frozen=True)
class Window:
    """What an output reads along one axis: `size` positions `dilation` apart; outputs are `stride` positions apart.

    Raises:
        ValueError: For a number below 1.
    """

    size: int
    stride: int = 1
    dilation: int = 1
    padding: Padding = Padding.SAME

    def __post_init__(self) -> None:
        for name in ("size", "stride", "dilation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} of a convolution's window must be at least 1")

    @property
    def reach(self) -> int:
        """The positions from the first that an output reads to the last."""
        return self.dilation * (self.size - 1) + 1

    @property
    def zeros(self) -> tuple[int, int]:
        """The zeros before the first position and behind the last."""
        match self.padding:
            case Padding.SAME:
                return (self.reach - 1) // 2, self.reach // 2
            case Padding.CAUSAL:
                return self.reach - 1, 0
            case Padding.VALID:
                return 0, 0

    def outputs(self, lengths: Int[Array, "*B"]) -> Int[Array, "*B"]:
        """How many outputs sequences of these lengths have."""
        return jnp.maximum((lengths + sum(self.zeros) - self.reach) // self.stride + 1, 0)


class _Convolution(Module):
    """The parameters of a convolution over one axis or more: y = f(sum over the window of x W + b)."""

    def __init__(
        self,
        inputs: int,
        outputs: tuple[str, int],
        windows: tuple[Window, ...],
        *,
        activation: ConvolutionActivation,
        bias: bool,
        role: Role,
        builder: Builder,
    ):
        self.windows, self.activation = windows, activation
        name, size = outputs
        shape = tuple(window.size for window in windows)
        places = math.prod(shape)
        # An image has three channels, which no mesh divides.
        axes = (*("features",) * len(windows), "features", name)

        def kernel() -> Any:
            rule = builder.rule(role, places * inputs, places * size)
            return builder.parameter(rule, (*shape, inputs, size), axes)

        def vector() -> Any:
            return builder.parameter(jax.nn.initializers.zeros, (size,), ("features",))

        self.kernel = kernel()
        self.gate_kernel = kernel() if activation.gated else None
        self.bias = vector() if bias else None
        self.gate_bias = vector() if bias and activation.gated else None

    def _kernel(self, given: Array | None, dtype: jnp.dtype) -> Array:
        """W of a and, behind it, of b; `given` stands in for the first."""
        first = self.kernel[...] if given is None else given
        both = first if self.gate_kernel is None else jnp.concatenate([first, self.gate_kernel[...]], axis=-1)
        return jnp.asarray(both, dtype)

    def _finish(self, sums: Array) -> Array:
        """The sums with their biases, activated."""
        if self.bias is not None:
            biases = [self.bias[...]] if self.gate_bias is None else [self.bias[...], self.gate_bias[...]]
            sums = sums + jax.lax.broadcast_to_rank(jnp.concatenate(biases).astype(sums.dtype), sums.ndim)
        return self.activation(sums)


class Convolution1D(_Convolution):
    """y_t = f(sum_i x_(t stride + i dilation - before) W_i + b) over a sequence, i counting the window's positions.

    From `inputs` features to `outputs`, the logical name and the number of the new ones.
    """

    def __init__(
        self,
        inputs: int,
        outputs: tuple[str, int],
        window: Window,
        *,
        activation: ConvolutionActivation = ConvolutionActivation.NONE,
        bias: bool = True,
        role: Role = Role.DENSE,
        builder: Builder,
    ):
        super().__init__(
            inputs,
            outputs,
            (window,),
            activation=activation,
            bias=bias,
            role=role,
            builder=builder,
        )
        self.inputs, self.window = inputs, window

    def __call__(
        self,
        x_BxTxI: Float[Array, "B T I"],
        lengths_B: Int[Array, " B"] | None = None,
        *,
        kernel: Float[Array, "W I F"] | None = None,
    ) -> Float[Array, "B U F"]:
        """The outputs, zero beyond `window.outputs(lengths)`; positions beyond a row's length count as zeros.

        Without lengths all positions are real. `kernel` stands in for its own (a normed one).
        """
        if lengths_B is None:
            return self._convolve(x_BxTxI, kernel)
        real_BxT = real_positions(lengths_B, x_BxTxI.shape[1])
        y_BxUxF = self._convolve(jnp.where(real_BxT[..., None], x_BxTxI, 0), kernel)
        real_BxU = real_positions(self.window.outputs(lengths_B), y_BxUxF.shape[1])
        return jnp.where(real_BxU[..., None], y_BxUxF, 0)

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> Float[Array, "R P I"]:
        """What `step` reads before the first position: zeros, fit for `Cache.rows`."""
        return jnp.zeros((rows, self.window.reach - 1, self.inputs), dtype)

    def step(
        self,
        x_RxI: Float[Array, "R I"],
        past_RxPxI: Float[Array, "R P I"],
        *,
        kernel: Float[Array, "W I F"] | None = None,
    ) -> tuple[Float[Array, "R F"], Float[Array, "R P I"]]:
        """The output at one more position of every row, and the newest inputs, which the next step reads.

        `kernel` stands in for its own.

        Raises:
            ValueError: For a convolution that is not causal or skips positions.
        """
        if self.window.padding is not Padding.CAUSAL or self.window.stride != 1:
            raise ValueError(
                f"padding={self.window.padding.value} with stride={self.window.stride} has no output for each new "
                "position: only causal with a stride of 1 can take a step"
            )
        seen_RxPxI = jnp.concatenate([past_RxPxI.astype(x_RxI.dtype), x_RxI[:, None]], axis=1)
        return self._products(seen_RxPxI[:, :: self.window.dilation], kernel), seen_RxPxI[:, 1:]

    def _convolve(self, x_BxTxI: Array, kernel: Array | None) -> Array:
        """The outputs of whole sequences.

        As one product of all windows: a compiler for CPUs takes a hundred times as long for a convolution within a
        loop, as layers, microbatches and vmapped runs put it.
        """
        window = self.window
        padded = jnp.pad(x_BxTxI, ((0, 0), window.zeros, (0, 0)))
        reads = window.stride * max((padded.shape[1] - window.reach) // window.stride + 1, 0)
        starts = range(0, window.reach, window.dilation)
        read = jnp.stack([padded[:, start : start + reads : window.stride] for start in starts], axis=2)
        return self._products(read, kernel)

    def _products(self, read: Float[Array, "*B W I"], kernel: Array | None) -> Float[Array, "*B F"]:
        return self._finish(product(read, self._kernel(kernel, read.dtype), 2))


class Convolution2D(_Convolution):
    """The same over a grid [rows, columns], with a window along each.

    Raises:
        ValueError: For causal padding, which grids do not have.
    """

    def __init__(
        self,
        inputs: int,
        outputs: tuple[str, int],
        windows: tuple[Window, Window],
        *,
        activation: ConvolutionActivation = ConvolutionActivation.NONE,
        bias: bool = True,
        builder: Builder,
    ):
        for window in windows:
            if window.padding is Padding.CAUSAL:
                raise ValueError("padding=causal is of sequences; a convolution over a grid takes same or valid")
        super().__init__(
            inputs,
            outputs,
            windows,
            activation=activation,
            bias=bias,
            role=Role.DENSE,
            builder=builder,
        )

    def __call__(
        self, x_BxYxXxI: Float[Array, "B Y X I"], *, kernel: Float[Array, "V W I F"] | None = None
    ) -> Float[Array, "B U T F"]:
        """The outputs; `kernel` stands in for its own (a normed one)."""
        # A grid is whole on every device that has its example: divided along its places, as attention over them would
        # leave it, the compiler makes a kernel's gradient zero (jax 0.12.0 on CPUs).
        whole = ("batch", None, None, None)
        sums = jax.lax.conv_general_dilated(
            place(x_BxYxXxI, *whole),
            self._kernel(kernel, x_BxYxXxI.dtype),
            window_strides=[window.stride for window in self.windows],
            padding=[window.zeros for window in self.windows],
            rhs_dilation=[window.dilation for window in self.windows],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return self._finish(place(sums, *whole))
