"""Zero-, one- and few-shot evaluation of language models: cloze questions with ten candidates, and last words."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from transformer.config import UserError
from transformer.data.cloze_questions import NUM_CANDIDATES, ClozeQuestion, WordFrequencies, make_cloze_questions
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.tasks.losses import token_loss
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, StateView
from transformer.tasks.text_data import Documents

PASSAGE_SEPARATOR = "\n\n"
ZERO_SHOT = (0,)


@dataclasses.dataclass(frozen=True)
class ClozeEvaluation:
    """Questions about a held-out text, each after as many completed questions of the training text as there are shots.

    A question has the same room whatever stands before it: context_length / (1 + the largest number of shots) tokens.

    Attributes:
        tokenizer: The tokenizer.
        num_questions: The number of questions of each kind.
        shots: The numbers of completed examples; every question is asked once for each.
        context_length: Tokens in a row of a batch.
        rows: Rows in a batch.
    """

    tokenizer: Tokenizer
    num_questions: int
    shots: tuple[int, ...]
    context_length: int
    rows: int

    def evaluations(self, train: Documents, held_out: Documents, split: str, parameters: str) -> tuple[Evaluation, ...]:
        """Return the evaluations of both kinds of questions, which run at the end of training.

        Args:
            train: The training documents, of which the examples are made.
            held_out: The documents of which the questions are made.
            split: The name of their split.
            parameters: Which parameters are evaluated: "raw", or the name of an average.

        Raises:
            UserError: If no question can be made of a text.
        """
        train_texts, held_out_texts = (
            [self.tokenizer.decode(document) for document in documents] for documents in (train, held_out)
        )
        lexicon, evaluations = WordFrequencies.count_words(train_texts), []
        for name in ("cloze", "last_words"):
            examples, gaps = (self._make_questions(texts, lexicon, name) for texts in (train_texts, held_out_texts))
            evaluations.append(self._evaluation(name, split, parameters, lexicon, examples, gaps))
        return tuple(evaluations)

    def _make_questions(self, texts: Sequence[str], lexicon: WordFrequencies, name: str) -> list[ClozeQuestion]:
        num_extra_tokens = len(self.tokenizer.encode([PASSAGE_SEPARATOR])[0]) + len(self.tokenizer.leading_ids)
        room = self.context_length // (1 + max(self.shots)) - num_extra_tokens
        questions = make_cloze_questions(
            texts, lexicon, self.tokenizer, count=self.num_questions, room=room, last=name == "last_words"
        )
        if not questions:
            raise UserError(
                f"config.task.num_cloze_questions={self.num_questions}: no question can be made within {room} tokens, "
                f"config.task.context_length={self.context_length} over {1 + max(self.shots)} passages: give more, or "
                "fewer config.task.shots"
            )
        return questions

    def _evaluation(
        self,
        name: str,
        split: str,
        parameters: str,
        lexicon: WordFrequencies,
        examples: list[ClozeQuestion],
        questions: list[ClozeQuestion],
    ) -> Evaluation:
        rows = []
        for num_shots in self.shots:
            completed = [example.completed_text(example.answer) for example in examples[:num_shots]]
            for question in questions:
                before = PASSAGE_SEPARATOR.join([*completed, question.before])
                if name == "cloze":
                    rows += [self._row(before, word + question.after) for word in question.candidates]
                else:
                    rows.append(self._row(before, question.answer, only=True))

        def finish(sums: Any, row_scores: Mapping[str, np.ndarray]) -> EvaluationReport:
            scores = {
                key: values[: len(rows)].reshape(len(self.shots), len(questions), -1)
                for key, values in row_scores.items()
            }
            report = cloze_report if name == "cloze" else last_words_report
            return report(questions, lexicon, self.shots, scores)

        return Evaluation(
            name, split, self._batches(rows), score_labels_by_row, finish, at_end=True, parameters=parameters
        )

    def _row(self, before: str, after: str, *, only: bool = False) -> tuple[list[int], int]:
        """Return the tokens of a text and the index of the first that is scored: 1, or with `only` that of `after`."""
        opening = self.tokenizer.leading_ids
        text_ids, before_ids = self.tokenizer.encode([before + after, before])
        different_places = (
            place for place, pair in enumerate(zip(text_ids, before_ids, strict=False)) if len(set(pair)) > 1
        )
        num_shared = next(different_places, len(before_ids))
        return [*opening, *text_ids], max(len(opening) + num_shared if only else 1, 1)

    def _batches(self, rows: Sequence[tuple[list[int], int]]) -> Sequence[Batch]:
        """Return rows of `context_length` tokens; rows that only fill up the last batch are empty."""
        batches = []
        for start in range(0, len(rows), self.rows):
            part = [*rows[start : start + self.rows]]
            part += [([], 1)] * (self.rows - len(part))
            tokens = np.zeros((self.rows, self.context_length), np.int32)
            labels, counts = np.zeros_like(tokens), np.zeros(tokens.shape, bool)
            for row, (numbers, first) in enumerate(part):
                length = max(len(numbers) - 1, 0)
                tokens[row, :length], labels[row, :length] = numbers[:length], numbers[1:]
                counts[row, first - 1 : length] = True
            lengths = np.array([max(len(numbers) - 1, 0) for numbers, _ in part], np.int32)
            batches.append({"tokens": tokens, "lengths": lengths, "labels": labels, "counts": counts})
        return batches


def score_labels_by_row(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict[str, Array]]:
    """Score the labels that count in each row.

    The logits of only one row are held at a time.

    Returns:
        No sums, and for each row `nats`, the sum of -log p, and `wrong`, how many labels are not the most probable
        token.
    """
    inputs = {name: jnp.asarray(batch[name]) for name in ("tokens", "lengths")}
    hidden_BxTxE, _ = view.model.apply(view.variables, inputs, method="hidden", train=False)

    def score_row(row: tuple[Array, Array, Bool[Array, " T"]]) -> dict[str, Array]:
        hidden_TxE, labels_T, counts_T = row
        logits_1xTxV = view.model.logits(view.variables, hidden_TxE[None])
        sums = token_loss(logits_1xTxV, labels_T[None], counts_T[None], label_smoothing=0.0)
        return {"nats": sums.cross_entropy, "wrong": jnp.sum(counts_T) - sums.correct}

    return {}, jax.lax.map(score_row, (hidden_BxTxE, jnp.asarray(batch["labels"]), jnp.asarray(batch["counts"])))


Scores = Mapping[str, np.ndarray]


def cloze_report(
    questions: Sequence[ClozeQuestion], lexicon: WordFrequencies, shots: Sequence[int], scores: Scores
) -> EvaluationReport:
    """Report how often the text completed with the answer is the most probable.

    Args:
        questions: The questions.
        lexicon: The word frequencies of the training text, for the baseline that picks the most frequent candidate.
        shots: The numbers of completed examples.
        scores: The scores; `nats` [shots, questions, candidates].

    Returns:
        `cloze_accuracy_N` for N shots, and the accuracy of the baselines.
    """
    predicted = np.argmin(scores["nats"], axis=-1)
    answers = [question.candidates.index(question.answer) for question in questions]
    accuracies = (predicted == np.array(answers)).mean(axis=-1)
    scalars = {
        f"cloze_accuracy_{num_shots}": float(accuracy) for num_shots, accuracy in zip(shots, accuracies, strict=True)
    }
    scalars |= _baseline_accuracies("cloze", questions, lexicon)
    chosen_candidates = zip(questions, predicted[0].tolist(), strict=True)
    texts = [
        question.completed_text(f"[{question.candidates[candidate]}]") for question, candidate in chosen_candidates
    ]
    samples = [
        {"output": text, "answer": question.answer} for text, question in zip(texts[:4], questions, strict=False)
    ]
    return EvaluationReport(scalars, samples, note=f"{len(questions)} gaps, {NUM_CANDIDATES} candidates each")


def last_words_report(
    questions: Sequence[ClozeQuestion], lexicon: WordFrequencies, shots: Sequence[int], scores: Scores
) -> EvaluationReport:
    """Report how often greedy decoding yields the whole last word, and exp(-mean log p(word)).

    Args:
        questions: The questions.
        lexicon: The word frequencies of the training text, for the baseline that picks the most frequent candidate.
        shots: The numbers of completed examples.
        scores: The scores; `nats` and `wrong` [shots, questions, 1].

    Returns:
        `last_words_accuracy_N` and `last_words_perplexity_N` for N shots, and the accuracy of the baselines.
    """
    scalars = {}
    for number, num_shots in enumerate(shots):
        scalars[f"last_words_accuracy_{num_shots}"] = float((scores["wrong"][number] == 0).mean())
        scalars[f"last_words_perplexity_{num_shots}"] = float(np.exp(min(scores["nats"][number].mean(), 700.0)))
    return EvaluationReport(
        scalars | _baseline_accuracies("last_words", questions, lexicon), note=f"{len(questions)} last words"
    )


def _baseline_accuracies(name: str, questions: Sequence[ClozeQuestion], lexicon: WordFrequencies) -> dict[str, float]:
    """Compute how often the answer is the most frequent candidate before the gap, or in the training text."""
    return {
        f"{name}_{which}": float(
            np.mean(
                [
                    question.most_frequent_candidate(lexicon, in_context=in_passage) == question.answer
                    for question in questions
                ]
            )
        )
        for which, in_passage in (("frequency_here", True), ("frequency_in_training", False))
    }
