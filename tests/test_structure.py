"""The rules of the house, read from the sources: who imports whom, and what no file may hold.

A rule is a function from files to faults, so that each is also run on a fault planted in a tree of strings.
"""

import ast
import dataclasses
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.changed import statements
from tests.import_cycles import find_cycles

# Each imports only itself and what stands before it.
ORDER = ("logical_axes", "config", "system", "overrides", "storage", "attention", "layers", "models", "decoding")
ORDER += ("data", "tasks", "runs", "pages", "maps", "costs", "huggingface", "training", "aot", "benchmarks")
ORDER += ("interpret", "studies", "launch")
# What runs on a bare accelerator machine, and what its lowest floor may use.
BARE = {"logical_axes", "config", "system", "overrides", "attention", "layers", "models"}
LIGHT = {
    "transformer",
    "transformer.config",
    "transformer.system.command_invocation",
    "transformer.runs.exceptions",
    "transformer.system.terminal",
}
BARE_NEEDS = {"jax", "flax", "optax", "numpy", "jaxtyping"}
ATTENTION_NEEDS = {"jax", "numpy", "jaxtyping"}
FLAX_FILE = "transformer/layers/functional_module.py"
FORBIDDEN = {"tensorflow", "torch", "pickle", "cPickle", "cloudpickle", "dill", "joblib"}
# Scripts that run where the peers are installed: they record golden values, and are timed beside us.
RECORDS, PEERS = ("tests/golden/make", "tests/golden/check_exports"), "experiments/benchmarks/peers/"
# Programs that act on the checkout itself. They are commands, and import each other; no project imports them.
TOOLS = {
    "docs/generate.py",
    "experiments/benchmarks/run.py",
    "experiments/claims/__main__.py",
    "experiments/pods/compile_experiments.py",
    "experiments/record_comparison.py",
    "experiments/records.py",
    "experiments/reproduce.py",
}
OURS = {"transformer", "launch", "experiments", "docs", "tests"}
FORBIDDEN_CALLS = {"eval", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
# What runs a module or a text by its name, and the files that may: each says whose name it takes.
RUNNING = {"import_module", "exec_module", "load_module", "run_path", "run_module", "__import__", "exec"}
MAY_RUN = {
    "launch/compilation_cache.py",  # jax
    "launch/config_files.py",  # the file that a person gives by --config
    "experiments/claims/catalog.py",  # the modules of its own folder
    "experiments/benchmarks/programs/step_compilation.py",  # the files of the benchmark's own declaration
    "transformer/system/lazy_names.py",  # the names and modules of a package, on first use
    "transformer/data/datasets/tfds_preparation.py",  # TFDS's own modules
    "transformer/system/module_registry.py",  # families and tasks, after transformer.runs.trust
    "transformer/studies/sweeps/optuna_search.py",  # optuna
    "transformer/training/writers/tensorboard.py",  # tensorboardX
}
FORBIDDEN_ENDS = {call.rpartition(".")[2] for call in FORBIDDEN_CALLS}
# What a file must have in its text for any of these rules: to look through the trees of all files takes seconds.
RULED_WORD = re.compile(rf"\b(?:{'|'.join(sorted({*FORBIDDEN_ENDS, *RUNNING, 'allow_pickle'}))})\b")
MACHINE = re.compile(
    r"--(?:extra-)?index-url|https?://[^\s\"']*/simple\b|(?<![\w.])/(?:home/\w+|Users/\w+|root/|tmp/[a-z])"
)
# The files and names of the tables from a variant of attention to the class that is all of it.
VARIANTS = {"transformer/attention/scores.py": "SCORES", "transformer/attention/positions.py": "SCHEMES"}
# Participles, adverbs and the like, which do not say what a variable holds, and beginnings and ends like them.
VAGUE_NAME = re.compile(
    """_*(?:ahead|along|apart|around|asked|away|back|became|began|begun|behind|beside|borne|called|came|chosen|done|drawn|
    each|fed|few|found|given|gone|half|heard|held|here|kept|known|laid|least|left|made|meant|met|much|named|other|others|
    put|rest|said|seen|shown|some|spoken|such|sure|taken|then|there|thus|told|tried|wanted|whole|within|without|written|
    of_.*|.*_(?:around|away|behind|beside|found|half|held|kept|of|said|some|told|with))""",
    re.VERBOSE,
)
MAX_VAGUE_SHARE = 1 / 500
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp")


@dataclasses.dataclass(frozen=True)
class File:
    """One file of the tree: its path from the root, its size in bytes, and its text unless it is binary."""

    path: str
    text: str | None
    size: int = 0

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    @property
    def group(self) -> str:
        """Where the file stands in ORDER: "layers", "launch"; other folders by their own name."""
        first, *rest = self.module.split(".")
        return (rest or [""])[0] if first == "transformer" else first


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module, whether the file imports it on being imported itself, and the line."""

    module: str
    on_import: bool
    line: int

    @property
    def package(self) -> str:
        return self.module.split(".")[0]

    @property
    def standard(self) -> bool:
        return self.package in sys.stdlib_module_names


def sources(files: Sequence[File], *folders: str) -> list[File]:
    """The Python files under `folders`."""
    return [file for file in files if file.path.endswith(".py") and file.path.split("/")[0] in folders]


@functools.cache
def tree_of(file: File) -> ast.Module:
    """The file as a tree, parsed once for all rules."""
    return ast.parse(file.text or "")


@functools.cache
def import_statements(file: File) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Each with whether it stands outside functions and all else; several rules ask for them."""
    tree = tree_of(file)
    outer = {id(node) for node in tree.body}
    found = [node for node in statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return tuple((node, id(node) in outer) for node in found)


def imports(file: File, known: set[str]) -> Iterator[Import]:
    """Every import in `file`, also inside functions; `from a import b` is a.b where that is a module."""
    package = file.module if file.path.endswith("__init__.py") else file.module.rpartition(".")[0]
    for node, outside in import_statements(file):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, outside, node.lineno)
        else:
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield Import(whole if whole in known else base, outside, node.lineno)


def imports_by_file(files: Sequence[File], *folders: str) -> Iterator[tuple[File, Import]]:
    modules = [file.module for file in sources(files, *sorted(OURS))]
    known = {".".join(name.split(".")[:end]) for name in modules for end in range(1, name.count(".") + 2)}
    for file in sources(files, *folders):
        for found in imports(file, known):
            yield file, found


def direction(files: Sequence[File]) -> list[str]:
    """Each group imports only itself and what stands before it, and nothing imports experiments."""
    faults = []
    for file, found in imports_by_file(files, "transformer", "launch"):
        here = f"{file.path}:{found.line} imports {found.module}"
        if file.group == "" and found.on_import and found.package in ("transformer", "launch", "experiments"):
            faults.append(f"{here}, but the package itself imports nothing of ours before it is asked to")
        elif file.group not in (*ORDER, ""):
            faults.append(f"{file.path} stands in no group of the order")
        elif found.package in ("experiments", "docs"):
            faults.append(f"{here}, but nothing imports {found.package}")
        elif found.package in ("transformer", "launch"):
            target = File(found.module.replace(".", "/") + ".py", None).group
            if file.group and target in ORDER and ORDER.index(target) > ORDER.index(file.group):
                faults.append(f"{here}, which stands after {file.group}")
    return faults


def projects_alone(files: Sequence[File]) -> list[str]:
    """A config imports ml_collections, types and other configs, a project's code the library and its own folder.

    So no project imports another's task or model; scripts that time other libraries import nothing of ours. Programs
    about the checkout import what they act on.
    """
    configs = {file.module for file in sources(files, "experiments") if "def get_config(" in (file.text or "")}
    faults = []
    for file, found in imports_by_file(files, "experiments"):
        here = f"{file.path}:{found.line} imports {found.module}"
        own = file.module.split(".")[1:2] == found.module.split(".")[1:2] and file.module.count(".") >= 2
        if file.path.startswith(PEERS):
            faults += [here] if found.package in OURS else []
        elif file.module in configs:
            allowed = found.package in ("ml_collections", "typing") or found.module in configs
            faults += [] if allowed else [f"{here}; a config imports other configs alone"]
        elif file.path in TOOLS:
            faults += [here] if found.package == "tests" else []
        elif found.package == "experiments" and not own:
            faults.append(f"{here}, which is another project's")
        elif found.package in ("launch", "docs", "tests"):
            faults.append(f"{here}; a project imports the library and its own folder")
    return faults


def bare_machine(files: Sequence[File]) -> list[str]:
    """Models and all beneath need few libraries, attention fewer; one file imports flax."""
    faults = []
    for file, found in imports_by_file(files, "transformer"):
        if found.standard or found.package == "transformer":
            continue
        allowed = ATTENTION_NEEDS if file.group == "attention" else BARE_NEEDS
        if file.group in BARE and found.package not in allowed:
            faults.append(f"{file.path}:{found.line} imports {found.module}, which {file.group} does without")
        elif found.package == "flax" and file.path != FLAX_FILE:
            faults.append(f"{file.path}:{found.line} imports flax; only {FLAX_FILE} does")
    return faults


def light_launch(files: Sequence[File]) -> list[str]:
    """A command imports what needs jax inside main: mistakes are told at once, the platform chosen first."""
    return [
        f"{file.path}:{found.line} imports {found.module} outside a function"
        for file, found in imports_by_file(files, "launch")
        if found.on_import
        and not found.standard
        and found.package not in ("launch", "ml_collections")
        and found.module not in LIGHT
    ]


def cycles(files: Sequence[File]) -> list[str]:
    """No module imports itself by way of others, not even inside a function."""
    names = {file.module for file in sources(files, "transformer", "launch", "experiments", "docs")}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for file, found in imports_by_file(files, "transformer", "launch", "experiments", "docs"):
        if found.module in names:
            graph[file.module].add(found.module)
    return [" -> ".join((*cycle, cycle[0])) for cycle in find_cycles(graph)]


def forbidden(files: Sequence[File]) -> list[str]:
    """No TensorFlow, no PyTorch, nothing that runs what it reads; scripts of recorded and timed peers may."""
    faults = []
    for file, found in imports_by_file(files, *sorted(OURS)):
        if found.package in FORBIDDEN and not file.path.startswith((*RECORDS, PEERS)):
            faults.append(f"{file.path}:{found.line} imports {found.module}")
    for file in sources(files, *sorted(OURS)):
        for node in ast.walk(tree_of(file)) if RULED_WORD.search(file.text or "") else ():
            # By its last name first: to write every expression out takes seconds.
            near = isinstance(node, ast.Call) and last_name(node.func) in FORBIDDEN_ENDS
            if near and (called := ast.unparse(node.func)) in FORBIDDEN_CALLS:
                faults.append(f"{file.path}:{node.lineno} calls {called}")
            if isinstance(node, ast.Call) and last_name(node.func) in RUNNING and file.path not in MAY_RUN:
                faults += [] if file.group == "tests" else [f"{file.path}:{node.lineno} runs what it names"]
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) == "True":
                faults.append(f"{file.path}:{node.lineno} unpickles")
    return faults


def last_name(node: ast.expr) -> str:
    """What stands last in a name, as c in a.b.c; nothing of what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_and_docstrings(files: Sequence[File]) -> list[str]:
    """Every module says what it is, in its name and in its docstring."""
    faults = []
    for file in sources(files, *sorted(OURS)):
        if Path(file.path).name in ("utils.py", "util.py"):
            faults.append(f"{file.path}: name what it does")
        if not ast.get_docstring(tree_of(file)):
            faults.append(f"{file.path} has no docstring")
    return faults


def telling_names(files: Sequence[File]) -> list[str]:
    """At most one binding in 500 of a top folder has a vague name."""
    faults = []
    for folder in ("transformer", "launch", "experiments"):
        bindings = [binding for file in sources(files, folder) for binding in bindings_in(file)]
        vague = [place for place, name in bindings if VAGUE_NAME.fullmatch(name)]
        if len(vague) > MAX_VAGUE_SHARE * len(bindings):
            faults.append(
                f"{folder}/ has {len(vague)} vague names among {len(bindings)} bindings, over 1 in "
                f"{1 / MAX_VAGUE_SHARE:.0f}: name each after what it holds or does, hyperparameters instead of told: "
                + ", ".join(vague)
            )
    return faults


def bindings_in(file: File) -> Iterator[tuple[str, str]]:
    """The place, as path:line name, and the name of all that code assigns or defines, and of all parameters."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        yield f"{file.path}:{node.lineno} {name}", name


def machine_paths(files: Sequence[File]) -> list[str]:
    """No file names a package index or a folder of one machine."""
    return [
        f"{file.path}:{number} has {match[0]!r}"
        for file in files
        for number, line in enumerate((file.text or "").splitlines(), 1)
        if (match := MACHINE.search(line))
    ]


def sizes(files: Sequence[File]) -> list[str]:
    """No file is over 1 MB, no image over 300 KB."""
    limits = [(file, 300_000 if file.path.endswith(IMAGES) else 1_000_000) for file in files]
    return [f"{file.path} has {file.size} bytes, over {limit}" for file, limit in limits if file.size > limit]


def one_block_a_variant(files: Sequence[File]) -> list[str]:
    """A score or a position scheme is one class: besides exports and huggingface, at most two files name it in code."""
    trees = {
        file.path: tree_of(file)
        for file in sources(files, "transformer")
        if file.group != "huggingface" and not file.path.endswith("__init__.py")
    }
    named = {path: set(names_in(tree)) for path, tree in trees.items()}
    faults = []
    for path, table in VARIANTS.items():
        for variant, block in pairs_of(trees.get(path, ast.Module([], [])), table):
            enum, member = variant.split(".")
            if member == "NONE":
                continue
            # A model's own enum of positions repeats the members of attention's.
            names = {variant, f"{enum}s.{member}", block}
            found = sorted(path for path, its_names in named.items() if its_names & names)
            if len(found) > 2:
                faults.append(f"{variant} is named in {', '.join(found)}: let its class say what the others ask")
    return faults


def pairs_of(tree: ast.Module, table: str) -> Iterator[tuple[str, str]]:
    """The keys and values of a dictionary that a module holds under this name, as they are written."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                yield ast.unparse(key or value), ast.unparse(value)


def names_in(tree: ast.Module) -> Iterator[str]:
    """What code names: variables, what is imported, members of enums where they are used and where they are made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.id if isinstance(node, ast.Name) else ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            yield node.name
            for made in node.body:
                if isinstance(made, ast.Assign):
                    yield from (f"{node.name}.{ast.unparse(target)}" for target in made.targets)


Rule = Callable[[Sequence[File]], list[str]]
RULES: tuple[Rule, ...] = (
    direction,
    projects_alone,
    bare_machine,
    light_launch,
    cycles,
    forbidden,
    names_and_docstrings,
    telling_names,
    machine_paths,
    sizes,
    one_block_a_variant,
)


@pytest.fixture(scope="session")
def files(root: Path) -> list[File]:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and a checkout to know which files are the project's")
    found = []
    for name in sorted(set(filter(None, names.split("\0")))):
        if (root / name).is_file():
            content = (root / name).read_bytes()
            text = None if b"\0" in content else content.decode("utf-8")
            found.append(File(name, text, len(content)))
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(files: list[File], rule: Rule) -> None:
    assert rule(files) == []


CLEAN = {
    "transformer/__init__.py": '"""."""',
    "transformer/config.py": '"""."""\nimport dataclasses',
    "transformer/attention/masks.py": '"""."""\nimport jax\nfrom transformer.config import UserError',
    "transformer/attention/scores.py": '"""."""\nclass Score:\n DOT = "dot"\nSCORES: dict = {Score.DOT: Dot}',
    "transformer/layers/choice.py": '"""."""\nfrom transformer.attention.scores import Dot',
    "transformer/layers/functional_module.py": '"""."""\nfrom flax import nnx\nfrom transformer.attention import masks',
    "transformer/layers/linear.py": '"""."""\nfrom .functional_module import Module',
    "transformer/data/pipeline.py": '"""."""\nimport grain\nimport tensorflow_datasets',
    "transformer/training/loop.py": '"""."""\nfrom transformer.layers import linear',
    "launch/cli.py": '"""."""\nimport sys',
    "launch/train.py": '"""."""\nfrom launch import cli\ndef main():\n from transformer.training import loop',
    "experiments/demo.py": '"""."""\nfrom experiments import base\ndef get_config(): 0',
    "experiments/base.py": '"""."""\nfrom ml_collections import ConfigDict\ndef get_config(): 0',
    "experiments/walks/walk.py": '"""."""\nfrom experiments import base\ndef get_config(): 0',
    "experiments/walks/task.py": '"""."""\nimport jax\nfrom transformer import config\nfrom . import model',
    "experiments/walks/model.py": '"""."""\nfrom transformer.layers import linear',
    "tests/test_x.py": '"""."""\nfrom launch import cli',
    "tests/golden/make.py": '"""."""\nimport torch',
    "requirements/run.txt": "jax==0.12.0 --hash=sha256:00",
}


def tree(changes: dict[str, str]) -> list[File]:
    return [File(path, text, len(text)) for path, text in (CLEAN | changes).items()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_clean_tree_has_no_fault(rule: Rule) -> None:
    assert rule(tree({})) == []


@pytest.mark.parametrize(
    ("rule", "path", "text", "says"),
    [
        (
            direction,
            "transformer/layers/linear.py",
            "import transformer.training.loop",
            "stands after layers",
        ),
        (direction, "transformer/layers/linear.py", "from ..training import loop", "stands after layers"),
        (
            direction,
            "transformer/layers/x.py",
            "def f():\n from transformer import data",
            "stands after layers",
        ),
        (direction, "transformer/training/loop.py", "from launch import cli", "stands after training"),
        (direction, "transformer/training/loop.py", "import experiments.demo", "nothing imports experiments"),
        (direction, "launch/train.py", "from experiments import demo", "nothing imports experiments"),
        (direction, "launch/train.py", "from docs import generate", "nothing imports docs"),
        (direction, "transformer/__init__.py", "from transformer import config", "imports nothing of ours"),
        (direction, "transformer/misc/x.py", "import os", "stands in no group"),
        (
            projects_alone,
            "experiments/demo.py",
            "import transformer\ndef get_config(): 0",
            "other configs alone",
        ),
        (projects_alone, "experiments/demo.py", "from launch import cli\ndef get_config(): 0", "other configs alone"),
        (projects_alone, "experiments/demo.py", "import jax\ndef get_config(): 0", "other configs alone"),
        (
            projects_alone,
            "experiments/sets/sort.py",
            "from experiments.walks import model\ndef get_config(): 0",
            "other configs alone",
        ),
        (projects_alone, "experiments/sets/task.py", "from experiments.walks import model", "another project's"),
        (projects_alone, "experiments/sets/task.py", "from experiments.walks import walk", "another project's"),
        (projects_alone, "experiments/sets/task.py", "from launch import cli", "its own folder"),
        (projects_alone, "experiments/benchmarks/peers/x.py", "import transformer.config", "transformer.config"),
        (projects_alone, "experiments/walks/programs/x.py", "from experiments.sets import task", "another project's"),
        (projects_alone, "experiments/sets/task.py", "import experiments.records", "another project's"),
        (projects_alone, "experiments/records.py", "from tests import markdown", "imports tests"),
        (bare_machine, "transformer/models/x.py", "import grain", "models does without"),
        (bare_machine, "transformer/attention/x.py", "import optax", "attention does without"),
        (bare_machine, "transformer/attention/x.py", "import flax.nnx", "attention does without"),
        (
            bare_machine,
            "transformer/models/x.py",
            "from flax import nnx",
            "only transformer/layers/functional_module.py",
        ),
        (bare_machine, "transformer/training/x.py", "import flax", "only transformer/layers/functional_module.py"),
        (light_launch, "launch/train.py", "import jax", "outside a function"),
        (light_launch, "launch/train.py", "from transformer.training import loop", "outside a function"),
        (cycles, "transformer/layers/functional_module.py", "from transformer.layers import linear", "linear -> "),
        (cycles, "experiments/base.py", "def get_config():\n from experiments import demo", "experiments.base -> "),
        (forbidden, "transformer/data/x.py", "import tensorflow as tf", "imports tensorflow"),
        (forbidden, "tests/test_x.py", "def f():\n import torch.nn", "imports torch"),
        (forbidden, "tests/golden/test_x.py", "import torch", "imports torch"),
        (forbidden, "launch/x.py", "from pickle import loads", "imports pickle"),
        (forbidden, "launch/x.py", "import yaml\nyaml.load('')", "calls yaml.load"),
        (forbidden, "transformer/data/x.py", "x = eval('1')", "calls eval"),
        (forbidden, "transformer/data/x.py", "np.load(f, allow_pickle=True)", "unpickles"),
        (forbidden, "transformer/data/x.py", "import importlib\nimportlib.import_module(name)", "runs what it names"),
        (forbidden, "launch/x.py", "exec(text)", "runs what it names"),
        (forbidden, "experiments/x.py", "loader.exec_module(module)", "runs what it names"),
        (names_and_docstrings, "transformer/data/utils.py", '"""Things."""', "name what it does"),
        (names_and_docstrings, "transformer/data/x.py", "x = 1", "has no docstring"),
        (telling_names, "transformer/data/x.py", "told = {}", "x.py:1 told"),
        (telling_names, "launch/x.py", "def f(_given): pass", "x.py:1 _given"),
        (telling_names, "launch/x.py", "def _with(): pass", "x.py:1 _with"),
        (telling_names, "experiments/walks/x.py", "class A:\n def f(self): self.of_query = 0", "x.py:2 of_query"),
        (machine_paths, "requirements/run.txt", "--" + "index-url x", "index-url"),
        (machine_paths, "requirements/run.txt", "--extra" + "-index-url x", "index-url"),
        (machine_paths, "README.md", "from https:" + "//pypi.example/simple", "/simple"),
        (machine_paths, "docs/x.md", "in " + "/home" + "/someone/x", "/home"),
        (machine_paths, "docs/x.md", "in " + "/Users" + "/someone/x", "/Users"),
        (machine_paths, "docs/x.md", "'" + "/root" + "/x'", "/root"),
        (machine_paths, "docs/x.md", "cd " + "/tmp" + "/x", "/tmp"),
        (one_block_a_variant, "transformer/models/x.py", "x = Score.DOT", "Score.DOT is named in"),
        (one_block_a_variant, "transformer/models/x.py", "class Scores:\n DOT = 'dot'", "models/x.py"),
        (sizes, "docs/page.png", "x" * 300_001, "over 300000"),
        (sizes, "tests/golden/x.json", "x" * 1_000_001, "over 1000000"),
    ],
)
def test_a_planted_fault_is_found(rule: Rule, path: str, text: str, says: str) -> None:
    faults = rule(tree({path: text}))
    assert faults
    assert all(says in fault for fault in faults)


def run_python(program: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)


def modules_of(root: Path, *folders: str) -> list[File]:
    paths = [path.relative_to(root) for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [File(path.as_posix(), None) for path in paths]


def test_models_import_on_a_bare_machine(root: Path) -> None:
    beneath = [file.module for file in modules_of(root, "transformer") if file.group in BARE]
    assert "transformer.models" in beneath
    absent = ["grain", "tensorflow_datasets", "ml_collections", "orbax", "tensorstore", "tokenizers"]
    block = f"import sys, importlib\nfor name in {absent}: sys.modules[name] = None\n"
    done = run_python(f"{block}for name in {beneath}: importlib.import_module(name)", root)
    assert done.returncode == 0, done.stderr
    # Planted: the block really blocks.
    assert "ModuleNotFoundError" in run_python(f"{block}import grain", root).stderr


@pytest.fixture(scope="module")
def imported(root: Path) -> list[str]:
    """What rare modules a training imports, and what forbidden ones all modules import, a line each."""
    names = [file.module for file in modules_of(root, "transformer", "launch")]
    program = (
        "import sys, importlib, transformer.training.driver, transformer.training.writers.trackers\n"
        "rare = {'scipy', 'sacrebleu', 'tensorflow_datasets', 'tensorboardX', 'transformer.maps.report.page'}\n"
        "print(sorted(rare & set(sys.modules)))\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print(sorted({'tensorflow', 'torch'} & set(sys.modules)))"
    )
    done = run_python(program, root)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_training_starts_without_what_only_rare_paths_need(imported: list[str]) -> None:
    """Each would delay every start: SciPy's solvers alone took a sixth of the time of all imports."""
    assert imported[0] == "[]"


def test_neither_tensorflow_nor_torch_is_imported(imported: list[str]) -> None:
    assert imported[1:] == ["[]"]


def test_one_environment_serves_both_locks(root: Path) -> None:
    pins = {
        name: set(re.findall(r"^[a-z][^\s;]*==[^\s;]+", (root / "requirements" / name).read_text(), re.M))
        for name in ("run.txt", "dev.txt", "docs.txt")
    }
    assert len(pins["run.txt"]) > 20
    assert pins["run.txt"] <= pins["dev.txt"]
    assert pins["run.txt"] <= pins["docs.txt"]
    versions = {pin.partition("==")[0]: pin for pin in pins["dev.txt"]}
    assert [pin for pin in pins["docs.txt"] if versions.get(pin.partition("==")[0], pin) != pin] == []
