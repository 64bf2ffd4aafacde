"""Finding families and tasks by name: what is known, what each mistake is told, and whose code is followed."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launch import cli, evaluate, sizes, train
from transformer.config import UserError
from transformer.exports import Exports
from transformer.models import registry
from transformer.models.family import Family
from transformer.training.config import schema_of
from transformer.trust import check_trusted

FILES = {
    "good": "FAMILY = Family(Config, print)",
    "twin": "from named_here.good import Config\nFAMILY = Family(Config, print)",
    "empty": "FAMILIES = 3",
    "other_kind": "FAMILY = 3",
    "needs": "import module_that_is_not_there",
    "inside": "import named_here.absent",
    "broken": "raise RuntimeError('as it is imported')",
    "sized": (
        "SIZES = {'its-own': Size('named_here.sized', {'width': 7}, 9, 9, 'nobody')}\n"
        "FAMILY = Family(Config, print, sizes=SIZES)"
    ),
}
HEADER = """
import dataclasses
from transformer.models.family import Family
from transformer.models.family import Size

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
    yield Exports("transformer.models", "FAMILY", Family, "config.model.family")
    for name in [name for name in sys.modules if name.partition(".")[0] == "named_here"]:
        del sys.modules[name]


def test_the_librarys_own_are_known_by_their_files(families: Exports) -> None:
    assert {"decoder", "encoder", "encoder_decoder"} <= set(families.names())
    assert families["decoder"] is registry.FAMILIES["decoder"]


def test_a_dotted_path_leads_to_a_module_anywhere_and_its_config_leads_back(families: Exports) -> None:
    family = families["named_here.good"]
    assert families.name_of(family.config(width=2)) == "named_here.good"
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
        ("contract", r"'contract' is unknown: "),
        ("nowhere.at_all", r"'nowhere\.at_all' is unknown: "),
        ("named_here.absent", r"'named_here\.absent' is unknown: "),
        ("named_here.good.deeper", r"'named_here\.good\.deeper' is unknown: "),
        ("named_here.empty", r"the module exports no FAMILY; define FAMILY = Family\(\.\.\.\) in it"),
        ("named_here.other_kind", r"the module exports no FAMILY"),
        ("named_here.needs", r"importing named_here\.needs fails: No module named 'module_that_is_not_there'"),
        ("named_here.inside", r"importing named_here\.inside fails: No module named 'named_here\.absent'"),
    ],
)
def test_a_name_that_leads_nowhere_is_told_in_one_line(families: Exports, name: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        families[name]
    assert "\n" not in str(refused.value)


def test_what_a_module_raises_itself_is_raised_on(families: Exports) -> None:
    with pytest.raises(RuntimeError, match="as it is imported"):
        families["named_here.broken"]


def test_two_that_share_a_config_class_are_refused(families: Exports) -> None:
    families["named_here.good"]
    with pytest.raises(UserError, match=r"'named_here\.twin': its FAMILY has the config class of 'named_here\.good'"):
        families["named_here.twin"]


def test_a_config_of_no_family_is_no_users_mistake(families: Exports) -> None:
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
    families: Exports, model: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"name": "x", "steps": 1, "task": {"name": "translation"}, "model": model, "optimizer": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for command in (train, evaluate, sizes):
        assert cli.run(command.COMMAND, command.main, [f"--workdir={tmp_path}"]) == 2
        assert "add --trust=named_here.sized if" in capsys.readouterr().err
    assert not any(name.startswith("named_here") for name in sys.modules)


def test_a_family_from_outside_has_sizes_of_its_own(families: Exports) -> None:
    config = registry.model_config({"family": "named_here.sized", "size": "its-own"})
    assert dataclasses.asdict(config) == {"width": 7, "size": "its-own"}
    tree = schema_of({"task": {"name": "translation"}, "model": {"family": "named_here.sized", "size": "its-own"}})
    assert tree.keys["model"].keys["width"].default == 7
    departed = registry.depart_from_size({"family": "named_here.sized", "size": "its-own"}, {"width": 8})
    assert departed == {"family": "named_here.sized", "size": None, "width": 7}
    with pytest.raises(UserError, match=r"config\.model\.size='its-own' is unknown"):
        registry.model_config({"size": "its-own"})
    with pytest.raises(UserError, match=r"contradicts config\.model\.size='gpt2', which has family='decoder'"):
        registry.model_config({"family": "named_here.sized", "size": "gpt2"})
