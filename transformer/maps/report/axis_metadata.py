"""The page's data of axes: what their positions are, and the images and spectrograms they were cut from."""

import base64
from typing import Any

import numpy as np

from transformer.attention.sites import Axis
from transformer.maps.report.payload import DataBlock, compress_to_base64, downsample_image, log_magnitudes_to_bytes
from transformer.maps.store import MapStore

IMAGE_SIDE = 320  # pixels


SPECTROGRAM_TIMES = 2000


def axis_metadata(store: MapStore) -> dict[str, dict[str, Any]]:
    """Return the kind and shape of every axis, and the sizes of the images or spectrograms it was cut from."""
    axes: dict[str, dict[str, Any]] = {}
    for axis in (axis for site in store.sites for axis in (site.query, site.key)):
        image, spectrogram = (table.get(axis.name) for table in (store.labels.images, store.labels.spectrograms))
        axes[axis.name] = {
            "kind": axis.kind.value,
            "shape": axis.shape,
            "stride": axis.stride,
            "offset": axis.offset,
            "numLeadingPositions": axis.num_leading_positions,
            "image": None if image is None else [*image.shape[-3:-1], *_downsample_images(image[0])[0].shape[:2]],
            "sound": axis.name in store.labels.sounds,
            "spectrogram": None
            if spectrogram is None
            else [*_downsample_spectrogram(spectrogram[0]).shape, _max_frames(store, axis)],
        }
    return axes


def _max_frames(store: MapStore, axis: Axis) -> int:
    """Return the frames of the longest example, which the whole width of the spectrogram shows."""
    return max(len(tokens) for tokens in store.labels.tokens[axis.name]) - axis.num_leading_positions


def _downsample_images(images: np.ndarray) -> np.ndarray:
    """Return an example's one image, or the image of each query, in page size [images, rows, columns, 3]."""
    return np.stack([downsample_image(image, IMAGE_SIDE) for image in images.reshape(-1, *images.shape[-3:])])


def _downsample_spectrogram(spectrogram: np.ndarray) -> np.ndarray:
    """Take the loudest of every few frames, so that no more than SPECTROGRAM_TIMES are left."""
    block = -(-spectrogram.shape[1] // SPECTROGRAM_TIMES)
    return np.maximum.reduceat(spectrogram, np.arange(0, spectrogram.shape[1], block), axis=1)


def axis_media_blocks(store: MapStore) -> list[DataBlock]:
    """Return images, spectrograms and sounds as page blocks, one an example; images of its queries are one strip."""
    names = list(axis_metadata(store))
    images = [
        DataBlock(f"image-{names.index(name)}-{example}", compress_to_base64(_downsample_images(image).tobytes()))
        for name, examples in store.labels.images.items()
        if name in names
        for example, image in enumerate(examples)
    ]
    spectrograms = [
        DataBlock(
            f"spectrogram-{names.index(name)}-{example}",
            compress_to_base64(log_magnitudes_to_bytes(_downsample_spectrogram(spectrogram)).tobytes()),
        )
        for name, examples in store.labels.spectrograms.items()
        if name in names
        for example, spectrogram in enumerate(examples)
    ]
    sounds = [
        DataBlock(f"sound-{names.index(name)}-{example}", base64.b64encode(file).decode("ascii"))
        for name, files in store.labels.sounds.items()
        if name in names
        for example, file in enumerate(files)
    ]
    return images + spectrograms + sounds
