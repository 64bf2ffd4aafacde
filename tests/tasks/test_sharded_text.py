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


def sharded_task(text: Any, folder: Path, **values: Any) -> Any:
    return make_task(text, folder, "language_modeling", **{"shards_dir": str(folder / "shards"), **values})


def decoded(documents: Any) -> str:
    return "|".join(bytes(np.asarray(document).tolist()).decode() for document in documents)


def test_a_file_is_trained_on_but_for_its_end_which_is_evaluated(text_file: Path, tmp_path: Path) -> None:
    task = sharded_task(text_file, tmp_path)
    content = text_file.read_bytes()
    size = (len(content) + 1) // 20
    assert task.split_sizes["train"] == len(content) + 1 - 2 * size
    assert decoded(task._splits["validation"]).encode() == content[1 - 2 * size : 1 - size]
    assert decoded(task._splits["test"]).encode() == content[1 - size :]
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
    assert decoded(task._splits["validation"]).count("BETA") == 40
    assert "GAMMA" in decoded(task._splits["validation"])
    assert "GAMMA" in decoded(task._splits["test"])
    assert any("weights 0.25, 0.75" in line for line in task.data_summary)
    natural = sharded_task(names, tmp_path)
    first, second = natural._train_shards.sets
    assert natural._train_shards.weights == (
        len(first) / len(natural._train_shards),
        len(second) / len(natural._train_shards),
    )
    own = sharded_task(texts / "b.jsonl", tmp_path, validation_files=str(texts / "a" / "valid.jsonl"))
    assert decoded(own._splits["validation"]).count("BETA") == 40


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
    (shards,) = (each.shards for each in task._train_shards.sets)
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
