"""In-context learning by next-token prediction: word translation, string edits, and author style."""

import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, assert_never

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from experiments.in_context_learning import data as episodes
from experiments.in_context_learning.data import (
    ARROW,
    AUTHORS,
    CHARACTERS,
    STOP,
    Episode,
    StringEdits,
    WordTranslation,
    classify_author,
    format_pairs,
    parse_prompt,
    sample_text,
    shots_by_character,
)
from experiments.in_context_learning.fine_tuning_evaluation import count_correct_after_fine_tuning, make_pair_rows
from transformer.attention.sites import Site, sites_between
from transformer.config import (
    BatchSize,
    Config,
    NonNegativeInt,
    NumDisplayedExamples,
    NumExamples,
    NumExamplesOrZero,
    PositiveFloat,
    PositiveInt,
    Range,
    TupleLimits,
    UserError,
)
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, random_generator
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.train_tokenizer import character_tokenizer
from transformer.models.model import Aux
from transformer.models.task_interface import LANGUAGE_MODELING, InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.losses import TokenLoss, token_loss
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)
from transformer.tasks.text_data import (
    TokenizerKind,
    label_repeated_sequences,
    load_or_train_tokenizer,
    make_repeated_sequences,
    pad_texts,
    token_axis_labels,
)
from transformer.tasks.text_generation import generate_continuations, predict_continuations
from transformer.tasks.text_task_base import CONTINUATION_READER, real_positions


class Problem(enum.Enum):
    """What is learned from a prompt.

    word_translation: a language that maps letters to letters, from translated words. string_edits: a composition of one
    or two edits of words. style: which of two authors writes.
    """

    WORD_TRANSLATION = "word_translation"
    STRING_EDITS = "string_edits"
    STYLE = "style"


# The evaluated rules by name, and whether they are held out.
_RULES = (("unseen", True), ("seen", False))
_PAIR_PROBLEMS = (Problem.WORD_TRANSLATION, Problem.STRING_EDITS)
# The problems of which a field of the config says something; all where it is absent.
_PROBLEMS_BY_FIELD = {
    **dict.fromkeys(
        (
            "alphabet_size",
            "min_word_length",
            "max_word_length",
            "shots",
            "fine_tuning_steps",
            "fine_tuning_learning_rate",
        ),
        _PAIR_PROBLEMS,
    ),
    "num_letters": (Problem.WORD_TRANSLATION,),
    **dict.fromkeys(("text_length", "prompt_length"), (Problem.STYLE,)),
}


Letters = Annotated[int, Range(1, 2**6)]
"""A number of letters of a word: there are so many words as a power by it says."""


@dataclasses.dataclass(frozen=True)
class InContextLearningConfig(Config, path="config.task"):
    """In-context learning from episodes that are sampled anew at every step.

    Episodes of translation and edits have one pair more than the largest number of `shots`. In addition to held-out
    episodes, the maps of repeated random tokens are stored, which show induction heads.

    Attributes:
        problem: What is learned.
        alphabet_size: For translation and edits, the letters of the alphabet.
        num_letters: For translation, the letters that a language maps.
        min_word_length: For translation and edits, the fewest letters of a word.
        max_word_length: For translation and edits, the most letters of a word.
        shots: For translation and edits, the numbers of pairs after which answers are evaluated.
        fine_tuning_steps: For translation and edits, the updates by which a copy of the trained model is fine-tuned on
            the pairs of each held-out episode, to compare with reading them; 0 leaves this evaluation out.
        fine_tuning_learning_rate: For translation and edits, Adam's learning rate in it.
        text_length: For style, the characters of a text.
        prompt_length: For style, the first characters, which are the prompt.
        batch_size: Episodes in a batch.
        num_eval_examples: Held-out episodes to evaluate.
        num_probe_examples: Held-out episodes whose maps are stored.
        num_repeated_sequences: Sequences of repeated random tokens whose maps are stored.

    Raises:
        UserError: If a value is out of range, or a field that the problem does not use is not its default.
    """

    problem: Problem = Problem.WORD_TRANSLATION
    alphabet_size: int = 26
    num_letters: int = 6
    min_word_length: int = 3
    max_word_length: Letters = 3
    shots: Annotated[tuple[NonNegativeInt, ...], TupleLimits(min_length=1, distinct=True)] = (0, 1, 2, 4, 8)
    fine_tuning_steps: NonNegativeInt = 0
    fine_tuning_learning_rate: PositiveFloat = 1e-3
    text_length: int = 96
    prompt_length: PositiveInt = 48
    batch_size: BatchSize = 32
    num_eval_examples: NumExamples = 512
    num_probe_examples: NumDisplayedExamples = 2
    num_repeated_sequences: NumExamplesOrZero = 1

    def _check(self) -> None:
        for field in dataclasses.fields(self):
            value, problems = getattr(self, field.name), _PROBLEMS_BY_FIELD.get(field.name, tuple(Problem))
            if self.problem not in problems and value != field.default:
                raise UserError(
                    f"config.task.{field.name}={value} says nothing of problem={self.problem.value}: leave it out, or "
                    f"say problem={' or '.join(problem.value for problem in problems)}"
                )
        if self.prompt_length >= self.text_length:
            raise UserError(
                f"config.task.prompt_length={self.prompt_length} must be less than text_length={self.text_length}"
            )
        match self.problem:
            case Problem.WORD_TRANSLATION:
                sizes, words = (self.alphabet_size, self.num_letters), 2 * self.num_pairs
            case Problem.STRING_EDITS:
                # One word in so many is held out; two edits take away at most two letters.
                sizes, words = (self.alphabet_size, self.alphabet_size), 4 * episodes.HELD_OUT * self.num_pairs
            case Problem.STYLE:
                return
            case _:
                assert_never(self.problem)
        min_length = 3 if self.problem is Problem.STRING_EDITS else 2
        episodes.check_word_sizes(
            *sizes, self.min_word_length, self.max_word_length, min_length=min_length, words=words
        )
        if self.problem is Problem.WORD_TRANSLATION:
            episodes.check_translation_sizes(*sizes)

    @property
    def num_pairs(self) -> int:
        """The number of pairs of an episode."""
        return max(self.shots) + 1

    @property
    def episode_distribution(self) -> episodes.EpisodeDistribution | None:
        """The distribution over rules; None for style."""
        match self.problem:
            case Problem.WORD_TRANSLATION:
                return WordTranslation(self.alphabet_size, self.num_letters, self.min_word_length, self.max_word_length)
            case Problem.STRING_EDITS:
                return StringEdits(self.alphabet_size, self.min_word_length, self.max_word_length)
            case Problem.STYLE:
                return None
            case _:
                assert_never(self.problem)

    @property
    def alphabet(self) -> str:
        """Every character of episodes."""
        return CHARACTERS if self.episode_distribution is None else self.episode_distribution.alphabet + ARROW + STOP

    @property
    def context_length(self) -> int:
        """The length of a row, that of the longest episode."""
        return (
            self.text_length
            if self.episode_distribution is None
            else self.num_pairs * self.episode_distribution.max_pair_length
        )


class EpisodeRow(NamedTuple):
    """An episode as text.

    Attributes:
        text: The characters.
        shots: The number of pairs before each character of an answer; -1 elsewhere.
        rule_name: The name of the rule, or the author.
        episode: The pairs; None for style.
    """

    text: str
    shots: list[int]
    rule_name: str
    episode: Episode | None = None


class InContextLearning(GeneratedTask):
    """In-context learning: implements transformer.tasks.task.Task."""

    denominator = "tokens"
    further_inputs = ("lengths",)

    def __init__(self, config: InContextLearningConfig, tokenizer: Tokenizer, rows_multiple: int = 1):
        self.tokenizer = tokenizer
        self._repeats = make_repeated_sequences(
            tokenizer, config.num_repeated_sequences, min(config.context_length, 2 * tokenizer.vocab_size)
        )
        # Spelled as in the recorded runs: the name of an objective also chooses what it draws (`derive_key`).
        super().__init__(
            config,
            make_task_interface(config, tokenizer),
            "language_modeling",
            rows_multiple,
            key_name="language_modelling",
        )
        if config.episode_distribution is not None and config.fine_tuning_steps:
            self.evaluations += tuple(
                self._fine_tuning_evaluation(split, (seed, unseen), name, config.episode_distribution)
                for split, seed in (("validation", VALIDATION_SEED), ("test", TEST_SEED))
                for name, unseen in _RULES
            )

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of answers after each number of pairs, or of style."""
        rules = self.config.episode_distribution
        if rules is None:
            return (self._style_evaluation(split, seed),)
        return tuple(self._few_shot_evaluation(split, (seed, unseen), name, rules) for name, unseen in _RULES)

    def draw_probe_examples(self) -> dict[str, np.ndarray]:
        """Draw held-out episodes, followed by repeated random tokens."""
        texts = self.tokenizer.encode([row.text[:-1] for row in self._probe_rows])
        return pad_texts([*texts, *self._repeats.tokens.tolist()], self.tokenizer)

    @functools.cached_property
    def _probe_rows(self) -> list[EpisodeRow]:
        """The episodes whose maps are stored."""
        return self._sample_rows(random_generator(VALIDATION_SEED, 2**32), self.config.num_probe_examples, unseen=True)

    def _sample_rows(self, random: np.random.Generator, count: int, *, unseen: bool) -> list[EpisodeRow]:
        """Sample episodes; texts of authors never repeat, so none is held out."""
        config, rules = self.config, self.config.episode_distribution
        if rules is None:
            names = [list(AUTHORS)[number] for number in random.integers(0, len(AUTHORS), count)]
            texts = [sample_text(AUTHORS[name], random, config.text_length) for name in names]
            return [EpisodeRow(text, [-1] * len(text), name) for text, name in zip(texts, names, strict=True)]
        sampled = [rules.sample(random, config.num_pairs, unseen=unseen) for _ in range(count)]
        return [
            EpisodeRow(format_pairs(episode.pairs), shots_by_character(episode.pairs), episode.rule_name, episode)
            for episode in sampled
        ]

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample episodes, none of them held out."""
        return self._batch(self._sample_rows(random, self.config.batch_size, unseen=False))

    def _batch(self, episode_rows: Sequence[EpisodeRow]) -> dict[str, np.ndarray]:
        """Return rows of one width: tokens, next tokens, and the number of pairs before an answer's token."""
        shape = len(episode_rows), self.config.context_length
        tokens, labels, shots = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
        encoded = self.tokenizer.encode([episode_row.text for episode_row in episode_rows])
        for row, (numbers, episode_row) in enumerate(zip(encoded, episode_rows, strict=True)):
            tokens[row, : len(numbers) - 1], labels[row, : len(numbers) - 1] = numbers[:-1], numbers[1:]
            shots[row, : len(numbers) - 1] = episode_row.shots[1:]
        lengths = np.array([len(numbers) - 1 for numbers in encoded], np.int32)
        return {"tokens": tokens, "lengths": lengths, "labels": labels, "shots": shots}

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of predicted tokens."""
        return {"tokens": jnp.sum(jnp.asarray(batch["lengths"])).astype(jnp.float32)}

    def _sums(self, logits_BxTxV: Float[Array, "B T V"], batch: Batch) -> TokenLoss:
        return token_loss(logits_BxTxV, jnp.asarray(batch["labels"]), real_positions(batch), label_smoothing=0.0)

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum -log p(next token) and the correct tokens over all tokens of the episodes, also unpredictable ones."""
        logits_BxTxV, aux = self.apply_model(view, batch, key)
        sums = self._sums(logits_BxTxV, batch)
        return {"loss": sums.cross_entropy, "accuracy": sums.correct}, aux

    def _held_out_batches(self, seed: Sequence[int], *, unseen: bool) -> list[list[EpisodeRow]]:
        """Return batches of at least `num_eval_examples` episodes."""
        batches = range(-(-self.config.num_eval_examples // self.config.batch_size))
        return [
            self._sample_rows(random_generator(*seed, number), self.config.batch_size, unseen=unseen)
            for number in batches
        ]

    def _few_shot_evaluation(
        self, split: str, seed: tuple[int, bool], name: str, rules: episodes.EpisodeDistribution
    ) -> Evaluation:
        """Return the evaluation of how often greedy decoding gives a whole answer after each number of pairs.

        One pass over an episode evaluates them all: the answer after k pairs is right if each of its tokens is the most
        probable given those before it.
        """
        row_batches, shots = self._held_out_batches(seed, unseen=seed[1]), self.config.shots

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            logits_BxTxV, _ = self.apply_model(view, batch, None)
            return {
                "loss": self._sums(logits_BxTxV, batch).cross_entropy,
                "right": count_correct_answers(logits_BxTxV, batch, shots),
                "examples": jnp.float32(len(batch["tokens"])),
                **self.denominators(batch),
            }, None

        @functools.cache
        def bayes_optimal_accuracies() -> list[float]:
            held_out_episodes = [
                episode_row.episode
                for batch_rows in row_batches
                for episode_row in batch_rows
                if episode_row.episode is not None
            ]
            return [
                float(np.mean([rules.bayes_optimal_accuracy(episode, num_shots) for episode in held_out_episodes]))
                for num_shots in shots
            ]

        def finish(sums: Mapping[str, Any], rows: object) -> EvaluationReport:
            right = np.asarray(sums["right"]) / float(sums["examples"])
            scalars = {f"{name}_loss": float(sums["loss"]) / float(sums["tokens"])}
            scalars |= {
                f"{name}_accuracy_{num_shots}": float(share) for num_shots, share in zip(shots, right, strict=True)
            }
            scalars |= {
                f"{name}_bayes_optimal_accuracy_{num_shots}": share
                for num_shots, share in zip(shots, bayes_optimal_accuracies(), strict=True)
            }
            return EvaluationReport(scalars, note=f"{int(sums['examples'])} episodes with {name} rules")

        batches = [self._batch(batch_rows) for batch_rows in row_batches]
        return Evaluation(name, split, batches, step, finish, at_end=split == "test")

    def _fine_tuning_evaluation(
        self, split: str, seed: tuple[int, bool], name: str, rules: episodes.EpisodeDistribution
    ) -> Evaluation:
        """Return the evaluation of how often an answer is right after fine-tuning on the pairs before it."""
        config = self.config

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
            rows = {field: jnp.asarray(field_values) for field, field_values in batch.items()}
            right = count_correct_after_fine_tuning(
                view.model,
                view.variables,
                rows,
                config.shots,
                steps=config.fine_tuning_steps,
                learning_rate=config.fine_tuning_learning_rate,
            )
            return {"right": right, "examples": jnp.float32(len(batch["tokens"]))}, None

        def finish(sums: Mapping[str, Any], rows: object) -> EvaluationReport:
            shares = np.asarray(sums["right"]) / float(sums["examples"])
            return EvaluationReport(
                {
                    f"{name}_fine_tuned_accuracy_{num_shots}": float(share)
                    for num_shots, share in zip(config.shots, shares, strict=True)
                },
                note=f"{int(sums['examples'])} episodes with {name} rules, {config.fine_tuning_steps} updates each",
            )

        batches = [
            make_pair_rows(
                self.tokenizer,
                [episode_row.episode for episode_row in part if episode_row.episode is not None],
                rules.max_pair_length,
            )
            for part in self._held_out_batches(seed, unseen=seed[1])
        ]
        return Evaluation(f"{name}_fine_tuned", split, batches, step, finish, at_end=True)

    def _style_evaluation(self, split: str, seed: int) -> Evaluation:
        """Return the evaluation of how often a text sampled after a prompt is classified as its author's."""
        config, row_batches = self.config, self._held_out_batches((seed,), unseen=True)
        decoding = DecodingConfig(max_new_tokens=config.text_length - config.prompt_length, temperature=1.0)
        all_rows = [episode_row for part in row_batches for episode_row in part]

        def prompts(part: Sequence[EpisodeRow]) -> dict[str, np.ndarray]:
            return pad_texts(
                self.tokenizer.encode([episode_row.text[: config.prompt_length] for episode_row in part]),
                self.tokenizer,
            )

        def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict]:
            return {}, {"tokens": generate_continuations(view, self.tokenizer, batch, decoding).tokens[:, 0]}

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            continuations = [self.tokenizer.decode(row) for row in rows["tokens"].tolist()]
            cut = [
                (episode_row.text[: config.prompt_length], episode_row.text[config.prompt_length :])
                for episode_row in all_rows
            ]
            names = [episode_row.rule_name for episode_row in all_rows]
            named_continuations = zip(cut, continuations, names, strict=True)
            follows = [classify_author(prompt, text) == name for (prompt, _), text, name in named_continuations]
            own = [classify_author(prompt, text) == name for (prompt, text), name in zip(cut, names, strict=True)]
            samples = [
                {"prompt": prompt, "output": text} for (prompt, _), text in zip(cut[:4], continuations, strict=False)
            ]
            scalars = {"style_accuracy": float(np.mean(follows)), "style_accuracy_of_authors": float(np.mean(own))}
            return EvaluationReport(
                scalars, samples, note=f"{len(all_rows)} prompts of {config.prompt_length} characters"
            )

        return Evaluation("style", split, [prompts(part) for part in row_batches], step, finish, at_end=split == "test")

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the characters; each episode has its rule as title.

        For word translation, gold alignments link each predicted letter with the positions where its translation is
        shown.
        """
        rows = [
            list(row[:length])
            for row, length in zip(self.probe_batch["tokens"], self.probe_batch["lengths"], strict=True)
        ]
        labels = token_axis_labels(self.tokenizer, rows)
        num_episodes = len(self._probe_rows)
        titles = (*(episode_row.rule_name for episode_row in self._probe_rows), *labels.titles[num_episodes:])
        labels = label_repeated_sequences(dataclasses.replace(labels, titles=titles), self._repeats)
        if self.config.problem is not Problem.WORD_TRANSLATION:
            return labels
        links = (
            *(_gold_alignments(episode_row.episode) for episode_row in self._probe_rows if episode_row.episode),
            *((),) * (len(rows) - num_episodes),
        )
        return dataclasses.replace(
            labels, gold_alignments={site.name: links for site in sites_between(sites, "tokens", "tokens")}
        )

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Continue the prompts: with the answer to the last word, or with a text in the author's style.

        Raises:
            UserError: If a language is given, a character is in no episode, or a prompt is too long.
        """
        rules = self.config.episode_distribution
        if rules is None:
            return predict_continuations(view, self.tokenizer, request, request.texts)
        own = {"max_new_tokens": rules.max_pair_length // 2, "stop_sequences": (STOP,)}
        return predict_continuations(
            view, self.tokenizer, request, [parse_prompt(text) for text in request.texts], **own
        )


def count_correct_answers(
    logits_BxTxV: Float[Array, "B T V"], batch: Batch, shots: Sequence[int]
) -> Float[Array, " S"]:
    """Count the rows whose answer has no wrong token.

    Args:
        logits_BxTxV: The logits.
        batch: The batch, whose `shots` [B, T] are the number of pairs before the answer that a position belongs to.
        shots: The numbers of pairs S for which to count.

    Returns:
        The counts.
    """
    wrong_BxT = jnp.argmax(logits_BxTxV, axis=-1) != jnp.asarray(batch["labels"])
    asked_BxTxS = jnp.asarray(batch["shots"])[..., None] == jnp.asarray(shots)
    return jnp.sum(~jnp.any(asked_BxTxS & wrong_BxT[..., None], axis=1), axis=0).astype(jnp.float32)


def _gold_alignments(episode: Episode) -> tuple[GoldAlignment, ...]:
    """Link the position that predicts an answer's letter with those that already show that letter's translation."""
    positions_by_letter: dict[str, list[int]] = {}
    links, start = [], 0
    for source, target in episode.pairs:
        first = start + len(source) + 1  # of the answer
        for place, letter in enumerate(source):
            places = positions_by_letter.setdefault(letter, [])
            links += [GoldAlignment(first + place - 1, key, len(places) == 1) for key in places if key < first + place]
            places.append(first + place)
        start = first + len(target) + 1
    return tuple(links)


def make_task_interface(config: InContextLearningConfig, tokenizer: Tokenizer) -> TaskInterface:
    """Return the model interface."""
    inputs = {name: InputSpec((config.batch_size, config.context_length)) for name in LANGUAGE_MODELING.inputs}
    return TaskInterface(
        inputs,
        {"tokens": tokenizer.vocab_size},
        output=LANGUAGE_MODELING.output,
        max_decoded_length=config.context_length,
    )


def build_task(config: InContextLearningConfig, directory: Path, rows_multiple: int = 1) -> InContextLearning:
    """Build the task; the run directory stores its character tokenizer."""
    tokenizer = load_or_train_tokenizer(directory, TokenizerKind.CHARACTERS, 0, {"train": [config.alphabet]}, ())
    return InContextLearning(config, tokenizer, rows_multiple)


def build_synthetic_task(config: InContextLearningConfig, rows_multiple: int = 1) -> InContextLearning:
    """Build the task; its data are synthetic anyway."""
    return InContextLearning(config, character_tokenizer([config.alphabet]), rows_multiple)


TASK = TaskSpec(
    InContextLearningConfig,
    build_synthetic_task,
    build_task,
    dataclasses.replace(CONTINUATION_READER, make_task_interface=make_task_interface),
)
