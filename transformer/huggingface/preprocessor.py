"""preprocessor_config.json: how a published model resizes and normalizes its input images."""

import math
from collections.abc import Mapping
from typing import Any

from transformer.config import UserError
from transformer.data.datasets.image_files import ResizeShape

FILE = "preprocessor_config.json"

# By number, as Pillow counts its filters.
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_OF_CLIP: dict[str, Any] = {
    "resample": 3,
    "do_center_crop": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
# What the processors of a kind do where the file does not say it.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"resample": 2, "do_center_crop": False},
    "DeiT": {"resample": 3, "do_center_crop": True},
    "Siglip": {"resample": 3, "do_center_crop": False},
    "CLIP": _OF_CLIP,
    "Bit": _OF_CLIP,
}
# These resize the shorter edge, where their `size` is a number or absent, and keep the proportions.
_PROPORTIONAL = ("CLIP", "Bit")
_KINDS = {
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Bit",
    "siglip_vision_model": "Siglip",
    "siglip": "Siglip",
    "clip_vision_model": "CLIP",
    "clip": "CLIP",
}
_PROCESSORS = ("ImageProcessor", "ImageProcessorFast", "FeatureExtractor")
_READ = {
    "image_processor_type",
    "feature_extractor_type",
    "do_resize",
    "size",
    "resample",
    "do_center_crop",
    "crop_size",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
}
# Images are read in color, and these say how arrays are handed about.
_WITHOUT_EFFECT = {
    "do_convert_rgb",
    "processor_class",
    "_processor_class",
    "data_format",
    "input_data_format",
    "default_to_square",
    "device",
    "return_tensors",
    "disable_grouping",
    "_valid_processor_keys",
}


def convert_preprocessor_config(content: Mapping[str, Any], model_type: str, side: int) -> dict[str, Any]:
    """Convert the keys of the file to values of our task config.

    Args:
        content: The content of preprocessor_config.json.
        model_type: The `model_type` of the model.
        side: The height and width in pixels that the model reads.

    Returns:
        `image_size`, `resize_side`, `resize_shape`, `resample` and `normalization` of the task.

    Raises:
        UserError: If our task cannot express a key; gives the key and its value.
    """
    kind = _processor_kind(content, _KINDS[model_type])
    values = {**_DEFAULTS[kind], **{key: value for key, value in content.items() if value is not None}}
    for key, value in values.items():
        if key not in _READ | _WITHOUT_EFFECT and value not in (False, None):
            raise _unsupported_key_error(key, value, "which is not read")
    for key in ("do_resize", "do_rescale"):
        if values.get(key, True) is not True:
            raise _unsupported_key_error(key, values[key], "where only true is read")
    factor = values.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float | int) or not math.isclose(factor, 1 / 255, rel_tol=1e-6):
        raise _unsupported_key_error("rescale_factor", factor, "where only 1/255 is read")
    filter_number = values["resample"]
    if type(filter_number) is not int or not 0 <= filter_number < len(_FILTERS):
        raise _unsupported_key_error("resample", filter_number, f"where 0 to {len(_FILTERS) - 1} are read")
    cropped = values["do_center_crop"] is True
    if cropped and kind in ("ViT", "Siglip"):
        raise _unsupported_key_error("do_center_crop", True, f"which processors of {kind} never do")
    size = values.get("size")
    shortest = _shortest_edge(size, kind)
    if shortest is not None and not cropped:
        raise _unsupported_key_error("size", size, "which leaves images of all proportions without do_center_crop")
    for key in ("crop_size",) if cropped else ("size",):
        if key in values and _square_side(key, values[key]) != side:
            raise _unsupported_key_error(key, values[key], f"but the model reads {side} x {side} pixels")
    if shortest is not None:
        resized = shortest
    else:
        resized = _square_side("size", size) if cropped and size is not None else side
    if resized < side:
        raise _unsupported_key_error("size", values["size"], f"of which no {side} x {side} pixels can be cut")
    return {
        "image_size": side,
        "resize_side": resized if resized > side else None,
        "resize_shape": "square" if shortest is None else "proportional",
        "resample": _FILTERS[filter_number],
        "normalization": _convert_normalization(values),
    }


def preprocessor_config(model_type: str, side: int, task: Any, channels: int) -> dict[str, Any]:
    """Return the content of preprocessor_config.json for a trained run.

    Args:
        model_type: The `model_type` of the exported model.
        side: The height and width in pixels that the model reads.
        task: The config of the run's task.
        channels: The color channels of an image.

    Returns:
        The keys and values.
    """
    resized, proportional = task.resize_side or side, task.resize_shape is ResizeShape.PROPORTIONAL
    kind = _KINDS[model_type]
    if proportional and kind not in _PROPORTIONAL:
        kind = "CLIP"
    elif task.resize_side and kind in ("ViT", "Siglip"):
        kind = "DeiT"
    mean, deviation = task.normalization.mean, task.normalization.deviation
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": resized} if proportional else {"height": resized, "width": resized},
        "do_center_crop": proportional or task.resize_side is not None,
        "crop_size": {"height": side, "width": side},
        "resample": _FILTERS.index(task.resample.value),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean * channels if len(mean) == 1 else mean),
        "image_std": list(deviation * channels if len(deviation) == 1 else deviation),
    }


def _processor_kind(content: Mapping[str, Any], kind: str) -> str:
    """Return the processor's kind: the one named in the file, or that of the model."""
    class_name = content.get("image_processor_type") or content.get("feature_extractor_type")
    kind_by_class = {f"{processor}{ending}": processor for processor in _DEFAULTS for ending in _PROCESSORS}
    if class_name is None:
        return kind
    if not isinstance(class_name, str) or class_name not in kind_by_class:
        raise _unsupported_key_error("image_processor_type", class_name, f"where {', '.join(kind_by_class)} are read")
    return kind_by_class[class_name]


def _shortest_edge(size: Any, kind: str) -> int | None:
    """Return the length to which the shorter edge is resized; None where both edges get one of their own."""
    by_key = size.get("shortest_edge") if isinstance(size, dict) and len(size) == 1 else None
    if type(by_key) is int:
        return by_key
    return size if kind in _PROPORTIONAL and type(size) is int else None


def _square_side(key: str, value: Any) -> int:
    """Return the side of a square given as one number or as height and width."""
    sides = [value.get("height"), value.get("width")] if isinstance(value, dict) and len(value) == 2 else [value] * 2
    if type(sides[0]) is not int or sides[0] != sides[1]:
        raise _unsupported_key_error(key, value, "where one number, or an equal height and width, is read")
    return sides[0]


def _convert_normalization(values: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    if values.get("do_normalize", True) is not True:
        return {"mean": (0.0,), "deviation": (1.0,)}
    normalization = {}
    for theirs, ours in (("image_mean", "mean"), ("image_std", "deviation")):
        numbers = values.get(theirs, [0.5])
        numbers = numbers if isinstance(numbers, list) else [numbers]
        if not numbers or not all(type(number) in (int, float) for number in numbers):
            raise _unsupported_key_error(theirs, numbers, "where a number, or one for each channel, is read")
        normalization[ours] = tuple(map(float, numbers))
    return normalization


def _unsupported_key_error(key: str, value: Any, why: str) -> UserError:
    return UserError(f"{FILE} has {key}={str(value)[:80]}, {why}")
