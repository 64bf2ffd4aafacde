"""The alignment error of a run on sentence pairs in files: the run's own figure where the pairs are its own."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from launch import alignment_error_rate, cli
from transformer.config import UserError
from transformer.data.datasets.translation import open_translation_dataset
from transformer.tasks.word_alignment_evaluation import read_alignment_files, word_alignment_evaluation
from transformer.training import build, driver, partitioning
from transformer.training.compiled_evaluation import compile_evaluations
from transformer.training.config import resolve_config
from transformer.training.run_loading import load_run

pytestmark = pytest.mark.slow

DATASET = "reversal/length=4,num_symbols=6,train=64,validation=8,test=9"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        "name": "aligned",
        "steps": 2,
        "eval_every": 0,
        "maps_every": 0,
        "task": {
            "name": "translation",
            "dataset": DATASET,
            "vocab_size": 20,
            "bucket_lengths": (5,),
            "tokens_per_batch": 40,
            "num_probe_examples": 2,
            "num_beams": 1,
        },
        "model": {"family": "recurrent_encoder_decoder", "width": 8, "embedding_width": 4},
        "optimizer": {"learning_rate": 0.01},
    }
    folder = tmp_path_factory.mktemp("align") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            build, "make_placement", lambda config: partitioning.single_device_placement()
        )  # meshes have their tests
        # What else is measured takes longer to compile than all else here.
        patch.setattr(
            driver,
            "compile_evaluations",
            lambda *arguments: [
                compiled for compiled in compile_evaluations(*arguments) if compiled.evaluation.name == "alignment"
            ],
        )
        driver.train(resolve_config(config), folder)
    return folder


def written(folder: Path, *, first: int = 0, reverse: bool = False) -> list[str]:
    """The test pairs of the run as files, and the flags that name them."""
    pairs = list(open_translation_dataset(DATASET, prepared_dir=str(folder)).split("test"))
    lines: dict[str, list[str]] = {"source": [], "target": [], "links": []}
    for pair in pairs:
        assert pair.word_alignment is not None
        lines["source"].append(pair.source)
        lines["target"].append(pair.target)
        moved = [(i + first, j + first)[:: -1 if reverse else 1] for i, j in pair.word_alignment.sure]
        lines["links"].append(" ".join(f"{i}-{j}" for i, j in moved))
    for name, texts in lines.items():
        # As some files in the world begin: with a byte-order mark.
        (folder / name).write_text("\ufeff" + "\n".join(texts) + "\n", encoding="utf-8")
    flags = {"source": "source_text", "target": "target_text", "links": "alignments"}
    return [f"--{flags[name]}={folder / name}" for name in lines]


@pytest.mark.parametrize(("first", "reverse"), [(0, False), (1, True)])
def test_the_runs_own_pairs_have_the_runs_own_error(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: int, reverse: bool
) -> None:
    words = [f"--workdir={run}", *written(tmp_path, first=first, reverse=reverse), f"--first_word_index={first}"]
    assert (
        cli.run(
            alignment_error_rate.COMMAND, alignment_error_rate.main, [*words, *(["--target_first"] if reverse else [])]
        )
        == 0
    )
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  "))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (own,) = (each for each in records if "alignment_error_rate" in each)
    for name in ("alignment_error_rate", "alignment_error_rate_diagonal"):
        assert printed[name] == f"{own[name]:.4f}"


def test_of_several_heads_every_second_pair_chooses(run: Path, tmp_path: Path) -> None:
    written(tmp_path)
    pairs = read_alignment_files(*(tmp_path / name for name in ("source", "target", "links")))
    _, loaded, _ = load_run(run)
    (site,) = loaded.model.sites
    two = dataclasses.replace(loaded.model, sites=(dataclasses.replace(site, heads=("0", "1")),))
    weights = np.zeros((9, 1, 2, 5, 5))
    # The first head says the truth of every second pair, the first of them among these; the second of the others.
    for number in range(9):
        weights[number, 0, number % 2] = np.eye(5)[[3, 2, 1, 0, 4]]
        weights[number, 0, 1 - number % 2] = np.eye(5)
    evaluation = word_alignment_evaluation(loaded.task, two, pairs)
    order = [0, 2, 4, 6, 8, 1, 3, 5, 7]
    rows = {"index": np.arange(9), "weights": {site.name: weights[order]}}
    found = evaluation.finish({}, rows).scalars
    assert (found["alignment_head"], found["alignment_error_rate_validation"]) == (0, 0)
    assert found["alignment_error_rate"] == found["alignment_error_rate_diagonal"] > 0


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("links", "0-0\n", " 1: give three files of as many lines"),
        ("links", None, "there is no file"),
        ("links", "x-y" + "\n" * 9, "'x-y' is no list of links"),
        ("links", "0-9" + "\n" * 9, "leave the pair out, or say --target_first or --first_word_index"),
        ("links", "0-0 -1-0" + "\n" * 9, "is no list of links"),
        ("links", "\n" * 9, "links has no links: give those of at least one pair"),
        ("source", "A\n\n \nB\n" + "A\n" * 5, "source: line 2, and 1 more, is empty: fill or remove it"),
        ("target", "A\n" * 8 + "\u00a0\n", "target: line 9 is empty: fill or remove it"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, says: str
) -> None:
    words = written(tmp_path)
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)
    assert cli.run(alignment_error_rate.COMMAND, alignment_error_rate.main, [f"--workdir={run}", *words]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert len(printed.splitlines()) == 1


def test_what_cannot_be_aligned_is_refused(run: Path, tmp_path: Path) -> None:
    written(tmp_path)
    pairs = read_alignment_files(*(tmp_path / name for name in ("source", "target", "links")))
    _, loaded, _ = load_run(run)
    with pytest.raises(UserError, match="only a run that translates"):
        word_alignment_evaluation(object(), loaded.model, pairs)  # type: ignore[arg-type]
    odd = [pairs[0]._replace(source="a  b")]  # two spaces
    with pytest.raises(UserError, match="pair 1: the run's tokenizer has other words in"):
        word_alignment_evaluation(loaded.task, loaded.model, odd)


def test_links_are_read_from_either_side_and_from_any_first_number(tmp_path: Path) -> None:
    for name, text in {"source": "a b", "target": "x y z", "links": "1-1 1p3 2-2", "other": "0-0 2p0 1-1"}.items():
        (tmp_path / name).write_text(f"{text}\n{text}\n")
    files = [tmp_path / name for name in ("source", "target", "links")]
    pair, again = read_alignment_files(*files, first=1, language="de")
    assert pair == again == ("a b", "x y z", "de", None, (((0, 0), (1, 1)), ((0, 0), (0, 2), (1, 1))))
    assert read_alignment_files(*files[:2], tmp_path / "other", reverse=True, language="de") == [pair, again]
