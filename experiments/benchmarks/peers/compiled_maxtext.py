"""The training step of MaxText's GPT-3 decoder, to be compiled for GPUs that need not be there.

https://github.com/AI-Hypercomputer/maxtext: its step as `maxtext.trainers.pre_train.train_compile` compiles it. It
imports nothing of this project. `lower_step` is called by `experiments.benchmarks.programs.step_compilation`.
"""

import os

import jax
import maxtext
from flax.linen import partitioning
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train, train_compile
from maxtext.utils import maxtext_utils, sharding

GPT3 = {
    "decoder_block": "gpt3",
    "mlp_activations": ["gelu"],
    "fused_qkv": True,
    "logits_via_embedding": True,
    "normalize_embedding_logits": False,
    "use_iota_embed": False,
    "normalization_layer_epsilon": 1e-5,
    "enable_dropout": False,
    "gradient_clipping_threshold": 1.0,
    "opt_type": "adamw",
    "adam_b2": 0.95,
    "hardware": "gpu",
    "skip_jax_distributed_system": True,
    "enable_checkpointing": False,
    "dataset_type": "synthetic",
    "jax_cache_dir": "",
}


def lower_step(settings, devices):
    """Lower the step of a batch in microbatches, with gradients summed in float32, and a state sharded by FSDP."""
    base = os.path.join(os.path.dirname(maxtext.__file__), "configs", "base.yml")
    config = pyconfig.initialize(
        ["", base],
        **GPT3,
        base_emb_dim=settings["width"],
        base_num_query_heads=settings["heads"],
        base_num_kv_heads=settings["heads"],
        head_dim=settings["width"] // settings["heads"],
        base_mlp_dim=settings["feed_forward"],
        base_num_decoder_layers=settings["layers"],
        max_target_length=settings["context"],
        trainable_position_size=settings["context"],
        vocab_size=settings["vocabulary"],
        # MaxText counts one device here, the CPU of the process.
        per_device_batch_size=settings["rows"] // settings["num_microbatches"],
        ici_fsdp_parallelism=len(devices),
        gradient_accumulation_steps=settings["num_microbatches"],
        scan_layers=settings["scan_layers"],
        remat_policy=settings["remat_policy"],
        attention=settings["attention"],
    )
    mesh = jax.sharding.Mesh(
        maxtext_utils.create_device_mesh(config, devices),
        config.mesh_axes,
        axis_types=(jax.sharding.AxisType.Auto,) * len(config.mesh_axes),
    )
    arguments, keywords, state_shardings, _, model = train_compile.get_shaped_inputs(mesh, config)
    _, batch = arguments[:2]
    assert batch["inputs"].shape == (settings["rows"], settings["context"])
    params_shardings, state_shardings = sharding.maybe_update_params_sharding_with_opt(config, state_shardings)
    step, in_shardings, out_shardings, static, donated = maxtext_utils.get_functional_train_with_signature(
        train.train_step,
        sharding.get_input_data_sharding(config, mesh),
        state_shardings,
        model,
        config,
        params_shardings,
    )
    with jax.set_mesh(mesh), mesh, partitioning.axis_rules(config.logical_axis_rules):
        jitted = jax.jit(
            step,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static,
            donate_argnums=donated,
        )
        return jitted.lower(*arguments, **keywords)
