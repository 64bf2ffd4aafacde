"""The position-wise feed-forward network."""

import enum
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from transformer.attention.importance import OutputGates
from transformer.layers.functional_module import Module, ParameterBuilder, store_inputs_alone
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import Linear
from transformer.logical_axes import with_logical_constraint


def _set_bfloat16_derivative(
    function: Callable[[Array], Array], derivative: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    """Return an elementwise function that has a derivative of its own in bfloat16, which is computed in float32.

    `derivative` is written with other transcendental functions than `function`. Of one that the two share, as in
    autodiff's derivatives of GELU, the compiler for GPUs makes an array that one kernel writes and the next reads. (Of
    SiLU's it makes none.) In other types the derivative stays autodiff's, to the last bit, so that recorded runs can be
    reproduced.

    Args:
        function: The function.
        derivative: Its derivative.
    """

    @jax.custom_jvp
    def in_bfloat16(x: Array) -> Array:
        return function(x)

    @in_bfloat16.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (x,), (tangent,) = primals, tangents
        return in_bfloat16(x), tangent * derivative(x.astype(jnp.float32)).astype(x.dtype)

    return lambda x: in_bfloat16(x) if x.dtype == jnp.bfloat16 else function(x)


def _derivative_of_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute Phi(x) + x phi(x), with Phi by the error function instead of its complement."""
    density = jnp.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return (1 + jax.lax.erf(x / math.sqrt(2))) / 2 + x * density


def _derivative_of_gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute s + x s (1 - s) u', where s is the sigmoid of u: it is (1 + tanh(u / 2)) / 2."""
    slope = 2 * math.sqrt(2 / math.pi)
    sigmoid = jax.nn.sigmoid(slope * (x + 0.044715 * x**3))
    return sigmoid + x * sigmoid * (1 - sigmoid) * slope * (1 + 3 * 0.044715 * x**2)


_gelu = _set_bfloat16_derivative(functools.partial(jax.nn.gelu, approximate=False), _derivative_of_gelu)
_gelu_tanh = _set_bfloat16_derivative(functools.partial(jax.nn.gelu, approximate=True), _derivative_of_gelu_tanh)


def _quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return x * jax.nn.sigmoid(1.702 * x)


_CLAMP = 7.0  # of SWIGLU_CLAMPED


def _clamped_quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return _quick_gelu(jnp.minimum(x, _CLAMP))


class Activation(enum.Enum):
    """The activation between the two linear maps.

    Attributes:
        RELU: max(x, 0).
        GELU: x Phi(x) (Hendrycks and Gimpel 2016).
        GELU_TANH: The approximation of GELU by a hyperbolic tangent, with which GPT and BERT's code were trained.
        QUICK_GELU: x sigmoid(1.702 x), the approximation by a sigmoid (their section 2), with which CLIP was trained.
        SILU: x sigmoid(x).
        SWIGLU: A second map multiplied by the SiLU of the first (Shazeer 2020, section 2).
        SWIGLU_CLAMPED: The second map, between -7 and 7, plus 1, multiplied by x sigmoid(1.702 x) of the first, x being
            at most 7 (OpenAI 2025, gpt-oss model card, section 2.2, and its code).
        GEGLU: A second map multiplied by the GELU of the first.
        GEGLU_TANH: The same with the approximate GELU.
    """

    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"
    SILU = "silu"
    SWIGLU = "swiglu"
    SWIGLU_CLAMPED = "swiglu_clamped"
    GEGLU = "geglu"
    GEGLU_TANH = "geglu_tanh"

    @property
    def gated(self) -> bool:
        """Whether a second map is multiplied by the activation of the first."""
        return self in (Activation.SWIGLU, Activation.SWIGLU_CLAMPED, Activation.GEGLU, Activation.GEGLU_TANH)

    @property
    def function(self) -> Callable[[Array], Array]:
        """The elementwise function."""
        match self:
            case Activation.RELU:
                return jax.nn.relu
            case Activation.SILU | Activation.SWIGLU:
                return jax.nn.silu
            case Activation.SWIGLU_CLAMPED:
                return _clamped_quick_gelu
            case Activation.GELU | Activation.GEGLU:
                return _gelu
            case Activation.GELU_TANH | Activation.GEGLU_TANH:
                return _gelu_tanh
            case Activation.QUICK_GELU:
                return _quick_gelu

    def gated_values(self, x: Float[Array, "*B F"]) -> Float[Array, "*B F"]:
        """The values of the second map that a gated activation multiplies."""
        return jnp.clip(x, -_CLAMP, _CLAMP) + 1 if self is Activation.SWIGLU_CLAMPED else x


class FeedForward(Module):
    """The feed-forward network f(x W_1 + b_1) W_2 + b_2; f = relu in Vaswani et al. 2017, equation 2.

    A gated activation has a third matrix: (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2 (Shazeer 2020, equation 6).

    Args:
        width: Input and output features.
        hidden: Hidden units.
        activation: The activation f.
        bias: Whether the maps have biases.
        builder: Makes the parameters.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: Activation,
        bias: bool,
        builder: ParameterBuilder,
    ):
        model, inner = (("embed", width),), (("feed_forward", hidden),)
        expand = functools.partial(Linear, model, inner, bias=bias, role=ParameterRole.EXPAND, builder=builder)
        self.expand = expand()
        self.gate = expand() if activation.gated else None
        self.contract = Linear(inner, model, bias=bias, role=ParameterRole.CONTRACT, builder=builder)
        self.activation = activation

    def __call__(self, x: Float[Array, "*B E"], gates: OutputGates | None = None) -> Float[Array, "*B E"]:
        """Apply the network to each position; `gates` measure the importance of its output."""
        contract = functools.partial(self._contract_activated, gates)
        if self.gate is None:
            return store_inputs_alone(contract, self.expand(x))
        return store_inputs_alone(contract, self.gate(x), self.expand(x))

    def _contract_activated(
        self,
        gates: OutputGates | None,
        activated: Float[Array, "*B F"],
        gated: Float[Array, "*B F"] | None = None,
    ) -> Float[Array, "*B E"]:
        """Compute f(activated) W_2 + b_2, or of its product with `gated`."""
        hidden = self.activation.function(checkpoint_name(activated, "before_activation"))
        hidden = hidden if gated is None else hidden * self.activation.gated_values(gated)
        hidden = with_logical_constraint(hidden, "batch", "length", "feed_forward") if hidden.ndim == 3 else hidden
        return self.contract.gated(checkpoint_name(hidden, "hidden"), gates)
