r"""Distances in graphs, by models of one to five layers: each layer carries what a node knows along one edge.

    python -m launch.ablate --config=experiments/graphs/configs/layers.py --workdir=runs/layers --num_workers=2

45 runs (nine arms, five seeds) of a quarter of a minute each on one core. One run alone:

    python -m launch.train --config=experiments/graphs/configs/layers.py --workdir=runs/one
"""

from ml_collections import ConfigDict

from experiments.graphs.configs import distances


def get_config() -> ConfigDict:
    """Build the base config: that of distances.py with a mask by type."""
    config = distances.get_config()
    config.name = "graph_layers"
    config.model.edges = "typed_mask"
    config.maps_every = 0
    return config


def get_ablation(ablation):
    """Build nine arms with five seeds: masks of one to four layers, vectors of one to five."""
    return ablation(
        question="How many layers does it take to count steps in a graph?",
        arms={
            **{f"typed mask, {layers} layers": {"model.layers": layers} for layers in (4, 3, 2, 1)},
            **{
                f"vectors, {layers} layers": {"model.layers": layers, "model.edges": "vectors"}
                for layers in (5, 4, 3, 2, 1)
            },
        },
        reference="typed mask, 4 layers",
        selection_metric="validation/accuracy",
        reported_metric="test/accuracy",
        direction="maximize",
        smallest_effect_of_interest=0.02,
        plotted_metrics=("validation/loss",),
    )
