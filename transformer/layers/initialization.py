"""Published initializations by name, each a rule from a parameter's role to its distribution."""

import dataclasses
import enum
import math
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.component import Initializer, ParameterSpec, normal, xavier_uniform, zeros


class Initialization(enum.Enum):
    """A published initialization.

    Attributes:
        XAVIER: Matrices U(-a, a), a = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 16), embeddings
            N(0, 1 / width).
        GPT: Everything N(0, 0.02^2) (Radford et al. 2018, section 4.1).
        GPT2: The same, but residual outputs N(0, 0.02^2 / N) for N residual sub-layers (Radford et al. 2019, section
            2.3) and positions N(0, 0.01^2) (its code).
        BERT: Everything N(0, 0.02^2), truncated at two standard deviations (Devlin et al. 2019, its code).
        BAHDANAU: Everything N(0, 0.01^2) (Bahdanau et al. 2015, appendix B.1).
        T5: N(0, 1 / fan_in), queries also divided by sqrt(D), which replaces the missing scale of its scores;
            embeddings N(0, 1) (Raffel et al. 2020, its code).
        DEEPNORM: Xavier normal, with values, outputs and feed-forward multiplied by beta, which falls with the depth
            (Wang et al. 2022, figure 2).
        GEHRING: N(0, p / fan_in), and N(0, 4 p / fan_in) for the input of a gated linear unit, p being the probability
            that dropout keeps an input; embeddings N(0, 0.1^2) (Gehring et al. 2017, section 3.5).
    """

    XAVIER = "xavier"
    GPT = "gpt"
    GPT2 = "gpt2"
    BERT = "bert"
    BAHDANAU = "bahdanau"
    T5 = "t5"
    DEEPNORM = "deepnorm"
    GEHRING = "gehring"


class ParameterRole(enum.Enum):
    """What a parameter is for.

    `GATED` feeds a gated linear unit, `LOGITS` makes the logits of tokens or classes, and `DENSE` is any other matrix
    outside the blocks.
    """

    EMBEDDING = "embedding"
    POSITIONS = "positions"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUTPUT = "output"
    EXPAND = "expand"
    CONTRACT = "contract"
    GATED = "gated"
    DENSE = "dense"
    LOGITS = "logits"


_RESIDUAL_OUTPUTS = frozenset({ParameterRole.OUTPUT, ParameterRole.CONTRACT})
_SCALED_BY_DEEPNORM = frozenset(
    {ParameterRole.VALUE, ParameterRole.OUTPUT, ParameterRole.EXPAND, ParameterRole.CONTRACT}
)
_TABLES = frozenset({ParameterRole.EMBEDDING, ParameterRole.POSITIONS})


@dataclasses.dataclass(frozen=True)
class InitializationRule:
    """An initialization with the sizes that it depends on.

    Attributes:
        name: The initialization.
        residuals: Residual sub-layers in all (gpt2).
        depth: Features of a head (t5).
        gain: beta (deepnorm).
        retained: Fraction of a matrix's inputs that dropout keeps (gehring).
        width_ratio: m, the model's width over its base width, in the maximal update parametrization (Yang et al. 2022,
            table 8): tables and the matrix of the logits are drawn as at the base width, hidden matrices as there with
            a standard deviation divided by sqrt(m). 1 is the initialization as published.
    """

    name: Initialization = Initialization.XAVIER
    residuals: int = 1
    depth: int = 1
    gain: float = 1.0
    retained: float = 1.0
    width_ratio: float = 1.0

    def __call__(self, role: ParameterRole, fan_in: int, fan_out: int) -> Initializer:
        """The distribution of a matrix.

        Args:
            role: What the matrix is for.
            fan_in: Input features; for a table, its rows.
            fan_out: Output features; for a table, its width.

        Returns:
            The initializer.
        """
        if self.width_ratio == 1:
            return self._published_initializer(role, fan_in, fan_out)
        if role in _TABLES:
            return self._published_initializer(role, fan_in, fan_out / self.width_ratio)
        if role is ParameterRole.LOGITS:
            return self._published_initializer(role, fan_in / self.width_ratio, fan_out)
        at_base = self._published_initializer(role, fan_in / self.width_ratio, fan_out / self.width_ratio)
        return lambda key, shape, dtype: at_base(key, shape, dtype) * jnp.asarray(self.width_ratio**-0.5, dtype)

    def _published_initializer(self, role: ParameterRole, fan_in: int | float, fan_out: int | float) -> Initializer:
        """The distribution of a matrix of a model whose width is the base width."""
        match self.name:
            case Initialization.XAVIER:
                return normal(fan_out**-0.5) if role in _TABLES else xavier_uniform(fan_in, fan_out)
            case Initialization.GPT:
                return normal(0.02)
            case Initialization.GPT2:
                if role is ParameterRole.POSITIONS:
                    return normal(0.01)
                return normal(0.02 / math.sqrt(self.residuals) if role in _RESIDUAL_OUTPUTS else 0.02)
            case Initialization.BERT:
                return jax.nn.initializers.truncated_normal(0.02)
            case Initialization.BAHDANAU:
                return normal(0.01)
            case Initialization.T5:
                if role in _TABLES:
                    return normal(1.0)
                return normal((fan_in * self.depth if role is ParameterRole.QUERY else fan_in) ** -0.5)
            case Initialization.DEEPNORM:
                if role in _TABLES:
                    return normal(fan_out**-0.5)
                gain = self.gain if role in _SCALED_BY_DEEPNORM else 1.0
                return normal(gain * math.sqrt(2 / (fan_in + fan_out)))
            case Initialization.GEHRING:
                if role in _TABLES:
                    return normal(0.1)
                # A gated linear unit passes on a quarter of the variance of what enters it.
                variance = 4 if role is ParameterRole.GATED else 1
                return normal(math.sqrt(variance * self.retained / fan_in))


class RecurrentInitialization(enum.Enum):
    """The initialization of a recurrent cell's state-to-state matrices, each gate's on its own.

    Attributes:
        ORTHOGONAL: Uniformly random orthogonal matrices, which neither shrink nor stretch a state (Saxe et al. 2014).
        XAVIER: U(-a, a), a = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 16).
    """

    ORTHOGONAL = "orthogonal"
    XAVIER = "xavier"

    def __call__(self, fan_in: int, fan_out: int) -> Initializer:
        """The distribution of matrices [fan_in, gate, fan_out]."""
        match self:
            case RecurrentInitialization.ORTHOGONAL:
                return orthogonal
            case RecurrentInitialization.XAVIER:
                return xavier_uniform(fan_in, fan_out)


def orthogonal(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Draw matrices [rows, gate, columns], each orthogonal and independent (Saxe et al. 2014)."""
    rows, gates, columns = shape
    draw = jax.nn.initializers.orthogonal()
    return jnp.stack([draw(one, (rows, columns), dtype) for one in jax.random.split(key, gates)], axis=1)


class ScoreInitialization(enum.Enum):
    """The initialization of a score's parameters.

    Attributes:
        OWN: As the score's class defines it (Xavier).
        BAHDANAU: Matrices N(0, 0.001^2) and the vector after the hidden layer zero, so that attention begins uniform
            (Bahdanau et al. 2015, appendix B.1).
    """

    OWN = "own"
    BAHDANAU = "bahdanau"

    def __call__(self, name: str, weight: ParameterSpec) -> ParameterSpec:
        """The spec of the parameter called `name` with this initialization."""
        if self is ScoreInitialization.OWN or weight.initializer is zeros:
            return weight
        return weight._replace(initializer=zeros if name == "vector" else normal(0.001))


@dataclasses.dataclass(frozen=True)
class DeepNorm:
    """DeepNorm's constants: alpha multiplies the residual, beta is the gain of the initialization."""

    alpha: float
    beta: float


def deepnorm(layers: int) -> DeepNorm:
    """The constants of a lone encoder or decoder of N layers: (2 N)^(1/4), (8 N)^(-1/4) (Wang et al. 2022, fig. 2)."""
    return DeepNorm((2 * layers) ** 0.25, (8 * layers) ** -0.25)


def deepnorm_encoder_decoder(encoder_layers: int, decoder_layers: int) -> tuple[DeepNorm, DeepNorm]:
    """The constants of an encoder of N layers and a decoder of M layers (Wang et al. 2022, figure 2).

    Encoder: 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16); decoder: (3 M)^(1/4) and (12 M)^(-1/4).

    Args:
        encoder_layers: N.
        decoder_layers: M.

    Returns:
        The encoder's constants, and the decoder's.
    """
    joint = (encoder_layers**4 * decoder_layers) ** (1 / 16)
    encoder = DeepNorm(0.81 * joint, 0.87 / joint)
    return encoder, DeepNorm((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25)
