"""Nadaraya-Watson kernel regression: attention of queries over points, with kernels in place of projections."""

import dataclasses
import enum
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.kernel_regression.data import KERNEL_REGRESSION
from transformer.attention import (
    AttentionSpec,
    Axis,
    AxisKind,
    Mask,
    Normalizer,
    Score,
    Site,
    attend,
    capture_for_site,
    single_layer_maps,
)
from transformer.config import Config, PositiveFloat, UserError
from transformer.layers.functional_module import ParameterBuilder
from transformer.logical_axes import Placement, SequenceParallel
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface

POOLING = "pooling"


class Kernel(enum.Enum):
    """How the weight of a point depends on u, its distance from the query divided by the bandwidth.

    Attributes:
        UNIFORM: All points have the same weight, so that the prediction is the mean of all values (average pooling).
        BOXCAR: All points with u <= 1 have the same weight, others none.
        GAUSSIAN: exp(-u^2 / 2): softmax over the negative squared distance.
        EPANECHNIKOV: max(c - u^2 / 2, 0): sparsemax. c makes the weights of each query sum to one, so that the kernel
            is wider where points are sparse.
        BIWEIGHT: max(c - u^2 / 4, 0)^2: 1.5-entmax, with its c of each query.
    """

    UNIFORM = "uniform"
    BOXCAR = "boxcar"
    GAUSSIAN = "gaussian"
    EPANECHNIKOV = "epanechnikov"
    BIWEIGHT = "biweight"


NORMALIZERS = {
    Kernel.GAUSSIAN: Normalizer.SOFTMAX,
    Kernel.EPANECHNIKOV: Normalizer.SPARSEMAX,
    Kernel.BIWEIGHT: Normalizer.ENTMAX15,
}


class LearnedBandwidth(enum.Enum):
    """Which bandwidths training changes.

    Attributes:
        NONE: None.
        SHARED: One, of all features.
        PER_FEATURE: One for each feature.
    """

    NONE = "none"
    SHARED = "shared"
    PER_FEATURE = "per_feature"


@dataclasses.dataclass(frozen=True)
class KernelRegressionConfig(Config, path="config.model"):
    """The configuration of kernel regression.

    Attributes:
        kernel: The kernel.
        bandwidth: The bandwidth, where training starts if it is learned.
        learned_bandwidth: Which bandwidths are learned.

    Raises:
        UserError: If a value is out of range, or if the kernel's bandwidth cannot be learned.
    """

    kernel: Kernel = Kernel.GAUSSIAN
    bandwidth: PositiveFloat = 1.0
    learned_bandwidth: LearnedBandwidth = LearnedBandwidth.SHARED

    def _check(self) -> None:
        if self.learned_bandwidth is not LearnedBandwidth.NONE and self.kernel not in NORMALIZERS:
            kernels = " or ".join(kernel.value for kernel in NORMALIZERS)
            raise UserError(
                f"config.model.kernel={self.kernel.value} has no gradient with respect to its bandwidth, which "
                f"config.model.learned_bandwidth={self.learned_bandwidth.value} needs: say learned_bandwidth=none, or "
                f"kernel={kernels}"
            )


class KernelRegression(StatelessModule):
    """y(x) = sum_i w_i y_i, where w_i is the attention weight of the point x_i (Nadaraya 1964; Watson 1964).

    Inputs and output: `KERNEL_REGRESSION`. `Aux.extras["bandwidths"]` [D] are the bandwidths h_d. The only parameter is
    their logarithm.
    """

    def __init__(self, config: KernelRegressionConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.kernel, self.learned, self.dtype = config.kernel, config.learned_bandwidth, builder.dtype
        self.features = interface.inputs["points"].shape[-1]
        count = self.features if config.learned_bandwidth is LearnedBandwidth.PER_FEATURE else 1
        start = jax.nn.initializers.constant(math.log(config.bandwidth))
        self.log_bandwidth = builder.parameter(start, (count,), ("features",))

    @jax.named_scope("attention")
    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B Q"], Aux]:
        """Return the prediction at every query; 0 where a query sees no point."""
        log_bandwidth = jnp.asarray(self.log_bandwidth[...], self.dtype)
        if self.learned is LearnedBandwidth.NONE:
            log_bandwidth = jax.lax.stop_gradient(log_bandwidth)
        h_D = jnp.broadcast_to(jnp.exp(log_bandwidth), (self.features,))
        # One head, whose features are those of a point in units of their bandwidths.
        q_BxQx1xD, k_BxNx1xD = (
            (jnp.asarray(inputs[name], self.dtype) / h_D[None, None])[:, :, None] for name in ("queries", "points")
        )
        v_BxNx1x1 = jnp.asarray(inputs["values"], self.dtype)[:, :, None, None]
        index_N = jnp.arange(k_BxNx1xD.shape[1])
        allowed_BxQxN = jnp.asarray(inputs["excluded"])[..., None] != index_N[None, None]
        if self.kernel in NORMALIZERS:
            spec = AttentionSpec(Score.SQUARED_DISTANCE, NORMALIZERS[self.kernel])
        else:
            # A product with zeros scores every point alike.
            spec = AttentionSpec(Score.DOT)
            if self.kernel is Kernel.BOXCAR:
                squares_BxQxN = jnp.sum(jnp.square(q_BxQx1xD - k_BxNx1xD[:, None, :, 0]), axis=-1)
                allowed_BxQxN &= squares_BxQxN <= 1
            q_BxQx1xD = jnp.zeros_like(q_BxQx1xD)
        output_BxQx1x1, attended = attend(
            q_BxQx1xD,
            k_BxNx1xD,
            v_BxNx1x1,
            spec=spec,
            mask=Mask(allowed=allowed_BxQxN[:, None]),
            capture=capture_for_site(POOLING, forward_pass.capture),
        )
        maps = single_layer_maps(POOLING, attended.captured, forward_pass.capture)
        return output_BxQx1x1[:, :, 0, 0], Aux(maps, {"bandwidths": h_D}, state)


def attention_sites(config: KernelRegressionConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention site of the model, from queries to points."""
    queries, points = (Axis(name, AxisKind.POINTS) for name in ("queries", "points"))
    return (Site(POOLING, queries, points, layers=("0",), heads=("0",)),)


def check_ring_attention_placement(config: KernelRegressionConfig, placement: Placement) -> None:
    """Check that no ring is asked for, which has no squared distances.

    Raises:
        UserError: If the placement asks for one; says what to change.
    """
    if placement.num_shards("length") > 1 and placement.sequence_attention is SequenceParallel.RING:
        raise UserError(
            "config.sharding.sequence_attention=ring runs in blocks, which do not take the distances of kernel "
            "regression: say sequence_attention=gather, or sequence=1"
        )


FAMILY = ModelFamily(
    KernelRegressionConfig,
    KernelRegression,
    frozenset({KERNEL_REGRESSION}),
    check_ring_attention_placement=check_ring_attention_placement,
    sites=attention_sites,
)
