"""What the metrics of the library mean: the unit and definition of each, for the report and the page of all metrics.

A project under `experiments/` defines its own metrics in its README. This module does not import jax.
"""

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple


class MetricDefinition(NamedTuple):
    """The definition of a metric, or of all metrics whose names have one pattern.

    Attributes:
        name: The name in metrics.jsonl. A word in capitals stands for what differs: N for a number, SITE for the name
            of an attention module, any other for a part without "/", as OBJECTIVE in `OBJECTIVE/gradient_norm`.
        unit: The unit; empty for a plain number, such as a share from 0 to 1.
        meaning: What it measures.
    """

    name: str
    unit: str
    meaning: str


STEP_METRICS = (
    MetricDefinition(
        "loss", "nats", "The task's loss, a mean over tokens, examples or pairs; auxiliary losses are logged apart"
    ),
    MetricDefinition("learning_rate", "", "The rate that the schedule gives"),
    MetricDefinition("gradient_norm", "", "Euclidean norm of the gradient of all trained parameters, before clipping"),
    MetricDefinition("update_norm", "", "Euclidean norm of the change of all trained parameters"),
    MetricDefinition(
        "skipped_updates",
        "updates",
        "Sum of the updates left out as not finite or as spikes (`config.update_guard`); the others are means",
    ),
    MetricDefinition("OBJECTIVE/loss", "nats", "`loss` of one of several objectives"),
    MetricDefinition("OBJECTIVE/learning_rate", "", "`learning_rate` of one of several objectives"),
    MetricDefinition("OBJECTIVE/gradient_norm", "", "`gradient_norm` of one of several objectives"),
    MetricDefinition("OBJECTIVE/update_norm", "", "`update_norm` of one of several objectives"),
    MetricDefinition(
        "auxiliary/NAME",
        "",
        "An auxiliary loss of the model, before its weight; it is minimized, too, and not part of `loss`",
    ),
    MetricDefinition("auxiliary/z_loss", "", "Mean of log(Z)^2, Z being the softmax's denominator, before its weight"),
    MetricDefinition(
        "auxiliary/SITE/importance",
        "",
        "How unequal the experts' sums of gates are (Shazeer et al. 2017, equation 7), before its weight",
    ),
    MetricDefinition(
        "auxiliary/SITE/load",
        "",
        "How unequal the experts' numbers of tokens are (Shazeer et al. 2017, equation 11), before its weight",
    ),
    MetricDefinition(
        "auxiliary/SITE/balance",
        "",
        "Load-balancing loss of the experts (Fedus et al. 2022, equation 4), before its weight",
    ),
)
"""What every training step reports; metrics.jsonl has the mean over the steps since the last log."""
SPEED_METRICS = (
    MetricDefinition("steps_per_second", "1/s", "Training steps per second"),
    MetricDefinition(
        "NAME_per_second", "1/s", "What `loss` is a mean over, per second: `tokens_per_second`, `examples_per_second`"
    ),
    MetricDefinition("batch_wait", "", "Share of the time in which the loop waited for the next batch"),
    MetricDefinition(
        "flops_per_step",
        "FLOPs",
        "Floating-point operations of a step, counted from the shapes of the model; recomputation is not counted",
    ),
    MetricDefinition(
        "mfu",
        "",
        "Model FLOPs utilization: `flops_per_step` x `steps_per_second` / published peak of all devices; none on CPUs",
    ),
)
"""How fast the steps since the last log were; evaluations, maps and checkpoints are not counted."""
PREDICTION_METRICS = (
    MetricDefinition(
        "accuracy", "", "Share of the tokens, words, examples or pairs whose most probable prediction is the label"
    ),
    MetricDefinition("cross_entropy", "nats", "Mean of -log p(label) without label smoothing, which `loss` has"),
    MetricDefinition("perplexity", "", "exp of the mean of -log p(token)"),
    MetricDefinition("bits_per_byte", "bits", "Sum of -log2 p(token) / number of UTF-8 bytes of the text"),
    MetricDefinition("loss_without_memory", "nats", "`loss` with each segment read without the memory of those before"),
    MetricDefinition("perplexity_without_memory", "", "exp of `loss_without_memory`"),
    MetricDefinition("masked_loss", "nats", "The part of `loss` that is of the masked tokens: their mean -log p"),
    MetricDefinition(
        "next_sentence_loss", "nats", "The part of `loss` that is of next sentences: mean over pairs of -log p"
    ),
    MetricDefinition("next_sentence_accuracy", "", "Share of the pairs of sentences that are classified right"),
    MetricDefinition("middle_loss", "nats", "Mean of -log p of the middle token of each text, which alone is masked"),
    MetricDefinition("middle_accuracy", "", "Share of these middle tokens that are predicted"),
    MetricDefinition(
        "unigram_accuracy", "", "Baseline: `accuracy` of predicting the most frequent token of the training text"
    ),
    MetricDefinition(
        "bigram_accuracy", "", "Baseline: `accuracy` of predicting the token that most often follows the one before"
    ),
    MetricDefinition(
        "language_model_loss",
        "nats",
        "Mean of -log p(token) of labeled texts, a loss beside that of the labels (Radford et al. 2018)",
    ),
    MetricDefinition(
        "importance_cv/SITE/N", "", "Standard deviation / mean of the sums of gates over the experts of layer N"
    ),
)
"""Losses and accuracies, of training batches and of evaluations."""
ANSWER_METRICS = (
    MetricDefinition(
        "f1",
        "",
        "F1 = 2 TP / (2 TP + FP + FN): of the second of two classes, of entities, or of the words of answers (SQuAD)",
    ),
    MetricDefinition("precision", "", "Share of the predicted entities that are right in type, first and last word"),
    MetricDefinition("recall", "", "Share of the true entities that are predicted"),
    MetricDefinition(
        "matthews", "", "Matthews correlation of true and predicted classes, from -1 to 1 (Gorodkin 2004)"
    ),
    MetricDefinition("pearson", "", "Pearson correlation of true and predicted scores, from -1 to 1"),
    MetricDefinition("spearman", "", "Pearson correlation of the ranks of true and predicted scores, from -1 to 1"),
    MetricDefinition("glue", "%", "100 x the metric by which GLUE judges the data set"),
    MetricDefinition(
        "exact_match",
        "",
        "Share of the outputs that equal the reference; of answers to questions, as SQuAD normalizes them",
    ),
    MetricDefinition(
        "exact_match/GROUP",
        "",
        "`exact_match` of one target language or one range of source lengths in words (`length_5_8`)",
    ),
    MetricDefinition("exact_match/LANGUAGE/KIND", "", "`exact_match` of one kind of sentence of a target language"),
    MetricDefinition(
        "bleu", "", "BLEU of the corpus, from 0 to 100, by sacreBLEU with `config.task.bleu_tokenizer` (default 13a)"
    ),
    MetricDefinition("bleu/GROUP", "", "`bleu` of one target language or one range of source lengths"),
    MetricDefinition("character_accuracy", "", "1 - edits (Levenshtein 1966) / characters of the references"),
    MetricDefinition("glyph_mass", "", "Mean weight on the glyph that is read, of the head with the most"),
    MetricDefinition(
        "sample_reward",
        "",
        "Mean reward of sampled translations: min(precision, recall) of n-grams (Wu et al. 2016, section 5)",
    ),
    MetricDefinition(
        "alignment_error_rate",
        "",
        "1 - (|A and S| + |A and P|) / (|A| + |S|), A by one head, S and P the gold links (Och and Ney 2003)",
    ),
    MetricDefinition("alignment_error_rate_diagonal", "", "Baseline: `alignment_error_rate` of the diagonal"),
    MetricDefinition(
        "alignment_error_rate_validation",
        "",
        "`alignment_error_rate` of that head on validation data, by which it is chosen",
    ),
    MetricDefinition("alignment_layer", "", "Layer of that head, from 0"),
    MetricDefinition("alignment_head", "", "Number of that head, from 0"),
    MetricDefinition(
        "cloze_accuracy_N",
        "",
        "Share of gaps whose most probable candidate is the answer, after N examples with their answers",
    ),
    MetricDefinition(
        "cloze_frequency_here",
        "",
        "Baseline: share of gaps whose answer is the candidate that is most frequent before the gap",
    ),
    MetricDefinition(
        "cloze_frequency_in_training",
        "",
        "Baseline: share of gaps whose answer is the candidate that is most frequent in the training text",
    ),
    MetricDefinition(
        "last_words_accuracy_N", "", "Share of texts whose last word greedy decoding writes, after N examples"
    ),
    MetricDefinition("last_words_perplexity_N", "", "exp of the mean -log p(last word), after N examples"),
    MetricDefinition(
        "last_words_frequency_here", "", "Baseline: share of last words that are the most frequent candidate before"
    ),
    MetricDefinition(
        "last_words_frequency_in_training",
        "",
        "Baseline: share of last words that are the most frequent candidate in the training text",
    ),
)
"""What evaluations find in labels, answers and generated texts."""

METRICS = (*STEP_METRICS, *SPEED_METRICS, *PREDICTION_METRICS, *ANSWER_METRICS)


def find_definition(name: str, definitions: Iterable[MetricDefinition] = METRICS) -> MetricDefinition | None:
    """Return the definition of a metric: that of its own name, else the first of a pattern; None if it has none."""
    matching = [definition for definition in definitions if _pattern(definition.name).fullmatch(name)]
    return min(matching, key=lambda definition: definition.name != name, default=None)


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    placeholders = {"N": r"\d+", "SITE": ".+"}
    words = re.split(r"([A-Z]+)", name)  # every second one in capitals
    return re.compile(
        "".join(placeholders.get(word, "[^/]+") if number % 2 else re.escape(word) for number, word in enumerate(words))
    )
