"""Questions about synthetic scenes, whose answers follow from the list of items."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from jaxtyping import UInt8

from experiments.visual_question_answering.data import Question, QuestionVocabulary, tokenize_question
from transformer.config import Config, PositiveInt, Range, UserError, from_config
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, Batch, GeneratedBatches, random_generator
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.synthetic_scenes import SceneGenerator, SceneItem, render_scenes

Scene = tuple[SceneItem, ...]
# The neighboring cell that a relation leads to: so many rows down and columns to the right.
RELATIONS = {"right of": (0, 1), "left of": (0, -1), "below": (1, 0), "above": (-1, 0)}
ONE_HOP = ("color", "shape", "place")
RELATIONAL = ("neighbor_color", "neighbor_shape")
# By the last are drawn the questions of training of which it is counted what their words alone tell.
_SEEDS = {"validation": VALIDATION_SEED, "test": TEST_SEED, "train": 2**42}
# Cells a side: as many as have names.
_SIDE = 3
# Training questions about one scene, which take less time to render.
_QUESTIONS_PER_SCENE = 4
# So many questions of training say what their words alone tell.
_NUM_COUNTED_QUESTIONS = 10_000


@dataclasses.dataclass(frozen=True)
class SceneQuestions(Config, path="scenes"):
    """Questions about scenes of items in three by three cells.

    Items of a scene differ in shape and in color. Half of the questions are of a kind of `ONE_HOP`, such as "what color
    is the star ?", "what shape is red ?", "where is the red thing ?"; half lead from an item to the one in a
    neighboring cell: "what color is the thing right of the star ?", "what shape is below the red thing ?".

    Attributes:
        cell_pixels: The height and width of a cell in pixels.
        min_items: The fewest items of a scene.
        max_items: The most items of a scene.
        validation: Validation questions, each about its own scene.
        test: Test questions, each about its own scene.

    Raises:
        UserError: If a value is out of range, or no scene has so many items.
    """

    cell_pixels: Annotated[int, Range(4)] = 16
    min_items: Annotated[int, Range(2, note=": relations are of two items")] = 3
    max_items: int = 5
    validation: PositiveInt = 1000
    test: PositiveInt = 2000

    def _check(self) -> None:
        try:
            _ = self.scene_generator
        except ValueError as error:
            raise UserError(f"scenes: {error}") from None

    @property
    def scene_generator(self) -> SceneGenerator:
        """The generator of the scenes."""
        return SceneGenerator(_SIDE, self.cell_pixels, self.min_items, self.max_items, one_of_each=True)

    @property
    def question_vocabulary(self) -> QuestionVocabulary:
        """The vocabulary of the questions, in alphabetical order."""
        scene_generator = self.scene_generator
        places = tuple(scene_generator.place(cell) for cell in range(_SIDE**2))
        words = {
            *tokenize_question("what color shape where is the thing ?"),
            *scene_generator.colors,
            *scene_generator.shapes,
        }
        words |= {word for relation in RELATIONS for word in relation.split()}
        longest = len(tokenize_question("what color is the thing right of the red thing ?"))
        answers = (*scene_generator.colors, *scene_generator.shapes, *places)
        kinds = (*ONE_HOP, *RELATIONAL)
        return QuestionVocabulary(
            tuple(sorted(words)), answers, kinds, longest, scene_generator.image_size, _SIDE, RELATIONAL
        )

    @property
    def description(self) -> str:
        """A line that describes the questions."""
        return f"data scenes: drawn anew at every step; {self.validation:,} validation, {self.test:,} test questions"

    def training_batches(self, rows: int, seed: int) -> GeneratedBatches:
        """Return an endless source of questions about scenes that are sampled anew at every step."""
        question_vocabulary, scene_generator = self.question_vocabulary, self.scene_generator

        def draw(random: np.random.Generator) -> Batch:
            scenes = [self.sample_scene(random, _QUESTIONS_PER_SCENE) for _ in range(-(-rows // _QUESTIONS_PER_SCENE))]
            questions = [question for _, scene_questions in scenes for question in scene_questions]
            images = np.repeat(
                render_scenes(scene_generator, [items for items, _ in scenes], random), _QUESTIONS_PER_SCENE, axis=0
            )
            return question_vocabulary.make_batch(questions[:rows], images[:rows])

        return GeneratedBatches(draw, seed)

    def held_out_batches(self, split: str, rows: int) -> Sequence[Batch]:
        """Return the questions of a split, rendered on demand."""
        return _HeldOutBatches(self, split, rows)

    def split_questions(self, split: str) -> list[Question]:
        """Return the questions of a split without their images; for training, a sample of 10,000."""
        return [
            self.scene_and_question(split, number)[1]
            for number in range(_NUM_COUNTED_QUESTIONS if split == "train" else self.num_questions(split))
        ]

    def test_image(self, number: int) -> UInt8[np.ndarray, "size size 3"]:
        """Render the scene of a question of the test split.

        Raises:
            UserError: If there is no such question.
        """
        if not 0 <= number < self.test:
            raise UserError(f"image {number}: the test split has images 0 to {self.test - 1}")
        items, _ = self.scene_and_question("test", number)
        return render_scenes(self.scene_generator, [items], random_generator(_SEEDS["test"], 2, number))[0]

    def fingerprint(self) -> dict[str, str]:
        """Return nothing: no file is read."""
        return {}

    def num_questions(self, split: str) -> int:
        """Return the number of questions of a split."""
        return {"validation": self.validation, "test": self.test}[split]

    def scene_and_question(self, split: str, number: int) -> tuple[Scene, Question]:
        """Return a held-out question by its number, the same in batches of any size.

        Args:
            split: "validation" or "test".
            number: The number.

        Returns:
            The scene and the question.
        """
        items, (question,) = self.sample_scene(random_generator(_SEEDS[split], 0, number), 1)
        return items, question

    def sample_scene(self, random: np.random.Generator, count: int) -> tuple[Scene, list[Question]]:
        """Sample a scene in which some item has a neighbor, and questions about it.

        Args:
            random: The random generator.
            count: The number of questions.

        Returns:
            The scene and the questions, relational ones with probability 1/2, else one-hop ones.
        """
        scene_generator, by_kind = self.scene_generator, collections.defaultdict[str, list[Question]](list)
        while not all(name in by_kind for name in RELATIONAL):
            items = scene_generator.draw(random)
            by_kind.clear()
            for question in generate_questions(scene_generator, items):
                by_kind[question.kind].append(question)
        questions = []
        for _ in range(count):
            kinds = RELATIONAL if random.integers(2) else ONE_HOP
            among = by_kind[kinds[int(random.integers(len(kinds)))]]
            questions.append(among[int(random.integers(len(among)))])
        return items, questions


@dataclasses.dataclass(frozen=True)
class _HeldOutBatches(Sequence[Batch]):
    """The batches of a split."""

    questions: SceneQuestions
    split: str
    rows: int

    def __len__(self) -> int:
        return math.ceil(self.questions.num_questions(self.split) / self.rows)

    def __getitem__(self, number):
        if not 0 <= number < len(self):
            raise IndexError(number)
        first = number * self.rows
        last = min(first + self.rows, self.questions.num_questions(self.split))
        scenes = [self.questions.scene_and_question(self.split, index) for index in range(first, last)]
        random = random_generator(_SEEDS[self.split], 1, number)
        images = render_scenes(self.questions.scene_generator, [items for items, _ in scenes], random)
        return self.questions.question_vocabulary.make_batch([question for _, question in scenes], images, self.rows)


def generate_questions(scene_generator: SceneGenerator, items: Sequence[SceneItem]) -> Iterator[Question]:
    """Yield all questions about a scene that have one right answer: those that name an item unambiguously.

    Args:
        scene_generator: The generator of scenes, which names the places.
        items: The items of the scene.

    Yields:
        The questions.
    """
    at = {item.cell_index: item for item in items}
    for item in items:
        names = []
        if sum(neighbor.shape == item.shape for neighbor in items) == 1:
            names.append(item.shape)
            yield _make_question(f"what color is the {item.shape} ?", item.color, "color", item.cell_index)
        if sum(neighbor.color == item.color for neighbor in items) == 1:
            names.append(f"{item.color} thing")
            yield _make_question(f"what shape is {item.color} ?", item.shape, "shape", item.cell_index)
        for name, (relation, (down, right)) in itertools.product(names, RELATIONS.items()):
            row, column = (
                item.cell_index // scene_generator.grid_size + down,
                item.cell_index % scene_generator.grid_size + right,
            )
            if not (0 <= row < scene_generator.grid_size and 0 <= column < scene_generator.grid_size):
                continue
            if (neighbor := at.get(row * scene_generator.grid_size + column)) is not None:
                cells = (item.cell_index, neighbor.cell_index)
                where = f"{relation} the {name} ?"
                yield _make_question(f"what color is the thing {where}", neighbor.color, "neighbor_color", *cells)
                yield _make_question(f"what shape is {where}", neighbor.shape, "neighbor_shape", *cells)
        for name in names:
            yield _make_question(
                f"where is the {name} ?", scene_generator.place(item.cell_index), "place", item.cell_index
            )


def _make_question(text: str, answer: str, kind: str, *cells: int) -> Question:
    return Question(tuple(text.split()), answer, kind, cells)


def parse_scene_questions(options: str) -> SceneQuestions:
    """Build the questions of options such as "min_items=4,test=500".

    Raises:
        UserError: If an option is unknown, a value is no whole number, or sizes are impossible.
    """
    return from_config(SceneQuestions, parse_int_options("scenes", options, "min_items=4,test=500"), "scenes")
