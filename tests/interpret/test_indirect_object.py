"""Indirect objects: which heads of a small model, trained here, name the person who is not repeated.

A text has two names, then one of them again; it ends with the other, as in "Anna and Paul left, Paul gave it to Anna"
(Wang et al. 2023). Names are capital letters among small ones, so that a text is "cThgGcce.TftG".
"""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer
from experiments.induction_heads.configs import two_layer_transformer
from transformer.interpret import LoadedModel, replace, zero
from transformer.training import build
from transformer.training.partitioning import single_device_placement

NAMES, WORDS = list("ABCDEFGHIJKLMNOPQRST"), list("bcdefghi")
NUM_LAYERS, NUM_HEADS = 3, 4
OUTPUTS, STREAM = "decoder/self/head_outputs", "decoder/residual"


class Prompt(NamedTuple):
    """A text without its last name.

    Attributes:
        text: The text.
        swapped: The same with the other name repeated.
        answer: The name that ends the text.
        repeated: The name that the text has twice.
    """

    text: str
    swapped: str
    answer: str
    repeated: str


def draw_prompt(random: np.random.Generator, gap_sizes: tuple[int, int]) -> Prompt:
    """Draw a prompt, with so many small letters between the names, both ends included."""
    first, second = random.choice(NAMES, 2, replace=False)
    repeated, answer = (second, first) if random.integers(2) else (first, second)
    low, high = gap_sizes
    gaps = ["".join(random.choice(WORDS, random.integers(low, high + 1))) for _ in range(4)]

    def write(name: str) -> str:
        return f"{gaps[0]}{first}{gaps[1]}{second}{gaps[2]}.{name}{gaps[3]}t"

    return Prompt(write(repeated), write(answer), str(answer), str(repeated))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A decoder of three layers of four heads, trained for 1,500 steps; minutes on an idle core."""
    folder, random = tmp_path_factory.mktemp("names"), np.random.default_rng(0)
    (folder / "data").mkdir()
    for split, count in (("train", 40000), ("validation", 1000), ("test", 1000)):
        prompts = (draw_prompt(random, (1, 3)) for _ in range(count))
        lines = [json.dumps({"text": prompt.text + prompt.answer}) for prompt in prompts]
        (folder / "data" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    config = two_layer_transformer.get_config()
    config.update({"steps": 1500, "maps_every": 0, "eval_every": 500, "log_every": 500})
    config.task.dataset = str(folder / "data")
    config.model.update({"layers": NUM_LAYERS, "heads": NUM_HEADS, "scan_unroll": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: single_device_placement())
        transformer.train(config, folder / "run")
    return transformer.load(folder / "run")


class Measured(NamedTuple):
    """Prompts of one length, and the difference of the logits of the answer and the repeated name, averaged.

    Attributes:
        prompts: The prompts.
        repetition: The position at which the repeated name stands again.
        end: The last position.
    """

    model: LoadedModel
    prompts: list[Prompt]
    repetition: int
    end: int

    @classmethod
    def of(cls, model: LoadedModel) -> "Measured":
        random = np.random.default_rng(7)
        prompts = [draw_prompt(random, (2, 2)) for _ in range(64)]
        text = prompts[0].text
        return cls(model, prompts, text.index(".") + 1, len(text) - 1)

    def differences(self, logits: jax.Array) -> jax.Array:
        """The difference of each prompt."""
        rows = jnp.arange(len(self.prompts))
        answers = self.model.tokenizer.encode([prompt.answer for prompt in self.prompts])
        repeated = self.model.tokenizer.encode([prompt.repeated for prompt in self.prompts])
        logits_BxV = logits[:, self.end]
        return logits_BxV[rows, jnp.ravel(jnp.array(answers))] - logits_BxV[rows, jnp.ravel(jnp.array(repeated))]

    def restored(self, name: str, indices: np.ndarray, *axes: str) -> np.ndarray:
        """How much of the difference comes back if entries of an activation are patched into the swapped texts."""
        texts, swapped = [prompt.text for prompt in self.prompts], [prompt.swapped for prompt in self.prompts]
        logits, cache = self.model.run_with_cache(texts, name)
        intact, unpatched = jnp.mean(self.differences(logits)), jnp.mean(self.differences(self.model(swapped)))

        def patch(*places: jax.Array) -> jax.Array:
            edit = replace(name, cache[name], **dict(zip(axes, places, strict=True)))
            return jnp.mean(self.differences(self.model.run_with(swapped, [edit])))

        patched = jax.vmap(patch)(*jnp.asarray(indices.reshape(len(axes), -1)))
        return np.asarray((patched - unpatched) / (intact - unpatched)).reshape(indices.shape[1:])


@pytest.mark.slow
def test_one_head_finds_the_repeated_name_and_votes_against_it(model: LoadedModel) -> None:
    """Recorded with seed 1: head 0 of layer 0 restores 1.04 of the difference, all others 0.06 at most.

    It reads the repeated name from the end with weight 1.00. Without it, the difference of 11.0 becomes -0.7: another
    head of the layer, which reads both names with weight 0.4, is left.
    """
    measured = Measured.of(model)
    texts = [prompt.text for prompt in measured.prompts]
    logits, cache = model.run_with_cache(texts, "decoder/self/weights")
    intact = measured.differences(logits)
    assert float(jnp.mean(intact > 0)) > 0.95

    by_head = measured.restored(OUTPUTS, np.indices((NUM_LAYERS, NUM_HEADS)), "layers", "heads")
    layer, head = map(int, np.unravel_index(by_head.argmax(), by_head.shape))
    assert layer == 0
    assert by_head[layer, head] > 0.8
    assert np.abs(np.delete(by_head.ravel(), by_head.argmax())).max() < 0.2

    weights_LxBxHxQxK = np.asarray(cache["decoder/self/weights"])
    assert weights_LxBxHxQxK[layer, :, head, measured.end, measured.repetition].mean() > 0.9
    names = np.array(
        [
            [text.index(prompt.answer), text.index(prompt.repeated)]
            for text, prompt in zip(texts, measured.prompts, strict=True)
        ]
    )
    from_end_BxHxK = weights_LxBxHxQxK[layer, :, :, measured.end]
    to_names_HxN = np.take_along_axis(from_end_BxHxK, names[:, None], axis=2).mean(axis=0)
    assert to_names_HxN.min(axis=1).max() > 0.3

    without = measured.differences(model.run_with(texts, [zero(OUTPUTS, layers=layer, heads=head)]))
    assert float(jnp.mean(without)) < 0.2 * float(jnp.mean(intact))


@pytest.mark.slow
def test_the_repeated_name_moves_to_the_end_in_the_first_layer(model: LoadedModel) -> None:
    measured = Measured.of(model)
    length = measured.end + 1
    by_place = measured.restored(STREAM, np.indices((NUM_LAYERS, length)), "layers", "positions")
    expected = np.zeros((NUM_LAYERS, length))
    expected[0, measured.repetition] = expected[1:, measured.end] = 1
    np.testing.assert_allclose(by_place, expected, rtol=0, atol=0.2)
