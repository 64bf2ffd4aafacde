"""Compiles for TPUs that are not there and prints what the programs need, a line of JSON each; see test_tpu_program."""

import json
import os

from transformer.costs.topologies import compile_environment_variables, compile_lowered, topology_devices

TOPOLOGY = "v5e:2x2"
WIDTH, ROWS = 512, 1024
LAYERS = (3, 6)


def main() -> None:
    """A stack of layers, their weights gathered one by one, as ZeRO does; of 3 layers and of 6."""
    os.environ.update(compile_environment_variables(TOPOLOGY))
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from transformer.costs.chips import find_chip
    from transformer.costs.compiled_program import analyze_program
    from transformer.costs.roofline import estimate_step

    devices = topology_devices(TOPOLOGY)
    chip = find_chip(devices[0])
    assert chip is not None
    mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2, devices=devices)

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        x = jnp.tanh(x @ jax.lax.all_gather(w, "fsdp", tiled=True))
        # As often as a whole group would have to agree on something.
        agree = lambda carry, _: (jnp.sin(jax.lax.psum(carry, "tensor")), None)  # noqa: E731
        return jax.lax.scan(agree, x, length=5)[0], None

    spec = PartitionSpec
    stack = jax.shard_map(
        lambda x, w: jax.lax.scan(layer, x, w)[0],
        mesh=mesh,
        in_specs=(spec("fsdp"), spec(None, "fsdp")),
        out_specs=spec("fsdp"),
        check_vma=False,
    )
    for layers in LAYERS:
        shapes = [
            jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16, sharding=NamedSharding(mesh, spec("fsdp"))),
            jax.ShapeDtypeStruct(
                (layers, WIDTH, WIDTH), jnp.bfloat16, sharding=NamedSharding(mesh, spec(None, "fsdp"))
            ),
        ]
        compiled, _ = compile_lowered(jax.jit(stack).lower(*shapes))
        program = analyze_program(compiled, mesh)
        found = estimate_step(program, 2.0 * layers * ROWS * WIDTH**2, chip, mesh)
        print(
            json.dumps(
                {
                    "chip": chip.name,
                    "layers": layers,
                    **program._asdict(),
                    "peak": program.peak_bytes,
                    "collectives": [each._asdict() for each in program.collectives],
                    "seconds": [
                        found.compute_seconds,
                        found.memory_seconds,
                        found.communication_seconds,
                        found.step_seconds,
                    ],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
