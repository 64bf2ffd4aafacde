"""The position-wise feed-forward network."""

import enum
import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from transformer.layers.functional_module import Module, ParameterBuilder, store_inputs_alone
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import Linear
from transformer.logical_axes import with_logical_constraint


class Activation(enum.Enum):
    """The activation between the two linear maps.

    Attributes:
        RELU: max(x, 0).
        GELU: x Phi(x) (Hendrycks and Gimpel 2016).
        GELU_TANH: The approximation of GELU by a hyperbolic tangent, with which GPT and BERT's code were trained.
        SILU: x sigmoid(x).
        SWIGLU: A second map multiplied by the SiLU of the first (Shazeer 2020, section 2).
        GEGLU: A second map multiplied by the GELU of the first.
        GEGLU_TANH: The same with the approximate GELU.
    """

    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"
    SWIGLU = "swiglu"
    GEGLU = "geglu"
    GEGLU_TANH = "geglu_tanh"

    @property
    def gated(self) -> bool:
        """Whether a second map is multiplied by the activation of the first."""
        return self in (Activation.SWIGLU, Activation.GEGLU, Activation.GEGLU_TANH)

    @property
    def function(self) -> Callable[[Array], Array]:
        """The elementwise function."""
        match self:
            case Activation.RELU:
                return jax.nn.relu
            case Activation.SILU | Activation.SWIGLU:
                return jax.nn.silu
            case Activation.GELU | Activation.GEGLU:
                return functools.partial(jax.nn.gelu, approximate=False)
            case Activation.GELU_TANH | Activation.GEGLU_TANH:
                return functools.partial(jax.nn.gelu, approximate=True)


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

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """Apply the network to each position."""
        if self.gate is None:
            return store_inputs_alone(self._contract_activated, self.expand(x))
        return store_inputs_alone(self._contract_activated, self.gate(x), self.expand(x))

    def _contract_activated(
        self, activated: Float[Array, "*B F"], gated: Float[Array, "*B F"] | None = None
    ) -> Float[Array, "*B E"]:
        """Compute f(activated) W_2 + b_2, or of its product with `gated`."""
        hidden = self.activation.function(activated)
        hidden = hidden if gated is None else hidden * gated
        return self.contract(
            with_logical_constraint(hidden, "batch", "length", "feed_forward") if hidden.ndim == 3 else hidden
        )
