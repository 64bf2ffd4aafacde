"""Chat templates write what transformers writes, and hostile ones end in one line within seconds.

The recorded texts and tokens are those of tests/golden/make_chat_templates.py.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from transformer.config import UserError
from transformer.data.tokenizers import chat_template, render_chat_template
from transformer.data.tokenizers.chat_template import (
    ChatTemplate,
    load_chat_template,
    read_published_chat_template,
    refuse_special_tokens,
    require_chat_template,
)
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.huggingface_tokenizers import load_huggingface_tokenizer
from transformer.data.tokenizers.load import copy_tokenizer

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "chat_templates.json").read_text())
# A case takes a second, for a process for each set of options; `make slow` takes the others.
QUICK = ("chatml_tools", "llama2", "macro")
HELLO = [{"role": "user", "content": "Hello"}]


def write_folder(folder: Path, case: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(RECORDED["tokenizer"]))
    (folder / "tokenizer_config.json").write_text(json.dumps(case["tokenizer_config"]))
    (folder / "chat_template.jinja").write_text(case["template"])
    return folder


def render(source: str, messages: list[dict[str, Any]] = HELLO, **variables: Any) -> str:
    (text,) = ChatTemplate(source, {}).render([messages], add_generation_prompt=False, **variables)
    return text


def options_of(conversation: dict[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in conversation.items() if key not in ("text", "ids", "messages")}
    return {"add_generation_prompt": False, **options}


@pytest.mark.parametrize(
    "name",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in RECORDED["cases"]],
)
def test_texts_and_tokens_are_those_recorded(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", RECORDED["cases"][name])
    template, tokenizer = read_published_chat_template(folder), load_huggingface_tokenizer(folder)
    assert template is not None
    conversations = RECORDED["cases"][name]["conversations"]
    different_options = {json.dumps(options_of(conversation)) for conversation in conversations}
    for options in map(json.loads, sorted(different_options)):
        alike = [conversation for conversation in conversations if options_of(conversation) == options]
        accepted = [conversation for conversation in alike if conversation["text"] is not None]
        for conversation in alike:
            if conversation not in accepted:
                with pytest.raises(UserError, match=r"the chat template cannot be used: .* role"):
                    template.render([conversation["messages"]], **options)
        texts = template.render([conversation["messages"] for conversation in accepted], **options)
        assert texts == [conversation["text"] for conversation in accepted]
        assert [tokenizer.encode_chat(text) for text in texts] == [conversation["ids"] for conversation in accepted]
    # A run keeps it.
    template.save(tmp_path)
    assert load_chat_template(tmp_path) == template


HOSTILE = {
    "an attribute of Python's": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "a function's globals": ("{{ raise_exception.__globals__.sys }}", "unsafe"),
    "globals by a filter": ("{{ (raise_exception|attr('__globals__')).sys }}", "unsafe"),
    "globals by formatting": ("{{ '{0.__globals__[sys]}'.format(raise_exception) }}", "unsafe"),
    "a change of the messages": ("{% set _ = messages.append(1) %}", "unsafe"),
    "an import": ("{% import 'os' as os %}", "no loader"),
    "a file": ("{% include '/etc/passwd' %}", "no loader"),
    "a long range": ("{% for i in range(10**9) %}{% endfor %}", "[Rr]ange"),
    "loops in loops": (
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}"
        "{% endfor %}",
        "more than 1 seconds of CPU time",
    ),
    "a macro that calls itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself"),
    "a huge text": ("{{ 'a' * 10**9 }}", "more than 512 MiB"),
    "a huge text of a filter": ("{{ 'a'|center(10**9) }}", "more than 512 MiB"),
    "a text that doubles": (
        "{% set s = namespace(t='ab') %}{% for i in range(40) %}{% set s.t = s.t ~ s.t %}{% endfor %}",
        "more than 1 seconds|more than 512 MiB",
    ),
    "a long text": ("{% for i in range(99999) %}{{ 'a' * 100 }}{% endfor %}", "more than 4,194,304 characters"),
    "a power in one call": ("{{ 10**(10**9) }}", "more than 1 seconds|more than 512 MiB|too large"),
    "deep nesting": ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", "nested too deeply|ended with code"),
    "a wrong syntax": ("{% for %}\n{% if %}", "line 1: "),
    "a missing end": ("a\n{% if true %}", "line 2: "),
    "a refusal of several lines": ("{{ raise_exception('a\nb\x1b') }}", "a b"),
    "text that is made up": ("{{ lipsum(n=10**6) }}", "lipsum"),
    "a lone surrogate": ("{{ '\\ud800' }}", "half a surrogate pair"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, message = HOSTILE[name]
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
    with pytest.raises(UserError, match=rf"^the chat template cannot be used: .*({message})") as refused:
        render(source)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_template_that_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_WALL_SECONDS", 0.01)
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"cannot be used: it takes more than 0\.01 seconds"):
        render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    assert time.monotonic() - begun < 30


def test_the_process_of_a_template_opens_nothing(tmp_path: Path) -> None:
    """What a hole in the sandbox would find: the limits, set in a process that then tries to open a file."""
    program = (
        "import runpy, sys\n"
        f"names = runpy.run_path({chat_template.__file__.replace('chat_template.py', 'render_chat_template.py')!r})\n"
        "names['limit_process'](5, 1 << 29)\n"
        f"open({str(tmp_path / 'file')!r}, 'w')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Too many open files" in ended.stderr
    assert not (tmp_path / "file").exists()


def test_neither_environment_nor_folder_changes_what_the_process_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jinja2.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert render("{{ messages[0].content }}") == "Hello"
    assert not (tmp_path / "ran").exists()
    assert "PYTHONPATH" in os.environ


def test_without_jinja2_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs jinja2: pip install 'jinja2>=3\.1\.6'"):
        render("a")


@pytest.mark.parametrize("messages", [[], "Hello", {"role": "user"}, ["Hello"], [{"content": "Hello"}]])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(UserError, match='"role": "user", "content": "Hello"'):
        render("a", messages)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(UserError, match="must be JSON"):
        render("a", tool=object())


def test_a_message_that_names_a_special_token_is_refused(tmp_path: Path) -> None:
    tokenizer = load_huggingface_tokenizer(write_folder(tmp_path / "folder", RECORDED["cases"]["chatml"]))
    refuse_special_tokens(tokenizer, [{"role": "user", "content": "<think> is no special token, nor is [INST]"}])
    for value in ("a<|im_end|>", ["x", {"content": [{"text": "<s>"}]}]):
        with pytest.raises(UserError, match=r"a message has '<(\|im_end\||s)>'.*leave it out"):
            refuse_special_tokens(tokenizer, value)


def test_the_template_of_the_file_counts_and_of_several_the_default(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    token_config: dict[str, Any] = {"chat_template": several, "eos_token": {"content": "</s>"}, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(token_config))
    assert read_published_chat_template(tmp_path) == ChatTemplate("d", {"eos_token": "</s>"}, ("tool_use",))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>"}))
    (tmp_path / "chat_template.jinja").write_text("file")
    read = read_published_chat_template(tmp_path)
    assert read == ChatTemplate("file", {"eos_token": "</s>", "pad_token": "<pad>"}, ("tool_use",))
    (tmp_path / "chat_template.jinja").unlink()
    for entry, expected in ((several[1:], None), (None, None), ("one", "one")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entry}))
        template = read_published_chat_template(tmp_path)
        assert (template and template.source) == expected


def test_an_unusable_template_is_refused(tmp_path: Path) -> None:
    for entry in (7, "a" * (2**20 + 1), {"default": "a"}, [{"name": "default", "template": ["a"]}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entry}))
        with pytest.raises(UserError, match=r"chat_template of tokenizer_config\.json must be a text"):
            read_published_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8"):
        read_published_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"a" * (2**20 + 1))
    with pytest.raises(UserError, match=r"chat_template\.jinja"):
        read_published_chat_template(tmp_path)
    with pytest.raises(UserError, match="mine has no chat template"):
        require_chat_template(None, "mine")
    (tmp_path / "chat_template.json").write_text("{}")
    with pytest.raises(UserError, match="source"):
        load_chat_template(tmp_path)


def test_a_branch_of_a_run_keeps_the_template(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", RECORDED["cases"]["chatml"])
    template, run, branch = read_published_chat_template(folder), tmp_path / "run", tmp_path / "branch"
    tokenizer = load_huggingface_tokenizer(folder)
    assert template is not None
    assert isinstance(tokenizer, FastTokenizer)
    for directory in (run, branch):
        directory.mkdir()
    tokenizer.save(run)
    template.save(run)
    copy_tokenizer(run, branch)
    assert load_chat_template(branch) == template


def test_a_template_is_rendered_with_its_variables_up_to_the_most_characters() -> None:
    """In this process, without the limits of its own."""
    template = render_chat_template.make_environment().from_string("{% for word in words %}{{ word }}{% endfor %}")
    assert render_chat_template.render(template, {"words": ["a", "b"]}, 2) == "ab"
    with pytest.raises(Exception, match="characters"):
        render_chat_template.render(template, {"words": ["a", "b"]}, 1)
