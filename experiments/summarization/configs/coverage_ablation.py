r"""Coverage in summarization: does it prevent repeated facts (See et al. 2017, section 2.3)?

    python -m launch.train --config=experiments/summarization/configs/pointer_generator.py --workdir=runs/articles
    python -m launch.ablate --config=experiments/summarization/configs/coverage_ablation.py \
        --workdir=runs/summaries --num_workers=2

6 runs of two minutes: about a quarter of an hour on one core. All continue the first command's run, half of them with
coverage. The verdict is on the fraction of sentences of test summaries that repeat a fact; the recall of names and of
facts is plotted as well. Expect 0.024 without coverage and 0.008 with it: results/summaries.md. The model without
copying is `pointer_generator.py:plain` in the same folder; it is no arm, because its batches encode out-of-vocabulary
names differently. One run alone:

    python -m launch.train --config=experiments/summarization/configs/coverage_ablation.py --workdir=runs/one
"""

from ml_collections import ConfigDict

from experiments.summarization.configs import pointer_generator


def get_config() -> ConfigDict:
    """Build the base config: continue the pointer-generator run."""
    config = pointer_generator.get_config("coverage")
    config.name = "summaries"
    config.maps_every = 0
    config.checkpoint_every = 0
    config.keep_checkpoints = 1
    return config


def get_ablation(ablation):
    """Build a pointer-generator that continues unchanged, and one with coverage; three seeds."""
    return ablation(
        question="Does coverage keep a pointer-generator from telling things again?",
        arms={"pointer": {"model.coverage_loss_weight": None, "initialize_from.rules": ()}, "coverage": {}},
        reference="pointer",
        selection_metric="validation/repeated_facts/5",
        reported_metric="test/repeated_facts/5",
        seeds=(1, 2, 3),
        smallest_effect_of_interest=0.05,
        plotted_metrics=("validation/oov_recall/5", "validation/in_vocabulary_recall/5", "validation/fact_recall/5"),
    )
