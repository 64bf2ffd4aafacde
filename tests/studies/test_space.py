"""Spaces: their points against products counted by hand, their draws against their bounds, and every mistake."""

import itertools
import json
import math
import random

import pytest

from transformer.config import UserError
from transformer.studies.sweeps.optuna_search import find_parameters, independent_parameters, suggest_point
from transformer.studies.sweeps.search_space import SearchSpaceBuilder, random_permutation

sweep = SearchSpaceBuilder()


def points(space):
    return [space.get_point(number) for number in range(space.num_points)]


A = sweep.choice("a", [1, 2])
B = sweep.choice("b.c", ["x", "y", "z"])
C = sweep.integers("c", 3, 5)


def test_a_product_has_every_combination_and_its_last_member_changes_fastest():
    expected = [{"a": a, "b.c": b, "c": c} for a, b, c in itertools.product([1, 2], "xyz", [3, 4, 5])]
    assert points(sweep.product(A, B, C)) == expected
    assert sweep.product(A, B, C).num_points == 18


def test_zip_goes_side_by_side_and_chain_one_after_the_other():
    assert points(sweep.zip(B, C)) == [{"b.c": "x", "c": 3}, {"b.c": "y", "c": 4}, {"b.c": "z", "c": 5}]
    chain = sweep.chain(A, sweep.product(A, sweep.choice("d", [None])))
    assert points(chain) == [{"a": 1}, {"a": 2}, {"a": 1, "d": None}, {"a": 2, "d": None}]
    nested = sweep.product(sweep.zip(B, C), A)
    assert [point["a"] for point in points(nested)] == [1, 2] * 3
    assert chain.keys == ("a", "d")


class Suggesting:
    """Suggests at random as an Optuna trial does, and notes what was suggested by which name."""

    def __init__(self, seed):
        self._generator, self.parameters, self.choices = random.Random(seed), {}, {}

    def suggest_categorical(self, name, choices):
        self.choices[name] = list(choices)
        return self.parameters.setdefault(name, self._generator.choice(choices))

    def suggest_float(self, name, low, high, log):
        return self.parameters.setdefault(name, self._generator.uniform(low, high))

    def suggest_int(self, name, low, high):
        return self.parameters.setdefault(name, self._generator.randint(low, high))


@pytest.mark.parametrize(
    "space",
    [
        sweep.product(A, B, C, sweep.log_uniform("rate", 1e-4, 1e-1)),
        sweep.zip(B, C),
        sweep.chain(sweep.choice("a", [3, (1, 2)]), A, sweep.product(A, sweep.choice("d", [None, {"e": 1}]))),
        sweep.product(sweep.chain(sweep.zip(B, C), B), sweep.chain(sweep.uniform("rate", 0, 1), A)),
        sweep.chain(sweep.chain(A, B), sweep.chain(C, sweep.product(A, C))),
    ],
)
def test_the_parameters_of_a_point_are_those_that_it_was_suggested_by(space):
    members = independent_parameters(space)
    for seed in range(40):
        suggesting = Suggesting(seed)
        overrides = suggest_point(suggesting, members)
        assert find_parameters(members, json.loads(json.dumps(overrides))) == suggesting.parameters
        drawn = space.sample(random.Random(seed))
        assert set(drawn) <= set(space.keys)
        assert find_parameters(members, json.loads(json.dumps(drawn))) is not None


def test_what_is_not_of_a_space_has_no_parameters():
    rate = sweep.log_uniform("rate", 1e-4, 1e-1)
    for space, overrides in (
        (A, {}),
        (A, {"a": 3}),
        (A, {"a": True}),
        (A, {"a": 1, "c": 3}),
        (rate, {"rate": 1.0}),
        (C, {"c": 3.0}),
        (C, {"c": 6}),
    ):
        assert find_parameters(independent_parameters(space), overrides) is None
        assert find_parameters(independent_parameters(sweep.product(B, space)), {"b.c": "x", **overrides}) is None
        assert find_parameters(independent_parameters(sweep.chain(B, space)), overrides) is None
    assert find_parameters(independent_parameters(sweep.zip(B, C)), {"b.c": "x", "c": 4}) is None


def test_a_space_with_a_continuous_member_has_no_size():
    rate = sweep.log_uniform("rate", 1e-4, 1e-1)
    for space in (rate, sweep.product(A, rate), sweep.chain(A, rate)):
        assert space.num_points is None
    with pytest.raises(ValueError, match="cannot be counted"):
        rate.get_point(0)


def test_log_uniform_draws_each_order_of_magnitude_alike():
    rate = sweep.log_uniform("rate", 1e-4, 1e-1)
    chance = random.Random(0)
    found = [rate.sample(chance)["rate"] for _ in range(6000)]
    assert all(1e-4 <= value <= 1e-1 for value in found)
    shares = [sum(10**low <= value < 10 ** (low + 1) for value in found) / 6000 for low in (-4, -3, -2)]
    # Three standard deviations of a share of a third of 6000: 0.018.
    assert all(abs(share - 1 / 3) < 0.02 for share in shares), shares
    plain = sweep.uniform("rate", 1, 3)
    mean = sum(plain.sample(chance)["rate"] for _ in range(6000)) / 6000
    assert math.isclose(mean, 2, abs_tol=0.03)


def test_draws_are_points_of_the_space():
    space = sweep.chain(sweep.zip(B, C), sweep.product(A, B))
    chance = random.Random(1)
    drawn = [space.sample(chance) for _ in range(300)]
    assert all(point in points(space) for point in drawn)
    assert all(point in drawn for point in points(space))


def test_no_part_of_a_space_is_suggested_by_the_name_of_another():
    chains = [sweep.chain(sweep.choice(key, [1]), sweep.choice(f"{key}{key}", [2, 3])) for key in "pq"]
    members = independent_parameters(sweep.product(*chains, A, sweep.zip(B, C)))
    suggesting, points = Suggesting(0), []
    for member in range(len(members)):
        suggesting.parameters = {"member": member}
        points.append(set(suggest_point(suggesting, members)))
    assert points == [{*keys, "a", "b.c", "c"} for keys in (("p", "q"), ("p", "qq"), ("pp", "q"), ("pp", "qq"))]
    sizes = {name.split()[0]: len(choices) for name, choices in suggesting.choices.items()}
    assert len(suggesting.choices) == len(sizes) == 7
    assert sizes == {"member": 4, "p": 1, "pp": 2, "q": 1, "qq": 2, "a": 2, "b.c+c": 3}
    # One key with other values in each member.
    twice = independent_parameters(sweep.chain(A, sweep.choice("a", [3, 4])))
    assert len({name for point in ({"a": 1}, {"a": 3}) for name in find_parameters(twice, point)}) == 3


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_a_permutation_has_each_number_once_and_keeps_its_beginning(size):
    assert sorted(random_permutation(size, 3)) == list(range(size))
    assert list(random_permutation(size, 3)) == list(random_permutation(size, 3))
    if size == 100:
        assert list(random_permutation(size, 3)) != list(random_permutation(size, 4))
        # Of ten numbers each is equally often first: 3.3 standard deviations of 1000 draws in ten are 95.
        firsts = [next(random_permutation(10, seed)) for seed in range(1000)]
        assert all(abs(firsts.count(number) - 100) < 40 for number in range(10))
        # The numbers of an enormous space are not made.
        assert len(set(itertools.islice(random_permutation(10**18, 0), 50))) == 50


def test_equal_spaces_are_described_alike_and_others_are_not():
    first = sweep.product(A, sweep.log_uniform("rate", 1e-4, 1))
    again = SearchSpaceBuilder().product(
        SearchSpaceBuilder().choice("a", (1, 2)), SearchSpaceBuilder().log_uniform("rate", 1e-4, 1.0)
    )
    other = sweep.product(A, sweep.uniform("rate", 1e-4, 1))
    assert json.dumps(first.describe()) == json.dumps(again.describe()) != json.dumps(other.describe())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sweep.product(), "product() is empty"),
        (lambda: sweep.chain(), "chain() is empty"),
        (lambda: sweep.zip(), "zip() is empty"),
        (lambda: sweep.choice("a", []), "choice('a') is empty"),
        (lambda: sweep.choice("a", "post"), "give a list of values, as ['post']"),
        (lambda: sweep.choice("a", {1}), "a set has no order; give a list"),
        (lambda: sweep.choice("a", 3), "give a list of values, as [3]"),
        (lambda: sweep.choice("a", [1, 2, 1]), "choice('a') has 1 twice"),
        (lambda: sweep.choice("a", [{1}]), "cannot be written down"),
        (lambda: sweep.choice("a", [math.nan]), "cannot be written down"),
        (lambda: sweep.choice("", [1]), "'' is no key"),
        (lambda: sweep.choice("a..b", [1]), "'a..b' is no key"),
        (lambda: sweep.choice("config.a", [1]), "without 'config.' in a sweep: 'a'"),
        (lambda: sweep.product(A, B, A), "product: 'a' is set twice"),
        (lambda: sweep.zip(A, sweep.chain(A, A)), "zip: 'a' is set twice"),
        (lambda: sweep.product(A, sweep.chain(B, A)), "product: 'a' is set twice"),
        (lambda: sweep.zip(A, B), "zip of unequal lengths: 2 of a and 3 of b.c"),
        (lambda: sweep.zip(A, sweep.uniform("r", 0, 1)), "zip: r has no number of values"),
        (lambda: sweep.product(A, "b"), "product: 'b' is no space"),
        (lambda: sweep.log_uniform("r", 0, 1), "log_uniform('r', 0, 1): low must be above 0"),
        (lambda: sweep.log_uniform("r", 1e-2, 1e-3), "low must be below high"),
        (lambda: sweep.log_uniform("r", 1, 1), "low must be below high"),
        (lambda: sweep.uniform("r", 0, math.inf), "inf is no finite number"),
        (lambda: sweep.uniform("r", "0", 1), "'0' is no finite number"),
        (lambda: sweep.integers("r", 1, 2.5), "both ends must be whole numbers"),
    ],
)
def test_mistakes_are_one_clear_line(make, says):
    with pytest.raises(UserError) as told:
        make()
    assert says in str(told.value)
    assert "\n" not in str(told.value)
