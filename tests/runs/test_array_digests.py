"""Digests against a count by hand in Python's own integers, and every kind of accident that they must find."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from transformer.runs import array_digests
from transformer.runs.array_digests import compute_digests, find_mismatched_arrays

WIDTH = 1 << 64


def digest_by_hand(array: Any) -> str:
    """The definition, a word at a time."""
    array = np.asarray(array)
    size = array.dtype.itemsize
    content = array.tobytes()
    step = min(size, 4)
    words = [int.from_bytes(content[at : at + step], "little") for at in range(0, len(content), step)]
    sums = [0, 0]
    for place, word in enumerate(words):
        z = (place * 0x9E3779B97F4A7C15 + word) % WIDTH
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WIDTH
        z ^= z >> 27
        for lane, factor in enumerate((0x94D049BB133111EB, 0xD6E8FEB86659FD93)):
            last = z * factor % WIDTH
            sums[lane] = (sums[lane] + (last ^ last >> 31)) % WIDTH
    return "".join(f"{each:016x}" for each in sums)


def of(array: Any) -> str:
    return compute_digests({"leaf": array})["leaf"]


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "bool", "int8", "uint32", "float64", "int64", "complex64", "complex128"]
)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0, 3)])
def test_it_is_what_its_definition_says(dtype: str, shape: tuple[int, ...]) -> None:
    kind = jnp.dtype(dtype)
    bits = np.random.default_rng(0).integers(0, 256, (*shape, kind.itemsize), np.uint8)
    array = (bits[..., 0] % 2 == 0) if dtype == "bool" else bits.view(kind)[..., 0]
    assert of(array) == digest_by_hand(array)
    if kind.itemsize < 8 or dtype == "complex64":  # jax has no wider ones unless it is told so
        assert of(jnp.asarray(array)) == digest_by_hand(array)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(1).normal(size=(5, 40, 3)).astype(np.float32)
    expected = digest_by_hand(array)
    for block in (2, 7, 16, 64, 1000):
        monkeypatch.setattr(array_digests, "_BLOCK", block)
        assert of(array) == expected
        assert of(np.asfortranarray(array)) == expected


@pytest.mark.parametrize(
    "spec",
    [
        (),
        ("a",),
        ("b",),
        (None, "a"),
        (None, None, "b"),
        ("a", "b"),
        ("b", None, "a"),
        (("a", "b"),),
        (None, ("a", "b")),
    ],
)
def test_no_sharding_shows(spec: tuple[Any, ...]) -> None:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    array = np.random.default_rng(2).normal(size=(8, 16, 4)).astype(np.float32)
    placed = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
    assert of(placed) == digest_by_hand(array)
    assert (
        find_mismatched_arrays({"x": placed, "y": array}, {"x": digest_by_hand(array), "y": digest_by_hand(array)})
        == []
    )
    assert find_mismatched_arrays({"x": placed, "y": array}, {"x": "0" * 32, "y": digest_by_hand(array)}) == ["x"]


def accidents(array: np.ndarray) -> dict[str, np.ndarray]:
    """What storage does to an array."""
    found: dict[str, np.ndarray] = {}
    flat = array.reshape(-1)
    for place in range(0, flat.size, max(1, flat.size // 40)):
        for bit in (0, 7, 15, 23, 30, 31):
            words = flat.view(np.uint32).copy()
            words[place] ^= np.uint32(1 << bit)
            found[f"bit {bit} of {place}"] = words
        if place:
            swapped = flat.view(np.uint32).copy()
            swapped[[0, place]] = swapped[[place, 0]]
            found[f"0 and {place} exchanged"] = swapped
    signs = flat.view(np.uint32).copy()
    signs[:8] ^= np.uint32(1 << 31)
    found["eight signs"] = signs
    found["rolled by one"] = np.roll(flat, 1).view(np.uint32)
    found["reversed"] = flat[::-1].copy().view(np.uint32)
    for start, end in ((0, 4), (5, 64), (0, flat.size)):
        zeroed = flat.view(np.uint32).copy()
        zeroed[start:end] = 0
        found[f"{start} to {end} zeroed"] = zeroed
        shifted = flat.view(np.uint32).copy()
        shifted[start : end - 1] = shifted[start + 1 : end]
        found[f"{start} to {end} shifted"] = shifted
        twice = flat.view(np.uint32).copy()
        twice[start:end] = twice[: end - start][::-1]
        found[f"{start} to {end} written over"] = twice
    return {name: words for name, words in found.items() if words.tobytes() != flat.tobytes()}


@pytest.mark.parametrize("kind", ["random", "ramp", "few values", "almost all zero", "constant"])
def test_every_accident_changes_both_halves(kind: str) -> None:
    random = np.random.default_rng(3)
    array = {
        "random": random.normal(size=400),
        "ramp": np.arange(400.0),
        "few values": random.integers(0, 2, 400) * 1.0,
        "almost all zero": np.eye(20).reshape(-1),
        "constant": np.full(400, 0.1),
    }[kind].astype(np.float32)
    expected = of(array)
    changed = {name: of(words) for name, words in accidents(array).items()}
    assert len(changed) > 100
    for name, found in changed.items():
        assert found[:16] != expected[:16], name
        assert found[16:] != expected[16:], name
    assert len(set(changed.values())) == len({words.tobytes() for words in accidents(array).values()})


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=40), st.data())
def test_another_order_is_another_digest(words: list[int], data: st.DataObject) -> None:
    other = data.draw(st.permutations(words))
    assert (of(np.array(words, np.uint32)) == of(np.array(other, np.uint32))) == (words == list(other))


def test_no_two_words_of_a_large_array_can_be_taken_for_each_other() -> None:
    """|p G mod 2^64| > 2^32 for every distance p up to a billion, by the convergents of the golden ratio.

    The multiples that come nearest to 0 are those of Fibonacci numbers, which are the convergents' denominators.
    """
    first, second = 1, 1
    while second < 1_000_000_000:
        near = second * 0x9E3779B97F4A7C15 % WIDTH
        assert min(near, WIDTH - near) > 2**32
        first, second = second, first + second
