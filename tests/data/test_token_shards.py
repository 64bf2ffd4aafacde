"""Token shards: what is read of them is what the tokenizer says, and a damaged one is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.corpus import describe_files
from transformer.data.token_shards import TokenShards, split_documents, token_dtype
from transformer.data.tokenize_corpus import tokenize_corpus
from transformer.data.tokenizers.load import load_tokenizer
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer

TEXTS = [f"document {n} has {'many ' * (n % 7)}words" for n in range(60)]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer(("end",)).save(folder)
    return folder


@pytest.fixture
def shards(tmp_path: Path, tokenizer_dir: Path) -> TokenShards:
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    return tokenize_corpus(describe_files([tmp_path / "a.jsonl"]), tokenizer_dir, tmp_path / "shards", part_bytes=500)


def test_any_range_is_read_over_the_ends_of_shards(shards: TokenShards) -> None:
    wanted = np.concatenate([[*text.encode(), 256] for text in TEXTS])
    assert len(shards.index.num_tokens) > 4
    assert len(shards) == len(wanted)
    assert shards.num_documents == len(TEXTS)
    for start, stop in ((0, len(wanted)), (0, 0), (5, 700), (len(wanted) - 3, len(wanted)), (401, 402)):
        read = shards.read(start, stop)
        assert read.dtype == np.int32
        np.testing.assert_array_equal(read, wanted[start:stop])
    documents = split_documents(shards.read(3, len(wanted) - 2), 256)
    assert [bytes(document.tolist()).decode() for document in documents] == [TEXTS[0][3:], *TEXTS[1:-1], TEXTS[-1][:-1]]
    assert load_tokenizer(shards.folder).eos_id == 256
    shards.check_content()


def test_numbers_take_two_bytes_as_long_as_the_vocabulary_allows() -> None:
    assert (token_dtype(2**16).str, token_dtype(2**16 + 1).str) == ("<u2", "<u4")


def _change_index(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "index.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _truncate(folder: Path) -> None:
    path = folder / "00001.tokens"
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "index.json").unlink(), "holds no index.json: its token shards are not"),
        (lambda folder: (folder / "00002.tokens").unlink(), "00002.tokens is missing: remove the folder and"),
        (_truncate, "bytes where its index says"),
        (_change_index(version=2), "version=2"),
        (_change_index(num_documents=[1]), "its lists differ in length"),
        (_change_index(end_id=257), "end_id=257 is beyond its vocabulary"),
        (_change_index(num_tokens="a"), "num_tokens"),
    ],
)
def test_damaged_token_shards_are_refused_in_one_line(
    shards: TokenShards, damage: Callable[[Path], None], says: str
) -> None:
    damage(shards.folder)
    with pytest.raises(UserError) as error:
        TokenShards(shards.folder)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_damage_that_keeps_the_size_is_found_where_it_is_read_and_by_checksums(shards: TokenShards) -> None:
    path = shards.folder / "00001.tokens"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    shards.read(0, len(shards))
    with pytest.raises(UserError, match=r"00001\.tokens is damaged, for its SHA-256 differs"):
        shards.check_content()
    content[1] = 255
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"it has the token 65\d+ where its vocabulary has 257"):
        shards.read(0, len(shards))
    path.write_bytes(content[:-2])
    with pytest.raises(UserError, match="has become shorter than its index says"):
        shards.read(0, len(shards))
