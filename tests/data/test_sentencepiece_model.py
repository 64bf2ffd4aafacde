"""SentencePiece models give the numbers of SentencePiece itself, alone and in the folders of published models."""

import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from transformer.config import UserError
from transformer.data.tokenizers.huggingface_tokenizers import load_huggingface_tokenizer
from transformer.data.tokenizers.sentencepiece_model import load_sentencepiece_model

sentencepiece = pytest.importorskip("sentencepiece")
README = Path(__file__).parents[2] / "README.md"
LINES = tuple(filter(str.strip, README.read_text(encoding="utf-8").split("\n")))
# As T5's and LLaMA's models were trained.
AS_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "bpe": {"model_type": "bpe", **AS_IS},
    "bpe with tokens of its own": {
        "model_type": "bpe",
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<tag>", "\n\n", "\u2581\u2581"],
        **AS_IS,
    },
}


@functools.cache
def trained(kind: str) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=400,
        character_coverage=1.0,
        minloglevel=2,
        **KINDS[kind],
    )
    return model.getvalue()


def texts() -> list[str]:
    chosen, characters = random.Random(1), " abe éß日本\n\t<tag></s>\u2581  .,!?XYZ012\U0001f600\ufb01\u3000"
    drawn = ["".join(chosen.choices(characters, k=chosen.randrange(25))) for _ in range(500)]
    return [*LINES, *drawn]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_sentencepieces(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(kind))
    tokenizer = load_sentencepiece_model(tmp_path / "tokenizer.model")
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    assert tokenizer.vocab_size == processor.vocab_size() == 400
    encoded = [tokenizer.backend.encode(text, add_special_tokens=False).ids for text in texts()]
    assert [text for text, ids in zip(texts(), encoded, strict=True) if ids != processor.encode(text)] == []
    known = [ids for ids in encoded if processor.unk_id() not in ids]
    assert len(known) > 100
    assert [ids for ids in known if tokenizer.decode(ids) != processor.decode(ids)] == []


def test_a_llama_folder_begins_its_texts_and_a_t5_folder_ends_them(tmp_path: Path) -> None:
    llama, t5 = tmp_path / "llama", tmp_path / "t5"
    for folder, kind, file, model_type in (
        (llama, "bpe", "tokenizer.model", "llama"),
        (t5, "unigram", "spiece.model", "t5"),
    ):
        folder.mkdir()
        (folder / file).write_bytes(trained(kind))
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    opened = load_huggingface_tokenizer(llama)
    assert opened.backend.encode("the cat").tokens[0] == "<s>"
    assert (opened.bos_id, opened.eos_id, opened.unk_id) == (1, 2, 0)
    (llama / "tokenizer_config.json").write_text(
        json.dumps({"add_bos_token": False, "added_tokens_decoder": {"400": {"content": "<pad>", "special": True}}})
    )
    changed = load_huggingface_tokenizer(llama)
    assert changed.backend.encode("the cat").tokens[0] != "<s>"
    assert (changed.vocab_size, changed.backend.token_to_id("<pad>")) == (401, 400)
    opened = load_huggingface_tokenizer(t5)
    assert opened.backend.encode("the cat").tokens[-1] == "</s>"
    assert (opened.vocab_size, opened.backend.token_to_id("<extra_id_0>")) == (500, 499)
    assert (opened.pad_id, opened.bos_id, opened.eos_id) == (0, None, 1)


def test_what_the_library_would_encode_in_another_way_is_refused(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=400, minloglevel=2, model_type="unigram",
        user_defined_symbols=["<tag>"], byte_fallback=True,
    )  # fmt: skip
    for content, says in (
        (model.getvalue(), "write a tokenizer.json with transformers"),
        (b"\x00 no model", "is no SentencePiece model, or damaged"),
        (trained("bpe")[:-200], "is no SentencePiece model, or damaged"),
    ):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(UserError, match=says):
            load_sentencepiece_model(tmp_path / "tokenizer.model")
