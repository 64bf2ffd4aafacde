"""C-29: attention has a constant path to everything and an unbounded memory."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import LineChart, Series, Table

LENGTHS = (64, 256, 1024, 4096)
CACHE_WIDTH, CACHE_LAYERS = 64, 2
# A text has so many random symbols and then the name of a place: which symbol is there?
PLACES, SYMBOLS, WIDTH = (4, 16, 32), 8, 64
STEPS, ROWS, TEST_ROWS, LEARNING_RATE = 600, 64, 1024, 3e-3


def measure() -> Figures:
    """Count the bytes that generation keeps, and train both models to recall one of a number of symbols."""
    import jax
    import jax.numpy as jnp

    from experiments.claims.training import train
    from transformer.layers.functional_module import Precision
    from transformer.models.model import Variables
    from transformer.models.registry import build, model_config
    from transformer.models.task_interface import InputSpec, TaskInterface

    def cache_bytes(section: dict, length: int) -> int:
        model = build(model_config(section), TaskInterface({}, {"tokens": 8}), Precision())
        inputs = {"tokens": jax.ShapeDtypeStruct((1, 1), jnp.int32), "lengths": jax.ShapeDtypeStruct((1,), jnp.int32)}
        cache, _ = jax.eval_shape(
            lambda variables, inputs: model.init_cache(variables, inputs, num_beams=1, length=length),
            model.shapes(),
            inputs,
        )
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache.rows) if leaf.dtype == jnp.float32)

    def accuracy(section: dict, places: int) -> float:
        interface = TaskInterface({"tokens": InputSpec((ROWS, places + 1))}, {"tokens": SYMBOLS + places})
        model = build(model_config(section), interface, Precision())

        def draw(key: jax.Array, rows: int = ROWS) -> tuple[jax.Array, jax.Array]:
            symbol_key, place_key = jax.random.split(key)
            symbols_BxT = jax.random.randint(symbol_key, (rows, places), 0, SYMBOLS)
            place_B = jax.random.randint(place_key, (rows,), 0, places)
            answer_B = jnp.take_along_axis(symbols_BxT, place_B[:, None], axis=1)[:, 0]
            return jnp.concatenate([symbols_BxT, SYMBOLS + place_B[:, None]], axis=1), answer_B

        def logits(variables: Variables, tokens_BxT: jax.Array) -> jax.Array:
            return model.apply(variables, {"tokens": tokens_BxT}, train=False)[0][:, -1, :SYMBOLS]

        def loss(variables: Variables, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            log_probabilities_BxV = jax.nn.log_softmax(logits(variables, batch[0]))
            return -jnp.mean(jnp.take_along_axis(log_probabilities_BxV, batch[1][:, None], axis=1))

        start = model.init(jax.random.key(1))
        variables = train(loss, start, draw, steps=STEPS, learning_rate=LEARNING_RATE, seed=1)
        tokens_BxT, answer_B = draw(jax.random.key(0), TEST_ROWS)
        return float(jnp.mean(jnp.argmax(jax.jit(logits)(variables, tokens_BxT), -1) == answer_B))

    def decoder(layers: int, width: int, length: int) -> dict:
        sizes = {"layers": layers, "width": width, "heads": 1, "feed_forward": 2 * width, "max_length": length}
        return {"family": "decoder", **sizes, "tie_embeddings": False, "initialization": "xavier"}

    def lstm(layers: int, width: int) -> dict:
        return {"family": "recurrent_decoder", "layers": layers, "width": width, "embedding_width": width}

    return {
        "bytes": {
            "attention": [cache_bytes(decoder(CACHE_LAYERS, CACHE_WIDTH, 2 * max(LENGTHS)), n) for n in LENGTHS],
            "LSTM": [cache_bytes(lstm(CACHE_LAYERS, CACHE_WIDTH), n) for n in LENGTHS],
        },
        "steps": STEPS,
        "recall": {
            "attention": [accuracy(decoder(1, WIDTH, 64), places) for places in PLACES],
            "LSTM": [accuracy(lstm(1, WIDTH), places) for places in PLACES],
        },
    }


def judge(figures: Figures) -> Finding:
    """Recall must stay where an LSTM's falls; memory that grows with the length is a condition."""
    size, recall = figures["bytes"], figures["recall"]
    growth = size["attention"][-1] / size["attention"][0]
    reason = (
        f"From {PLACES[0]} to {PLACES[-1]} symbols, one layer of attention recalls the symbol of a place in "
        f"{recall['attention'][0]:.2f} and {recall['attention'][-1]:.2f} of the cases, an LSTM in "
        f"{recall['LSTM'][0]:.2f} and {recall['LSTM'][-1]:.2f} ({figures['steps']} steps at one learning rate, one "
        f"seed). The cache grows from {size['attention'][0]:,} bytes at {LENGTHS[0]} positions to "
        f"{size['attention'][-1]:,} at {LENGTHS[-1]:,}; an LSTM keeps {size['LSTM'][0]:,}."
    )
    flat = recall["attention"][-1] > 0.95 and recall["LSTM"][-1] < recall["LSTM"][0] - 0.2
    if not flat:
        return Finding(Verdict.FAILS, reason)
    if growth == 1:
        return Finding(Verdict.HOLDS, reason)
    return Finding(
        Verdict.CONDITIONAL,
        f"{reason} Condition: the memory is paid for at every position, up to the longest length.",
    )


def exhibits(figures: Figures) -> tuple[LineChart | Table, ...]:
    """Show bytes and recall over the length."""
    size = LineChart(
        caption=f"Bytes that generation keeps of one text, {CACHE_LAYERS} layers of width {CACHE_WIDTH}",
        x_label="positions",
        y_label="bytes",
        x_scale="log",
        y_scale="log",
        series={name: Series(LENGTHS, values) for name, values in figures["bytes"].items()},
    )
    recall = LineChart(
        caption=f"Recall of the symbol at a place; guessing is 1 of {SYMBOLS}",
        x_label="symbols",
        y_label="accuracy",
        series={name: Series(PLACES, values) for name, values in figures["recall"].items()},
    )
    return size, recall


CLAIM = Claim(
    number=29,
    title="Attention has an unbounded memory",
    sentence="Attention reaches every earlier position over a path of constant length, and so remembers without bound "
    "what a recurrent network must press into one state.",
    lectures=("S1",),
    source="Vaswani et al. 2017, section 4 and table 1; Bahdanau et al. 2015, section 1",
    refutation="With 32 symbols, attention recalls one in no more than 0.95 of the cases, or an LSTM falls by less "
    "than 0.2 from 4 to 32.",
    evidence=Measurement(measure=measure, seconds=60),
    judge=judge,
    exhibits=exhibits,
    revision="With 48 symbols neither model learned in 400 steps. There are 32 now, 600 steps, a lower learning "
    "rate and a wider decoder; nothing was tuned for the LSTM.",
)
