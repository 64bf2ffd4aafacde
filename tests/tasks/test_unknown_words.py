"""Unknown words are replaced by the source words that have the largest attention weights, as NumPy replaces them."""

import dataclasses
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from transformer.attention import Capture
from transformer.attention.capture import CapturedAttention
from transformer.attention.sites import Axis, Site
from transformer.config import UserError
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.train_tokenizer import character_tokenizer, train_bpe, train_words
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.layers.functional_module import Precision
from transformer.models.model import Aux, Model, Variables
from transformer.models.registry import build, model_config
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.registry import task_config
from transformer.tasks.task import StateView
from transformer.tasks.translation import Translation
from transformer.tasks.translation_data import (
    TranslationConfig,
    TranslationSplit,
    UnknownReplacement,
    encode_pairs,
    pad_begin_end_ids,
)
from transformer.tasks.unknown_words import make_unknown_word_replacer

TOKENIZER = train_words(["a b c d e", "u v w x", "a u v"], 15, ("de", "fr"))
UNKNOWN = TOKENIZER.unk_id
PAD_ID, BOS_ID, EOS_ID = pad_begin_end_ids(TOKENIZER)
PAIRS = [
    SentencePair("a Anna b Berlin", "u Anna v Berlin", "de"),
    SentencePair("Zoe c", "w Zoé", "fr"),
    SentencePair(" d  d e Uhu a", "x x Eule", "de"),
]
DICTIONARY = {"a": "eine", "Anna": "Anne", "Zoe": "Zoé", "d": "D", "Uhu": "Eule"}
CONFIG = TranslationConfig(
    bucket_lengths=(8,), tokens_per_batch=24, num_beams=1, num_probe_examples=1, replace_unknown=UnknownReplacement.COPY
)
SITES = (
    Site("one", Axis("target"), Axis("source"), ("0", "1"), ("0", "1", "2")),
    Site("itself", Axis("target"), Axis("target"), ("0",), ("0",)),
    Site("two", Axis("target"), Axis("source"), ("0",), ("0",)),
)


class FixedAttention:
    """A model whose attention at a step follows from the word that the step reads, by a table."""

    sites = SITES

    def __init__(self) -> None:
        random = np.random.default_rng(0).random
        self.tables = {"one": random((TOKENIZER.vocab_size, 2, 3, 8)), "two": random((TOKENIZER.vocab_size, 1, 1, 8))}

    def apply(self, variables: Any, inputs: Any, *, train: bool, capture: Capture) -> tuple[None, Aux]:
        assert not train
        assert capture == Capture(("one", "two"))
        tables = {name: jnp.asarray(table)[inputs["target"]] for name, table in self.tables.items()}
        maps = {name: jnp.transpose(table, (2, 0, 3, 1, 4)) for name, table in tables.items()}
        return None, Aux({name: CapturedAttention(each, {}, {}) for name, each in maps.items()}, {}, {})


def in_numpy(model: FixedAttention, pair: SentencePair, tokens: Iterable[int], dictionary: dict[str, str]) -> str:
    """One translation, word by word: the mean of all heads of both modules, of the words behind the tag."""
    words, written, read = pair.source.split(), [], BOS_ID
    known = {number: piece.removeprefix("▁") for piece, number in TOKENIZER.backend.get_vocab().items()}
    for token in tokens:
        if token == TOKENIZER.eos_id:
            break
        weights = sum(table[read].reshape(-1, 8).mean(0) for table in model.tables.values())
        word = words[int(np.argmax(weights[1 : 1 + len(words)]))]
        written.append(dictionary.get(word, word) if token == UNKNOWN else known[token])
        read = token
    return " ".join(written)


def view_of(model: Any) -> StateView:
    return StateView(model, Variables({}, {}), {}, {}, jnp.int32(0), train=False)


def ids_of(text: str) -> list[int]:
    return [*TOKENIZER.encode([text])[0], EOS_ID]


def dictionary_file(folder: Path) -> str:
    lines = [*DICTIONARY.items(), *((source, "another translation") for source in DICTIONARY)]  # the first counts
    (folder / "words.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in lines), encoding="utf-8")
    return str(folder / "words.tsv")


@pytest.mark.parametrize("how", [UnknownReplacement.COPY, UnknownReplacement.DICTIONARY])
def test_replaced_words_and_bleu_are_numpys(how: UnknownReplacement, tmp_path: Path) -> None:
    dictionary = dictionary_file(tmp_path) if how is UnknownReplacement.DICTIONARY else ""
    config = dataclasses.replace(CONFIG, replace_unknown=how, unknown_dictionary=dictionary)
    split = TranslationSplit("test", PAIRS, encode_pairs(TOKENIZER, PAIRS))
    task = Translation(config, TOKENIZER, {name: split for name in ("train", "validation", "test")})
    (evaluation,) = [each for each in task.evaluations if each.name == "translation" and each.at_end]
    replacer, model = make_unknown_word_replacer(config, TOKENIZER), FixedAttention()
    assert replacer is not None

    # What a model would say, in another order than the pairs, and what it says after the end.
    said = {1: "UNK w UNK", 2: "UNK UNK x UNK UNK", 0: "u UNK v UNK"}
    order, tokens_BxT = [1, 2, 0], np.full((4, 8), PAD_ID, np.int32)
    source_BxS = tokens_BxT.copy()
    for row, index in enumerate(order):
        ids = [*ids_of(said[index]), UNKNOWN][:8]
        tokens_BxT[row, : len(ids)] = ids
        source_BxS[row, : len(split.encoded.sources[index])] = split.encoded.sources[index]
    with jax.enable_x64(True):
        positions = jax.jit(lambda source, tokens: replacer.attended_positions(view_of(model), source, tokens))
        positions_BxT = positions(source_BxS, tokens_BxT)
    rows = {"index": np.array([*order, -1]), "tokens": tokens_BxT, "positions": np.asarray(positions_BxT)}
    report = evaluation.finish({}, rows)

    own = DICTIONARY if how is UnknownReplacement.DICTIONARY else {}
    expected = [in_numpy(model, pair, ids_of(said[index]), own) for index, pair in enumerate(PAIRS)]
    assert [sample["output"] for sample in report.samples] == expected
    assert "UNK" not in " ".join(expected)
    assert (how is UnknownReplacement.DICTIONARY) == any(word in " ".join(expected) for word in DICTIONARY.values())
    import sacrebleu

    bleu = sacrebleu.metrics.BLEU(tokenize="13a")
    references = [[pair.target for pair in PAIRS]]
    assert report.scalars["bleu"] == bleu.corpus_score(expected, references).score
    assert report.scalars["bleu_unreplaced"] == bleu.corpus_score([said[0], said[1], said[2]], references).score
    assert report.scalars["unknown_words"] == pytest.approx(8 / 12)


def test_a_request_replaces_as_it_says_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    for changes, tokenizer, says in (
        (
            {},
            train_bpe(["a b"], 20),
            r"^replace_unknown=copy .* splits words into pieces: say replace_unknown=none, or",
        ),
        ({}, character_tokenizer(["a b"], ("pad", "begin", "end")), "tokenizer has no unknown token: say replace_unkn"),
        (
            {"replace_unknown": UnknownReplacement.DICTIONARY, "unknown_dictionary": str(tmp_path / "none.tsv")},
            TOKENIZER,
            "there is no file .*none.tsv",
        ),
    ):
        with pytest.raises(UserError, match=says):
            make_unknown_word_replacer(dataclasses.replace(CONFIG, **changes), tokenizer)
    (tmp_path / "wrong.tsv").write_text("Uhu Eule\n", encoding="utf-8")
    wrong = dataclasses.replace(
        CONFIG, replace_unknown=UnknownReplacement.DICTIONARY, unknown_dictionary=str(tmp_path / "wrong.tsv")
    )
    with pytest.raises(UserError, match=r"wrong.tsv"):
        make_unknown_word_replacer(wrong, TOKENIZER)
    for values, says in (
        ({"replace_unknown": "copies"}, "config.task.replace_unknown='copies' is unknown: did you mean 'copy'"),
        ({"replace_unknown": "dictionary"}, "say replace_unknown=dictionary with a .tsv file, or leave"),
        (
            {"unknown_dictionary": "a.tsv"},
            "config.task.replace_unknown=none and config.task.unknown_dictionary='a.tsv'",
        ),
        ({"tokenizer": "word"}, "config.task.tokenizer='word' is unknown: did you mean 'words'"),
    ):
        with pytest.raises(UserError, match=says):
            task_config({"name": "translation", **values})
    # ByteNet, and a recurrent model without attention, have none to read, which training says at its start.
    task = Translation(CONFIG, TOKENIZER, {name: SPLIT for name in ("train", "validation", "test")})
    for values in (
        {"family": "bytenet", "width": 8},
        {"family": "recurrent_encoder_decoder", "context_vector": "last"},
    ):
        model = build(model_config(values), task.interface, Precision())
        with pytest.raises(UserError, match="which this model does not have: say replace_unknown=none"):
            task.init_task_state(view_of(model), jax.random.key(0))


SPLIT = TranslationSplit("test", PAIRS, encode_pairs(TOKENIZER, PAIRS))
FAMILIES: dict[str, dict[str, Any]] = {
    "recurrent": {"family": "recurrent_encoder_decoder", "width": 4, "embedding_width": 3},
    "recurrent, current state": {
        "family": "recurrent_encoder_decoder",
        "width": 4,
        "embedding_width": 3,
        "attention_query": "current",
        "output_layer": "tanh",
    },
    "transformer": {
        "family": "encoder_decoder",
        "encoder_layers": 1,
        "decoder_layers": 2,
        "width": 8,
        "heads": 2,
        "feed_forward": 8,
        "max_length": 16,
    },
    "convs2s": {
        "family": "convs2s",
        "width": 8,
        "embedding_width": 4,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "max_length": 16,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_of_the_whole_translation_is_that_of_decoding(family: str, num_beams: int) -> None:
    side = InputSpec((3, 8))
    interface = TaskInterface(
        {"source": side, "target": side}, {"joint": TOKENIZER.vocab_size}, *pad_begin_end_ids(TOKENIZER)
    )
    model: Model = build(model_config(FAMILIES[family]), interface, Precision())
    replacer = make_unknown_word_replacer(CONFIG, TOKENIZER)
    assert replacer is not None
    sources = np.zeros((3, 8), np.int32)
    for row, ids in enumerate(SPLIT.encoded.sources):
        sources[row, : len(ids)] = ids
    strategy = GreedySearch() if num_beams == 1 else BeamSearch(num_beams)
    random = np.random.default_rng(1).normal
    shapes = model.functional.shapes()
    variables = Variables(jax.tree.map(lambda leaf: jnp.asarray(random(size=leaf.shape), leaf.dtype), shapes), {})
    inputs = {"source": jnp.asarray(sources)}
    tokens = SpecialTokens(*pad_begin_end_ids(TOKENIZER))
    search = jax.jit(lambda variables: generate(model, variables, inputs, strategy=strategy, length=8, tokens=tokens))
    best_BxT = search(variables).tokens[:, 0]
    view = view_of(model)._replace(variables=variables)
    found = np.asarray(jax.jit(lambda tokens: replacer.attended_positions(view, inputs["source"], tokens))(best_BxT))
    names = tuple(site.name for site in model.sites if (site.query.name, site.key.name) == ("target", "source"))
    cache, read_R = model.init_cache(variables, inputs, num_beams=1, length=8)
    step = jax.jit(lambda cache, read: model.step(variables, cache, read, capture=Capture(names)))
    for place in range(8):
        _, cache, aux = step(cache, read_R)
        weights = np.mean([np.asarray(aux.maps[name].weights)[:, :, :, 0].mean((0, 2)) for name in names], axis=0)
        for row, (pair, ids) in enumerate(zip(PAIRS, np.asarray(best_BxT), strict=True)):
            if EOS_ID not in ids[:place]:
                assert found[row, place] == 1 + np.argmax(weights[row, 1 : 1 + len(pair.source.split())])
        read_R = best_BxT[:, place]


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 2])
def test_predicted_translations_have_no_unknown_word(num_beams: int) -> None:
    """A model that says unknown words only: each becomes a word of the source."""
    task = Translation(CONFIG, TOKENIZER, {name: SPLIT for name in ("train", "validation", "test")})
    model = build(model_config(FAMILIES["recurrent"]), task.interface, Precision())
    variables = programs.initial(model.init)
    kernel = np.zeros_like(variables.params["output"]["kernel"])
    params = variables.params | {"output": {"kernel": kernel}}
    readout = {"kernel": np.zeros_like(params["readout"]["kernel"]), "bias": np.ones_like(params["readout"]["bias"])}
    kernel[:, UNKNOWN] = 9
    view = view_of(model)._replace(variables=Variables(params | {"readout": readout}, {}))
    request = types.SimpleNamespace(
        texts=["a Anna b", "Zoe"],
        language="de",
        decoding={"replace_unknown": "copy", "num_beams": num_beams, "max_new_tokens": 3},
    )
    answers = task.predict(view, request)  # type: ignore[arg-type]
    assert set(answers.lines[0].split()) <= {"a", "Anna", "b"}
    assert set(answers.lines[1].split()) == {"Zoe"}
    request.decoding["replace_unknown"] = "none"
    unreplaced = task.predict(view, request)  # type: ignore[arg-type]
    assert [set(line.split()) for line in unreplaced.lines] == [{"UNK"}, {"UNK"}]
