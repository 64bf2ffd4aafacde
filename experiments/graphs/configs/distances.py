r"""Distances in graphs with typed edges: what attention knows of the edges, and how many layers it has.

    python -m launch.train --config=experiments/graphs/configs/distances.py --workdir=runs/graph
    python -m launch.train --config=experiments/graphs/configs/distances.py --workdir=runs/bias \
        --config.model.edges=bias
    python -m launch.ablate --config=experiments/graphs/configs/distances.py --workdir=runs/edges --num_workers=2

A run takes half a minute on one core. The ablation has 25 runs, five encodings of the edges with five seeds each.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: graphs of 12 nodes, distances from 1 to 5, four layers of width 32."""
    return ConfigDict(
        {
            "name": "graph_distances",
            "seed": 1,
            "steps": 600,
            "eval_every": 200,
            "maps_every": 200,
            "task": {"name": "experiments.graphs.task"},
            "model": {"family": "experiments.graphs.model"},
            "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 50, "clip_norm": 1.0},
            "topology": "cpu:1",
        }
    )


def get_ablation(ablation):
    """Build five arms with five seeds."""
    return ablation(
        question="What must attention know of the edges to count steps in a graph?",
        arms={
            "vectors": {},
            "bias": {"model.edges": "bias"},
            "typed mask": {"model.edges": "typed_mask"},
            "mask": {"model.edges": "mask"},
            "no edges": {"model.edges": "none"},
        },
        reference="vectors",
        selection_metric="validation/accuracy",
        reported_metric="test/accuracy",
        direction="maximize",
        smallest_effect_of_interest=0.02,
        plotted_metrics=("validation/loss",),
    )
