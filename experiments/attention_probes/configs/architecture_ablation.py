r"""Attention, recurrence and convolutions with equal parameters, on corpora that each probe one use of attention.

    python -m launch.ablate --config=experiments/attention_probes/configs/architecture_ablation.py \
        --workdir=runs/corpora --num_workers=2

63 runs of a minute: more than an hour on one core (a third of that with --seeds=1). One run alone:

    python -m launch.train --config=experiments/attention_probes/configs/architecture_ablation.py --workdir=runs/one

Parameters, for vocabularies from 9 (brackets) to 64 tokens (retrieval): a Transformer decoder of two layers 67,648 to
71,168; two LSTMs of width 64 67,209 to 74,304; a ByteNet decoder of eight blocks of width 32, with a receptive field of
61 words, 65,737 to 72,832. All have the same steps and the same learning rate, which was chosen for the Transformer:
the table shows who learns in that time. Each run also reports the accuracy of baselines that ignore the source of the
answer. Expect 0.999 of all answers right with attention, 0.783 with LSTMs and 0.709 with convolutions:
results/one_thing.md.
"""

from ml_collections import ConfigDict

from experiments.attention_probes.configs import single_probe

# All that a model which reads the past alone can answer.
DATASETS = ("coreference", "agreement", "two_offset_copy", "retrieval", "sorting", "brackets", "motifs")
LSTM = {"family": "recurrent_decoder", "width": 64, "embedding_width": 64, "layers": 2}
CONVOLUTION = {"family": "bytenet_decoder", "width": 32, "sets": 2, "max_dilation": 8}


def get_config() -> ConfigDict:
    """Build the base config: the decoder, for 1,000 steps."""
    config = single_probe.get_config()
    config.name = "corpora"
    config.steps = 1000
    config.maps_every = 0
    config.checkpoint_every = 0
    config.keep_checkpoints = 1
    return config


def get_ablation(ablation):
    """Build three model families on seven corpora with three seeds."""
    return ablation(
        question="What does attention answer after 1,000 steps that recurrence and convolutions of its size do not?",
        arms={"attention": {}, "LSTM": {"model": LSTM}, "convolution": {"model": CONVOLUTION}},
        reference="attention",
        selection_metric="validation/accuracy",
        reported_metric="test/accuracy",
        direction="maximize",
        seeds=(1, 2, 3),
        smallest_effect_of_interest=0.05,
        tasks={name: {"task.dataset": name} for name in DATASETS},
        plotted_metrics=("validation/loss",),
    )
