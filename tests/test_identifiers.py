"""Every identifier in backticks, in documents and docstrings, is a name of the code or of a library."""

import ast
import builtins
import functools
import importlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.markdown import FENCE, PAGES, ROOT
from transformer.huggingface.convert import CONVERSIONS, OTHER_CLASSES

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A whole span that is an identifier, a dotted one, or a call of one.
IDENTIFIER = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\(.*\))?")
# The end of a name that stands for many: accuracy_k, bleu_4, layers_N.
NUMBERED = re.compile(r"_(?:\d+|k|[A-Z]+)$")
# Words of others that no import finds.
FOREIGN = {
    # Variables of the environment, and flags of XLA.
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_ENABLE_COMPILATION_CACHE", "WANDB_DIR"),
    *("JAX_MTLS_CERT_FILE", "JAX_MTLS_KEY_FILE", "JAX_MTLS_CA_FILE", "GOOGLE_CLOUD_PROJECT", "SKYPILOT_NODE_IPS"),
    *("xla_cpu_experimental_onednn_custom_call", "xla_cpu_enable_concurrency_optimized_scheduler"),
    # Classes and modules of Hugging Face.
    *("BertForSequenceClassification", "RobertaForSequenceClassification", "XLNetForSequenceClassification"),
    *("XLNetForTokenClassification", "XLNetForQuestionAnsweringSimple", "XLNetForQuestionAnswering"),
    *("GPT2ForSequenceClassification", "GPT2ForTokenClassification", "GPT2ForQuestionAnswering"),
    *("GPT2DoubleHeadsModel", "LlamaForSequenceClassification", "MBartForQuestionAnswering"),
    *("Bert", "Roberta", "audio_utils"),
    # Programs and settings of the machine.
    *("GraceTime", "KillWait"),
    *("mpirun", "conlleval", "flock", "psycopg2", "GcsFuseCsiDriver", "OnFailure", "jax_debug_infs"),
    *("maxtext.trainers.pre_train.train_compile", "Thumbs.db"),
    # Sections of docstrings.
    *("Args", "Raises"),
    # Texts and names that a sentence gives as examples.
    *("abdhk", "hkdba", "Valid"),
}


# Tables whose first column has the calls of another library, and that column of a row.
FOREIGN_TABLE = re.compile(
    r"^\| (?:TransformerLens|PyTorch|flash-attention|FlexAttention) \|.*\n(?:\|.*\n)+", re.MULTILINE
)
FIRST_CELL = re.compile(r"^\|[^|]*\|", re.MULTILINE)


class Call(NamedTuple):
    """What a definition takes by keyword; anything, if it has **kwargs."""

    keywords: frozenset[str]
    anything: bool


class Names(NamedTuple):
    """The names of the code.

    Attributes:
        words: Definitions, parameters, fields, keys and words of strings; no local variables and no comments.
        fragments: The constant parts of f-strings, such as "_accuracy_".
        calls: What each function or class takes by keyword, by its name.
        members: The names inside each class, with those of its bases, by the class's name.
    """

    words: frozenset[str]
    fragments: frozenset[str]
    calls: dict[str, list[Call]]
    members: dict[str, set[str]]


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the docstrings of a module, those behind assignments too."""
    for node in ast.walk(tree):
        if is_docstring(node):
            yield node.value.value  # type: ignore[attr-defined]


def bound_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield what the statements of a module or class define."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            yield from (leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name)) if target else ()


def call_of(node: ast.FunctionDef) -> Call:
    return Call(frozenset(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)), node.args.kwarg is not None)


def names_of(sources: Iterable[str]) -> Names:
    """Collect the names that some modules define or write."""
    words: set[str] = set()
    fragments: set[str] = set()
    calls: dict[str, list[Call]] = {}
    members: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for source in sources:
        tree = ast.parse(source)
        skipped = {id(node.value) for node in ast.walk(tree) if is_docstring(node)}  # type: ignore[attr-defined]
        words.update(bound_names(tree.body))
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef():
                    inside = set(bound_names(node.body))
                    words.update((node.name, *inside))
                    members.setdefault(node.name, set()).update(inside)
                    bases.setdefault(node.name, set()).update(
                        ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases
                    )
                    init = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
                    calls.setdefault(node.name, []).append(
                        call_of(init[0]) if init else Call(frozenset(inside), anything=False)
                    )
                case ast.FunctionDef():
                    words.add(node.name)
                    calls.setdefault(node.name, []).append(call_of(node))
                case ast.arg():
                    words.add(node.arg)
                case ast.keyword() if node.arg:
                    words.add(node.arg)
                case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self")):
                    words.add(node.attr)
                case ast.alias():
                    words.update(node.name.split("."))
                case ast.JoinedStr():
                    constants = [part.value for part in node.values if isinstance(part, ast.Constant)]
                    fragments.update(word for text in constants for word in re.findall(r"\w+", text))
                case ast.Constant(value=str() as text) if id(node) not in skipped:
                    words.update(re.findall(r"\w+", text))

    def inherited(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        above = [inherited(base, seen | {name}) for base in bases.get(name, ()) if base not in seen]
        return members.get(name, set()).union(*above)

    whole = {name: inherited(name) for name in members}
    # A dataclass takes the fields of its bases too.
    for name, taken in calls.items():
        if name in whole and all(not call.anything for call in taken):
            calls[name] = [Call(call.keywords | whole[name], call.anything) for call in taken]
    return Names(frozenset(words), frozenset(fragments), calls, whole)


@functools.cache
def tracked(pattern: str) -> tuple[Path, ...]:
    """The tracked files of a pattern."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", pattern],
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(path for name in listed.stdout.split("\0") if name and (path := ROOT / name).exists())


CODE = [path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in ("transformer", "launch", "experiments")]


@functools.cache
def names() -> Names:
    """The names of this project, of its files and of the pages' scripts."""
    found = names_of(path.read_text(encoding="utf-8") for path in CODE)
    words = set(found.words)
    for path in tracked("*"):
        words.update(re.findall(r"\w+", str(path.relative_to(ROOT))))
        suffixes = (".js", ".css", ".html", ".toml", ".yml", ".yaml", ".sbatch")
        if path.suffix in suffixes or path.name in ("Makefile", "Dockerfile"):
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    # The classes of Hugging Face, whose names are put together, and the keys of their configs.
    for spec in (*CONVERSIONS.values(), *OTHER_CLASSES):
        words.update((spec.architecture, *spec.other_architectures, *spec.class_keys))
    return found._replace(words=frozenset(words))


@functools.cache
def is_of_a_library(name: str) -> bool:
    """Whether a dotted name leads to something in an installed library or in Python itself."""
    first, *rest = name.split(".")
    try:
        value = getattr(builtins, first) if hasattr(builtins, first) else importlib.import_module(first)
    except ImportError:
        return False
    for part in rest:
        if not hasattr(value, part):
            try:
                importlib.import_module(f"{value.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        value = getattr(value, part)
    return True


def is_name(word: str, known: Names) -> bool:
    """Whether a word is a name of the code, is built by an f-string, or is a placeholder such as N or DIRECTORY."""
    stem = NUMBERED.sub("", word)
    tails = (stem[place:] for place, letter in enumerate(stem) if letter == "_" and place)
    return (
        bool({word, stem} & known.words)
        or any({tail, f"{tail}_"} & known.fragments for tail in tails)
        or f"{stem}_" in known.fragments
        or (word.isupper() and "_" not in word)
        or len(word) == 1
    )


def unknown(text: str, known: Names) -> Iterator[str]:
    """Yield the identifiers in backticks of a text that lead nowhere."""
    for span in SPAN.findall(FENCE.sub("", text)):
        matched = IDENTIFIER.fullmatch(span)
        if matched is None or span in FOREIGN:
            continue
        name, arguments = matched.groups()
        owner, last = ["", *name.split(".")][-2:]
        is_member = owner not in known.members or last in known.members[owner]
        if not (is_member and all(is_name(part, known) for part in name.split("."))):
            if not is_of_a_library(name):
                yield span
        elif arguments and has_unknown_keyword(span, known.calls.get(last, [])):
            yield span


def has_unknown_keyword(span: str, calls: list[Call]) -> bool:
    """Whether a call has a keyword that no function or class of its name takes."""
    try:
        call = ast.parse(span, mode="eval").body
    except SyntaxError:
        return False
    if not isinstance(call, ast.Call) or not calls or any(known.anything for known in calls):
        return False
    keywords = {keyword.arg for keyword in call.keywords if keyword.arg}
    return not any(keywords <= known.keywords for known in calls)


def without_foreign_calls(text: str) -> str:
    """A page without what its tables quote of another library."""
    return FOREIGN_TABLE.sub(lambda table: FIRST_CELL.sub("|", table[0]), text)


# A record is not edited: it has the names of its commit. A change log has old names too.
DOCUMENTS = [page for page in PAGES if page.parent.name not in ("results", "records")] + [ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_identifiers_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    # What the page's own blocks of code define is known to its reader.
    own = {word for _, code in FENCE.findall(text) for word in re.findall(r"\w+", code)}
    known = names()._replace(words=names().words | own)
    assert list(unknown(without_foreign_calls(text), known)) == []


def test_the_identifiers_of_docstrings_exist() -> None:
    found = [
        f"{path.relative_to(ROOT)}: `{span}`"
        for path in CODE
        for text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        for span in unknown(text, names())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`depth` of `Tree`, `Tree.grow` and `Tree(depth=2)`", []),
        ("`hight`", ["hight"]),
        ("`Tree.height`", ["Tree.height"]),
        ("`Tree(reader=2)`, `plant(Tree, reader=1)`", ["Tree(reader=2)", "plant(Tree, reader=1)"]),
        ("`Oak.grow`, `Oak.leaves`, `Oak(depth=1)`", []),
        ("`local_name` and `from_comment`", ["local_name", "from_comment"]),
        ("`leaves_k` and `leaves_3`", []),
        ("`green_color` and `green_size`", ["green_size"]),
        ("`numpy.asarray`, `str.splitlines`, `numpy.no_such_thing`", ["numpy.no_such_thing"]),
        ("`key_of_a_dict`", []),
    ],
)
def test_an_identifier_that_does_not_exist_is_found(text: str, found: list[str]) -> None:
    source = '''
class Tree:
    """A `word` of a docstring is no name."""

    depth: int = 1

    def grow(self):
        local_name = 1  # from_comment
        return {"key_of_a_dict": local_name, f"{local_name}_color": 1}


class Oak(Tree):
    leaves: int = 3


def plant(tree):
    """Plant."""
'''
    assert list(unknown(text, names_of([source]))) == found
