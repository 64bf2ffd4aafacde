"""Record what transformers makes of conversations by chat templates: texts, tokens, and refusals.

Recorded with Python 3.13, torch 2.13.0 (CPU), transformers 5.24.0 and jinja2 3.1.6, from the root of the checkout:

    golden/bin/python tests/golden/make_chat_templates.py

It writes tests/golden/chat_templates.json: a small tokenizer.json; tokenizer_config.json and template in the shape of
published ones, by name; and for each conversation the text, and its tokens, or null where the template refuses it.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers

FILE = Path(__file__).with_name("chat_templates.json")
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>"]
SPECIAL += ["<bos>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>"]
PLAIN = ["<think>", "</think>", "[INST]", "[/INST]"]

CHATML = """{%- for turn in messages %}
    {{- '<|im_start|>' + turn['role'] + '\\n' + turn['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
# With a usual system message, tools, thoughts that are cut from earlier answers, and a switch of one's own.
CHATML_TOOLS = """{%- if messages[0].role == 'system' %}
    {%- set opening = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set opening = 'You are helpful.' %}
    {%- set turns = messages %}
{%- endif %}
<|im_start|>system
{{ opening }}
{%- if tools %}

# Tools
    {%- for tool in tools %}
        {{- '\\n' }}{{ tool | tojson }}
    {%- endfor %}
{%- endif %}<|im_end|>
{% set state = namespace(last=-1) %}
{%- for turn in turns %}
    {%- if turn.role == 'user' %}
        {%- set state.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for turn in turns %}
<|im_start|>{{ turn.role }}
    {%- if turn.role == 'assistant' and '</think>' in turn.content and loop.index0 < state.last %}
{{ '\\n' + turn.content.split('</think>')[-1].lstrip('\\n') }}
    {%- else %}
{{ '\\n' + turn.content }}
    {%- endif %}
    {%- if turn.tool_calls is defined %}
        {%- for call in turn.tool_calls %}
{{ '\\n' + call | tojson(indent=2) }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
{% set turns, opening = messages[1:], '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{% else %}
{% set turns, opening = messages, '' %}
{% endif %}
{% for turn in turns %}
    {% if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('the roles must take turns: user, assistant, user and so on') }}
    {% endif %}
    {% set content = opening + turn['content'] if loop.first else turn['content'] %}
    {% if turn['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif turn['role'] == 'assistant' %}
{{ ' ' + content | trim + ' ' + eos_token }}
{%- endif %}
{% endfor %}"""
LLAMA3 = """{{- bos_token }}
{%- for turn in messages %}
    {%- if loop.first and turn.role != 'system' %}
        {{- '<|header|>system<|/header|>\\n\\nCutting off: December 2023<|eot|>' }}
    {%- endif %}
    {{- '<|header|>' ~ turn.role ~ '<|/header|>\\n\\n' ~ turn.content | trim ~ '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\\n\\n' }}{% endif %}"""
MISTRAL = """{%- set last_user = (messages | selectattr('role', 'equalto', 'user') | list | length) - 1 %}
{%- set count = namespace(users=0) %}
{{- bos_token }}
{%- for turn in messages if turn['role'] in ('user', 'assistant') %}
    {%- if turn['role'] == 'user' %}
        {%- if count.users == last_user and messages[0]['role'] == 'system' %}
            {{- '[INST] ' + messages[0]['content'] + '\\n\\n' + turn['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + turn['content'] + '[/INST]' }}
        {%- endif %}
        {%- set count.users = count.users + 1 %}
    {%- else %}
        {{- ' ' + turn['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {{ raise_exception('There is no system role') }}
{%- endif -%}
{%- for turn in messages -%}
    {%- set role = 'model' if turn['role'] == 'assistant' else turn['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + turn['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}"""
ZEPHYR = """{% for turn in messages %}
{% if turn['role'] == 'system' and not loop.first %}{% continue %}{% endif %}
{{ '<|' + turn['role'] + '|>\\n' + turn['content'] + eos_token }}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% if loop.index > 20 %}{% break %}{% endif %}
{% endfor %}"""
MACRO = """{%- macro part(content) -%}
    {%- if content is string -%}{{ content }}{%- else -%}
        {%- for piece in content if piece.type == 'text' -%}{{ piece.text }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for turn in messages -%}
    {%- if turn.role == 'assistant' -%}
        {% generation %}{{ part(turn.content) + eos_token }}{% endgeneration %}
    {%- else -%}
        {{ turn.role | upper }}: {{ part(turn.content) }}{{ pad_token }}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- for day in documents or [] -%}{{ day.title }}{%- endfor -%}"""
TEMPLATES: dict[str, tuple[str, dict[str, Any]]] = {
    "chatml": (CHATML, {"eos_token": "<|im_end|>", "bos_token": None}),
    "chatml_tools": (CHATML_TOOLS, {"eos_token": "<|im_end|>"}),
    "llama2": (LLAMA2, {"bos_token": "<s>", "eos_token": "</s>"}),
    "llama3": (LLAMA3, {"bos_token": "<|begin|>", "eos_token": "<|eot|>"}),
    "mistral": (MISTRAL, {"bos_token": {"content": "<s>", "__type": "AddedToken"}, "eos_token": "</s>"}),
    "gemma": (GEMMA, {"bos_token": "<bos>", "eos_token": "<end_of_turn>"}),
    "zephyr": (ZEPHYR, {"bos_token": "<s>", "eos_token": "</s>"}),
    "macro": (MACRO, {"eos_token": "</s>"}),
}
USER = {"role": "user", "content": "  What is 2 + 2?\n"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"a": {"type": "int"}, "b": "größer <3"}}}
THOUGHT = {"role": "assistant", "content": "<think>\nsum\n</think>\n\nFour. "}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 2, "b": [1.5, None]}}]}
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [USER], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": "Be brief."}, USER], "add_generation_prompt": True},
    {"messages": [USER, THOUGHT, {"role": "user", "content": "日本 😀 & <b>x</b>"}], "add_generation_prompt": True},
    {"messages": [USER, THOUGHT, USER, {"role": "assistant", "content": "4"}]},
    {"messages": [USER, CALL], "tools": [TOOL], "add_generation_prompt": True},
    {"messages": [USER], "enable_thinking": False, "add_generation_prompt": True},
    {"messages": [USER, USER], "documents": [{"title": "A", "text": "b"}]},
    {"messages": [{"role": "user", "content": "Hi", "name": None}, {"role": "system", "content": "late"}]},
]
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}


def make_tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer of bytes and a few pairs of them, with special tokens and added ones that are not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("i", "n"), ("Ġ", "a"), ("s", "s"), ("e", "r"), ("u", "s"), ("us", "er"), ("Ċ", "Ċ")]
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, *map("".join, pairs)])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(PLAIN)
    return tokenizer


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    tokenizer, cases = make_tokenizer().to_str(), {}
    for name, (template, special_tokens) in TEMPLATES.items():
        token_config = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").write_text(tokenizer)
            (Path(folder) / "tokenizer_config.json").write_text(json.dumps(token_config))
            (Path(folder) / "chat_template.jinja").write_text(template)
            loaded = transformers.AutoTokenizer.from_pretrained(folder)
        results = []
        for conversation in [*CONVERSATIONS, *([PARTS] if name == "macro" else [])]:
            options = dict(conversation)
            messages = options.pop("messages")
            try:
                text = loaded.apply_chat_template(messages, tokenize=False, **options)
                ids = loaded.apply_chat_template(messages, return_dict=False, **options)
            except Exception as error:
                print(name, "refuses:", error)
                text = ids = None
            results.append({**conversation, "text": text, "ids": ids})
        print(name, [len(result["text"] or "") for result in results], flush=True)
        cases[name] = {"template": template, "tokenizer_config": token_config, "conversations": results}
    content = {"tokenizer": json.loads(tokenizer), "cases": cases}
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
