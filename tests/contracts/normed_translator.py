"""A translator with a batch norm in its decoder: running statistics that training moves and decoding reads."""

import dataclasses

from tests.contracts.bahdanau import Bahdanau, model_of
from transformer.layers.stateful_norm import BatchNorm
from transformer.models.family import Family
from transformer.models.interface import TRANSLATION


@dataclasses.dataclass(frozen=True)
class NormedConfig:
    width: int = 128


class Normed(Bahdanau):
    def __init__(self, config, interface, builder):
        super().__init__(config, interface, builder)
        self.norm = BatchNorm(4 * config.width, builder=builder)

    def initial_state(self, key):
        return {"norm": self.norm.initial_state(key)}

    def read_out(self, state, read, *, train, real=None):
        read, norm = self.norm(read, state["norm"], train=train, mask=real)
        hidden, _ = super().read_out(state, read, train=train)
        return hidden, {"norm": norm}


def build(config, interface, precision):
    return model_of(lambda builder: Normed(config, interface, builder), precision)


FAMILY = Family(NormedConfig, build, frozenset({TRANSLATION}))
