"""A residual convolutional network for images, with optional self-attention after its stages."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.capture import Capture, CapturedAttention, capture_for_site, single_layer_maps
from transformer.attention.inverted_dropout import dropout
from transformer.attention.sites import Site
from transformer.config import Config, PositiveInt, Rate, UserError
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.grid_encoder import GridEncoderConfig, Stage
from transformer.layers.image_grid_attention import GridSelfAttention
from transformer.layers.linear import Linear
from transformer.layers.norm import LayerNorm
from transformer.models.model import Aux, ForwardPass, Inputs, StatelessModule
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import IMAGE_CLASSIFICATION, TaskInterface


@dataclasses.dataclass(frozen=True)
class ConvolutionalClassifierConfig(Config, path="config.model"):
    """Stages of convolutions, the mean of the last grid, and a linear map to the classes.

    Attributes:
        encoder: The convolutions.
        attention_stages: Stages, counted from 0, that are followed by a self-attention block.
        attention_reduction: Queries, keys and values have 1 / `attention_reduction` of the features (Zhang et al.
            2019).
        dropout: Dropout rate on the pooled features.

    Raises:
        UserError: If a stage does not exist or is named twice, or if a value is out of range.
    """

    encoder: GridEncoderConfig = dataclasses.field(default_factory=GridEncoderConfig)
    attention_stages: tuple[int, ...] = ()
    attention_reduction: PositiveInt = 8
    dropout: Rate = 0.0

    def _check(self) -> None:
        count = len(self.encoder.channels)
        if len(set(self.attention_stages)) < len(self.attention_stages) or any(
            not 0 <= at < count for at in self.attention_stages
        ):
            raise UserError(
                f"config.model.attention_stages={self.attention_stages} must be different stages, from 0 to {count - 1}"
            )


class ConvolutionalClassifier(StatelessModule):
    """Convolutional stages, norm and mean of the last grid, and the logits W m + b.

    inputs: `image` [B, height, width, channels]. Outputs: logits [B, C].
    """

    def __init__(self, config: ConvolutionalClassifierConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.config, self.dtype, encoder = config, builder.dtype, config.encoder
        inputs = interface.inputs["image"].shape[-1]
        for number, (outputs, stride) in enumerate(zip(encoder.channels, encoder.strides, strict=True)):
            setattr(self, f"stage_{number}", Stage(inputs, outputs, stride, encoder.blocks_per_stage, builder=builder))
            if number in config.attention_stages:
                block = GridSelfAttention(outputs, reduction=config.attention_reduction, builder=builder)
                setattr(self, f"attention_{number}", block)
            inputs = outputs
        self.norm = LayerNorm(encoder.width, builder=builder)
        classes = (("classes", interface.vocabularies["classes"]),)
        self.head = Linear((("embed", encoder.width),), classes, bias=True, builder=builder)

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B C"], Aux]:
        """Return the logits of the classes."""
        mean_BxF, maps = self.features(jnp.asarray(inputs["image"], self.dtype), forward_pass.capture)
        logits_BxC = self.head.logits(dropout(mean_BxF, self.config.dropout, forward_pass.training_key))
        return logits_BxC, Aux(maps, {}, state)

    def features(
        self, x: Float[Array, "B Y X C"], capture: Capture | None = None
    ) -> tuple[Float[Array, "B F"], dict[str, CapturedAttention]]:
        """Compute the pooled features from which the logits are computed.

        Args:
            x: Images.
            capture: Which maps to capture; None captures nothing.

        Returns:
            The mean of the last grid, and the captured maps by site.
        """
        maps: dict[str, CapturedAttention] = {}
        for number in range(len(self.config.encoder.channels)):
            x = getattr(self, f"stage_{number}")(x)
            if number in self.config.attention_stages:
                name = site_name(number)
                x, captured = getattr(self, f"attention_{number}")(x, capture=capture_for_site(name, capture))
                maps |= single_layer_maps(name, captured, capture)
        return jnp.mean(jax.nn.relu(self.norm(x)), axis=(1, 2)), maps


def site_name(stage: int) -> str:
    """Return the name of the attention site after a stage."""
    return f"stage_{stage}/self"


def attention_sites(config: ConvolutionalClassifierConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model, over grids of the task's images.

    Raises:
        UserError: If the strides before an attention do not divide the images.
    """
    _, height, width, _ = interface.inputs["image"].shape
    sites = []
    for number in sorted(config.attention_stages):
        encoder, until = config.encoder, number + 1
        part = dataclasses.replace(encoder, channels=encoder.channels[:until], strides=encoder.strides[:until])
        grid = part.axis(f"grid_{number}", height, width)
        sites.append(Site(site_name(number), grid, grid, layers=("0",), heads=("0",)))
    return tuple(sites)


FAMILY = ModelFamily(
    ConvolutionalClassifierConfig, ConvolutionalClassifier, frozenset({IMAGE_CLASSIFICATION}), sites=attention_sites
)
