"""The commands' front door: every mistake is one line and exit code 2, and no mistake reaches jax."""

import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli
from launch.cli import Arguments, Command, Flag
from launch.platform import choose_platform
from transformer.config import UserError

CONFIG = """
from ml_collections import ConfigDict

def get_config():
    model = dict(norm_placement="post", width=64, rate=0.1, tied=True, window=None, sizes=(1, 2), names=["a"])
    shapes = ((8, 16), (4, 32))
    return ConfigDict(dict(seed=0, model=model, data=dict(shapes=shapes, folder="")))
"""
COMMAND = Command(
    name="practise",
    description="Practise nothing at all, at 100% of the cost.",
    example="python -m launch.practise --config=experiments/demo.py --workdir=runs/demo",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("steps", "how many", kind=int, default=3),
        Flag("mode", "which way", choices=("fast", "slow"), default="fast"),
        Flag("beam-size", "hypotheses", kind=int),
        Flag("profile", "write a trace", kind=bool, default=False),
    ),
    takes_config=True,
)


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    path = tmp_path / "practice.py"
    path.write_text(CONFIG)
    return str(path)


def parsed(config_file: str, *words: str) -> Arguments:
    return cli.parse(COMMAND, [f"--config={config_file}", "--workdir=runs/x", *words])


def refusal(capsys: pytest.CaptureFixture[str], *words: str, command: Command = COMMAND) -> str:
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
    arguments = parsed(config_file, "--steps=7", "--mode", "slow", "--beam-size=5", "--profile")
    assert (arguments.workdir, arguments.steps, arguments.mode) == ("runs/x", 7, "slow")
    assert (arguments.beam_size, arguments.profile) == (5, True)
    assert parsed(config_file).steps == 3
    assert parsed(config_file).profile is False
    assert parsed(config_file).beam_size is None
    with pytest.raises(AttributeError, match="no flag 'stepz'"):
        parsed(config_file).stepz  # noqa: B018


@pytest.mark.parametrize(
    ("word", "group", "key", "value"),
    [
        ("model.norm_placement=pre", "model", "norm_placement", "pre"),
        ("model.norm_placement=none", "model", "norm_placement", "none"),
        ("model.width=32", "model", "width", 32),
        ("model.rate=1", "model", "rate", 1.0),
        ("model.rate=3e-4", "model", "rate", 3e-4),
        ("model.tied=false", "model", "tied", False),
        ("model.width=None", "model", "width", None),
        ("model.window=16", "model", "window", 16),
        ("model.window=(2, 3)", "model", "window", (2, 3)),
        ("model.window=local", "model", "window", "local"),
        ("model.sizes=3,4,5", "model", "sizes", (3, 4, 5)),
        ("model.sizes=(3,)", "model", "sizes", (3,)),
        ("model.names=b,c", "model", "names", ["b", "c"]),
        ("data.shapes=((2, 4),)", "data", "shapes", ((2, 4),)),
        ("data.folder=a=b.c", "data", "folder", "a=b.c"),
        ("data.folder=", "data", "folder", ""),
    ],
)
def test_override_is_read_by_the_type_that_stands_there(config_file, word, group, key, value):
    config = parsed(config_file, f"--config.{word}").config
    assert config[group][key] == value
    assert type(config[group][key]) is type(value)


def test_the_last_override_wins_and_the_rest_of_the_config_stays(config_file):
    config = parsed(config_file, "--config.seed=1", "--config.seed=2").config
    expected = parsed(config_file).config.to_dict()
    assert config.seed == 2
    assert config.to_dict() == expected | {"seed": 2}
    assert config.is_locked


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--config.model.norm_placment=pre"],
            "unknown key config.model.norm_placment: did you mean 'norm_placement'",
        ),
        (["--config.modle.width=3"], "unknown key config.modle: did you mean 'model'"),
        (["--config.norm_placement=pre"], "did you mean config.model.norm_placement"),
        (["--config.model.width=abc"], "config.model.width='abc' is not an integer"),
        (["--config.model.width=1.5"], "config.model.width='1.5' is not an integer"),
        (["--config.model.rate=fast"], "config.model.rate='fast' is not a number"),
        (["--config.model.tied=maybe"], "config.model.tied='maybe' is no switch: write true or false"),
        (["--config.model.sizes=1,x"], "config.model.sizes='x' is not an integer"),
        (["--config.model.sizes=(3)"], "config.model.sizes='(3)' is not a sequence"),
        (["--config.model.width"], "malformed override '--config.model.width'"),
        (["--config.model.width", "8"], "malformed override"),
        (["--config.=3"], "malformed override '--config.=3'"),
        (["--config.model..width=3"], "malformed override"),
        (["--config.model=3"], "config.model is a group of keys: set one of them"),
        (["--config.seed.x=3"], "config.seed=0 is a value and has no key 'x'"),
        (["--wrokdir=y"], "unknown flag --wrokdir: did you mean '--workdir'"),
        (["--noprofile"], "unknown flag --noprofile: did you mean '--profile'"),
        (["--steps=many"], "--steps: invalid int value: 'many'"),
        (["--mode=sideways"], "--mode: invalid choice: 'sideways'"),
        (["--steps"], "--steps: expected one argument"),
        (["runs/y"], "unexpected argument 'runs/y'"),
        (["--workdir="], "practise needs --workdir=VALUE (the run directory); for example: python -m launch"),
    ],
)
def test_mistakes_in_flags_and_overrides(capsys, config_file, words, says):
    line = refusal(capsys, f"--config={config_file}", "--workdir=runs/x", *words)
    assert says in line.replace('"', "'")


def test_missing_flags_name_an_example(capsys, config_file):
    assert "needs --workdir=VALUE" in refusal(capsys, f"--config={config_file}")
    assert "needs --config=VALUE" in refusal(capsys, "--workdir=runs/x")
    assert "needs --config=VALUE" in refusal(capsys, "--workdir=runs/x", "--config.seed=1")


def test_a_missing_config_file_names_those_that_exist(capsys, monkeypatch, tmp_path):
    (tmp_path / "experiments" / "translation").mkdir(parents=True)
    (tmp_path / "experiments" / "demo.py").write_text(CONFIG)
    (tmp_path / "experiments" / "__init__.py").write_text("")
    (tmp_path / "experiments" / "translation" / "pairs.py").write_text(CONFIG)
    monkeypatch.setattr("launch.config_files.CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    line = refusal(capsys, "--config=experiments/dmeo.py", "--workdir=runs/x")
    assert "no config file 'experiments/dmeo.py': did you mean 'experiments/demo.py'?" in line
    assert "There are experiments/demo.py, experiments/translation/pairs.py" in line
    assert "no config file 'experiments'" in refusal(capsys, "--config=experiments", "--workdir=runs/x")


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
    assert parsed(str(path)).config.width == 512
    assert parsed(f"{path}:big").config.width == 1024
    assert "KeyError: 'huge'" in refusal(capsys, f"--config={path}:huge", "--workdir=runs/x")
    assert "takes no argument: drop ':big'" in refusal(capsys, f"--config={config_file}:big", "--workdir=runs/x")


def test_a_command_without_config_says_where_the_config_is(capsys):
    command = Command("inspect", "Inspect.", "python -m launch.inspect --workdir=runs/demo", COMMAND.flags[:1])
    for word in ("--config=experiments/demo.py", "--config.seed=1"):
        assert "the run directory holds the run's own" in refusal(capsys, "--workdir=x", word, command=command)


def test_help_prints_paragraph_flags_and_example(capsys):
    assert cli.run(COMMAND, lambda arguments: None, ["--workdir=x", "--help"]) == 0
    page = capsys.readouterr().out
    assert COMMAND.description in page
    assert COMMAND.example in page
    for flag in COMMAND.flags:
        assert f"--{flag.name}" in page
        assert flag.help in page


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (
            UserError("width=7 is not divisible by heads=2:\n use 8"),
            2,
            "error: width=7 is not divisible by heads=2: use 8\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted; start the same command again to resume\n"),
    ],
)
def test_what_main_raises_becomes_a_line_and_a_code(capsys, config_file, raised, code, said):
    def main(arguments: Arguments) -> None:
        raise raised

    assert cli.run(COMMAND, main, [f"--config={config_file}", "--workdir=x"]) == code
    assert capsys.readouterr().err == said


def test_a_failure_of_the_run_keeps_its_traceback(capsys, config_file):
    def main(arguments: Arguments) -> None:
        raise RuntimeError("the run failed")

    assert cli.run(COMMAND, main, [f"--config={config_file}", "--workdir=x"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "RuntimeError: the run failed" in said


def test_parsing_imports_no_jax(root, config_file):
    program = (
        "import sys\n"
        "from launch.cli import Command, Flag, run\n"
        "def main(arguments):\n"
        "    heavy = {'jax', 'numpy', 'flax', 'tensorflow_datasets'} & set(sys.modules)\n"
        "    print(arguments.config.seed, arguments.workdir, sorted(heavy))\n"
        "command = Command('x', 'X.', 'x', (Flag('workdir', 'w', required=True),), takes_config=True)\n"
        "sys.exit(run(command, main))\n"
    )
    words = [f"--config={config_file}", "--workdir=y", "--config.seed=4"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 y []\n", "")
    done = subprocess.run([sys.executable, "-c", program, *words, "--x"], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("device", ["dev/accel0", "dev/vfio/0", "dev/nvidia0", "dev/dxg", "dev/kfd"])
def test_the_platform_is_the_cpu_only_where_no_accelerator_is(tmp_path, device):
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    (tmp_path / "dev" / "vfio" / "vfio").touch()
    bare: dict[str, str] = {}
    choose_platform(bare, tmp_path)
    assert bare == {"JAX_PLATFORMS": "cpu"}
    (tmp_path / device).touch()
    equipped: dict[str, str] = {}
    choose_platform(equipped, tmp_path)
    assert equipped == {}
    chosen = {"JAX_PLATFORMS": "tpu"}
    choose_platform(chosen, tmp_path / "nowhere")
    assert chosen == {"JAX_PLATFORMS": "tpu"}
