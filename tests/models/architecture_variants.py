"""Small models of every family in a cover of the arrangements: every value of an option meets nearly all of another."""

import enum
import itertools
from typing import Any, NamedTuple

import jax
import numpy as np

from tests.oracles import transformer as oracle
from transformer.attention.scores import Score
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import Precision
from transformer.layers.initialization import Initialization
from transformer.layers.norm import NormKind
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import Biases, PositionEncoding, QueryKeyNorm, TransformerConfig, WidthScale
from transformer.models import decoder, encoder, encoder_decoder
from transformer.models.model import Model, Variables
from transformer.models.task_interface import InputSpec, TaskInterface

PAD, BEGIN, END, VOCABULARY, LONGEST = 0, 1, 2, 13, 12
FAMILIES = ("decoder", "encoder", "encoder_decoder")
SMALL: dict[str, Any] = {
    "width": 12,
    "heads": 4,
    "feed_forward": 10,
    "max_length": LONGEST,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 5,
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "positions": tuple(PositionEncoding),
    "norm_placement": tuple(NormPlacement),
    "activation": tuple(Activation),
    "biases": tuple(Biases),
    "score": (Score.SCALED_DOT, Score.DOT, Score.COSINE),
    "norm": tuple(NormKind),
    "kv_heads": (None, 2, 1),
    "head_dim": (6, 4),
    "attention_windows": ((), (2,), (0, 3)),
    "tie_embeddings": (True, False),
    "embedding_scale": (WidthScale.NONE, WidthScale.SQRT_WIDTH),
    "logit_scale": (WidthScale.NONE, WidthScale.INVERSE_SQRT_WIDTH),
    "embedding_norm": (False, True),
    "output_bias": (False, True),
    "query_key_norm": tuple(QueryKeyNorm),
    "attention_softcap": (None, 0.7),
    "attention_sinks": (False, True),
    "residual_multiplier": (1.0, 0.6),
    "norm_bias": (None, True, False),
}
# Embedded in the product of queries and keys, so that only products have them.
_WITHIN_PRODUCTS = (PositionEncoding.SHAW, PositionEncoding.TRANSFORMER_XL, PositionEncoding.DISENTANGLED)


class Arrangement(NamedTuple):
    """One row of the cover."""

    family: str
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The values that say most."""
        shown = ("positions", "norm_placement", "activation", "attention_windows")
        values = (plain(self.options[name]) for name in shown)
        return "-".join((self.family, *(str(value).replace(" ", "") for value in values)))


def plain(value: Any) -> Any:
    """An enum's value, those of a tuple of enums, or the value itself."""
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value.value if isinstance(value, enum.Enum) else value


def cover() -> list[Arrangement]:
    """All pairs of family and positions, their other options each chosen for the pairs that are not covered yet."""
    covered: set[Any] = set()
    rows = []
    for index, (family, positions) in enumerate(itertools.product(FAMILIES, OPTIONS["positions"])):
        row: dict[str, Any] = {"family": family, "positions": positions}
        for name, values in OPTIONS.items():
            if name in row:
                continue
            if name == "score" and positions in _WITHIN_PRODUCTS:
                values = (Score.SCALED_DOT,)
            if name == "norm_bias" and row["norm"] is not NormKind.LAYER:
                values = (None,)

            # Ties go around, so that no value is a favorite.
            turned = values[index % len(values) :] + values[: index % len(values)]
            new = [sum((other, row[other], name, value) not in covered for other in row) for value in turned]
            row[name] = turned[new.index(max(new))]
            covered |= {(other, row[other], name, row[name]) for other in row if other != name}
        rows.append(Arrangement(row.pop("family"), row))
    return rows


def build(family: str, precision: Precision | None = None, **changes: Any) -> tuple[Model, TransformerConfig]:
    """A small model of a family."""
    shape = InputSpec((2, LONGEST))
    precision = precision or Precision()
    options = SMALL | {"dropout": 0.0, "attention_dropout": 0.0} | changes
    if options.get("norm_placement") is NormPlacement.DEEPNORM:
        options["initialization"] = Initialization.DEEPNORM
    if family == "encoder_decoder":
        interface = TaskInterface({"source": shape, "target": shape}, {"joint": VOCABULARY}, PAD, BEGIN, END)
        of_pair = encoder_decoder.EncoderDecoderConfig(**({"encoder_layers": 2, "decoder_layers": 2} | options))
        return encoder_decoder.FAMILY.build(of_pair, interface, precision), of_pair
    interface = TaskInterface({"tokens": shape}, {"tokens": VOCABULARY}, PAD, None, None)
    if family == "encoder":
        of_encoder = encoder.EncoderConfig(**({"layers": 2} | options))
        return encoder.FAMILY.build(of_encoder, interface, precision), of_encoder
    of_decoder = decoder.DecoderConfig(**({"layers": 2} | options))
    return decoder.FAMILY.build(of_decoder, interface, precision), of_decoder


def lively(model: Model, seed: int = 0, spread: float = 0.4) -> Variables:
    """Weights none of which stands at a plain start: scales about one, everything else about `spread`.

    NumPy draws them: the model's own initializers would be compiled for every shape.
    """
    normal = np.random.default_rng(seed).normal

    def draw(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        return ((1.0 if "scale" in name else 0.0) + normal(size=leaf.shape) * spread).astype(leaf.dtype)

    return Variables(jax.tree_util.tree_map_with_path(draw, model.functional.shapes()), {})


def kind_of(config: TransformerConfig) -> oracle.Kind:
    """The oracle's arrangement of a config."""
    names = [name for name in oracle.Kind._fields if hasattr(config, name)]
    return oracle.Kind(**{name: plain(getattr(config, name)) for name in names})


def exact(params: Any) -> Any:
    """The parameters in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
