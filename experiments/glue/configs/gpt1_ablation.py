r"""Rows of GPT-1's table 5 in miniature: the auxiliary loss, pre-training, and an LSTM (Radford et al. 2018).

    python -m launch.ablate --config=experiments/glue/configs/gpt1_ablation.py --workdir=runs/gpt1_rows --data_dir=GLUE

Needs two pre-trained runs, runs/gpt1 and runs/gpt1_lstm, and the folder GLUE: see experiments/glue/configs/gpt1.py.

40 runs of two to three minutes: an hour on two cores. The verdict is on the GLUE score of the development set: accuracy
of SST-2, Matthews correlation of CoLA, both times 100. Expect, with auxiliary loss, without pre-training and without
auxiliary loss, 80.0, 79.6 and 80.6 on SST-2 and 10.1, 7.8 and 9.5 on CoLA; the paper has 91.3, 84.0 and 92.0, and 45.4,
18.9 and 47.9: results/gpt1.md. One run alone:

    python -m launch.train --config=experiments/glue/configs/gpt1_ablation.py --workdir=runs/one --data_dir=GLUE
"""

from ml_collections import ConfigDict

from experiments.glue.configs import gpt1

# What decides between the arms, on which tasks.
VERDICT = {
    "reference": "without pre-training",
    "selection_metric": "validation/glue",
    "reported_metric": "development/glue",
    "direction": "maximize",
    "tasks": {name: {"task.dataset": f"glue/{name}"} for name in ("SST-2", "CoLA")},
    "plotted_metrics": ("validation/loss",),
}


def get_config() -> ConfigDict:
    """Build the fine-tuning config of CoLA."""
    return as_row(gpt1.fine_tuning("CoLA"), "gpt1_ablation")


def as_row(config: ConfigDict, name: str) -> ConfigDict:
    """Return a config of fine-tuning that stores its scores alone, without maps."""
    config.name = name
    config.maps_every = 0
    config.checkpoint_every = 0
    config.keep_checkpoints = 1
    return config


def get_ablation(ablation):
    """Build four rows of the table on both tasks with five seeds."""
    lstm = {
        "model": gpt1.LSTM,
        "initialize_from.run": "runs/gpt1_lstm",
        "initialize_from.rules": ("classes/* = fresh", *gpt1.RESIZED["lstm"]),
    }
    return ablation(
        question="What do pre-training and the auxiliary loss do for a fine-tuned language model?",
        arms={
            "without pre-training": {"initialize_from.rules": ("* = fresh",)},
            "with auxiliary loss": {},
            "without auxiliary loss": {"task.auxiliary": 0.0},
            "LSTM with auxiliary loss": lstm,
        },
        **VERDICT,
    )
