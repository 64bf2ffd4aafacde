"""Record what transformers gives for heads of decoders, encoders and encoder-decoders, and classes without a head.

Recorded with Python 3.13, torch 2.13.0 (CPU), transformers 5.24.0, safetensors 0.8.0 and numpy 2.4.6. To run it, in an
environment of its own as make_families.py says: golden/bin/python tests/golden/make_heads.py [case ...]

It writes tests/golden/heads.npz. All models of texts have one shape; the weights are rebuilt as in make_families.py.
The models compute in float64; XLNet and XGLM, which cannot, in float32. The file holds

    about                     JSON: versions, lengths and target_lengths of the texts, and for each case architecture,
                              kind, config, shapes and seed
    <case>/ids                int32 [B, T], padded at the end; target of an encoder-decoder; image of a model of images,
                              float32 [B, channels, height, width]
    <case>/lengths            int32 [B], where they are not those of all cases
    <case>/outputs            logits [B, C], [B, T, C] or [B, T, 2] of a head, [B, 1] of a text to choose, or the last
                              states [B, T, E] without one; zero at padding
    <case>/pooled             [B, E]: of a BERT, ViT or DeiT without a head

It prints which types have which class, as `HEAD_LAYERS` of transformer/huggingface/decoder_heads.py has them.
"""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import (
    ALBERT,
    BART,
    BERT,
    DEBERTA,
    DISTILBERT,
    FALCON,
    GPT2,
    GPT_OSS,
    LLAMA,
    MARIAN,
    MIXTRAL,
    MODERNBERT,
    MPT,
    NO_KV_HEADS,
    OLMOE,
    OPT,
    QWEN2_MOE,
    QWEN3_MOE,
    T5,
    XGLM,
    XLNET,
    Case,
)
from make_families import LENGTHS, TARGET_LENGTHS, load, padded, real

FILE = Path(__file__).with_name("heads.npz")
CLASSES = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "label2id": {"no": 0, "perhaps": 1, "yes": 2}}
ENDINGS = {
    "classes": "ForSequenceClassification",
    "token_classes": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
SHORT_GPT2 = GPT2 | {"n_layer": 2, "pad_token_id": 0}
# The name of a type's classes, and its one shape.
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", SHORT_GPT2),
    "openai-gpt": ("OpenAIGPT", {key: value for key, value in SHORT_GPT2.items() if key != "n_inner"}),
    "gptj": ("GPTJ", SHORT_GPT2 | {"rotary_dim": 4}),
    "bloom": ("Bloom", {"vocab_size": 53, "hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}),
    "llama": ("Llama", LLAMA),
    "mistral": ("Mistral", LLAMA),
    "qwen2": ("Qwen2", LLAMA),
    "qwen3": ("Qwen3", LLAMA | {"head_dim": 8}),
    "ministral": ("Ministral", LLAMA | {"head_dim": 8}),
    "smollm3": ("SmolLM3", LLAMA),
    "granite": ("Granite", LLAMA),
    "olmo2": ("Olmo2", LLAMA),
    "olmo3": ("Olmo3", LLAMA),
    "gemma": ("Gemma", LLAMA | {"head_dim": 8}),
    "gemma2": ("Gemma2", LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "gemma3_text": ("Gemma3Text", LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "gpt_neox": ("GPTNeoX", NO_KV_HEADS),
    "stablelm": ("StableLm", LLAMA),
    "phi": ("Phi", LLAMA),
    "phi3": ("Phi3", LLAMA),
    "cohere": ("Cohere", LLAMA),
    "cohere2": ("Cohere2", LLAMA),
    "gpt_bigcode": ("GPTBigCode", SHORT_GPT2),
    "starcoder2": ("Starcoder2", LLAMA),
    "falcon": ("Falcon", FALCON | {"pad_token_id": 0}),
    "mpt": ("Mpt", MPT | {"pad_token_id": 0}),
    "opt": ("OPT", OPT | {"pad_token_id": 0}),
    "mixtral": ("Mixtral", MIXTRAL),
    "qwen3_moe": ("Qwen3Moe", QWEN3_MOE),
    "qwen2_moe": ("Qwen2Moe", QWEN2_MOE),
    "olmoe": ("Olmoe", OLMOE),
    "gpt_oss": ("GptOss", GPT_OSS),
    "xglm": ("XGLM", XGLM),
}
IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
}
CLIP_TEXT = {
    "vocab_size": 53,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
    "layer_norm_eps": 1e-3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def labels_of(head: str) -> dict[str, Any]:
    """The names of the classes of a head that has some."""
    return CLASSES if head in ("classes", "token_classes") else {}


ENCODER_ENDINGS = {"none": "Model", **ENDINGS, "choice": "ForMultipleChoice"}
ALL_HEADS = ("none", "classes", "token_classes", "span", "choice")
ROBERTA = BERT | {"type_vocab_size": 1, "max_position_embeddings": 26}
# What no other file has of these types.
ENCODERS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("bert", "Bert", BERT, ("choice",)),
    ("roberta", "Roberta", ROBERTA, ("none", "span", "choice")),
    ("xlm-roberta", "XLMRoberta", ROBERTA, ALL_HEADS),
    ("camembert", "Camembert", ROBERTA, ALL_HEADS),
    ("distilbert", "DistilBert", DISTILBERT, ("none", "token_classes", "span", "choice")),
    ("electra", "Electra", BERT | {"embedding_size": 12}, ("none", "token_classes", "span", "choice")),
    ("albert", "Albert", ALBERT, ("none", "token_classes", "choice")),
    ("modernbert", "ModernBert", MODERNBERT, ("none", "choice")),
    ("xlnet", "XLNet", XLNET, ("choice",)),
    ("deberta-v2", "DebertaV2", DEBERTA, ALL_HEADS),
)
# Classes that read a text with encoder and decoder, or with the encoder of such a model alone.
READER_ENDINGS = ENDINGS
READERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("bart", "Bart", BART),
    ("t5", "T5", T5 | {"d_kv": 8, "feed_forward_proj": "gated-gelu"}),
    ("mt5", "MT5", T5 | {"d_kv": 6}),
)
OTHERS = {
    "xlnet": Case("XLNetModel", XLNET, seed=3, dtype="float32"),
    "marian": Case("MarianModel", MARIAN, "encoder_decoder", seed=4),
    "bart": Case("BartModel", BART, "encoder_decoder", seed=14),
    "mbart": Case("MBartModel", BART | {"decoder_start_token_id": 2}, "encoder_decoder", seed=15),
    "blenderbot": Case("BlenderbotModel", BART, "encoder_decoder", seed=16),
    "pegasus": Case("PegasusModel", BART, "encoder_decoder", seed=17),
    "m2m_100": Case("M2M100Model", BART, "encoder_decoder", seed=18),
    "t5": Case("T5Model", T5 | {"d_kv": 8}, "encoder_decoder", seed=5),
    "t5_untied": Case(
        "T5Model",
        T5 | {"d_kv": 8, "feed_forward_proj": "gated-gelu"},
        "encoder_decoder",
        seed=6,
        published={"tie_word_embeddings": False, "scale_decoder_outputs": None},
    ),
    "mt5": Case("MT5Model", T5 | {"d_kv": 8}, "encoder_decoder", seed=7, published={"tie_word_embeddings": False}),
    "bert": Case("BertModel", BERT, "encoder", seed=8),
    "bert_pair": Case("BertForNextSentencePrediction", BERT, "encoder", seed=13),
    "distilbert": Case("DistilBertForSequenceClassification", DISTILBERT | CLASSES, "encoder", seed=11),
    "electra": Case("ElectraForSequenceClassification", BERT | {"embedding_size": 32} | CLASSES, "encoder", seed=12),
    **{
        f"{model_type}/{head}": Case(
            f"{name}{ENCODER_ENDINGS[head]}", config | labels_of(head), kind, seed=20 + seed, dtype=dtype
        )
        for seed, (model_type, name, config, heads) in enumerate(ENCODERS)
        for head in heads
        for kind in ("choice" if head == "choice" else "encoder",)
        for dtype in ("float32" if model_type in ("xlnet", "modernbert") else "float64",)
    },
    **{
        f"{model_type}/{head}": Case(
            f"{name}{READER_ENDINGS[head]}", config | labels_of(head), "reader", seed=40 + seed
        )
        for seed, (model_type, name, config) in enumerate(READERS)
        for head in READER_ENDINGS
        if hasattr(transformers, f"{name}{READER_ENDINGS[head]}")
    },
    "t5_encoder": Case("T5EncoderModel", T5 | {"d_kv": 8}, "encoder", seed=50),
    "mt5_encoder": Case("MT5EncoderModel", T5 | {"d_kv": 6}, "encoder", seed=51),
    "clip_text_model": Case("CLIPTextModel", CLIP_TEXT, seed=52),
    "vit": Case("ViTModel", IMAGES, "image", seed=9),
    "deit": Case("DeiTModel", IMAGES, "image", seed=10),
}


def cases() -> dict[str, Case]:
    """Every class that the library has."""
    found = {}
    for seed, (model_type, (name, config)) in enumerate(DECODERS.items()):
        dtype = "float32" if model_type == "xglm" else "float64"
        found[f"{model_type}/none"] = Case(f"{name}Model", config, seed=seed, dtype=dtype)
        for head, ending in ENDINGS.items():
            if hasattr(transformers, name + ending):
                found[f"{model_type}/{head}"] = Case(name + ending, config | labels_of(head), seed=seed)
    heads = {name: "classes" if "id2label" in case.config else "none" for name, case in OTHERS.items()}
    heads["bert_pair"] = "next_sentence"
    return found | {name if "/" in name else f"{name}/{heads[name]}": case for name, case in OTHERS.items()}


def inputs_of(case: Case, config: dict[str, Any]) -> tuple[dict[str, torch.Tensor], np.ndarray | None]:
    """What the model reads, and one where what it gives is of a real token: [B, T]."""
    if case.kind == "image":
        image = np.random.default_rng(1).normal(size=(2, 3, 12, 12)).astype(np.float32)
        return {"pixel_values": torch.tensor(image, dtype=torch.float64)}, None
    pad, start = config.get("pad_token_id") or 0, config.get("decoder_start_token_id")
    # XLNet summarizes the last place, which must not be padding.
    lengths = (max(LENGTHS),) * len(LENGTHS) if case.architecture == "XLNetForMultipleChoice" else LENGTHS
    inputs = {"input_ids": torch.tensor(padded(lengths, pad, 1)).long(), "attention_mask": torch.tensor(real(lengths))}
    if case.kind == "reader":
        # Every text ends with the end token, whose state is classified.
        inputs["input_ids"][torch.arange(len(lengths)), torch.tensor(lengths) - 1] = config["eos_token_id"]
    if case.kind == "choice":
        return {name: values[None] for name, values in inputs.items()}, None
    if case.kind != "encoder_decoder":
        return inputs, real(lengths)
    inputs["decoder_input_ids"] = torch.tensor(padded(TARGET_LENGTHS, pad, 2, start)).long()
    return inputs | {"decoder_attention_mask": torch.tensor(real(TARGET_LENGTHS))}, real(TARGET_LENGTHS)


def record(case: Case) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the file says of a case, and its arrays."""
    model, config, shapes = load(case)
    inputs, tokens = inputs_of(case, config)
    with torch.no_grad():
        output = model(**inputs, return_dict=True)
    if "start_logits" in output:
        values = torch.stack([output.start_logits, output.end_logits], dim=-1).numpy()
    else:
        values = (output.logits if "logits" in output else output.last_hidden_state).numpy()
    if case.kind == "choice":
        values, inputs = values[0][:, None], {name: value[0] for name, value in inputs.items()}
    found = {"outputs": values if values.ndim == 2 or tokens is None else values * tokens[..., None]}
    # That of CLIP's text tower is the state of the end token.
    if getattr(output, "pooler_output", None) is not None and case.architecture != "CLIPTextModel":
        found["pooled"] = output.pooler_output.numpy()
    names = {"input_ids": "ids", "decoder_input_ids": "target", "pixel_values": "image"}
    found |= {ours: inputs[theirs].numpy() for theirs, ours in names.items() if theirs in inputs}
    if case.kind != "image" and tuple(lengths := inputs["attention_mask"].sum(1).numpy()) != LENGTHS:
        found["lengths"] = lengths
    about = {"architecture": case.architecture, "kind": case.kind, "config": config, "shapes": shapes}
    return about | {"seed": case.seed}, found


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    about, arrays, known = {}, {}, cases()
    if sys.argv[1:]:
        # The other cases stay as they are.
        with np.load(FILE) as file:
            arrays = {key: file[key] for key in file.files if key.rpartition("/")[0] not in sys.argv[1:]}
        about = json.loads(str(arrays.pop("about")))["cases"]
    for name in sys.argv[1:] or known:
        case = known[name]
        about[name], found = record(case)
        kinds = {"f": np.float32, "i": np.int32}
        arrays |= {f"{name}/{key}": value.astype(kinds[value.dtype.kind]) for key, value in found.items()}
        head = {key: shape for key, shape in about[name]["shapes"].items() if shape[0] in (2, 3)}
        print(f"{name}: {case.architecture}, |outputs| <= {np.abs(found['outputs']).max():.1f}, {head}")
    said = {"versions": versions, "lengths": LENGTHS, "target_lengths": TARGET_LENGTHS, "cases": about}
    np.savez_compressed(FILE, about=json.dumps(said, sort_keys=True), **arrays)
    print(f"{FILE.stat().st_size} bytes, {len(about)} cases")


if __name__ == "__main__":
    main()
