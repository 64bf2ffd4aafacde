"""The keys of the library's config classes, each with the kind of its value and its default, as in transformers 5.24.0.

What is absent from a config.json has the default of its class. config_classes.json is what
tests/golden/make_config_classes.py records.
"""

import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

ClassKeys = Mapping[str, tuple[Any, Any]]
"""For each key the kind of its value, as an annotation, and its default."""

TOKEN_IDS = int | tuple[int, ...] | None
"""One token number, several, or none."""

_NAMES = tuple[str, ...] | None
# The kinds as config_classes.json names them.
_KINDS: Mapping[str, Any] = {
    "bool": bool,
    "bool | None": bool | None,
    "int": int,
    "int | None": int | None,
    "int list | None": tuple[int, ...] | None,
    "float": float,
    "float | None": float | None,
    "float | str | None": float | str | None,
    "str": str,
    "str | None": str | None,
    "str list | None": _NAMES,
    "str | str list | None": str | _NAMES,
    "mapping": Mapping[str, Any] | None,
    "sides": int | tuple[int, ...],
    "sides | None": int | tuple[int, ...] | None,
    "token ids": TOKEN_IDS,
}

_EVERY_CLASS: ClassKeys = {
    "transformers_version": (str | None, None),
    "architectures": (_NAMES, None),
    "output_hidden_states": (bool | None, False),
    "return_dict": (bool | None, True),
    "dtype": (str | None, None),
    "chunk_size_feed_forward": (int, 0),
    "is_encoder_decoder": (bool, False),
    "id2label": (Mapping[str, str] | None, None),
    "label2id": (Mapping[str, int] | None, None),
    "problem_type": (str | None, None),
}


def _read_recorded_classes() -> dict[str, ClassKeys]:
    recorded = importlib.resources.files(__package__).joinpath("config_classes.json").read_text()
    return {
        model_type: {**_EVERY_CLASS} | {key: (_KINDS[kind], default) for key, (kind, default) in keys.items()}
        for model_type, keys in json.loads(recorded).items()
    }


CONFIG_CLASSES: Mapping[str, ClassKeys] = _read_recorded_classes()
"""The keys of each `model_type`."""

WITHOUT_EFFECT = frozenset(
    """_name_or_path _out_features _out_indices apply_layernorm architectures attention_softmax_in_fp32
    attn_implementation bias_dropout_fusion bos_token_id chunk_size_feed_forward classif_dropout
    classifier_dropout decoder_start_token_id directionality dtype encoder_stride end_n_top eos_token_id
    finetuning_task force_bos_token_to_be_generated forced_eos_token_id gradient_checkpointing id2label init_std
    initializer_factor initializer_range label2id logit_scale_init_value masked_softmax_fusion
    max_sequence_length model_type n_ctx name_or_path num_labels offset_alibi out_features out_indices
    output_attentions output_hidden_states output_past pad_token_id pooler_act pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_output_size pooler_size_per_head pooler_type
    predict_special_tokens prefix pretraining_tp problem_type projection_dim reorder_and_upcast_attn
    reshape_hidden_states return_dict sep_token_id skip_bias_add skip_bias_add_qkv slow_but_exact stage_names
    start_n_top summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript transformers_version
    unk_token_id use_bfloat16 use_cache use_mask_token use_mems_eval use_mems_train""".split()  # noqa: SIM905  a list of names, not lines
)
"""Keys that change nothing of what a model computes: what its class and files are called, how it was initialized, what
its library returns and how fast, heads for other problems, and special tokens, which the tokenizer has."""
