"""SentencePiece models (Kudo and Richardson 2018) as tokenizers of the `tokenizers` library."""

import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from transformer.config import UserError
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer

_SPACE = "\u2581"  # what stands for a space in a piece
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
# No text's pieces have so low a sum, unless one is unknown: a special token is chosen for no text of known pieces.
_NEVER_CHOSEN = -1e6
_NUM_PROBES, _PROBE_PIECES = 200, 8
_PROBES = (
    " Hello,  World!  It's 3.50 $ for 12 \u201cr\u00e9sum\u00e9s\u201d\t(a-b_c@d.e)\r\n",
    "\u65e5\u672c\u8a9e \u0416 \ufb01 e\u0301 \u00a0x\u3000y\u200b\u2028\U0001f600",
    "   ",
    "",
)


def load_sentencepiece_model(path: Path) -> FastTokenizer:
    """Load a SentencePiece model; its own encoding of some hundred texts is compared with what comes of it.

    Raises:
        UserError: If sentencepiece is not installed, the file is damaged, or it asks for what is not supported: words
            or characters as pieces, spaces behind words, or an encoding that the library would not give.
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
    except ImportError as error:
        raise UserError(f"{path} needs sentencepiece: pip install sentencepiece ({error})") from error
    content = path.read_bytes()
    messages: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    model = messages.ModelProto()
    try:
        model.ParseFromString(content)
        processor = SentencePieceProcessor(model_proto=content)
    except (DecodeError, RuntimeError) as error:
        raise UserError(
            f"{path} is no SentencePiece model, or damaged: {' '.join(str(error).split())[:200]}"
        ) from error
    backend = _to_backend(model, path)
    ids = {"pad": processor.pad_id(), "begin": processor.bos_id(), "end": processor.eos_id()}
    ids_by_role = {role: number for role, number in (ids | {"unknown": processor.unk_id()}).items() if number >= 0}
    tokenizer = FastTokenizer.from_roles(backend, ids_by_role)
    for text in _probe_texts(model):
        if tokenizer.backend.encode(text, add_special_tokens=False).ids != processor.encode(text):
            raise UserError(
                f"{path} encodes {text[:60]!r} in a way that the tokenizers library has not: write a tokenizer.json "
                "with transformers"
            )
    return tokenizer


def _to_backend(model: Any, path: Path) -> tokenizers.Tokenizer:
    trainer, normalization = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE):
        raise UserError(f"{path} has words or characters as pieces: only unigram and bpe models are read")
    if trainer.treat_whitespace_as_suffix or not normalization.escape_whitespaces:
        raise UserError(f"{path} keeps spaces behind words or as they are: only those in front of words are read")
    pieces = [(piece.piece, piece.score, piece.type) for piece in model.pieces]
    unknown = next((number for number, (_, _, kind) in enumerate(pieces) if kind == _UNKNOWN), None)
    if unknown is None:
        raise UserError(f"{path} has no piece for unknown text")
    byte_fallback = any(kind == _BYTE for _, _, kind in pieces)
    if trainer.model_type == _UNIGRAM:
        text_kinds = (_NORMAL, _USER_DEFINED)
        scores = [(text, score if kind in text_kinds else _NEVER_CHOSEN) for text, score, kind in pieces]
        backend = tokenizers.Tokenizer(models.Unigram(scores, unknown, byte_fallback))
    else:
        ids = {text: number for number, (text, _, _) in enumerate(pieces)}
        backend = tokenizers.Tokenizer(
            models.BPE(ids, _merges(pieces), unk_token=pieces[unknown][0], fuse_unk=True, byte_fallback=byte_fallback)
        )
    backend.normalizer = normalizers.Sequence(list(_normalizers(normalization)))
    first_space = [decoders.Strip(" ", 1, 0)] if normalization.add_dummy_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *first_space]
    )
    backend.add_special_tokens([text for text, _, kind in pieces if kind in (_CONTROL, _UNKNOWN)])
    backend.add_tokens(
        [tokenizers.AddedToken(text, normalized=True) for text, _, kind in pieces if kind == _USER_DEFINED]
    )
    return backend


def _merges(pieces: Iterable[tuple[str, float, int]]) -> list[tuple[str, str]]:
    """Return the pairs that make a piece, in the order in which they are merged: by the score of what they make."""
    scores = {text: score for text, score, kind in pieces if kind in (_NORMAL, _USER_DEFINED, _UNUSED)}
    numbers = {text: number for number, text in enumerate(scores)}
    merges = [
        (-score, numbers[text[:cut]], numbers[text[cut:]], text[:cut], text[cut:])
        for text, score in scores.items()
        for cut in range(1, len(text))
        if text[:cut] in scores and text[cut:] in scores
    ]
    return [(first_part, second_part) for *_, first_part, second_part in sorted(merges)]


def _normalizers(normalization: Any) -> Iterator[Any]:
    if normalization.precompiled_charsmap:
        yield normalizers.Precompiled(normalization.precompiled_charsmap)
    if normalization.remove_extra_whitespaces:
        yield normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), "")
        yield normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    if normalization.add_dummy_prefix:
        yield normalizers.Prepend(_SPACE)
    yield normalizers.Replace(" ", _SPACE)


def _probe_texts(model: Any) -> Iterator[str]:
    """Yield texts that meet what a tokenizer may do in its own way, and random pieces of the model in a row."""
    yield from _PROBES
    texts = [piece.piece.replace(_SPACE, " ") for piece in model.pieces if piece.type in (_NORMAL, _USER_DEFINED)]
    generator = random.Random(0)
    for _ in itertools.repeat(None, _NUM_PROBES if texts else 0):
        yield "".join(generator.choices(texts, k=_PROBE_PIECES))
