"""The command that makes token shards: what it prints, that it goes on, and what it refuses."""

import json
from pathlib import Path

import pytest

from launch import cli, tokenize

CONFIG = """
from ml_collections import ConfigDict

def get_config():
    task = dict(name="{task}", dataset="{folder}/a.jsonl", tokenizer="bytes")
    model = dict(family="{family}", width=8, heads=2, layers=1)
    return ConfigDict(dict(name="x", steps=1, optimizer=dict(learning_rate=0.1), task=task, model=model))
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    lines = [json.dumps({"text": f"text number {n}"}) for n in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "config.py").write_text(CONFIG.format(task="language_modeling", family="decoder", folder=tmp_path))
    return f"--config={tmp_path / 'config.py'}"


def called(*words: str) -> int:
    return cli.run(tokenize.COMMAND, tokenize.main, words)


def test_it_prints_the_folders_and_finds_them_again(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (config, f"--config.task.shards_dir={tmp_path}/shards")
    assert called(*words) == 0
    first = capsys.readouterr().out.splitlines()
    (folder,) = (tmp_path / "shards").glob("tokens-*")
    size = sum(len(f"text number {n}") + 1 for n in range(50))
    said = f"{tmp_path}/a.jsonl (train): {size} tokens of a vocabulary of 257, 50 documents in 1 shards of {folder}"
    assert first[-1] == said
    assert first[0] == f"tokenizing {tmp_path}/a.jsonl (train): 0 of 1 shards, 0 tokens"
    assert called(*words, "--verify") == 0
    assert capsys.readouterr().out == f"{said}, which match their checksums\n"
    (folder / "00000.tokens").write_bytes(bytes(2 * size))
    assert called(*words, "--verify") == 2
    assert (
        "00000.tokens is not what its index says, for samples of it differ: remove the folder and tokenize again"
        in capsys.readouterr().err
    )
    # A run's tokenizer, and the shards that it makes, can be another's.
    run = next((tmp_path / "shards").glob("tokenizer-*"))
    assert called(config, f"--config.task.shards_dir={tmp_path}/others", f"--workdir={run}") == 0
    assert next((tmp_path / "others").glob("tokens-*")).name == folder.name


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "tokenize needs a folder for the token shards: add --config.task.shards_dir=DIR"),
        (("--config.task.shards_dir=a", "--workdir=none"), "--workdir=none holds no tokenizer: name a run, or omit it"),
        (
            ("--config.task.shards_dir=a", "--config.task.dataset=none.txt"),
            "there is no file none.txt: name .txt, .jsonl",
        ),
        (("--config.task.shards_dir=a", "--config.task.dataset_weights=[1,-1]"), "config.task.dataset_weights"),
        (
            ("--config.task.shards_dir=/dev/null/shards",),
            "config.task.shards_dir=/dev/null/shards cannot be used: Not a directory",
        ),
    ],
)
def test_what_cannot_be_tokenized_is_refused_in_one_line(
    words: tuple[str, ...], says: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(config, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_folder_in_the_place_of_the_index_is_refused_in_one_line(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(config, f"--config.task.shards_dir={tmp_path}/shards") == 0
    (index,) = (tmp_path / "shards").glob("tokens-*/index.json")
    index.unlink()
    index.mkdir()
    capsys.readouterr()
    assert called(config, f"--config.task.shards_dir={tmp_path}/shards") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"config.task.shards_dir={tmp_path}/shards cannot be used: Is a directory" in line
    assert str(index) in line


@pytest.mark.parametrize(
    ("task", "family"), [("masked_lm", "encoder"), ("segment_lm", "transformer_xl"), ("permutation_lm", "xlnet")]
)
def test_every_language_model_has_token_shards(
    task: str, family: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.py").write_text(CONFIG.format(task=task, family=family, folder=tmp_path))
    assert called(config, f"--config.task.shards_dir={tmp_path}/shards") == 0
    assert "50 documents in 1 shards" in capsys.readouterr().out


def test_other_tasks_have_no_token_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = CONFIG.format(task="translation", family="encoder_decoder", folder=tmp_path)
    (tmp_path / "config.py").write_text(
        given.replace("layers=1", "encoder_layers=1").replace(', tokenizer="bytes"', "")
    )
    assert called(f"--config={tmp_path / 'config.py'}") == 2
    assert "config.task.name=translation has no token shards: name the config of" in capsys.readouterr().err
