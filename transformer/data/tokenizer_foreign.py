"""Tokenizers of published models, from the files that they were published with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.data.tokenizer import ROLES, Tokenizer
from transformer.json_files import read_object
from transformer.text_lines import split_lines

_END_OF_TEXT = "<|endoftext|>"
_BERT = {"pad": "[PAD]", "begin": "[CLS]", "end": "[SEP]", "unknown": "[UNK]", "mask": "[MASK]"}
# By role: what Hugging Face calls its token. BERT has no beginning and end, but [CLS] and [SEP] in their places.
_NAMES = {
    "pad": ("pad_token",),
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}


def gpt2(vocab_json: Path, merges_txt: Path) -> Tokenizer:
    """GPT-2's byte-level BPE (Radford et al. 2019, section 2.2); <|endoftext|> stands between texts.

    Errors: UserError for files that are missing or of another kind.
    """
    backend = _read(vocab_json, lambda path: tokenizers.Tokenizer(models.BPE.from_file(str(path), str(merges_txt))))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if (end := backend.token_to_id(_END_OF_TEXT)) is not None:
        backend.add_special_tokens([_END_OF_TEXT])
    return Tokenizer(backend, begin=end, end=end)


def wordpiece(vocab_txt: Path, lowercase: bool = True) -> Tokenizer:
    """BERT's WordPiece (Devlin et al. 2019, section 3); `lowercase` drops case and accents, as the uncased models do.

    Errors: UserError for a file that is missing, or lacks a special token of BERT.
    """
    backend = _read(vocab_txt, lambda path: tokenizers.Tokenizer(_wordpiece_model(path)))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    missing = [token for token in _BERT.values() if backend.token_to_id(token) is None]
    if missing:
        raise UserError(f"{vocab_txt} has no {', '.join(missing)}: name BERT's vocab.txt, one token a line")
    backend.add_special_tokens(list(_BERT.values()))
    return Tokenizer(backend, **{role: backend.token_to_id(token) for role, token in _BERT.items()})


def _wordpiece_model(path: Path) -> models.WordPiece:
    tokens = split_lines(path.read_bytes().decode())
    return models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]")


def from_huggingface(folder: Path) -> AnyTokenizer:
    """The tokenizer of a Hugging Face folder, with the roles that its other files give to tokens.

    Read from tokenizer.json; where there is none, from source.spm, target.spm and vocab.json (Marian), from
    vocab.json and merges.txt (GPT-2), or from vocab.txt (BERT).

    Errors: UserError for a folder that has none of these, or files that cannot be read.
    """
    if not (folder / "tokenizer.json").is_file() and (folder / "source.spm").is_file():
        from transformer.data.tokenizer_marian import MarianTokenizer

        return MarianTokenizer.open(folder)
    tokenizer = _open(folder)
    roles = _roles(folder, tokenizer.backend)
    tokens = [tokenizer.backend.id_to_token(number) for number in roles.values()]
    tokenizer.backend.add_special_tokens([token for token in tokens if token is not None])
    return Tokenizer(tokenizer.backend, **{role: getattr(tokenizer, role) for role in ROLES} | roles)


def _open(folder: Path) -> Tokenizer:
    whole, vocabulary, merges, words = (
        folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt")
    )
    if whole.is_file():
        return Tokenizer(_read(whole, lambda path: tokenizers.Tokenizer.from_file(str(path))))
    if vocabulary.is_file() and merges.is_file():
        return gpt2(vocabulary, merges)
    if words.is_file():
        return wordpiece(words, _json(folder / "tokenizer_config.json").get("do_lower_case", True))
    raise UserError(f"{folder} holds no tokenizer: it has none of tokenizer.json, vocab.json + merges.txt, vocab.txt")


def _roles(folder: Path, backend: tokenizers.Tokenizer) -> dict[str, int]:
    """The role of each special token: said by token names, else by the numbers in the model's config.json."""
    named = _json(folder / "tokenizer_config.json") | _json(folder / "special_tokens_map.json")
    config = _json(folder / "config.json")
    roles: dict[str, int] = {}
    for role, names in _NAMES.items():
        for name in names:
            token = named.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            number = backend.token_to_id(text) if isinstance(text, str) else config.get(f"{name}_id")
            if isinstance(number, int) and role not in roles and backend.id_to_token(number) is not None:
                roles[role] = number
    start = config.get("decoder_start_token_id")
    if config.get("is_encoder_decoder") and isinstance(start, int):
        roles["begin"] = start
    return roles


def _json(path: Path) -> dict[str, Any]:
    """The content of a JSON file, nothing where there is none."""
    return read_object(path) if path.is_file() else {}


def _read[T](path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except Exception as error:
        raise UserError(f"{path} cannot be read as a tokenizer's file: {' '.join(str(error).split())[:200]}") from error
