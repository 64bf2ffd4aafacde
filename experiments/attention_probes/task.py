"""Answer the questions of a probe corpus, and find the head that attends to the source of the answer."""

import dataclasses
import enum
import functools
import itertools
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from experiments.attention_probes.probe_corpus import Corpus, FrequencyBaselines, Words, baseline_accuracies
from experiments.attention_probes.sentence_corpora import Agreement, Coreference, CoreferenceFromClue
from experiments.attention_probes.symbol_corpora import Brackets, Motifs, Retrieval, Sorting, TwoOffsetCopy
from transformer.attention.capture import Capture
from transformer.attention.sites import Site, sites_between
from transformer.config import (
    BatchSize,
    Config,
    NumDisplayedExamples,
    NumExamples,
    UserError,
    from_config,
    suggest_nearest,
)
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, random_generator
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.example_splits import take_examples
from transformer.models.model import Aux
from transformer.models.task_interface import LANGUAGE_MODELING, MASKED_LANGUAGE_MODELING, InputSpec, TaskInterface
from transformer.tasks.attention_mass import attention_mass_sums, head_with_most_mass
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.base_task import (
    check_input_texts,
    describe_top_classes,
    make_capture_function,
    refuse_decoding_options,
)
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.losses import token_loss
from transformer.tasks.task import (
    Batch,
    EncodedInputs,
    Evaluation,
    EvaluationReport,
    InputReader,
    InputTexts,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)

CORPORA: Mapping[str, type] = {
    "coreference": Coreference,
    "coreference_from_clue": CoreferenceFromClue,
    "agreement": Agreement,
    "two_offset_copy": TwoOffsetCopy,
    "retrieval": Retrieval,
    "sorting": Sorting,
    "brackets": Brackets,
    "motifs": Motifs,
}


def open_corpus(dataset: str) -> Corpus:
    """Open the corpus of a name such as "brackets" or "brackets/num_kinds=2,max_depth=4".

    Raises:
        UserError: If the name or an option is unknown, or a value is out of range.
    """
    name, _, options = dataset.partition("/")
    if name not in CORPORA:
        raise UserError(f"config.task.dataset={dataset!r} is no corpus: {suggest_nearest(name, CORPORA)}")
    first = dataclasses.fields(CORPORA[name])[0]
    corpus: Corpus = from_config(CORPORA[name], parse_int_options(name, options, f"{first.name}={first.default}"), name)
    return corpus


PAD = 0
# The axes of maps of a text over itself.
ITSELF = ("tokens", "tokens")
# Texts whose answers are counted for the baselines that only count.
COUNTED = 4096


class Direction(enum.Enum):
    """Whether the model sees the words up to the question (causal) or all words (bidirectional)."""

    CAUSAL = "causal"
    BIDIRECTIONAL = "bidirectional"


@dataclasses.dataclass(frozen=True)
class AttentionProbesConfig(Config, path="config.task"):
    """Texts of a probe corpus, sampled anew at every step; one text in eight is held out.

    No text that is tested is a validation text.

    Causal models predict the word that follows each position, bidirectional ones the word at it.

    Attributes:
        dataset: The name of a corpus, with options such as "brackets/num_kinds=2,max_depth=4".
        direction: Whether the model is causal or bidirectional.
        batch_size: Texts in a batch.
        num_eval_examples: Held-out texts to evaluate.
        num_probe_examples: Held-out texts whose maps are stored; heads are classified on them, so there must be enough.

    Raises:
        UserError: If a value is out of range, the corpus needs `direction=bidirectional`, or it has too few texts.
    """

    dataset: str = "coreference"
    direction: Direction = Direction.CAUSAL
    batch_size: BatchSize = 64
    num_eval_examples: NumExamples = 512
    num_probe_examples: NumDisplayedExamples = 32

    def _check(self) -> None:
        if self.corpus.needs_future and self.direction is Direction.CAUSAL:
            raise UserError(
                f"config.task.dataset={self.dataset!r} needs the words after the question: set "
                "config.task.direction=bidirectional and a bidirectional model, such as config.model.family=encoder"
            )

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The corpus of `dataset`."""
        return open_corpus(self.dataset)


class AttentionProbes(GeneratedTask):
    """Probe corpora: implements transformer.tasks.task.Task."""

    denominator = "questions"
    further_inputs = ("lengths",)

    def __init__(self, config: AttentionProbesConfig, rows_multiple: int = 1):
        self.corpus = config.corpus
        count = -(-config.num_eval_examples // config.batch_size) * config.batch_size
        tested = sample_texts(config, random_generator(TEST_SEED, 0), count, "test")
        tested_texts = frozenset(map(" ".join, tested))
        self._held_out: dict[str, Sequence[Words]] = {
            "validation": sample_texts(config, random_generator(VALIDATION_SEED, 0), count, "validation", tested_texts),
            "test": tested,
        }
        self._probe_texts = sample_texts(
            config, random_generator(VALIDATION_SEED, 2), config.num_probe_examples, "validation", tested_texts
        )
        super().__init__(config, make_task_interface(config), "marks", rows_multiple)
        validation = {"validation": self._held_out["validation"]}
        self.evaluations += (
            self._head_evaluation("validation", validation),
            self._head_evaluation("test", self._held_out),
        )

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample texts, none of them held out."""
        return make_batch(self.corpus, sample_texts(self.config, random, self.config.batch_size, "train"))

    def draw_probe_examples(self) -> dict[str, np.ndarray]:
        """Return validation texts of their own."""
        return pad_texts(self.corpus, self._probe_texts)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of questions."""
        return {"questions": jnp.sum(jnp.asarray(batch["labels"]) != PAD).astype(jnp.float32)}

    def _sums(self, logits_BxTxV: Float[Array, "B T V"], batch: Batch) -> dict[str, Array]:
        labels_BxT = jnp.asarray(batch["labels"])
        sums = token_loss(logits_BxTxV, labels_BxT, labels_BxT != PAD, label_smoothing=0.0)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum -log p(answer) in nats and the correct answers."""
        logits_BxTxV, aux = self.apply_model(view, batch, key)
        return self._sums(logits_BxTxV, batch), aux

    @functools.cached_property
    def _frequency_baselines(self) -> FrequencyBaselines:
        return FrequencyBaselines.fit(
            self.corpus, sample_texts(self.config, random_generator(VALIDATION_SEED, 1), COUNTED, "train")
        )

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluation of loss, accuracy, accuracy of whole texts, and the accuracy of the baselines."""
        texts = self._held_out[split]

        def step(view: StateView, batch: Batch, key: Any) -> tuple[dict[str, Array], None]:
            logits_BxTxV, _ = self.apply_model(view, batch, None)
            labels_BxT = jnp.asarray(batch["labels"])
            right_BxT = (jnp.argmax(logits_BxTxV, axis=-1) == labels_BxT) | (labels_BxT == PAD)
            correct_texts = jnp.sum(jnp.all(right_BxT, axis=1)).astype(jnp.float32)
            return {**self._sums(logits_BxTxV, batch), "whole": correct_texts, **self.denominators(batch)}, None

        @functools.cache
        def baselines() -> dict[str, float]:
            return baseline_accuracies(self.corpus, self._frequency_baselines, texts)

        def finish(sums: Mapping[str, float], rows: object) -> EvaluationReport:
            baseline_scalars = {f"{name}_accuracy": share for name, share in baselines().items()}
            shares = {name: sums[name] / sums["questions"] for name in ("loss", "accuracy")}
            shares["text_accuracy"] = sums["whole"] / len(texts)
            note = f"{int(sums['questions'])} questions in {len(texts)} texts"
            return EvaluationReport({**shares, **baseline_scalars}, note=note)

        return (Evaluation("marks", split, self._eval_batches(texts), step, finish, at_end=split == "test"),)

    def _head_evaluation(self, split: str, texts: Mapping[str, Sequence[Words]]) -> Evaluation:
        """Return the evaluation of how often the largest weight of the best head falls on each source.

        The head is chosen on the first of the given splits and measured on the last: test figures are of heads that
        were chosen on validation texts.
        """
        names = list(self.corpus.attended_position_descriptions)
        first, *_, last = (*texts, *texts)

        def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, None]:
            sites = sites_between(view.model.sites, *ITSELF)
            capturing = view._replace(capture=Capture(tuple(site.name for site in sites)))
            maps: Mapping[str, Any] = self.apply_model(capturing, batch, None)[1].maps
            gold_BxSxQxK, number_B = jnp.asarray(batch["gold"]), jnp.asarray(batch["split"])
            sums: dict[str, Any] = {}
            for number, split_name in enumerate(texts):
                split_gold_BxSxQxK = gold_BxSxQxK & (number_B == number)[:, None, None, None]
                hits = {
                    name: attention_mass_sums(
                        {site: count_gold_hits(maps[site.name].weights, split_gold_BxSxQxK[:, at]) for site in sites}
                    )
                    for at, name in enumerate(names)
                }
                sums[split_name] = {"hits": hits, "questions": jnp.sum(jnp.any(split_gold_BxSxQxK[:, 0], axis=-1))}
            return sums, None

        def finish(sums: Mapping[str, Any], rows: object) -> EvaluationReport:
            scalars, notes = {}, []
            for name, words in self.corpus.attended_position_descriptions.items():
                hits, site, layer, head = head_with_most_mass(sums[first]["hits"][name], sums[last]["hits"][name])
                scalars[f"{name}_head_accuracy"] = hits / max(float(sums[last]["questions"]), 1)
                notes.append(f"layer {layer}, head {head} of {site} reads {words}")
            return EvaluationReport(scalars, note="; ".join(notes) + f" (chosen on {first} texts)")

        batches = [
            {**batch, "split": np.full(self.config.batch_size, number, np.int32)}
            for number, split_name in enumerate(texts.values())
            for batch in self._eval_batches(split_name, gold=True)
        ]
        return Evaluation("heads", split, batches, step, finish, at_end=split == "test", required_axes=ITSELF)

    def _eval_batches(self, texts: Sequence[Words], *, gold: bool = False) -> list[dict[str, np.ndarray]]:
        rows = self.config.batch_size
        return [make_batch(self.corpus, texts[start : start + rows], gold=gold) for start in range(0, len(texts), rows)]

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the words, each text's answers as its title, and gold alignments to the sources."""
        return make_axis_labels(self.corpus, self._probe_texts, sites)

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Answer the questions of each text, with the probability of each answer.

        Raises:
            UserError: If a language or a decoding option is given, or a text is not of the corpus.
        """
        refuse_decoding_options(request, "answers at marked places")
        rows = [parse_text(self.corpus, text) for text in request.texts]
        inputs = pad_texts(self.corpus, rows)
        logits_BxTxV = np.asarray(view.model.apply(view.variables, inputs, train=False)[0])
        names = ("<pad>", *self.corpus.vocabulary)
        lines = []
        for words, logits_TxV in zip(rows, logits_BxTxV, strict=True):
            positions = [question.position for question in self.corpus.find_questions(words)]
            answers = describe_top_classes(logits_TxV[positions][:, : len(names)], names)
            lines.append(", ".join(f"{words[at]} = {word}" for at, word in zip(positions, answers, strict=True)))
        return Predictions(
            lines, make_axis_labels(self.corpus, rows, view.model.sites), make_capture_function(view, inputs)
        )


def count_gold_hits(
    weights_LxBxHxQxK: Float[Array, "L B H Q K"], gold_BxQxK: Bool[Array, "B Q K"]
) -> Float[Array, "L H"]:
    """Count, for each layer and head, the rows of the map whose largest weight is on a gold position.

    Args:
        weights_LxBxHxQxK: The attention weights.
        gold_BxQxK: The gold positions of each row; rows without any do not count.

    Returns:
        The counts.
    """
    keys = weights_LxBxHxQxK.shape[-1]
    largest = jnp.argmax(weights_LxBxHxQxK, axis=-1)[..., None] == jnp.arange(keys)
    return jnp.sum(largest & gold_BxQxK[None, :, None], axis=(1, 3, 4)).astype(jnp.float32)


def sample_texts(
    config: AttentionProbesConfig,
    random: np.random.Generator,
    count: int,
    split: str,
    excluded: Collection[str] = (),
) -> list[list[str]]:
    """Sample the texts of a split of a corpus; whether one is held out depends on its words alone.

    Args:
        config: The config.
        random: The generator.
        count: The number of texts.
        split: The split.
        excluded: Texts that are left out.

    Returns:
        The words of each text.

    Raises:
        UserError: If the corpus has too few texts.
    """

    def belongs(words: Words) -> bool:
        text = " ".join(words)
        return is_held_out(text) == (split != "train") and text not in excluded

    candidates = (config.corpus.sample(random) for _ in itertools.count())
    return take_examples(candidates, count, belongs, config.dataset, split)


def is_held_out(text: str) -> bool:
    """Return whether a text is kept for validation and test: one in eight, the same in all runs."""
    return zlib.crc32(text.encode()) % 8 == 0


def pad_texts(corpus: Corpus, texts: Sequence[Words]) -> dict[str, np.ndarray]:
    """Encode and pad texts.

    Args:
        corpus: The corpus, whose first word has the number 1.
        texts: The words of each text.

    Returns:
        `tokens` [B, T], 0 after the end of a text, and `lengths` [B].
    """
    token_ids = {word: number for number, word in enumerate(corpus.vocabulary, PAD + 1)}
    tokens = np.full((len(texts), corpus.max_length), PAD, np.int32)
    for row, words in enumerate(texts):
        tokens[row, : len(words)] = [token_ids[word] for word in words]
    return {"tokens": tokens, "lengths": np.array([len(words) for words in texts], np.int32)}


def make_batch(corpus: Corpus, texts: Sequence[Words], *, gold: bool = False) -> dict[str, np.ndarray]:
    """Encode texts.

    Args:
        corpus: The corpus.
        texts: The texts.
        gold: Whether to add `gold`, the source masks [B, S, T, T].

    Returns:
        The padded texts with `labels` [B, T], the answers.
    """
    token_ids = {word: number for number, word in enumerate(corpus.vocabulary, PAD + 1)}
    batch = pad_texts(corpus, texts)
    labels, length = np.full_like(batch["tokens"], PAD), corpus.max_length
    num_descriptions = len(corpus.attended_position_descriptions)
    where = np.zeros((len(texts), num_descriptions, length, length) if gold else (0, 0, 0, 0), bool)
    for row, words in enumerate(texts):
        for question in corpus.find_questions(words):
            labels[row, question.position] = token_ids[question.answer]
            for source, positions in enumerate(question.attended_positions if gold else ()):
                where[row, source, question.position, list(positions)] = True
    return {**batch, "labels": labels, **({"gold": where} if gold else {})}


def make_axis_labels(corpus: Corpus, texts: Sequence[Words], sites: Sequence[Site]) -> AxisLabels:
    """Label the maps of some texts.

    Args:
        corpus: The corpus.
        texts: The words of each text.
        sites: The attention modules of the model.

    Returns:
        The words of the texts, their answers as titles, and gold alignments from each question to its sources.
    """
    questions = [corpus.find_questions(words) for words in texts]
    links = tuple(
        tuple(
            GoldAlignment(question.position, at, True)
            for question in text_questions
            for positions in question.attended_positions
            for at in positions
        )
        for text_questions in questions
    )
    titles = tuple(
        f"{' '.join(question.answer for question in text_questions)}: {' '.join(words)}"[:60]
        for words, text_questions in zip(texts, questions, strict=True)
    )
    tokens = {"tokens": tuple(map(tuple, texts))}
    linked = " or ".join(corpus.attended_position_descriptions.values())
    return AxisLabels(
        tokens,
        titles,
        {site.name: links for site in sites_between(sites, *ITSELF)} or None,
        gold_key_description=linked,
    )


def parse_text(corpus: Corpus, text: str) -> list[str]:
    """Split a user's text into words of the corpus.

    Args:
        corpus: The corpus.
        text: The text, words separated by spaces.

    Returns:
        The words.

    Raises:
        UserError: If a word is unknown, the text is too long, or it has no question.
    """
    words = text.split()
    unknown = [word for word in words if word not in corpus.vocabulary]
    example = " ".join(corpus.sample(np.random.default_rng(0)))
    if unknown:
        raise UserError(
            f"{text[:40]!r} has the word {unknown[0]!r}, which the corpus has not; a text of it is {example!r}"
        )
    if not corpus.find_questions(words):
        raise UserError(f"{text[:40]!r} asks nothing; a text of the corpus is {example!r}")
    if len(words) > corpus.max_length:
        raise UserError(f"{text[:40]!r} has {len(words)} words, more than the {corpus.max_length} of the longest text")
    return words


def make_task_interface(config: AttentionProbesConfig, preprocessor: object = None) -> TaskInterface:
    """Return the model interface: inputs, vocabulary and output."""
    asks = LANGUAGE_MODELING if config.direction is Direction.CAUSAL else MASKED_LANGUAGE_MODELING
    inputs = {name: InputSpec((config.batch_size, config.corpus.max_length)) for name in asks.inputs}
    return TaskInterface(inputs, {"tokens": len(config.corpus.vocabulary) + 1}, PAD, output=asks.output)


def encode_user_texts(
    config: AttentionProbesConfig, view: StateView, preprocessor: object, sentences: InputTexts
) -> EncodedInputs:
    """Read a user's texts of the corpus.

    Raises:
        UserError: If a text is not of the corpus, or a target or a language is given.
    """
    check_input_texts(sentences)
    rows = [parse_text(config.corpus, text) for text in sentences.texts]
    return EncodedInputs(
        pad_texts(config.corpus, rows), "forward", make_axis_labels(config.corpus, rows, view.model.sites)
    )


TASK = TaskSpec(
    AttentionProbesConfig,
    AttentionProbes,
    input_reader=InputReader(make_task_interface, encode_user_texts, lambda directory: None),
)
