r"""XLNet's rows beside BERT's in miniature: what permutation language modeling does for fine-tuning (Yang et al. 2019).

    python -m launch.ablate --config=experiments/glue/configs/xlnet_ablation.py --workdir=runs/xlnet_rows \
        --data_dir=GLUE

Needs a pre-trained run, runs/xlnet, and the folder GLUE: see experiments/glue/configs/xlnet.py. The seeds, the data,
the steps and the verdict are those of experiments/glue/configs/bert_ablation.py. The rates are those that its rows
chose: 1e-3, which the config has, without pre-training, and 3e-4 with it. 20 runs of four minutes: 80 minutes on one
core. Expect 78.6 on SST-2 and 9.0 on CoLA without pre-training, 78.3 and 7.7 with it: results/xlnet.md. One run alone:

    python -m launch.train --config=experiments/glue/configs/xlnet_ablation.py --workdir=runs/one --data_dir=GLUE
"""

from ml_collections import ConfigDict

from experiments.glue.configs import gpt1_ablation, xlnet


def get_config() -> ConfigDict:
    """Build the fine-tuning config of CoLA."""
    return gpt1_ablation.as_row(xlnet.fine_tuning("CoLA"), "xlnet_ablation")


def get_ablation(ablation):
    """Build two rows of the table on both tasks with five seeds."""
    return ablation(
        question="What does permutation language modeling do for a fine-tuned XLNet?",
        arms={
            "without pre-training": {"initialize_from.rules": ("* = fresh",)},
            "with pre-training": {"optimizer.learning_rate": 3e-4},
        },
        **gpt1_ablation.VERDICT,
    )
