"""Load a run's tokenizer, of whichever kind, from its directory."""

from pathlib import Path

import tokenizers

from transformer.config import UserError
from transformer.data.tokenizers.marian import MarianTokenizer
from transformer.data.tokenizers.tokenizer import FILE, ROLES, ROLES_FILE, RolesFile, Tokenizer, has_tokenizer
from transformer.json_reading import read_dataclass, read_regular_file

type AnyTokenizer = Tokenizer | MarianTokenizer
"""Any tokenizer; their methods are the same."""


def load_tokenizer(directory: Path) -> AnyTokenizer:
    """Load a tokenizer that its `save` has written.

    Raises:
        UserError: If the directory has no tokenizer, or a damaged one.
    """
    if not has_tokenizer(directory):
        raise UserError(f"{directory} holds no {ROLES_FILE}: it has no tokenizer")
    try:
        roles = read_dataclass(RolesFile, directory / ROLES_FILE)
        if roles.sentencepiece:
            return MarianTokenizer.open(directory)
        backend = tokenizers.Tokenizer.from_str(read_regular_file(directory / FILE).decode("utf-8"))
        return Tokenizer.from_roles(backend, {role: getattr(roles, role) for role in ROLES})
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the tokenizer in {directory} cannot be read: {' '.join(str(error).split())[:200]}") from error
