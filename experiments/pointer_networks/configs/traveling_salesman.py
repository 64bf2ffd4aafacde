r"""A pointer network that finds the shortest tours (Vinyals et al. 2015, section 4.4), of 5 to 10 points.

    python -m launch.train --config=experiments/pointer_networks/configs/traveling_salesman.py \
        --workdir=runs/pointer_tour

Takes a quarter of an hour on one core, half an hour on a busy machine. Expect constrained answers 0.01 % longer than
the shortest tours of 5 points, and 0.6 % longer than those of 10: results/pointer_tour.md.
"""

from ml_collections import ConfigDict

from experiments.pointer_networks.configs import convex_hull


def get_config() -> ConfigDict:
    """Build the config: the network of convex_hull.py, trained on 9,000 batches of optimal tours."""
    config = convex_hull.get_config()
    config.name = "pointer_tour"
    config.steps = 9_000
    config.task.problem = "tour"
    config.task.eval_sizes = (5, 10)
    config.model.decoder_input = (
        "point"  # with the encoder's outputs it learned for 3,000 batches no more than to visit all
    )
    return config
