"""Language modeling on token shards: its splits, its tokenizer, what it refuses, and a bucket in place of a disk."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tasks.conftest import LINE, make_task
from tests.training.bucket_server import running
from transformer.config import UserError
from transformer.data.batches import RowBatchSource
from transformer.data.token_mixture import TokenShardBatches
from transformer.data.tokenizers.load import load_tokenizer

END = 256


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets, one of them with a validation split of its own."""
    folder = tmp_path_factory.mktemp("texts")
    for name, word in (("a/train.jsonl", "ALPHA"), ("a/valid.jsonl", "BETA"), ("b.jsonl", "GAMMA")):
        (folder / name).parent.mkdir(exist_ok=True)
        line = LINE.upper() if word == "GAMMA" else LINE
        lines = (json.dumps({"text": f"{word} {line.format(n, n)}"}) for n in range(40))
        (folder / name).write_text("\n".join(lines))
    return folder


def sharded_task(text: Any, folder: Path, task: str = "language_modeling", **values: Any) -> Any:
    return make_task(text, folder, task, **{"shards_dir": str(folder / "shards"), **values})


def decoded(documents: Any) -> str:
    return "|".join(bytes(np.asarray(document).tolist()).decode() for document in documents)


def test_a_file_is_trained_on_but_for_its_end_which_is_evaluated(text_file: Path, tmp_path: Path) -> None:
    task = sharded_task(text_file, tmp_path)
    content = text_file.read_bytes()
    size = (len(content) + 1) // 20
    assert task.split_sizes["train"] == len(content) + 1 - 2 * size
    assert decoded(task.text.splits["validation"]).encode() == content[1 - 2 * size : 1 - size]
    assert decoded(task.text.splits["test"]).encode() == content[1 - size :]
    assert any("validation, test from the ends of the files" in line for line in task.data_summary)
    batches = task.training_batches(0)
    assert isinstance(batches, TokenShardBatches)
    windows = (task.split_sizes["train"] - 1) // 24
    epoch = [batches[step] for step in range(windows // 4)]
    assert len({int(number) for batch in epoch for number in batch["index"]}) == windows // 4 * 4
    assert all(bytes(row.tolist()) in content[: -2 * size] for batch in epoch[:5] for row in batch["tokens"])
    # Another run of the text, and one that names the shards, have the same batches.
    (tmp_path / "run").mkdir()
    (shards,) = (tmp_path / "shards").glob("tokens-*")
    for other in (
        sharded_task(text_file, tmp_path / "run", shards_dir=str(tmp_path / "shards")),
        sharded_task(shards, tmp_path / "run", shards_dir=None),
    ):
        assert other.fingerprint() == task.fingerprint()
        np.testing.assert_array_equal(other.training_batches(0)[7]["tokens"], batches[7]["tokens"])
    assert load_tokenizer(tmp_path / "run").vocab_size == 257


def test_a_mixture_has_weights_and_splits_of_its_sets(texts: Path, tmp_path: Path) -> None:
    names = f"{texts / 'a'},{texts / 'b.jsonl'}"
    task = sharded_task(names, tmp_path, dataset_weights=(0.25, 0.75), batch_size=4096)
    rows = task.training_batches(0)[0]["tokens"]
    # The second set alone has no small letters.
    assert sum(any(97 <= token < 123 for token in row) for row in rows) == 1024
    # The first has its validation file, which is whole, the second is cut; both are cut for the test.
    assert decoded(task.text.splits["validation"]).count("BETA") == 40
    assert "GAMMA" in decoded(task.text.splits["validation"])
    assert "GAMMA" in decoded(task.text.splits["test"])
    assert any("weights 0.25, 0.75" in line for line in task.data_summary)
    natural = sharded_task(names, tmp_path)
    first, second = natural.text.train_shards.sets
    assert natural.text.train_shards.weights == (
        len(first) / len(natural.text.train_shards),
        len(second) / len(natural.text.train_shards),
    )
    own = sharded_task(texts / "b.jsonl", tmp_path, validation_files=str(texts / "a" / "valid.jsonl"))
    assert decoded(own.text.splits["validation"]).count("BETA") == 40


def test_packed_documents_and_questions_read_token_shards_too(texts: Path, tmp_path: Path) -> None:
    task = sharded_task(texts / "b.jsonl", tmp_path, batching="packed", tokenizer="bpe", vocab_size=300)
    batch = task.training_batches(0)[0]
    assert {name: values.shape for name, values in batch.items()} == {
        **dict.fromkeys(("tokens", "labels", "segments", "positions", "counts"), (4, 24)),
        "index": (4,),
    }
    end = load_tokenizer(tmp_path).eos_id
    np.testing.assert_array_equal(batch["counts"], batch["tokens"] != end)
    assert len(task.evaluations[0].batches) > 0


def test_characters_that_the_sample_lacks_are_unknown(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer.tasks.sharded_text.TOKENIZER_SAMPLE_BYTES", 1000)
    monkeypatch.setattr("transformer.data.corpus.PIECE_BYTES", 500)
    path = tmp_path / "a.txt"
    path.write_text("abc\n" * 1000 + "ß" + "\ncba" * 1500)
    task = sharded_task(path, tmp_path, tokenizer="characters")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 6
    (shards,) = (each.shards for each in task.text.train_shards.sets)
    assert (shards.read(0, 10_002) == tokenizer.unk_id).sum() == 1


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"shards_dir": None, "dataset_weights": (1.0,)}, "dataset_weights=(1.0,) are for token shards"),
        ({"dataset_weights": (1.0, 2.0)}, "are 2 and config.task.dataset names 1 data sets"),
        ({"validation_split": "train"}, "'train' cannot be evaluated with token shards: say validation or test"),
        ({"tokenizer": "existing"}, "there is no run directory that holds one"),
        ({"dataset": "none/*.txt"}, "no file matches none/*.txt"),
        ({"num_tokenizing_processes": 0}, "config.task.num_tokenizing_processes=0 must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(
    values: dict[str, Any], says: str, text_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        sharded_task(text_file, tmp_path, **values)
    assert says in str(error.value)


def test_token_shards_of_another_tokenizer_are_refused(text_file: Path, texts: Path, tmp_path: Path) -> None:
    for name, tokenizer in (("one", "bytes"), ("two", "characters")):
        (tmp_path / name).mkdir()
        sharded_task(text_file, tmp_path / name, tokenizer=tokenizer)
    one, two = (next((tmp_path / name / "shards").glob("tokens-*")) for name in ("one", "two"))
    with pytest.raises(UserError, match="was tokenized by another tokenizer than that in"):
        sharded_task(two, tmp_path / "one", shards_dir=None)
    with pytest.raises(
        UserError, match=r"b\.jsonl is not tokenized: name a folder for its token shards by config\.task"
    ):
        sharded_task(f"{one},{texts / 'b.jsonl'}", tmp_path / "one", shards_dir=None)


@pytest.fixture(scope="module")
def split_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of which every split has a file, so that its training text is the same in memory and in shards."""
    folder = tmp_path_factory.mktemp("splits")
    for split, count in (("train", 90), ("valid", 30), ("test", 30)):
        lines = (json.dumps({"text": LINE.format(n, split)}) for n in range(count))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("name", ["segment_lm", "permutation_lm"])
def test_segments_of_token_shards_are_those_of_the_text_in_memory(name: str, split_texts: Path, tmp_path: Path) -> None:
    folders = [tmp_path / each for each in ("memory", "shards")]
    for folder in folders:
        folder.mkdir()
    values = {"segments_per_eval_text": 2}
    in_memory = make_task(split_texts, folders[0], name, **values).training_batches(3)
    task = sharded_task(split_texts, folders[1], task=name, **values)
    batches = task.training_batches(3)
    for step in (0, 1, 50, 10**6):
        expected, found = in_memory[step], batches[step]
        assert expected.keys() == found.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array)
    assert isinstance(batches, RowBatchSource)  # or hosts would read all rows
    parts = [batches.read_rows(7, start, start + 2) for start in (0, 2)]
    for key, array in batches[7].items():
        np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), array)
    with pytest.raises(UserError, match="are several data sets of token shards, and segments that follow one another"):
        sharded_task(f"{split_texts},{split_texts}", tmp_path, task=name, **values).training_batches(0)


@pytest.mark.parametrize("input_format", ["crops", "windows"])
def test_masked_windows_of_token_shards_have_every_token_once_an_epoch(
    input_format: str, split_texts: Path, tmp_path: Path
) -> None:
    task = sharded_task(split_texts, tmp_path, task="masked_lm", input_format=input_format)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.mask_id is not None
    end = tokenizer.eos_id
    (shards,) = (each.shards for each in task.text.train_shards.sets)
    lines = [json.loads(line)["text"].encode() for line in (split_texts / "train.jsonl").read_text().split("\n")]
    assert shards.read(0, len(shards)).tolist() == [token for line in lines for token in (*line, end)]
    batches, windows = task.training_batches(0), (len(shards) - 1) // 23
    rows = {}
    for number in range(windows):
        batch = batches.read_rows(number // 4, number % 4, number % 4 + 1)
        assert batch.keys() == {"tokens", "index"}
        assert batch["tokens"][0, -1] == end
        rows[int(batch["index"][0])] = batch["tokens"][0, :-1]
    assert sorted(rows) == list(range(windows))
    read = np.concatenate([rows[number] for number in range(windows)])
    begins = range(len(shards) - len(read))
    assert any(np.array_equal(shards.read(begin, begin + len(read)), read) for begin in begins)


def test_pairs_and_static_masks_are_not_read_from_token_shards(split_texts: Path, tmp_path: Path) -> None:
    for values, says in (
        ({"input_format": "pairs"}, "input_format=pairs draws pairs from sentences"),
        ({"input_format": "windows", "masking": "static"}, "masking=static hides the same tokens"),
    ):
        with pytest.raises(UserError, match=says):
            sharded_task(split_texts, tmp_path, task="masked_lm", **values)
    assert not (tmp_path / "shards").exists()


@pytest.mark.skipif(find_spec("gcsfs") is None, reason="needs the extra gcs")
def test_text_and_token_shards_may_lie_in_a_bucket(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer.storage.paths import parse_path, storage_of

    local = sharded_task(texts / "b.jsonl", tmp_path)
    with running() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        text = parse_path("gs://bucket/text/b.jsonl")
        storage_of(text).replace(text, (texts / "b.jsonl").read_bytes())
        for dataset in ("gs://bucket/text/b.jsonl", "gs://bucket/text", "gs://bucket/text/*.jsonl"):
            (tmp_path / "run").mkdir(exist_ok=True)
            task = sharded_task(dataset, tmp_path / "run", shards_dir="gs://bucket/shards")
            assert task.fingerprint() == local.fingerprint()
            np.testing.assert_array_equal(task.training_batches(3)[5]["tokens"], local.training_batches(3)[5]["tokens"])
