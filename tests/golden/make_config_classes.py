"""Record the keys of the library's config classes, each with the kind of its value and its default.

Recorded with Python 3.11 and transformers 5.24.0, from the root of the checkout, in the environment of README.md:

    golden/bin/python tests/golden/make_config_classes.py

It writes transformer/huggingface/config_classes.json: for each `model_type` its keys, without those of every class.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import transformers

FILE = Path(__file__).parents[2] / "transformer" / "huggingface" / "config_classes.json"


def kind_of(field: dataclasses.Field[Any]) -> str:
    """The kind of a key's value, as one of those that the reader knows."""
    if field.name in ("eos_token_id", "forced_eos_token_id"):
        return "token ids"
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type).replace("typing.", "")
    if "RopeParameters" in kind or kind.startswith("dict"):
        return "mapping"
    if field.name in ("image_size", "patch_size"):
        return "sides | None" if "None" in kind else "sides"
    if kind.startswith("Literal"):
        return "str"
    kind = re.sub(r"list\[(\w+)\](?: \| tuple\[.*?\])?", r"\1 list", kind)
    return re.sub(r"float \| int|int \| float", "float", kind)


def main() -> None:
    every = {field.name: field.default for field in dataclasses.fields(transformers.PretrainedConfig)}
    types = json.loads(FILE.read_text()) if FILE.exists() else {}
    lines = []
    for model_type in sorted(types):
        fields = dataclasses.fields(transformers.CONFIG_MAPPING[model_type])
        own = [field for field in fields if field.name not in every or field.default != every[field.name]]
        keys = {field.name: [kind_of(field), field.default] for field in own}
        lines.append(f"{json.dumps(model_type)}: {json.dumps(keys)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
