"""Published tokenizers: equal numbers on recorded texts, and the roles that a Hugging Face folder gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tests.data import hostile_tokenizers
from transformer.config import UserError
from transformer.data.text_batches import SpecialTokenFrame
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.huggingface_tokenizers import (
    load_gpt2_tokenizer,
    load_huggingface_tokenizer,
    load_wordpiece_tokenizer,
)
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.token_text import byte_characters
from transformer.data.tokenizers.tokenizer import ROLES, Tokenizer
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer
from transformer.tasks.mask_filling import encode_with_special_tokens

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "the", "!", "##s", "resume"]


@pytest.fixture(scope="module")
def fixtures(shared_data: Path) -> Path:
    return shared_data / "tokenizers"


def roles(tokenizer: Tokenizer) -> dict[str, int | None]:
    return tokenizer.ids_by_role


def written(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    table = tokenizer.token_bytes()
    return b"".join(table[number] for number in ids)


def folder_with(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_wordpiece_gives_every_recorded_number(fixtures: Path) -> None:
    made = load_wordpiece_tokenizer(fixtures / "vocab.txt")
    questions = json.loads((fixtures / "question_tokens.json").read_text())
    expected = json.loads((fixtures / "tokenized_questions.json").read_text())
    assert len(expected) == 10_570
    found = made.encode([question["original"] for question in questions])
    assert [n for n, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other] == []
    assert all(made.pieces(ids) == q["wordpiece"] for ids, q in zip(found, questions, strict=True))
    assert roles(made) == {"pad": 0, "begin": 101, "end": 102, "unknown": 100, "mask": 103}
    assert made.vocab_size == 30_522


def test_gpt2_gives_every_recorded_number(fixtures: Path, tmp_path: Path) -> None:
    made = load_gpt2_tokenizer(fixtures / "gpt2-vocab.json", fixtures / "gpt2-merges.txt")
    recorded = json.loads((fixtures / "encoded_tokens.json").read_text())
    (ids,) = made.encode([recorded["text"]])
    assert len(ids) == 221
    assert ids == recorded["token_ids"]
    assert made.pieces(ids) == recorded["bpe_tokens"]
    assert made.decode(ids) == recorded["text"]
    assert written(made, ids) == recorded["text"].encode()
    assert roles(made) == {"pad": None, "begin": 50_256, "end": 50_256, "unknown": None, "mask": None}
    # One token begins and ends: in front it is skipped, behind it stops.
    assert made.decode([50_256, *ids[:3], 50_256, *ids]) == made.decode(ids[:3]) != ""
    made.save(tmp_path)
    assert load_tokenizer(tmp_path).encode([recorded["text"]]) == [ids]


@pytest.fixture
def bert(tmp_path: Path) -> FastTokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return load_wordpiece_tokenizer(tmp_path / "vocab.txt")


def test_wordpiece_takes_the_longest_pieces_and_drops_case_and_accents(bert: FastTokenizer) -> None:
    assert bert.encode(["UNAFFABLE the!", "Résumés dog [MASK]"]) == [[5, 6, 7, 8, 9], [11, 10, 1, 1, 1, 1]]
    assert bert.decode([2, 5, 6, 7, 8, 9, 3, 8]) == "unaffable the!"
    assert written(bert, [2, 5, 6, 7, 8, 9]) == b" unaffable the!"
    assert bert.word_starts()[[5, 6, 7, 8]].tolist() == [True, False, False, True]


def test_wordpiece_can_keep_case(bert: FastTokenizer, tmp_path: Path) -> None:
    cased = load_wordpiece_tokenizer(tmp_path / "vocab.txt", lowercase=False)
    assert cased.encode(["The the"]) == [[1, 8]]
    # A folder of BERT's own files says it in its config.
    folder_with(tmp_path, tokenizer_config={"do_lower_case": False, "tokenizer_class": "BertTokenizer"})
    assert load_huggingface_tokenizer(tmp_path).encode(["The the"]) == [[1, 8]]


@pytest.mark.parametrize(
    ("tokenizer_class", "model_type"),
    [("DistilBertTokenizerFast", "distilbert"), ("ElectraTokenizer", "electra"), (None, "electra")],
)
def test_models_with_the_tokenizer_of_bert_are_read_from_its_files(
    bert: FastTokenizer, tmp_path: Path, tokenizer_class: str | None, model_type: str
) -> None:
    folder_with(tmp_path, tokenizer_config={"tokenizer_class": tokenizer_class}, config={"model_type": model_type})
    assert load_huggingface_tokenizer(tmp_path).encode(["UNAFFABLE the!"]) == bert.encode(["UNAFFABLE the!"])


def test_a_files_truncation_and_padding_are_not_kept(bert: FastTokenizer, tmp_path: Path) -> None:
    bert.backend.enable_truncation(3)
    bert.backend.enable_padding(length=9)
    bert.backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    bert.backend.save(str(tmp_path / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}, "mask_token": "[MASK]", "unk_token": "[UNK]"}
    folder_with(tmp_path, special_tokens_map=names, config={"pad_token_id": 0})
    made = load_huggingface_tokenizer(tmp_path)
    assert made.encode(["the the the the !"]) == [[8, 8, 8, 8, 9]]
    assert roles(made) == roles(bert)


def test_unigram_with_sentinels_as_t5_has_it(tmp_path: Path) -> None:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("▁a", -1.0), ("▁cat", -2.0), ("s", -2.0), ("▁", -4.0)]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, 2, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<extra_id_0>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": None}
    start = {"is_encoder_decoder": True, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    made = load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=named, config=start))
    assert roles(made) == {"pad": 0, "begin": 0, "end": 1, "unknown": 2, "mask": None}
    assert made.encode(["a cats"]) == [[3, 4, 5]]
    assert made.decode([0, 3, 4, 5, 1, 3]) == "a cats"
    assert written(made, [3, 4, 5, 7]) == b" a cats"
    assert made.special_ids == {0, 1, 2, 7}


def test_xlnet_begins_and_ends_texts_with_tokens_of_their_own(tmp_path: Path) -> None:
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"]
    pieces = [*((token, 0.0) for token in special), ("▁", -4.0), ("▁a", -1.0), ("▁cat", -2.0), ("s", -2.0)]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, 0, False))
    backend.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", special_tokens=[("<sep>", 4), ("<cls>", 3)]
    )
    backend.add_special_tokens(special)
    backend.save(str(tmp_path / "tokenizer.json"))
    names = ("unk", "bos", "eos", "cls", "sep", "pad", "mask")
    named = {f"{name}_token": token for name, token in zip(names, special, strict=True)}
    folder_with(tmp_path, tokenizer_config=named | {"padding_side": "left"}, config={"model_type": "xlnet"})
    made = load_huggingface_tokenizer(tmp_path)
    assert roles(made) == {"pad": 5, "begin": 3, "end": 4, "unknown": 0, "mask": 6}
    assert made.encode(["a cats"]) == [[8, 9, 10]]
    assert made.encode_with_offsets(["a  cáts"]) == [([8, 9, 10], [(0, 1), (3, 6), (6, 7)])]
    assert made.decode([8, 9, 10, 4, 3]) == "a cats"


def test_bytes_behind_pieces_as_llama_has_them(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h"]
    backend = tokenizers.Tokenizer(
        models.BPE({t: n for n, t in enumerate(tokens)}, [("▁", "h")], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
    made = load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=named))
    assert roles(made) == {"pad": None, "begin": 1, "end": 2, "unknown": 0, "mask": None}
    (ids,) = made.encode(["hi 犬\n"])
    assert made.decode([1, *ids, 2]) == "hi 犬\n"
    assert written(made, ids) == " hi 犬\n".encode()


def test_bytes_that_end_words_as_clip_has_them(tmp_path: Path) -> None:
    """The numbers are those of CLIPTokenizerFast of transformers 5.24.0, without its tokens around a text."""
    letters = sorted(byte_characters(), key=lambda letter: ord(letter) > 0xFF)
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "ph", "pho", "to</w>", "photo</w>"]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    merges = [("p", "h"), ("ph", "o"), ("t", "o</w>"), ("pho", "to</w>")]
    numbers = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(numbers, merges, unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    space = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), space, normalizers.Lowercase()])
    words = tokenizers.Regex(
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    )
    splits = [pre_tokenizers.Split(words, "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(
        ("<|endoftext|>", 517), ("<|startoftext|>", 516), trim_offsets=False, add_prefix_space=False
    )
    backend.add_special_tokens(tokens[-2:])
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"bos_token": tokens[-2], **dict.fromkeys(("eos_token", "pad_token", "unk_token"), tokens[-1])}
    made = load_huggingface_tokenizer(
        folder_with(tmp_path, tokenizer_config=named | {"tokenizer_class": "CLIPTokenizer"})
    )
    assert roles(made) == {"pad": 517, "begin": 516, "end": 517, "unknown": 517, "mask": None}
    (ids,) = made.encode(["A photo of a  CAT!"])
    assert ids == [320, 515, 78, 325, 320, 66, 64, 339, 256]
    assert made.decode([516, *ids, 517]) == "a photo of a cat !"
    assert made.labels(ids) == ["a▁", "photo▁", "o", "f▁", "a▁", "c", "a", "t▁", "!▁"]
    (foreign,) = made.encode(["é 犬"])
    assert made.decode(foreign) == "é 犬"
    assert made.decode([]) == ""


def test_a_config_alone_tells_the_roles(tmp_path: Path) -> None:
    byte_tokenizer(("end", "mask")).backend.save(str(tmp_path / "tokenizer.json"))
    folder_with(tmp_path, config={"bos_token_id": 256, "eos_token_id": [256, 9], "pad_token_id": None})
    assert roles(load_huggingface_tokenizer(tmp_path)) | {"mask": None} == dict.fromkeys(ROLES) | {"begin": 256}


def test_gpt2s_own_files_in_a_folder(fixtures: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((fixtures / f"gpt2-{name}").read_bytes())
    made = load_huggingface_tokenizer(folder_with(tmp_path, config={"model_type": "gpt2", "eos_token_id": 50_256}))
    assert (made.bos_id, made.eos_id) == (50_256, 50_256)
    assert made.encode([" dog"]) == [[3290]]


def roberta(tmp_path: Path, mask: Any = "<mask>", **flags: bool) -> FastTokenizer:
    """RoBERTa's tokenizer.json with few tokens."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *byte_characters(), "<mask>"]
    backend = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*pieces[:4], tokenizers.AddedToken("<mask>", special=True, **flags)])
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": mask, "pad_token": "<pad>", "unk_token": "<unk>"}
    opened = load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=named))
    assert isinstance(opened, FastTokenizer)
    opened.save(tmp_path)
    saved = load_tokenizer(tmp_path)
    assert isinstance(saved, FastTokenizer)
    return saved


def shown(tokenizer: FastTokenizer, text: str) -> str:
    return "|".join(tokenizer.pieces(encode_with_special_tokens(tokenizer, text)))


@pytest.mark.parametrize("begin", [None, 1])
@pytest.mark.parametrize("end", [None, 2])
def test_a_text_has_the_special_tokens_of_the_windows_of_training(begin: int | None, end: int | None) -> None:
    """T5 has an end token alone, which its tokenizer in transformers puts behind every text, too."""
    backend = tokenizers.Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "a": 4}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = FastTokenizer(backend, pad_id=0, bos_id=begin, eos_id=end, unk_id=3)
    window = SpecialTokenFrame(begin, end).wrap(np.array([4, 4]))
    assert encode_with_special_tokens(tokenizer, "a a") == window.tolist()


def test_the_white_space_of_a_mask_is_as_its_tokenizer_says(tmp_path: Path) -> None:
    assert shown(roberta(tmp_path, lstrip=True), "a <mask> b <s>") == "<s>|a|<mask>|Ġ|b|Ġ|<|s|>|</s>"
    assert shown(roberta(tmp_path), "a <mask> b") == "<s>|a|Ġ|<mask>|Ġ|b|</s>"
    assert shown(roberta(tmp_path, rstrip=True), "a <mask> b") == "<s>|a|Ġ|<mask>|b|</s>"
    # tokenizer.json has the last word, unless tokenizer_config.json adds the token once more.
    assert shown(roberta(tmp_path, {"content": "<mask>", "lstrip": False}, lstrip=True), "a <mask>").count("Ġ") == 0
    roberta(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    added = {"260": {"content": "<mask>", "lstrip": True, "special": True}}
    made = load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=config | {"added_tokens_decoder": added}))
    assert isinstance(made, FastTokenizer)
    assert shown(made, "a <mask>b") == "<s>|a|<mask>|b|</s>"
    added = {"261": {"content": "<mask>", "special": True}}
    with pytest.raises(UserError, match="adds the token '<mask>' as number 261, which is not in the vocabulary"):
        load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=config | {"added_tokens_decoder": added}))


def test_words_behind_a_mask_begin_as_their_tokenizer_begins_them(tmp_path: Path) -> None:
    """With the scheme "first" only a text's first word has a mark of its own accord, not that behind a mask."""
    pieces = [("<unk>", 0.0), ("<mask>", 0.0), ("▁a", -1.0), ("▁b", -1.0), ("b", -1.5), ("▁", -3.0)]
    for scheme, behind in (("first", "b"), ("always", "▁b")):
        backend = tokenizers.Tokenizer(models.Unigram(pieces, 0, False))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
        backend.save(str(tmp_path / "tokenizer.json"))
        made = load_huggingface_tokenizer(
            folder_with(tmp_path, tokenizer_config={"mask_token": "<mask>", "unk_token": "<unk>"})
        )
        assert isinstance(made, FastTokenizer)
        made.backend.encode_special_tokens = False
        expected = made.backend.encode("a<mask>b", add_special_tokens=False).tokens
        made.backend.encode_special_tokens = True
        assert made.pieces(made.encode_masked("a<mask>b")) == expected == ["▁a", "<mask>", behind]


def test_a_number_that_no_token_has_is_no_role(fixtures: Path, tmp_path: Path) -> None:
    byte_tokenizer(("end",)).backend.save(str(tmp_path / "tokenizer.json"))
    for number in (-1, -(2**40), 2**40, 999, True, 1.5, "3", [256]):
        made = load_huggingface_tokenizer(folder_with(tmp_path, config={"pad_token_id": number, "eos_token_id": 256}))
        assert (made.pad_id, made.eos_id) == (None, 256)
        config = {"is_encoder_decoder": True, "decoder_start_token_id": number, "eos_token_id": 256}
        if number != 999:
            with pytest.raises(UserError, match=r"decoder_start_token_id=.* the number of no token"):
                load_huggingface_tokenizer(folder_with(tmp_path, config=config))


def test_files_without_tokenizer_json_are_not_guessed(fixtures: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((fixtures / f"gpt2-{name}").read_bytes())
    for said, config, told in (
        ({}, {}, "model_type=None and no tokenizer_class"),
        ({}, {"model_type": "openai-gpt"}, "model_type=openai-gpt and no tokenizer_class"),
        ({"tokenizer_class": "OpenAIGPTTokenizer"}, {"model_type": "gpt2"}, "tokenizer_class=OpenAIGPTTokenizer"),
        ({"tokenizer_class": "CLIPTokenizerFast"}, {}, "tokenizer_class=CLIPTokenizer"),
        ({"tokenizer_class": "BertTokenizer"}, {}, "tokenizer_class=BertTokenizer"),
    ):
        folder_with(tmp_path, tokenizer_config=said, config=config)
        with pytest.raises(UserError, match=f"has no tokenizer.json, but {told}: without one only .* are read; write"):
            load_huggingface_tokenizer(tmp_path)
    made = load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config={"tokenizer_class": "GPT2TokenizerFast"}))
    assert made.encode([" dog"]) == [[3290]]
    prefixed = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    assert load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=prefixed)).encode(["dog"]) == [[3290]]
    with pytest.raises(UserError, match="add_prefix_space=1, which is neither true nor false"):
        load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=prefixed | {"add_prefix_space": 1}))
    with pytest.raises(UserError, match="has no <pad>, <s>, "):
        load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config={"tokenizer_class": "RobertaTokenizer"}))


def test_robertas_own_files_are_its_tokenizer(tmp_path: Path) -> None:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *byte_characters(), "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    made = load_huggingface_tokenizer(folder_with(tmp_path, config={"model_type": "roberta"}))
    assert roles(made) == {"pad": 1, "begin": 0, "end": 2, "unknown": 3, "mask": 260}
    assert isinstance(made, FastTokenizer)
    assert shown(made, "a <mask> b") == "<s>|a|<mask>|Ġ|b|</s>"
    assert made.leading_ids == [0]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"do_lower_case": False}, "do_lower_case=False; the tokenizer is read with True"),
        ({"strip_accents": False}, "strip_accents=False; the tokenizer is read with None"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars=False"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize=False"),
        ({"never_split": ["x"]}, r"never_split=\['x'\]"),
        ({"bos_token": "[CLS]", "add_bos_token": True}, "add_bos_token=True; the tokenizer is read with False"),
        ({"mask_token": "<mask>"}, "mask_token is '<mask>', which is not in the tokenizer's vocabulary"),
        ({"added_tokens_decoder": {"3": "x"}}, "is unusable"),
        ({"added_tokens_decoder": {"3": {"content": "[SEP]", "lstrip": "x"}}}, "is unusable"),
        ({"added_tokens_decoder": [1]}, "is unusable"),
    ],
)
def test_what_a_config_says_otherwise_than_its_tokenizer_is_refused(
    bert: FastTokenizer, tmp_path: Path, said: dict[str, Any], told: str
) -> None:
    bert.backend.save(str(tmp_path / "tokenizer.json"))
    agreeing = {"do_lower_case": True, "strip_accents": None, "never_split": None, "mask_token": "[MASK]"}
    assert roles(load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=agreeing)))["mask"] == 4
    with pytest.raises(UserError, match=told):
        load_huggingface_tokenizer(folder_with(tmp_path, tokenizer_config=said))


def test_numbers_with_gaps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "the", "last"]) + "\n")
    with pytest.raises(UserError, match="the tokenizer's 13 tokens have numbers up to 13: only those without gaps"):
        load_huggingface_tokenizer(folder_with(tmp_path, config={"model_type": "bert"}))


def test_a_pieces_suffix_that_the_decoder_does_not_know_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="the suffix '</w>', which its decoder does not read back"):
        load_huggingface_tokenizer(tmp_path)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no tokenizer: it has none of tokenizer.json"):
        load_huggingface_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"has no \[PAD\].* name BERT's vocab.txt"):
        load_wordpiece_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match=r"absent.json cannot be read"):
        load_gpt2_tokenizer(tmp_path / "absent.json", tmp_path / "absent.txt")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer.json cannot be read"):
        load_huggingface_tokenizer(tmp_path)


def test_hostile_files_are_refused_in_a_line_or_read_one_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found, messages = {}, {}
    for number, case in enumerate(hostile_tokenizers.cases()):
        folder = tmp_path / str(number)
        case.write(folder)
        try:
            tokenizer = load_huggingface_tokenizer(folder)
        except UserError as error:
            found[case.name] = True
            messages[case.name] = str(error).replace(str(folder), "FOLDER")
        else:
            readings = [tokenizer.encode(["ab a \ufb01 zebra"]) for _ in range(4)]
            assert readings.count(readings[0]) == 4, case.name
            found[case.name] = False
    assert found == {case.name: case.refused for case in hostile_tokenizers.cases()}
    assert [name for name, message in messages.items() if "\n" in message or "FOLDER" not in message] == []
    errors = capfd.readouterr().err  # where the library reports a panic
    assert {line.partition(",")[0] for line in errors.splitlines()} == {"the tokenizer leaves out merges at random"}


def test_a_run_whose_tokenizer_fails_is_refused(tmp_path: Path) -> None:
    described = hostile_tokenizers.plain()
    described["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    (tmp_path / "tokenizer_roles.json").write_text(json.dumps({"unknown": 0}))
    with pytest.raises(UserError, match="cannot be used: the tokenizers library fails: index out of bounds"):
        load_tokenizer(tmp_path)


def test_dropout_is_off_and_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = hostile_tokenizers.plain()
    described["model"]["dropout"] = 0.5
    hostile_tokenizers.write(tmp_path, described)
    made = load_huggingface_tokenizer(tmp_path)
    assert len({tuple(made.encode(["a ab ab a ab a ab"])[0]) for _ in range(30)}) == 1
    said = "the tokenizer leaves out merges at random, dropout=0.5: this is off, for all texts\n"
    assert capsys.readouterr().err == said
    assert json.loads(made.backend.to_str())["model"]["dropout"] is None
