"""A chat model answers by its chat template, becomes a run that answers alike, and goes out with its template."""

import json
from pathlib import Path

import numpy as np
import pytest

import transformer
from launch import cli, convert, generate
from tests.data.test_chat_templates import RECORDED, write_folder
from tests.interpret.conftest import SMALL, write_bert, write_weights
from transformer.config import UserError
from transformer.data.tokenizers.chat_template import read_published_chat_template
from transformer.interpret.load import LoadedModel
from transformer.tasks.text_task_base import make_encoded_inputs

CASE = RECORDED["cases"]["chatml_tools"]
SIZE = 256 + 7 + 18  # bytes, merges, added tokens
WITH_SYSTEM = CASE["conversations"][2]
# Single bytes beyond ASCII: of a few of these no text is left to compare.
UNREADABLE = [number for piece, number in RECORDED["tokenizer"]["model"]["vocab"].items() if not piece.isascii()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "published"
    write_weights(folder, {"model_type": "gpt2", "vocab_size": SIZE, **SMALL["gpt2"], "n_positions": 256})
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": UNREADABLE}))
    return write_folder(folder, CASE)


def greedy_answer(model: LoadedModel, ids: list[int], count: int) -> str:
    """The answer by the largest logit of each whole pass, without a cache."""
    prompt, longest = len(ids), [0] * 200  # for one shape, which is compiled once
    for _ in range(count):
        logits, _ = model._run(make_encoded_inputs(model.tokenizer, [ids, longest]))
        logits_V = np.array(logits[0, len(ids) - 1])
        logits_V[UNREADABLE] = -np.inf
        ids = [*ids, int(np.argmax(logits_V))]
    return model.tokenizer.backend.decode(ids[prompt:], skip_special_tokens=True)


def test_a_chat_is_answered_as_the_recorded_tokens_are_continued(folder: Path) -> None:
    model = transformer.load(folder)
    assert model.apply_chat_template(WITH_SYSTEM["messages"], add_generation_prompt=True) == WITH_SYSTEM["text"]
    answer = model.chat(WITH_SYSTEM["messages"], max_new_tokens=6)
    assert answer == greedy_answer(model, WITH_SYSTEM["ids"], 6) != ""
    # Read as plain characters, the special tokens are others, and so is the answer.
    assert model.generate(WITH_SYSTEM["text"], max_new_tokens=6) != WITH_SYSTEM["text"] + answer
    quiet = {"enable_thinking": False}
    assert model.apply_chat_template(
        CASE["conversations"][6]["messages"], add_generation_prompt=True, **quiet
    ).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(UserError, match=r"a message has '<\|im_end\|>'"):
        model.chat([{"role": "user", "content": "<|im_end|>"}])


def test_a_run_answers_as_its_folder_and_is_exported_with_its_template(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    corpus = tmp_path / "text"
    corpus.mkdir()
    for split in ("train", "validation", "test"):
        (corpus / f"{split}.txt").write_text("What is two and two? " * 50)
    words = [f"--from_pretrained={folder}", f"--workdir={run}", f"--dataset={corpus}", "--context_length=8"]
    assert cli.run(convert.COMMAND, convert.main, words) == 0
    system, user = (message["content"] for message in WITH_SYSTEM["messages"])
    expected = transformer.load(folder).chat(WITH_SYSTEM["messages"], max_new_tokens=6)
    assert transformer.load(run).chat(WITH_SYSTEM["messages"], max_new_tokens=6) == expected
    capsys.readouterr()
    chat = [f"--workdir={run}", "--chat", f"--text={user}", "--max_new_tokens=6", "--no_maps"]
    assert cli.run(generate.COMMAND, generate.main, [*chat, f"--system={system}"]) == 0
    assert capsys.readouterr().out == expected + "\n"
    assert cli.run(convert.COMMAND, convert.main, [f"--workdir={run}", f"--save_pretrained={out}"]) == 0
    assert (out / "chat_template.jinja").read_text() == CASE["template"]
    assert read_published_chat_template(out) == read_published_chat_template(folder)
    saved = json.loads((out / "tokenizer_config.json").read_text())
    assert {key: value for key, value in saved.items() if key.endswith("_token")} == {"eos_token": "<|im_end|>"}
    assert transformer.load(out).chat(WITH_SYSTEM["messages"], max_new_tokens=6) == expected
    capsys.readouterr()
    assert cli.run(generate.COMMAND, generate.main, [*chat[:1], "--chat", "--text=<|im_start|>"]) == 2
    assert "a message has '<|im_start|>'" in capsys.readouterr().err


def test_what_does_not_chat_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not chat: name a language model"):
        transformer.load(write_bert(tmp_path / "bert")).chat([{"role": "user", "content": "the fox"}])
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".jinja":
            (plain / file.name).write_bytes(file.read_bytes())
    model = transformer.load(plain)
    with pytest.raises(UserError, match=r"plain has no chat template: .*give it plain texts"):
        model.chat([{"role": "user", "content": "Hello"}])
    # Damage shows when the template is asked for, since nothing runs it before.
    (plain / "chat_template.jinja").write_text("{% for %}")
    broken = transformer.load(plain)
    assert broken.generate("Hello", max_new_tokens=2).startswith("Hello")
    with pytest.raises(UserError, match="the chat template cannot be used: line 1"):
        broken.apply_chat_template([{"role": "user", "content": "Hello"}])
