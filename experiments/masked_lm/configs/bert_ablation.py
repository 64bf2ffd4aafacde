r"""BERT's pre-training objectives: next-sentence prediction, static masks, and left-to-right.

    python -m launch.ablate --config=experiments/masked_lm/configs/bert_ablation.py --workdir=runs/bert_parts \
        --num_workers=2

20 runs of a minute and a half: half an hour on one core. One run alone:

    python -m launch.train --config=experiments/masked_lm/configs/bert_ablation.py --workdir=runs/one

The arms of Devlin et al. 2019, table 5, and of Liu et al. 2019, table 1, on the documentation inside Python: all read
the same pairs of texts, nine times. All are evaluated on the character in the middle of each held-out pair's second
text, which a decoder predicts from those before it and an encoder from those on both sides. Expect 1.11 nats from both
sides and 1.17 from one, and no visible effect of next-sentence prediction and of static masks: results/bert_parts.md.
"""

from ml_collections import ConfigDict

MODEL = {
    "layers": 2,
    "width": 64,
    "heads": 4,
    "feed_forward": 256,
    "norm_placement": "pre",
    "positions": "rotary",
    "max_length": 64,
    "embedding_norm": False,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "scan_unroll": 2,
}
TASK = {
    "name": "masked_lm",
    "input_format": "fixed_pairs",
    "tokenizer": "characters",
    "context_length": 64,
    "batch_size": 32,
    "eval_middle_token": True,
    "probe_length": 32,
}


def get_config() -> ConfigDict:
    """Build the config without next-sentence prediction: fixed pairs, dynamic masks, nine epochs."""
    return ConfigDict(
        {
            "name": "bert",
            "seed": 1,
            "steps": 2000,
            "maps_every": 1000,
            "checkpoint_every": 0,
            "keep_checkpoints": 1,
            "task": TASK,
            "model": {"family": "encoder", **MODEL},
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 3e-3,
                "schedule": "linear",
                "warmup_steps": 100,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )


def get_ablation(ablation):
    """Build four arms, evaluated by one question that both encoders and decoders can answer."""
    return ablation(
        question="What do BERT's second task, new masks and two directions give?",
        arms={
            "no nsp": {},
            "nsp": {"task.next_sentence": True, "model.head": "pretraining"},
            "static masks": {"task.masking": "static"},
            "left-to-right": {
                "task.objective": "left_to_right",
                "model": {"family": "decoder", **MODEL, "initialization": "bert"},
            },
        },
        reference="no nsp",
        selection_metric="validation/middle_loss",
        reported_metric="test/middle_loss",
        smallest_effect_of_interest=0.1,
        plotted_metrics=("validation/middle_accuracy", "test/middle_accuracy", "validation/accuracy"),
    )
