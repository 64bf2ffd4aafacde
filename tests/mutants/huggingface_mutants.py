"""Mutants of transformer/huggingface."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transformer/data/tokenizers/render_chat_template.py",
        "trim_blocks=True, lstrip_blocks=True,",
        "trim_blocks=True, lstrip_blocks=False,",
        ("tests/data/test_chat_templates.py",),
    ),
    Mutant(
        "transformer/data/tokenizers/render_chat_template.py",
        "return json.dumps(value, ensure_ascii=ensure_ascii, **options)",
        "return json.dumps(value, **options)",
        ("tests/data/test_chat_templates.py",),
    ),
    Mutant(
        "transformer/data/tokenizers/render_chat_template.py",
        "        (resource.RLIMIT_NOFILE, 0),\n",
        "",
        ("tests/data/test_chat_templates.py",),
    ),
    Mutant(
        "transformer/data/tokenizers/render_chat_template.py",
        "        if length > max_characters:",
        "        if len(piece) > max_characters:",
        ("tests/data/test_chat_templates.py",),
    ),
    Mutant(
        "transformer/data/tokenizers/chat_template.py",
        '[sys.executable, "-I", str(program)]',
        "[sys.executable, str(program)]",
        ("tests/data/test_chat_templates.py",),
    ),
    Mutant(
        "transformer/data/tokenizers/chat_template.py",
        "elif isinstance(value, list | tuple):",
        "elif isinstance(value, tuple):",
        ("tests/data/test_chat_templates.py",),
    ),
    Mutant(
        "transformer/tasks/text_generation.py",
        "    if is_chat:\n        encoded = [tokenizer.encode_chat(text) for text in texts]",
        "    if is_chat:\n        encoded = [[*tokenizer.leading_ids, *ids] for ids in tokenizer.encode(texts)]",
        ("tests/huggingface/test_chat.py",),
    ),
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
