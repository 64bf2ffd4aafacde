"""Two players with an objective each; the generator is judged by its target average."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.contracts.defaults import Toy, labeled, task_spec
from tests.contracts.players import SITE, WIDTH
from transformer.tasks.task import Evaluation, EvaluationReport, LossAux, Objective

SHAPE, CENTER = (32, 6, WIDTH), np.array([2.0, -1.0, 0.5, 1.5], np.float32)


class Duel(Toy):
    """Make points like the real ones; noise is prepared for the whole batch, so that cutting it changes nothing."""

    def __init__(self):
        critic = Objective("critic", self.critic_loss, trainable=("critic/*",))
        self.objectives = (critic, Objective("generator", self.generator_loss, trainable=("generator/*",)))
        measured = {"parameters": "target", "batches": [self.training_batches(1)[0]], "finish": self.distance}
        self.evaluations = (Evaluation("distance", "validation", step=self.middle, **measured),)

    def draw(self, random):
        return {"real": (CENTER + 0.3 * random.normal(size=SHAPE)).astype(np.float32)}

    def prepare_batch(self, view, batch, key):
        return {**batch, "noise": jax.random.normal(key, batch["real"].shape)}, view.task_state

    def judge(self, view, points):
        return view.model.apply(view.variables, {"points": points}, method="judge", train=view.train)

    def critic_loss(self, view, batch, denominators, key):
        fake, _ = view.model.apply(view.variables, batch, train=view.train)
        (of_real, aux), (of_fake, _) = self.judge(view, batch["real"]), self.judge(view, fake)
        loss = jnp.sum(jax.nn.relu(1 - of_real) + jax.nn.relu(1 + of_fake)) / denominators["examples"]
        return loss, LossAux(aux.state, view.task_state, {"loss": loss})

    def generator_loss(self, view, batch, denominators, key):
        fake, aux = view.model.apply(view.variables, batch, train=view.train, capture=view.capture)
        loss = -jnp.sum(self.judge(view, fake)[0]) / denominators["examples"]
        return loss, LossAux.from_aux(aux, view.task_state, {"loss": loss})

    def middle(self, view, batch, key):
        points, _ = view.model.apply(view.variables, self.prepare_batch(view, batch, key)[0], train=False)
        return {"middle": jnp.mean(points, axis=(0, 1))}, {}

    def distance(self, sums, rows):
        return EvaluationReport({"distance": float(np.abs(sums["middle"] - CENTER).max())})

    @property
    def probe_batch(self):
        return {"noise": np.random.default_rng(0).normal(size=(4, *SHAPE[1:])).astype(np.float32)}

    def axis_labels(self, sites):
        return labeled({"points": np.arange(1, SHAPE[1] + 1)[None].repeat(4, axis=0)}, SITE)


TASK = task_spec(Duel)
