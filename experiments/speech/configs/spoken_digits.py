r"""Listen, Attend and Spell (Chan et al. 2016) or a Speech-Transformer on spoken digits: "three one four".

    python -m launch.train --config=experiments/speech/configs/spoken_digits.py --workdir=runs/speech --data_dir=DIR
    python -m launch.train --config=experiments/speech/configs/spoken_digits.py:transformer \
        --workdir=runs/speech_transformer --data_dir=DIR
    python -m launch.train --config=experiments/speech/configs/spoken_digits.py:synthetic \
        --workdir=runs/speech_synthetic
    python -m launch.train --config=experiments/speech/configs/spoken_digits.py:held_out \
        --workdir=runs/speech_held_out --data_dir=DIR
    python -m launch.train --config=experiments/speech/configs/spoken_digits.py:single \
        --workdir=runs/speech_single --data_dir=DIR

DIR holds recordings.zip of the Free Spoken Digit Dataset; `:synthetic` needs no files. A run takes five to eight
minutes on one CPU core. Expected character error rate: 0.010 on the official split, 0.065 on a held-out speaker
(`:held_out`). Expected rank correlation of a letter's index with the position that it attends to: 0.98 and 0.87; 1.0
over the first letter of each digit (`spearman_of_first_letters`). Single digits (`:single`) are 0.996 right. See
results/speech.md. The Transformer and the synthetic speaker are not yet measured.

`python -m launch.generate --workdir=runs/speech --text='3 1 4'` synthesizes that, prints the transcript and maps the
attention under the audio; `--text=FILE.wav` reads a recording.
"""

from typing import Literal

from ml_collections import ConfigDict


def get_config(case: Literal["fsdd", "transformer", "synthetic", "held_out", "single"] = "fsdd") -> ConfigDict:
    """Build the config: new strings of 2 to 4 digits at every step; one output of the listener spans 80 ms."""
    config = ConfigDict(
        {
            "name": f"spoken_digits_{case}",
            "seed": 1,
            "steps": 1500,
            "log_every": 25,
            "eval_every": 250,
            "maps_every": 125,
            "task": {"name": "experiments.speech.task", "dataset": "fsdd", "batch_size": 24, "num_eval_examples": 240},
            "model": {
                "family": "experiments.speech.listen_attend_spell",
                "listener_width": 48,
                "speller_width": 96,
                "speller_layers": 1,
                "embedding_width": 16,
                "attention_width": 48,
                "audio_frontend": {
                    "spec_augment": {
                        "num_frequency_masks": 2,
                        "max_frequency_mask_width": 6,
                        "num_time_masks": 2,
                        "max_time_mask_width": 15,
                    }
                },
            },
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "final_lr_fraction": 0.01,
                "beta2": 0.999,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
    if case == "transformer":
        config.model = {
            "family": "experiments.speech.speech_transformer",
            "width": 96,
            "heads": 4,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "feed_forward": 256,
            "norm_placement": "pre",
            "dropout": 0.1,
            "channels": 96,
            "max_length": 128,
            "audio_frontend": config.model.audio_frontend,
        }
        config.optimizer.learning_rate = 1e-3
        config.steps = 3000
    elif case == "synthetic":
        config.task.dataset = "synthetic"
    elif case == "held_out":
        config.task.held_out_speaker = "theo"
    elif case == "single":
        config.task.update(
            {"min_digits": 1, "max_digits": 1, "max_seconds": 1.2, "output_units": "digits", "batch_size": 48}
        )
        config.steps = 3000
    return config
