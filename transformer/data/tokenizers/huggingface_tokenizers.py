"""Load the tokenizers of published models from the files that they are published with."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transformer.config import UserError
from transformer.data.line_splitting import split_lines
from transformer.data.tokenizers.checked_backend import library_errors, parse_backend, without_stderr
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.sentencepiece_model import load_sentencepiece_model
from transformer.data.tokenizers.token_text import WORD_END, byte_word_end_decoder
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.storage.json_reading import read_json_object, read_regular_file

_END_OF_TEXT = "<|endoftext|>"
_BERT = {"pad": "[PAD]", "begin": "[CLS]", "end": "[SEP]", "unknown": "[UNK]", "mask": "[MASK]"}
_ROBERTA = {"pad": "<pad>", "begin": "<s>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# The tokenizer classes that can be read without a tokenizer.json, with their files, and the models that use them.
_WITHOUT_JSON = {
    "GPT2Tokenizer": ("vocab.json", "merges.txt"),
    "RobertaTokenizer": ("vocab.json", "merges.txt"),
    "BertTokenizer": ("vocab.txt",),
    "LlamaTokenizer": ("tokenizer.model",),
    "T5Tokenizer": ("spiece.model",),
}
# By other names.
_OTHER_CLASSES = {
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
    "GemmaTokenizer": "LlamaTokenizer",
    "CodeLlamaTokenizer": "LlamaTokenizer",
}
_OF_MODELS = {
    "gpt2": "GPT2Tokenizer",
    "gptj": "GPT2Tokenizer",
    "roberta": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer",
    "gemma": "LlamaTokenizer",
    "gemma2": "LlamaTokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
}
# The key of BERT's normalizer for each key of tokenizer_config.json.
_OF_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# Hugging Face's name of each role's token. BERT has [CLS] and [SEP] in place of begin and end.
_NAMES = {
    "pad": ("pad_token",),
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
}
# XLNet has tokens of both names, and reads texts with those of BERT's.
_NAMES_OF_XLNET = _NAMES | {"begin": ("cls_token", "bos_token"), "end": ("sep_token", "eos_token")}


def tokenizer_files(model_type: str) -> tuple[str, ...]:
    """Return the files from which the tokenizer of a `model_type` is read where there is no tokenizer.json."""
    if model_type == "marian":
        return ("source.spm", "target.spm", "vocab.json")
    return _WITHOUT_JSON[_OF_MODELS[model_type]] if model_type in _OF_MODELS else ()


def load_gpt2_tokenizer(vocab_json: Path, merges_txt: Path) -> FastTokenizer:
    """Load GPT-2's byte-level BPE (Radford et al. 2019, section 2.2); <|endoftext|> is both begin and end token.

    Raises:
        UserError: If files are missing or of another kind.
    """
    backend = _read_tokenizer_file(
        vocab_json, lambda path: tokenizers.Tokenizer(models.BPE.from_file(str(path), str(merges_txt)))
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if (end := backend.token_to_id(_END_OF_TEXT)) is not None:
        backend.add_special_tokens([_END_OF_TEXT])
    return FastTokenizer(backend, bos_id=end, eos_id=end)


def load_wordpiece_tokenizer(vocab_txt: Path, lowercase: bool = True) -> FastTokenizer:
    """Load BERT's WordPiece (Devlin et al. 2019, section 3).

    Args:
        vocab_txt: The vocabulary, one token a line.
        lowercase: Whether to drop case and accents, as the uncased models do.

    Raises:
        UserError: If the file is missing or lacks a special token of BERT.
    """
    backend = _read_tokenizer_file(vocab_txt, lambda path: tokenizers.Tokenizer(_wordpiece_model(path)))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    missing = [token for token in _BERT.values() if backend.token_to_id(token) is None]
    if missing:
        raise UserError(f"{vocab_txt} has no {', '.join(missing)}: name BERT's vocab.txt, one token a line")
    backend.add_special_tokens(list(_BERT.values()))
    return FastTokenizer.from_roles(backend, {role: backend.token_to_id(token) for role, token in _BERT.items()})


def _wordpiece_model(path: Path) -> models.WordPiece:
    tokens = split_lines(path.read_bytes().decode())
    return models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]")


def load_huggingface_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder in Hugging Face format, with the special tokens that its other files name.

    It is read from tokenizer.json; else from source.spm, target.spm and vocab.json (Marian); else from the files of a
    GPT-2, RoBERTa, BERT, LLaMA, Gemma or T5 tokenizer, if the folder says that it has one.

    Raises:
        UserError: If the folder has none of these, files cannot be read, or they ask for something that is not
            supported or contradicts tokenizer.json.
    """
    if not (folder / "tokenizer.json").is_file() and (folder / "source.spm").is_file():
        from transformer.data.tokenizers.marian import MarianTokenizer

        return MarianTokenizer.open(folder)
    tokenizer_config = _read_json_if_present(folder / "tokenizer_config.json")
    tokenizer, token_config = (
        _open_tokenizer(folder, tokenizer_config),
        tokenizer_config | _read_json_if_present(folder / "special_tokens_map.json"),
    )
    try:
        with library_errors(), without_stderr():
            opened = _assign_roles(folder, tokenizer, tokenizer_config, token_config)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    opened.try_encoding(folder)
    return opened


def _assign_roles(
    folder: Path, tokenizer: FastTokenizer, tokenizer_config: Mapping[str, Any], token_config: Mapping[str, Any]
) -> FastTokenizer:
    """Return the tokenizer with the special tokens that the folder's other files name."""
    backend = tokenizer.backend
    try:
        _check_options(tokenizer_config, tokenizer)
        _add_tokens(tokenizer_config, backend)
        roles = _find_roles(folder, token_config, backend)
        _mark_special_tokens(roles, token_config, backend)
        opened = FastTokenizer.from_roles(backend, tokenizer.ids_by_role | roles)
        opened.token_encoding  # noqa: B018  refused here, where the folder is known
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"tokenizer_config.json or special_tokens_map.json is unusable: {error}") from error
    last = max(backend.get_vocab().values(), default=-1)
    if last + 1 != opened.vocab_size:
        raise UserError(
            f"the tokenizer's {opened.vocab_size} tokens have numbers up to {last}: only those without gaps are read"
        )
    return opened


def _open_tokenizer(folder: Path, tokenizer_config: Mapping[str, Any]) -> FastTokenizer:
    tokenizer_json = folder / "tokenizer.json"
    if tokenizer_json.is_file():
        backend = _read_tokenizer_file(
            tokenizer_json, lambda path: parse_backend(read_regular_file(path).decode("utf-8"))
        )
        kind = str(tokenizer_config.get("tokenizer_class")).removesuffix("Fast")
        if kind == "CLIPTokenizer" and getattr(backend.model, "end_of_word_suffix", None) == WORD_END:
            backend.decoder = byte_word_end_decoder()
        return FastTokenizer(backend)
    advice = "write one by transformers' AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    sets = (("tokenizer.model",), ("spiece.model",), ("vocab.json", "merges.txt"), ("vocab.txt",))
    files = next((names for names in sets if all((folder / name).is_file() for name in names)), None)
    if files is None:
        raise UserError(
            f"{folder} holds no tokenizer: it has none of tokenizer.json, {', '.join(map(' + '.join, sets))}; {advice}"
        )
    model = _read_json_if_present(folder / "config.json").get("model_type")
    kind = str(tokenizer_config.get("tokenizer_class") or _OF_MODELS.get(str(model), "")).removesuffix("Fast")
    kind = _OTHER_CLASSES.get(kind, kind)
    if files != _WITHOUT_JSON.get(kind):
        description = f"tokenizer_class={kind}" if kind else f"model_type={model} and no tokenizer_class"
        readable = " and ".join(f"{', '.join(names)} of a {name}" for name, names in _WITHOUT_JSON.items())
        raise UserError(
            f"{folder} has no tokenizer.json, but {description}: without one only {readable} are read; {advice}"
        )
    if kind in ("LlamaTokenizer", "T5Tokenizer"):
        return _open_sentencepiece_model(folder, files[0], kind, tokenizer_config)
    if kind == "BertTokenizer":
        tokenizer = load_wordpiece_tokenizer(folder / "vocab.txt")
        tokenizer.backend.normalizer = normalizers.BertNormalizer(
            lowercase=_read_flag(tokenizer_config, "do_lower_case", True),
            strip_accents=_read_flag(tokenizer_config, "strip_accents", None),
            handle_chinese_chars=_read_flag(tokenizer_config, "tokenize_chinese_chars", True),
        )
        return tokenizer
    tokenizer = load_gpt2_tokenizer(folder / "vocab.json", folder / "merges.txt")
    prefix = _read_flag(tokenizer_config, "add_prefix_space", False)
    tokenizer.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return tokenizer if kind == "GPT2Tokenizer" else _as_roberta(tokenizer, folder)


def _open_sentencepiece_model(folder: Path, file: str, kind: str, tokenizer_config: Mapping[str, Any]) -> FastTokenizer:
    """Return a SentencePiece model with the tokens that its folder adds, and those that its class puts around texts."""
    tokenizer = load_sentencepiece_model(folder / file)
    backend, ids = tokenizer.backend, tokenizer.ids_by_role
    added = {token: number for token, number in _read_json_if_present(folder / "added_tokens.json").items()}
    for number, entry in (tokenizer_config.get("added_tokens_decoder") or {}).items():
        added.setdefault(entry["content"], int(number))
    if kind == "T5Tokenizer" and not added:
        count = tokenizer_config.get("extra_ids", 100)
        # The first stands last.
        added = {f"<extra_id_{n}>": backend.get_vocab_size() + count - 1 - n for n in range(count)}
    for token, _ in sorted(added.items(), key=lambda item: item[1]):
        if backend.token_to_id(token) is None:
            backend.add_special_tokens([token])
    # T5 has no begin token; LLaMA's texts begin with theirs unless the folder says otherwise.
    begins = _read_flag(tokenizer_config, "add_bos_token", kind == "LlamaTokenizer")
    ends = _read_flag(tokenizer_config, "add_eos_token", kind == "T5Tokenizer")
    framing = {"begin": ids["begin"] if begins else None, "end": ids["end"] if ends else None}
    special_tokens = {
        role: (str(backend.id_to_token(number)), number) for role, number in framing.items() if number is not None
    }
    begin, end = ([special_tokens[role][0]] if role in special_tokens else [] for role in framing)
    backend.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *begin, "$B", *end],
        special_tokens=list(special_tokens.values()),
    )
    return tokenizer


def _read_flag(tokenizer_config: Mapping[str, Any], name: str, usual: bool | None) -> Any:
    """Return a value that is true or false, or the usual one if it is missing.

    Raises:
        UserError: If it is another value.
    """
    value = tokenizer_config.get(name, usual)
    if value is not usual and not isinstance(value, bool):
        raise UserError(f"tokenizer_config.json has {name}={value!r}, which is neither true nor false")
    return value


def _as_roberta(tokenizer: FastTokenizer, folder: Path) -> FastTokenizer:
    """Return GPT-2's tokens with RoBERTa's special ones: its mask token takes the white space in front of it."""
    backend = tokenizer.backend
    numbers = {role: backend.token_to_id(token) for role, token in _ROBERTA.items()}
    if missing := [_ROBERTA[role] for role, number in numbers.items() if number is None]:
        raise UserError(f"{folder / 'vocab.json'} has no {', '.join(missing)}: name RoBERTa's vocab.json")
    added = [tokenizers.AddedToken(token, lstrip=role == "mask", special=True) for role, token in _ROBERTA.items()]
    backend.add_special_tokens(added)
    begin, end = ((_ROBERTA[role], numbers[role] or 0) for role in ("begin", "end"))
    backend.post_processor = processors.RobertaProcessing(end, begin)
    return FastTokenizer.from_roles(backend, numbers)


def _add_tokens(tokenizer_config: Mapping[str, Any], backend: tokenizers.Tokenizer) -> None:
    """Add the tokens of tokenizer_config.json, with what it says of the white space around them.

    Raises:
        UserError: If the vocabulary lacks a token or has it under another number.
    """
    for number, entry in (tokenizer_config.get("added_tokens_decoder") or {}).items():
        token = tokenizers.AddedToken(entry["content"], **{flag: entry[flag] for flag in _FLAGS if flag in entry})
        if str(backend.token_to_id(token.content)) != number:
            raise UserError(
                f"tokenizer_config.json adds the token {token.content!r} as number {number}, which is not in the "
                "vocabulary"
            )
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])


def _mark_special_tokens(
    roles: Mapping[str, int], token_config: Mapping[str, Any], backend: tokenizers.Tokenizer
) -> None:
    """Mark the tokens of roles as special, if they are not yet, so that they stand for no text.

    Those that are marked stay as they are: adding them again would lose which white space belongs to them.
    """
    added_tokens = backend.get_added_tokens_decoder()
    entries = {
        entry["content"]: entry for entry in token_config.values() if isinstance(entry, dict) and "content" in entry
    }
    for number in roles.values():
        text = backend.id_to_token(number)
        if text is not None and not (number in added_tokens and added_tokens[number].special):
            flags = {flag_name: entries[text][flag_name] for flag_name in _FLAGS if flag_name in entries.get(text, {})}
            backend.add_special_tokens([tokenizers.AddedToken(text, **flags | {"special": True})])


def _check_options(tokenizer_config: Mapping[str, Any], tokenizer: FastTokenizer) -> None:
    """Refuse options of tokenizer_config.json that differ from what the tokenizer does.

    Raises:
        UserError: If there is one; the message names the key.
    """
    parts = (tokenizer.backend.normalizer, tokenizer.backend.pre_tokenizer)
    normalizer, splitter = ({} if part is None else json.loads(part.__getstate__()) for part in parts)
    does: dict[str, Any] = {"do_basic_tokenize": True, "never_split": None}
    if normalizer.get("type") == "BertNormalizer":
        does |= {theirs: normalizer[ours] for theirs, ours in _OF_BERT.items()}
    if splitter.get("type") == "ByteLevel":
        does["add_prefix_space"] = splitter["add_prefix_space"]
    begin = tokenizer_config.get("bos_token")
    text = begin.get("content") if isinstance(begin, dict) else begin
    if isinstance(text, str):
        opened = tokenizer.backend.encode("", add_special_tokens=True).tokens
        does["add_bos_token"] = text in opened[:1]
    for name, value in does.items():
        if (
            name in tokenizer_config
            and tokenizer_config[name] != value
            and not (tokenizer_config[name] == [] and value is None)
        ):
            raise UserError(
                f"tokenizer_config.json has {name}={tokenizer_config[name]!r}; the tokenizer is read with {value!r}"
            )


def _find_roles(folder: Path, token_config: Mapping[str, Any], backend: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the role of each special token: by token names, else by the numbers in the model's config.json.

    Raises:
        UserError: If the vocabulary lacks a token.
    """
    config = _read_json_if_present(folder / "config.json")
    roles: dict[str, int] = {}
    for role, names in (_NAMES_OF_XLNET if config.get("model_type") == "xlnet" else _NAMES).items():
        for name in names:
            token = token_config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                number = backend.token_to_id(text)
                # Padding is never read; its token may be missing because it was meant to be added.
                if number is None and role != "pad":
                    raise UserError(f"{name} is {text!r}, which is not in the tokenizer's vocabulary")
            else:
                number = _as_token_number(config.get(f"{name}_id"))
            if number is not None and role not in roles and backend.id_to_token(number) is not None:
                roles[role] = number
    start = config.get("decoder_start_token_id")
    if config.get("is_encoder_decoder") and start is not None:
        if _as_token_number(start) is None:
            raise UserError(f"config.json has decoder_start_token_id={start!r}, which is the number of no token")
        roles["begin"] = start
    return roles


def _as_token_number(number: Any) -> int | None:
    """Return a number of config.json if a token can have it; -1 says that there is none."""
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**32 else None


def _read_json_if_present(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, {} if there is none."""
    return read_json_object(path) if path.is_file() else {}


def _read_tokenizer_file[T](path: Path, read: Callable[[Path], T]) -> T:
    try:
        with library_errors(), without_stderr():
            return read(path)
    except UserError as error:
        raise UserError(f"{path} cannot be read as a tokenizer's file: {error}") from error
