"""Fine-tuning: batches of every form, the two losses and their gradient, symmetries, figures, answers, refusals.

The model is a bag of words by formula, so that what the task makes of a model's numbers is all that is tested.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from transformer.config import UserError
from transformer.data.labeled_text_batches import LabeledExample
from transformer.models.model import Aux, Variables
from transformer.tasks.classification_metrics import average_ranks, pearson_correlation, spearman_correlation
from transformer.tasks.fine_tuning import FineTuningConfig, FineTuningHead
from transformer.tasks.labeled_text_task import LabeledTextTask
from transformer.tasks.registry import build_synthetic_task, build_task, task_config
from transformer.tasks.synthetic_data import abstract_batch
from transformer.tasks.task import PredictionRequest, StateView
from transformer.training.checked_batches import CheckedBatches

SIZES = "train=7,validation=5,test=3"
FORMS = ("acceptability", "entailment", "similarity", "choice")
SEQUENCES = {"acceptability": 1, "entailment": 1, "similarity": 2, "choice": 3}
WIDTH = 3


def task_of(folder: Path, problem: str, **values: Any) -> Any:
    """Twelve sequences a batch, whatever the form: one shape to compile."""
    rows = 12 // SEQUENCES.get(problem, 1)
    given = {"dataset": f"grammar/{problem}/{SIZES}", "batch_size": rows, "num_probe_examples": 2, "tokenizer": "bytes"}
    return build_task(task_config({"name": "fine_tuning", **given, "bucket_lengths": (128,), **values}), folder)


class Bag:
    """States are sums of the vectors of the tokens up to each; classes are read from that of the last real one."""

    sites, max_length = (), None

    def apply(self, variables: Variables, inputs: Any, *, method: str = "forward", **_: Any) -> tuple[Any, Aux]:
        hidden = jnp.cumsum(jnp.asarray(variables.params["table"])[jnp.asarray(inputs["tokens"])], axis=1)
        last = jnp.take_along_axis(hidden, jnp.maximum(jnp.asarray(inputs["lengths"]) - 1, 0)[:, None, None], axis=1)
        logits = last[:, 0] @ variables.params["classes"]
        return (logits if method == "forward" else hidden), Aux({}, {"classes": logits}, {})

    def logits(self, variables: Variables, hidden: Any) -> Any:
        return hidden @ variables.params["tokens"]


def view_of(task: LabeledTextTask) -> StateView:
    sizes, random = task.interface.vocabularies, np.random.default_rng(0)
    params = {
        "table": random.normal(size=(sizes["tokens"], WIDTH)) * 0.2,
        "classes": random.normal(size=(WIDTH, sizes["classes"])),
        "tokens": random.normal(size=(WIDTH, sizes["tokens"])) * 0.3,
    }
    variables = Variables(jax.tree.map(np.float32, params), {})
    return StateView(Bag(), variables, {}, {}, jnp.int32(0), train=True)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LabeledTextTask]:
    return {name: task_of(tmp_path_factory.mktemp(name), name) for name in FORMS}


def numbers(view: StateView, row: list[int]) -> np.ndarray:
    """The outputs of one sequence in float64."""
    table, classes = (np.asarray(view.variables.params[name], np.float64) for name in ("table", "classes"))
    return table[row].sum(0) @ classes


def expected_row(texts: tuple[str, ...]) -> list[int]:
    """Bytes between the marks, which have the numbers behind them; every text begins with a space."""
    row = [256]
    for text in texts:
        row += [*f" {text}".encode(), 257]
    return [*row[:-1], 258]


def arranged(problem: str, texts: tuple[str, ...]) -> list[tuple[str, ...]]:
    if problem == "similarity":
        return [texts, texts[::-1]]
    return [(texts[0], answer) for answer in texts[1:]] if problem == "choice" else [texts]


@pytest.mark.parametrize("problem", FORMS)
def test_a_batch_has_the_sequences_of_its_examples_each_a_batch_apart(
    problem: str, tasks: dict[str, LabeledTextTask]
) -> None:
    task, seen = tasks[problem], []
    source = task.training_batches(0)
    for step in range(source.batches_per_epoch):  # type: ignore[attr-defined]
        batch = source[step]
        rows = len(batch["index"])
        assert batch["tokens"].shape == (12, 128)
        assert rows == 12 // SEQUENCES[problem]
        for row, index in enumerate(batch["index"]):
            places = range(row, len(batch["tokens"]), rows)
            if index < 0:
                assert not batch["lengths"][list(places)].any()
                continue
            seen.append(index)
            texts, label = task.splits["train"].examples[index]
            assert batch["labels"][row] == label
            for place, of_sequence in zip(places, arranged(problem, texts), strict=True):
                length = batch["lengths"][place]
                assert batch["tokens"][place, :length].tolist() == expected_row(of_sequence)
                # What is read is the state at the extract token.
                assert batch["tokens"][place, length - 1] == 258
    assert sorted(seen) == list(range(len(task.splits["train"].examples)))
    assert batch["labels"].dtype == (np.float32 if problem == "similarity" else np.int32)


@pytest.mark.parametrize("problem", FORMS)
def test_a_run_takes_the_batches(problem: str, tasks: dict[str, LabeledTextTask]) -> None:
    """A run looks over what it is fed: the number of an answer is not held against the one output of a sequence."""
    task = tasks[problem]
    vetted = CheckedBatches(task.training_batches(0), task.interface)
    for step in range(2):
        np.testing.assert_array_equal(vetted[step]["labels"], task.training_batches(0)[step]["labels"])
    labels = max(int(each.label) for each in task.splits["train"].examples)
    wrong = {**task.training_batches(0)[0], "labels": np.array([labels + 1])}
    if not task.config.shape.has_scores:
        with pytest.raises(UserError, match=f"labels.0. = {labels + 1}, no token of a vocabulary of {labels + 1}"):
            CheckedBatches([wrong], task.interface)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", FORMS)
def test_the_losses_are_those_of_their_equations(problem: str, tasks: dict[str, LabeledTextTask]) -> None:
    task = tasks[problem]
    view, source = view_of(task), task.training_batches(1)
    # One with rows that only fill it, where there is one.
    batch = min((source[step] for step in range(4)), key=lambda batch: batch["index"].min())
    denominators = task.denominators(batch)
    loss, aux = jax.jit(lambda: task.head.loss(view, batch, denominators, jax.random.key(0)))()
    table, scoring = (np.asarray(view.variables.params[name], np.float64) for name in ("table", "tokens"))
    answered, nats, count = [], 0.0, 0
    for index in batch["index"][batch["index"] >= 0]:
        texts, label = task.splits["train"].examples[index]
        rows = [expected_row(each) for each in arranged(problem, texts)]
        outputs = [numbers(view, row) for row in rows]
        logits = np.concatenate(outputs) if problem == "choice" else np.sum(outputs, axis=0)
        if problem == "similarity":
            answered.append((logits[0] - label) ** 2)
        else:
            answered.append(np.log(np.exp(logits).sum()) - logits[int(label)])
        for row in rows:
            for place in range(1, len(row)):
                scores = table[row[:place]].sum(0) @ scoring
                nats += np.log(np.exp(scores).sum()) - scores[row[place]]
                count += 1
    assert float(denominators["examples"]) == len(answered)
    assert float(denominators["tokens"]) == count
    np.testing.assert_allclose(aux.metrics["loss"], np.mean(answered), rtol=1e-4)
    np.testing.assert_allclose(aux.metrics["language_model_loss"], nats / count, rtol=1e-4)
    np.testing.assert_allclose(loss, np.mean(answered) + 0.5 * nats / count, rtol=1e-4)


def test_the_auxiliary_gradient_is_lambda_times_the_language_models(
    tasks: dict[str, LabeledTextTask], tmp_path: Path
) -> None:
    task = tasks["entailment"]
    view, batch = view_of(task), task.training_batches(0)[0]
    denominators = task.denominators(batch)

    def gradient(of: Any) -> Any:
        def value(params: Any) -> Any:
            return of(view._replace(variables=Variables(params, {})))

        return jax.jit(jax.grad(value))(view.variables.params)

    def weighed(weight: float) -> Any:
        changed = task_of(tmp_path, "entailment", auxiliary=weight)
        return gradient(lambda view: changed.head.loss(view, batch, denominators, jax.random.key(0))[0])

    def language_model(view: StateView) -> Any:
        hidden, _ = view.model.apply(view.variables, batch, method="hidden", train=True)
        log_BxTxV = jax.nn.log_softmax(view.model.logits(view.variables, hidden[:, :-1]))
        picked = jnp.take_along_axis(log_BxTxV, batch["tokens"][:, 1:, None], axis=-1)[..., 0]
        real = np.arange(1, batch["tokens"].shape[1]) < batch["lengths"][:, None]
        return -jnp.sum(jnp.where(real, picked, 0)) / real.sum()

    without, alone = weighed(0.0), gradient(language_model)
    assert np.abs(without["tokens"]).max() == 0
    both = weighed(0.5)
    for name, of_language in alone.items():
        np.testing.assert_allclose(
            np.asarray(both[name]) - np.asarray(without[name]), 0.5 * np.asarray(of_language), atol=2e-6, rtol=1e-3
        )


def test_exchanging_two_similar_texts_changes_nothing_and_answers_move_with_their_alternatives(
    tasks: dict[str, LabeledTextTask],
) -> None:
    task = tasks["similarity"]
    view = view_of(task)._replace(train=False)
    one, other = task.splits["train"].examples[0].texts
    there, back = (task.predict(view, PredictionRequest([f"{a} $ {b}"])).lines for a, b in ((one, other), (other, one)))
    assert there == back

    def outputs(task: LabeledTextTask, texts: list[str]) -> np.ndarray:
        rows = task.head.encode([LabeledExample(tuple(texts), 0)]).rows
        found = np.stack([numbers(view_of(task), row) for row in rows])
        return np.asarray(task.head.combine_outputs(jnp.float32(found)))[0]

    np.testing.assert_array_equal(outputs(task, [one, other]), outputs(task, [other, one]))
    # An asymmetric arrangement would tell: the two sequences of a pair differ.
    task = tasks["choice"]
    context, *answers = task.splits["train"].examples[0].texts
    straight = outputs(task, [context, *answers])
    order = [2, 0, 1]
    np.testing.assert_array_equal(outputs(task, [context, *(answers[n] for n in order)]), straight[order])
    assert len(set(straight.tolist())) == 3


def test_figures_of_a_split_are_those_of_its_examples_one_by_one(tasks: dict[str, LabeledTextTask]) -> None:
    for problem in FORMS:
        task = tasks[problem]
        view, evaluation = view_of(task)._replace(train=False), task.evaluations[0]
        step = jax.jit(lambda batch, view=view, of=evaluation: of.step(view, batch, jax.random.key(0)))
        parts = [step(batch) for batch in evaluation.batches]
        sums = jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *[sums for sums, _ in parts])
        rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[rows for _, rows in parts])
        found = evaluation.finish(sums, rows).scalars
        said, labels = [], []
        for texts, label in task.splits["validation"].examples:
            outputs = [numbers(view, expected_row(each)) for each in arranged(problem, texts)]
            said.append(np.concatenate(outputs) if problem == "choice" else np.sum(outputs, axis=0))
            labels.append(label)
        if problem == "similarity":
            said = [float(each[0]) for each in said]
            assert found["spearman"] == pytest.approx(stats.spearmanr(said, labels).statistic)
            assert found["pearson"] == pytest.approx(stats.pearsonr(said, labels).statistic, abs=1e-5)
            assert found["loss"] == pytest.approx(np.mean((np.array(said) - labels) ** 2), rel=1e-4)
        else:
            right = np.mean([each.argmax() == label for each, label in zip(said, labels, strict=True)])
            assert found["accuracy"] == pytest.approx(right)
        assert ("matthews" in found) == (problem in ("acceptability", "entailment"))
        assert "glue" not in found


@pytest.mark.parametrize(
    ("sequence_format", "start", "between", "end"),
    [
        ("bert", [256], [257], [257]),
        ("roberta", [256], [257, 257], [257]),
        ("xlnet", [], [257], [257, 256]),
    ],
)
def test_encoders_read_texts_between_the_tokenizers_own_tokens(
    sequence_format: str, start: list[int], between: list[int], end: list[int], tmp_path: Path
) -> None:
    """Pairs once, whatever their order means; token types are 1 for the second text, and 2 for XLNet's last token."""
    tasks = {
        name: task_of(tmp_path, name, sequence_format=sequence_format, auxiliary=0.0, batch_size=4) for name in FORMS
    }
    for name, task in tasks.items():
        typed = sequence_format == "xlnet" or (sequence_format == "bert" and name != "acceptability")
        assert set(task.interface.inputs) == {"tokens", "lengths", *(("types",) if typed else ())}
        assert task.interface.vocabularies["tokens"] == task.tokenizer.vocab_size == 258
        batch, count = task.training_batches(0)[0], len(task.probe_batch["tokens"])
        assert CheckedBatches([batch], task.interface)[0] is batch
        sequences = 3 if name == "choice" else 1
        assert (len(batch["tokens"]), count) == (4 * sequences, 2 * sequences)
        for row in np.flatnonzero(batch["index"] >= 0):
            texts, _ = task.splits["train"].examples[batch["index"][row]]
            pairs = arranged(name, texts) if name == "choice" else [texts]
            for place, of_sequence in enumerate(pairs):
                first, *second = (list(text.encode()) for text in of_sequence)
                expected = [*start, *first, *(byte for text in second for byte in (*between, *text)), *end]
                found = batch["tokens"][place * 4 + row]
                assert found[: batch["lengths"][place * 4 + row]].tolist() == expected
                if typed:
                    types = [0] * (len(start) + len(first) + 1) + [1] * sum(len(text) + 1 for text in second)
                    types += [2] if sequence_format == "xlnet" else []
                    assert batch["types"][place * 4 + row].tolist() == types + [0] * (128 - len(types))
        names = task.axis_labels(()).tokens["tokens"][0]
        assert (names[-1] if sequence_format == "xlnet" else names[0]) == "<begin>"
        assert names[-len(end)] == "<end>"


def test_what_is_cut_is_said(tmp_path: Path, tasks: dict[str, LabeledTextTask]) -> None:
    """Examples, not sequences; whole ones are as they were, and a set that fits says nothing of it."""
    assert len(tasks["choice"].data_summary) == 1
    whole = tasks["choice"].splits
    task = task_of(tmp_path, "choice", bucket_lengths=(78,))
    wide = {
        name: [any(len(row) > 78 for row in split.rows[start : start + 3]) for start in range(0, len(split.rows), 3)]
        for name, split in whole.items()
    }
    count = sum(map(sum, wide.values()))
    assert 0 < count < 15
    assert task.data_summary[1] == f"{count} of these are cut to 78 tokens, the greatest of config.task.bucket_lengths"
    for name, split in task.splits.items():
        for row, before in zip(split.rows, whole[name].rows, strict=True):
            assert len(row) == min(len(before), 78)
            assert row == before or len(before) > 78


def test_ranks_and_correlations_are_those_of_scipy() -> None:
    random = np.random.default_rng(2)
    for _ in range(10):
        one, other = random.integers(0, 6, (2, 30)).astype(float)
        np.testing.assert_array_equal(average_ranks(one), stats.rankdata(one))
        assert spearman_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
        assert pearson_correlation(one, other) == pytest.approx(stats.pearsonr(one, other).statistic)
    assert spearman_correlation(np.ones(4), np.arange(4.0)) == 0


def test_glue_scores_a_set_by_its_own_measure(tmp_path: Path) -> None:
    cola = tmp_path / "CoLA/raw"
    cola.mkdir(parents=True)
    for name, count in (("in_domain_train", 8), ("in_domain_dev", 6), ("out_of_domain_dev", 4)):
        lines = [f"x\t{number % 2}\t\tSentence {number} of {name}." for number in range(count)]
        (cola / f"{name}.tsv").write_text("\n".join(lines))
    task = task_of(tmp_path, "", dataset="glue/CoLA", data_dir=str(tmp_path), test_split="development")
    assert [len(task.splits[name].examples) for name in ("train", "validation", "development")] == [8, 6, 10]
    finish = task.evaluations[1].finish
    counts = np.array([[3, 1], [2, 4]])
    found = finish({"loss": 5.0, "confusion": counts}, None)
    assert found.scalars["glue"] == pytest.approx(100 * 10 / np.sqrt(4 * 6 * 5 * 5))
    assert found.note == "10 texts; glue: matthews x 100"


def test_the_probe_names_the_marks_and_says_what_is_true(tasks: dict[str, LabeledTextTask]) -> None:
    labels = tasks["similarity"].axis_labels(())
    examples = tasks["similarity"].splits["validation"].examples
    assert len(labels.titles) == len(tasks["similarity"].probe_batch["tokens"]) == 4
    for place, title in enumerate(labels.titles):
        texts, score = examples[(0, 0, 4, 4)[place]]
        names = labels.tokens["tokens"][place]
        assert title == f"{score:g}: {' | '.join(texts)}"[:60]
        assert (names[0], names[-1], names.count("<delimiter>")) == ("<start>", "<extract>", 1)
        first = "".join(names[1 : names.index("<delimiter>")]).replace("▁", " ")
        assert first == f" {texts[place % 2]}"
    (_, *answers), label = tasks["choice"].splits["validation"].examples[0]
    assert tasks["choice"].axis_labels(()).titles[0].startswith(f"{answers[int(label)]}: ")


def test_answers_to_several_examples_are_their_own(tasks: dict[str, LabeledTextTask]) -> None:
    task = tasks["choice"]
    view, examples = view_of(task)._replace(train=False), task.splits["test"].examples
    lines = task.predict(view, PredictionRequest([" $ ".join(each.texts) for each in examples])).lines
    for line, ((context, *answers), _) in zip(lines, examples, strict=True):
        outputs = np.concatenate([numbers(view, expected_row((context, each))) for each in answers])
        name, said = line.split()
        assert name == answers[int(outputs.argmax())]
        assert float(said) == pytest.approx(np.exp(outputs.max()) / np.exp(outputs).sum(), abs=6e-4)


@pytest.mark.parametrize(
    ("problem", "request_", "says"),
    [
        ("entailment", PredictionRequest(["only one"]), "'only one' must be 'text $ text', each with words"),
        ("choice", PredictionRequest(["a $ b"]), "has 2 texts with '$' between them, but an example of this run has 4"),
        ("entailment", PredictionRequest(["a $ b"], language="de"), "--target_language=de is for runs that translate"),
        (
            "acceptability",
            PredictionRequest(["word " * 30]),
            "has 152 tokens, more than 128, the greatest of config.task.bucket_lengths",
        ),
        ("acceptability", PredictionRequest([" "]), "must be 'text', each with words"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    problem: str, request_: PredictionRequest, says: str, tasks: dict[str, LabeledTextTask]
) -> None:
    with pytest.raises(UserError) as told:
        tasks[problem].predict(view_of(tasks[problem]), request_)
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"auxiliary": -1.0}, "config.task.auxiliary=-1.0 must be at least 0"),
        ({"bucket_lengths": (4, 8)}, "config.task.bucket_lengths=(4, 8) must name lengths of at least 6 tokens"),
        (
            {"sequence_format": "bert"},
            "config.task.auxiliary=0.5 predicts next tokens, which config.task.sequence_format=bert has no model for",
        ),
        ({"batch_size": 0}, "config.task.batch_size=0 must be at least 1"),
        ({"dataset": "grammar/chose"}, "config.task.dataset='grammar/chose' is unknown: did you mean 'choice'?"),
        ({"dataset": "glue/COLA"}, "did you mean 'glue/CoLA'?"),
        ({"dataset": "glue/entailmnt"}, "'glue/entailmnt' is unknown: did you mean 'grammar/entailment'?"),
        ({"validation_split": ""}, "config.task.validation_split='' must be the name of a split"),
        ({"test_split": "development"}, "has no labeled split 'development': it has train, validation, test"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_refused(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        task_of(tmp_path, "choice", **values)
    assert says in str(told.value)


def test_the_interface_asks_for_next_tokens_where_their_loss_counts(tasks: dict[str, LabeledTextTask]) -> None:
    task = tasks["choice"]
    assert task.interface.vocabularies == {"tokens": 259, "classes": 1, "labels": 3, "next tokens": 259}
    assert task.interface.output == "class and next tokens"
    assert task.interface.inputs["tokens"].shape == (12, 128)
    plain = FineTuningHead(FineTuningConfig(dataset="grammar/choice", auxiliary=0.0), task.tokenizer).interface
    assert plain.vocabularies == {"tokens": 259, "classes": 1, "labels": 3}
    assert plain.output == "class"
    told = build_synthetic_task(task.config)
    assert abstract_batch(told)["tokens"].shape == (12, 128)
    assert (told.training_batches(0)[0]["lengths"] == 128).all()
