"""What is kept of a probe batch, against NumPy in float64, and how much of it a budget allows."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec, Backend
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.maps.capture_plan import (
    MapStorageConfig,
    StoredResolutions,
    alignment_error,
    choose_resolutions,
    plan_capture,
    resolution_levels,
    statistic_names,
)
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

WHOLE = Capture(("here",))
TOKENS = Axis("tokens")
GRID = Axis("patches", AxisKind.GRID, shape=(3, 4), num_leading_positions=1)


def labeled(*lengths: int, **more) -> AxisLabels:
    return AxisLabels({"tokens": tuple(("t",) * length for length in lengths)}, tuple(map(str, lengths)), **more)


def test_the_alignment_error_of_each_head_is_the_papers():
    rng = np.random.default_rng(0)
    links = tuple(
        tuple(
            GoldAlignment(int(q), int(k), bool(rng.random() < 0.5))
            for q in range(6)
            for k in rng.choice(7, 2, replace=False)
        )
        for _ in range(2)
    )
    # Nothing is known of the last query of the first example, and of the third example at all.
    links = (links[0][:-2], links[1], ())
    site = Site("decoder/cross", Axis("target"), Axis("source"), ("0", "1"), ("0", "1", "2"))
    labels = AxisLabels({"target": (("t",) * 6,) * 3, "source": (("s",) * 7,) * 3}, ("a", "b", "c"), {site.name: links})
    weights = rng.random((2, 3, 3, 6, 7)).astype(np.float32)
    found = np.asarray(alignment_error(jnp.asarray(weights), site, labels))
    for layer, example, head in np.ndindex(2, 2, 3):
        sure = {(q, k) for q, k, is_sure in links[example] if is_sure}
        possible = {(q, k) for q, k, _ in links[example]}
        chosen = {(q, int(weights[layer, example, head, q].argmax())) for q in {q for q, _ in possible}}
        expected = 1 - (len(chosen & sure) + len(chosen & possible)) / (len(chosen) + len(sure))
        assert found[layer, example, head] == pytest.approx(expected, abs=1e-6)
    assert np.isnan(found[:, 2]).all()


def test_each_site_has_the_statistics_that_it_can_have():
    plain = statistic_names(Site("encoder/self", TOKENS, TOKENS, ("0",), ("0",)), labeled(3))
    assert {"entropy", "distance", "diagonality", "largest_logit", "previous_token"} <= set(plain)
    causal = Site("decoder/self", TOKENS, TOKENS, ("0",), ("0",), causal=True)
    assert set(statistic_names(causal, labeled(3, 8, periods=(None, 4)))) - set(plain) == {"induction"}
    assert statistic_names(causal, labeled(3, periods=(None,))) == plain
    linked = labeled(3, gold_alignments={"decoder/self": ((GoldAlignment(0, 0, True),),)})
    assert set(statistic_names(causal, linked)) - set(plain) == {"alignment_error"}


def look_at(q, k, mask, backend):
    def look(capture):
        spec = AttentionSpec(backend=backend)
        with jax.default_matmul_precision("highest"):
            captured = [attend(q, k, k, spec=spec, mask=mask, capture=capture)[1].captured for _ in range(2)]
        return {"here": jax.tree.map(lambda *layers: jnp.stack(layers), *captured)}

    return look


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE], ids=lambda backend: backend.value)
def test_a_probe_keeps_levels_and_statistics_of_each_example(backend):
    """Thirteen positions: a class token and 3 x 4 patches; the second example of a grid is no shorter."""
    q, k = (jnp.asarray(np.random.default_rng(n).normal(size=(2, 13, 2, 4), scale=2), jnp.float32) for n in (0, 1))
    site = Site("here", GRID, GRID, ("0", "1"), ("0", "1"))
    labels = AxisLabels({"patches": (("p",) * 13,) * 2}, ("one", "two"))
    look = look_at(q, k, Mask(), backend)
    plan = plan_capture(jax.eval_shape(lambda: look(WHOLE)), (site,), labels, MapStorageConfig())
    kept = jax.jit(lambda: plan.stored_maps(look(plan.request())))()["here"]
    logits = np.einsum("bqhd,bkhd->bhqk", np.asarray(q, np.float64), np.asarray(k, np.float64)) / 2
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    assert list(kept.levels) == ["full"]
    np.testing.assert_allclose(np.asarray(kept.levels["full"].weights())[:, 1], weights, atol=0.004)
    entropy = -(weights * np.log(weights)).sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(np.asarray(kept.statistics["entropy"])[:, 0], entropy, atol=1e-5)
    place = np.stack(np.divmod(np.arange(12), 4), axis=-1)
    apart = np.sqrt(np.square(place[:, None] - place[None]).sum(axis=-1))
    patches = weights[:, :, 1:, 1:]
    distance = ((patches * apart).sum(axis=-1) / patches.sum(axis=-1)).mean(axis=-1)
    np.testing.assert_allclose(np.asarray(kept.statistics["distance"])[:, 1], distance, atol=1e-5)


def test_induction_is_measured_on_the_examples_that_repeat_alone():
    """A head built to read what followed the last occurrence: one logit of 30 at q - 3 of period 4."""
    length = 12
    eye = np.eye(length + 4)[:length]
    k = jnp.asarray(np.stack([eye, eye])[:, :, None], jnp.float32)
    q = jnp.where(jnp.arange(length)[:, None, None] >= 4, jnp.roll(k[0] * 120, 3, axis=0), 0.0)[None].repeat(2, axis=0)
    site = Site("here", TOKENS, TOKENS, ("0", "1"), ("0",), causal=True)
    labels = labeled(length, length, periods=(None, 4))
    look = look_at(q, k, Mask(causal=True), Backend.EINSUM)
    plan = plan_capture(jax.eval_shape(lambda: look(WHOLE)), (site,), labels, MapStorageConfig())
    statistics = jax.jit(lambda: plan.stored_maps(look(plan.request())))()["here"].statistics
    assert np.isnan(statistics["induction"][0]).all()
    np.testing.assert_allclose(statistics["induction"][1], 1, atol=1e-5)


def test_padding_of_a_whole_map_is_cut_and_of_a_pooled_one_kept():
    q = jnp.zeros((2, 100, 1, 4))
    labels = labeled(60, 40)
    site = Site("here", TOKENS, TOKENS, ("0", "1"), ("0",))
    lengths = jnp.asarray([60, 40])
    look = look_at(q, q, Mask(query_lengths=lengths, key_lengths=lengths), Backend.EINSUM)
    traced = jax.eval_shape(lambda: look(WHOLE))
    whole = plan_capture(traced, (site,), labels, MapStorageConfig())
    assert whole.sizes == {"here": (60, 60)}
    kept = jax.eval_shape(lambda: whole.stored_maps(look(whole.request())))["here"]
    assert kept.levels["full"].codes.shape == (2, 2, 1, 60, 60)
    little = plan_capture(traced, (site,), labels, MapStorageConfig(max_megabytes=0.05))
    assert little.sizes == {"here": (100, 100)}
    assert little.resolutions.level_sizes == (64,)
    kept = jax.eval_shape(lambda: little.stored_maps(look(little.request())))["here"]
    assert kept.levels["pooled-64"].codes.shape == (2, 2, 1, 50, 50)
    assert kept.rows.codes.shape == (2, 2, 1, 8, 100)
    assert kept.top_weights[0].shape == (2, 2, 1, 100, 8)
    assert plan_capture(traced, (site,), labels, MapStorageConfig(max_megabytes=0.02)).resolutions == StoredResolutions(
        (64,), num_rows=8, top_k=1
    )
    budget = MapStorageConfig(max_megabytes=0.05)
    assert plan_capture(traced, (site,), labels, budget, resolutions=whole.resolutions) == whole


def bytes_of_a_step(shape: tuple[int, ...], resolutions: StoredResolutions) -> int:
    """Counted array by array: a byte a code and a root, four a scale and a key."""
    *heads, queries, keys = shape
    levels = resolution_levels(queries, keys, resolutions.level_sizes)
    rows = [(level.num_queries, level.num_keys) for level in levels]
    found = sum(q * k + 5 * q for q, k in rows)
    if levels[-1].name != "full":
        found += resolutions.num_rows * (keys + 5) + (queries * (resolutions.top_k * 5 + 5) if resolutions.top_k else 0)
    return math.prod(heads) * found


@pytest.mark.parametrize("megabytes", [2_000, 5_000, 20_000])
@pytest.mark.parametrize("shape", [(12, 4, 12, 1024, 1024), (24, 1, 16, 8192, 8192)])
def test_the_finest_level_that_fits_is_kept(shape, megabytes):
    resolutions = choose_resolutions(MapStorageConfig(max_megabytes=megabytes), [shape], steps=10)
    assert bytes_of_a_step(shape, resolutions) * 10 <= megabytes * 1e6
    finer = StoredResolutions(
        (*resolutions.level_sizes, 2 * resolutions.level_sizes[-1]), resolutions.num_rows, resolutions.top_k
    )
    assert (
        resolution_levels(*shape[-2:], resolutions.level_sizes)[-1].name == "full"
        or bytes_of_a_step(shape, finer) * 10 > megabytes * 1e6
    )


def test_whole_maps_are_kept_where_they_fit_and_thumbnails_anyhow():
    shape = (12, 4, 12, 1024, 1024)
    everything = choose_resolutions(MapStorageConfig(max_megabytes=1e6), [shape], steps=10)
    assert everything.level_sizes == (64, 128, 256, 512, 1024)
    assert resolution_levels(1024, 1024, everything.level_sizes)[-1].name == "full"
    assert choose_resolutions(MapStorageConfig(max_megabytes=1e-6), [shape], steps=10) == StoredResolutions(
        (64,), num_rows=1, top_k=0
    )
    assert choose_resolutions(MapStorageConfig(), [(1, 1, 1, 9, 9)], steps=10).level_sizes == (64,)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(UserError, match=r"rows=0.* at least 1"):
        MapStorageConfig(max_full_rows=0)
    with pytest.raises(UserError, match=r"config\.maps\.max_megabytes=0"):
        MapStorageConfig(max_megabytes=0)
