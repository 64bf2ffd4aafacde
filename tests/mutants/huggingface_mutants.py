"""Mutants of transformer/huggingface."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/huggingface/bert.py",
        '"pad_token_id": offset - 1,',
        '"pad_token_id": offset,',
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/cohere.py",
        "_COHERE_BASE = 500000.0",
        "_COHERE_BASE = 10000.0",
        (
            "tests/huggingface/test_convert.py",
            "tests/huggingface/test_types_by_tables.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/config_classes.py",
        '"int | None": int | None,',
        '"int | None": int,',
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/conversion_spec.py",
        "if type(theirs) is type(value) and theirs == value:",
        "if theirs == value:",
        (
            "tests/huggingface/test_convert.py",
            "tests/huggingface/test_types_by_tables.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/convert.py",
        "nearest = min(refusals, key=lambda error: len(error.reasons))",
        "nearest = max(refusals, key=lambda error: len(error.reasons))",
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/distilbert.py",
        '"norm_epsilon": 1e-12,',
        '"norm_epsilon": 1e-6,',
        (
            "tests/huggingface/test_convert.py",
            "tests/huggingface/test_types_by_tables.py",
            "tests/golden/test_families.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/electra.py",
        '{**config, "embedding_size": config["hidden_size"]}',
        "{**config}",
        (
            "tests/huggingface/test_convert.py",
            "tests/huggingface/test_types_by_tables.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/falcon.py",
        'if not grouped and config["multi_query"]:',
        'if config["multi_query"]:',
        (
            "tests/huggingface/test_convert.py",
            "tests/huggingface/test_types_by_tables.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/fine_tuned_heads.py",
        'or (problem == "regression" and count != 1)',
        'or (problem == "regression" and count < 1)',
        ("tests/golden/test_classifiers.py",),
    ),
    Mutant(
        "transformer/huggingface/gemma.py",
        '"sliding_attention" if number % 2 == 0 else "full_attention"',
        '"sliding_attention" if number % 2 == 1 else "full_attention"',
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/generation_config.py",
        "for number in ids if 0 <= number < vocab_size",
        "for number in ids if 0 <= number <= vocab_size",
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/generation_config.py",
        'read(int, "top_k", 50)',
        'read(int, "top_k", 0)',
        (
            "tests/huggingface/test_convert.py",
            "tests/golden/test_generation.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/gpt.py",
        'ConfigKey("seq_length", "max_length", 2048)',
        'ConfigKey("seq_length", "max_length", 1024)',
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/gpt_neox.py",
        'config.get("rotary_pct", 0.25)',
        'config.get("rotary_pct", 1.0)',
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/gpt_neox.py",
        'scaling["original_max_length"] or config["max_position_embeddings"]',
        'config["max_position_embeddings"]',
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/layer_keys.py",
        "return int(depth * fraction) / max(depth, 1)",
        "return fraction",
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/layer_keys.py",
        "factor = length / original",
        "factor = original / length",
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/layer_keys.py",
        "return sliding_window - 1",
        "return sliding_window",
        (
            "tests/huggingface/test_convert.py",
            "tests/golden/test_families.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/llama.py",
        '"attention_dropout": config["attention_dropout"] or 0.0,',
        '"attention_dropout": 0.0,',
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/llama.py",
        "rotates = [int((number + 1) % interval != 0) for number in range(layers)]",
        "rotates = [int(number % interval != 0) for number in range(layers)]",
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/marian.py",
        "_EPSILON = 1e-5",
        "_EPSILON = 1e-6",
        (
            "tests/huggingface/test_convert.py",
            "tests/golden/test_families.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/mpt.py",
        'if attention.get("clip_qkv"):',
        'if attention.get("clip_qkv") is True:',
        ("tests/huggingface/test_types_by_tables.py",),
    ),
    Mutant(
        "transformer/huggingface/opt.py",
        'if config["do_layer_norm_before"] and config["_remove_final_layer_norm"]:',
        'if not config["do_layer_norm_before"] and config["_remove_final_layer_norm"]:',
        ("tests/huggingface/test_types_by_tables.py",),
    ),
    Mutant(
        "transformer/huggingface/parameter_conversion.py",
        "            if spelled in tensors:",
        "            if tensors.get(spelled) == name:",
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/parameter_conversion.py",
        "if header.shape != planned.shape:",
        "if math.prod(header.shape) != math.prod(planned.shape):",
        ("tests/huggingface/test_convert.py",),
    ),
    Mutant(
        "transformer/huggingface/preprocessor.py",
        '"ViT": {"resample": 2, "do_center_crop": False},',
        '"ViT": {"resample": 3, "do_center_crop": False},',
        ("tests/golden/test_images.py",),
    ),
    Mutant(
        "transformer/huggingface/safetensors_files.py",
        "if count := tensor.size - np.count_nonzero(np.isfinite(tensor)):",
        "if count := np.count_nonzero(np.isnan(tensor)):",
        ("tests/huggingface/test_safetensors_files.py",),
    ),
    Mutant(
        "transformer/huggingface/safetensors_files.py",
        "if shards[-1] and filled + spec.num_bytes > max_shard_bytes:",
        "if shards[-1] and filled > max_shard_bytes:",
        ("tests/huggingface/test_safetensors_files.py",),
    ),
    Mutant(
        "transformer/huggingface/starcoder.py",
        '"scale": None if config["scale_attn_weights"] else 1.0,',
        '"scale": None,',
        (
            "tests/huggingface/test_convert.py",
            "tests/huggingface/test_types_by_tables.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/t5.py",
        '"gated-gelu": "geglu_tanh",',
        '"gated-gelu": "geglu",',
        (
            "tests/huggingface/test_convert.py",
            "tests/huggingface/test_types_by_tables.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/tensor_layouts.py",
        "parts = [by_group[:, :, :-2], by_group[:, :, -2], by_group[:, :, -1]]",
        "parts = [by_group[:, :, :-2], by_group[:, :, -1], by_group[:, :, -2]]",
        (
            "tests/huggingface/test_tensor_layouts.py",
            "tests/huggingface/test_convert.py",
        ),
    ),
    Mutant(
        "transformer/huggingface/vit.py",
        '({} if labels is None else {"num_labels": len(labels)})',
        "{}",
        ("tests/golden/test_images.py",),
    ),
    Mutant(
        "transformer/huggingface/xlnet.py",
        '"output_bias": head == "permuted",',
        '"output_bias": True,',
        ("tests/golden/test_classifiers.py",),
    ),
)
