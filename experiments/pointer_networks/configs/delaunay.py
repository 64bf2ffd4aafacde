"""A pointer network that finds Delaunay triangulations (Vinyals et al. 2015, section 4.3), of 3 to 10 points.

    python -m launch.train --config=experiments/pointer_networks/configs/delaunay.py --workdir=runs/pointer_delaunay

Takes 35 minutes on one core. Expect 0.78 of the triangulations of 5 points to be right, and 0.14 of those of 10. The
points are read from left to right, and a triangulation of 10 points has up to 15 triangles, three steps each.
`python -m launch.generate --workdir=runs/pointer_delaunay --text='0.1,0.2 0.5,0.9 0.7,0.3 0.4,0.4'` prints the
triangles.
"""

from ml_collections import ConfigDict

from experiments.pointer_networks.configs import convex_hull


def get_config() -> ConfigDict:
    """Build the config: the network of convex_hull.py, trained on 8,000 batches of 64."""
    config = convex_hull.get_config()
    config.name = "pointer_delaunay"
    config.steps = 8_000
    config.eval_every = config.checkpoint_every = 2_000
    config.task.problem = "delaunay"
    config.task.eval_sizes = (5, 10)
    config.task.batch_size = 64
    config.task.min_points = 3
    return config
