"""Mutants of transformer/huggingface."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/huggingface/conversion_spec.py",
        "        return {name: values for name, values in limited.items() if name not in self.simplified_keys}",
        "        return limited",
        ("tests/huggingface/test_types_page.py",),
    ),
    Mutant(
        "docs/hugging_face_page.py",
        "max(case['difference'] for case in of_class)",
        "min(case['difference'] for case in of_class)",
        ("tests/huggingface/test_types_page.py",),
    ),
    Mutant(
        "transformer/huggingface/deberta.py",
        "2 * max(buckets, 0)",
        "max(buckets, 0)",
        ("tests/huggingface/test_types_by_tables.py",),
    ),
    Mutant(
        "transformer/huggingface/deberta.py",
        '(("position_biased_input", False), ("share_att_key", True))',
        '(("position_biased_input", False),)',
        ("tests/huggingface/test_types_by_tables.py",),
    ),
    Mutant(
        "transformer/huggingface/deberta.py",
        'if config["legacy"] else (_NEW_HEAD, _TRANSFORM)',
        'if not config["legacy"] else (_NEW_HEAD, _TRANSFORM)',
        ("tests/huggingface/test_types_by_tables.py",),
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
        "transformer/huggingface/safetensors_files.py",
        "if Path(name).name != name:",
        "if Path(name).is_absolute():",
        ("tests/huggingface/test_safetensors_files.py",),
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
        "transformer/huggingface/tensor_layouts.py",
        "matrix = np.stack(by_head, axis=2).reshape(rows, -1)",
        "matrix = np.stack(by_head, axis=1).reshape(rows, -1)",
        ("tests/huggingface/test_tensor_layouts.py",),
    ),
)
