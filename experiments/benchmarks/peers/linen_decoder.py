"""Time the training step of a decoder in plain Flax Linen: `python linen_decoder.py SETTINGS` prints JSON.

It imports nothing of this project, and nothing imports it. SETTINGS and the output are those of torch_decoder.py,
without `threads` and `compile`.
"""

import json
import sys
import time

import flax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Block(nn.Module):
    """A pre-norm block: x + Attention(LN(x)), then x + FFN(LN(x))."""

    heads: int
    feed_forward: int
    dtype: str

    @nn.compact
    def __call__(self, x, mask):
        """Return the block's output."""
        normed = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)(normed, mask=mask)
        hidden = nn.gelu(nn.Dense(self.feed_forward, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)))
        return x + nn.Dense(x.shape[-1], dtype=self.dtype)(hidden)


class Decoder(nn.Module):
    """A decoder in the arrangement of GPT-2."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    context: int
    vocabulary: int
    dtype: str

    @nn.compact
    def __call__(self, tokens):
        """Return the logits of every position."""
        table = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)
        positions = nn.Embed(self.context, self.width, dtype=self.dtype)
        x = table(tokens) + positions(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = Block(self.heads, self.feed_forward, self.dtype)(x, mask)
        return table.attend(nn.LayerNorm(dtype=self.dtype)(x)).astype(jnp.float32)


def main(settings):
    """Time the steps one by one and print them."""
    names = ("layers", "width", "heads", "feed_forward", "context", "vocabulary", "dtype")
    model = Decoder(**{name: settings[name] for name in names})
    text_key, key = jax.random.split(jax.random.key(settings["seed"]))
    shape = (settings["rows"], settings["context"] + 1)
    text = jax.random.randint(text_key, shape, 0, settings["vocabulary"])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, 0.9, 0.95, weight_decay=0.1))

    @jax.jit
    def begin(key):
        params = model.init(key, text[:, :-1])
        return params, optimizer.init(params)

    def compute_loss(params):
        logits = model.apply(params, text[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()

    def step(state):
        params, moments = state
        loss, gradients = jax.value_and_grad(compute_loss)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    step = jax.jit(step, donate_argnums=0)
    main_start, state, seconds = time.perf_counter(), begin(key), []
    for _ in range(settings["warmup_steps"] + settings["steps"]):
        start = time.perf_counter()
        state, loss = jax.block_until_ready(step(state))
        seconds.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "seconds": seconds[settings["warmup_steps"] :],
                "first": seconds[0],
                "all": time.perf_counter() - main_start,
                "loss": float(loss),
                "parameters": sum(leaf.size for leaf in jax.tree.leaves(state[0])),
                "versions": {"jax": jax.__version__, "flax": flax.__version__},
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
