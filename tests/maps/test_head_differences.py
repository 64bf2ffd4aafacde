"""How heads differ, against loops in Python over rows whose largest keys and entropies are known."""

import math

import numpy as np
import pytest

from transformer.maps.head_differences import head_differences


def test_entropies_and_disagreements_are_those_of_a_loop():
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.full(5, 0.4), size=(3, 4, 6))
    weights[1, :, 4:] = 0  # padding of the second example
    found = head_differences(weights.astype(np.float32))
    rows = [(example, query) for example in range(3) for query in range(6) if example != 1 or query < 4]
    assert found.num_queries == len(rows) == 16
    largest = {row: [max(range(5), key=weights[row[0], head, row[1]].__getitem__) for head in range(4)] for row in rows}
    for head in range(4):
        surprises = [-math.fsum(w * math.log(w) for w in weights[b, head, q] if w) for b, q in rows]
        assert found.entropy_H[head] == pytest.approx(math.fsum(surprises) / 16, rel=1e-6)
        for other in range(4):
            differ = sum(largest[row][head] != largest[row][other] for row in rows) / 16
            assert found.disagreement_HxH[head, other] == pytest.approx(differ)
    assert found.any_disagreement == pytest.approx(sum(len(set(each)) > 1 for each in largest.values()) / 16)
    assert 0 < found.disagreement_HxH[0, 1] < found.any_disagreement <= 1


def test_heads_that_read_the_same_key_do_not_disagree_however_spread():
    sharp, spread = np.eye(3)[None, None], np.full((1, 1, 3, 3), 0.2) + 0.4 * np.eye(3)
    found = head_differences(np.concatenate([sharp, spread], axis=1))
    assert found.any_disagreement == 0
    assert found.entropy_H[0] == 0
    assert found.entropy_H[1] == pytest.approx(-(0.6 * math.log(0.6) + 0.4 * math.log(0.2)))


def test_a_query_that_is_empty_in_one_head_does_not_count():
    weights = np.stack([np.eye(4), np.eye(4)[::-1]])[None]
    weights[0, 1, :3] = 0
    found = head_differences(weights)
    assert (found.num_queries, found.any_disagreement) == (1, 1)
    empty = head_differences(np.zeros((2, 3, 4, 5)))
    assert empty.num_queries == 0
    assert np.isnan([empty.any_disagreement, *empty.entropy_H, *empty.disagreement_HxH.ravel()]).all()


def test_one_head_disagrees_with_none():
    found = head_differences(np.random.default_rng(1).dirichlet(np.ones(4), size=(2, 1, 3)))
    assert (found.any_disagreement, found.disagreement_HxH.tolist()) == (0, [[0.0]])
