"""Every example of a docstring runs, and what its comments say comes out."""

import ast
import contextlib
import io
import os
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.interpret.conftest import write_gpt2
from tests.markdown import ROOT
from transformer.training import build
from transformer.training.config import resolve_config
from transformer.training.driver import train
from transformer.training.partitioning import single_device_placement

SECTION = re.compile(r"^( *)Example:\n(.*?)(?=^\1\S|\Z)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


class DocstringExample(NamedTuple):
    """The code of an example, and whose docstring has it."""

    owner: str
    code: str


def examples_of(source: str, module: str) -> Iterator[DocstringExample]:
    """Yield the examples of a module's docstrings.

    Raises:
        ValueError: If an example is not one fenced block of Python.
    """
    if "Example:\n" not in source:  # as nine of ten modules, which need not be parsed
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        owner = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
        for _, section in SECTION.findall(ast.get_docstring(node) or ""):
            blocks = FENCE.findall(section)
            if len(blocks) != 1:
                raise ValueError(f"{owner}: an example is one block that begins with ```python")
            yield DocstringExample(owner, textwrap.dedent(blocks[0]))


EXAMPLES = [
    example
    for package in ("transformer", "experiments", "launch")
    for path in sorted((ROOT / package).rglob("*.py"))
    for example in examples_of(
        path.read_text(encoding="utf-8"),
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"),
    )
]


def run_example(code: str) -> None:
    """Run an example; a comment behind an expression says its value, or the error that it raises."""
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    names: dict[str, Any] = {}
    for statement in ast.parse(code).body:
        text = ast.unparse(statement)
        comment = comments.get(statement.end_lineno or 0, "")
        if not isinstance(statement, ast.Expr):
            exec(text, names)
            continue
        error, _, message = comment.partition(": ")
        if error.endswith("Error"):
            with pytest.raises(Exception, match=re.escape(message)) as raised:
                exec(text, names)
            assert raised.type.__name__ == error
        else:
            exec(f"value_of_the_line = {text}", names)
            check_comment(names["value_of_the_line"], comment)


def check_comment(value: Any, comment: str) -> None:
    """Compare a value with the one that begins a comment; a comment that begins with none explains in words."""
    if comment in (str(value), repr(value)):
        return
    for end in sorted({len(comment), *(match.start() for match in re.finditer(r"[:,]? ", comment))}, reverse=True):
        with contextlib.suppress(ValueError, SyntaxError):
            expected = ast.literal_eval(comment[:end])
            break
    else:
        assert " " in comment or not comment, f"{comment!r} stands behind {value!r}"
        return
    array = np.asarray(expected)
    if array.dtype.kind in "biufc":
        np.testing.assert_allclose(np.asarray(value), array, atol=5e-4)
    else:
        assert value == expected


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Train on one device: sharding has its tests, and makes these slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: single_device_placement())
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run like the demo and a published model, under the names that the examples say."""
    folder = tmp_path_factory.mktemp("examples")
    config = {
        "name": "demo",
        "steps": 2,
        "log_every": 1,
        "maps_every": 2,
        "checkpoint_every": 2,
        "task": {
            "name": "translation",
            "dataset": "phrases/rounded=50,train=400,validation=20,test=20",
            "vocab_size": 600,
            "bucket_lengths": (24,),
            "tokens_per_batch": 96,
            "num_probe_examples": 2,
            "num_beams": 1,
        },
        "model": {
            "family": "encoder_decoder",
            "encoder_layers": 1,
            "decoder_layers": 1,
            "width": 16,
            "heads": 2,
            "feed_forward": 16,
        },
        "optimizer": {"learning_rate": 1e-3},
    }
    train(resolve_config(config), folder / "runs" / "demo")
    write_gpt2(folder / "gpt2-folder")
    write_gpt2(folder / "chat-folder")
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    (folder / "chat-folder" / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.owner)
def test_an_example_gives_what_it_says(example: DocstringExample, models: Path) -> None:
    before = Path.cwd()
    os.chdir(models)
    try:
        run_example(example.code)
    finally:
        os.chdir(before)


def test_there_are_examples() -> None:
    owners = {example.owner for example in EXAMPLES}
    assert {"transformer.load", "transformer.attention.api.attend", "transformer.training.driver.train"} <= owners


@pytest.mark.parametrize(
    "code",
    [
        "1 + 1  # 3",
        "(1, 2)  # (1, 3)",
        "[0.5, 0.25]  # [0.5, 0.26]: halves",
        "from transformer.config import NoSuchName",
        "'a'  # 'b'",
        "int('1')  # ValueError: invalid literal",
        "int('x')  # ValueError: another message",
        "sum([1])  # 0.5, half of it",
    ],
)
def test_an_example_that_says_something_else_is_found(code: str) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        run_example(code)


def test_a_comment_in_words_says_no_value() -> None:
    run_example("1 + 1  # the sum of both")
    with pytest.raises(ValueError, match="one block"):
        list(examples_of('def f():\n    """A.\n\n    Example:\n        >>> f()\n    """\n', "m"))
