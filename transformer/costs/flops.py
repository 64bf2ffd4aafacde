"""Floating-point operations by formula: a multiplication and an addition count as two."""

from collections.abc import Mapping

from transformer.models.encoder_decoder import EncoderDecoderConfig


def encoder_decoder_forward(
    config: EncoderDecoderConfig, *, rows: int, source: int, target: int, vocabulary: int
) -> float:
    """The matrix products of one forward pass over `rows` padded pairs.

    With width E, feed-forward width F: an encoder layer costs 8 E^2 + 4 E F a source position for its projections
    and feed-forward, and 4 S E for its scores and weighted sums; a decoder layer 12 E^2 + 4 E F a target position and
    4 E^2 a source position (the cross keys and values), and 4 T E + 4 S E for its two attentions; the output 2 E V a
    target position. Norms, activations and softmax are left out.
    """
    width, hidden = config.width, config.feed_forward
    encoder = source * (8 * width**2 + 4 * width * hidden + 4 * source * width)
    decoder = target * (12 * width**2 + 4 * width * hidden + 4 * (target + source) * width)
    memory = source * 4 * width**2
    output = target * 2 * width * vocabulary
    return float(rows * (config.encoder_layers * encoder + config.decoder_layers * (decoder + memory) + output))


def encoder_decoder_step(config: EncoderDecoderConfig, batch: Mapping, vocabulary: int) -> float:
    """One training step over a batch, padding included: backward costs twice forward."""
    rows, source = batch["source"].shape
    return 3 * encoder_decoder_forward(
        config, rows=rows, source=source, target=batch["target"].shape[1], vocabulary=vocabulary
    )
