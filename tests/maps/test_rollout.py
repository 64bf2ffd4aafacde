"""Rollout against its definition, a row at a time in float64."""

import dataclasses

import numpy as np
import pytest

from tests.oracles.rollout import read_rollout, rollout, rollout_across, rollout_stacks
from transformer.attention.sites import Axis, MapValues, Site
from transformer.config import UserError
from transformer.maps.capture_plan import StoredResolutions, quantize_maps
from transformer.maps.role_rules import is_self_attention
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

LENGTHS = (5, 3, 7)
SOURCE, TARGET, SHIFTED = Axis("source"), Axis("target"), Axis("target_input")
LAYERS, HEADS = ("0", "1", "2"), ("0", "1")
ENCODER = Site("encoder/self", SOURCE, SOURCE, LAYERS, HEADS)
DECODER = Site("decoder/self", TARGET, SHIFTED, LAYERS, HEADS, causal=True)
CROSS = Site("decoder/cross", TARGET, SOURCE, LAYERS, HEADS)
WORDS = tuple(tuple(f"w{i}" for i in range(length)) for length in LENGTHS)
LABELS = AxisLabels({"source": WORDS, "target": WORDS, "target_input": WORDS}, ("a", "b", "c"))


def make_weights(causal: bool, size: int = max(LENGTHS)) -> np.ndarray:
    """[example, layer, head, query, key]: zero beyond each example's own positions."""
    rng = np.random.default_rng(7)
    weights = np.zeros((len(LENGTHS), len(LAYERS), len(HEADS), size, size))
    for example, layer, head in np.ndindex(weights.shape[:3]):
        length = LENGTHS[example]
        square = np.exp(2 * rng.normal(size=(length, length)))
        square = np.tril(square) if causal else square
        weights[example, layer, head, :length, :length] = square / square.sum(axis=1, keepdims=True)
    return weights


def by_hand(weights: np.ndarray) -> np.ndarray:
    mixed = np.zeros((*weights.shape[:2], *weights.shape[3:]))
    for example, length in enumerate(LENGTHS):
        so_far = np.eye(length)
        for layer in range(weights.shape[1]):
            after = np.zeros((length, length))
            for query in range(length):
                row = [0.5 * np.mean([w[query, key] for w in weights[example, layer]]) for key in range(length)]
                row[query] += 0.5
                for key in range(length):
                    after[query] += row[key] / sum(row) * so_far[key]
            so_far = after
            mixed[example, layer, :length, :length] = so_far
    return mixed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "tolerance"), [(np.float64, 1e-14), (np.float32, 1e-6)])
def test_rollout_is_its_definition(causal, kind, tolerance):
    weights = make_weights(causal, size=9)
    found = rollout(weights.astype(kind), LENGTHS)
    assert found.dtype == kind
    np.testing.assert_allclose(found, by_hand(weights), atol=tolerance)


def test_rows_sum_to_one_padding_is_zero_and_causal_stays_causal():
    found = rollout(make_weights(causal=True, size=9), LENGTHS)
    for example, length in enumerate(LENGTHS):
        np.testing.assert_allclose(found[example, :, :length].sum(axis=-1), 1, rtol=1e-12)
        assert not found[example, :, length:].any()
        assert not found[example, :, :, length:].any()
    assert not np.triu(found, 1).any()


def test_what_padding_holds_does_not_count():
    weights = make_weights(causal=False, size=9)
    spoilt = weights.copy()
    for example, length in enumerate(LENGTHS):
        spoilt[example, :, :, length:] = 0.3
        spoilt[example, :, :, :, length:] = np.nan
    np.testing.assert_array_equal(rollout(spoilt, LENGTHS), rollout(weights, LENGTHS))


def test_a_row_that_attends_to_nothing_keeps_itself():
    weights = make_weights(causal=False)
    weights[0, 0, :, 2] = 0
    np.testing.assert_array_equal(rollout(weights, LENGTHS)[0, 0, 2], np.eye(max(LENGTHS))[2])


def test_rollout_refuses_what_is_not_square_and_lengths_that_do_not_fit():
    weights = make_weights(causal=False)
    with pytest.raises(ValueError, match="7 queries and 6 keys"):
        rollout(weights[..., :6], LENGTHS)
    with pytest.raises(ValueError, match=r"lengths=\[5, 3\] must be 3 numbers"):
        rollout(weights, LENGTHS[:2])
    with pytest.raises(ValueError, match="from 0 to 7"):
        rollout(weights, (5, 3, 8))


def test_a_causal_decoder_is_self_attention_though_its_keys_are_the_shifted_input():
    shorter = AxisLabels({**LABELS.tokens, "target_input": tuple(words[1:] for words in WORDS)}, LABELS.titles)
    assert is_self_attention(ENCODER, LABELS)
    assert is_self_attention(DECODER, LABELS)
    assert not is_self_attention(DECODER, shorter)
    assert not is_self_attention(CROSS, LABELS)


def write_store(path, resolutions: StoredResolutions) -> MapStore:
    store = MapStore.open(path, (ENCODER, DECODER, CROSS), LABELS, "abc", resolutions)
    given = {}
    for site in store.sites:
        levels = store.levels(site.name)
        cells = np.moveaxis(make_weights(site.causal), 1, 0)[..., : levels[-1].num_queries, : levels[-1].num_keys]
        rows = None if levels[-1].name == "full" else np.zeros((*cells.shape[:3], 1, max(LENGTHS)))
        names = store.statistics(site.name).names
        given[site.name] = quantize_maps(cells, levels, {name: np.zeros((3, 3, 2)) for name in names}, rows)
    store.write(10, given)
    return store


def test_rollout_of_a_store_is_that_of_its_maps(tmp_path):
    store = write_store(tmp_path / "maps", StoredResolutions())
    for site in (ENCODER, DECODER):
        found = read_rollout(store, site.name, 10)
        np.testing.assert_allclose(found, by_hand(make_weights(site.causal)), atol=0.02)
        np.testing.assert_allclose(found, by_hand(store.read(site.name, 10).astype(np.float64)), atol=1e-6)


def across_by_hand(cross: np.ndarray, decoder: np.ndarray, encoder: np.ndarray | None) -> np.ndarray:
    """Every position as a mixture of all inputs, of target and source: mixed by one sub-layer after another."""
    mixed = np.zeros((*cross.shape[:2], *cross.shape[3:]))
    for example, length in enumerate(LENGTHS):
        # The source after its encoder, then the target before its first layer: a row a position, a column an input.
        source = np.concatenate([np.zeros((length, length)), np.eye(length)], axis=1)
        for layer in range(0 if encoder is None else encoder.shape[1]):
            rows = [np.mean(encoder[example, layer, :, q, :length], axis=0) for q in range(length)]
            source = 0.5 * source + 0.5 * np.array([sum(row[k] * source[k] for k in range(length)) for row in rows])
        target = np.concatenate([np.eye(length), np.zeros((length, length))], axis=1)
        for layer in range(cross.shape[1]):
            for weights, read in ((decoder, None), (cross, source)):
                of = target.copy() if read is None else read
                for q in range(length):
                    row = np.mean(weights[example, layer, :, q, :length], axis=0)
                    target[q] = 0.5 * target[q] + 0.5 * sum(row[k] * of[k] for k in range(length))
            np.testing.assert_allclose(target.sum(axis=-1), 1)
            mixed[example, layer, :length, :length] = target[:, length:]
    return mixed


@pytest.mark.parametrize("with_encoder", [True, False])
def test_rollout_across_is_its_definition(with_encoder):
    cross, decoder = make_weights(causal=False, size=9)[:, :, ::-1] ** 2, make_weights(causal=True, size=9)
    cross = cross / np.maximum(cross.sum(axis=-1, keepdims=True), 1e-12)
    encoder = make_weights(causal=False, size=9) if with_encoder else None
    read = rollout(encoder, LENGTHS)[:, -1] if with_encoder else None
    found = rollout_across(cross, decoder, read, LENGTHS, LENGTHS)
    np.testing.assert_allclose(found, across_by_hand(cross, decoder, encoder), atol=1e-12)


def test_cross_attention_is_rolled_out_with_the_self_attention_beside_it(tmp_path):
    store = write_store(tmp_path / "maps", StoredResolutions())
    assert rollout_stacks(CROSS, store.sites, LABELS) == (DECODER, ENCODER)
    whole = [make_weights(causal) for causal in (False, True, False)]
    np.testing.assert_allclose(read_rollout(store, "decoder/cross", 10), across_by_hand(*whole), atol=0.02)
    fewer = dataclasses.replace(DECODER, layers=LAYERS[:2])
    assert rollout_stacks(CROSS, (ENCODER, fewer, CROSS), LABELS) is None
    assert rollout_stacks(CROSS, (DECODER, CROSS), LABELS) == (DECODER, None)


def test_rollout_without_self_attention_or_of_pooled_maps_is_refused(tmp_path):
    whole = write_store(tmp_path / "maps", StoredResolutions())
    sites, whole.sites = whole.sites, (ENCODER, CROSS)
    with pytest.raises(UserError, match=r"decoder/cross.*from target to source"):
        read_rollout(whole, "decoder/cross", 10)
    whole.sites = sites
    whole.sites = tuple(dataclasses.replace(site, values=MapValues.REWEIGHTED) for site in whole.sites)
    with pytest.raises(UserError, match=r"site='encoder/self' has maps of values=reweighted: .* sum to one"):
        read_rollout(whole, "encoder/self", 10)
    pooled = write_store(tmp_path / "pooled", StoredResolutions(level_sizes=(4,), num_rows=1, top_k=0))
    with pytest.raises(UserError, match="level='full'"):
        read_rollout(pooled, "encoder/self", 10)
