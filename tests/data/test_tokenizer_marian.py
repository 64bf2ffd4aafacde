"""Marian's two SentencePiece models: sources in, targets out, one vocabulary."""

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.data.tokenizers.huggingface_tokenizers import load_huggingface_tokenizer
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.marian import MarianTokenizer

SOURCES = ["the dog runs home quickly.", "a cat sits on the mat", "good morning, world!"] * 20
TARGETS = ["der Hund läuft schnell nach Hause.", "eine Katze sitzt auf der Matte", "Guten Morgen, Welt!"] * 20
needed = pytest.mark.skipif(not importlib.util.find_spec("sentencepiece"), reason="needs the extra sentencepiece")


def model_of(texts: list[str]) -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=written, vocab_size=48, hard_vocab_limit=False, minloglevel=2
    )
    return written.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sentencepiece

    path = tmp_path_factory.mktemp("marian")
    pieces: set[str] = set()
    for name, texts in (("source.spm", SOURCES), ("target.spm", TARGETS)):
        (path / name).write_bytes(model_of(texts))
        model = sentencepiece.SentencePieceProcessor(model_file=str(path / name))
        pieces |= {model.id_to_piece(number) for number in range(model.get_piece_size())}
    # Marian's order: the end first, the padding last.
    tokens = ["</s>", "<unk>", ">>de<<", ">>nl<<", *sorted(pieces - {"</s>", "<unk>", "<s>"}), "<pad>"]
    (path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    return path


@needed
def test_sources_and_targets_have_models_of_their_own(folder: Path) -> None:
    import sentencepiece

    made = load_huggingface_tokenizer(folder)
    assert isinstance(made, MarianTokenizer)
    numbers = json.loads((folder / "vocab.json").read_text())
    for encode, name, texts in ((made.encode, "source.spm", SOURCES), (made.encode_targets, "target.spm", TARGETS)):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        for text, ids in zip(texts[:3], encode(texts[:3]), strict=True):
            assert ids == [numbers[model.id_to_piece(n)] for n in model.encode(text)]
            assert not set(ids) & made.special_ids
    assert (made.pad_id, made.bos_id, made.eos_id, made.unk_id, made.mask_id) == (
        len(numbers) - 1,
        len(numbers) - 1,
        0,
        1,
        None,
    )
    assert made.vocab_size == len(numbers)


@needed
def test_what_the_vocabulary_lacks_is_named(folder: Path) -> None:
    made = MarianTokenizer.open(folder)
    assert made.unknown_parts(["the 漢 dog", "a 漢"]) == ["漢"]
    assert made.unknown_parts(SOURCES[:3]) == []


@needed
def test_a_target_comes_back(folder: Path) -> None:
    made = MarianTokenizer.open(folder)
    for text, ids in zip(TARGETS[:3], made.encode_targets(TARGETS[:3]), strict=True):
        assert made.decode([made.bos_id, *ids, made.eos_id, *ids]) == text
        assert b"".join(made.token_bytes()[number] for number in ids).decode() == f" {text}"
    starts = made.word_starts()
    (ids,) = made.encode_targets(["der Hund läuft"])
    assert sum(starts[number] for number in ids) == 3
    assert made.unk_id in made.encode(["犬"])[0]


@needed
def test_a_tag_asks_for_a_language(folder: Path) -> None:
    made = MarianTokenizer.open(folder)
    assert made.languages == ["de", "nl"]
    assert made.language_tag_ids("nl") == [3]
    assert made.token_bytes()[3] == b""
    with pytest.raises(UserError, match="language='fr' was not trained"):
        made.language_tag_ids("fr")


@needed
def test_what_was_saved_is_loaded(folder: Path, tmp_path: Path) -> None:
    made = MarianTokenizer.open(folder)
    made.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert vars(again) == vars(made)
    assert again.encode(SOURCES[:3]) == made.encode(SOURCES[:3])


@needed
def test_damaged_and_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    for name in ("source.spm", "target.spm", "vocab.json"):
        with pytest.raises(UserError, match=f"has no {name}"):
            MarianTokenizer.open(tmp_path)
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "target.spm").write_bytes(b"no model")
    with pytest.raises(UserError, match=r"target.spm is no SentencePiece model"):
        MarianTokenizer.open(tmp_path)
    (tmp_path / "vocab.json").write_text('{"</s>": 0}')
    with pytest.raises(UserError, match="has no <pad>"):
        MarianTokenizer.open(tmp_path)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1, "<pad>": 2}')
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"pip install sentencepiece"):
        load_huggingface_tokenizer(tmp_path)
