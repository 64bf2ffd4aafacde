"""All planted faults, and how many each part of the project has at least."""

from tests.mutants.of_attention import ATTENTION
from tests.mutants.of_data import DATA
from tests.mutants.of_models import MODELS
from tests.mutants.of_studies import STUDIES
from tests.mutants.of_training import TRAINING

FAULTS = (*ATTENTION, *MODELS, *TRAINING, *DATA, *STUDIES)

# By the rooms that hold a part of the project together.
LEAST: dict[tuple[str, ...], int] = {
    ("attention",): 10,
    ("layers",): 5,
    ("models",): 3,
    ("training", "runs", "axes"): 6,
    ("data",): 4,
    ("decode",): 4,
    ("tasks",): 3,
    ("maps", "storage"): 5,
    ("studies",): 4,
    ("interop",): 1,
}
