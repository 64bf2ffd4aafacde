"""A run's tokenizer, of whichever kind, as it lies in the run's directory."""

import json
from pathlib import Path

import tokenizers

from transformer.config import UserError
from transformer.data.tokenizer import FILE, ROLES_FILE, Tokenizer, saved_in
from transformer.data.tokenizer_marian import MarianTokenizer

type AnyTokenizer = Tokenizer | MarianTokenizer
"""Any of them: their methods are the same."""


def load_tokenizer(directory: Path) -> AnyTokenizer:
    """Read what `save` wrote.

    Errors: UserError where the directory holds no tokenizer, or a damaged one.
    """
    if not saved_in(directory):
        raise UserError(f"{directory} holds no {ROLES_FILE}: it has no tokenizer")
    try:
        roles = json.loads((directory / ROLES_FILE).read_text())
        if "sentencepiece" in roles:
            return MarianTokenizer.open(directory)
        return Tokenizer(tokenizers.Tokenizer.from_str((directory / FILE).read_text(encoding="utf-8")), **roles)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the tokenizer in {directory} cannot be read: {' '.join(str(error).split())[:200]}") from error
