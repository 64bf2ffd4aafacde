"""C-45: relative attention keeps distances under shifts, lengths and orders of nodes."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTH, SHIFT, WIDTH, CLIP = 12, 7, 16, 4
# A decoder copies the symbol of three positions before.
DISTANCE, SYMBOLS, TRAINED, TESTED = 3, 8, 16, 48
STEPS, ROWS, LEARNING_RATE = 200, 32, 1e-2
MOST_ERROR, LEAST_ERROR = 1e-5, 1e-1
LEAST_RELATIVE, MOST_LEARNED = 0.95, 0.6


def measure() -> Figures:
    """Measure what shifts and renumbered nodes change, and how well a copied distance goes on beyond training."""
    import jax
    import jax.numpy as jnp

    from experiments.claims.training import train
    from transformer.attention import (
        AttentionParameters,
        AttentionPosition,
        AttentionSpec,
        Mask,
        Shaw,
        attend,
        sinusoidal_positions,
    )
    from transformer.layers.functional_module import Precision
    from transformer.models.model import Variables
    from transformer.models.registry import build, model_config
    from transformer.models.task_interface import InputSpec, TaskInterface

    keys = jax.random.split(jax.random.key(0), 5)
    x_TxD = jax.random.normal(keys[0], (LENGTH, WIDTH))
    keys_PxD, values_PxD = (jax.random.normal(key, (2 * CLIP + 1, WIDTH)) for key in keys[1:3])
    spec = AttentionSpec(position=AttentionPosition.SHAW)

    def attend_at(start: int, relative: bool) -> jax.Array:
        total = LENGTH + SHIFT
        x_NxD = jnp.zeros((total, WIDTH)).at[start : start + LENGTH].set(x_TxD)
        if not relative:
            x_NxD += sinusoidal_positions(jnp.arange(total), WIDTH)
        x_BxNxHxD = x_NxD[None, :, None]
        position = jnp.arange(total)
        inside = (position >= start) & (position < start + LENGTH)
        params = AttentionParameters(position=Shaw(keys_PxD, values_PxD)) if relative else None
        output, _ = attend(
            x_BxNxHxD,
            x_BxNxHxD,
            jnp.zeros_like(x_NxD).at[start : start + LENGTH].set(x_TxD)[None, :, None],
            spec=spec if relative else AttentionSpec(),
            mask=Mask(allowed=inside[None, None, None, :]),
            params=params,
        )
        return output[0, start : start + LENGTH, 0]

    shift = {
        name: float(jnp.max(jnp.abs(attend_at(0, relative) - attend_at(SHIFT, relative))))
        for name, relative in (("relative", True), ("absolute", False))
    }

    edges_TxT = jax.random.randint(keys[3], (LENGTH, LENGTH), 0, 2 * CLIP + 1)
    order_T = jax.random.permutation(keys[4], LENGTH)

    def attend_graph(x: jax.Array, edges: jax.Array) -> jax.Array:
        x_BxTxHxD = x[None, :, None]
        params = AttentionParameters(position=Shaw(keys_PxD, values_PxD, edge_types_BxQxK=edges[None]))
        return attend(x_BxTxHxD, x_BxTxHxD, x_BxTxHxD, spec=spec, params=params)[0][0, :, 0]

    renumbered = attend_graph(x_TxD[order_T], edges_TxT[order_T][:, order_T])
    plain = attend_graph(x_TxD, edges_TxT)
    without_edges = attend_graph(x_TxD, jnp.zeros_like(edges_TxT))
    graph = {
        "renumbered": float(jnp.max(jnp.abs(renumbered - plain[order_T]))),
        "edges": float(jnp.max(jnp.abs(plain - without_edges))),
    }

    def copied(positions: str) -> list[float]:
        section = {
            "family": "decoder",
            "layers": 1,
            "width": 32,
            "heads": 1,
            "feed_forward": 64,
            "positions": positions,
            "max_length": TESTED,
            "relative_attention_max_distance": 2 * DISTANCE,
        }
        interface = TaskInterface({"tokens": InputSpec((ROWS, TESTED))}, {"tokens": SYMBOLS})
        model = build(model_config(section), interface, Precision())

        def logits(variables: Variables, tokens_BxT: jax.Array) -> jax.Array:
            return model.apply(variables, {"tokens": tokens_BxT}, train=False)[0][:, DISTANCE:]

        def loss(variables: Variables, tokens_BxT: jax.Array) -> jax.Array:
            log_probabilities = jax.nn.log_softmax(logits(variables, tokens_BxT))
            return -jnp.mean(jnp.take_along_axis(log_probabilities, tokens_BxT[:, :-DISTANCE, None], axis=-1))

        def draw(key: jax.Array) -> jax.Array:
            return jax.random.randint(key, (ROWS, TRAINED), 0, SYMBOLS)

        start = model.init(jax.random.key(1))
        variables = train(loss, start, draw, steps=STEPS, learning_rate=LEARNING_RATE, seed=1)
        tokens_BxT = jax.random.randint(jax.random.key(0), (512, TESTED), 0, SYMBOLS)
        right_BxT = jnp.argmax(jax.jit(logits)(variables, tokens_BxT), -1) == tokens_BxT[:, :-DISTANCE]
        return [float(share) for share in right_BxT.mean(0)]

    return {"shift": shift, "graph": graph, "copied": {"relative": copied("shaw"), "learned": copied("learned")}}


def split_accuracy(by_position: list[float]) -> tuple[float, float]:
    """Return the mean accuracy within the length of training and beyond it."""
    num_trained = TRAINED - DISTANCE
    return sum(by_position[:num_trained]) / num_trained, sum(by_position[num_trained:]) / (
        len(by_position) - num_trained
    )


def judge(figures: Figures) -> Finding:
    """Relative attention must be unchanged by shifts and renumbering, and go on beyond training."""
    shift, graph = figures["shift"], figures["graph"]
    relative, learned = (split_accuracy(figures["copied"][name]) for name in ("relative", "learned"))
    reason = (
        f"A shift by {SHIFT} changes outputs by {shift['relative']:.1g} with relative positions and by "
        f"{shift['absolute']:.2g} with absolute ones; renumbering the nodes of a graph changes them by "
        f"{graph['renumbered']:.1g}. A decoder that learned on {TRAINED} positions to copy the symbol of {DISTANCE} "
        f"before is right in {relative[1]:.2f} beyond them with relative positions and in {learned[1]:.2f} with "
        f"learned ones (within: {relative[0]:.2f} and {learned[0]:.2f}; one seed)."
    )
    holds = (
        shift["relative"] <= MOST_ERROR
        and shift["absolute"] >= LEAST_ERROR
        and graph["renumbered"] <= MOST_ERROR
        and graph["edges"] >= LEAST_ERROR
        and relative[1] > LEAST_RELATIVE
        and learned[1] < MOST_LEARNED
    )
    return Finding(Verdict.HOLDS if holds else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show accuracy over the position, and the changes of outputs."""
    positions = list(range(DISTANCE + 1, TESTED + 1))
    chart = LineChart(
        caption=f"Copying the symbol of {DISTANCE} positions before; training has {TRAINED} positions",
        x_label="position",
        y_label="accuracy",
        series={f"{name} positions": Series(positions, values) for name, values in figures["copied"].items()},
    )
    table = Table(
        caption="Largest change of an output",
        columns=("what is done", "change"),
        rows=[
            (f"shift by {SHIFT}, relative positions", f"{figures['shift']['relative']:.2g}"),
            (f"shift by {SHIFT}, absolute positions", f"{figures['shift']['absolute']:.2g}"),
            ("nodes of a graph renumbered", f"{figures['graph']['renumbered']:.2g}"),
            ("all edges made of one type", f"{figures['graph']['edges']:.2g}"),
        ],
    )
    return chart, table


CLAIM = Claim(
    number=45,
    title="Relative attention keeps timing and graphs",
    sentence="Attention that knows relations of pairs and not absolute places keeps timing, is equivariant to "
    "shifts, and can read graphs.",
    lectures=("S1",),
    source="Shaw et al. 2018, sections 3.1 and 3.2; Huang et al. 2018",
    refutation="A shift or another numbering of nodes changes outputs by more than 1e-5 with relative positions; or "
    "beyond the lengths of training a copied distance is right in 0.95 or less, or learned positions in 0.6 or more.",
    evidence=Measurement(measure=measure, seconds=30),
    judge=judge,
    exhibits=exhibits,
)
