"""Scaled rotary frequencies against those of a loop in float64, what is turned and what stays, and what is refused."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles.transformer import Kind, scaled_frequencies, turned
from transformer.attention.rotary import RotaryScaling, RotaryScalingKind, apply_rotary
from transformer.config import UserError
from transformer.layers.transformer_config import LayerRotary, PositionEncoding, TransformerConfig

KINDS = RotaryScalingKind
WIDTH, BASE = 16, 10000.0
DIVISORS = {
    "short_factors": tuple(1 + 0.1 * pair for pair in range(WIDTH // 2)),
    "long_factors": tuple(2 + 0.5 * pair for pair in range(WIDTH // 2)),
}
SCALINGS = {
    "none": RotaryScaling(),
    "linear": RotaryScaling(KINDS.LINEAR, 4.0),
    "dynamic": RotaryScaling(KINDS.DYNAMIC, 4.0, 100),
    # As Llama 3.1: some pairs are kept, one is mixed, others are divided.
    "llama3": RotaryScaling(KINDS.LLAMA3, 8.0, 8192),
    "yarn": RotaryScaling(KINDS.YARN, 4.0, 4096),
    "yarn, not truncated": RotaryScaling(KINDS.YARN, 4.0, 4096, truncate=False),
    "yarn, of other bounds": RotaryScaling(KINDS.YARN, 4.0, 4096, beta_fast=8.0, beta_slow=2.0, attention_factor=0.7),
    "longrope": RotaryScaling(KINDS.LONGROPE, 4.0, 100, **DIVISORS),
    "longrope with a factor of its own": RotaryScaling(KINDS.LONGROPE, 4.0, 100, attention_factor=1.2, **DIVISORS),
}
LENGTHS = (50, 100, 101, 400)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", LENGTHS)
def test_frequencies_and_magnitudes_are_the_equations(name: str, length: int) -> None:
    scaling = SCALINGS[name]
    plain = np.array([BASE ** (-2 * pair / WIDTH) for pair in range(WIDTH // 2)])
    expected, magnitude = scaled_frequencies(scaling, plain, BASE, length)
    found = np.asarray(scaling.scaled_frequencies(WIDTH, BASE, length))
    np.testing.assert_allclose(found, expected, rtol=2e-6 if scaling.kind.depends_on_length else 1e-12)
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-12)
    longest = LENGTHS[-1]
    if name != "none":
        others, _ = scaled_frequencies(scaling, plain, BASE, longest)
        assert np.abs(others / plain - 1).max() > 0.1
    assert (np.abs(scaled_frequencies(scaling, plain, BASE, 50)[0] - expected).max() > 0) == (
        scaling.kind.depends_on_length and length > 100
    )


def test_of_llama3_and_yarn_some_features_are_kept_some_divided_and_some_mixed() -> None:
    plain = BASE ** (-np.arange(0, WIDTH, 2) / WIDTH)
    for name in ("llama3", "yarn"):
        scaling = SCALINGS[name]
        parts = np.asarray(scaling.scaled_frequencies(WIDTH, BASE, 1)) / plain
        assert parts[0] == 1
        assert parts[-1] == pytest.approx(1 / scaling.factor)
        assert ((parts < 0.99) & (parts > 1.01 / scaling.factor)).any()


@pytest.mark.parametrize("halves", [False, True], ids=["neighbors", "halves"])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("name", ["none", "dynamic", "yarn"])
def test_the_first_features_turn_and_the_others_stay(halves: bool, fraction: float, name: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, 120, 3, WIDTH))
    positions = jnp.arange(120)[None]
    run = jax.jit(apply_rotary, static_argnames=("base", "halves", "fraction", "scaling"))
    found = run(x.astype(np.float32), positions, base=BASE, halves=halves, fraction=fraction, scaling=SCALINGS[name])
    names = ("rotary", "rotary_halves")
    kind = Kind(positions=names[halves], rotary_fraction=fraction, rotary_base=BASE, rotary_scaling=SCALINGS[name])
    np.testing.assert_allclose(found, turned(kind, x), rtol=0, atol=5e-5)
    stays = round(WIDTH * fraction)
    np.testing.assert_array_equal(np.asarray(found)[..., stays:], x.astype(np.float32)[..., stays:])


def test_a_part_of_a_text_is_scaled_by_the_length_that_is_given() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 2, WIDTH)), jnp.float32)
    scaling, positions = SCALINGS["longrope"], jnp.arange(5)[None]
    short, long, alone = (
        np.asarray(apply_rotary(x, positions, halves=True, scaling=scaling, text_length=length))
        for length in (100, 101, None)
    )
    np.testing.assert_array_equal(alone, short)
    assert np.abs(long - short).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"factor": 0.0}, "factor=0.0 must be finite and above 0"),
        ({"factor": -2.0}, "factor=-2.0 must be finite and above 0"),
        ({"factor": float("nan")}, "factor=nan must be finite and above 0"),
        ({"beta_fast": 0.0}, "beta_fast=0.0 must be finite and above 0"),
        ({"attention_factor": 0.0}, "attention_factor=0.0 must be finite and above 0"),
        ({"short_factors": (1.0, 0.0)}, "short_factors=(1.0, 0.0) must be finite and above 0"),
        ({"kind": KINDS.YARN}, "original_max_length=0 must be 2 or more for kind=yarn"),
        ({"kind": KINDS.DYNAMIC, "original_max_length": 1}, "original_max_length=1 must be 2 or more for kind=dynamic"),
        ({"high_frequency_factor": 1.0}, "high_frequency_factor=1.0 must be above low_frequency_factor=1.0"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        RotaryScaling(**changes)
    assert "\n" not in str(caught.value)


@dataclasses.dataclass(frozen=True)
class Refused:
    """Fields of a Transformer's config, and what is said of them."""

    says: str
    fields: dict[str, Any]


ROTARY = {"positions": PositionEncoding.ROTARY, "width": 32, "heads": 4}


@pytest.mark.parametrize(
    "case",
    [
        Refused("rotary_fraction is of rotary positions", {"rotary_fraction": 0.5}),
        Refused("rotary_scaling is of rotary positions", {"rotary_scaling": SCALINGS["linear"]}),
        Refused("rotary_pattern is of rotary positions", {"rotary_pattern": (LayerRotary.LOCAL,)}),
        Refused("rotary_fraction=0.4 = 3 is odd", ROTARY | {"rotary_fraction": 0.4}),
        Refused("rotary_fraction=0.01 = 0 is nothing", ROTARY | {"rotary_fraction": 0.01}),
        Refused("short_factors has 8 numbers; 8 features", ROTARY | {"rotary_scaling": SCALINGS["longrope"]}),
        Refused(
            "kind=dynamic needs 4 or more features that rotate, not 2",
            ROTARY | {"rotary_fraction": 0.25, "rotary_scaling": SCALINGS["dynamic"]},
        ),
    ],
    ids=lambda case: case.says,
)
def test_a_config_whose_rotary_keys_do_not_go_together_is_refused_in_one_line(case: Refused) -> None:
    with pytest.raises(UserError, match=re.escape(case.says)) as caught:
        TransformerConfig(**case.fields)
    assert "\n" not in str(caught.value)
