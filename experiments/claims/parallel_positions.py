"""C-27: self-attention computes all positions in parallel."""

from experiments.claims.claim import Claim, Figures, Finding, Measurement, Verdict
from experiments.claims.exhibits import Table

LENGTHS, WIDTH = (16, 64, 256), 32
LAYERS = {"attention": "self-attention", "lstm": "LSTM"}


def measure() -> Figures:
    """Count loops of the compiled programs, steps of the traced ones, and dot products of queries and keys."""
    import jax
    import jax.numpy as jnp

    from transformer.benchmarks.layer_types import LAYER_TYPES
    from transformer.costs.hlo_parser import parse_hlo

    rows = []
    for name, label in LAYERS.items():
        module, run = LAYER_TYPES[name].make_layer(WIDTH)
        for length in LENGTHS:
            x = jax.ShapeDtypeStruct((1, length, WIDTH), jnp.float32)
            traced = jax.make_jaxpr(run)(module.shapes(), x)
            scans = [equation.params["length"] for equation in traced.jaxpr.eqns if equation.primitive.name == "scan"]
            hlo = parse_hlo(jax.jit(run).lower(module.shapes(), x).compile().as_text() or "")
            loops = sum(
                instruction.opcode == "while"
                for computation in hlo.computations.values()
                for instruction in computation.instructions.values()
            )
            products = [
                getattr(equation.outvars[0].aval, "shape", None)
                for equation in traced.jaxpr.eqns
                if equation.primitive.name == "dot_general"
            ]
            rows.append(
                {
                    "layer": label,
                    "length": length,
                    "loops": loops,
                    "steps": sum(scans),
                    "products": products.count((1, 1, length, length)) * length**2,
                }
            )
    return {"rows": rows}


def judge(figures: Figures) -> Finding:
    """Attention's program must have no loop at any length, the LSTM's a loop of as many steps as positions."""
    attention = [row for row in figures["rows"] if row["layer"] == "self-attention"]
    lstm = [row for row in figures["rows"] if row["layer"] == "LSTM"]
    longest = attention[-1]
    reason = (
        f"At {longest['length']} positions the compiled program of self-attention has {longest['loops']} loops and "
        f"computes {longest['products']:,} dot products at once; an LSTM's has {lstm[-1]['loops']}, of "
        f"{lstm[-1]['steps']} steps. Generation still goes one token at a time."
    )
    parallel = all(row["loops"] == 0 and row["steps"] == 0 for row in attention)
    all_pairs = all(row["products"] == row["length"] ** 2 for row in attention)
    sequential = all(row["loops"] > 0 and row["steps"] == row["length"] for row in lstm)
    return Finding(Verdict.HOLDS if parallel and all_pairs and sequential else Verdict.FAILS, reason)


def exhibits(figures: Figures) -> tuple[Table, ...]:
    """Show the counts."""
    return (
        Table(
            caption="The compiled program of a layer over a sequence",
            columns=("layer", "positions", "loops", "steps one behind another", "dot products of positions"),
            rows=[
                (row["layer"], str(row["length"]), str(row["loops"]), str(row["steps"]), f"{row['products']:,}")
                for row in figures["rows"]
            ],
        ),
    )


CLAIM = Claim(
    number=27,
    title="Self-attention is parallel over positions",
    sentence="Queries, keys and values of all positions are computed independently, and all dot products of pairs at "
    "once; a recurrent network must go step by step.",
    lectures=("S2",),
    source="Vaswani et al. 2017, section 4 and table 1",
    refutation="The compiled program of self-attention has a loop, or does not compute the products of all pairs at "
    "once; or that of an LSTM has no loop of as many steps as positions.",
    evidence=Measurement(measure=measure, seconds=5),
    judge=judge,
    exhibits=exhibits,
)
