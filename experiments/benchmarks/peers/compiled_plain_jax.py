"""The training step of a GPT-2 in forty lines of plain JAX, to be compiled for a GPU that need not be there.

It imports nothing of this project. `lower_step` is called by `experiments.benchmarks.programs.step_compilation`.
"""

import jax
import jax.numpy as jnp
import optax


def norm(x, scale, bias):
    """Return a layer norm in float32."""
    x = jax.nn.standardize(x.astype(jnp.float32), epsilon=1e-5)
    return (x * scale + bias).astype(jnp.bfloat16)


def block(x, p):
    """Return x + Attention(LN(x)), then x + FFN(LN(x))."""
    q, k, v = jnp.moveaxis(jnp.einsum("ble,ecnd->blcnd", norm(x, *p["norm1"]), p["qkv"]) + p["qkv_bias"], 2, 0)
    read = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    x = x + jnp.einsum("blnd,nde->ble", read, p["out"]) + p["out_bias"]
    hidden = jax.nn.gelu(norm(x, *p["norm2"]) @ p["up"] + p["up_bias"])
    return x + hidden @ p["down"] + p["down_bias"]


def compute_loss(params, tokens, unroll):
    """Return the mean loss of next tokens."""
    p = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    x = p["table"][tokens[:, :-1]] + p["positions"]
    x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), x, p["layers"], unroll=unroll)
    logits = (norm(x, *p["norm"]) @ p["table"].T).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def lower_step(settings, devices):
    """Lower the step of a batch in microbatches, whose gradients are summed in float32."""
    width, hidden, heads = settings["width"], settings["feed_forward"], settings["heads"]
    layer = {"qkv": (width, 3, heads, width // heads), "qkv_bias": (3, heads, width // heads)}
    layer |= {"out": (heads, width // heads, width), "out_bias": (width,), "norm1": (2, width), "norm2": (2, width)}
    layer |= {"up": (width, hidden), "up_bias": (hidden,), "down": (hidden, width), "down_bias": (width,)}
    shapes = {"table": (settings["vocabulary"], width), "positions": (settings["context"], width), "norm": (2, width)}
    shapes["layers"] = {name: (settings["layers"], *shape) for name, shape in layer.items()}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(6e-4, 0.9, 0.95, weight_decay=0.1))

    def step(state, tokens):
        params, moments = state

        def add(total, part):
            return jax.tree.map(jnp.add, total, jax.grad(compute_loss)(params, part, settings["unroll"])), None

        parts = tokens.reshape(settings["num_microbatches"], -1, tokens.shape[1])
        gradients, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        gradients = jax.tree.map(lambda leaf: leaf / settings["num_microbatches"], gradients)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments

    sharding = jax.sharding.SingleDeviceSharding(*devices)
    is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
    params = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, is_leaf=is_shape)
    state = (params, jax.eval_shape(optimizer.init, params))
    state = jax.tree.map(lambda leaf: leaf.update(sharding=sharding), state)
    tokens = jax.ShapeDtypeStruct((settings["rows"], settings["context"] + 1), jnp.int32, sharding=sharding)
    return jax.jit(step, donate_argnums=0).lower(state, tokens)
