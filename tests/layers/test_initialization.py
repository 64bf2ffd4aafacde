"""Every initialization against its published rule, and deepnorm's factors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.initialization import (
    Initialization,
    InitializationRule,
    ParameterRole,
    deepnorm,
    deepnorm_encoder_decoder,
)

# A role, how large its matrix is, and its published standard deviation: sizes are unlike so that a wrong fan shows.
WIDE, INNER, HEAD, RESIDUALS, BETA, RETAINED = 96, 384, 24, 24, 0.4, 0.7
FANS = {role: (WIDE, WIDE) for role in ParameterRole} | {
    ParameterRole.EXPAND: (WIDE, INNER),
    ParameterRole.CONTRACT: (INNER, WIDE),
    ParameterRole.EMBEDDING: (500, WIDE),
    ParameterRole.POSITIONS: (500, WIDE),
    ParameterRole.OUTPUT: (192, WIDE),
    ParameterRole.QUERY: (WIDE, 192),
}


def published(name: str, role: str, fan_in: int, fan_out: int) -> float:
    """The standard deviation by the papers' text."""
    table, deep = role in ("embedding", "positions"), role in ("value", "output", "expand", "contract")
    ends_residual = role in ("output", "contract")
    match name:
        case "xavier":
            return fan_out**-0.5 if table else (2 / (fan_in + fan_out)) ** 0.5
        case "gpt":
            return 0.02
        case "gpt2":
            return 0.01 if role == "positions" else 0.02 / RESIDUALS**0.5 if ends_residual else 0.02
        case "bert":
            # Of a normal cut at two deviations: 1 - 4 phi(2) / (2 Phi(2) - 1) is the variance left.
            return 0.02 * 0.8796256610342398
        case "bahdanau":
            return 0.01
        case "t5":
            if table:
                return 1.0
            return (fan_in * (HEAD if role == "query" else 1)) ** -0.5
        case "deepnorm":
            return fan_out**-0.5 if table else (BETA if deep else 1) * (2 / (fan_in + fan_out)) ** 0.5
        case "gehring":
            return 0.1 if table else ((4 if role == "gated" else 1) * RETAINED / fan_in) ** 0.5
    raise KeyError(name)


@pytest.mark.parametrize("name", list(Initialization), ids=lambda name: name.value)
def test_each_initialization_is_its_published_rule(name: Initialization) -> None:
    initialize = InitializationRule(name, RESIDUALS, HEAD, BETA, RETAINED)
    for number, role in enumerate(ParameterRole):
        shape = FANS[role]
        drawn = np.asarray(initialize(role, *shape)(jax.random.key(number), shape, jnp.float32), np.float64)
        expected = published(name.value, role.value, *shape)
        # Five deviations of an estimate from so many draws.
        assert drawn.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * drawn.size)), role
        assert abs(drawn.mean()) < 5 * expected / np.sqrt(drawn.size), role
        largest = np.abs(drawn).max()
        if name is Initialization.BERT:
            assert 0.0395 < largest <= 0.04
        elif name is Initialization.XAVIER and role not in (ParameterRole.EMBEDDING, ParameterRole.POSITIONS):
            assert 0.99 * expected * 3**0.5 < largest <= expected * 3**0.5 * (1 + 1e-6)
        else:
            assert largest > 3 * expected


@pytest.mark.parametrize("name", list(Initialization), ids=lambda name: name.value)
def test_a_wider_model_begins_as_at_its_base_width(name: Initialization) -> None:
    """Table 8 of Yang et al. 2022: hidden variances fall with the width; those of tables and logits stay."""
    ratio, tables = 4, (ParameterRole.EMBEDDING, ParameterRole.POSITIONS)
    initialize = InitializationRule(name, RESIDUALS, HEAD, BETA, RETAINED, width_ratio=ratio)
    for number, role in enumerate((*tables, ParameterRole.LOGITS, ParameterRole.QUERY, ParameterRole.CONTRACT)):
        base = FANS[role]
        grows = (role not in tables, role is not ParameterRole.LOGITS)
        shape = (base[0] * (ratio if grows[0] else 1), base[1] * (ratio if grows[1] else 1))
        drawn = np.asarray(initialize(role, *shape)(jax.random.key(number), shape, jnp.float32), np.float64)
        expected = published(name.value, role.value, *base) / (ratio**0.5 if all(grows) else 1)
        assert drawn.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * drawn.size)), role


@pytest.mark.parametrize(
    ("layers", "alpha", "beta"), [(6, 1.8612097, 0.3799178), (18, 2.4494897, 0.2886751), (100, 3.7606031, 0.1880302)]
)
def test_deepnorms_factors_of_one_stack(layers: int, alpha: float, beta: float) -> None:
    """(2 N)^(1/4) and (8 N)^(-1/4), worked out by hand."""
    assert deepnorm(layers).alpha == pytest.approx(alpha, abs=1e-6)
    assert deepnorm(layers).beta == pytest.approx(beta, abs=1e-6)


def test_deepnorms_factors_of_an_encoder_and_a_decoder() -> None:
    """N = M = 18: 81^(1/4) ... the paper's figure 2 gives 0.81 (N^4 M)^(1/16), 0.87 (N^4 M)^(-1/16)."""
    encoder, decoder = deepnorm_encoder_decoder(18, 18)
    # 18^(5/16) = 2.467588, 54^(1/4) = 2.710806, 216^(-1/4) = 0.260847.
    assert (encoder.alpha, encoder.beta) == pytest.approx((0.81 * 2.467588, 0.87 / 2.467588), rel=1e-5)
    assert (decoder.alpha, decoder.beta) == pytest.approx((2.710806, 0.260847), rel=1e-5)
    unlike, _ = deepnorm_encoder_decoder(6, 2)
    # (6^4 x 2)^(1/16) = 2592^(1/16) = 1.634377: the encoder's depth counts four times.
    assert unlike.alpha == pytest.approx(0.81 * 1.634377, rel=1e-5)
