r"""Pre-norm against post-norm at 2+2 and 6+6 layers, with and without warm-up, and in training four times as long.

    python -m launch.ablate --config=experiments/ablations/configs/pre_norm_vs_post_norm.py \
        --workdir=runs/pre_and_post --register
    python -m launch.ablate --config=experiments/ablations/configs/pre_norm_vs_post_norm.py \
        --workdir=runs/pre_and_post --vmap

576 runs (two arms x six tasks x six learning rates x eight seeds), 192 of them of 1,600 steps: about five hours on two
CPU cores. On a GPU `--vmap` trains sixteen runs as one program, and `--num_workers` as many programs at once: 320 runs
took six minutes of an H200. One run alone:

    python -m launch.train --config=experiments/ablations/configs/pre_norm_vs_post_norm.py --workdir=runs/one

Expect pre-norm to be better in 400 steps (a test loss of 1.32 against 1.66 at 2+2 layers), and more so at 6+6 layers,
where post-norm hardly learns at any rate (1.57 against 3.56). Without warm-up both are worse. With four times the steps
and warm-up post-norm catches up at 2+2 layers (1.057 against 1.052) and not at 6+6 layers (1.67 against 1.04):
results/pre_norm_vs_post_norm.md.
"""

from ml_collections import ConfigDict

from experiments.ablations.configs import base

NO_WARMUP = {"optimizer.warmup_steps": 0}
LONG = {"steps": 1600, "eval_every": 400, "optimizer.warmup_steps": 200}
DEEP = {"model.encoder_layers": 6, "model.decoder_layers": 6}


def get_config() -> ConfigDict:
    """Build the base config, with maps at the end of its 400 steps."""
    config = base.get_config()
    config.name = "pre_norm_vs_post_norm"
    config.maps_every = 400
    return config


def get_ablation(ablation):
    """Build the two arms on six tasks, each arm and task with the best of six learning rates."""
    return ablation(
        question="Is pre-norm better than post-norm, deep or shallow, with or without warm-up, and in long training?",
        arms={"post": {"model.norm_placement": "post"}, "pre": {"model.norm_placement": "pre"}},
        reference="post",
        tuning_grid={"optimizer.learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)},
        seeds=base.SEEDS,
        tasks={
            "2+2 layers": {},
            "2+2 layers without warm-up": NO_WARMUP,
            "2+2 layers, 1,600 steps": LONG,
            "6+6 layers": DEEP,
            "6+6 layers without warm-up": DEEP | NO_WARMUP,
            "6+6 layers, 1,600 steps": DEEP | LONG,
        },
        learned_threshold=4.5,
        smallest_effect_of_interest=0.05,
    )
