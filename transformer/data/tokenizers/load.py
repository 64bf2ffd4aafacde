"""Load a run's tokenizer, of whichever kind, from its directory; tell it apart from others, and copy it."""

import hashlib
from pathlib import Path

from transformer.config import UserError
from transformer.data.tokenizers.chat_template import FILE as CHAT_TEMPLATE_FILE
from transformer.data.tokenizers.checked_backend import parse_backend
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.marian import MarianTokenizer
from transformer.data.tokenizers.tokenizer import FILE, ROLES, ROLES_FILE, RolesFile, Tokenizer, has_tokenizer
from transformer.storage.json_reading import read_dataclass, read_regular_file
from transformer.storage.paths import storage_of

# The roles come last: a directory that holds them has all.
TOKENIZER_FILES = (FILE, "source.spm", "target.spm", "vocab.json", ROLES_FILE)


def tokenizer_digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each of the tokenizer's files in a directory, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in _read_tokenizer_files(directory).items()}


def copy_tokenizer(directory: Path, target: Path) -> None:
    """Copy a tokenizer's files, byte for byte, and the chat template beside them."""
    files = _read_tokenizer_files(directory)
    if (directory / CHAT_TEMPLATE_FILE).is_file():
        files[CHAT_TEMPLATE_FILE] = read_regular_file(directory / CHAT_TEMPLATE_FILE)
    for name, content in files.items():
        storage_of(target).replace(target / name, content)


def _read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    return {name: read_regular_file(directory / name) for name in TOKENIZER_FILES if (directory / name).is_file()}


def load_tokenizer(directory: Path) -> Tokenizer:
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
        backend = parse_backend(read_regular_file(directory / FILE).decode("utf-8"))
        loaded = FastTokenizer.from_roles(backend, {role: getattr(roles, role) for role in ROLES})
    except UserError as error:
        raise UserError(f"the tokenizer in {directory} cannot be read: {error}") from error
    except Exception as error:
        raise UserError(f"the tokenizer in {directory} cannot be read: {' '.join(str(error).split())[:200]}") from error
    loaded.try_encoding(directory)
    return loaded
