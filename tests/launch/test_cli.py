"""The commands' front door: every mistake is one line and exit code 2, and no mistake reaches jax."""

import dataclasses
import errno
import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest

from launch import cli, flag_parsing, generate, headwise
from launch.command import Arguments, Command, ConfigArguments, flag
from launch.platform import ACCELERATORS, choose_platform, has_device, quiet_libraries, without_chosen_platform
from transformer.config import UserError, flatten_config
from transformer.data.tokenizers.tokenizer import UnknownTextWarning
from transformer.runs.exceptions import RunStopped
from transformer.training.config import apply_text_overrides, resolve_config

CONFIG = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict({
        "name": "practice",
        "steps": 10,
        "task": {"name": "translation", "bucket_lengths": (16, 24)},
        "model": {"family": "encoder_decoder", "width": 64, "encoder_layers": 3},
        "optimizer": {"learning_rate": 0.1},
        "parameter_averages": {"ema": {"kind": "exponential"}},
    })
"""
SIZED = CONFIG.replace('"family": "encoder_decoder", "width": 64, "encoder_layers": 3', '"size": "transformer-base"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PracticeArguments(ConfigArguments):
    workdir: str = flag("the run directory", required=True)
    steps: int = flag("how many", 3)
    mode: Literal["fast", "slow"] = flag("which way", "fast")
    beam_size: int | None = flag("hypotheses")
    profile: bool = flag("write a trace", False)


COMMAND = Command(
    name="practice",
    description="Practice nothing at all, at 100% of the cost.",
    example="--config=experiments/demo.py --workdir=runs/demo",
    arguments=PracticeArguments,
)


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    path = tmp_path / "practice.py"
    path.write_text(CONFIG)
    return str(path)


def parsed(config_file: str, *words: str) -> PracticeArguments:
    return flag_parsing.parse_arguments(COMMAND, [f"--config={config_file}", "--workdir=runs/x", *words])


def refusal(capsys: pytest.CaptureFixture[str], *words: str, command: Command[Any] = COMMAND) -> str:
    """The one line that a call with a mistake prints; checks the exit code and that nothing ran."""

    def main(arguments: Arguments) -> None:
        raise AssertionError("a mistake reached main")

    code = cli.run(command, main, words)
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    return said.err


def test_flags_by_name_with_defaults_and_types(config_file):
    arguments = parsed(config_file, "--steps=7", "--mode", "slow", "--beam_size=5", "--profile")
    assert (arguments.workdir, arguments.steps, arguments.mode) == ("runs/x", 7, "slow")
    assert (arguments.beam_size, arguments.profile) == (5, True)
    assert (parsed(config_file).steps, parsed(config_file, "--steps=0").steps) == (3, 0)
    assert parsed(config_file).profile is False
    assert parsed(config_file).beam_size is None
    with pytest.raises(AttributeError, match="stepz"):
        parsed(config_file).stepz  # type: ignore[attr-defined]  # noqa: B018


def value_of(config: dict, key: str) -> object:
    return flatten_config(config)[key]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("seed=3", 3),
        ("name=pre", "pre"),
        ("name=none", "none"),
        ("model.norm_placement=pre", "pre"),
        ("model.score=additive", "additive"),
        ("model.width=32", 32),
        ("model.dropout=0", 0.0),
        ("optimizer.learning_rate=3e-4", 3e-4),
        ("model.tie_embeddings=false", False),
        ("model.tie_embeddings=1", True),
        ("model.kv_heads=None", None),
        ("model.kv_heads=2", 2),
        ("task.bucket_lengths=3,4,5", [3, 4, 5]),
        ("task.bucket_lengths=(3,)", [3]),
        ("task.bucket_lengths=3", [3]),
        ("task.bucket_lengths=[3, 4]", [3, 4]),
        ("model.attention_windows=()", []),
        ("task.languages=en,de", ["en", "de"]),
        ("task.languages=(en, de)", ["en", "de"]),
        ("task.languages=('e,n', \"1\")", ["e,n", "1"]),
        ("task.languages=1e3,2", ["1e3", "2"]),
        ("task.data_dir=none", None),
        ("task.data_dir=a=b.c", "a=b.c"),
        ("task.data_dir=3", "3"),
        ("task.test_split=", ""),
        ("parameter_averages.ema.decay=0", 0.0),
        ("parameter_averages.last.every=7", 7),
        ("parameter_averages.ema.patterns=*/kernel,decoder/*", ["*/kernel", "decoder/*"]),
        ("maps.max_full_rows=2", 2),
        ("sharding.sequence_attention=ring", "ring"),
    ],
)
def test_an_override_is_read_by_the_type_that_its_key_declares(config_file, word, value):
    found = value_of(parsed(config_file, f"--config.{word}").config, word.partition("=")[0])
    assert found == value
    assert type(found) is type(value)


def test_overrides_are_set_and_the_rest_of_the_config_stays(config_file):
    arguments = parsed(config_file, "--config.model.heads=4", "--config.seed=2")
    expected = parsed(config_file).config
    assert arguments.base == expected
    assert arguments.config == expected | {"seed": 2, "model": expected["model"] | {"heads": 4}}
    assert arguments.config["task"]["bucket_lengths"] == (16, 24)


def test_what_chooses_the_keys_is_set_first(tmp_path, config_file):
    words = ["--config.model.num_token_types=3", "--config.model.family=encoder", "--config.task.name=masked_lm"]
    bare = tmp_path / "bare.py"
    bare.write_text(CONFIG.replace('"bucket_lengths": (16, 24)', "").replace(', "encoder_layers": 3', ""))
    for order in (words, words[::-1]):
        config = parsed(str(bare), *order, "--config.task.masked_lm_prob=0.5").config
        assert config["model"] == {"family": "encoder", "width": 64, "num_token_types": 3}
        assert config["task"] == {"name": "masked_lm", "masked_lm_prob": 0.5}
    with pytest.raises(UserError) as told:
        parsed(config_file, words[1]).config  # noqa: B018
    assert "config.model.encoder_layers=3 is said in the config, but the family encoder, which" in str(told.value)
    with pytest.raises(UserError) as told:
        parsed(config_file, words[2]).config  # noqa: B018
    assert "config.task.bucket_lengths=(16, 24) is said in the config, but the task masked_lm," in str(told.value)


def resolved(config: dict) -> dict:
    return flatten_config(resolve_config(config).to_config())


def test_a_size_is_changed_and_departed_from(tmp_path):
    path = tmp_path / "sized.py"
    path.write_text(SIZED)
    before = resolved(parsed(str(path)).config)
    assert (before["model.width"], before["model.size"]) == (512, "transformer-base")
    # What says the same changes nothing.
    assert resolved(parsed(str(path), "--config.model.width=512").config) == before
    # What says otherwise changes that key, and it is no longer that model.
    departed = resolved(parsed(str(path), "--config.model.score=additive").config)
    assert departed == before | {"model.score": "additive", "model.size": None}
    larger = resolved(parsed(str(path), "--config.model.size=transformer-big").config)
    assert (larger["model.width"], larger["model.heads"]) == (1024, 16)
    assert resolved(parsed(str(path), "--config.model.size=none").config) == before | {"model.size": None}
    with pytest.raises(UserError, match=r"config\.model\.width=64 contradicts config\.model\.size='transformer-big'"):
        resolve_config(parsed(str(path), "--config.model.size=transformer-big", "--config.model.width=64").config)
    # A config that was resolved says all that its size says, and takes the same overrides.
    whole = resolve_config(parsed(str(path)).config).to_config()
    again = apply_text_overrides(whole, [("model.size", "transformer-big")])
    assert resolved(again) == larger
    assert resolved(apply_text_overrides(whole, [("model.score", "additive")])) == departed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--config.model.norm_placment=pre"],
            "norm_placment of family encoder_decoder: did you mean config.model.norm_placement?",
        ),
        (["--config.modle.width=3"], "unknown key config.modle: did you mean config.model.width?"),
        (["--config.seeed=3"], "unknown key config.seeed: did you mean config.seed?"),
        (["--config.step=3"], "unknown key config.step: did you mean config.steps or config.initialize_from.step?"),
        (["--config.norm_placement=pre"], "did you mean config.model.norm_placement?"),
        (["--config.model.layers=3"], "or config.model.encoder_layers?"),
        (["--config.optimizer.warmup=3"], "did you mean config.optimizer.warmup_steps?"),
        (["--config.optimizer.lr=3"], "unknown key config.optimizer.lr: did you mean config.optimizer.learning_rate?"),
        (["--config.model.attention=additive"], "did you mean config.model.score, which takes 'additive'?"),
        (["--config.parameter_averages.ema.dcay=0.5"], "did you mean config.parameter_averages.ema.decay?"),
        (["--config.maps.zzz=0.5"], "unknown key config.maps.zzz: known: max_full_rows, max_megabytes, top_k"),
        (
            ["--config.task.name=translate"],
            "'translate' is unknown: did you mean 'translation'? known: translation, ",
        ),
        (["--config.model.family=gpt"], "config.model.family='gpt' is unknown: known: bidirectional_language_model, "),
        (
            ["--config.model.family=bart"],
            "config.model.family='bart' is unknown: known: bidirectional_language_model, ",
        ),
        (["--config.model.size=bart"], "config.model.size='bart' is unknown: known: bert-base, "),
        (["--config.model.size=gpt2xl"], "config.model.size='gpt2xl' is unknown: did you mean 'gpt2-xl'? known: gpt2"),
        (
            ["--config.model.norm_placement=prenorm"],
            "'prenorm' is unknown: did you mean 'pre'? known: pre, deepnorm, parallel_norms, pre_normed_input, ",
        ),
        (
            ["--config.parameter_averages.ema.kind=x"],
            "config.parameter_averages.ema.kind='x' is unknown: known: exponential, mean",
        ),
        (["--config.model.width=abc"], "config.model.width='abc' is not an integer: write for example --config.model"),
        (["--config.model.width=1.5"], "config.model.width='1.5' is not an integer"),
        (["--config.model.width=none"], "config.model.width='none' is not an integer"),
        (["--config.model.dropout=much"], "config.model.dropout='much' is not a finite number"),
        (["--config.optimizer.learning_rate=nan"], "learning_rate='nan' is not a finite number"),
        (
            ["--config.model.tie_embeddings=maybe"],
            "config.model.tie_embeddings='maybe' is no switch: write true or false",
        ),
        (["--config.task.bucket_lengths=1,x"], "config.task.bucket_lengths[1]='x' is not an integer"),
        (["--config.task.bucket_lengths=(1, 2.5)"], "config.task.bucket_lengths[1]=2.5 is a float; it must be a int"),
        (["--config.task.bucket_lengths=(3)"], "config.task.bucket_lengths='(3)' is not a sequence"),
        (["--config.task.bucket_lengths=(3"], "config.task.bucket_lengths='(3' is not a sequence"),
        (["--config.model.width"], "malformed override '--config.model.width'"),
        (["--config.model.width", "8"], "malformed override"),
        (["--config.=3"], "malformed override '--config.=3'"),
        (["--config.model..width=3"], "malformed override"),
        (["--config.model=3"], "config.model='3': that key is a group; set one of its keys, as --config.model.family="),
        (["--config.sharding=dp"], "config.sharding='dp': that key is a group; set one of its keys, as --config.shard"),
        (
            ["--config.parameter_averages=none"],
            "config.parameter_averages='none': that key is a group; set one of its keys",
        ),
        (["--config.seed.x=3"], "config.seed is a value and has no key 'x': write --config.seed=VALUE"),
        (["--config.model.family.x=3"], "config.model.family is a value and has no key 'x'"),
        (
            ["--learning_rate=1e-3"],
            "unknown flag --learning_rate: a key of the config is set as --config.optimizer.lea",
        ),
        (["--learning_rate=1e-3"], "--config.optimizer.learning_rate=1e-3"),
        (["--config.seed=1", "--config.seed=2"], "--config.seed=1 and --config.seed=2 set the same key: leave one"),
        (["--steps=1", "--steps", "2"], "--steps=1 and --steps=2 set the same flag: leave one of them out"),
        (["--workdir=runs/x"], "--workdir=runs/x and --workdir=runs/x set the same flag: leave one"),
        (["--profile", "--no_profile"], "--profile and --no_profile set the same flag"),
        (["--config=b.py"], "and --config=b.py set the same flag"),
        (["--config.seed=1", "--config.seed=1"], "--config.seed=1 and --config.seed=1 set the same key"),
        (
            ["--config.parameter_averages.ema.decay=0.5", "--config.parameter_averages.ema=none"],
            "--config.parameter_averages.ema=none set the same key",
        ),
        (["--model.width", "8"], "unknown flag --model.width: a key of the config is set as --config.model.width=8"),
        (["--seed"], "a key of the config is set as --config.seed=VALUE"),
        (["--wrokdir=y"], "unknown flag --wrokdir: did you mean '--workdir'"),
        (["--noprofile"], "unknown flag --noprofile: did you mean '--profile'"),
        (["--steps=many"], "--steps: invalid int value: 'many'"),
        (["--mode=sideways"], "--mode: invalid choice: 'sideways'"),
        (["--steps"], "--steps: expected one argument"),
        (["runs/y"], "unexpected argument 'runs/y'"),
    ],
)
def test_mistakes_in_flags_and_overrides(capsys, config_file, words, says):
    line = refusal(capsys, f"--config={config_file}", "--workdir=runs/x", *words)
    assert says in line.replace('"', "'")


def test_a_flag_and_an_override_of_its_key_are_refused(capsys, config_file):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class DataArguments(PracticeArguments):
        data_dir: str | None = flag("the data")

    words = (f"--config={config_file}", "--workdir=runs/x", "--config.task.data_dir=a", "--data_dir=b")
    command = dataclasses.replace(COMMAND, arguments=DataArguments)
    said = refusal(capsys, *words, command=command)
    assert said == "error: --data_dir=b sets config.task.data_dir too: leave one of them out\n"


def test_a_seed_has_the_range_of_a_config_s(capsys, config_file):
    assert flag_parsing.parse_arguments(generate.COMMAND, ["--workdir=runs/x", f"--seed={2**32 - 1}"]).seed == 2**32 - 1
    for seed in (2**32, -1):
        with pytest.raises(UserError, match=rf"--seed={seed} must be at (most 4294967295|least 0)"):
            flag_parsing.parse_arguments(generate.COMMAND, ["--workdir=runs/x", f"--seed={seed}"])


def test_missing_flags_name_an_example(capsys, config_file):
    assert "needs --workdir=VALUE" in refusal(capsys, f"--config={config_file}")
    error = refusal(capsys, f"--config={config_file}", "--workdir=")
    assert "practice needs --workdir=VALUE (the run directory); for example: python -m launch" in error
    assert "needs --config=VALUE" in refusal(capsys, "--workdir=runs/x")
    error = refusal(capsys, "--workdir=runs/x", command=dataclasses.replace(COMMAND, resumes=True))
    assert error.startswith("error: --workdir=runs/x holds no run to resume; to start one there, add --config=FILE")
    assert "needs --config=VALUE" in refusal(capsys, "--workdir=runs/x", "--config.seed=1")


def test_a_missing_config_file_names_those_that_exist(capsys, monkeypatch, tmp_path):
    (tmp_path / "experiments" / "translation").mkdir(parents=True)
    (tmp_path / "experiments" / "demo.py").write_text(CONFIG)
    (tmp_path / "experiments" / "__init__.py").write_text("")
    (tmp_path / "experiments" / "translation" / "pairs.py").write_text(CONFIG)
    monkeypatch.setattr("transformer.system.command_invocation.PACKAGE_PARENT", tmp_path)
    monkeypatch.chdir(tmp_path)
    line = refusal(capsys, "--config=experiments/dmeo.py", "--workdir=runs/x")
    assert "no config file 'experiments/dmeo.py': did you mean 'experiments/demo.py'?" in line
    assert "pairs.py" not in line
    line = refusal(capsys, "--config=nothing_like_it.py", "--workdir=runs/x")
    assert f"there are experiments/demo.py, experiments/translation/pairs.py in {tmp_path}" in line
    assert "no config file 'experiments'" in refusal(capsys, "--config=experiments", "--workdir=runs/x")
    (tmp_path / "research").mkdir()
    monkeypatch.chdir(tmp_path / "research")
    line = refusal(capsys, "--config=experiments/demo.py", "--workdir=runs/x")
    assert f"write '{tmp_path}/experiments/demo.py', or start the command in {tmp_path}" in line
    assert "pairs.py" not in line
    line = refusal(capsys, "--config=experiments/dmeo.py", "--workdir=runs/x")
    assert f"did you mean '{tmp_path}/experiments/demo.py'?" in line


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = 1", "has no get_config()"),
        ("def get_config(:", "fails at line 1: SyntaxError"),
        ("import nothing_of_the_kind", "fails at line 1: ModuleNotFoundError: No module named"),
        ("def get_config():\n    return {}['width']", "fails at line 2: KeyError: 'width'"),
        ("def get_config():\n    raise ValueError('two\\nlines')", "fails at line 2: ValueError: two lines"),
        ("def get_config():\n    pass", "returned a NoneType; it must return an ml_collections.ConfigDict"),
        ("def get_config(size):\n    pass", "takes an argument: name one"),
    ],
)
def test_config_files_that_fail(capsys, tmp_path, source, says):
    path = tmp_path / "broken.py"
    path.write_text(source)
    assert says in refusal(capsys, f"--config={path}", "--workdir=runs/x")


def test_a_config_file_may_take_an_argument(capsys, tmp_path, config_file):
    path = tmp_path / "sizes.py"
    path.write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config(size='base'):\n"
        "    return ConfigDict({'width': {'base': 512, 'big': 1024}[size]})\n"
    )
    assert parsed(str(path)).config == {"width": 512}
    (tmp_path / "a:b").mkdir()
    moved = shutil.copy(path, tmp_path / "a:b")
    assert parsed(str(moved)).config == {"width": 512}
    assert parsed(f"{moved}:big").config == {"width": 1024}
    assert parsed(f"{path}:big").config == {"width": 1024}
    assert "KeyError: 'huge'" in refusal(capsys, f"--config={path}:huge", "--workdir=runs/x")
    assert "takes no argument: drop ':big'" in refusal(capsys, f"--config={config_file}:big", "--workdir=runs/x")


@pytest.mark.parametrize(
    ("argument", "advice"), [("bgi", "did you mean 'big'?"), ("other", "known: base, big"), ("", "known: base, big")]
)
def test_a_config_file_names_the_arguments_that_it_takes(capsys, tmp_path, argument, advice):
    path = tmp_path / "sizes.py"
    path.write_text(
        "from typing import Literal\n"
        "from ml_collections import ConfigDict\n"
        "def get_config(size: Literal['base', 'big'] = 'base'):\n"
        "    return ConfigDict({'name': size})\n"
    )
    assert parsed(f"{path}:big").config == {"name": "big"}
    line = refusal(capsys, f"--config={path}:{argument}", "--workdir=runs/x")
    assert f"config file {str(path)!r} has no {':' + argument!r}: {advice}" in line


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunArguments(Arguments):
    workdir: str | None = flag("the run directory", required=True)


def test_a_command_without_config_says_where_the_config_is(capsys):
    command = Command("inspect", "Inspect.", "--workdir=runs/demo", RunArguments)
    for word in ("--config=experiments/demo.py", "--config.seed=1"):
        assert "the run directory holds the run's own" in refusal(capsys, "--workdir=x", word, command=command)


def test_help_prints_paragraph_flags_and_example(capsys):
    assert cli.run(COMMAND, lambda arguments: None, ["--workdir=x", "--help"]) == 0
    page = capsys.readouterr().out
    assert COMMAND.description in page
    assert COMMAND.example_call in page
    for declared in COMMAND.flags:
        assert f"--{declared.name}" in page
        assert declared.help in page


def test_the_usage_names_flags_of_which_one_is_enough_together(capsys):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class FitArguments(RunArguments):
        workdir: str | None = flag("the run directory", required=True)
        runs: str | None = flag("other runs", makes_optional=("workdir",))

    command = Command("fit", "Fit.", "--workdir=runs/x", FitArguments)
    assert cli.run(command, lambda arguments: None, ["--help"]) == 0
    assert "launch.fit (--workdir=VALUE | --runs=VALUE)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (
            UserError("width=7 is not divisible by heads=2:\n use 8"),
            2,
            "error: width=7 is not divisible by heads=2: use 8\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted; start the same command again to resume\n"),
        (RunStopped("stopped before step 5"), 75, "stopped before step 5; start the same command again to go on\n"),
    ],
)
def test_what_main_raises_becomes_a_line_and_a_code(capsys, config_file, raised, code, said):
    def main(arguments: Arguments) -> None:
        raise raised

    assert cli.run(COMMAND, main, [f"--config={config_file}", "--workdir=x"]) == code
    assert capsys.readouterr().err == said


# A pipe that breaks elsewhere does not mean that nobody reads the output.
@pytest.mark.parametrize("raised", [RuntimeError("the run failed"), BrokenPipeError(errno.EPIPE, "the run failed")])
def test_a_failure_of_the_run_keeps_its_traceback(capsys, config_file, raised):
    def main(arguments: Arguments) -> None:
        raise raised

    assert cli.run(COMMAND, main, [f"--config={config_file}", "--workdir=x"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert f"{type(raised).__name__}: {raised}" in said


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/a/metrics.jsonl"),
            "error: runs/a/metrics.jsonl: No space left on device; free space there, then start the same command again "
            "to go on with --workdir=x\n",
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "runs/a/metrics.jsonl"),
            "error: runs/a/metrics.jsonl: Disk quota exceeded; free space there, then start the same command again "
            "to go on with --workdir=x\n",
        ),
        (
            # As TensorStore says it.
            ValueError(
                'UNKNOWN: Failed writing: "/runs/a/checkpoints/5/d/81": Failed to write 8845 bytes to file 17: '
                "Input/output error [os_error_code='5']"
            ),
            "error: /runs/a/checkpoints/5/d/81: Input/output error; see what the system's log says of that disk, then "
            "start the same command again to go on with --workdir=x\n",
        ),
    ],
)
def test_a_disk_that_fails_is_told_in_one_line_with_the_file_the_run_and_what_to_do(capsys, config_file, raised, said):
    def main(arguments: Arguments) -> None:
        try:
            raise raised
        finally:
            raise RuntimeError("closing failed as well")

    assert cli.run(COMMAND, main, [f"--config={config_file}", "--workdir=x"]) == 1
    assert capsys.readouterr().err == said


def test_that_no_thread_can_be_started_is_told_in_one_line(capsys, config_file):
    def main(arguments: Arguments) -> None:
        try:
            raise RuntimeError("can't start new thread")
        finally:
            # As orbax ends a save that could not begin.
            raise RuntimeError("cannot join thread before it is started")

    assert cli.run(COMMAND, main, [f"--config={config_file}", "--workdir=x"]) == 1
    assert capsys.readouterr().err == (
        "error: out of memory or of threads (can't start new thread): allow the process more (ulimit -v, ulimit -u), "
        "then start the same command again to go on with --workdir=x\n"
    )


FULL_OUTPUT = """
import dataclasses
from launch.cli import run
from launch.command import Arguments, Command, trackers_flag
from launch.platform import exit_process

@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainArguments(Arguments):
    trackers: str | None = trackers_flag()

def main(arguments):
    for _ in range(3):
        print("a figure", flush=True)

command = Command(name="figures", description="Print.", example="python", arguments=ARGUMENTS)
exit_process(run(command, main, []))
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("TrainArguments", 0, "the standard output cannot be written: No space left on device; the run goes on\n"),
        (
            "Arguments",
            1,
            "error: the standard output: No space left on device; free space there, then start the same command "
            "again\n",
        ),
    ],
)
def test_an_output_that_is_full_stops_what_prints_and_not_what_trains(root, arguments, code, said):
    program = FULL_OUTPUT.replace("ARGUMENTS", arguments)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=root, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (code, said)


def test_a_process_that_failed_waits_for_no_thread(root):
    program = (
        "import threading\n"
        "from launch.platform import exit_process\n"
        "threading.Thread(target=threading.Event().wait).start()\n"  # as one of a save that failed
        "exit_process(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False, timeout=60).returncode == 1


def test_a_process_that_has_trained_ends_well(root):
    program = (
        "import jax, sys\n"
        "import transformer.training.writers.trackers\n"  # whose trackers are asked whether they hang
        "from launch.platform import exit_process\n"
        "exit_process(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_imports_jax_before_it_must(root, config_file):
    program = (
        "import dataclasses, os, sys\n"
        "from launch.cli import run\n"
        "from launch.command import Command, ConfigArguments, flag\n"
        "def prepare(arguments):\n"
        "    heavy = {'jax', 'numpy', 'flax', 'tensorflow_datasets'} & set(sys.modules)\n"
        "    print(arguments.overrides, arguments.workdir, sorted(heavy))\n"
        "    os.environ['HEADWISE_TEST'] = 'set'\n"
        "def main(arguments):\n"
        "    print(arguments.config.get('seed'), 'jax' in sys.modules, os.environ['HEADWISE_TEST'])\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class RunArguments(ConfigArguments):\n"
        "    workdir: str = flag('w', required=True)\n"
        "command = Command('x', 'X.', 'x', RunArguments, before_jax=prepare)\n"
        "sys.exit(run(command, main))\n"
    )
    words = [f"--config={config_file}", "--workdir=y"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{} y []\nNone False set\n", "")
    words = [*words, "--config.seed=4"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{'seed': '4'} y []\n4 True set\n", "")
    done = subprocess.run([sys.executable, "-c", program, *words, "--x"], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_flag_may_stand_for_one_that_is_required(capsys, config_file):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ShowArguments(ConfigArguments):
        workdir: str | None = flag("w", required=True)
        show: bool = flag("print", False, makes_optional=("workdir",))

    command = Command("x", "X.", "x", ShowArguments)
    assert cli.run(command, lambda arguments: None, [f"--config={config_file}", "--show"]) == 0
    assert "needs --workdir" in refusal(capsys, f"--config={config_file}", "--no_show", command=command)
    assert "needs --config" in refusal(capsys, "--show", command=command)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingArguments(Arguments):
    serve: bool = flag("serve", False, excludes=("output",))
    port: int | None = flag("the port", needs=("serve", "remote"))
    remote: str | None = flag("the address", needs=("port",), because="it is far away")
    output: str | None = flag("the file", excludes=("port",), because="it ends")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--port=0",), "error: --port=0 needs --serve or --remote: add --serve or --remote, or omit --port\n"),
        (("--port", "0", "--no_serve"), "error: --port=0 needs --serve or --remote: add "),
        (
            ("--remote=a",),
            "error: --remote=a needs --port, as it is far away: add --port, or omit --remote\n",
        ),
        (("--serve", "--output=a"), "error: --output has no effect on --serve: omit one of them\n"),
        (
            ("--output=a", "--port=1", "--remote=b"),
            "error: --port has no effect on --output, as it ends: omit one of them\n",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(capsys, words, says):
    command = Command("show", "Show.", "--serve", ServingArguments)
    assert refusal(capsys, *words, command=command).startswith(says)


def test_flags_that_go_together_are_taken(capsys):
    command = Command("show", "Show.", "--serve", ServingArguments)
    for words in ((), ("--serve", "--port=0"), ("--port=1", "--remote=a"), ("--output=a", "--no_serve")):
        assert cli.run(command, lambda arguments: None, words) == 0
    assert cli.run(command, lambda arguments: None, ["--help"]) == 0
    assert "with --serve or --remote, the port\n" in capsys.readouterr().out


def test_flags_need_and_exclude_flags_of_their_command():
    for name, module in headwise.COMMANDS.items():
        names = {declared.name for declared in module.COMMAND.flags}
        for declared in module.COMMAND.flags:
            others = {*declared.needs, *declared.excludes, *declared.makes_optional}
            assert others <= names - {declared.name}, f"{name} --{declared.name}"


def test_a_flag_that_another_makes_optional_may_be_none():
    for name, module in headwise.COMMANDS.items():
        hints = get_type_hints(module.COMMAND.arguments)
        for optional in itertools.chain.from_iterable(declared.makes_optional for declared in module.COMMAND.flags):
            assert type(None) in get_args(hints[optional]), f"{name} --{optional}"


def test_the_type_of_a_field_says_what_its_flag_takes():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ShowArguments(Arguments):
        seed: int | None = flag("the seed")
        rate: float = flag("the rate", 0.5, needs=("seed",))
        mode: Literal["fast", "slow"] = flag("which way", "fast")
        workdir: str = flag("the run directory", required=True)
        trust: tuple[str, ...] = flag("names", ())

    command = Command("show", "Show.", "--seed=1", ShowArguments)
    assert [declared.name for declared in command.flags] == ["seed", "rate", "mode", "workdir", "trust"]
    arguments = flag_parsing.parse_arguments(command, ["--workdir=x", "--trust=a,,b", "--rate=2", "--seed=3"])
    assert arguments == ShowArguments(
        argv=("--workdir=x", "--trust=a,,b", "--rate=2", "--seed=3"), workdir="x", trust=("a", "b"), rate=2.0, seed=3
    )
    # A value that is the default has been given too.
    with pytest.raises(UserError, match=r"--rate=0\.5 needs --seed"):
        flag_parsing.parse_arguments(command, ["--workdir=x", "--rate=0.5"])


def test_a_flag_without_default_is_required_or_may_be_none():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ShowArguments(Arguments):
        seed: int = flag("the seed")

    with pytest.raises(TypeError, match="--seed has no default"):
        Command("show", "Show.", "", ShowArguments).flags  # noqa: B018


@pytest.mark.parametrize("device", ["dev/accel0", "dev/vfio/0", "dev/nvidia0", "dev/dxg", "dev/kfd"])
def test_the_platform_is_the_cpu_only_where_no_accelerator_is(tmp_path, device):
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    (tmp_path / "dev" / "vfio" / "vfio").touch()
    bare: dict[str, str] = {}
    choose_platform(bare, tmp_path)
    assert bare["JAX_PLATFORMS"] == "cpu"
    assert without_chosen_platform({**bare, "A": "b"}) == {"A": "b"}
    assert without_chosen_platform({**bare, "JAX_PLATFORMS": "tpu"}) == {"JAX_PLATFORMS": "tpu"}
    (tmp_path / device).touch()
    equipped: dict[str, str] = {}
    choose_platform(equipped, tmp_path)
    assert equipped == {}
    chosen = {"JAX_PLATFORMS": "tpu"}
    choose_platform(chosen, tmp_path / "nowhere")
    assert without_chosen_platform(chosen) == chosen == {"JAX_PLATFORMS": "tpu"}


def test_a_command_looks_through_its_objects_less_often_than_python_would(config_file):
    before, thresholds = gc.get_threshold(), []
    gc.set_threshold(2_000, *before[1:])
    try:
        words = [f"--config={config_file}", "--workdir=x"]
        assert cli.run(COMMAND, lambda arguments: thresholds.append(gc.get_threshold()), words) == 0
    finally:
        gc.set_threshold(*before)
    assert thresholds == [(50_000, *before[1:])]


NO_ACCELERATOR = not has_device(ACCELERATORS)
PLACED = Path(sysconfig.get_path("purelib"), "headwise.pth").is_file()


@pytest.mark.skipif(not NO_ACCELERATOR, reason="needs a machine without an accelerator")
def test_nothing_but_what_a_command_prints_is_said_where_jax_begins(root):
    program = (
        "import sys\n"
        "from launch.cli import run\n"
        "from launch.command import Arguments, Command\n"
        "def main(arguments):\n"
        "    import jax\n"
        "    print(jax.devices()[0].platform)\n"
        "sys.exit(run(Command('x', 'X.', 'x', Arguments), main, []))\n"
    )
    # libtpu, which a lock of the whole project brings, prints half a page of errors where nobody keeps jax from it.
    bare = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=bare, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cpu\n", "")


@pytest.mark.skipif(not NO_ACCELERATOR, reason="needs a machine without an accelerator")
@pytest.mark.skipif(not PLACED, reason="needs the environment that make install makes")
def test_nothing_is_said_where_a_person_imports_jax(tmp_path):
    bare = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    words = [sys.executable, "-c", "import jax; print(jax.devices()[0].platform)"]
    done = subprocess.run(words, cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cpu\n", "")


def test_a_platform_that_the_machine_does_not_have_is_told_in_one_line(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")

    def main(_arguments):
        raise RuntimeError("Unable to initialize backend 'cuda': no such backend")

    assert cli.run(Command("x", "X.", "x", Arguments), main, []) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: jax cannot use JAX_PLATFORMS=cuda on this machine: unset it, or install the package")
    assert said.count("\n") == 1


@pytest.mark.skipif(not PLACED, reason="needs the environment that make install makes")
def test_the_environment_of_one_checkout_runs_the_code_of_the_checkout_that_it_stands_in(tmp_path):
    for package in ("launch", "transformer"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "launch" / "train.py").write_text("import transformer\nprint(__file__, transformer.__file__)\n")
    words = [sys.executable, "-m", "launch.train"]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=tmp_path, env=bare, capture_output=True, text=True)
    files = (str(tmp_path / "launch" / "train.py"), str(tmp_path / "transformer" / "__init__.py"))
    assert (done.returncode, done.stdout.split()) == (0, list(files)), done.stderr


@pytest.mark.parametrize("words", [(), ("--config.xla_flags=--xla_a=2",)])
def test_compiler_flags_of_a_config_come_before_those_of_the_environment_and_before_jax(tmp_path, root, words):
    flags = '"xla_flags": "--xla_a=1", "libtpu_init_args": "--xla_b=1 --xla_c=1",'
    (tmp_path / "practice.py").write_text(CONFIG.replace('"steps": 10,', f'"steps": 10, {flags}'))
    program = (
        "import json, os, sys\n"
        "from launch.cli import run\n"
        "from launch.command import Command, ConfigArguments\n"
        "def before(arguments):\n"
        "    assert 'jax' not in sys.modules\n"
        "    print(json.dumps([os.environ['XLA_FLAGS'], os.environ['LIBTPU_INIT_ARGS']]))\n"
        "    sys.exit(0)\n"
        "run(Command('x', 'X.', 'x', ConfigArguments, before_jax=before), None, sys.argv[1:])\n"
    )
    environment = {**os.environ, "XLA_FLAGS": "--xla_d=1"}
    environment.pop("LIBTPU_INIT_ARGS", None)
    calls = [sys.executable, "-c", program, f"--config={tmp_path}/practice.py", *words]
    done = subprocess.run(calls, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first = "--xla_a=2" if words else "--xla_a=1"
    assert json.loads(done.stdout) == [f"{first} --xla_d=1", "--xla_b=1 --xla_c=1"]


def test_an_error_is_one_short_line_that_a_terminal_shows_as_it_is():
    assert cli.to_one_line("a\n  b \x1b[31m\x07ä\u202e\udcff") == "a b \\x1b[31m\\x07ä\\u202e\\udcff"
    long = cli.to_one_line("x" * 5000 + "the end")
    assert len(long) < 1100
    assert long.endswith("the end")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--steps=100000000000000000000", "--steps=100000000000000000000 must be at most 2147483647"),
        ("--workdir=\udcff", "must be text of UTF-8"),
    ],
)
def test_words_that_no_array_and_no_file_takes_are_refused(config_file, capsys, word, says):
    assert says in refusal(capsys, f"--config={config_file}", "--workdir=runs/x", word)


def test_a_config_file_that_exits_is_a_mistake(tmp_path, capsys):
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n")
    said = refusal(capsys, f"--config={tmp_path}/exits.py", "--workdir=runs/x")
    assert "fails at line 1: SystemExit: 0" in said


def test_a_warning_of_our_own_is_one_line_and_one_of_a_library_keeps_its_place(monkeypatch):
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)  # put back afterwards
    quiet_libraries()
    assert warnings.formatwarning("no token", UnknownTextWarning, "file.py", 3) == "warning: no token\n"
    assert "file.py:3" in warnings.formatwarning("old", DeprecationWarning, "file.py", 3)


def test_memory_that_is_not_there_is_one_line(config_file, capsys):
    def main(arguments: Arguments) -> None:
        raise MemoryError("Unable to allocate 15. TiB")

    assert cli.run(COMMAND, main, [f"--config={config_file}", "--workdir=runs/x"]) == 2
    assert capsys.readouterr().err == "error: out of memory: Unable to allocate 15. TiB\n"
