r"""What ELMo's features do for a BiLSTM with attention, beside the rows of GPT-1 and BERT (Peters et al. 2018).

    python -m launch.ablate --config=experiments/glue/configs/elmo_ablation.py --workdir=runs/elmo_rows --data_dir=GLUE

Needs a pre-trained run, runs/elmo, and the folder GLUE: see experiments/glue/configs/elmo.py. The seeds, the data and
the steps are those of experiments/glue/configs/gpt1_ablation.py, and so is the verdict. 20 runs of about a minute: 25
minutes on one core. Expect 78.1 on SST-2 and 9.7 on CoLA without the features, 79.6 and 7.8 with them: results/elmo.md.
One run alone:

    python -m launch.train --config=experiments/glue/configs/elmo_ablation.py --workdir=runs/one --data_dir=GLUE
"""

from ml_collections import ConfigDict

from experiments.glue.configs import elmo, gpt1_ablation


def get_config() -> ConfigDict:
    """Build the config of CoLA."""
    return gpt1_ablation.as_row(elmo.classifier("CoLA"), "elmo_ablation")


def get_ablation(ablation):
    """Build two rows of the table on both tasks with five seeds; of 1e-3, 2e-3 and 4e-3 both do best with 2e-3."""
    no_pretraining = {"model.elmo.layers": 0, "optimizer.frozen": (), "initialize_from.rules": ("* = fresh",)}
    return ablation(
        question="What do features of a bidirectional language model do for an LSTM with attention?",
        arms={"without pre-training": no_pretraining, "with pre-training": {}},
        **gpt1_ablation.VERDICT,
    )
