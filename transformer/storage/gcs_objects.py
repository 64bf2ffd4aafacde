"""Objects of a Google Cloud Storage bucket: whole contents under names, each write a generation of its own.

An object can neither grow nor be renamed, and a folder is no more than a common beginning of names. What can be had
is a write that succeeds only where the object still has the generation that the writer knows.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ABSENT_GENERATION = 0  # the generation of an object that does not exist


def bucket_of(path: Path) -> Any:
    """Return the bucket of a path, without a network request."""
    return _get_client(os.environ.get("STORAGE_EMULATOR_HOST", "")).bucket(bucket_name(path))


def bucket_name(path: Path) -> str:
    """Return the name of the bucket of a path."""
    return os.fspath(path).split("/")[2]


def object_key(path: Path) -> str:
    """Return the object name of a path within its bucket."""
    return "/".join(os.fspath(path).split("/")[3:])


def blob_at(path: Path) -> Any:
    """Return the blob of a path, whether it exists or not."""
    return bucket_of(path).blob(object_key(path))


def check_bucket_access(path: Path) -> None:
    """Ask for the bucket itself, by a client that wants a project, as orbax does before it lists checkpoints.

    Without that permission or project the run would end where it first saves, after all that compiles before.

    Raises:
        OSError: If the storage cannot be reached or written.
    """
    from google.cloud import storage

    with translate_gcs_errors(path):
        storage.Client().get_bucket(bucket_of(path).name)


@contextlib.contextmanager
def translate_gcs_errors(path: Path) -> Iterator[None]:
    """Raise errors of the Google Cloud client as OSErrors that name `path`.

    Raises:
        FileNotFoundError: For a missing object.
        OSError: If the storage cannot be reached or written.
    """
    import requests
    from google.api_core.exceptions import GoogleAPIError, NotFound, PreconditionFailed
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except PreconditionFailed:
        raise  # no fault, but an answer to whoever stated the condition
    except NotFound as error:
        raise FileNotFoundError(f"{path} is missing ({_format_error(error)})") from error
    except (GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
        raise OSError(f"{path} cannot be reached: {_format_error(error)}") from error


@functools.cache
def _get_client(emulator: str) -> Any:
    """The client, one for each server: `emulator` is what it reads from the environment itself."""
    from google.cloud import storage

    # Objects need no project, which a machine outside the cloud may not have.
    return storage.Client(project=None)


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
