r"""BERT's rows beside GPT-1's in miniature: what pre-training does for an encoder (Devlin et al. 2019, table 1).

    python -m launch.ablate --config=experiments/glue/configs/bert_ablation.py --workdir=runs/bert_rows --data_dir=GLUE

Needs a pre-trained run, runs/bert, and the folder GLUE: see experiments/glue/configs/bert.py. The seeds, the data and
the steps are those of experiments/glue/configs/gpt1_ablation.py, and so is the verdict. 40 runs of two to three
minutes: 100 minutes on one core. Expect 78.8 on SST-2 and 8.2 on CoLA without pre-training, 76.6 and 6.9 with it:
results/bert.md. One run alone:

    python -m launch.train --config=experiments/glue/configs/bert_ablation.py --workdir=runs/one --data_dir=GLUE
"""

from ml_collections import ConfigDict

from experiments.glue.configs import bert, gpt1_ablation


def get_config() -> ConfigDict:
    """Build the fine-tuning config of CoLA."""
    return bert.as_encoder(gpt1_ablation.get_config(), "bert_ablation", bert.MODEL)


def get_ablation(ablation):
    """Build two rows of the table on both tasks with five seeds, each task and row with its best rate."""
    return ablation(
        question="What does pre-training do for a fine-tuned encoder?",
        arms={"without pre-training": {"initialize_from.rules": ("* = fresh",)}, "with pre-training": {}},
        tuning_grid={"optimizer.learning_rate": (3e-4, 1e-3)},
        **gpt1_ablation.VERDICT,
    )
