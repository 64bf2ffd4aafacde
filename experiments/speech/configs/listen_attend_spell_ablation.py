r"""Listen, Attend and Spell without its pyramid, and without scheduled sampling.

    python -m launch.ablate --config=experiments/speech/configs/listen_attend_spell_ablation.py \
        --workdir=runs/listening --num_workers=2 \
        --data_dir=DIR

9 runs of 600 steps, of three to six minutes on one core each; `--seeds=1` trains three of them. DIR holds
recordings.zip of the Free Spoken Digit Dataset. Expect a character error rate of 0.10 (`target`) after 300 steps with
the pyramid, and after 400 steps with 1.5 times the FLOPs without it, and no difference with scheduled sampling:
results/listening.md. Without the pyramid there are eight times as many positions to attend to and a quarter fewer
parameters, as no layer reads two neighbors. One run alone:

    python -m launch.train --config=experiments/speech/configs/listen_attend_spell_ablation.py --workdir=runs/one \
        --data_dir=DIR
"""

from ml_collections import ConfigDict

from experiments.speech.configs import spoken_digits


def get_config() -> ConfigDict:
    """Build the base config: fewer steps with more frequent evaluations, on the official split."""
    config = spoken_digits.get_config()
    config.name = "listen_attend_spell_ablation"
    config.steps = 600
    config.eval_every = 50
    config.maps_every = 300
    config.checkpoint_every = 300
    return config


def get_ablation(ablation):
    """Build three arms with three seeds."""
    return ablation(
        question="What do the pyramid and scheduled sampling do for a listener?",
        arms={
            "pyramid": {},
            "no pyramid": {"model.pyramid": (1, 1, 1)},
            "no sampling": {"model.scheduled_sampling": 0.0},
        },
        reference="pyramid",
        selection_metric="validation/character_error_rate",
        target=0.1,
        reported_metric="test/character_error_rate",
        seeds=(1, 2, 3),
        smallest_effect_of_interest=0.01,
        plotted_metrics=("validation/loss", "validation/spearman_of_first_letters"),
    )
