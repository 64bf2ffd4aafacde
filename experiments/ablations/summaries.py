"""What a pointer and coverage do for summaries: unseen names, and facts that are told again (See et al. 2017).

    python -m launch.ablate --config=experiments/ablations/summaries.py --workdir=runs/summaries --workers=2

9 runs of three to five minutes: about forty minutes on one core. Compared by the share of the sentences of test
summaries that tell a fact again; beside it the names that are right, unseen and known, and the facts that are told.
Expect not yet measured. One run alone:

    python -m launch.train --config=experiments/ablations/summaries.py --workdir=runs/one
"""

from ml_collections import ConfigDict

from experiments.summaries import articles


def get_config() -> ConfigDict:
    """The pointer-generator without coverage."""
    config = articles.get_config("pointer")
    config.name = "summaries"
    config.maps_every = 0
    config.checkpoint_every = 0
    config.keep = 1
    return config


def get_ablation(ablation):
    """Attention alone, a pointer beside it, and coverage beside that; three seeds."""
    return ablation(
        question="Does a pointer copy what no vocabulary has, and does coverage keep it from telling things again?",
        arms={"plain": {"task.unseen": "unknown"}, "pointer": {}, "coverage": {"model.coverage": 1.0}},
        reference="pointer",
        chosen_by="validation/repeated/5",
        reported="test/repeated/5",
        seeds=(1, 2, 3),
        notable=0.05,
        followed=("validation/unseen_names/5", "validation/known_names/5", "validation/facts_exact/5"),
    )
