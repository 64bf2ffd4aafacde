"""What a process must settle before jax is imported: the platform, and how much the libraries say."""

import logging as stdlib_logging
import os
from collections.abc import MutableMapping
from pathlib import Path

# Device files of TPUs (direct and by VFIO group), of NVIDIA cards (bare and under WSL) and of AMD cards.
ACCELERATORS = ("dev/accel*", "dev/vfio/[0-9]*", "dev/nvidia[0-9]*", "dev/dxg", "dev/kfd")


def choose_platform(environment: MutableMapping[str, str] = os.environ, files: Path = Path("/")) -> None:
    """Set JAX_PLATFORMS=cpu where no accelerator is in the machine; a value that the user set stays.

    Where libtpu is installed without a TPU, jax otherwise looks for one and prints errors before it
    falls back.
    """
    if environment.get("JAX_PLATFORMS"):
        return
    if not any(next(files.glob(pattern), None) for pattern in ACCELERATORS):
        environment["JAX_PLATFORMS"] = "cpu"


def quiet_libraries(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep the libraries' notes off the console, save for errors: ours are the messages of a command."""
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment.setdefault("GRPC_VERBOSITY", "ERROR")
    # Orbax and TFDS log through absl, which is imported here because its logger must be made by itself.
    from absl import logging

    logging.set_verbosity(logging.ERROR)
    # A root logger with a handler is left alone by whichever library calls logging.basicConfig.
    stdlib_logging.getLogger().addHandler(stdlib_logging.NullHandler())
