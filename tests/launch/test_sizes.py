"""The command that lists the published models, and naming one on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch import cli, sizes
from transformer.models.published import PUBLISHED as SIZES
from transformer.models.registry import model_config

CONFIG = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict(dict(task=dict(name="language_modelling"), model=dict(family="decoder", width=None, dropout=0.1)))
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.run(sizes.COMMAND, sizes.main, words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_every_size_is_a_row_of_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rest = printed(capsys).splitlines()
    rows = rest[: rest.index("")]
    assert header.split("  ")[0] == "name"
    assert [row.split()[0] for row in rows] == list(SIZES)
    # Columns line up: the citation of every row begins, and its parameters end, where the heading's do.
    start, end = header.index("citation"), header.index("parameters") + len("parameters")
    for row in rows:
        assert row[start - 2 : start] == "  "
        assert row[start:] == SIZES[row.split()[0]].citation
        assert row[end - 1].isdigit()
        assert row[end] == " "
    by_name = {row.split()[0]: row for row in rows}
    assert "1,557,611,200" in by_name["gpt2-xl"]
    assert by_name["transformer-base"].split()[2:8] == ["6+6", "512", "8", "63,045,632", "65M", "-3.0"]
    assert by_name["gpt3-175b"].split()[2:7] == ["96", "12288", "96", "174,604,259,328", "175B"]
    assert "6.31e+23" in by_name["gopher-280b"]
    notes = " ".join(" ".join(rest[len(rows) :]).split())
    assert "transformer-base, transformer-big: the vocabulary is published as 'about 37000 tokens'" in notes
    assert "13 L d^2 + V d = 279,697,162,240" in notes
    assert max(map(len, rest[len(rows) :])) <= 116


def test_json_has_an_object_for_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[dict[str, Any]] = json.loads(printed(capsys, "--json"))
    by_name = {entry["name"]: entry for entry in found}
    assert list(by_name) == list(SIZES)
    gopher = by_name["gopher-280b"]
    assert gopher["parameters"] == 279_714_217_984
    assert gopher["parameters_without_norms_and_biases"] == 279_697_162_240
    assert gopher["training_flops"] == 6.31e23
    xlnet = by_name["xlnet-large"]
    assert (xlnet["parameters"], xlnet["parameters_counted_from"]) == (360_268_800, "formula")
    assert (xlnet["flops_a_token"], xlnet["published_parameters"]) == (None, None)
    assert by_name["bert-base"]["parameters"] == 109_482_240
    assert by_name["roberta-large"]["parameters"] == 355_359_744
    assert by_name["gpt2"]["flops_a_token"] == 6 * (12 * 12 * 768**2 + 50_257 * 768) + 12 * 12 * 768 * 1024
    assert by_name["transformer-big"]["layers"] == 12


def test_one_size_alone(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = json.loads(printed(capsys, "--json", "--name=gpt3-1.3b"))
    assert entry["values"]["windows"] == [0, 128]
    said = printed(capsys, "--name=gpt3-1.3b")
    assert said.splitlines()[1].startswith("gpt3-1.3b")
    assert "24 heads of depth 128" in said
    assert "gpt2" not in said


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--name=gpt2xl", "error: --name='gpt2xl' is unknown: did you mean 'gpt2-xl'? known: gpt2-xl, gpt2, "),
        ("--jsn", "error: unknown flag --jsn: did you mean '--json'?\n"),
    ],
)
def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str], word: str, says: str) -> None:
    assert cli.run(sizes.COMMAND, sizes.main, [word]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(says)
    assert said.err.count("\n") == 1


def test_a_size_is_named_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "sized.py"
    file.write_text(CONFIG)
    command = cli.Command("practise", "Practise.", "practise", takes_config=True)
    arguments = cli.parse(command, [f"--config={file}", "--config.model.size=gpt2-xl"])
    config = model_config(arguments.config["model"])
    assert (config.layers, config.width, config.heads, config.dropout) == (48, 1600, 25, 0.1)
