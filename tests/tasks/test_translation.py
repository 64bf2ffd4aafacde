"""The translation task: what is fed, what is minimized, and by what it is divided."""

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.table_model import TableModel, next_token, random_table
from tests.oracles import decoding as oracle
from transformer.config import UserError
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.train_tokenizer import train_bpe
from transformer.models.model import Aux, Variables
from transformer.tasks.decoding_config import DecodingConfig, DecodingDefaults
from transformer.tasks.registry import task_config, task_name
from transformer.tasks.task import PredictionRequest, StateView
from transformer.tasks.translation import Translation, translate_request
from transformer.tasks.translation_data import TranslationConfig, TranslationSplit, encode_pairs
from transformer.tasks.translation_decoding import check_language
from transformer.tasks.translation_metrics import make_decoding_step

PAD, BEGIN, END = 0, 1, 2
PAIRS = [
    SentencePair(" ".join(f"s{n}" for n in range(words)), " ".join(f"t{n}" for n in range(words + more)), "de")
    for words, more in ((1, 0), (2, 2), (3, 0), (1, 3), (5, 0), (4, 1), (2, 0), (6, 0), (3, 1), (2, 1))
]
CONFIG = TranslationConfig(
    bucket_lengths=(5, 9),
    tokens_per_batch=18,
    label_smoothing=0.2,
    num_decoded_examples=3,
    num_probe_examples=4,
    num_beams=1,
)


@pytest.fixture(scope="module")
def task() -> Translation:
    tokenizer = train_bpe(10 * [text for pair in PAIRS for text in (pair.source, pair.target)], 60)
    names = ("train", "validation", "test")
    splits = {name: TranslationSplit(name, PAIRS, encode_pairs(tokenizer, PAIRS)) for name in names}
    return Translation(CONFIG, tokenizer, splits)


class Oracle:
    """Logits that depend on the decoder's input alone: a fixed row of a table."""

    def __init__(self, vocabulary: int):
        self.table = np.random.default_rng(0).normal(size=(vocabulary, vocabulary)).astype(np.float32)

    def apply(self, variables: Any, inputs: Any, **asked: Any) -> tuple[Any, Aux]:
        assert set(inputs) == {"source", "target"}  # the labels are not for the model's eyes
        return jnp.asarray(self.table)[inputs["target"]], Aux({}, {}, {})

    def logits(self, variables: Any, hidden: Any) -> Any:
        return hidden


@pytest.fixture(scope="module")
def view(task: Translation) -> StateView:
    model: Any = Oracle(task.tokenizer.vocab_size)
    return StateView(model, Variables({}, {}), {}, {}, jnp.int32(0), train=True)


def nats(table: np.ndarray, batch: Any) -> list[float]:
    """The cross-entropy of every real token of a batch, in float64."""
    found = []
    for target, labels in zip(batch["target"], batch["labels"], strict=True):
        for read, said in zip(target, labels, strict=True):
            if said != PAD:
                z = table[read].astype(np.float64)
                found.append(float(np.log(np.exp(z).sum()) - z[said]))
    return found


def test_totals_count_the_real_target_tokens(task: Translation) -> None:
    source = task.training_batches(seed=1)
    epoch = [source[step] for step in range(source.batches_per_epoch)]
    counts = [float(task.denominators(batch)["tokens"]) for batch in epoch]
    assert counts == [(batch["labels"] != PAD).sum() for batch in epoch]
    assert sum(counts) == sum(len(ids) for ids in encode_pairs(task.tokenizer, PAIRS).targets)


def test_a_source_that_stands_in_several_pairs_is_encoded_once(task: Translation, monkeypatch: Any) -> None:
    tokenizer, pairs = task.tokenizer, [*PAIRS, *reversed(PAIRS)]
    expected = [[*tokenizer.encode([pair.source])[0], tokenizer.eos_id] for pair in pairs]
    encode, batches = tokenizer.encode, []
    monkeypatch.setattr(tokenizer, "encode", lambda texts: batches.append(list(texts)) or encode(texts))
    found = encode_pairs(tokenizer, pairs)
    assert sorted(batches[0]) == sorted({pair.source for pair in PAIRS})
    assert [ids.tolist() for ids in found.sources] == expected


def test_the_loss_is_the_mean_over_the_whole_updates_tokens(task: Translation, view: StateView) -> None:
    (objective,) = task.objectives
    batch, key = task.training_batches(seed=1)[0], jax.random.key(0)
    table = view.model.table  # type: ignore[attr-defined]
    loss_fn = jax.jit(lambda denominators: objective.loss_fn(view, batch, denominators, key))
    loss, aux = loss_fn(task.denominators(batch))
    expected = nats(table, batch)
    assert float(aux.metrics["cross_entropy"]) == pytest.approx(np.mean(expected), rel=1e-5)
    assert float(loss) == float(aux.metrics["loss"]) != pytest.approx(np.mean(expected), rel=1e-5)
    # A microbatch divides by the totals that it is given, not by its own.
    _, share = loss_fn({"tokens": jnp.float32(1000)})
    assert float(share.metrics["cross_entropy"]) == pytest.approx(sum(expected) / 1000, rel=1e-5)


def test_the_evaluated_loss_weighs_every_token_the_same(task: Translation, view: StateView) -> None:
    evaluation = task.evaluations[0]
    assert (evaluation.name, evaluation.split, evaluation.at_end) == ("loss", "validation", False)
    assert len(evaluation.batches) > 1
    step = jax.jit(lambda batch: evaluation.step(view._replace(train=False), batch, jax.random.key(0))[0])
    found = [step(batch) for batch in evaluation.batches]
    sums = {name: np.sum([np.float64(one[name]) for one in found]) for name in found[0]}
    table = view.model.table  # type: ignore[attr-defined]
    expected = [one for batch in evaluation.batches for one in nats(table, batch)]
    report = evaluation.finish(sums, None)
    assert report.scalars["cross_entropy"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert set(report.scalars) == {"loss", "cross_entropy", "accuracy"}


def test_the_probe_holds_each_chosen_pair_once_at_the_greatest_length(task: Translation) -> None:
    labels = task.axis_labels(())
    assert len(labels.titles) == CONFIG.num_probe_examples
    seen: dict[str, Any] = {}

    class Seen(Oracle):
        def apply(self, variables: Any, inputs: Any, **asked: Any) -> tuple[Any, Aux]:
            seen.update(inputs, **asked)
            return super().apply(variables, inputs)

    model: Any = Seen(task.tokenizer.vocab_size)
    view = StateView(model, Variables({}, {}), {}, {}, jnp.int32(0), train=False)
    task.probe(view, capture="asked", key=jax.random.key(0))  # type: ignore[arg-type]
    assert seen["source"].shape == seen["target"].shape == (CONFIG.num_probe_examples, max(CONFIG.bucket_lengths))
    assert (seen["train"], seen["capture"]) == (False, "asked")
    for row, tokens in enumerate(labels.tokens["source"]):
        ids = [int(number) for number in seen["source"][row] if number != PAD]
        assert tuple(task.tokenizer.pieces(ids)) == tokens
        assert ids[-1] == END
        assert int(seen["target"][row, 0]) == BEGIN


def test_without_known_links_nothing_is_aligned(task: Translation) -> None:
    assert [(e.name, e.split, e.at_end) for e in task.evaluations] == [
        ("loss", "validation", False),
        ("loss", "test", True),
        ("translation", "validation", False),
        ("translation", "test", True),
    ]
    few = task.evaluations[2]
    indices = [int(index) for batch in few.batches for index in batch["index"] if index >= 0]
    assert sorted(indices) == list(range(CONFIG.num_decoded_examples))


def test_the_model_is_asked_for_the_largest_batch(task: Translation) -> None:
    assert task.interface.inputs["source"].shape == (2, 9)
    assert task.interface.vocabularies == {"joint": task.tokenizer.vocab_size}
    assert (task.interface.pad_id, task.interface.bos_id, task.interface.eos_id) == (PAD, BEGIN, END)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"name": "translate"}, "config.task.name='translate' is unknown: did you mean 'translation'"),
        ({"name": "translation", "beam": 2}, "unknown key config.task.beam: did you mean 'num_beams'"),
        ({"name": "translation", "languages": ("en",)}, "must be .source, target."),
        ({"name": "translation", "bucket_lengths": ()}, "config.task.bucket_lengths"),
        ({"name": "translation", "bucket_lengths": (16, 64), "tokens_per_batch": 63}, "does not hold one sentence of"),
        ({"name": "translation", "label_smoothing": 1.0}, "config.task.label_smoothing=1.0"),
        ({"name": "translation", "num_beams": 0}, "config.task.num_beams=0 must be at least 1"),
    ],
)
def test_configs_that_cannot_be_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        task_config(values)


def test_a_config_knows_its_tasks_name() -> None:
    assert task_name(task_config({"name": "translation"})) == "translation"


def test_a_language_that_lacks_or_is_another_is_told_with_those_that_there_are() -> None:
    two, one = (types.SimpleNamespace(languages=languages) for languages in (("de", "fr"), ()))
    for tokenizer, language, says in (
        (
            two,
            None,
            r"^this run learned several languages \(de, fr\): choose one, with --target_language=de on a command or "
            "language='de' in Python$",
        ),
        (two, "es", r"^the language 'es' was not learned by this run; choose one of: de, fr$"),
        (one, "de", r"^the language 'de' cannot be chosen: this run knows one direction alone; leave it out$"),
    ):
        with pytest.raises(UserError, match=says):
            check_language(tokenizer, language)
    check_language(two, "fr")
    check_language(one, None)


def test_a_translation_ends_with_every_end_token_of_the_run(task: Translation) -> None:
    table = random_table(1, 1, task.tokenizer.vocab_size, more_ends=-9)
    model: Any = TableModel()
    view = StateView(model, jnp.asarray(table), {}, {}, jnp.int32(0), train=False)  # type: ignore[arg-type]
    free = oracle.greedy(next_token(table, 0), end=END, length=6).tokens
    place = max(number for number, token in enumerate(free) if token not in free[:number])
    assert place > 1
    config = dataclasses.replace(CONFIG, decoding=DecodingDefaults(end_ids=(free[place],)))
    request = PredictionRequest(["s0 s1"], None, {"max_new_tokens": 6})
    object.__setattr__(model, "max_length", None)
    (pair,) = translate_request(config, view, task.tokenizer, request)
    assert pair.target == task.tokenizer.decode(free[:place])
    batch = {"source": np.ones((1, 6), np.int32), "index": np.zeros(1, np.int32)}
    _, rows = make_decoding_step(config, task.tokenizer)(view, batch, None)
    np.testing.assert_array_equal(rows["tokens"][0], [*free[:place], END, *[PAD] * (5 - place)])


@pytest.mark.parametrize(
    ("request_of", "expected"),
    [
        ({}, {"num_beams": 1, "temperature": 0.7, "end_ids": (4,)}),
        ({"num_beams": 3}, {"num_beams": 3, "temperature": None, "end_ids": (4,)}),
        ({"temperature": 0.1, "repetition_penalty": 1.5}, {"temperature": 0.1, "repetition_penalty": 1.5}),
    ],
)
def test_a_request_comes_before_the_defaults_of_the_run(request_of: dict[str, Any], expected: dict[str, Any]) -> None:
    defaults = DecodingDefaults(end_ids=(4,), temperature=0.7, repetition_penalty=1.2)
    decoding = DecodingConfig.with_request(request_of, num_beams=4, **defaults.own_settings())
    assert {name: getattr(decoding, name) for name in expected} == expected
