"""The training step of nanodo's decoder, to be compiled for a GPU that need not be there.

https://github.com/google-deepmind/nanodo: its model, its loss and its optimizer, in microbatches whose gradients are
summed. It imports nothing of this project. `lower_step` is called by
`experiments.benchmarks.programs.step_compilation`.
"""

import jax
import jax.numpy as jnp
import optax
from nanodo import model_factory, optimizer
from nanodo.configs import default


def lower_step(settings, devices):
    """Lower the step of a batch in microbatches, whose gradients are summed in float32."""
    config = default.get_config()
    config.log_internal_metrics = False
    config.model.update(
        {
            "D": settings["width"],
            "H": settings["heads"],
            "L": settings["context"],
            "N": settings["layers"],
            "F": settings["feed_forward"],
            "fsdp_enabled": False,
            "remat": settings["remat"],
        }
    )
    config.opt.clip_by_global_norm = 1.0
    config.opt.b2 = 0.95
    model, get_loss_fn = model_factory.get_model_and_loss(config, settings["vocabulary"])
    # nanodo sums gradients over calls of its step, in the state of optax.MultiSteps; here one program sums them.
    update = optimizer.get_optimizer(config.opt).inner_opt

    def step(state, tokens):
        params, moments = state

        def add(total, part):
            gradients, _ = jax.grad(get_loss_fn(part, model.apply, config), has_aux=True)(params)
            return jax.tree.map(jnp.add, total, gradients), None

        parts = tokens.reshape(settings["num_microbatches"], -1, tokens.shape[1])
        gradients, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        gradients = jax.tree.map(lambda leaf: leaf / settings["num_microbatches"], gradients)
        updates, moments = update.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments

    sharding = jax.sharding.SingleDeviceSharding(*devices)
    tokens = jax.ShapeDtypeStruct((settings["rows"], settings["context"]), jnp.int32, sharding=sharding)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    state = (params, jax.eval_shape(update.init, params))
    state = jax.tree.map(lambda leaf: leaf.update(sharding=sharding), state)
    return jax.jit(step, donate_argnums=0).lower(state, tokens)
