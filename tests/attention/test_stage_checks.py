"""What the stages of attention refuse, each by itself, and what attend() refuses of the kinds of its arguments.

The cases run in a process of their own, `python -m tests.attention.test_stage_checks`, as test_attend_checks says.
"""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.attention.test_attend_checks import (
    FITTING,
    K_SHAPE,
    LOGITS,
    Q_SHAPE,
    Case,
    fault,
    floats,
    outcome,
    outcomes_of,
    truth,
    whole,
)
from transformer.attention import (
    Additive,
    AttentionParameters,
    AttentionPosition,
    AttentionSpec,
    Backend,
    Capture,
    Concat,
    Cosine,
    General,
    Mask,
    Normalizer,
    PreparedKeys,
    Reweighting,
    Rotary,
    Score,
    SquaredDistance,
    attend,
    capture_weights,
    normalize,
    prepare_keys,
    score,
    sparsemax,
    weighted_sum,
)

# One program for what is made when the file is read, not one for each operation.
compiled_prepare_keys = jax.jit(prepare_keys, static_argnums=(1, 2))


def refused(call: Callable[..., Any], *arguments: Any, says: tuple[str, ...], **options: Any) -> Case:
    """A call that must end with a TypeError, on arrays of the usual shapes where none are given."""
    return Case(partial(call, *arguments, **options), says, TypeError)


def unfit(call: Callable[..., Any], *arguments: Any, says: tuple[str, ...], **options: Any) -> Case:
    """A call that must end with a ValueError."""
    return Case(partial(call, *arguments, **options), says)


def enums() -> dict[str, Case]:
    q, k = floats(*Q_SHAPE), floats(*K_SHAPE)
    logits = floats(*LOGITS)
    members = "(all of them: Score.DOT, Score.SCALED_DOT, Score.GENERAL"
    cases = {
        f"spec_{name}": refused(AttentionSpec, **{name: value}, says=(f"{name} is {value!r}, a string; say {member}",))
        for name, value, member in (
            ("score", "cosine", "Score.COSINE"),
            ("score", "SCALED_DOT", "Score.SCALED_DOT"),
            ("normalizer", "sparsemax", "Normalizer.SPARSEMAX"),
            ("reweighting", "gaussian", "Reweighting.GAUSSIAN"),
            ("position", "alibi", "AttentionPosition.ALIBI"),
            ("backend", "xla", "Backend.XLA"),
        )
    }
    return cases | {
        "score_of_a_string": refused(
            score, q, k, "cosine", says=("kind is 'cosine', a string; say Score.COSINE", members)
        ),
        "score_of_no_score": refused(score, q, k, "cosin", says=("kind is 'cosin', which is no Score; say one of",)),
        "score_of_none": refused(score, q, k, None, says=("kind is None, which is no Score",)),
        "score_of_a_position": refused(
            score, q, k, AttentionPosition.ALIBI, says=("kind is AttentionPosition.ALIBI, which is no Score",)
        ),
        "score_of_a_class": refused(score, q, k, Cosine, says=("kind is Cosine, which is no Score",)),
        "score_at_a_string": refused(
            score, q, k, Score.DOT, "alibi", says=("position is 'alibi', a string; say AttentionPosition.ALIBI",)
        ),
        "keys_of_a_string": refused(
            prepare_keys, k, "general", says=("kind is 'general', a string; say Score.GENERAL",)
        ),
        "keys_at_a_string": refused(
            prepare_keys, k, Score.DOT, "rotary", says=("position is 'rotary', a string; say AttentionPosition.ROTARY",)
        ),
        "normalizer_of_a_string": refused(
            normalize, logits, None, "sparsemax", says=("kind is 'sparsemax', a string; say Normalizer.SPARSEMAX",)
        ),
        "normalizer_of_a_reweighting": refused(
            normalize, logits, None, Reweighting.NONE, says=("kind is Reweighting.NONE, which is no Normalizer",)
        ),
    }


def kinds_of_arguments() -> dict[str, Case]:
    q, k, v, weights = floats(*Q_SHAPE), floats(*K_SHAPE), floats(*K_SHAPE), floats(*LOGITS)
    own = FITTING[Score.ADDITIVE]
    call = partial(refused, attend)
    cases = {
        "spec_of_a_string": call(q, k, v, spec="cosine", says=("spec is 'cosine'; it must be an AttentionSpec",)),
        "spec_of_a_score": call(
            q, k, v, spec=Score.DOT, says=("spec is Score.DOT; it must be an AttentionSpec", "AttentionSpec(Score.DOT)")
        ),
        "mask_of_booleans": call(
            q, k, v, mask=truth(2, 1, 5, 7), says=("mask is an array of bool (2, 1, 5, 7)", "Mask(allowed=...)")
        ),
        "mask_of_none": call(q, k, v, mask=None, says=("mask is None; it must be a Mask", "Mask(causal=True)")),
        "mask_of_a_string": call(q, k, v, mask="causal", says=("mask is 'causal'; it must be a Mask",)),
        "mask_of_a_number": refused(
            lambda: attend(q, k, v, mask=Mask(key_lengths=7)), says=("mask.key_lengths is 7; it must be an array (2,)",)
        ),
        "allowed_of_floats": refused(
            lambda: attend(q, k, v, mask=Mask(allowed=floats(2, 1, 5, 7))),
            says=("mask.allowed has numbers of type float32", "booleans"),
        ),
        "capture_of_true": call(q, k, v, capture=True, says=("capture is True; it must be None or a Capture",)),
        "capture_of_true_in_blocks": call(
            q, k, v, spec=AttentionSpec(backend=Backend.BLOCKWISE), capture=True, says=("capture is True; it must be",)
        ),
        "capture_of_a_site": call(q, k, v, capture="here", says=("capture is 'here'; it must be None or a Capture",)),
        "sites_of_a_string": refused(Capture, "here", says=("sites is 'here', a string; give a tuple", "('here',)")),
        "statistics_of_strings": refused(
            Capture, ("here",), statistics=("entropy",), says=("statistics holds 'entropy'", "STATISTICS['entropy']")
        ),
        "bias_of_booleans": call(
            q, k, v, bias=truth(1, 1, 5, 7), says=("bias has numbers of type bool", "mask=Mask(allowed=...)")
        ),
        "bias_of_a_number": call(q, k, v, bias=1.0, says=("bias is 1.0; it must be an array",)),
        "params_of_a_score": call(
            q,
            k,
            v,
            params=own,
            says=("params is of type Additive; it must be AttentionParameters(score=Additive(...))",),
        ),
        "params_of_a_position": call(
            q,
            k,
            v,
            params=Rotary(),
            says=("params is of type Rotary; it must be AttentionParameters(position=Rotary(...))",),
        ),
        "q_of_a_list": call([[1.0]], k, v, says=("q is of type list; attention takes an array [batch, length",)),
        "v_of_whole_numbers": call(q, k, whole(*K_SHAPE), says=("v has numbers of type int32", "floating-point")),
        "capture_weights_of_true": refused(capture_weights, weights, True, says=("capture is True; it must be None",)),
        "capture_weights_under_booleans": refused(
            capture_weights, weights, Capture(("here",)), mask=truth(*LOGITS), says=("mask is an array of bool",)
        ),
        "weighted_sum_of_whole_numbers": refused(
            weighted_sum, whole(*LOGITS), v, says=("weights has numbers of type int32",)
        ),
        "allowed_of_a_mask": refused(
            normalize, weights, Mask(causal=True), says=("allowed is a Mask; give dense_mask(mask, queries, keys)",)
        ),
    }
    for name, kind in (("normalize", normalize), ("sparsemax", sparsemax)):
        cases[f"{name}_under_numbers"] = refused(
            kind, weights, floats(*LOGITS), says=("allowed has numbers of type float32; give booleans",)
        )
        cases[f"{name}_of_whole_numbers"] = refused(
            kind, whole(*LOGITS), None, says=("logits has numbers of type int32",)
        )
        cases[f"{name}_of_two_axes"] = unfit(
            kind, floats(5, 7), None, says=("logits has shape (5, 7)", "[batch, heads, queries, keys]")
        )
        cases[f"{name}_under_two_axes"] = unfit(
            kind, weights, truth(5, 7), says=("allowed has shape (5, 7)", str(LOGITS))
        )
    return cases


def prepared() -> dict[str, Case]:
    """Keys that `score` must not take for its own: these ended as dot products."""
    q, k = floats(*Q_SHAPE), floats(*K_SHAPE)
    raw = "an array of float32 (2, 7, 2, 8), keys that are not prepared for "
    cases = {
        f"raw_keys_of_{kind.value}": refused(
            score,
            q,
            k,
            kind,
            params=AttentionParameters(FITTING[kind]),
            says=(raw + str(kind), f"prepare_keys(k, {kind}, "),
        )
        for kind in (Score.GENERAL, Score.ADDITIVE, Score.CONCAT, Score.MLP, Score.COSINE)
    }
    cases |= {
        f"nothing_for_{kind.value}": refused(
            stage, *arrays, kind, says=(f"score={kind.value} takes params.score=", "params.score is nothing")
        )
        for kind in (Score.GENERAL, Score.ADDITIVE, Score.CONCAT, Score.MLP, Score.LOCATION)
        for stage, arrays in ((prepare_keys, (k,)), (score, (q, PreparedKeys(k, kind, AttentionPosition.NONE, 8))))
    }
    turned = compiled_prepare_keys(k, Score.DOT, AttentionPosition.ROTARY)
    of_cosine = compiled_prepare_keys(k, Score.COSINE)
    return cases | {
        "raw_keys_of_rotary": refused(
            score,
            q,
            k,
            Score.DOT,
            AttentionPosition.ROTARY,
            says=(raw, "prepare_keys(k, Score.DOT, AttentionPosition.ROTARY, params)"),
        ),
        "keys_of_another_score": unfit(
            score,
            q,
            of_cosine,
            Score.DOT,
            says=("keys for Score.COSINE and AttentionPosition.NONE, not for Score.DOT",),
        ),
        "keys_of_another_position": unfit(
            score,
            q,
            turned,
            Score.DOT,
            says=("keys for Score.DOT and AttentionPosition.ROTARY, not for Score.DOT and",),
        ),
        "keys_of_no_array": refused(score, q, "k", Score.DOT, says=("prepared is 'k'; give prepare_keys(",)),
        "params_of_another_score": refused(
            score,
            q,
            of_cosine,
            Score.COSINE,
            params=AttentionParameters(FITTING[Score.MLP]),
            says=("params.score is Mlp",),
        ),
        "position_of_another_score": unfit(
            prepare_keys,
            k,
            Score.ADDITIVE,
            AttentionPosition.ROTARY,
            says=("score=additive x position=rotary has no meaning",),
        ),
        "scale_of_the_cosine": unfit(
            score, q, of_cosine, Score.COSINE, scale=0.5, says=("scale=0.5 belongs to score=scaled_dot alone",)
        ),
    }


def shapes_of_stages() -> dict[str, Case]:
    q, k = floats(*Q_SHAPE), floats(*K_SHAPE)
    additive = AttentionParameters(FITTING[Score.ADDITIVE])
    of_additive = compiled_prepare_keys(k, Score.ADDITIVE, params=additive)
    wider = AttentionParameters(Additive(floats(4, 8, 6), floats(4, 8, 6), floats(4, 6)))
    dot = partial(unfit, score)
    return {
        "score_of_another_depth": dot(
            q, floats(2, 7, 2, 6), Score.DOT, says=(f"q {Q_SHAPE}", "(2, 7, 2, 6) differ in")
        ),
        "score_of_other_heads": dot(
            q, floats(2, 7, 3, 8), Score.DOT, says=("4 heads", "3 heads of prepared (2, 7, 3, 8)")
        ),
        "score_of_another_batch": dot(q, floats(3, 7, 2, 8), Score.DOT, says=(f"q {Q_SHAPE}", "differ in their batch")),
        "score_of_three_axes": dot(
            q, floats(2, 7, 8), Score.DOT, says=("prepared has shape (2, 7, 8)", "[batch, length")
        ),
        "score_of_other_parameters": dot(
            q, of_additive, Score.ADDITIVE, params=wider, says=("prepared (2, 7, 4, 3)", "(4, 6)", "these very params")
        ),
        "score_of_other_queries": dot(
            floats(2, 5, 4, 7),
            of_additive,
            Score.ADDITIVE,
            params=additive,
            says=("queries_HxDxA has shape (4, 8, 3)",),
        ),
        "score_at_other_positions": dot(
            q, k, Score.DOT, positions=whole(1, 7), says=("positions is an array of int32 (1, 7)", "(2, 5) or (1, 5)")
        ),
        "score_at_half_positions": dot(
            q, k, Score.DOT, positions=floats(1, 5), says=("positions is an array of float32 (1, 5)", "whole numbers")
        ),
        "score_with_another_bias": dot(q, k, Score.DOT, bias=floats(1, 4, 5, 6), says=("bias has shape", str(LOGITS))),
        "keys_of_three_axes": unfit(prepare_keys, floats(2, 7, 8), Score.DOT, says=("k has shape (2, 7, 8)",)),
        "keys_of_another_depth": unfit(
            prepare_keys, floats(2, 7, 2, 6), Score.ADDITIVE, params=additive, says=("keys_HxCxA has shape (4, 8, 3)",)
        ),
        "keys_of_other_heads": unfit(
            prepare_keys, floats(2, 7, 3, 8), Score.ADDITIVE, params=additive, says=("a multiple of its 3 heads",)
        ),
        "general_of_one_axis": unfit(
            lambda: prepare_keys(k, Score.GENERAL, params=AttentionParameters(General(floats(8)))),
            says=("weight_HxDxC has shape (8,)",),
        ),
        "additive_of_two_axes": unfit(
            lambda: prepare_keys(
                k,
                Score.ADDITIVE,
                params=AttentionParameters(dataclasses.replace(FITTING[Score.ADDITIVE], keys_HxCxA=floats(4, 8))),
            ),
            says=("keys_HxCxA has shape (4, 8)",),
        ),
        "concat_without_a_query": unfit(
            prepare_keys,
            k,
            Score.CONCAT,
            params=AttentionParameters(Concat(floats(4, 8, 3), floats(4, 3))),
            says=("depth, 8",),
        ),
        "weighted_sum_of_other_heads": unfit(
            weighted_sum,
            floats(*LOGITS),
            floats(2, 7, 3, 8),
            says=(f"weights {LOGITS} has 4 heads", "3 heads of v (2, 7, 3, 8)"),
        ),
        "weighted_sum_of_other_keys": unfit(
            weighted_sum, floats(*LOGITS), floats(2, 6, 2, 8), says=("are of 7 keys, v (2, 6, 2, 8) of 6",)
        ),
        "weighted_sum_of_another_batch": unfit(
            weighted_sum, floats(*LOGITS), floats(1, 7, 2, 8), says=("differ in their batch",)
        ),
        "weighted_sum_of_three_axes": unfit(
            weighted_sum, floats(4, 5, 7), k, says=("weights has shape (4, 5, 7)", "[batch, heads")
        ),
        "capture_weights_of_three_axes": unfit(
            capture_weights, floats(4, 5, 7), Capture(("here",)), says=("weights has shape (4, 5, 7)",)
        ),
        "capture_weights_of_other_logits": unfit(
            capture_weights,
            floats(*LOGITS),
            Capture(("here",)),
            logits=floats(2, 4, 5, 6),
            says=("differ in their shape",),
        ),
        "capture_weights_under_another_mask": unfit(
            capture_weights,
            floats(*LOGITS),
            Capture(("here",)),
            mask=Mask(key_lengths=whole(3)),
            says=("mask.key_lengths has shape (3,)",),
        ),
    }


def of_stages(
    kind: Score,
    position: AttentionPosition = AttentionPosition.NONE,
    params: AttentionParameters | None = None,
    raw: bool = False,
) -> Any:
    """The stages one after the other, the keys prepared or as they are."""
    q, k = floats(*Q_SHAPE), floats(*K_SHAPE)
    keys = k if raw else prepare_keys(k, kind, position, params)
    weights = normalize(score(q, keys, kind, position, params), truth(2, 1, 1, 7)).values
    return weighted_sum(weights, k), capture_weights(weights, Capture(("here",)))


CASES = enums() | kinds_of_arguments() | prepared() | shapes_of_stages()

# What lies just on the right side of those refusals.
ACCEPTED: dict[str, Callable[[], Any]] = {
    "three_arrays_alone": lambda: attend(floats(*Q_SHAPE), floats(*K_SHAPE), floats(*K_SHAPE)),
    "raw_keys_of_dot": partial(of_stages, Score.DOT, raw=True),
    "raw_keys_of_scaled_dot": partial(of_stages, Score.SCALED_DOT, AttentionPosition.ALIBI, raw=True),
    "raw_keys_of_location": partial(
        of_stages, Score.LOCATION, params=AttentionParameters(FITTING[Score.LOCATION]), raw=True
    ),
    "stages_of_rotary": partial(of_stages, Score.DOT, AttentionPosition.ROTARY),
    "stages_of_a_sampler": lambda: normalize(floats(*LOGITS), None, Normalizer.HARD),
    **{
        f"stages_of_{kind.value}": partial(of_stages, kind, params=AttentionParameters(FITTING.get(kind)))
        for kind in Score
        if kind not in (Score.COSINE, Score.SQUARED_DISTANCE)
    },
    "stages_of_cosine": partial(of_stages, Score.COSINE, params=AttentionParameters(Cosine(2.0))),
    "raw_keys_of_squared_distance": partial(
        of_stages, Score.SQUARED_DISTANCE, params=AttentionParameters(SquaredDistance(2.0)), raw=True
    ),
}


@pytest.fixture(scope="module")
def outcomes(root: Path) -> dict[str, tuple[str, str] | None]:
    return outcomes_of("test_stage_checks", root)


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_one_line(outcomes: dict[str, Any], name: str) -> None:
    assert fault(CASES[name], outcomes[name]) is None
    assert "\n" not in outcomes[name][1]


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_fits_is_accepted(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name] is None


if __name__ == "__main__":
    calls = {name: case.call for name, case in CASES.items()} | ACCEPTED
    print(json.dumps({name: outcome(call) for name, call in calls.items()}))
