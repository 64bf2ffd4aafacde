r"""Position encodings: none, in the embeddings, or within attention.

    python -m launch.ablate --config=experiments/ablations/configs/position_encodings.py --workdir=runs/positions \
        --num_workers=2

40 runs of half a minute to a minute: about 20 minutes on two cores. One run alone:

    python -m launch.train --config=experiments/ablations/configs/position_encodings.py --workdir=runs/one

Relative positions act in self-attention alone: cross-attention then knows only the positions that the encoder has
written. Expect no positions at all to be worst, since the encoder sees a bag of tokens.
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
    """Build seven position encodings with sinusoids as the reference."""
    return ablation(
        question="Which positions learn these phrases best?",
        arms={kind: {"model.positions": kind} for kind in KINDS},
        reference="sinusoidal",
        smallest_effect_of_interest=0.05,
    )
