"""Visual question answering: classify the answer, with gold alignments to the relevant cells."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from experiments.visual_question_answering.data import Question, QuestionSet, QuestionVocabulary, tokenize_question
from experiments.visual_question_answering.easy_vqa_data import make_placeholder_questions, open_easy_vqa
from experiments.visual_question_answering.metrics import (
    AXES,
    attention_report,
    attention_sums,
    cell_positions,
    question_report,
)
from experiments.visual_question_answering.signature import VISUAL_QUESTION_ANSWERING
from experiments.visual_question_answering.synthetic_scenes import parse_scene_questions
from transformer.attention.sites import Site, sites_between
from transformer.config import BatchSize, Config, NumDisplayedExamples, UserError, suggest_nearest
from transformer.data.batches import BatchSource
from transformer.data.images import unscale_pixels
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import (
    BaseTask,
    check_batch_size,
    describe_top_classes,
    make_capture_function,
    real_rows,
    refuse_decoding_options,
)
from transformer.tasks.losses import class_loss
from transformer.tasks.task import (
    Batch,
    Evaluation,
    LossAux,
    Objective,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)

KNOWN = ("scenes", "easy_vqa")


def open_questions(name: str, *, data_dir: str | None = None) -> QuestionSet:
    """Open a question set.

    Args:
        name: "scenes" or "scenes/min_items=4,test=500", synthetic
            (experiments.visual_question_answering.synthetic_scenes), or "easy_vqa"
            (experiments.visual_question_answering.easy_vqa_data).
        data_dir: The folder of easy-VQA's files.

    Returns:
        The question set.

    Raises:
        UserError: If the name is unknown, or files are missing or invalid.
    """
    check_question_set_name(name)
    kind, _, options = name.partition("/")
    return parse_scene_questions(options) if kind == "scenes" else open_easy_vqa(data_dir)


def check_question_set_name(name: str) -> None:
    """Check the name of a question set.

    Raises:
        UserError: If the set is unknown, or easy_vqa is given options.
    """
    kind, _, options = name.partition("/")
    if kind not in KNOWN:
        raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, KNOWN)}")
    if options and kind == "easy_vqa":
        raise UserError(f"config.task.dataset={name!r}: easy_vqa has no options")


# What launch.generate is asked: the number of an image of the test split, and a question about it.
_IMAGE_AND_QUESTION = re.compile(r"\s*(?:(\d{1,9})\s*:)?(.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class VisualQuestionAnsweringConfig(Config, path="config.task"):
    """Questions about images.

    Attributes:
        dataset: "scenes" (synthetic colored shapes in three by three cells, with options as in
            "scenes/min_items=4,test=500"), or "easy_vqa".
        data_dir: The folder of easy-VQA's files.
        batch_size: Questions in a batch.
        num_probe_examples: Validation questions whose maps are stored.

    Raises:
        UserError: If the set is unknown.
    """

    dataset: str = "scenes"
    data_dir: str | None = None
    batch_size: BatchSize = 128
    num_probe_examples: NumDisplayedExamples = 6

    def _check(self) -> None:
        check_question_set_name(self.dataset)


class VisualQuestionAnswering(BaseTask):
    """Visual question answering: implements transformer.tasks.task.Task."""

    def __init__(self, config: VisualQuestionAnsweringConfig, questions: QuestionSet, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config, self.questions, self.question_vocabulary = config, questions, questions.question_vocabulary
        rows, question_vocabulary = config.batch_size, self.question_vocabulary
        inputs = {
            "image": InputSpec(
                (rows, question_vocabulary.image_size, question_vocabulary.image_size, 3), jnp.float32, Modality.IMAGE
            ),
            "tokens": InputSpec((rows, question_vocabulary.max_question_length)),
            "lengths": InputSpec((rows,)),
        }
        vocabularies = {"tokens": question_vocabulary.vocab_size, "classes": len(question_vocabulary.answers)}
        self.interface = TaskInterface(
            inputs,
            vocabularies,
            pad_id=0,
            output=VISUAL_QUESTION_ANSWERING.output,
            class_names=question_vocabulary.answers,
        )
        self.objectives = (Objective("answering", self._loss),)
        splits = {split: questions.held_out_batches(split, rows) for split in ("validation", "test")}
        self.evaluations = tuple(
            evaluation for split, batches in splits.items() for evaluation in self._evaluations(split, batches)
        )
        first = splits["validation"][0]
        count = min(config.num_probe_examples, int(np.sum(first["index"] >= 0)))
        self._probe_examples = {name: values[:count] for name, values in first.items()}
        self.probe_batch = {name: self._probe_examples[name] for name in inputs}

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line that describes the question set."""
        return (self.questions.description,)

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of every split that was read."""
        return self.questions.fingerprint()

    def training_batches(self, seed: int) -> BatchSource:
        """Return the training questions in the order of a seed."""
        return self.questions.training_batches(self.config.batch_size, seed)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of questions, without rows that only fill a batch."""
        return {"examples": jnp.sum(real_rows(batch)).astype(jnp.float32)}

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean over questions of -log p(answer), in nats."""
        inputs = {name: jnp.asarray(batch[name]) for name in VISUAL_QUESTION_ANSWERING.inputs}
        logits_BxC, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        sums = class_loss(logits_BxC, jnp.asarray(batch["labels"]), real_rows(batch))
        metrics = {
            "loss": sums.cross_entropy / denominators["examples"],
            "accuracy": sums.correct / denominators["examples"],
        }
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)

    def _evaluations(self, split: str, batches: Sequence[Batch]) -> tuple[Evaluation, ...]:
        """Return the evaluations of right answers by kind and, if cells are known, of the attention mass on them."""
        at_end = split == "test"

        def finish(sums: Mapping[str, Any], rows: object) -> Any:
            question_splits = (
                (self.questions.split_questions("train"), self.questions.split_questions(split)) if at_end else None
            )
            return question_report(self.question_vocabulary, sums, question_splits)

        evaluations = [Evaluation("answers", split, batches, self._sums, finish, at_end)]
        if self.question_vocabulary.cells_per_side:
            evaluations.append(
                Evaluation("looks", split, batches, self._looks, attention_report, at_end, required_axes=AXES)
            )
        return tuple(evaluations)

    def _sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum the loss, and count the questions and the right answers of each kind."""
        inputs = {name: jnp.asarray(batch[name]) for name in VISUAL_QUESTION_ANSWERING.inputs}
        logits_BxC, _ = view.model.apply(view.variables, inputs, train=False)
        labels_B, real_B = jnp.asarray(batch["labels"]), real_rows(batch)
        nats = class_loss(logits_BxC, labels_B, real_B).cross_entropy
        has_kind_BxK = jax.nn.one_hot(batch["kinds"], len(self.question_vocabulary.kinds)) * real_B[:, None]
        right_B = (jnp.argmax(logits_BxC, axis=-1) == labels_B).astype(jnp.float32)
        count_K, right_K = jnp.sum(has_kind_BxK, axis=0), right_B @ has_kind_BxK
        return {"loss": nats, "num_questions": count_K, "right": right_K}, None

    def _looks(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Any], None]:
        return attention_sums(view, batch, self.question_vocabulary), None

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the probe with images, questions, answers and the relevant cells."""
        probe = self._probe_examples
        questions = [
            " ".join(self.question_vocabulary.words[token - 1] for token in tokens[:length])
            for tokens, length in zip(probe["tokens"], probe["lengths"], strict=True)
        ]
        answers = [self.question_vocabulary.answers[label] for label in probe["labels"]]
        titles = [f"{question} {answer}" for question, answer in zip(questions, answers, strict=True)]
        return make_axis_labels(self.question_vocabulary, sites, probe["image"], titles, probe["cells"])

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Return the most probable answer to each question, with its probability.

        A text is a question, after the number of an image of the test split: "3: where is the star ?". Without a number
        it is about the first image.

        Raises:
            UserError: If a language or a decoding option is given, there is no such image, or a word is unknown.
        """
        refuse_decoding_options(request, "answers questions about images")
        requests = []
        for text in request.texts:
            number, question = _IMAGE_AND_QUESTION.fullmatch(text).groups()  # type: ignore[union-attr]
            requests.append((self.questions.test_image(int(number or 0)), tokenize_question(question)))
        unknown = [
            Question(words, self.question_vocabulary.answers[0], self.question_vocabulary.kinds[0])
            for _, words in requests
        ]
        batch = self.question_vocabulary.make_batch(unknown, np.stack([image for image, _ in requests]))
        inputs = {name: jnp.asarray(batch[name]) for name in VISUAL_QUESTION_ANSWERING.inputs}
        logits_BxC, _ = view.model.apply(view.variables, inputs, train=False)
        lines = describe_top_classes(logits_BxC, self.question_vocabulary.answers)
        titles = [f"{' '.join(words)} {line}" for (_, words), line in zip(requests, lines, strict=True)]
        labels = make_axis_labels(self.question_vocabulary, view.model.sites, batch["image"], titles, None)
        return Predictions(lines, labels, make_capture_function(view, inputs))


def make_axis_labels(
    question_vocabulary: QuestionVocabulary,
    sites: Sequence[Site],
    image_BxYxXx3: Float[np.ndarray, "B Y X 3"],
    titles: Sequence[str],
    cells_Bx2: Int[np.ndarray, "B 2"] | None,
) -> AxisLabels:
    """Label maps with images, and the positions that lie in the relevant cells.

    The last cell is a sure link of the answer; those that lead there are possible ones.

    Args:
        question_vocabulary: The vocabulary.
        sites: The attention modules.
        image_BxYxXx3: The images.
        titles: The title of each example.
        cells_Bx2: The first and last relevant cell; None if unknown.

    Returns:
        The labels.
    """
    looking = sites_between(sites, *AXES)
    links = {}
    if cells_Bx2 is not None and question_vocabulary.cells_per_side:
        links = {
            site.name: tuple(
                _gold_alignments(cell_positions(site.key, question_vocabulary), cells) for cells in cells_Bx2
            )
            for site in looking
        }
    images = {"grid": unscale_pixels(np.asarray(image_BxYxXx3))} if looking else {}
    return AxisLabels({}, tuple(titles), links or None, images=images)


def _gold_alignments(places_CxK: Bool[np.ndarray, "C K"], cells: Int[np.ndarray, "2"]) -> tuple[GoldAlignment, ...]:
    first, last = map(int, cells)
    return tuple(
        GoldAlignment(0, int(place), cell == last)
        for cell in dict.fromkeys((last, first))
        if cell >= 0
        for place in np.flatnonzero(places_CxK[cell])
    )


def build_task(
    config: VisualQuestionAnsweringConfig, directory: Path, rows_multiple: int = 1
) -> VisualQuestionAnswering:
    """Build the task over its questions; batches have a multiple of `rows_multiple` (devices x microbatches) rows."""
    return VisualQuestionAnswering(config, open_questions(config.dataset, data_dir=config.data_dir), rows_multiple)


def build_synthetic_task(config: VisualQuestionAnsweringConfig, rows_multiple: int = 1) -> VisualQuestionAnswering:
    """Build the task without files: synthetic scenes as they are, or one placeholder question for easy-VQA."""
    questions = make_placeholder_questions() if config.dataset == "easy_vqa" else open_questions(config.dataset)
    return VisualQuestionAnswering(config, questions, rows_multiple)


TASK = TaskSpec(VisualQuestionAnsweringConfig, build_synthetic_task, build_task)
