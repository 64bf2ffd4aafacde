"""Strings in images: where their glyphs stand, and that they are painted there."""

import dataclasses

import numpy as np
import pytest

from experiments.scene_text.data import RenderedText, TextLine, TextRenderer, render_text
from transformer.data.synthetic_glyphs import NO_VARIATION, draw_glyphs, rasterize_strokes, sample_strokes

KIND = TextRenderer()


def corners(written: RenderedText) -> np.ndarray:
    """The corners of each glyph's square [N, 4, 2], left upper first, then clockwise."""
    found = []
    for (x, y), turn in zip(written.glyph_centers, written.glyph_angles, strict=True):
        along = written.glyph_size / 2 * np.array([np.cos(turn), np.sin(turn)])
        down = written.glyph_size / 2 * np.array([-np.sin(turn), np.cos(turn)])
        signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
        found.append([(x, y) + right * along + below * down for right, below in signs])
    return np.array(found)


@pytest.mark.parametrize("line", TextLine)
def test_squares_lie_within_the_image_side_by_side_along_the_line(line: TextLine) -> None:
    random, counts, bends = np.random.default_rng(0), set(), []
    for _ in range(300):
        written = KIND.place_glyphs(KIND.sample_string(random), line, random)
        counts.add(len(written.text))
        assert set(written.text) <= set(KIND.alphabet)
        assert len(written.glyph_centers) == len(written.glyph_angles) == len(written.text)
        assert corners(written).min() >= -1e-9
        assert corners(written).max() <= KIND.image_size + 1e-9
        assert 5 < written.glyph_size <= KIND.glyph_size_range[1]
        steps = np.diff(written.glyph_centers, axis=0)
        distances = np.linalg.norm(steps, axis=1) / written.glyph_size
        assert (distances > 0.99).all()
        assert (distances < 1.16).all()
        # The next glyph stands to the right of each, as this one and that one are turned on the mean.
        directions = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
        between = (written.glyph_angles[1:] + written.glyph_angles[:-1]) / 2
        np.testing.assert_allclose(np.cos(directions - between), 1, atol=1e-9)
        bends.append(np.abs(np.diff(written.glyph_angles)).max())
    assert counts == {3, 4, 5}
    assert max(bends) == 0 if line is TextLine.STRAIGHT else min(bends) > np.radians(25)


@pytest.mark.parametrize(("line", "least", "max_length"), [(TextLine.CURVED, 0.6, 1.0), (TextLine.STRAIGHT, 0.0, 0.0)])
def test_glyphs_of_curved_strings_alone_stand_above_one_another(
    line: TextLine, least: float, max_length: float
) -> None:
    """Middles less than 0.6 sides apart across: columns of the image show both."""
    random = np.random.default_rng(1)
    stacked = 0
    for _ in range(200):
        written = KIND.place_glyphs(KIND.sample_string(random), line, random)
        across = np.sort(written.glyph_centers[:, 0])
        stacked += bool((np.diff(across) < 0.6 * written.glyph_size).any())
    assert least <= stacked / 200 <= max_length


def test_a_glyph_is_painted_where_its_square_stands() -> None:
    """Every pixel of a large image by brute force: the share of the glyph's own drawing, turned and moved there."""
    kind = dataclasses.replace(KIND, image_size=40)
    for text, line, seed in (("PT2", TextLine.CURVED, 3), ("KAJ", TextLine.STRAIGHT, 4), ("RGF", TextLine.CURVED, 5)):
        random = np.random.default_rng(seed)
        written = kind.place_glyphs(text, line, random)
        image = render_text(kind, [written], random, NO_VARIATION)[0].astype(float).mean(axis=-1)
        bright = (image - np.median(image)) / (np.percentile(image, 99.5) - np.median(image))
        expected = np.zeros((40, 40))
        drawn = sample_strokes(text, np.random.default_rng(0), NO_VARIATION)
        own = rasterize_strokes(*drawn, 200)
        for row in range(40):
            for column in range(40):
                for number, ((x, y), turn) in enumerate(zip(written.glyph_centers, written.glyph_angles, strict=True)):
                    away = np.array([column + 0.5 - x, row + 0.5 - y])
                    along = away @ [np.cos(turn), np.sin(turn)] / written.glyph_size + 0.5
                    down = away @ [-np.sin(turn), np.cos(turn)] / written.glyph_size + 0.5
                    if 0 <= along < 1 and 0 <= down < 1:
                        share = own[number, int(200 * down), int(200 * along)]
                        expected[row, column] = max(expected[row, column], share)
        # A line is a pixel wide, so that single pixels differ where it is cut: as a whole they are the same image.
        assert np.corrcoef(bright.ravel(), expected.ravel())[0, 1] > 0.85
        flipped = np.corrcoef(bright.ravel(), expected[::-1].ravel())[0, 1]
        assert flipped < 0.5


def test_no_image_is_like_another_and_each_is_a_function_of_its_generator() -> None:
    written = KIND.place_glyphs("A4K", TextLine.CURVED, np.random.default_rng(0))
    one, other = render_text(KIND, [written, written], np.random.default_rng(1))
    assert (one != other).any()
    again = render_text(KIND, [written, written], np.random.default_rng(1))
    np.testing.assert_array_equal(again, [one, other])
    assert (one.dtype, one.shape) == (np.uint8, (56, 56, 3))
    # Beyond what the noise spreads, only glyphs are bright.
    squares = corners(written)
    rows, columns = np.nonzero(one.mean(axis=-1) > 140)
    assert len(rows) > 20
    low, high = squares.min(axis=(0, 1)) - 1.5, squares.max(axis=(0, 1)) + 1.5
    assert (low[1] <= rows).all()
    assert (rows <= high[1]).all()
    assert (low[0] <= columns).all()
    assert (columns <= high[0]).all()


def test_drawings_of_their_own_are_those_of_strokes() -> None:
    drawn = draw_glyphs(["A", "4"], 24, np.random.default_rng(2))
    np.testing.assert_array_equal(drawn, rasterize_strokes(*sample_strokes(["A", "4"], np.random.default_rng(2)), 24))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min_length": 0}, "min_length=0 and max_length=5"),
        ({"min_length": 6}, "min_length=6 and max_length=5"),
        ({"alphabet": "Ab"}, "alphabet='Ab' has \\['b'\\], which are no capital letters"),
        ({"alphabet": "AA"}, "alphabet='AA' must name at least one glyph, and none of them twice"),
        ({"alphabet": ""}, "alphabet='' must name"),
        ({"image_size": 20}, "must rise, from 1 pixel to half of the image's image_size=20"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TextRenderer(**wrong)
