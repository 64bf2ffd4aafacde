r"""Position encodings: none, in the embeddings, or within attention (compare Vaswani et al. 2017, table 3, row E).

    python -m launch.ablate --config=experiments/ablations/configs/position_encodings.py --workdir=runs/positions \
        --num_workers=2

120 runs of half a minute to a minute (eight arms x three learning rates x five seeds): about 40 minutes on two cores.
One run alone:

    python -m launch.train --config=experiments/ablations/configs/position_encodings.py --workdir=runs/one

Relative positions act in self-attention alone: cross-attention then knows only the positions that the encoder has
written. Expect no positions at all to be worst (a test loss of 1.44), since the encoder sees a bag of tokens, and the
others to be close to sinusoids (1.27 to 1.40 against 1.32): results/position_encodings.md. In the paper learned and
sinusoidal positions were nearly equal (25.7 against 25.8 BLEU after 100,000 steps), and they are here.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base

KINDS = ("none", "sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "transformer_xl")


def get_config() -> ConfigDict:
    """Build the base config, with the largest distance of Shaw's and T5's positions fit to its lengths."""
    config = base.get_config()
    config.name = "position_encodings"
    config.model.relative_attention_max_distance = 16
    config.model.relative_attention_num_buckets = 16
    return config


def get_ablation(ablation):
    """Build eight position encodings with sinusoids as the reference."""
    return ablation(
        question="Which positions learn these phrases best?",
        arms={kind: {"model.positions": kind} for kind in KINDS},
        reference="sinusoidal",
        tuning_grid={"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)},
        smallest_effect_of_interest=0.05,
    )
