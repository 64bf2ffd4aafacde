"""Experiments: each file's `get_config` is one run; an ablation is a difference from its base."""


def data_parallel() -> dict[str, int | float | str]:
    """The section `sharding` of a run whose batches are divided over all devices, and nothing else."""
    return {
        "data": -1,
        "fsdp": 1,
        "expert": 1,
        "tensor": 1,
        "sequence": 1,
        "rules": "dp",
        "attention": "ring",
        "largest_whole": 16.0,
    }
