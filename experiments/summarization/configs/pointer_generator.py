r"""Summaries of drawn articles: attention alone, a pointer-generator, and one with coverage (See et al. 2017).

    python -m launch.train --config=experiments/summarization/configs/pointer_generator.py --workdir=runs/articles
    python -m launch.train --config=experiments/summarization/configs/pointer_generator.py:coverage \
        --workdir=runs/articles_coverage
    python -m launch.train --config=experiments/summarization/configs/pointer_generator.py:plain \
        --workdir=runs/articles_plain

Half of the names are in no vocabulary. A summary tells those facts of its article that count in other words and in an
order that nothing says, so that who writes it must know what is told. Attention alone has no word for a name that is in
no vocabulary, whatever it learns; `known_names` tells whether it has learned to say the others. As in the paper
(section 5) coverage is added to a model that has learned, the first run: from the first step on its loss keeps two
seeds of three from learning which name belongs where. Each takes two to five minutes on one core. Expect all unseen
names right but by attention alone, 0.23 of the sentences about five facts told again by the first run, and 0.004 by the
second, which has twice the steps: results/summaries.md.

    python -m launch.generate --workdir=runs/articles_coverage --beams=4 \
        --text='Ann has bought the old mill in Oslo. nobody in Rome had seen Ben. Carl opened a school in Lima today.'
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(arm: Literal["pointer", "coverage", "plain"] = "pointer") -> ConfigDict:
    """Fresh batches of 32 articles of one to five facts; tested with three and with five."""
    config = ConfigDict(
        {
            "name": f"articles_{arm}",
            "seed": 1,
            "steps": 1000,
            "eval_every": 250,
            "maps_every": 50,
            "checkpoint_every": 250,
            "task": {"name": "experiments.summarization.task"},
            "model": {"family": "experiments.summarization.model", "width": 80, "embedding": 40},
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "pod": "cpu:1",
        }
    )
    match arm:
        case "plain":
            config.task.unseen = "unknown"
        case "coverage":
            config.initialize_from = ConfigDict({"run": "runs/articles", "rules": ("covered/* = fresh",)})
            config.model.coverage = 1.0
    return config
