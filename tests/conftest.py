"""What every test stands on: eight CPU devices, checked array shapes, and the shared data where it exists."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# All of this must be said before jax, NumPy or the package is imported anywhere.
# The arrays of tests are small: threads of BLAS wait for each other longer than they compute, 20 times in a search.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

from launch.compilation_cache import enable_cache_in, hash_processor

ROOT = Path(__file__).resolve().parents[1]

# What one process of the tests has compiled, the others, those that they start, and the next run need not compile:
# a second run takes half the time. Programs of another version of jax are of no use; jax tells those of other flags
# apart. A damaged entry is compiled again.
PROGRAMS = ROOT / ".cache" / f"compiled-{version('jaxlib')}-{hash_processor():08x}"
for other_programs in PROGRAMS.parent.glob("compiled-*"):
    if other_programs != PROGRAMS:
        shutil.rmtree(other_programs, ignore_errors=True)
enable_cache_in(PROGRAMS)

import hypothesis
import jax
import jaxtyping
import pytest

# What this account has begun runs of (transformer.runs.trust) is not for the tests to write down.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="headwise-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# The modules whose signatures are shapes, and the models of the projects; the others pass facts, which their own types
# check: a table of them is asked a hundred thousand times.
SHAPED = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for pattern, held in (
        ("transformer/attention/*.py", "from jaxtyping import"),
        ("transformer/layers/*.py", "from jaxtyping import"),
        ("transformer/models/*.py", "from jaxtyping import"),
        ("experiments/*/*.py", "\nFAMILY = "),
    )
    for path in sorted(ROOT.glob(pattern))
    if held in path.read_text(encoding="utf-8")
]
jaxtyping.install_import_hook(SHAPED, "beartype.beartype")

# A shell ignores interrupts in what it starts in the background, and all that this starts would ignore them too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tracing makes many small objects that live on: looking through them as often as Python would takes a tenth of the
# time.
gc.set_threshold(100_000, 50, 100)

# A busy machine is no failure, and the same tree gives the same verdict twice.
hypothesis.settings.register_profile("headwise", deadline=None, derandomize=True)
hypothesis.settings.load_profile("headwise")


# Of the slow tests, those of what everything else stands on come first, for who has not the time for all of them.
MOST_VALUABLE_FIRST = ("contracts", "golden", "attention", "layers", "models", "training", "decoding", "tasks", "runs")
BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let who has not the time for all tests say so."""
    parser.addoption("--minutes", type=float, help="skip the tests that have not begun after so many minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where time is limited, begin with the most valuable folders."""
    if config.getoption("--minutes") is not None:
        folders = {folder: rank for rank, folder in enumerate(MOST_VALUABLE_FIRST)}
        parts = [item.path.relative_to(ROOT / "tests").parts for item in items]
        ranks = [folders.get(names[0], len(folders)) for names in parts]
        items[:] = [item for _, item in sorted(zip(ranks, items, strict=True), key=lambda ranked: ranked[0])]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin too late."""
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - BEGUN > 60 * minutes:
        pytest.skip(f"not begun within --minutes={minutes:g}")


def pytest_sessionfinish() -> None:
    """Let the process end at once: it would look through all that tracing has made, several times over."""
    gc.freeze()


MAPPINGS = Path("/proc/self/maps")


@pytest.fixture(scope="module", autouse=True)
def _few_mappings() -> Iterator[None]:
    """Forget compiled programs while there is room: each has mappings of its own, of which Linux grants 65,530."""
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data(root: Path) -> Path:
    """The folder of data sets beside the checkout; a test that asks for it skips where there is none."""
    folder = root.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the data sets in ../shared/data beside the checkout")
    return folder
