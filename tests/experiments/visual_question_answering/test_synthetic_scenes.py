"""Questions about scenes, answered by brute force: every one of them has the one right answer, and none is missing."""

import collections
import re

import numpy as np
import pytest

from experiments.visual_question_answering.synthetic_scenes import (
    ONE_HOP,
    RELATIONAL,
    SceneQuestions,
    generate_questions,
)
from experiments.visual_question_answering.task import open_questions
from transformer.config import UserError
from transformer.data.synthetic_glyphs import SHAPES
from transformer.data.synthetic_scenes import COLORS, SceneGenerator, SceneItem

SMALL = SceneQuestions(cell_pixels=8, validation=20, test=30)
PLACES = [f"{row} {column}" for row in ("top", "middle", "bottom") for column in ("left", "center", "right")]
NAMED = rf"the ({'|'.join(SHAPES)}|(?:{'|'.join(COLORS)}) thing)"
STEPS = {"right of": lambda r, c: (r, c + 1), "left of": lambda r, c: (r, c - 1)}
STEPS |= {"below": lambda r, c: (r + 1, c), "above": lambda r, c: (r - 1, c)}


def right_answers(text: str, items: tuple[SceneItem, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Every answer to a question that could be meant, each with the cells that lead to it: from its words alone."""

    def meant(name: str) -> list[SceneItem]:
        return [item for item in items if name in (item.shape, f"{item.color} thing")]

    def neighbors(relation: str, item: SceneItem) -> list[SceneItem]:
        place = STEPS[relation](*divmod(item.cell_index, 3))
        return [other for other in items if divmod(other.cell_index, 3) == place]

    if found := re.fullmatch(rf"where is {NAMED} \?", text):
        return [(PLACES[item.cell_index], (item.cell_index,)) for item in meant(found[1])]
    if found := re.fullmatch(rf"what color is {NAMED} \?", text):
        return [(item.color, (item.cell_index,)) for item in meant(found[1])]
    if found := re.fullmatch(r"what shape is (\w+) \?", text):
        return [(item.shape, (item.cell_index,)) for item in meant(f"{found[1]} thing")]
    found = re.fullmatch(rf"what (color is the thing|shape is) (right of|left of|below|above) {NAMED} \?", text)
    assert found, text
    return [
        (other.color if found[1].startswith("color") else other.shape, (item.cell_index, other.cell_index))
        for item in meant(found[3])
        for other in neighbors(found[2], item)
    ]


@pytest.mark.parametrize("one_of_each", [True, False])
def test_every_question_about_a_scene_has_the_one_right_answer(one_of_each: bool) -> None:
    """Also where items share a shape or a color, and then are not named by it."""
    kind = SceneGenerator(
        min_items=3, max_items=6, shapes=tuple(SHAPES)[:6], colors=tuple(COLORS), one_of_each=one_of_each
    )
    random, count = np.random.default_rng(0), 0
    for _ in range(60):
        items = kind.draw(random)
        for question in generate_questions(kind, items):
            count += 1
            assert right_answers(" ".join(question.words), items) == [(question.answer, question.cells)]
    assert count > 1000


def test_no_relational_question_of_a_scene_is_missing() -> None:
    random = np.random.default_rng(1)
    for _ in range(60):
        items = SMALL.scene_generator.draw(random)
        pairs = [
            (relation, first, second)
            for relation, step in STEPS.items()
            for first in items
            for second in items
            if step(*divmod(first.cell_index, 3)) == divmod(second.cell_index, 3)
        ]
        asked = [
            question for question in generate_questions(SMALL.scene_generator, items) if question.kind in RELATIONAL
        ]
        # By shape and by color of the one, for shape and color of the other.
        assert len({question.words for question in asked}) == len(asked) == 4 * len(pairs)
        assert {question.cells for question in asked} == {
            (first.cell_index, second.cell_index) for _, first, second in pairs
        }


def test_half_of_the_questions_are_relational_and_no_answer_prevails() -> None:
    questions = [SMALL.scene_and_question("train", number)[1] for number in range(3000)]
    kinds = collections.Counter(question.kind for question in questions)
    assert set(kinds) == {*ONE_HOP, *RELATIONAL}
    assert sum(kinds[name] for name in RELATIONAL) == pytest.approx(1500, abs=120)
    for kind, count in kinds.items():
        answers = collections.Counter(question.answer for question in questions if question.kind == kind)
        assert len(answers) == {"place": 9, "shape": 8, "neighbor_shape": 8}.get(kind, 6)
        assert max(answers.values()) < 2 * count / len(answers)
    assert {question.answer for question in questions} == set(SMALL.question_vocabulary.answers)
    assert {word for question in questions for word in question.words} == set(SMALL.question_vocabulary.words)
    assert max(len(question.words) for question in questions) == SMALL.question_vocabulary.max_question_length


def test_training_batches_are_those_of_seed_and_step_and_show_what_is_asked_about() -> None:
    source = SMALL.training_batches(10, 3)
    batch, again = source[7], source[7]
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
    assert (source[8]["tokens"] != batch["tokens"]).any()
    assert (SMALL.training_batches(10, 4)[7]["tokens"] != batch["tokens"]).any()
    assert batch["image"].shape == (10, 24, 24, 3)
    # Four questions are about one scene, the last two about another than those before.
    same = [bool((a == b).all()) for a, b in zip(batch["image"], batch["image"][1:], strict=False)]
    assert same == [True, True, True, False, True, True, True, False, True]
    # The cell of an answer is lighter than the ground of the image in some color.
    for image, (_, last) in zip(batch["image"], batch["cells"], strict=True):
        cells = image.reshape(3, 8, 3, 8, 3)[:, 2:6, :, 2:6].mean(axis=(1, 3)).reshape(9, 3)
        assert cells[last].max() > cells.max(axis=1).min() + 0.15


def test_held_out_questions_are_the_same_in_batches_of_any_size() -> None:
    few, many = SMALL.held_out_batches("test", 8), SMALL.held_out_batches("test", 30)
    assert (len(few), len(many)) == (4, 1)
    tokens = np.concatenate([batch["tokens"] for batch in few])
    np.testing.assert_array_equal(tokens[:30], many[0]["tokens"])
    assert few[3]["index"].tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    words = [question.words for question in SMALL.split_questions("test")]
    assert [SMALL.question_vocabulary.encode(each) for each in words] == [
        [t for t in row if t] for row in many[0]["tokens"].tolist()
    ]
    with pytest.raises(IndexError):
        few[4]
    # The image of a number has the same items, drawn anew.
    first, drawn = SMALL.test_image(0), many[0]["image"][0]
    assert np.abs(first / 127.5 - 1 - drawn).mean() < 0.15
    assert np.abs(first / 127.5 - 1 - many[0]["image"][1]).mean() > 0.1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scenes/min_items=1", "min_items=1 must be at least 2"),
        ("scenes/max_items=7", "max_items=7 items cannot all differ"),
        ("scenes/cell_pixels=2", "cell_pixels=2 must be at least 4"),
        ("scenes/test=0", "test=0 must be at least 1"),
        ("scenes/color=1", "unknown key scenes.color"),
        ("scene", "did you mean 'scenes'"),
        ("easy_vqa/test=1", "easy_vqa has no options"),
    ],
)
def test_unfit_sets_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_questions(name)


def test_a_image_that_no_question_has_is_refused() -> None:
    with pytest.raises(UserError, match="images 0 to 29"):
        SMALL.test_image(30)
