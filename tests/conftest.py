"""What every test stands on: eight CPU devices, checked array shapes, and the shared data where it exists."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# All of this must be said before jax or the package is imported anywhere.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# Programs that run once or twice are not worth LLVM's optimisations, which take longer than they save.
os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"
# What one process of the tests has compiled, the others and those that they start need not compile again. It ends with
# the tests; who names a folder of their own here keeps it from one run to the next.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="headwise-compiled-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import hypothesis
import jaxtyping
import pytest

# The packages whose signatures are shapes; the others pass facts about runs, which their own types check.
SHAPED = ["transformer.attention", "transformer.layers", "transformer.models"]
jaxtyping.install_import_hook(SHAPED, "beartype.beartype")

# A busy machine is no failure, and the same tree gives the same verdict twice.
hypothesis.settings.register_profile("headwise", deadline=None, derandomize=True)
hypothesis.settings.load_profile("headwise")

ROOT = Path(__file__).resolve().parents[1]

# The files that take longest, longest first: each is one worker's, and begun last it would keep the others waiting.
LONGEST = (
    "tests/runs/test_processes.py",
    "tests/contracts/test_meshes.py",
    "tests/attention/test_support.py",
    "tests/contracts/test_contracts.py",
    "tests/attention/test_properties.py",
    "tests/training/test_resume.py",
    "tests/pods/test_pods.py",
    "tests/launch/test_compile.py",
    "tests/launch/test_outside_the_checkout.py",
    "tests/launch/test_ablate.py",
    "tests/launch/test_sweep.py",
    "tests/training/test_vmapped.py",
    "tests/studies/test_page.py",
    "tests/studies/test_page_saved.py",
    "tests/models/test_encoder_decoder.py",
    "tests/attention/test_divided.py",
    "tests/costs/test_program.py",
    "tests/training/test_probe.py",
    "tests/training/test_storage_run.py",
    "tests/models/test_decoder.py",
    "tests/attention/test_statistics.py",
    "tests/attention/test_tpu_compile.py",
    "tests/attention/test_library.py",
    "tests/golden/test_families.py",
    "tests/decode/test_cache.py",
    "tests/training/test_heads.py",
    "tests/models/test_attention_variants.py",
    "tests/attention/test_attend.py",
    "tests/models/test_arrangements.py",
    "tests/attention/test_capture.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Files are handed out in the order below, not by how many tests they have."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files, then those of the maps, which start browsers and runs, then the rest as they come."""
    order = (*LONGEST, "tests/maps/")
    items.sort(key=lambda item: next((n for n, name in enumerate(order) if item.nodeid.startswith(name)), len(order)))


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
