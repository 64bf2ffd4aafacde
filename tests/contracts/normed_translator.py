"""A translator with a batch norm in its decoder: running statistics that training moves and decoding reads."""

import dataclasses

from tests.contracts.bahdanau import Bahdanau, attention_sites
from transformer.layers.batch_norm import BatchNorm
from transformer.layers.sequence_lengths import real_positions
from transformer.models.model_family import ModelFamily
from transformer.models.task_interface import TRANSLATION


@dataclasses.dataclass(frozen=True)
class NormedConfig:
    width: int = 128


class Normed(Bahdanau):
    def __init__(self, config, interface, builder):
        super().__init__(config, interface, builder)
        self.norm = BatchNorm(4 * config.width, builder=builder)

    def initial_state(self, key):
        return {"norm": self.norm.initial_state(key)}

    def hidden(self, state, inputs, forward_pass):
        steps, aux = self.unroll(state, inputs, forward_pass)
        real = real_positions(steps.lengths, steps.outputs.shape[1])
        outputs, norm = self.norm(steps.outputs, state["norm"], train=forward_pass.train, mask=real)
        return self.output_features(steps.inputs, outputs), aux._replace(state={"norm": norm})

    def step(self, state, cache, tokens, forward_pass):
        steps, cache, aux = self.extend(state, cache, tokens, forward_pass)
        outputs, _ = self.norm(steps.outputs, state["norm"], train=False)
        return self.logits(self.output_features(steps.inputs, outputs)), cache, aux


FAMILY = ModelFamily(NormedConfig, Normed, frozenset({TRANSLATION}), sites=attention_sites)
