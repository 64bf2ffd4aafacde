"""Convolutions over sequences and over grids."""

import dataclasses
import enum
import math
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import product
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import with_logical_constraint


class Padding(enum.Enum):
    """How many zeros pad each end, for a window that spans R positions.

    Attributes:
        SAME: (R - 1) / 2 before the first and after the last, one more after it if R is even: an output for every
            `stride`-th position, whose place does not depend on the length (with TensorFlow's SAME it does).
        CAUSAL: R - 1 before the first: no output reads a later position (van den Oord et al. 2016, section 2.1).
        VALID: No zeros, so that there are fewer outputs than inputs.
    """

    SAME = "same"
    CAUSAL = "causal"
    VALID = "valid"


class ConvolutionActivation(enum.Enum):
    """The activation of the sums a; gated ones have a second kernel with sums b.

    Attributes:
        NONE: a.
        RELU: max(a, 0).
        GLU: a * sigmoid(b) (Dauphin et al. 2017, equation 1).
        GTU: tanh(a) * sigmoid(b) (van den Oord et al. 2016, equation 2).
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
        """Activate the sums; for a gated activation the last axis holds all of a, then all of b."""
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
class ConvolutionWindow:
    """The window of a convolution along one axis.

    Attributes:
        size: Number of positions that an output reads.
        stride: Distance between the windows of neighboring outputs, in positions.
        dilation: Distance between the positions in a window.
        padding: Padding with zeros at the ends.

    Raises:
        ValueError: If a number is below 1.
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
    def receptive_span(self) -> int:
        """The span from the first to the last position that an output reads."""
        return self.dilation * (self.size - 1) + 1

    @property
    def padding_sizes(self) -> tuple[int, int]:
        """The numbers of zeros before the first position and after the last."""
        match self.padding:
            case Padding.SAME:
                return (self.receptive_span - 1) // 2, self.receptive_span // 2
            case Padding.CAUSAL:
                return self.receptive_span - 1, 0
            case Padding.VALID:
                return 0, 0

    def num_outputs(self, lengths: Int[Array, "*B"]) -> Int[Array, "*B"]:
        """The number of outputs of sequences of these lengths."""
        return jnp.maximum((lengths + sum(self.padding_sizes) - self.receptive_span) // self.stride + 1, 0)


class _Convolution(Module):
    """A convolution over one or more axes: y = f(sum over the window of x W + b)."""

    def __init__(
        self,
        inputs: int,
        outputs: tuple[str, int],
        windows: tuple[ConvolutionWindow, ...],
        *,
        activation: ConvolutionActivation,
        bias: bool,
        role: ParameterRole,
        builder: ParameterBuilder,
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

    def _joined_kernel(self, replacement: Array | None, dtype: jnp.dtype) -> Array:
        """W of a, followed by that of b if gated; `replacement` replaces the first."""
        first = self.kernel[...] if replacement is None else replacement
        kernels = first if self.gate_kernel is None else jnp.concatenate([first, self.gate_kernel[...]], axis=-1)
        return jnp.asarray(kernels, dtype)

    def _add_bias_and_activate(self, sums: Array) -> Array:
        """Add the biases to the sums and activate."""
        if self.bias is not None:
            biases = [self.bias[...]] if self.gate_bias is None else [self.bias[...], self.gate_bias[...]]
            sums = sums + jax.lax.broadcast_to_rank(jnp.concatenate(biases).astype(sums.dtype), sums.ndim)
        return self.activation(sums)


class Convolution1D(_Convolution):
    """Convolution over a sequence, y_t = f(sum_i x_(t stride + i dilation - before) W_i + b), i over the window.

    Args:
        inputs: Input features.
        outputs: Logical name and number of the output features.
        window: Size, stride, dilation and padding.
        activation: The activation f.
        bias: Whether there is a bias.
        role: Selects the kernel's initialization.
        builder: Makes the parameters.
    """

    def __init__(
        self,
        inputs: int,
        outputs: tuple[str, int],
        window: ConvolutionWindow,
        *,
        activation: ConvolutionActivation = ConvolutionActivation.NONE,
        bias: bool = True,
        role: ParameterRole = ParameterRole.DENSE,
        builder: ParameterBuilder,
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
        """Convolve whole sequences.

        Args:
            x_BxTxI: The sequences; positions beyond a row's length count as zeros.
            lengths_B: Real positions of each row; None means all.
            kernel: Replaces the layer's own kernel, such as one with weight or spectral normalization.

        Returns:
            The outputs, zero beyond `window.outputs(lengths_B)`.
        """
        if lengths_B is None:
            return self._convolve(x_BxTxI, kernel)
        real_BxT = real_positions(lengths_B, x_BxTxI.shape[1])
        y_BxUxF = self._convolve(jnp.where(real_BxT[..., None], x_BxTxI, 0), kernel)
        real_BxU = real_positions(self.window.num_outputs(lengths_B), y_BxUxF.shape[1])
        return jnp.where(real_BxU[..., None], y_BxUxF, 0)

    def initial(self, rows: int, dtype: jax.typing.DTypeLike) -> Float[Array, "R P I"]:
        """The state of `step` before the first position: zeros, suitable for `Cache.rows`."""
        return jnp.zeros((rows, self.window.receptive_span - 1, self.inputs), dtype)

    def step(
        self,
        x_RxI: Float[Array, "R I"],
        past_RxPxI: Float[Array, "R P I"],
        *,
        kernel: Float[Array, "W I F"] | None = None,
    ) -> tuple[Float[Array, "R F"], Float[Array, "R P I"]]:
        """Compute the output at one more position of every row.

        Args:
            x_RxI: The new inputs.
            past_RxPxI: The previous inputs, from `initial` or the last step.
            kernel: Replaces the layer's own kernel.

        Returns:
            The outputs, and the newest inputs for the next step.

        Raises:
            ValueError: If the convolution is not causal or has a stride above 1.
        """
        if self.window.padding is not Padding.CAUSAL or self.window.stride != 1:
            raise ValueError(
                f"padding={self.window.padding.value} with stride={self.window.stride} has no output for each new "
                "position: only causal with a stride of 1 can take a step"
            )
        seen_RxPxI = jnp.concatenate([past_RxPxI.astype(x_RxI.dtype), x_RxI[:, None]], axis=1)
        return self._apply_kernel(seen_RxPxI[:, :: self.window.dilation], kernel), seen_RxPxI[:, 1:]

    def _convolve(self, x_BxTxI: Array, kernel: Array | None) -> Array:
        """Convolve whole sequences.

        As one product of all windows: XLA on CPUs takes a hundred times as long for a convolution inside a
        loop, such as over layers, microbatches or vmapped runs.
        """
        window = self.window
        padded = jnp.pad(x_BxTxI, ((0, 0), window.padding_sizes, (0, 0)))
        reads = window.stride * max((padded.shape[1] - window.receptive_span) // window.stride + 1, 0)
        starts = range(0, window.receptive_span, window.dilation)
        read = jnp.stack([padded[:, start : start + reads : window.stride] for start in starts], axis=2)
        return self._apply_kernel(read, kernel)

    def _apply_kernel(self, read: Float[Array, "*B W I"], kernel: Array | None) -> Float[Array, "*B F"]:
        return self._add_bias_and_activate(product(read, self._joined_kernel(kernel, read.dtype), 2))


class Convolution2D(_Convolution):
    """Convolution over a grid [rows, columns], with a window along each axis.

    Args:
        inputs: Input features.
        outputs: Logical name and number of the output features.
        windows: The windows along rows and along columns.
        activation: The activation f.
        bias: Whether there is a bias.
        builder: Makes the parameters.

    Raises:
        ValueError: If a window has causal padding.
    """

    def __init__(
        self,
        inputs: int,
        outputs: tuple[str, int],
        windows: tuple[ConvolutionWindow, ConvolutionWindow],
        *,
        activation: ConvolutionActivation = ConvolutionActivation.NONE,
        bias: bool = True,
        builder: ParameterBuilder,
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
            role=ParameterRole.DENSE,
            builder=builder,
        )

    def __call__(
        self, x_BxYxXxI: Float[Array, "B Y X I"], *, kernel: Float[Array, "V W I F"] | None = None
    ) -> Float[Array, "B U T F"]:
        """Convolve whole grids; `kernel` replaces the layer's own."""
        # A grid is whole on every device that has its example: divided along its places, as attention over them would
        # leave it, the compiler makes a kernel's gradient zero (jax 0.12.0 on CPUs).
        grid_axes = ("batch", None, None, None)
        sums = jax.lax.conv_general_dilated(
            with_logical_constraint(x_BxYxXxI, *grid_axes),
            self._joined_kernel(kernel, x_BxYxXxI.dtype),
            window_strides=[window.stride for window in self.windows],
            padding=[window.padding_sizes for window in self.windows],
            rhs_dilation=[window.dilation for window in self.windows],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return self._add_bias_and_activate(with_logical_constraint(sums, *grid_axes))
