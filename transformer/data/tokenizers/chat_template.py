"""Chat templates of published models: how a conversation becomes the one text that the model continues."""

import dataclasses
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.data.tokenizers.tokenizer import Tokenizer, special_token_pattern
from transformer.storage.json_reading import read_dataclass, read_json_object, read_regular_file
from transformer.storage.paths import storage_of

FILE = "chat_template.json"
"""The chat template of a run, beside its tokenizer."""

PUBLISHED_FILE = "chat_template.jinja"
"""The chat template of a folder in Hugging Face format."""

MAX_SOURCE_BYTES = 1 << 20
MAX_CHARACTERS = 4 << 20
CPU_SECONDS = 5
MEMORY_BYTES = 1 << 29
_WALL_SECONDS = 60.0  # a busy machine gives a process less than its CPU seconds
_SHOWN = 200

Message = Mapping[str, Any]
"""One message of a conversation: its `role`, such as "user", its `content`, and what else the template reads."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja's language, with the special tokens that it may write.

    It is a stranger's program, so that nothing runs it unless a caller asks for a text. It then runs in Jinja's sandbox
    in a process of its own, which has at most 5 seconds of CPU time and 512 MiB of memory and opens no files.

    Attributes:
        source: The template.
        special_tokens: The texts of special tokens by the name that the template has for them, such as `eos_token`.
        unread_names: The names of the folder's further templates, which are not read.
    """

    source: str
    special_tokens: Mapping[str, str]
    unread_names: tuple[str, ...] = ()

    def render(
        self, conversations: Sequence[Sequence[Message]], *, add_generation_prompt: bool, **variables: Any
    ) -> list[str]:
        """Write each conversation as one text.

        Args:
            conversations: The messages of each, oldest first.
            add_generation_prompt: Whether a text ends where the model's answer begins.
            **variables: What else the template reads, such as tools or whether to think.

        Raises:
            UserError: If a conversation has no message, one is no mapping with a role, jinja2 is missing, or the
                template is wrong, refuses the messages, or exceeds its limits.
        """
        if importlib.util.find_spec("jinja2") is None:
            raise UserError("a chat template needs jinja2: pip install 'jinja2>=3.1.6'")
        for messages in conversations:
            check_messages(messages)
        request = {
            "source": self.source,
            "variables": {
                "tools": None,
                "documents": None,
                **self.special_tokens,
                **variables,
                "add_generation_prompt": add_generation_prompt,
            },
            # As in transformers, a key without a value is a key that is not there.
            "conversations": [
                [{key: value for key, value in message.items() if value is not None} for message in messages]
                for messages in conversations
            ],
            "max_characters": MAX_CHARACTERS,
            "cpu_seconds": CPU_SECONDS,
            "memory_bytes": MEMORY_BYTES,
        }
        try:
            content = json.dumps(request)
        except (TypeError, ValueError) as error:
            raise UserError(f"the messages of a chat and what else its template reads must be JSON: {error}") from error
        answer = _run_renderer(content)
        if "texts" not in answer:
            reason = " ".join(str(answer.get("error", "it gives no text")).split())
            shown = reason if len(reason) <= _SHOWN else f"{reason[:_SHOWN]}..."
            raise UserError(f"the chat template cannot be used: {shown}")
        return [str(text) for text in answer["texts"]]

    def save(self, directory: Path) -> None:
        """Write the template beside the tokenizer of a run."""
        content = dataclasses.asdict(dataclasses.replace(self, unread_names=()))
        storage_of(directory).replace(directory / FILE, f"{json.dumps(content, indent=1)}\n".encode())


def require_chat_template(template: ChatTemplate | None, name: str) -> ChatTemplate:
    """Return the chat template of a run or folder of this name.

    Raises:
        UserError: If it has none.
    """
    if template is None:
        raise UserError(
            f"{name} has no chat template: its folder has neither {PUBLISHED_FILE} nor chat_template in "
            "tokenizer_config.json; give it plain texts"
        )
    return template


def check_messages(messages: Sequence[Message]) -> None:
    """Check that a conversation has messages with roles.

    Raises:
        UserError: If it does not.
    """
    if isinstance(messages, str | Mapping) or not messages:
        raise UserError('a conversation is a list of messages, such as [{"role": "user", "content": "Hello"}]')
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UserError(f'a message is such as {{"role": "user", "content": "Hello"}}, not {str(message)[:_SHOWN]}')


def refuse_special_tokens(tokenizer: Tokenizer, value: Any) -> None:
    """Refuse texts of a conversation that name a special token, which would be read as that token.

    Args:
        tokenizer: The tokenizer that reads the rendered text.
        value: A text, or mappings and sequences of them.

    Raises:
        UserError: If a text does.
    """
    pattern = special_token_pattern(tokenizer)

    def check(value: Any) -> None:
        if isinstance(value, str):
            if match := pattern.search(value):
                raise UserError(
                    f"a message has {match[0]!r}, which the model would read as its special token and not as text: "
                    "leave it out"
                )
        elif isinstance(value, Mapping):
            for part in value.values():
                check(part)
        elif isinstance(value, list | tuple):
            for part in value:
                check(part)

    check(value)


def write_prompts(
    template: ChatTemplate | None,
    name: str,
    tokenizer: Tokenizer,
    conversations: Sequence[Sequence[Message]],
    variables: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write each conversation as the text that a model answers.

    Args:
        template: The chat template of the model.
        name: The name of the model, for messages.
        tokenizer: Its tokenizer.
        conversations: The messages of each, oldest first. None may name a special token.
        variables: What else the template reads.

    Raises:
        UserError: If the model has no chat template, a message names a special token, or as for `ChatTemplate.render`.
    """
    template = require_chat_template(template, name)
    refuse_special_tokens(tokenizer, [*conversations, variables])
    return template.render(conversations, **{**(variables or {}), "add_generation_prompt": True})


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """Load the chat template of a run; None if it has none.

    Raises:
        UserError: If the file is damaged.
    """
    return read_dataclass(ChatTemplate, directory / FILE) if (directory / FILE).is_file() else None


def read_published_chat_template(folder: Path) -> ChatTemplate | None:
    """Read the chat template of a folder in Hugging Face format; None if it has none. It is not run.

    The file chat_template.jinja counts, else `chat_template` of tokenizer_config.json; of several templates, the one
    that is called "default".

    Raises:
        UserError: If a file cannot be read or is too large, or a template is no text.
    """
    token_config: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            token_config |= read_json_object(folder / name)
    templates: dict[Any, Any] = {}
    entry = token_config.get("chat_template")
    if isinstance(entry, list) and all(isinstance(one, dict) for one in entry):
        templates = {one.get("name"): one.get("template") for one in entry}
    elif entry is not None:
        templates = {"default": entry}
    if (folder / PUBLISHED_FILE).is_file():
        content = read_regular_file(folder / PUBLISHED_FILE, MAX_SOURCE_BYTES)
        try:
            templates["default"] = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{folder / PUBLISHED_FILE} is not UTF-8: {error}") from error
    source = templates.pop("default", None)
    if source is None:
        return None
    if not isinstance(source, str) or len(source) > MAX_SOURCE_BYTES:
        raise UserError(f"{folder}: chat_template of tokenizer_config.json must be a text of at most 1 MiB")
    return ChatTemplate(source, _special_tokens(token_config), tuple(sorted(map(str, templates))))


def _special_tokens(token_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that tokenizer_config.json names, by their keys."""
    further = token_config.get("extra_special_tokens")
    entries = {key: value for key, value in token_config.items() if key.endswith("_token")}
    entries |= further if isinstance(further, dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in entries.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _run_renderer(request: str) -> Mapping[str, Any]:
    """Return the answer of a process that renders a template, or the reason why it has none."""
    program = Path(__file__).with_name("render_chat_template.py")
    try:
        # Isolated: neither variables of the environment nor the folder that it is started in change what it imports.
        finished = subprocess.run(
            [sys.executable, "-I", str(program)],
            input=request.encode(),
            capture_output=True,
            timeout=_WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it takes more than {_WALL_SECONDS:g} seconds"}
    if -finished.returncode in (signal.SIGXCPU, signal.SIGKILL):
        return {"error": f"it takes more than {CPU_SECONDS} seconds of CPU time"}
    try:
        return dict(json.loads(finished.stdout))
    except ValueError:
        return {"error": f"its process ended with code {finished.returncode}"}
