"""GPU nodes: how a topology of GPUs is divided into nodes."""

import re
from typing import NamedTuple

from launch.command import Flag
from transformer.config import UserError

GPUS_PER_NODE = Flag("gpus_per_node", "the number of GPUs per node", value_type=int, default=8)


class NodeAllocation(NamedTuple):
    """The numbers of nodes and of GPUs on each node."""

    num_nodes: int
    gpus_per_node: int

    @property
    def num_gpus(self) -> int:
        """The number of all GPUs."""
        return self.num_nodes * self.gpus_per_node


def parse_gpu_topology(flag: str | None, config_topology: str, gpus_per_node: int) -> NodeAllocation:
    """Parse a topology `gpu:N` into nodes and GPUs on each.

    Args:
        flag: The value of --topology.
        config_topology: The topology of the config, used if `flag` is None.
        gpus_per_node: The number of GPUs of a node.

    Returns:
        The allocation.

    Raises:
        UserError: If there is no topology, it is not of GPUs, or it does not fill whole nodes.
    """
    text, origin = (flag, "--topology") if flag else (config_topology, "config.topology")
    match = re.fullmatch(r"gpu:([1-9]\d{0,5})", text or "", flags=re.ASCII)
    if not match:
        problem = f"{origin}={text} is not a number of GPUs" if text else "no topology"
        raise UserError(f"{problem}: pass the total number of GPUs, such as --topology=gpu:16")
    if gpus_per_node < 1:
        raise UserError(f"--gpus_per_node={gpus_per_node} must be at least 1")
    gpus = int(match[1])
    nodes = max(1, gpus // gpus_per_node)
    if gpus > gpus_per_node and gpus % gpus_per_node:
        raise UserError(
            f"{origin}={text} does not fill whole nodes of --gpus_per_node={gpus_per_node}: "
            f"use gpu:{nodes * gpus_per_node} or gpu:{(nodes + 1) * gpus_per_node}"
        )
    return NodeAllocation(nodes, gpus // nodes)
