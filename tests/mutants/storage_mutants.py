"""Mutants of transformer/storage."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
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
        ("tests/launch/test_cli.py",),
    ),
    Mutant(
        "transformer/storage/json_checksum.py",
        "record.get(_CHECKSUM) == hash_config(strip_checksum(record))",
        "record.get(_CHECKSUM) in (None, hash_config(strip_checksum(record)))",
        ("tests/storage/test_json_checksum.py",),
    ),
    Mutant(
        "transformer/storage/json_reading.py",
        "if size > most:",
        "if size > 2 * most:",
        ("tests/storage/test_json_reading.py", "tests/runs/test_checkpoint.py"),
    ),
    Mutant(
        "transformer/storage/json_reading.py",
        "if inner and level >= MAX_NESTING:",
        "if inner and level > MAX_NESTING:",
        ("tests/storage/test_json_reading.py",),
    ),
)
