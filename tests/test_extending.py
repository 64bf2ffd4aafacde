"""The guides to extending: their excerpts are from tested files, their errors are in the code, their files run."""

import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from tests.documented import Block, blocks, files, pages
from tests.models.random_models import fresh_variables
from transformer.layers.functional_module import Precision
from transformer.models.registry import build, model_config
from transformer.tasks.registry import build_synthetic_task, task_config
from transformer.tasks.task import PredictionRequest, StateView

ROW = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)


def unlike(block: Block, text: str) -> list[str]:
    """The lines of an excerpt that the file does not have in this order."""
    lines, place, missing = text.splitlines(), 0, []
    for line in block.code.splitlines():
        if line in lines[place:]:
            place = lines.index(line, place) + 1
        else:
            missing.append(line)
    return missing


def unsaid(page: str, sources: str) -> list[str]:
    """The errors of the page's last table that no source says, whatever stands for its dots."""
    said = page.partition("## What each error means")[2]
    found = []
    for message in ROW.findall(said):
        parts = [part for part in message.replace("'…'", "…").split("…") if part.strip()]
        found += [message for part in parts if part not in sources][:1]
    return found


def code(root: Path) -> str:
    """The library's texts as a reader of its messages has them: literals that follow each other are one."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "transformer").rglob("*.py"))]
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))
    # What is filled in: `{name!r}` and the constants that messages begin with.
    for placeholder, text in {"key": "config.model.family", "attribute": "FAMILY"}.items():
        joined = joined.replace(f"{{self._{placeholder}}}", text).replace(f"{{{placeholder}}}", text)
    return joined


def test_excerpts_are_of_files_that_are_tested(root: Path) -> None:
    excerpts = [block for block in blocks(pages()) if not block.whole]
    assert len(excerpts) == 3
    for block in excerpts:
        assert block.path.startswith("tests/")
        assert unlike(block, (root / block.path).read_text(encoding="utf-8")) == []


def test_the_files_are_whole() -> None:
    assert set(files()) == {"lab/bahdanau.py", "lab/sorting.py", "lab/config.py"}
    for path, text in files().items():
        compile(text, path, "exec")


@pytest.mark.parametrize("decoding", [{}, {"num_beams": 2, "max_new_tokens": 3}])
def test_the_task_of_the_guide_answers(decoding: dict[str, int]) -> None:
    task = build_synthetic_task(task_config({"name": "tests.contracts.sorting"}))
    config = {"family": "recurrent_encoder_decoder", "width": 4, "embedding_width": 4}
    model = build(model_config(config), task.interface, Precision())
    view = StateView(model, fresh_variables(model), {}, {}, jnp.int32(0), train=False)
    (answer,) = task.predict(view, PredictionRequest(("hkdba",), decoding=decoding)).lines
    assert set(answer) <= set("abcdefghijklmnopqrstuvwxyz")
    assert len(answer) <= decoding.get("max_new_tokens", 8)


def undefined(path: str, text: str) -> list[str]:
    """What ruff says of names in a file that nothing defines."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "--output-format=concise", "-q"]
    ran = subprocess.run(
        [*command, f"--stdin-filename={path}", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


def test_the_files_define_or_import_all_that_they_name() -> None:
    assert [line for path, text in files().items() for line in undefined(path, text)] == []
    assert len(undefined("lab/x.py", "from transformer.attention import sites_between\nbetween(1)\n")) == 1


def test_every_error_is_one_of_the_code(root: Path) -> None:
    page = pages()
    assert len(ROW.findall(page.partition("## What each error means")[2])) == 20
    assert unsaid(page, code(root)) == []


def test_planted_faults_are_found() -> None:
    (block,) = blocks("```python\n# of tests/x.py\na = 1\nc = 3\n```\n")
    assert (block.path, block.whole) == ("tests/x.py", False)
    assert unlike(block, "a = 1\nb = 2\nc = 3") == []
    assert unlike(block, "c = 3\na = 1") == ["c = 3"]
    table = "## What each error means\n| `the site '…' is nowhere` | look |\n"
    assert unsaid(table, 'f"the site {name!r} is nowhere"') == []
    assert unsaid(table, 'f"the site {name!r} is absent"') == ["the site '…' is nowhere"]
