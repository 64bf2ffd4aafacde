"""Finding families and tasks by name: what is known, what each mistake is told, and whose code is followed."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launch import cli, evaluate, model_sizes, train
from transformer.config import UserError
from transformer.models import registry
from transformer.models.model_family import ModelFamily
from transformer.runs.trust import check_trusted
from transformer.system.module_registry import ModuleRegistry, import_experiments_package
from transformer.tasks.registry import TASKS
from transformer.training.config import config_schema

FILES = {
    "good": "FAMILY = ModelFamily(Config, print)",
    "twin": "from named_here.good import Config\nFAMILY = ModelFamily(Config, print)",
    "empty": "FAMILIES = 3",
    "other_kind": "FAMILY = 3",
    "needs": "import module_that_is_not_there",
    "inside": "import named_here.absent",
    "broken": "raise RuntimeError('as it is imported')",
    "sized": (
        "SIZES = {'its-own': PublishedSize('named_here.sized', {'width': 7}, 9, 9, 'nobody')}\n"
        "FAMILY = ModelFamily(Config, print, sizes=SIZES)"
    ),
}
HEADER = """
import dataclasses
from transformer.models.model_family import ModelFamily
from transformer.models.model_family import PublishedSize

@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 1
    size: str | None = None

"""


@pytest.fixture
def families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Families by name as a run finds them, and a package of files on Python's path."""
    (tmp_path / "named_here").mkdir()
    (tmp_path / "named_here" / "__init__.py").write_text("")
    for name, code in FILES.items():
        (tmp_path / "named_here" / f"{name}.py").write_text(HEADER + code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield ModuleRegistry("transformer.models", "FAMILY", ModelFamily, "config.model.family")
    for name in [name for name in sys.modules if name.partition(".")[0] == "named_here"]:
        del sys.modules[name]


def test_the_librarys_own_are_known_by_their_files(families: ModuleRegistry) -> None:
    assert {"decoder", "encoder", "encoder_decoder"} <= set(families.names())
    assert families["decoder"] is registry.FAMILIES["decoder"]


def test_a_dotted_path_leads_to_a_module_anywhere_and_its_config_leads_back(families: ModuleRegistry) -> None:
    family = families["named_here.good"]
    assert families.name_of(family.config_class(width=2)) == "named_here.good"
    assert families["named_here.good"] is family


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "decodr",
            r"config\.model\.family='decodr' is unknown: did you mean 'decoder'\? known: decoder, .*; or a dotted",
        ),
        ("", r"config\.model\.family='' names no module: known: .*decoder, encoder, encoder_decoder"),
        ("./lab/mine.py", r"'\./lab/mine\.py' names no module: .*dotted path such as lab\.mine"),
        ("a..b", r"'a\.\.b' names no module"),
        (".good", r"'\.good' names no module"),
        # A module of the package that exports none is as unknown as one that does not exist.
        ("task_interface", r"'task_interface' is unknown: "),
        (
            "nowhere.at_all",
            r"='nowhere\.at_all': Python finds no module nowhere: start the command in the folder .* PYTHONPATH$",
        ),
        (
            "named_here.absent",
            r"='named_here\.absent': named_here has no module named_here\.absent: check its spelling$",
        ),
        ("named_here.good.deeper", r"named_here\.good has no module named_here\.good\.deeper: check"),
        ("named_here.empty", r"the module exports no FAMILY; define FAMILY = ModelFamily\(\.\.\.\) in it"),
        ("named_here.other_kind", r"the module exports no FAMILY"),
        ("named_here.needs", r"importing named_here\.needs fails: No module named 'module_that_is_not_there'"),
        ("named_here.inside", r"importing named_here\.inside fails: No module named 'named_here\.absent'"),
    ],
)
def test_a_name_that_leads_nowhere_is_told_in_one_line(families: ModuleRegistry, name: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        families[name]
    assert "\n" not in str(refused.value)


def test_what_a_module_raises_itself_is_raised_on(families: ModuleRegistry) -> None:
    with pytest.raises(RuntimeError, match="as it is imported"):
        families["named_here.broken"]


def test_two_that_share_a_config_class_are_refused(families: ModuleRegistry) -> None:
    families["named_here.good"]
    with pytest.raises(UserError, match=r"'named_here\.twin': its FAMILY has the config class of 'named_here\.good'"):
        families["named_here.twin"]


def test_a_config_of_no_family_is_no_users_mistake(families: ModuleRegistry) -> None:
    with pytest.raises(TypeError, match="dict is the config of no FAMILY"):
        families.name_of({})


def test_code_is_followed_where_somebody_vouches_for_it_alone() -> None:
    own = {"task": {"name": "lab.sorting"}, "model": {"family": "lab.bahdanau"}}
    check_trusted(own, ["lab.bahdanau", "lab.sorting"])
    check_trusted({"task": {"name": "translation"}, "model": {"family": "decoder"}}, ())
    check_trusted({"task": {"name": "translation"}, "model": {"size": "gpt2"}}, ())
    with pytest.raises(UserError) as refused:
        check_trusted(own, ())
    assert str(refused.value) == (
        "config.task.name='lab.sorting' and config.model.family='lab.bahdanau' are code from outside this library that "
        "only the run's own config.json names: add --trust=lab.sorting,lab.bahdanau if you know what it does"
    )
    # The flag that is told is the whole one, also for who gave a part of it.
    with pytest.raises(
        UserError, match=r"^config\.model\.family='lab\.bahdanau' is code .* --trust=lab\.sorting,lab\.bahd"
    ):
        check_trusted(own, ["lab.sorting"])


@pytest.mark.parametrize("model", [{"family": "named_here.sized"}, {"family": "named_here.sized", "size": "its-own"}])
def test_nothing_is_imported_that_is_not_trusted(
    families: ModuleRegistry, model: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"name": "x", "steps": 1, "task": {"name": "translation"}, "model": model, "optimizer": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for command in (train, evaluate, model_sizes):
        assert cli.run(command.COMMAND, command.main, [f"--workdir={tmp_path}"]) == 2
        assert "add --trust=named_here.sized if" in capsys.readouterr().err
    assert not any(name.startswith("named_here") for name in sys.modules)


def test_a_family_from_outside_has_sizes_of_its_own(families: ModuleRegistry) -> None:
    config = registry.model_config({"family": "named_here.sized", "size": "its-own"})
    assert dataclasses.asdict(config) == {"width": 7, "size": "its-own"}
    tree = config_schema({"task": {"name": "translation"}, "model": {"family": "named_here.sized", "size": "its-own"}})
    assert tree.keys["model"].keys["width"].default == 7
    departed = registry.remove_contradicted_size({"family": "named_here.sized", "size": "its-own"}, {"width": 8})
    assert departed == {"family": "named_here.sized", "size": None, "width": 7}
    with pytest.raises(UserError, match=r"config\.model\.size='its-own' is unknown"):
        registry.model_config({"size": "its-own"})
    with pytest.raises(UserError, match=r"contradicts config\.model\.size='gpt2', which has family='decoder'"):
        registry.model_config({"family": "named_here.sized", "size": "gpt2"})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "experiments.captionin.task",
            r"is unknown: did you mean 'experiments\.captioning\.task'\? known: experiments",
        ),
        (
            "captioning.task",
            r"finds no module captioning: did you mean 'experiments\.captioning\.task'\? If not, start",
        ),
        ("experiments.", "names no module: "),
        ("experiments..task", "names no module: "),
        ("experiments.captioning.ta-sk", "names no module: "),
        ("experiments.captioning/../task", "names no module: "),
        ("experiments.captioning", "is unknown: "),
        ("experiments.captioning.task.more", "is unknown: "),
        ("experiments.results", "is unknown: "),
        ("experiments.results.task", "is unknown: "),
        ("experiments.demo", "is unknown: "),
        ("experiments.captioning.metrics", r": the module exports no TASK; define TASK = \w+\(\.\.\.\) in it"),
        # A script for another environment: what it does when it is imported is not for a config to start.
        ("experiments.benchmarks.peers.torch_lstm", "is unknown: did you mean "),
        ("experiments.benchmarks.run", ": the module exports no TASK; define TASK = "),
        ("experiments.benchmarks.__init__", ": the module exports no TASK; define TASK = "),
    ],
)
def test_a_project_is_found_by_its_task_and_nothing_else_of_it_is_imported(name: str, says: str) -> None:
    before = set(sys.modules)
    with pytest.raises(UserError, match=says) as refused:
        TASKS[name]
    said = str(refused.value)
    assert "\n" not in said
    if "known: " in said:
        assert all(project in said for project in TASKS.project_names())
    assert not {each for each in set(sys.modules) - before if each.startswith("experiments.")}


def test_the_projects_of_the_checkout_are_named_and_found() -> None:
    assert {"experiments.captioning.task", "experiments.pointer_networks.task"} <= set(TASKS.project_names())
    assert "experiments.captioning.model" in registry.FAMILIES.project_names()
    assert TASKS["experiments.captioning.task"] is TASKS["experiments.captioning.task"]


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A working directory with a package `experiments` of its own, which fails where it is imported."""
    for package in ("experiments", "experiments/captioning", "experiments/translation", "experiments/x"):
        (tmp_path / package).mkdir()
        for module in ("__init__", "task", "model", "multi30k_cpu"):
            (tmp_path / package / f"{module}.py").write_text("raise SystemExit('code of the working directory')\n")
    return tmp_path


def python(folder: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_config_of_the_checkout_begins_with_others_of_the_checkout_alone(foreign: Path, root: Path) -> None:
    program = (
        "import sys\nassert sys.path[0] == ''\nfrom launch.config_files import load_config\n"
        "print(load_config(sys.argv[1]).name, sys.modules['experiments'].__file__, 'jax' in sys.modules)"
    )
    config = root / "experiments" / "translation" / "configs" / "recurrent_multi30k.py"
    assert "from experiments.translation.configs import multi30k_cpu" in config.read_text(encoding="utf-8")
    done = python(foreign, root, "-c", program, str(config))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == [str(root / "experiments" / "__init__.py"), "False"]
    # A config of one's own may begin with a package of that name of one's own.
    (foreign / "own.py").write_text("import experiments\n")
    done = python(foreign, root, "-m", "launch.train", "--config=own.py", "--workdir=run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: config file 'own.py' fails at line 1: SystemExit: code of the working directory\n"


def test_a_strangers_run_names_projects_of_the_checkout_and_not_of_the_working_directory(
    foreign: Path, root: Path
) -> None:
    program = (
        "import sys\nfrom launch import cli, model_sizes\nfrom transformer.models.registry import FAMILIES\n"
        "from transformer.tasks.registry import TASKS\n"
        "print(cli.run(model_sizes.COMMAND, model_sizes.main, sys.argv[1:]))\n"
        "TASKS['experiments.captioning.task'], FAMILIES['experiments.captioning.model']\n"
        "for name in ('task', 'model'): print(sys.modules[f'experiments.captioning.{name}'].__file__)"
    )
    run = foreign / "run"
    run.mkdir()
    task = {"name": "experiments.x.task"}
    config = {"name": "x", "steps": 1, "task": task, "model": {"family": "experiments.x.model"}, "optimizer": {}}
    (run / "config.json").write_text(json.dumps(config))
    done = python(foreign, root, "-c", program, f"--workdir={run}")
    assert done.returncode == 0, done.stderr
    project = root / "experiments" / "captioning"
    assert done.stdout.split() == ["2", str(project / "task.py"), str(project / "model.py")]
    assert "='experiments.x." in done.stderr
    assert " is unknown: " in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"__path__": ["elsewhere/experiments"]}, r" from .*elsewhere/experiments"),
        ({"__path__": []}, ""),
        ({"__file__": "elsewhere/experiments.py"}, r" from elsewhere/experiments\.py"),
        ({}, ""),
    ],
)
def test_another_package_of_that_name_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], found: str
) -> None:
    other = ModuleType("experiments")
    vars(other).update(facts)
    monkeypatch.setitem(sys.modules, "experiments", other)
    says = rf"^config\.task\.name='experiments\.captioning\.task' is of a project .* was imported{found}: give yours an"
    with pytest.raises(UserError, match=says):
        TASKS["experiments.captioning.task"]


def test_an_installed_library_says_what_it_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside it another library has a folder of that name.
    (tmp_path / "headwise-0.1.0.dist-info").mkdir()
    (tmp_path / "experiments" / "captioning").mkdir(parents=True)
    for file in ("experiments/__init__.py", "experiments/captioning/task.py"):
        (tmp_path / file).write_text("TASK = Kind()")
    monkeypatch.setattr("transformer.system.command_invocation.PACKAGE_PARENT", tmp_path)
    assert TASKS.project_names() == []
    with pytest.raises(UserError, match=r"which an installed library does not hold: clone the repository") as refused:
        TASKS["experiments.captioning.task"]
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="config file 'x' is of a project of Headwise's repository"):
        import_experiments_package("config file 'x'")
