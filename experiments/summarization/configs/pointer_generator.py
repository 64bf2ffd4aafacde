r"""Summarization of synthetic articles with a pointer-generator (See et al. 2017).

    python -m launch.train --config=experiments/summarization/configs/pointer_generator.py --workdir=runs/articles
    python -m launch.train --config=experiments/summarization/configs/pointer_generator.py:coverage \
        --workdir=runs/articles_coverage
    python -m launch.train --config=experiments/summarization/configs/pointer_generator.py:plain \
        --workdir=runs/articles_plain

`:coverage` continues the first run with the coverage loss, `:plain` is attention without copying. Half of the names are
out of vocabulary. A summary states the facts of its article in other words and in an unspecified order, so the decoder
must remember which it has stated. Without copying, out-of-vocabulary names cannot be written; `in_vocabulary_recall`
says whether the others are. As in the paper (section 5), coverage is added to a trained model: from the first step on,
its loss keeps two of three seeds from learning which name belongs where. Each run takes two to five minutes on one
core.

Expected `oov_recall`: 1.0, without copying 0. Expected `repeated_facts` at five facts: 0.23 after the first run, 0.004
after the second, which has twice the steps. See results/summaries.md.

    python -m launch.generate --workdir=runs/articles_coverage --num_beams=4 \
        --text='Ann has bought the old mill in Oslo. nobody in Rome had seen Ben. Carl opened a school in Lima today.'
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(arm: Literal["pointer", "coverage", "plain"] = "pointer") -> ConfigDict:
    """Build the config: batches of 32 new articles of one to five facts; evaluated with three and with five."""
    config = ConfigDict(
        {
            "name": f"articles_{arm}",
            "seed": 1,
            "steps": 1000,
            "eval_every": 250,
            "maps_every": 50,
            "checkpoint_every": 250,
            "task": {"name": "experiments.summarization.task"},
            "model": {"family": "experiments.summarization.model", "width": 80, "embedding_width": 40},
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.01,
                "beta2": 0.999,
                "clip_norm": 2.0,
            },
            "topology": "cpu:1",
        }
    )
    match arm:
        case "plain":
            config.task.oov_target = "unknown"
        case "coverage":
            config.initialize_from = ConfigDict({"run": "runs/articles", "rules": ("covered/* = fresh",)})
            config.model.coverage_loss_weight = 1.0
    return config
