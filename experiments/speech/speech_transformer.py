"""Speech-Transformer: an encoder-decoder Transformer over two convolutions of log-mel frames (Dong et al. 2018)."""

import dataclasses
import functools

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.speech.log_mel import SAMPLE_RATE, LogMelConfig, log_mel_features
from experiments.speech.signature import SPEECH_RECOGNITION
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import PositiveInt, UserError
from transformer.layers.convolution import Convolution1D, ConvolutionActivation, ConvolutionWindow
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.initialization import InitializationRule
from transformer.layers.transformer_block import Block, BlockAux, scan_blocks, stack_by_layer
from transformer.layers.transformer_config import check_ring_attention
from transformer.models import encoder_decoder
from transformer.models.encoder_decoder import DECODER, ENCODER, EncoderDecoder, EncoderDecoderConfig
from transformer.models.model import Inputs, split_key
from transformer.models.model_family import TOKEN_EMBEDDING_PATTERNS, ModelFamily
from transformer.models.task_interface import TaskInterface
from transformer.models.transformer_base import capture_for_stack, gates_for_stack, sites_of_stack

_STRIDES = (2, 2)


@dataclasses.dataclass(frozen=True)
class SpeechTransformerConfig(EncoderDecoderConfig):
    """The configuration of an encoder-decoder whose source is audio: log-mel frames, by two convolutions of stride 2.

    Each convolution is a gated linear unit, as in the speech models of fairseq (Wang et al. 2020, fairseq S2T, section
    3.1). The other keys are those of the encoder-decoder; `max_length` counts positions after the convolutions, or of a
    target.

    Attributes:
        audio_frontend: The log-mel frames.
        kernel_size: The positions that each convolution reads.
        channels: Features of the first convolution.

    Raises:
        UserError: If a value is out of range, or values do not fit each other.
    """

    audio_frontend: LogMelConfig = dataclasses.field(default_factory=LogMelConfig)
    kernel_size: PositiveInt = 5
    channels: PositiveInt = 256

    def encoded_length(self, samples: int) -> int:
        """Return the number of encoder positions of so many audio samples."""
        count = self.audio_frontend.num_frames(samples)
        for stride in _STRIDES:
            count = -(-count // stride)
        return count


class SpeechTransformer(EncoderDecoder):
    """An encoder-decoder whose encoder reads two convolutions of audio in place of embedded tokens.

    Inputs: `sound` and its `lengths`, in samples, and `target`, the transcript after a begin token, padded at its end.
    """

    config: SpeechTransformerConfig

    def __init__(self, config: SpeechTransformerConfig, interface: TaskInterface, builder: ParameterBuilder):
        super().__init__(config, interface, builder)
        builder = builder.with_rule(InitializationRule(config.initialization))

        def convolution(inputs: int, name: str, outputs: int, stride: int) -> Convolution1D:
            window = ConvolutionWindow(config.kernel_size, stride)
            return Convolution1D(inputs, (name, outputs), window, activation=ConvolutionActivation.GLU, builder=builder)

        self.first = convolution(config.audio_frontend.num_mel_bins, "features", config.channels, _STRIDES[0])
        self.second = convolution(config.channels, "embed", config.width, _STRIDES[1])

    def encode(
        self, inputs: Inputs, key: Key[Array, ""] | None, capture: Capture | None
    ) -> tuple[Float[Array, "B S E"], Int[Array, " B"], BlockAux]:
        """Return the encoder's output over audio, its lengths, and its layers' auxiliary outputs."""
        hearing_key, encoder_key = split_key(key)
        x_BxSxE, lengths_B = self.convolved_frames(inputs, hearing_key)
        embedding_key, layers_key = split_key(encoder_key)
        x_BxSxE, outputs = scan_blocks(
            self.encoder,
            self.config,
            self.encoder_layers,
            functools.partial(
                Block.__call__,
                mask=Mask(query_lengths=lengths_B, key_lengths=lengths_B),
                relative_positions=self.encoder_relative(),
                capture=capture_for_stack(ENCODER, capture),
            ),
            self.add_positions(x_BxSxE, jnp.arange(x_BxSxE.shape[1])[None], embedding_key),
            key=layers_key,
            gates=gates_for_stack(ENCODER, capture),
        )
        return self.encoder_norm(x_BxSxE), lengths_B, stack_by_layer(outputs)

    def convolved_frames(
        self, inputs: Inputs, key: Key[Array, ""] | None
    ) -> tuple[Float[Array, "B S E"], Int[Array, " B"]]:
        """Return the inputs of the blocks, without positions; with a key, as in training, SpecAugment is applied."""
        sound, lengths_B = jnp.asarray(inputs["sound"]), jnp.asarray(inputs["lengths"])
        x_BxSxE, lengths_B = log_mel_features(sound, lengths_B, self.config.audio_frontend, dtype=self.dtype, key=key)
        for convolution in (self.first, self.second):
            x_BxSxE = convolution(x_BxSxE, lengths_B)
            lengths_B = convolution.window.num_outputs(lengths_B)
        return x_BxSxE, lengths_B


def check_task(config: SpeechTransformerConfig, interface: TaskInterface) -> None:
    """Check that a task's audio and targets have no more positions than the model, which has the head of tokens.

    Raises:
        UserError: If they have, or it has not.
    """
    encoder_decoder.check_task(config, interface)
    samples, steps = (interface.inputs[name].shape[1] for name in ("sound", "target"))
    for name, count in (("sound", config.encoded_length(samples)), ("target", steps)):
        if count > config.max_length:
            raise UserError(
                f"the task's longest {name} has {count} positions, more than "
                f"config.model.max_length={config.max_length}: raise it"
            )


def attention_sites(config: SpeechTransformerConfig, interface: TaskInterface) -> tuple[Site, ...]:
    """Return the attention sites of the model."""
    frames = Axis(
        "frames", AxisKind.FRAMES, stride=config.audio_frontend.hop_length * _STRIDES[0] * _STRIDES[1] / SAMPLE_RATE
    )
    target, target_input = Axis("target"), Axis("target_input")
    return (
        *sites_of_stack(ENCODER, config, config.encoder_layers, frames, frames),
        *sites_of_stack(DECODER, config, config.decoder_layers, target, target_input, causal=True, memory=frames),
    )


FAMILY = ModelFamily(
    SpeechTransformerConfig,
    SpeechTransformer,
    frozenset({SPEECH_RECOGNITION}),
    check_ring_attention_placement=check_ring_attention,
    embedding_patterns=(*TOKEN_EMBEDDING_PATTERNS, "first/*", "second/*"),
    sites=attention_sites,
    check=check_task,
)
