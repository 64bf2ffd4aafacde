"""The pages of the attention algebra: their code runs, their numbers hold, their names exist, their table is true."""

import ast
import dataclasses
import enum
import importlib
import inspect
import itertools
import pkgutil
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer.attention
from docs import generate
from docs.backend_support_page import DIFFERENTIATION_MODES, describe_values, table_masks
from launch import cli
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec, Backend
from transformer.attention.backends import (
    BACKENDS,
    NON_MASK_FEATURES,
    AttentionVariant,
    invalid_reason,
    unsupported_reason,
)
from transformer.attention.capture import Capture
from transformer.attention.masks import MASK_FIELDS, Mask
from transformer.attention.normalizers import Normalizer, Reweighting
from transformer.attention.positions import AttentionPosition
from transformer.attention.scores import Score

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_LINE = re.compile(r"`([^`\n]+)`")
GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
ALGEBRA = ("attention.md", "attention_graphs.md", "attention_functions.md", "attention_capture.md")
PAGES = (*ALGEBRA, "attention_backends.md")
FAMILIES: tuple[type[enum.Enum], ...] = (Score, Normalizer, Reweighting, AttentionPosition)


def execute(code: str, namespace: dict[str, Any]) -> list[str]:
    """Run a block; each bare expression must equal the comment behind it to four decimals. The faults, by line."""
    faults = []
    for node in ast.parse(code).body:
        statement = node
        if isinstance(node, ast.Expr):
            statement = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], node.value), node)
        exec(compile(ast.fix_missing_locations(ast.Module([statement], [])), "page", "exec"), namespace)
        if isinstance(node, ast.Expr):
            _, stated, comment = code.splitlines()[node.end_lineno - 1].rpartition("  # ")
            if not stated:
                faults.append(f"{ast.unparse(node)} states no value")
            elif not equal(namespace["_"], ast.literal_eval(comment)):
                faults.append(f"{ast.unparse(node)} is {namespace['_']}, not {comment}")
    return faults


def equal(found: Any, stated: Any) -> bool:
    """Whether every number that is stated is the one that was found, rounded to four decimals."""
    if isinstance(stated, tuple):
        return len(found) == len(stated) and all(map(equal, found, stated))
    found, stated = np.asarray(found, np.float64), np.asarray(stated, np.float64)
    return found.shape == stated.shape and bool(np.all(np.abs(found - stated) <= 0.51e-4))


def blocks(page: str) -> list[str]:
    return [code for language, code in FENCE.findall(page) if language == "python"]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: (GUIDES / name).read_text() for name in PAGES}


def test_every_block_runs_and_every_number_holds(pages: dict[str, str]) -> None:
    namespace: dict[str, Any] = {}
    faults = [fault for page in ALGEBRA for code in blocks(pages[page]) for fault in execute(code, namespace)]
    assert faults == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1\nx + 1  # 3", "x + 1 is 2, not 3"),
        ("[0.5, 0.25]  # [0.5, 0.2502]", "not [0.5, 0.2502]"),
        ("[1.0, 1.0]  # [1]", "not [1]"),
        ("1, [2]  # 1, [3]", "not 1, [3]"),
        ("1 + 1", "1 + 1 states no value"),
    ],
)
def test_a_number_that_does_not_hold_is_found(code: str, says: str) -> None:
    (fault,) = execute(code, {})
    assert says in fault
    assert execute("0.25004, [1, 2]  # 0.25, [1, 2]", {}) == []


def test_every_score_has_a_worked_example(pages: dict[str, str]) -> None:
    code = "".join(blocks(pages["attention.md"]))
    assert set(re.findall(r"^example\(.*score=Score\.(\w+)\)  # \[.*\], \[.*\], \[.*\]$", code, re.MULTILINE)) == {
        score.name for score in Score
    }


def test_every_variant_and_every_fact_is_explained(pages: dict[str, str]) -> None:
    text = FENCE.sub("", "".join(pages[page] for page in ALGEBRA))
    expected = {member.value for family in (*FAMILIES, Backend) for member in family}
    expected |= {*MASK_FIELDS, *(field.name for field in dataclasses.fields(Capture))}
    assert {name for name in expected if not re.search(rf"\b{name}\b", text)} == set()


def known_names() -> set[str]:
    """Every public name of the package, with fields, methods, values of choices and arguments."""
    names = set()
    for module in pkgutil.iter_modules(transformer.attention.__path__):
        for name, thing in vars(importlib.import_module(f"transformer.attention.{module.name}")).items():
            if name.startswith("_") or not getattr(thing, "__module__", "transformer.").startswith("transformer."):
                continue
            names.add(name)
            if inspect.isfunction(thing):
                names |= set(inspect.signature(thing).parameters)
            elif inspect.isclass(thing):
                names |= {field for field in (*dir(thing), *inspect.get_annotations(thing)) if field[0] != "_"}
                names |= {member.value for member in thing} if issubclass(thing, enum.Enum) else set()
    return names


def exists(name: str, known: set[str]) -> bool:
    """Whether a name is one of the package's, or a path such as jax.nn.softmax leads to something."""
    if name in known:
        return True
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            thing = getattr(thing, part, None)
        return thing is not None
    return False


def strangers(page: str, root: Path) -> list[str]:
    """What a page names that does not exist: files, the package's names, its links."""
    text = FENCE.sub("", page)
    known = known_names() | set(re.findall(r"^([A-Z_]+) = ", "".join(blocks(page)), re.MULTILINE))
    missing = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not (GUIDES / link).is_file()]
    for span in IN_LINE.findall(text):
        if re.fullmatch(r"[\w./]+/[\w.]+", span):
            missing += [] if (root / span).is_file() else [span]
        elif " -m " in span or span.startswith(("make ", "config.")) or span == "log.txt":
            continue
        else:
            names = [span] if re.fullmatch(r"[\w.]+", span) else re.findall(r"([\w.]+)[(=]", span)
            missing += [name for name in names if not (exists(name, known) or Backend.advise_on_unknown(name))]
    return missing


@pytest.mark.parametrize("name", PAGES)
def test_every_name_on_the_page_exists(name: str, pages: dict[str, str], root: Path) -> None:
    assert strangers(pages[name], root) == []


def test_every_call_beside_one_of_a_peer_runs_and_changes_the_output() -> None:
    page = (GUIDES / "attention_from_peers.md").read_text()
    namespace: dict[str, Any] = {}
    with jax.disable_jit():
        for code in blocks(page):
            exec(code, namespace)
        plain = np.asarray(attend(*(namespace[name] for name in "qkv"))[0])
        calls = re.findall(r"^\| .* \| `(attend\(.*\))` \|$", page, re.MULTILINE)
        assert len(calls) == len(re.findall(r"^\| (?!---)", page, re.MULTILINE)) - 3
        for call in calls:
            exec(f"output, attended = {call}", namespace)
            output, attended = namespace["output"], namespace["attended"]
            assert output.shape == plain.shape
            assert np.isfinite(output).all(), call
            options = call not in ("attend(q, k, v)", "attend(q, k, v, log_sum_exp=True)")
            assert (np.abs(output - plain).max() > 1e-4) == options, call
            assert (attended.log_sum_exp is not None) == ("log_sum_exp" in call)


def test_a_name_that_does_not_exist_is_found(root: Path) -> None:
    page = "`atend` `Mask(casual=True)` `jax.nn.sofmax` `transformer/attend.py` [x](y.md) `Mask(causal=True)` `lax.x`"
    assert strangers(page, root) == ["y.md", "atend", "casual", "jax.nn.sofmax", "transformer/attend.py", "lax.x"]


def test_the_support_page_is_the_one_that_the_command_writes(pages: dict[str, str]) -> None:
    assert generate.generated_pages()["guides/attention_backends.md"] == pages["attention_backends.md"], "run make docs"


def test_the_command_explains_itself_and_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(generate.COMMAND, generate.main, ["--help"]) == 0
    assert generate.COMMAND.example_call in capsys.readouterr().out
    assert cli.run(generate.COMMAND, generate.main, ["--workdir=x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def chosen(words: str, names: list[str]) -> set[str]:
    """The names that a cell stands for: listed, all, or all but those listed."""
    if words.split()[0] == "every":
        return set(names)
    listed = set(words.removeprefix("all but ").split(", "))
    assert listed <= set(names)
    return set(names) - listed if words.startswith("all but ") else listed


def published(page: str) -> set[tuple[str, ...]]:
    """Every (score, normalizer, re-weighting, position, backend, mask) that the tables of the backends take."""
    masks = ["+".join(sorted(facts)) or "none" for facts in table_masks()]
    taken: set[tuple[str, ...]] = set()
    for backend, section in re.findall(r"^## (\w+)\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL):
        notes = {
            f"{title.lower()} below": cell for title, cell in re.findall(r"^(Masks.*): (.*)\.$", section, re.MULTILINE)
        }
        head, _, *rows = (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in re.search(r"^\| score .*?\n\n", section, re.MULTILINE | re.DOTALL)[0].splitlines()  # type: ignore[index]
            if line
        )
        assert len(head) == 5
        for *cells, allowed in rows:
            choices = [
                chosen(cell, [member.value for member in family]) for cell, family in zip(cells, FAMILIES, strict=True)
            ]
            found = set(itertools.product(*choices, [backend], chosen(notes.get(allowed, allowed), masks)))
            assert not found & taken
            taken |= found
    return taken


def test_the_table_read_back_is_what_the_backends_take(pages: dict[str, str]) -> None:
    taken = {
        (*(part.value for part in parts), backend.value, "+".join(sorted(facts)) or "none")
        for *parts, facts in itertools.product(*FAMILIES, table_masks())
        for backend in BACKENDS
        if unsupported_reason(backend, AttentionVariant(*parts, facts)) is None
    }
    assert published(pages["attention_backends.md"]) == taken


def test_a_mask_of_several_facts_is_taken_where_each_of_them_is() -> None:
    """What the support page says of the masks that its table does not list, and of those in no row."""
    for backend, takes in BACKENDS.items():
        for pair in itertools.combinations((*MASK_FIELDS, *NON_MASK_FEATURES), 2):
            combination = AttentionVariant(features=frozenset(pair))
            if invalid_reason(combination) is None:
                # cuDNN takes a window only with causal, so none of two facts with another.
                other = backend is Backend.CUDNN and "window" in pair and "causal" not in pair
                assert (unsupported_reason(backend, combination) is None) == (set(pair) <= takes.features and not other)
            assert unsupported_reason(Backend.EINSUM, combination) == invalid_reason(combination)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA, Backend.SPLASH])
def test_the_modes_of_the_gradient_are_those_of_the_page(backend: Backend) -> None:
    def attention(x: Any) -> Any:
        return attend(x, x, x, spec=AttentionSpec(backend=backend), mask=Mask(causal=True))[0]

    x = jax.ShapeDtypeStruct((1, 128, 1, 4), jnp.float32)
    reverse = jax.jit(jax.grad(lambda x: attention(x).sum()))
    forward = jax.jit(lambda x: jax.jvp(attention, (x,), (x,)))
    reverse.trace(x).lower()
    if "forward" in DIFFERENTIATION_MODES.get(backend, "reverse mode"):
        forward.trace(x).lower()
    else:
        with pytest.raises(TypeError, match="custom_vjp"):
            forward.trace(x).lower()


def test_a_limit_in_words_is_the_limit() -> None:
    assert describe_values([8, 16, 24], 64) == "multiples of 8 to 24"
    assert describe_values([8, 16, 24], 30) == "multiples of 8"
    assert describe_values([8, 24], 30) == "8, 24"
    assert describe_values(["cpu", "tpu"], "tpu") == "cpu, tpu"
    assert describe_values([], 64) == "none"
