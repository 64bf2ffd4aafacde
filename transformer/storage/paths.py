"""Paths of run directories, local or `gs://`, and the storage that each path belongs to.

A bucket is reached by gcsfs and google-cloud-storage, which orbax needs anyway: its paths go through etils and fsspec,
and it removes checkpoints with Google's own client. obstore (0.12 was tried) would be one dependency more and not one
fewer. It writes on condition as a lease needs (`mode="create"`, or the generation that is replaced as `version`), but
it cannot delete on condition, which is how a lease is released; and it speaks the XML interface, where orbax and
tensorstore speak JSON, so that the loopback server of the tests would have to speak both.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import cast

from transformer.config import UserError
from transformer.storage.storage import DirectoryInUse, Storage

# One slash or two: pathlib has folded those of a URL that went through it.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(.+)", re.DOTALL)
# What gcsfs takes for a pattern or the number of a generation, and what no object's name may hold.
_UNUSABLE = re.compile(r"[][*?#\x00-\x1f]")


def parse_path(name: str | PathLike[str]) -> Path:
    """Parse a path: "gs://bucket/folder" is a path in that bucket, anything else a path on the disk.

    A path in a bucket is read, listed and joined like any other; it is written through `storage_of` alone. What follows
    ./ is a name on the disk, as of ./~x.

    Raises:
        UserError: For another scheme, for a bucket where the extra `gcs` is not installed, and for characters that no
            path in a bucket may have.
    """
    text = fspath(name)
    url = _URL.fullmatch(text)
    if url is None:
        path = Path(name)
        if text.startswith("./") and (fspath(path).startswith("~") or _URL.fullmatch(fspath(path))):
            return path.absolute()  # since pathlib drops the ./
        try:
            return path.expanduser()  # a shell leaves the ~ of --workdir=~/runs as it is
        except RuntimeError as error:
            raise UserError(f"{text} cannot be used: {error}") from error
    scheme, location = url.groups()
    if scheme != "gs":
        raise UserError(f"{scheme}://{location} cannot be used: name a directory of a disk, or gs://BUCKET/FOLDER")
    unusable = _UNUSABLE.search(location)
    if unusable is not None:
        raise UserError(
            f"gs://{location} cannot be used: no path in a bucket may hold {unusable[0]!r}; name another folder"
        )
    if "/" not in location.strip("/"):
        raise UserError(
            f"gs://{location} is a whole bucket: name a folder in it, as gs://{location.strip('/')}/runs/one"
        )
    if find_spec("gcsfs") is None:
        raise UserError(
            f"gs://{location} lies in a bucket, for which an extra is missing: pip install gcsfs google-cloud-storage"
        )
    from transformer.storage.bucket import BucketPath

    # No pathlib.Path by class, but with every method of it that this library calls.
    return cast(Path, BucketPath(f"gs://{location}"))


def check_data_dir(data_dir: str) -> None:
    """Check that the folder of data sets is not in a bucket: most readers open files on a disk.

    Raises:
        UserError: If it is; the message says how a bucket becomes a folder.
    """
    if re.match(r"[a-z][a-z0-9+.-]+:/{1,2}", data_dir):
        raise UserError(
            f"--data_dir={data_dir} is in a bucket, and must be a folder: mount the bucket on every host "
            "(volumes of launch/clusters/jobset.yaml, or gcsfuse) and say --data_dir=/data; or, for the text "
            "of a language model, say config.task.dataset=gs://BUCKET/NAME and config.task.shards_dir"
        )


@contextlib.contextmanager
def claim_when_free(
    folder: Path, name: str, poll_seconds: float, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold a folder by its lock `name`, as soon as no other process does.

    Args:
        folder: The folder.
        name: The name of the lock.
        poll_seconds: The time between two looks at a lock that another process holds.
        on_wait: A function that is called once if another process holds it.
    """
    with contextlib.ExitStack() as stack:
        waits = False
        while True:
            try:
                stack.enter_context(storage_of(folder).claim(folder, name))
                break
            except DirectoryInUse:
                if not waits:
                    on_wait()
                waits = True
                time.sleep(poll_seconds)
        yield


def storage_of(path: str | PathLike[str]) -> Storage:
    """Return the storage, disk or bucket, that `path` belongs to.

    Raises:
        UserError: As `parse_path`.
    """
    if fspath(parse_path(path)).startswith("gs://"):
        from transformer.storage.bucket import BucketStorage

        return BucketStorage()
    from transformer.storage.disk import DiskStorage

    return DiskStorage()
