"""Drawn glyphs and scenes: what a pixel is covered by against counting many points, and what a scene may hold."""

import numpy as np
import pytest

from transformer.data.synthetic_glyphs import GLYPHS, NO_VARIATION, draw_glyphs, rasterize_strokes
from transformer.data.synthetic_scenes import COLORS, SceneGenerator, SceneItem, render_scenes


@pytest.mark.parametrize(("filled", "area"), [(True, 0.5**2), (False, 2 * 0.1 * (0.6 + 0.4))])
def test_a_square_covers_its_area(filled: bool, area: float) -> None:
    corners = np.array([[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75], [0.25, 0.25]], np.float32)
    segments = np.stack([corners[:-1], corners[1:]], 1)[None]
    (share,) = rasterize_strokes(segments, np.array([filled]), np.array([0.1], np.float32), 64)
    # A line of thickness 0.1 has round corners outside: 4 - pi of (0.05)^2 is missing.
    missing = 0 if filled else (4 - np.pi) * 0.05**2
    assert share.mean() == pytest.approx(area - missing, rel=0.02)
    assert share[32, 32] == filled
    assert share[0, 0] == 0
    assert share[32, 16] > 0.4


def test_every_glyph_is_drawn_within_its_square_and_differs_from_every_other() -> None:
    names = list(GLYPHS)
    shares = draw_glyphs(names, 32, np.random.default_rng(0), NO_VARIATION)
    assert shares.min() == 0
    assert shares.max() <= 1
    assert np.all(shares.mean(axis=(1, 2)) > 0.08)
    edge = np.concatenate([shares[:, [0, -1]].ravel(), shares[:, :, [0, -1]].ravel()])
    assert edge.max() == 0
    apart = np.abs(shares[:, None] - shares[None]).mean(axis=(2, 3)) + np.eye(len(names))
    assert apart.min() > 0.02


def test_drawings_of_a_glyph_differ_and_are_those_of_their_generator() -> None:
    first, second = (draw_glyphs(["5"] * 2, 24, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first[0] - first[1]).mean() > 0.01


def test_scenes_hold_different_items_in_different_cells() -> None:
    random, kind = np.random.default_rng(0), SceneGenerator(min_items=2, max_items=6, one_of_each=True)
    scenes = [kind.draw(random) for _ in range(200)]
    assert {len(items) for items in scenes} == {2, 3, 4, 5, 6}
    for items in scenes:
        for part in zip(*items, strict=True):
            assert len(set(part)) == len(items)
        assert [item.cell_index for item in items] == sorted(item.cell_index for item in items)


def test_an_item_is_painted_in_its_cell_in_its_color() -> None:
    kind, items = SceneGenerator(), (SceneItem(5, "circle", "red"), SceneItem(6, "square", "blue"))
    (image,) = render_scenes(kind, [items], np.random.default_rng(0), NO_VARIATION)
    assert image.shape == (48, 48, 3)
    means = image.reshape(3, 16, 3, 16, 3).astype(float)[:, 4:12, :, 4:12].mean(axis=(1, 3)).reshape(9, 3)
    for item in items:
        assert np.abs(means[item.cell_index] - COLORS[item.color]).max() < 20
    empty = np.delete(means, [5, 6], axis=0)
    assert empty.max() < 70
    assert np.abs(empty - empty.mean(axis=0)).max() < 5
    assert kind.place(5) == "middle right"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_items": 0}, "must rise"),
        ({"max_items": 10}, "must rise"),
        ({"shapes": ("dragon",)}, "dragon"),
        ({"shapes": ("star",), "colors": ("red",)}, "cannot all differ"),
        ({"max_items": 7, "one_of_each": True}, "cannot all differ"),
    ],
)
def test_unfit_scenes_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SceneGenerator(**wrong)
