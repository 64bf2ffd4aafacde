"""Tokenizer files as a stranger may write them: what each does to a plain one, and whether it is refused."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

Json = dict[str, Any]

NAMES = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]


class Hostile(NamedTuple):
    """A case: its name, a function that writes its files into a folder, and whether they are refused."""

    name: str
    write: Callable[[Path], None]
    refused: bool


def plain(kind: str = "BPE") -> Json:
    """A small tokenizer of a kind of the library's models."""
    letters = [*SPECIAL, *"abcdefgh", "▁", "▁a", "ab"]
    vocabulary = {piece: number for number, piece in enumerate(letters)}
    model = {
        "BPE": lambda: models.BPE(vocabulary, [("▁", "a"), ("a", "b")], unk_token="<unk>"),
        "WordPiece": lambda: models.WordPiece(vocabulary, unk_token="<unk>"),
        "WordLevel": lambda: models.WordLevel(vocabulary, unk_token="<unk>"),
        "Unigram": lambda: models.Unigram([(piece, -1.0) for piece in letters], 0, False),
    }[kind]()
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(SPECIAL)
    return json.loads(backend.to_str())


def write(folder: Path, described: Json | bytes, config: Json | bytes | None = None) -> None:
    """Write a folder with this tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    content = described if isinstance(described, bytes) else json.dumps(described).encode()
    (folder / "tokenizer.json").write_bytes(content)
    named = NAMES if config is None else config
    (folder / "tokenizer_config.json").write_bytes(named if isinstance(named, bytes) else json.dumps(named).encode())


def replace(content: str, **pattern: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def chain(*steps: Json) -> Json:
    return {"type": "Sequence", "normalizers": list(steps)}


def nested(depth: int, inner: Json) -> Json:
    return inner if depth == 0 else chain(nested(depth - 1, inner), copy.deepcopy(inner))


NORMALIZERS: dict[str, tuple[Any, bool]] = {
    "doubles 32 times": (chain(*[replace("aa", String="a")] * 32), True),
    "doubles a word": (chain(*[replace("zebrazebra", String="zebra")] * 32), True),
    "doubles in nested lists": (nested(20, replace("bb", String="b")), True),
    "doubles in turns": (chain(*[replace("bb", String="a"), replace("aa", String="b")] * 16), True),
    "doubles by expressions": (chain(*[replace("zz", Regex="z")] * 32), True),
    "doubles between characters": (chain(*[replace("z", Regex="(?=z)")] * 32), True),
    "doubles at word ends": (chain(*[replace("q", Regex=r"\b")] * 32), True),
    "inserts at every place": (chain(*[replace(" ", Regex="x*")] * 12), True),
    "writes a book for a letter": (replace("a" * 100_000, String="a"), True),
    "writes a book for an expression": (replace("a" * 100_000, Regex="[a-z]"), True),
    "an empty pattern": (replace("x", String=""), True),
    "an empty expression": (replace("x", Regex=""), True),
    "an expression with an open bracket": (replace("x", Regex="("), True),
    "an expression of no kind": ({"type": "Replace", "pattern": "a", "content": "b"}, True),
    "a pattern of a third kind": ({"type": "Replace", "pattern": {"Glob": "*"}, "content": "b"}, True),
    "a pattern that is a number": (replace("x", String=3), True),  # type: ignore[arg-type]
    "a thousand and one steps": (chain(*[replace("a", String="a")] * 1001), True),
    "a map of three zeros' bytes": ({"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}, True),
    "a map of no size": ({"type": "Precompiled", "precompiled_charsmap": "/////w=="}, True),
    "a map that is no base 64": ({"type": "Precompiled", "precompiled_charsmap": "!!"}, True),
    "an empty map": ({"type": "Precompiled", "precompiled_charsmap": ""}, True),
    "a map that is a number": ({"type": "Precompiled", "precompiled_charsmap": 7}, True),
    "a map of a short table": ({"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAAAAAAA"}, True),
    "an unknown normalizer": ({"type": "Rot13"}, True),
    "a normalizer without a type": ({"prepend": "x"}, False),  # as the library reads it
    "doubles without a type": (chain(*[{"pattern": {"String": "a"}, "content": "aa"}] * 32), True),
    "a normalizer that is a list": ([], True),
    "a list of no normalizers": (chain(), False),
    "a list that holds a number": (chain(3), True),  # type: ignore[arg-type]
    "ligatures apart": (chain(*[replace(f"{c}{c}", String=chr(0xFB00 + n)) for n, c in enumerate("abcdefg")]), False),
    "spaces into one": (replace(" ", Regex=" {2,}"), False),
    "nothing for a letter": (replace("", String="a"), False),
}


def _normalizer(name: str) -> Callable[[Path], None]:
    return lambda folder: write(folder, plain() | {"normalizer": NORMALIZERS[name][0]})


def _changed(kind: str, change: Callable[[Json], Any], config: Json | bytes | None = None) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        described = plain(kind)
        result = change(described)
        write(folder, result if isinstance(result, bytes) else described, config)

    return make


def _model(kind: str, **keys: Any) -> Callable[[Path], None]:
    return _changed(kind, lambda described: described["model"].update(keys))


def _content(content: bytes) -> Callable[[Path], None]:
    return lambda folder: write(folder, content)


def _deep(described: Json) -> bytes:
    return (
        json.dumps(described)
        .replace('"normalizer": {', '"normalizer": ' + '{"type":"Sequence","normalizers":[' * 3000 + "{")
        .encode()
    )


def _growing_decoder(described: Json) -> None:
    described["decoder"] = {"type": "Sequence", "decoders": [replace("aa", String="a")] * 32}


def _template(*pieces: Any, tokens: Json | None = None) -> Callable[[Json], None]:
    def change(described: Json) -> None:
        described["post_processor"] = {
            "type": "TemplateProcessing",
            "single": list(pieces),
            "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": tokens or {},
        }

    return change


TEXT_A = {"Sequence": {"id": "A", "type_id": 0}}
END = {"SpecialToken": {"id": "</s>", "type_id": 0}}
END_TOKEN = {"</s>": {"id": "</s>", "ids": [3], "tokens": ["</s>"]}}


def _files(**content: str | bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in content.items():
            path = folder / name.replace("__", ".")
            path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return make


_BERT = json.dumps({"tokenizer_class": "BertTokenizer"})
_GPT2 = json.dumps({"tokenizer_class": "GPT2Tokenizer"})
_WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n"


def cases() -> Iterator[Hostile]:
    """Yield every case."""
    yield Hostile("a plain one", lambda folder: write(folder, plain()), False)
    for name, (_, refused) in NORMALIZERS.items():
        yield Hostile(name, _normalizer(name), refused)
    for kind in ("BPE", "WordPiece", "WordLevel", "Unigram"):
        yield Hostile(f"a plain {kind}", _model(kind), False)
    for kind in ("WordLevel", "WordPiece"):
        yield Hostile(f"a {kind} without its unknown token", _model(kind, unk_token="<none>"), True)
    yield Hostile("pairs without their unknown token", _model("BPE", unk_token="<none>"), True)
    yield Hostile("an unknown token of no number", _model("Unigram", unk_id=99), True)
    yield Hostile("no unknown token", _model("Unigram", unk_id=None), True)
    yield Hostile("an unknown token of a negative number", _model("Unigram", unk_id=-1), True)
    yield Hostile("a score that is a text", _model("Unigram", vocab=[["a", "b"]]), True)
    yield Hostile("a vocabulary that is a list", _model("BPE", vocab=["a"]), True)
    yield Hostile("a vocabulary of texts", _model("BPE", vocab={"a": "b"}), True)
    yield Hostile("a vocabulary of negative numbers", _model("BPE", vocab={"a": -1}), True)
    yield Hostile("a vocabulary with gaps", _model("WordLevel", vocab={"<unk>": 0, "a": 7}), True)
    yield Hostile("a vocabulary with a great gap", _model("WordLevel", vocab={"<unk>": 0, "a": 2**32 - 1}), True)
    yield Hostile("a vocabulary of numbers beyond 32 bits", _model("WordLevel", vocab={"<unk>": 0, "a": 2**33}), True)
    yield Hostile("an empty vocabulary", _model("BPE", vocab={}, merges=[], unk_token=None), True)
    yield Hostile("a merge of an unknown piece", _model("BPE", merges=[["x", "y"]]), True)
    yield Hostile("a merge of one piece", _model("BPE", merges=[["a"]]), True)
    yield Hostile("merges that are a number", _model("BPE", merges=3), True)
    yield Hostile("an unknown model", _model("BPE", type="Trigram"), True)
    yield Hostile("a prefix that is a number", _model("WordPiece", continuing_subword_prefix=3), True)
    yield Hostile("words of no length", _model("WordPiece", max_input_chars_per_word=-1), True)
    yield Hostile("dropout", _model("BPE", dropout=0.5), False)
    yield Hostile("dropout of everything", _model("BPE", dropout=1.0), False)
    yield Hostile("dropout of more than everything", _model("BPE", dropout=1.5), True)
    yield Hostile("a decoder that doubles 32 times", _changed("BPE", _growing_decoder), True)
    yield Hostile("an unknown decoder", _changed("BPE", lambda all: all.update(decoder={"type": "Loud"})), True)
    yield Hostile("a splitter that is a text", _changed("BPE", lambda all: all.update(pre_tokenizer="spaces")), True)
    yield Hostile(
        "a splitter at an open bracket",
        _changed(
            "BPE",
            lambda all: all.update(
                pre_tokenizer={"type": "Split", "pattern": {"Regex": "["}, "behavior": "Isolated", "invert": False}
            ),
        ),
        True,
    )
    yield Hostile("a text said 100,000 times", _changed("BPE", _template(*[TEXT_A] * 100_000)), True)
    yield Hostile("100,000 ends", _changed("BPE", _template(TEXT_A, *[END] * 100_000, tokens=END_TOKEN)), True)
    yield Hostile("a template of an unknown token", _changed("BPE", _template(TEXT_A, END)), True)
    yield Hostile("one end", _changed("BPE", _template(TEXT_A, END, tokens=END_TOKEN)), False)
    yield Hostile("added tokens that are a number", _changed("BPE", lambda all: all.update(added_tokens=3)), True)
    yield Hostile(
        "an added token of a far number",
        _changed("BPE", lambda all: all["added_tokens"][0].update(content="<x>", id=10**6)),
        True,
    )
    yield Hostile(
        "an added token of two names", _changed("BPE", lambda all: all["added_tokens"][0].pop("content")), True
    )
    yield Hostile("nothing", _content(b""), True)
    yield Hostile("a list", _content(b"[]"), True)
    yield Hostile("half a file", _content(json.dumps(plain()).encode()[:200]), True)
    yield Hostile("no text", _content(b"\xff\xfe\x00"), True)
    yield Hostile("a byte order mark", _content(b"\xef\xbb\xbf" + json.dumps(plain()).encode()), True)
    yield Hostile("a number that is none", _content(json.dumps(plain()).replace("0", "NaN").encode()), True)
    yield Hostile("another version", _changed("BPE", lambda all: all.update(version="7.0")), True)
    yield Hostile("three thousand brackets", _changed("BPE", _deep), True)
    yield Hostile("a config that is a list", _changed("BPE", lambda all: None, b"[]"), True)
    yield Hostile("a config that is no text", _changed("BPE", lambda all: None, b"\xff"), True)
    yield Hostile("a role of an unknown token", _changed("BPE", lambda all: None, NAMES | {"eos_token": "<e>"}), True)
    yield Hostile(
        "an added token of a text", _changed("BPE", lambda all: None, NAMES | {"added_tokens_decoder": {"0": 3}}), True
    )
    yield Hostile("words of no vocabulary", _files(vocab__txt="", tokenizer_config__json=_BERT), True)
    yield Hostile("words without special ones", _files(vocab__txt="a\nb\n", tokenizer_config__json=_BERT), True)
    yield Hostile("words that are no text", _files(vocab__txt=b"\xff\n", tokenizer_config__json=_BERT), True)
    yield Hostile("a word twice", _files(vocab__txt=_WORDS + "a\n", tokenizer_config__json=_BERT), True)
    yield Hostile("words", _files(vocab__txt=_WORDS, tokenizer_config__json=_BERT), False)
    merges = "#version: 0.2\n"
    yield Hostile(
        "merges of nothing",
        _files(vocab__json='{"a": 0}', merges__txt=merges + "x y\n", tokenizer_config__json=_GPT2),
        True,
    )
    yield Hostile(
        "merges of one", _files(vocab__json='{"a": 0}', merges__txt=merges + "a\n", tokenizer_config__json=_GPT2), True
    )
    yield Hostile(
        "a vocabulary of lists", _files(vocab__json="[1]", merges__txt=merges, tokenizer_config__json=_GPT2), True
    )
    yield Hostile(
        "a vocabulary of halves",
        _files(vocab__json='{"a": 0.5}', merges__txt=merges, tokenizer_config__json=_GPT2),
        True,
    )
    yield Hostile(
        "merges that are no text",
        _files(vocab__json='{"a": 0}', merges__txt=b"\xff\xff", tokenizer_config__json=_GPT2),
        True,
    )
