"""Load any trained model, look at its attention, and read and edit its activations.

`transformer.load` reads a run or a Hugging Face model folder.
"""

from typing import TYPE_CHECKING

from transformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from transformer.interpret.activation_cache import ActivationCache
    from transformer.interpret.attribution import (
        DirectLogitAttribution,
        direct_logit_attribution,
        logit_lens,
        logit_lens_heat_map,
        path_patch,
        source_attribution,
    )
    from transformer.interpret.heat_maps import HeatMap, heat_map
    from transformer.interpret.load import LoadedModel
    from transformer.interpret.named_maps import AttentionMaps, LayerMaps, SiteMaps
    from transformer.interpret.show_weights import show_weights
    from transformer.models.edits import Edit, add, fix_pattern, replace, replace_by_mean, scale, zero
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ActivationCache",
    "AttentionMaps",
    "DirectLogitAttribution",
    "Edit",
    "HeatMap",
    "LayerMaps",
    "LoadedModel",
    "SiteMaps",
    "add",
    "direct_logit_attribution",
    "fix_pattern",
    "heat_map",
    "logit_lens",
    "logit_lens_heat_map",
    "path_patch",
    "replace",
    "replace_by_mean",
    "scale",
    "show_weights",
    "source_attribution",
    "zero",
]
