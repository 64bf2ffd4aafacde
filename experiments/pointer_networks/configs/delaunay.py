r"""A pointer network that finds Delaunay triangulations (Vinyals et al. 2015, section 4.3), of 5 to 10 points."""

from ml_collections import ConfigDict

from experiments.pointer_networks.configs import convex_hull


def get_config() -> ConfigDict:
    """Build the config: the network of convex_hull.py, trained on batches of triangulations."""
    config = convex_hull.get_config()
    config.name = "pointer_delaunay"
    config.task.problem = "delaunay"
    config.task.eval_sizes = (5, 10)
    return config
