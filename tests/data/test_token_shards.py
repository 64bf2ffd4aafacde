"""Token shards: what is read of them is what the tokenizer says, and a damaged one is refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def _change_documents(folder: Path) -> None:
    counts = json.loads((folder / "index.json").read_text())["num_documents"]
    _change_index(num_documents=[counts[0] + 1, counts[1] - 1, *counts[2:]])(folder)


def _swap(folder: Path) -> None:
    """Exchange two shards of one size, as a copy of a folder may."""
    first, second = (folder / f"0000{number}.tokens" for number in range(2))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    index = json.loads((folder / "index.json").read_text())
    # Sizes as the files have now.
    index["num_tokens"][:2] = index["num_tokens"][1::-1]
    _reseal(folder, index)


def _overwrite(folder: Path) -> None:
    path = folder / "00001.tokens"
    path.write_bytes(path.read_bytes()[::-1])


def _reseal(folder: Path, index: dict[str, Any]) -> None:
    """Write an index with the digest of what it says, as somebody who knows how would."""
    index["index_sha256"] = hashlib.sha256(
        json.dumps({name: value for name, value in index.items() if name != "index_sha256"}, sort_keys=True).encode()
    ).hexdigest()
    (folder / "index.json").write_text(json.dumps(index))


def _truncate(folder: Path) -> None:
    path = folder / "00001.tokens"
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "index.json").unlink(), "holds no index.json: its token shards are not"),
        (lambda folder: (folder / "00002.tokens").unlink(), "00002.tokens is missing: remove the folder and"),
        (_truncate, "bytes where its index says"),
        (
            _change_index(version=1),
            "index.json is of version 1 of token shards, where 2 is read: remove the folder and",
        ),
        (_change_index(num_documents=[1]), "its lists differ in length"),
        (_change_index(end_id=257), "end_id=257 is beyond its vocabulary"),
        (_change_index(num_tokens="a"), "num_tokens"),
        (_change_index(num_tokens=[10**30]), "num_tokens[0]=1000000000000000000000000000000 must be at most"),
        (_change_index(end_id=10), "index.json was changed, for its SHA-256 differs: remove the folder"),
        (_change_index(vocab_size=300), "index.json was changed, for its SHA-256 differs"),
        (_change_index(tokenizer_sha256="0" * 64), "index.json was changed, for its SHA-256 differs"),
        (_change_documents, "index.json was changed, for its SHA-256 differs"),
        (_swap, "00000.tokens is not what its index says, for samples of it differ: remove the folder and"),
        (_overwrite, "00001.tokens is not what its index says, for samples of it differ"),
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


@pytest.mark.parametrize("token", [2**31, 2**31 + 5, 2**32 - 1, 70_000])
def test_a_number_of_32_bits_is_checked_before_it_could_turn_negative(token: int, shards: TokenShards) -> None:
    index = json.loads((shards.folder / "index.json").read_text())
    contents = []
    for number, count in enumerate(index["num_tokens"]):
        tokens = np.fromfile(shards.folder / f"{number:05d}.tokens", "<u2").astype("<u4")
        tokens[count // 2] = token if number == 1 else tokens[count // 2]
        contents.append(tokens.tobytes())
        (shards.folder / f"{number:05d}.tokens").write_bytes(contents[-1])
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    _reseal(shards.folder, index | {"vocab_size": 70_000, "shard_sha256": digests, "samples_sha256": digests})
    opened = TokenShards(shards.folder)
    assert opened.read(0, index["num_tokens"][0]).max() < 257
    with pytest.raises(UserError, match=rf"it has the token {token} where its vocabulary has 70,000"):
        opened.read(0, len(opened))
    with pytest.raises(UserError, match=rf"it has the token {token} where its vocabulary has 70,000"):
        opened.check_content()


def test_a_sealed_index_with_other_documents_is_found_by_the_check_of_content(shards: TokenShards) -> None:
    index = json.loads((shards.folder / "index.json").read_text())
    for changed in ({"end_id": 10}, {"num_documents": [1, *index["num_documents"][1:]]}):
        _reseal(shards.folder, index | changed)
        with pytest.raises(UserError, match=r"00000\.tokens has \d+ documents where its index says \d+: remove"):
            TokenShards(shards.folder).check_content()
