"""The task of marked texts: what is fed and asked, its loss by hand, baselines, the best head, links, and errors."""

import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.attention_probes.configs import architecture_ablation as corpora
from experiments.attention_probes.configs import single_probe
from experiments.attention_probes.task import (
    TASK,
    AttentionProbes,
    AttentionProbesConfig,
    Direction,
    count_gold_hits,
    encode_user_texts,
    make_task_interface,
)
from tests.models.random_models import fresh_variables
from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.interpret.load import LoadedModel
from transformer.layers.functional_module import Precision
from transformer.maps.head_roles import WholeRows, classify_heads
from transformer.maps.role_rules import Role
from transformer.models.registry import build as build_model
from transformer.models.registry import model_config
from transformer.tasks.task import InputTexts, PredictionRequest, StateView
from transformer.training.config import resolve_config

TOKENS = Axis("tokens")
SITES = (
    Site("decoder/self", TOKENS, TOKENS, ("0", "1"), ("0", "1"), causal=True),
    Site("other", TOKENS, Axis("slots"), ("0",), ("0",)),
)


@pytest.fixture(scope="module")
def task() -> AttentionProbes:
    return AttentionProbes(
        AttentionProbesConfig(
            "two_offset_copy/num_kinds=2,far_offset=2,num_questions=2",
            batch_size=4,
            num_eval_examples=8,
            num_probe_examples=2,
        )
    )


def of_model(logits: Any, weights: Any = None) -> StateView:
    """A view of a model that answers this, whatever it reads, and whose heads look there."""

    def apply(variables: Any, inputs: Any, **options: Any) -> Any:
        maps = {} if weights is None else {"decoder/self": SimpleNamespace(weights=weights(inputs))}
        return logits(jnp.asarray(inputs["tokens"])), SimpleNamespace(state={}, maps=maps, losses={})

    return StateView(SimpleNamespace(apply=apply, sites=SITES), None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]


def indifferent(tokens: Any) -> Any:
    return jnp.zeros((*tokens.shape, 6))


def test_batches_are_of_seed_and_step_and_answers_stand_at_their_marks_alone(task: AttentionProbes) -> None:
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    np.testing.assert_array_equal(batch["tokens"], again["tokens"])
    assert all(
        (other["tokens"] != batch["tokens"]).any()
        for other in (task.training_batches(3)[8], task.training_batches(4)[7])
    )
    assert batch["tokens"].shape == task.interface.inputs["tokens"].shape == (4, 10)
    # "?" is the corpus' first word, behind the padding.
    np.testing.assert_array_equal(batch["labels"] != 0, batch["tokens"] == 1)
    assert float(task.denominators(batch)["questions"]) == 8
    assert task.interface.vocabularies == {"tokens": 6}
    for row, length in enumerate(batch["lengths"]):
        assert (batch["tokens"][row, :length] != 0).all()
        assert (batch["tokens"][row, length:] == 0).all()


def test_the_loss_is_of_the_marked_places_alone(task: AttentionProbes) -> None:
    batch = task.training_batches(0)[0]

    def loud(tokens: Any) -> Any:
        """Sure of "?" at every place, but at the marks as sure of word 2."""
        return 3.0 * jnp.eye(6)[jnp.where(tokens == 1, 2, 1)]

    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(of_model(loud), batch, task.denominators(batch), None))()
    labels = batch["labels"][batch["labels"] != 0]
    nats = np.where(labels == 2, -3.0, 0.0) + np.log(np.exp(3.0) + 5)
    assert float(loss) == pytest.approx(nats.mean(), rel=1e-5)
    assert float(aux.metrics["accuracy"]) == pytest.approx((labels == 2).mean())


def test_a_text_is_right_if_all_its_answers_are(task: AttentionProbes) -> None:
    """A model that says the nearer item wherever one is asked for, by the words that it reads."""
    evaluation = next(each for each in task.evaluations if each.name == "marks" and each.split == "test")
    nearer = of_model(lambda tokens: 9.0 * jnp.eye(6)[jnp.roll(tokens, 1, axis=1)])
    step = jax.jit(lambda batch: evaluation.step(nearer, batch, None)[0])
    sums = [step(batch) for batch in evaluation.batches]
    scalars = evaluation.finish({name: sum(float(each[name]) for each in sums) for name in sums[0]}, None).scalars
    texts = [row for batch in evaluation.batches for row in zip(batch["tokens"], batch["labels"], strict=True)]
    right = [[tokens[at - 1] == labels[at] for at in np.flatnonzero(labels)] for tokens, labels in texts]
    assert scalars["accuracy"] == pytest.approx(np.mean(right)) == pytest.approx(scalars["near_item_accuracy"])
    assert scalars["text_accuracy"] == np.mean([all(each) for each in right]) < scalars["accuracy"]


def test_no_text_is_both_trained_on_and_held_out() -> None:
    """Of the 15,600 texts of three letters a third is drawn in 100 steps."""
    sorting = AttentionProbes(AttentionProbesConfig("sorting/num_letters=3", batch_size=64, num_eval_examples=64))
    held_out = {
        bytes(row) for each in sorting.evaluations for batch in each.batches for row in np.asarray(batch["tokens"])
    } | {bytes(row) for row in np.asarray(sorting.probe_batch["tokens"])}
    source = sorting.training_batches(0)
    assert not held_out & {bytes(row) for step in range(100) for row in source[step]["tokens"]}


def test_answers_are_reported_beside_the_rules_on_the_same_texts(task: AttentionProbes) -> None:
    evaluation = next(each for each in task.evaluations if each.name == "marks" and each.split == "test")
    assert evaluation.at_end
    step = jax.jit(lambda batch: evaluation.step(of_model(indifferent), batch, None)[0])
    sums = [step(batch) for batch in evaluation.batches]
    total = {name: sum(float(each[name]) for each in sums) for name in sums[0]}
    scalars = evaluation.finish(total, None).scalars
    assert scalars["loss"] == pytest.approx(np.log(6), rel=1e-5)
    labels = np.concatenate([batch["labels"].ravel() for batch in evaluation.batches])
    near = np.concatenate([np.roll(batch["tokens"], 1, axis=1).ravel() for batch in evaluation.batches])
    assert scalars["near_item_accuracy"] == pytest.approx((near == labels)[labels != 0].mean())
    assert scalars.keys() >= {"majority_accuracy", "bigram_accuracy", "far_item_accuracy"}
    held = [each.batches[0]["tokens"] for each in task.evaluations if each.name == "marks"]
    assert (held[0] != held[1]).any()


def test_the_best_head_is_chosen_on_validation_texts_and_measured_on_test_texts(task: AttentionProbes) -> None:
    """Head 1 of layer 0 reads the item before on validation texts alone; head 0 of layer 1 nearly always."""
    evaluation = next(each for each in task.evaluations if each.name == "heads" and each.split == "test")
    assert [int(batch["split"][0]) for batch in evaluation.batches] == [0, 0, 1, 1]
    assert evaluation.applies(SITES)
    assert not evaluation.applies(SITES[1:])
    length = 10
    before, itself = np.eye(length, k=-1), np.eye(length)

    def weights(split: int) -> Any:
        maps = np.stack([np.stack([itself, before if split == 0 else itself]), np.stack([before, itself])])
        maps = np.broadcast_to(maps[:, None], (2, 4, 2, length, length)).copy()
        if split == 0:
            maps[1, 0, 0] = itself
        return lambda inputs: jnp.asarray(maps)

    steps = [
        evaluation.step(of_model(indifferent, weights(int(batch["split"][0]))), batch, None)[0]
        for batch in evaluation.batches
    ]

    def of_steps(hits: Any) -> Any:
        return np.asarray(hits["mass/decoder/self"])

    total = {
        split: {
            "hits": {
                name: {
                    site: sum(np.asarray(each[split]["hits"][name][site]) for each in steps)
                    for site in ("mass/decoder/self",)
                }
                for name in ("near", "far")
            },
            "questions": sum(float(each[split]["questions"]) for each in steps),
        }
        for split in ("validation", "test")
    }
    report = evaluation.finish(total, None)
    # The head that was best on validation texts reads nothing of the test texts.
    assert report.scalars == {"near_head_accuracy": 0.0, "far_head_accuracy": 0.0}
    assert "layer 0, head 1 of decoder/self reads the nearer item" in report.note
    on_validation = next(each for each in task.evaluations if each.name == "heads" and each.split == "validation")
    assert on_validation.finish({"validation": total["validation"]}, None).scalars["near_head_accuracy"] == 1.0


def test_a_hit_is_a_row_whose_largest_weight_is_gold() -> None:
    weights = np.zeros((1, 2, 1, 3, 3), np.float32)
    weights[0, 0, 0] = [[0.2, 0.5, 0.3], [0.9, 0.1, 0.0], [0.1, 0.2, 0.7]]
    gold = np.zeros((2, 3, 3), bool)
    gold[0, 0, 1] = gold[0, 1, 1] = gold[0, 2, [0, 2]] = True
    np.testing.assert_array_equal(count_gold_hits(jnp.asarray(weights), jnp.asarray(gold)), [[2.0]])


def test_links_name_what_a_head_reads_that_follows_them(task: AttentionProbes) -> None:
    labels = task.axis_labels(SITES)
    assert labels.gold_key_description == "the nearer item or the farther item"
    assert labels.gold_alignments is not None
    assert set(labels.gold_alignments) == {"decoder/self"}
    for words, links in zip(labels.tokens["tokens"], labels.gold_alignments["decoder/self"], strict=True):
        asked = [at for at, word in enumerate(words) if word == "?"]
        assert {tuple(link) for link in links} == {(at, at - back, True) for at in asked for back in (1, 2)}
    assert task.axis_labels(SITES[1:]).gold_alignments is None


def test_a_head_that_reads_the_nearest_noun_is_not_called_one_that_reads_the_antecedent() -> None:
    """As many texts are mapped as tell them apart, though the nearest noun is right in three of ten."""
    task = AttentionProbes(AttentionProbesConfig(batch_size=1, num_eval_examples=1))
    corpus, site, labels = task.corpus, SITES[0], task.axis_labels(SITES)
    texts, length = labels.tokens["tokens"], corpus.max_length
    weights = np.zeros((len(texts), 2, 2, length, length), np.float32)
    weights[..., 0] = 1
    for example, words in enumerate(texts):
        (question,) = corpus.find_questions(words)
        nearest = max(
            at
            for at, word in enumerate(words)
            if word == corpus.baseline_answers(words, question.position)["nearest_noun"]
        )
        for head, key in ((0, question.attended_positions[0][0]), (1, nearest)):
            weights[example, :, head, question.position] = np.eye(length)[key]
    reads, baseline_answers = classify_heads(WholeRows(tuple(range(length)), weights), site, labels)[:2]
    assert reads.role is Role.ALIGNMENT
    assert baseline_answers.role is not Role.ALIGNMENT
    assert len(texts) >= 30


def test_texts_are_answered_at_their_marks_and_foreign_words_refused(task: AttentionProbes) -> None:
    view = of_model(lambda tokens: 9.0 * jnp.eye(6)[jnp.where(tokens == 1, 3, 1)])
    text = "red-circle blue-square ? blue-circle red-circle ?"
    answers = task.predict(view, PredictionRequest([text, "red-circle red-square ?"]))
    assert list(answers.lines) == ["? = red-square 0.999, ? = red-square 0.999", "? = red-square 0.999"]
    assert answers.labels.titles[0].startswith("blue-circle red-circle: red-circle blue-square ?")
    for wrong, kind_of_cue in (
        ("red-circle dog ?", "has the word 'dog', which the corpus has not"),
        ("red-circle blue-square", "asks nothing"),
        ("red-circle " * 12 + "?", "more than the 10 of the longest text"),
    ):
        with pytest.raises(UserError, match=kind_of_cue.replace("?", r"\?")):
            task.predict(view, PredictionRequest([wrong]))
    reading = encode_user_texts(task.config, view, None, InputTexts([text]))
    assert (reading.method, reading.inputs["lengths"].tolist()) == ("forward", [6])
    assert TASK.input_reader is not None
    assert TASK.input_reader.make_task_interface(task.config, None) == task.interface


def test_the_tokens_of_a_model_without_a_tokenizer_are_not_named() -> None:
    config = resolve_config(single_probe.get_config().to_dict())
    model = build_model(config.model, make_task_interface(config.task), Precision())
    loaded = LoadedModel(config, model, fresh_variables(model), None, {})
    with pytest.raises(UserError, match="has no logits of tokens"):
        loaded.top_tokens("the waitress passed the princess . then she")


def test_what_only_the_whole_text_answers_is_asked_of_models_that_read_it() -> None:
    with pytest.raises(UserError, match=r"config\.task\.direction=bidirectional"):
        AttentionProbesConfig("coreference_from_clue")
    config = AttentionProbesConfig("coreference_from_clue", Direction.BIDIRECTIONAL, batch_size=2, num_eval_examples=2)
    assert AttentionProbes(config).interface.output == "masked tokens"
    for name in ("batch_size", "num_eval_examples", "num_probe_examples"):
        with pytest.raises(UserError, match=f"config.task.{name}=0"):
            AttentionProbesConfig(**{name: 0})


@pytest.mark.slow
def test_the_table_compares_families_of_equal_parameters() -> None:
    """Within eight of a hundred on every corpus; the docstring's counts are the least and the most of each."""
    values = corpora.get_config().to_dict()
    sections = {"Transformer": values["model"], "LSTM": corpora.LSTM, "convolution": corpora.CONVOLUTION}
    counts: dict[str, list[int]] = {name: [] for name in sections}
    for dataset in corpora.DATASETS:
        interface = make_task_interface(AttentionProbesConfig(dataset))
        for name, section in sections.items():
            shapes = build_model(model_config(section), interface, Precision()).functional.shapes()
            counts[name].append(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)))
    assert all(max(each) < 1.08 * min(each) for each in zip(*counts.values(), strict=True))
    for each in counts.values():
        assert {f"{min(each):,}", f"{max(each):,}"} <= set(
            (corpora.__doc__ or "").replace(";", "").replace(".", "").split()
        )
