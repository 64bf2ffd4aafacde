"""What a newcomer reads from `train` to the logits of attention stays short."""

from tests.road import road


def test_from_train_to_the_logits_are_at_most_2500_lines() -> None:
    lines = road()
    assert {"launch/train.py", "transformer/training/loop.py", "transformer/layers/attention.py"} <= set(lines)
    assert sum(lines.values()) <= 2500, lines
