"""The command that lists the published models, and naming one on the command line."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch import cli, flag_parsing, model_sizes
from launch.command import Command, ConfigArguments
from tests.contracts import cases
from transformer.models.registry import model_config
from transformer.models.registry import published_sizes as all_sizes
from transformer.runs.checkpoint import Checkpoints
from transformer.training.optimizer import OptimizerAlgorithm

CONFIG = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict(dict(task=dict(name="language_modeling"), model=dict(family="decoder", width=None, dropout=0.1)))
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.run(model_sizes.COMMAND, model_sizes.main, words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


@pytest.mark.slow
def test_every_size_is_a_row_of_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rest = printed(capsys).splitlines()
    rows = rest[: rest.index("")]
    assert header.split("  ")[0] == "name"
    assert [row.split()[0] for row in rows] == list(all_sizes())
    # Columns line up: the citation of every row begins, and its parameters end, where the heading's do.
    start, end = header.index("citation"), header.index("parameters") + len("parameters")
    for row in rows:
        assert row[start - 2 : start] == "  "
        assert row[start:] == all_sizes()[row.split()[0]].citation
        assert row[end - 1].isdigit()
        assert row[end] == " "
    by_name = {row.split()[0]: row for row in rows}
    assert "1,557,611,200" in by_name["gpt2-xl"]
    assert by_name["transformer-base"].split()[2:8] == ["6+6", "512", "8", "63,045,632", "65M", "-3.0%"]
    assert by_name["gpt3-175b"].split()[2:7] == ["96", "12288", "96", "174,604,259,328", "175B"]
    assert "6.31e+23" in by_name["gopher-280b"]
    notes = " ".join(" ".join(rest[len(rows) :]).split())
    assert "transformer-base, transformer-big: the vocabulary is published as 'about 37000 tokens'" in notes
    assert "13 L d^2 + V d = 279,697,162,240" in notes
    assert max(map(len, rest[len(rows) :])) <= 116


@pytest.mark.slow
def test_json_has_an_object_for_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[dict[str, Any]] = json.loads(printed(capsys, "--json"))
    by_name = {entry["name"]: entry for entry in found}
    assert list(by_name) == list(all_sizes())
    gopher = by_name["gopher-280b"]
    assert gopher["parameters"] == 279_714_217_984
    assert gopher["parameters_without_norms_and_biases"] == 279_697_162_240
    assert gopher["training_flops"] == 6.31e23
    xlnet = by_name["xlnet-large"]
    assert (xlnet["parameters"], xlnet["published_parameters"]) == (360_268_800, None)
    assert by_name["bert-base"]["parameters"] == 109_482_240
    assert by_name["roberta-large"]["parameters"] == 355_359_744
    assert by_name["gpt2"]["flops_per_token"] == 6 * (12 * 12 * 768**2 + 50_257 * 768) + 12 * 12 * 768 * 1024
    assert by_name["transformer-big"]["layers"] == 12


def test_one_size_alone(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = json.loads(printed(capsys, "--json", "--name=gpt3-1.3b"))
    assert entry["values"]["attention_windows"] == [0, 128]
    said = printed(capsys, "--name=gpt3-1.3b")
    assert said.splitlines()[1].startswith("gpt3-1.3b")
    assert "24 heads of depth 128" in said
    assert "gpt2" not in said
    row = printed(capsys, "--name=transformer-base").splitlines()[1]
    assert row.split()[2:8] == ["6+6", "512", "8", "63,045,632", "65M", "-3.0%"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--name=gpt2xl", "error: --name='gpt2xl' is unknown: did you mean 'gpt2-xl'? known: gpt2-xl, gpt2, "),
        ("--jsn", "error: unknown flag --jsn: did you mean '--json'?\n"),
        (
            "--trust=lab.x",
            "error: --trust=lab.x needs --workdir, as it is about the code of a run: add --workdir, or omit --trust\n",
        ),
    ],
)
def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str], word: str, says: str) -> None:
    assert cli.run(model_sizes.COMMAND, model_sizes.main, [word]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(says)
    assert said.err.count("\n") == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves of a model with state, without training one: its config and a checkpoint of its shapes."""
    params = {"encoder": {"kernel": np.zeros((3, 4)), "bias": np.zeros(4)}, "output": {"kernel": np.zeros((4, 6))}}
    state = {"norm": {"mean": np.zeros(5), "variance": np.ones(5)}}
    return left_behind(tmp_path_factory.mktemp("run"), "normed_translator", params, state)


def left_behind(path: Path, name: str, params: dict[str, Any], state: dict[str, Any]) -> Path:
    """A run directory with the config of a contract case, and a checkpoint of these arrays."""
    (case,) = (case for case in cases.CASES if case.name == name)
    resolved = case.experiment(OptimizerAlgorithm.SGD, 0.1).to_config()
    (path / "config.json").write_text(json.dumps(resolved), encoding="utf-8")
    with contextlib.closing(Checkpoints(path / "checkpoints", max_to_keep=1)) as checkpoints:
        held = {"variables": {"params": params, "state": state}, "optimizers": {"encoder": np.zeros((3, 4))}}
        checkpoints.save(3, held, {})
    return path


def test_a_runs_parameters_are_those_of_its_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    family = "tests.contracts.normed_translator"
    said = printed(capsys, f"--workdir={run}", f"--trust={family}")
    assert said.splitlines() == [
        f"{family} on translation, checkpoint of step 3",
        "part     parameters   share",
        "encoder          16     40%",
        "output           24     60%",
        "total            40    100%",
        "and 10 numbers of state, which is not trained",
        "FLOPs of a training step: 6.667e+07 over the config's largest batch",
    ]
    found = json.loads(printed(capsys, f"--workdir={run}", f"--trust={family}", "--json"))
    assert found == {
        "family": family,
        "task": "translation",
        "step": 3,
        "parameters": 40,
        "active_parameters": 40,
        "parts": {"encoder": 16, "output": 24},
        "state": 10,
        "flops_per_step": 66_674_688,
    }


def test_of_experts_those_are_counted_that_a_position_meets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = {"kernel": np.zeros((1, 4, 3, 5))}
    experts = {"router": {"kernel": np.zeros((1, 3, 4))}, "networks": {"expand": kernel, "contract": kernel}}
    params = {"layers": {"last": {"experts": experts}}}
    left_behind(tmp_path, "language_modeling x decoder with experts", params, {})
    assert "of which 72 are active for a token, by its selected experts" in printed(capsys, f"--workdir={tmp_path}")
    found = json.loads(printed(capsys, f"--workdir={tmp_path}", "--json"))
    assert (found["parameters"], found["active_parameters"]) == (12 + 2 * 60, 12 + 60)


def test_a_run_that_cannot_be_counted_is_told_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text((run / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    trust = "--trust=tests.contracts.normed_translator"
    for words, says in (
        ([f"--workdir={run}"], f"add {trust} if"),
        (
            [f"--workdir={run}", "--name=gpt2"],
            "--name has no effect on --workdir, as it prints a run, and no published model: omit one of them",
        ),
        ([f"--workdir={tmp_path / 'new'}", trust], "has no checkpoint yet; train it with python -m launch.train"),
        ([f"--workdir={tmp_path / 'none'}"], "is missing; make a run"),
    ):
        assert cli.run(model_sizes.COMMAND, model_sizes.main, words) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert says in said.err


def test_a_size_is_named_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "sized.py"
    file.write_text(CONFIG)
    command = Command("practice", "Practice.", "practice", ConfigArguments)
    arguments = flag_parsing.parse_arguments(command, [f"--config={file}", "--config.model.size=gpt2-xl"])
    config = model_config(arguments.config["model"])
    assert (config.layers, config.width, config.heads, config.dropout) == (48, 1600, 25, 0.1)


def test_published_trainings_cost_what_their_tables_print(capsys: pytest.CaptureFixture[str]) -> None:
    found = {each["name"]: each for each in json.loads(printed(capsys, "--published_trainings", "--json"))}
    # Vaswani et al. 2017, table 2 and footnote 5: devices x seconds x sustained rate.
    assert found["transformer-base en-de"]["FLOPs"] == 8 * 12 * 3600 * 9.5e12 == pytest.approx(3.2832e18)
    assert found["transformer-big en-fr"]["FLOPs"] == pytest.approx(2.29824e19)
    for name, each in found.items():
        if each["FLOPs"] is not None and each["published FLOPs"] is not None:
            # To the two figures that the table prints; 1.39e20 and 2.05e19 are rounded as they stand there.
            assert each["FLOPs"] == pytest.approx(each["published FLOPs"], rel=0.025), name
    # The table itself: BLEU of both pairs of languages, and the costs as printed.
    printed_rows = """
        bytenet 23.75 - - -
        deep-att-posunk - 39.2 - 1.0e20
        gnmt-rl 24.6 39.92 2.3e19 1.4e20
        convs2s 25.16 40.46 9.6e18 1.5e20
        moe 26.03 40.56 2.0e19 1.2e20
        deep-att-posunk-ensemble - 40.4 - 8.0e20
        gnmt-rl-ensemble 26.30 41.16 1.8e20 1.1e21
        convs2s-ensemble 26.36 41.29 7.7e19 1.2e21
        transformer-base 27.3 38.1 3.3e18 3.3e18
        transformer-big 28.4 41.8 2.3e19 2.3e19
    """
    expected = {}
    for name, *columns in map(str.split, printed_rows.strip().splitlines()):
        bleu, flops = columns[:2], columns[2:]
        for pair, score, cost in zip(("en-de", "en-fr"), bleu, flops, strict=True):
            if score != "-":
                expected[f"{name} {pair}"] = (float(score), None if cost == "-" else float(cost))
    table = {name: (each["BLEU"], each["published FLOPs"]) for name, each in found.items() if each["BLEU"] is not None}
    assert table == expected
    # Vaswani et al. 2017 print no hours of others: those are Shazeer et al.'s of both and Gehring et al.'s own.
    assert {name: each["source"].split(",")[0] for name, each in found.items() if each["hours"] and "en-" in name} == {
        f"{name} {pair}": f"{source} et al. 2017"
        for name, source in (
            ("gnmt-rl", "Shazeer"),
            ("convs2s", "Gehring"),
            ("moe", "Shazeer"),
            ("transformer-base", "Vaswani"),
            ("transformer-big", "Vaswani"),
        )
        for pair in ("en-de", "en-fr")
    }
    assert found["gopher-280b"]["dollars"] == 4096 * 920 == 3_768_320
    assert "3,768,320" in printed(capsys, "--published_trainings")
    doubled = {
        each["name"]: each
        for each in json.loads(printed(capsys, "--published_trainings", "--dollars_per_device_hour=2", "--json"))
    }
    assert doubled["gopher-280b"]["dollars"] == 2 * 3_768_320


def test_the_cost_of_training_is_six_n_d_and_exact_in_days_and_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--name=gpt3-175b", "--flops_per_second=1e14", "--dollars_per_device_hour=2", "--json")
    (found,) = json.loads(printed(capsys, *words))
    assert found["6 N D"] == 6 * 174_604_259_328 * 300e9 == pytest.approx(found["published"], rel=2e-3)
    attention = 12 * 96 * 12288 * 2048
    assert found["counted"] == pytest.approx(found["6 N D"] + attention * 300e9, rel=1e-3)
    assert found["device-days"] == pytest.approx(found["counted"] / 1e14 / 86400)
    assert found["dollars"] == pytest.approx(found["device-days"] * 24 * 2)
    (fewer,) = json.loads(printed(capsys, "--name=gpt2", "--training_tokens=1e9", "--json"))
    assert fewer["6 N D"] == 6 * 124_439_808 * 1e9
    assert fewer["device-days"] is None
    assert fewer["dollars"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--flops_per_second=0",), "--flops_per_second=0.0 must be above 0"),
        (("--name=gpt2", "--flops_per_second=1e12"), "pass --training_tokens"),
        (
            ("--published_trainings", "--flops_per_second=1e12"),
            "has no effect on --published_trainings, as",
        ),
        (("--workdir=runs/x", "--dollars_per_device_hour=1"), "hour has no effect on --workdir, as it prints a run"),
        (
            ("--name=gpt2", "--training_tokens=1e9", "--dollars_per_device_hour=1"),
            "--dollars_per_device_hour=1 needs --flops_per_second or --published_trainings",
        ),
    ],
)
def test_costs_that_cannot_be_told_are_refused(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(model_sizes.COMMAND, model_sizes.main, words) == 2
    assert told in capsys.readouterr().err


def test_the_cache_of_a_published_size_is_a_line_and_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--name=gpt2", "--cache_length=512", "--cache_batch_size=4")
    line = printed(capsys, *words).splitlines()[-1]
    assert line == (
        "cache of decoding: 75,497,472 bytes (75 MB) for 4 texts of 512 positions, 36,864 bytes a token, bfloat16"
    )
    (entry,) = json.loads(printed(capsys, *words, "--json"))
    assert entry["cache"]["num_bytes"] == 4 * 512 * 36864
    for refused, says in (
        (("--name=bert-base", "--cache_length=8"), "--cache_length=8: this model does not decode, and has no cache"),
        (("--name=gpt2", "--cache_length=0"), "--cache_length=0 must be at least 1"),
        (("--cache_length=8",), "--cache_length=8 needs --name or --workdir, as it is of one model"),
    ):
        assert cli.run(model_sizes.COMMAND, model_sizes.main, refused) == 2
        assert says in capsys.readouterr().err


def test_the_cache_of_a_run_is_that_of_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left_behind(tmp_path, "language_modeling x decoder", {"norm": {"scale": np.zeros(3)}}, {})
    words = (f"--workdir={tmp_path}", "--cache_length=8", "--cache_batch_size=3")
    model = json.loads((tmp_path / "config.json").read_text())["model"]
    found = json.loads(printed(capsys, *words, "--json"))["cache"]
    head_dim, kv_heads = model["width"] // model["heads"], model["kv_heads"]
    assert kv_heads < model["heads"]
    assert found["bytes_per_token"] == 2 * model["layers"] * kv_heads * head_dim * 4
    assert found["num_bytes"] == 3 * 8 * found["bytes_per_token"]
    assert f"{found['num_bytes']:,} bytes" in printed(capsys, *words).splitlines()[-1]
