"""SAGAN: a convolutional generator and discriminator, both with self-attention in their grids (Zhang et al. 2019).

Every kernel of both is divided by its largest singular value (section 3.3).
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.sagan.signature import IMAGE_GENERATION
from experiments.sagan.spectral_norm import SpectralNorm
from transformer.attention.capture import Capture, CapturedAttention, capture_for_site, single_layer_maps
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import Config, PositiveInt, TupleLimits, UserError
from transformer.layers.batch_norm import BatchNorm
from transformer.layers.convolution import Convolution2D, ConvolutionWindow
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.layers.image_grid_attention import GridSelfAttention
from transformer.layers.linear import Linear
from transformer.models.convolutional_classifier import ConvolutionalClassifier, ConvolutionalClassifierConfig
from transformer.models.model import Aux, ForwardPass, Inputs
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TaskInterface

_SLOPE = 0.1  # of the discriminator's rectifiers below 0 (Miyato et al. 2018, table 3)
_SAME_SIZE, _HALF_SIZE = ConvolutionWindow(3), ConvolutionWindow(4, stride=2)
Kernels = Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class SaganConfig(Config, path="config.model"):
    """The configuration of both players and of an optional fixed classifier.

    After the convolution that produces a grid named in `attention_grids`, each player attends within it. The classifier
    is a `convolutional_classifier` with stages of stride 2 under "classifier/"; it is never trained and takes its
    parameters from another run by config.initialize_from.

    Attributes:
        channels: Channels of the whole image, of half of its sides, a quarter and so on: the discriminator goes from
            the first to the last, the generator back.
        attention_grids: The grids with attention, by their number of rows.
        reduction: The factor by which attention reduces the features of queries and keys.
        classifier_channels: Channels of the classifier's stages; empty for no classifier.

    Raises:
        UserError: If a value is out of range.
    """

    channels: Annotated[tuple[PositiveInt, ...], TupleLimits(min_length=2)] = (32, 64, 128)
    attention_grids: Annotated[tuple[int, ...], TupleLimits(distinct=True)] = ()
    reduction: PositiveInt = 8
    classifier_channels: tuple[PositiveInt, ...] = ()

    @property
    def num_halvings(self) -> int:
        """How often the sides of an image are halved."""
        return len(self.channels) - 1

    def classifier_config(self) -> ConvolutionalClassifierConfig:
        """Return the config of the classifier."""
        return ConvolutionalClassifierConfig(
            GridEncoderConfig(self.classifier_channels, (2,) * len(self.classifier_channels))
        )


class Player(Module):
    """The base of both players: layers with spectral norm, by name, and attention in some of their grids."""

    def __init__(self, config: SaganConfig, height: int, normed: tuple[str, ...], *, builder: ParameterBuilder):
        self.grids = {height >> level: channels for level, channels in enumerate(config.channels)}
        self.attention, self.normed_layers = config.attention_grids, normed
        for rows in config.attention_grids:
            block = GridSelfAttention(self.grids[rows], reduction=config.reduction, builder=builder)
            setattr(self, f"attention_{rows}", block)

    def _own_kernels(self) -> dict[str, tuple[Array, int]]:
        """Return every kernel by its name, with the number of its last axes that are outputs."""
        kernels: dict[str, tuple[Array, int]] = {
            name: (getattr(self, name).kernel[...], 1) for name in self.normed_layers
        }
        for rows in self.attention:
            block = getattr(self, f"attention_{rows}")
            for part, outputs in (("query", 2), ("key", 2), ("value", 2), ("output", 1)):
                kernels[f"attention_{rows}_{part}"] = (getattr(block, part).kernel[...], outputs)
        return kernels

    def initial_spectral_states(self, key: Key[Array, ""]) -> dict:
        """Return the initial state of every kernel's spectral norm."""
        kernels = self._own_kernels().items()
        return {
            name: SpectralNorm(kernel.shape, outputs=outputs).initial_state(jax.random.fold_in(key, number))
            for number, (name, (kernel, outputs)) in enumerate(kernels)
        }

    def normalize_kernels(self, state: Mapping[str, Any], *, train: bool) -> tuple[dict[str, Array], dict]:
        """Return every kernel with a largest singular value of about 1, and the next state of the spectral norms."""
        kernels, following = {}, {}
        for name, (kernel, outputs) in self._own_kernels().items():
            norm = SpectralNorm(kernel.shape, outputs=outputs)
            kernels[name], following[name] = norm(kernel, state[name], train=train)
        return kernels, following

    def attend(
        self,
        x: Float[Array, "B Y X C"],
        kernels: Kernels,
        maps: dict[str, CapturedAttention],
        site: str,
        capture: Capture | None,
    ) -> Float[Array, "B Y X C"]:
        """Apply the attention of the grid's size, if there is one; the map is added to `maps`."""
        rows = x.shape[1]
        if rows not in self.attention:
            return x
        block_kernels = {part: kernels[f"attention_{rows}_{part}"] for part in ("query", "key", "value", "output")}
        name = f"{site}/self_{rows}"
        x, captured = getattr(self, f"attention_{rows}")(
            x, kernels=block_kernels, capture=capture_for_site(name, capture)
        )
        maps |= single_layer_maps(name, captured, capture)
        return x

    def gamma_magnitudes(self) -> dict[str, Array]:
        """Return |gamma| of every attention."""
        return {f"gamma_{rows}": jnp.abs(getattr(self, f"attention_{rows}").gamma[0]) for rows in self.attention}


class Generator(Player):
    """A generator: from noise by a linear map to the smallest grid, stages that double its sides, and tanh(conv(...)).

    A stage is relu(attention(norm(conv(nearest-neighbor upsampling)))), with class-independent batch norm.
    """

    def __init__(self, config: SaganConfig, noise: int, shape: tuple[int, int, int], *, builder: ParameterBuilder):
        height, width, colors = shape
        stages = [f"stage_{level}" for level in reversed(range(config.num_halvings))]
        super().__init__(config, height, ("first", *stages, "last"), builder=builder)
        self.levels = config.num_halvings
        last = config.channels[-1]
        self.smallest = (height >> self.levels, width >> self.levels, last)
        size = self.smallest[0] * self.smallest[1] * last
        self.first = Linear((("features", noise),), (("embed", size),), bias=False, builder=builder)
        self.first_norm = BatchNorm(last, builder=builder)
        for level in reversed(range(self.levels)):
            inputs, outputs = config.channels[level + 1], config.channels[level]
            stage = Convolution2D(inputs, ("features", outputs), (_SAME_SIZE, _SAME_SIZE), bias=False, builder=builder)
            setattr(self, f"stage_{level}", stage)
            setattr(self, f"norm_{level}", BatchNorm(outputs, builder=builder))
        self.last = Convolution2D(config.channels[0], ("features", colors), (_SAME_SIZE, _SAME_SIZE), builder=builder)

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Return the initial states of the spectral norms and of the batch norms."""
        names = ("first_norm", *(f"norm_{level}" for level in range(self.levels)))
        return {
            "spectral": self.initial_spectral_states(key),
            "batch": {name: getattr(self, name).initial_state() for name in names},
        }

    def __call__(
        self, noise_BxZ: Float[Array, "B Z"], state: Mapping[str, Any], forward_pass: ForwardPass
    ) -> tuple[Float[Array, "B Y X C"], dict, dict[str, CapturedAttention]]:
        """Return images from -1 to 1, the next state, and maps."""
        kernels, spectral = self.normalize_kernels(state["spectral"], train=forward_pass.train)
        batch = dict(state["batch"])
        maps: dict[str, CapturedAttention] = {}
        x = self.first(noise_BxZ, kernels["first"]).reshape(-1, *self.smallest)
        x, batch["first_norm"] = self.first_norm(x, batch["first_norm"], train=forward_pass.train)
        x = jax.nn.relu(self.attend(x, kernels, maps, "generator", forward_pass.capture))
        for level in reversed(range(self.levels)):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = getattr(self, f"stage_{level}")(x, kernel=kernels[f"stage_{level}"])
            name = f"norm_{level}"
            x, batch[name] = getattr(self, name)(x, batch[name], train=forward_pass.train)
            x = jax.nn.relu(self.attend(x, kernels, maps, "generator", forward_pass.capture))
        image = jnp.tanh(self.last(x, kernel=kernels["last"]))
        return image, {"spectral": spectral, "batch": batch}, maps


class Discriminator(Player):
    """A discriminator: a convolution of the whole image, stages that halve its sides, and w' sum of all positions + b.

    A stage is leaky_relu(attention(conv(x))); the sum over positions is that of Miyato et al. 2018.
    """

    def __init__(self, config: SaganConfig, height: int, colors: int, *, builder: ParameterBuilder):
        stages = [f"stage_{level}" for level in range(config.num_halvings + 1)]
        super().__init__(config, height, (*stages, "last"), builder=builder)
        self.levels, inputs = config.num_halvings, colors
        for level, outputs in enumerate(config.channels):
            window = _HALF_SIZE if level else _SAME_SIZE
            stage = Convolution2D(inputs, ("features", outputs), (window, window), builder=builder)
            setattr(self, f"stage_{level}", stage)
            inputs = outputs
        self.last = Linear((("embed", inputs),), (("features", 1),), bias=True, builder=builder)

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Return the initial states of the spectral norms."""
        return {"spectral": self.initial_spectral_states(key)}

    def __call__(
        self, x: Float[Array, "B Y X C"], state: Mapping[str, Any], forward_pass: ForwardPass
    ) -> tuple[Float[Array, " B"], dict, dict[str, CapturedAttention]]:
        """Return a score of every image, the next state, and maps."""
        kernels, spectral = self.normalize_kernels(state["spectral"], train=forward_pass.train)
        maps: dict[str, CapturedAttention] = {}
        for level in range(self.levels + 1):
            x = getattr(self, f"stage_{level}")(x, kernel=kernels[f"stage_{level}"])
            x = jax.nn.leaky_relu(self.attend(x, kernels, maps, "discriminator", forward_pass.capture), _SLOPE)
        return self.last(jnp.sum(x, axis=(1, 2)), kernels["last"])[:, 0], {"spectral": spectral}, maps


class Sagan(Module):
    """Both players, and the classifier if there is one.

    `forward` returns images for `noise` [B, Z], `score` the scores [B] of `image`, and `classify` the classifier's
    logits [B, C] and features [B, F] of `image`. Each method returns the whole state, with its own player's part
    updated.
    """

    def __init__(self, config: SaganConfig, interface: TaskInterface, builder: ParameterBuilder):
        self.dtype = builder.dtype
        _, height, width, colors = interface.inputs["image"].shape
        noise = interface.inputs["noise"].shape[-1]
        self.generator = Generator(config, noise, (height, width, colors), builder=builder)
        self.discriminator = Discriminator(config, height, colors, builder=builder)
        self.classifier = (
            ConvolutionalClassifier(config.classifier_config(), interface, builder)
            if config.classifier_channels
            else None
        )

    def initial_state(self, key: Key[Array, ""]) -> dict:
        """Return the initial states of both players' norms."""
        generator_key, discriminator_key = jax.random.split(key)
        return {
            "generator": self.generator.initial_state(generator_key),
            "discriminator": self.discriminator.initial_state(discriminator_key),
        }

    def forward(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, "B Y X C"], Aux]:
        """Return the generator's images; the extras have |gamma|."""
        noise = jnp.asarray(inputs["noise"], self.dtype)
        image, moved, maps = self.generator(noise, state["generator"], forward_pass)
        return image, Aux(maps, self.generator.gamma_magnitudes(), {**state, "generator": moved})

    def score(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[Float[Array, " B"], Aux]:
        """Return the discriminator's scores, high for real images; the extras have |gamma|."""
        image = jnp.asarray(inputs["image"], self.dtype)
        score, moved, maps = self.discriminator(image, state["discriminator"], forward_pass)
        return score, Aux(maps, self.discriminator.gamma_magnitudes(), {**state, "discriminator": moved})

    def classify(self, state: dict, inputs: Inputs, forward_pass: ForwardPass) -> tuple[dict[str, Array], Aux]:
        """Return the classifier's logits and features of images of any size.

        Raises:
            ValueError: If the model has no classifier.
        """
        if self.classifier is None:
            raise ValueError("config.model.classifier_channels is empty: this model has no classifier")
        features, _ = self.classifier.features(jnp.asarray(inputs["image"], self.dtype))
        return {"logits": self.classifier.head(features), "features": features}, Aux({}, {}, state)


def attention_sites(config: SaganConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model, one for every attention of each player.

    Raises:
        UserError: If the image's sides cannot be halved so often, or `attention_grids` names a grid that does not
            exist.
    """
    _, height, width, _ = interface.inputs["image"].shape
    stride = 2**config.num_halvings
    if height % stride or width % stride:
        raise UserError(
            f"images of {height} x {width} pixels are not divided by {stride}: config.model.channels="
            f"{config.channels} halves their sides {config.num_halvings} times"
        )
    grids = {height >> level: (width >> level, 2**level) for level in range(len(config.channels))}
    if unknown := [rows for rows in config.attention_grids if rows not in grids]:
        raise UserError(
            f"config.model.attention_grids={config.attention_grids} names grids by their rows: there is none of "
            f"{unknown[0]}, only of {', '.join(map(str, grids))}"
        )
    sites = []
    for player, image in (("generator", "sample"), ("discriminator", "canvas")):
        for rows in config.attention_grids:
            columns, step = grids[rows]
            axis = Axis(f"{image}_{rows}", AxisKind.GRID, shape=(rows, columns), stride=float(step))
            sites.append(Site(f"{player}/self_{rows}", axis, axis, layers=("0",), heads=("0",)))
    return tuple(sites)


FAMILY = ModelFamily(
    SaganConfig,
    Sagan,
    frozenset({IMAGE_GENERATION}),
    sites=attention_sites,
    forward_methods=lambda config, interface: ("forward", "score"),
)
