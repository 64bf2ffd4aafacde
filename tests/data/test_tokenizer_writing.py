"""What tokens write, in every way that published tokenizers have: bytes, continuations, stop strings, labels.

The oracle is the library's own decoder over the whole text.
"""

import functools
import re
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tests.data.test_line_splitting import SEEDS, random_lines
from transformer.config import UserError
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.token_text import byte_characters, byte_word_end_decoder, detect_token_encoding
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer, character_tokenizer, train_bpe, train_byte_bpe
from transformer.decoding.stop_sequences import build_stop_table
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.text_generation import _make_continuation, encode_prompts

WORDS = ("the", "cat", "sat", "on", "mat", ".", "no", "not", "犬")
TEXT = "the cat sat on the mat. no cat sat not on the mat ."


def gpt1() -> FastTokenizer:
    pieces = [
        *"thecasonm",
        *(f"{letter}</w>" for letter in "tenos."),
        "<unk>",
        "th",
        "the</w>",
        "ca",
        "cat</w>",
        "on</w>",
    ]
    merges = [("t", "h"), ("th", "e</w>"), ("c", "a"), ("ca", "t</w>"), ("o", "n</w>")]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    backend.add_special_tokens(["<unk>"])
    return FastTokenizer(backend, unk_id=backend.token_to_id("<unk>"))


def clip() -> FastTokenizer:
    letters = byte_characters()
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>", "ca", "cat</w>", "on</w>"]
    merges = [("t", "h"), ("th", "e</w>"), ("c", "a"), ("ca", "t</w>"), ("o", "n</w>")]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    model = models.BPE(vocabulary, merges, unk_token="<|endoftext|>", end_of_word_suffix="</w>")
    backend = tokenizers.Tokenizer(model)
    space = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), space, normalizers.Lowercase()])
    words = tokenizers.Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    splits = [pre_tokenizers.Split(words, "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = byte_word_end_decoder()
    backend.add_special_tokens(["<|startoftext|>", "<|endoftext|>"])
    return FastTokenizer(backend, bos_id=len(pieces), eos_id=len(pieces) + 1)


def bert() -> FastTokenizer:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "the", "cat", "s", "##at", "on", "mat", ".", "no", "##t", "犬"]
    backend = tokenizers.Tokenizer(models.WordPiece({p: n for n, p in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return FastTokenizer(backend, bos_id=1, eos_id=2, unk_id=0)


def sentencepiece() -> FastTokenizer:
    pieces = ["<unk>", "</s>", "▁the", "▁cat", "▁s", "at", "▁on", "▁m", ".", "▁no", "t", "▁", "▁."]
    backend = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>", "</s>"])
    return FastTokenizer(backend, eos_id=1, unk_id=0)


def llama() -> FastTokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"thecasonm.", "▁t", "▁th"]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    model = models.BPE(vocabulary, [("▁", "t"), ("▁t", "h")], unk_token="<unk>", byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(stages)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return FastTokenizer(backend, bos_id=1, eos_id=2, unk_id=0)


def words() -> FastTokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, **{w: n for n, w in enumerate(WORDS, 1)}}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[UNK]"])
    return FastTokenizer(backend, unk_id=0)


MADE: dict[str, Callable[[], FastTokenizer]] = {
    "gpt1": gpt1,
    "clip": clip,
    "bert": bert,
    "sentencepiece": sentencepiece,
    "llama": llama,
    "words": words,
    "joint": lambda: train_bpe([TEXT * 3], 60),
    "bytes": lambda: byte_tokenizer(("end",)),
    "byte_bpe": lambda: train_byte_bpe([TEXT * 3], 280),
    "characters": lambda: character_tokenizer([TEXT]),
}


@pytest.fixture(params=MADE)
def tokenizer(request: pytest.FixtureRequest) -> FastTokenizer:
    return MADE[request.param]()


@functools.cache
def texts() -> list[str]:
    random = np.random.default_rng(0)
    drawn = [" ".join(random.choice(WORDS[:8], random.integers(1, 7))) for _ in range(40)]
    return [*drawn, TEXT]


def shown(tokenizer: FastTokenizer, ids: list[int]) -> str:
    return tokenizer.backend.decode(ids, skip_special_tokens=True)


def test_a_continuation_is_the_rest_of_what_is_decoded_together(tokenizer: FastTokenizer) -> None:
    for ids in tokenizer.encode(texts()):
        for place in range(len(ids) + 1):
            said = shown(tokenizer, ids[:place]) + tokenizer.continuation(ids[:place], ids[place:])
            assert said == shown(tokenizer, ids)


def test_the_bytes_of_tokens_are_those_of_the_text(tokenizer: FastTokenizer) -> None:
    within, first = tokenizer.token_bytes(), tokenizer.first_bytes()
    for ids in tokenizer.encode(texts()):
        written = b"".join([first[ids[0]], *(within[number] for number in ids[1:])]).decode()
        text = shown(tokenizer, ids)
        # Behind the text's last word GPT-1 and CLIP have no space.
        assert written.removesuffix(" " if tokenizer.token_encoding.marks_word_ends else "") == text


def test_the_labels_of_a_text_are_its_text(tokenizer: FastTokenizer) -> None:
    for ids in tokenizer.encode(texts()):
        labels = tokenizer.labels(ids)
        assert len(labels) == len(ids)
        assert "".join(labels).replace("▁", " ").strip() == shown(tokenizer, ids).strip()


@pytest.mark.parametrize("kind", ["bytes", "byte_bpe", "llama"])
def test_any_line_is_labeled_and_continued_without_loss(kind: str) -> None:
    made = MADE[kind]()
    for seed in SEEDS:
        line = "".join(random_lines(seed, blank=False))
        (ids,) = made.encode([line])
        labels = made.labels(ids)
        assert len(labels) == len(ids)
        # A character of several tokens is written once: where its first part is.
        once = re.sub(r"(.)⟨1/\d+⟩", r"\1", "".join(labels), flags=re.DOTALL)
        spelled = re.sub(r".⟨\d+/\d+⟩", "", once, flags=re.DOTALL)
        assert spelled.removeprefix("▁" if kind == "llama" else "") == line.replace(" ", "▁")
        place = len(line) // 2
        prompt, rest = made.encode([line[:place]])[0], made.encode([line[place:]])[0]
        continuation = _make_continuation(made, line[:place], prompt, rest, DecodingConfig()).text
        assert continuation == (" " if kind == "llama" else "") + line[place:]


def test_a_prompt_keeps_the_space_behind_it(tokenizer: FastTokenizer) -> None:
    (whole,) = tokenizer.encode(["the cat sat on the mat"])
    for prompt in ("the cat", "the cat sat on"):
        (ids,) = tokenizer.encode([prompt])
        if whole[: len(ids)] == ids:
            assert (
                prompt + _make_continuation(tokenizer, prompt, ids, whole[len(ids) :], DecodingConfig()).text
                == "the cat sat on the mat"
            )


def test_white_space_that_a_tokenizer_drops_from_a_prompt_is_not_doubled() -> None:
    for made in (gpt1(), bert(), words()):
        (ids,), (sat,) = made.encode(["the cat "]), made.encode(["sat"])
        assert "the cat " + _make_continuation(made, "the cat ", ids, sat, DecodingConfig()).text == "the cat sat"


@pytest.mark.parametrize("prompted", [True, False])
def test_a_stop_string_ends_a_rollout_where_the_text_has_it(tokenizer: FastTokenizer, prompted: bool) -> None:
    """Where the automaton is complete, the cut finds the stop string, and one token before it is not there yet."""
    word_ends = tokenizer.token_encoding.marks_word_ends
    stops = [" ", "sat", " sat", "sat ", "sat on", "mat.", "mat .", "t s", " no", "the cat sat"]
    prompt = tokenizer.encode(["the cat"])[0] if prompted else []
    for stop in stops:
        table = build_stop_table([stop], tokenizer.token_bytes(), None if prompted else tokenizer.first_bytes())
        for text in texts()[::4]:
            chosen = tokenizer.encode([text])[0]
            ended = state = 0
            while ended < len(chosen) and state < len(table) - 1:
                state = table[state, chosen[ended]]
                ended += 1
            if state < len(table) - 1:
                continue
            # Behind the last word of a text the space of GPT-1's tokens is to come.
            whole = tokenizer.continuation(prompt, chosen) + " " * word_ends
            decoding = DecodingConfig(stop_sequences=(stop,))
            answer = _make_continuation(tokenizer, "the cat" if prompted else "", prompt, chosen[:ended], decoding).text
            assert answer == whole[: whole.index(stop)], (text, stop)
            # No earlier; a space behind the prompt is GPT-1's prompt's own.
            assert word_ends or stop not in tokenizer.continuation(prompt, chosen[: ended - 1])


def test_a_stop_string_in_front_of_a_word_is_found() -> None:
    for made in (gpt1(), bert(), sentencepiece(), llama(), words()):
        (prompt,), (chosen,) = made.encode(["the cat"]), made.encode(["sat on the mat"])
        assert (
            _make_continuation(made, "the cat", prompt, chosen, DecodingConfig(stop_sequences=(" the",))).text
            == " sat on"
        )


def test_bytes_that_make_no_character_leave_the_prompt_alone() -> None:
    made = llama()
    (prompt,) = made.encode(["犬"])
    assert made.continuation(prompt, [3 + 0xFF]) == "\ufffd"
    assert made.continuation(prompt, [3 + byte for byte in "犬".encode()]) == "犬"


def test_an_empty_prompt_has_no_space_in_front() -> None:
    for made in (bert(), llama()):
        prompts = encode_prompts(made, [""])
        (chosen,) = made.encode(["the cat"])
        assert made.continuation(prompts["tokens"][0].tolist(), chosen) == "the cat"


def test_an_end_that_also_begins_is_an_end() -> None:
    backend = train_byte_bpe([TEXT], 280).backend
    made = FastTokenizer(backend, bos_id=5, eos_id=5)
    assert made.continuation([7], [5, 8, 9]) == ""


def test_the_end_of_a_word_is_a_space() -> None:
    made = gpt1()
    (ids,) = made.encode(["the cat sat."])
    assert made.labels(ids) == ["the▁", "cat▁", "s", "a", "t▁", ".▁"]
    assert sum(len(made.token_bytes()[number]) for number in ids) == len("the cat sat . ")
    with pytest.raises(UserError, match="marks where words end"):
        made.word_starts()


def test_a_word_starts_where_its_first_piece_is() -> None:
    made = bert()
    (ids,) = made.encode(["the cat sat."])
    assert made.pieces(ids) == ["the", "cat", "s", "##at", "."]
    assert made.word_starts()[ids].tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.WordPiece(prefix="@@"),
        decoders.Metaspace(replacement="_"),
        decoders.Sequence([decoders.ByteLevel(), decoders.Metaspace()]),
        decoders.Sequence([decoders.Replace("▁", "-"), decoders.Fuse()]),
    ],
    ids=lambda decoder: type(decoder).__name__,
)
def test_a_decoder_of_another_kind_is_refused_by_name(decoder: decoders.Decoder) -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.decoder = decoder
    with pytest.raises(UserError, match=rf'decoder .*"{type(decoder).__name__}".* is not read'):
        detect_token_encoding(backend)
