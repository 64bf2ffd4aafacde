"""Mutants of transformer/storage."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/storage/bucket.py",
        "download_as_bytes(start=start, end=stop - 1)",
        "download_as_bytes(start=start, end=stop)",
        ("tests/training/test_storage.py",),
    ),
    Mutant(
        "transformer/storage/bucket.py",
        "if self._sent_versions.get(file) != version:",
        "if file not in self._sent_versions:",
        ("tests/training/test_storage.py",),
    ),
    Mutant(
        "transformer/storage/disk.py",
        "os.pread(descriptor, stop - start, start)",
        "os.pread(descriptor, stop, start)",
        ("tests/storage/test_disk.py", "tests/data/test_token_shards.py"),
    ),
    Mutant(
        "transformer/storage/disk.py",
        "if size > self._end and not self._torn:",
        "if size > self._end and self._torn:",
        ("tests/storage/test_disk.py",),
    ),
    Mutant(
        "transformer/storage/disk_errors.py",
        "_FULL = (errno.ENOSPC, errno.EDQUOT)",
        "_FULL = (errno.ENOSPC,)",
        ("tests/storage/test_disk.py",),
    ),
    Mutant(
        "transformer/storage/json_checksum.py",
        "record.get(_CHECKSUM) == hash_config(strip_checksum(record))",
        "record.get(_CHECKSUM) in (None, hash_config(strip_checksum(record)))",
        ("tests/maps/test_store.py", "tests/training/test_rollback.py"),
    ),
    Mutant(
        "transformer/storage/json_reading.py",
        "if size > most:",
        "if size > 2 * most:",
        ("tests/storage/test_json_reading.py", "tests/runs/test_checkpoint.py"),
    ),
    Mutant(
        "transformer/storage/json_reading.py",
        "if level > MAX_NESTING:",
        "if level >= MAX_NESTING:",
        ("tests/storage/test_json_reading.py",),
    ),
    Mutant(
        "transformer/storage/lease.py",
        "if monotonic_seconds() - since < stored.seconds:",
        "if monotonic_seconds() - since < stored.seconds / 2:",
        ("tests/training/test_storage.py",),
    ),
    Mutant(
        "transformer/storage/lease.py",
        "if stored is None or stored.token != self._token:",
        "if stored is None:",
        ("tests/training/test_storage.py",),
    ),
    Mutant(
        "transformer/storage/paths.py",
        'if "/" not in location.strip("/"):',
        'if "/" not in location:',
        ("tests/training/test_storage.py",),
    ),
)
