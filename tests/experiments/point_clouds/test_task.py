"""Clouds of points: they lie on the lines of their digits; what is drawn, refused and shown."""

import numpy as np
import pytest

from experiments.point_clouds.task import PointClouds, PointCloudsConfig
from transformer.config import UserError
from transformer.data.synthetic_glyphs import GLYPHS, NO_VARIATION, draw_point_clouds


def test_points_lie_on_the_lines_anywhere_alike() -> None:
    (cloud,) = draw_point_clouds(["L"], 4000, np.random.default_rng(0), NO_VARIATION, noise=0.0)
    (corners,) = GLYPHS["L"]
    (x, top), (_, bottom), (right, _) = corners
    down, along = np.abs(cloud[:, 0] - x) < 1e-5, np.abs(cloud[:, 1] - bottom) < 1e-5
    assert np.all(down | along)
    share = (bottom - top) / (bottom - top + right - x)
    assert down.mean() == pytest.approx(share, abs=0.03)
    assert cloud[down, 1].mean() == pytest.approx((top + bottom) / 2, abs=0.02)


def test_a_cloud_has_its_points_and_zeros_behind_them() -> None:
    task = PointClouds(PointCloudsConfig(min_points=3, max_points=7, batch_size=64, num_eval_examples=64))
    batch = task.training_batches(0)[0]
    assert set(batch["lengths"]) == set(range(3, 8))
    real = np.arange(7) < batch["lengths"][:, None]
    assert np.all(batch["points"][~real] == 0)
    assert np.all(np.abs(batch["points"][real] - 0.5).max(-1) < 0.6)
    np.testing.assert_array_equal(batch["points"], task.training_batches(0)[0]["points"])
    labels = task.axis_labels(())
    assert [len(names) for names in labels.tokens["points"]] == task.probe_batch["lengths"].tolist()


def test_a_cloud_is_titled_by_its_own_digit_and_its_points_by_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    task = PointClouds(PointCloudsConfig(min_points=1, max_points=2, batch_size=2, num_eval_examples=2))
    points = np.float32([[[0.25, 0.5], [1, 0]], [[0.75, 0.125], [0, 0]]])
    monkeypatch.setattr(
        task, "probe_examples", {"points": points, "lengths": np.array([2, 1]), "labels": np.array([3, 7])}
    )
    labels = task.axis_labels(())
    assert labels.titles == ("3 of 2 points", "7 of 1 points")
    assert labels.tokens["points"] == (("0.25, 0.50", "1.00, 0.00"), ("0.75, 0.12",))


@pytest.mark.parametrize(
    "wrong",
    [{"min_points": 0}, {"max_points": 2}, {"batch_size": 0}, {"num_eval_examples": 0}, {"num_probe_examples": 0}],
)
def test_unfit_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        PointCloudsConfig(**wrong)
