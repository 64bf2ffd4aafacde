"""The tables of Hugging Face types, generated from the conversion specs and the recorded differences."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from docs.markdown_table import markdown_table
from experiments.records import CHECKOUT
from transformer.data.tokenizers.huggingface_tokenizers import tokenizer_files
from transformer.huggingface.conversion_spec import ConversionSpec
from transformer.huggingface.convert import CONVERSIONS, OTHER_CLASSES

DIFFERENCES = CHECKOUT / "tests" / "golden" / "differences.json"

HEAD = """# Hugging Face models

The types of `config.json` that Headwise reads and writes. [Hugging Face](../guides/hugging_face.md) explains the
commands:

```
python -m launch.convert --from_pretrained=gpt2 --workdir=runs/gpt2 --dataset=book.txt --steps=1000
```

`make docs` generates this page from the conversion specs of `transformer/huggingface` and from
`tests/golden/differences.json`.

## Types

Every type is read from `tokenizer.json`. The files in the last column are read without it, with
[SentencePiece](../guides/hugging_face.md#tokenizers) for `.model` and `.spm`.
"""

CLASSES = """## Classes

Each class in `architectures` that is read, and the class that an export of the unchanged model writes. The difference
is the largest of any logit in float32, or of any last hidden state of a class without a head, from what `transformers`
5.23 or 5.24 computes for a small model with random weights; of several models, the largest. A `-` means that no model
of that class is recorded: its body and its head are those of classes that are.

The class of a body with tied output is written as the class of next tokens, because that is
[how it is read](../guides/hugging_face.md#supported-models).
"""

REFUSED = """## Keys with few values

A folder whose `config.json` has another value of one of these keys is refused, and the error names the key. Types
without a row for a key read every value of it, or refuse some of its values together with those of others.
"""

UNSUPPORTED = """## Not supported

These models have no Headwise model, and are refused by name:
"""

MODELS = {
    "gpt2": "GPT-2",
    "openai-gpt": "GPT-1",
    "gptj": "GPT-J",
    "bloom": "BLOOM",
    "llama": "Llama 1 to 3, also with the rotary scaling of 3.1",
    "mistral": "Mistral",
    "qwen2": "Qwen 2 and 2.5",
    "qwen3": "Qwen 3",
    "ministral": "Ministral",
    "smollm3": "SmolLM 3",
    "granite": "Granite",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3, texts",
    "gpt_neox": "GPT-NeoX, Pythia",
    "stablelm": "StableLM",
    "phi": "Phi 1 to 2",
    "phi3": "Phi 3 and 4",
    "cohere": "Command R",
    "cohere2": "Command R7B, Command A",
    "gpt_bigcode": "SantaCoder, StarCoder",
    "starcoder2": "StarCoder 2",
    "falcon": "Falcon",
    "mpt": "MPT",
    "opt": "OPT",
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen 1.5 and 2, mixtures of experts",
    "qwen3_moe": "Qwen 3, mixtures of experts",
    "olmoe": "OLMoE",
    "gpt_oss": "gpt-oss",
    "xglm": "XGLM",
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "camembert": "CamemBERT",
    "distilbert": "DistilBERT",
    "electra": "ELECTRA",
    "albert": "ALBERT",
    "modernbert": "ModernBERT",
    "deberta-v2": "DeBERTa v2 and v3",
    "marian": "Marian",
    "bart": "BART",
    "mbart": "mBART",
    "blenderbot": "Blenderbot",
    "pegasus": "PEGASUS",
    "m2m_100": "M2M-100, NLLB",
    "t5": "T5",
    "mt5": "mT5",
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "DINOv2",
    "siglip_vision_model": "SigLIP, image tower",
    "siglip": "SigLIP, image classifier",
    "clip_vision_model": "CLIP, image tower",
    "clip": "CLIP, image classifier",
    "clip_text_model": "CLIP, text tower",
    "xlnet": "XLNet",
}
"""What the models of each `model_type` are called."""

UNSUPPORTED_MODELS = {
    "Falcon with `alibi`": "its biases are rounded to bfloat16, and `transformers` adds them once or twice, depending "
    "on `attn_implementation`",
    "Command R+ with `use_qk_norm`": "its norm of queries has a scale for each head",
    "OPT 350M": "`word_embed_proj_dim` is not `hidden_size`",
    "ALBERT with `inner_group_num` over 1": "a layer there is several different blocks",
    "ModernBERT with scaled rotary positions in sliding layers": "only those of full layers can be scaled",
    "`CLIPModel`, `SiglipModel`": "they compare images with texts; save one tower alone, with `CLIPVisionModel`, "
    "`CLIPTextModel` or `SiglipVisionModel`",
    "the text tower of SigLIP": "its head, a linear map of the last token's state, has no place in our models",
    "DeBERTa v2 of 0.9 and 1.5 billion parameters, with `conv_kernel_size`": "a convolution stands beside its first "
    "layer",
    "DeBERTa v2 with `share_att_key=false` or one of `pos_att_type`": "its published models project positions as they "
    "project tokens, and have both terms",
    "the first version of DeBERTa (`deberta`)": "its queries, keys and values have one matrix with biases for two of "
    "them",
    "Whisper, wav2vec 2.0 and other models of speech": "no family of the library reads sound; the "
    "[speech project](../../experiments/speech/README.md) trains its own",
    "BEiT": "its biases of relative positions are a table of each layer, and its keys have no bias",
    "the head of ALBERT that orders two texts": "its two logits are not those of next sentences; the other is read",
    "Qwen 2 and 3 with `decoder_sparse_step` above 1, or `mlp_only_layers`": "some of its blocks have no experts",
    "gpt-oss in MXFP4, as published": "only float weights are read",
    "MPT and OLMoE with `clip_qkv`": "it bounds queries, keys and values",
    "Blenderbot 90M (`blenderbot-small`)": "its decoder adds positions behind the norm of the embeddings, its encoder "
    "before it, and `transformers` 5.24 scales the embeddings of the encoder alone",
    "mBART's classes of texts and answers": "its decoder begins with the last token of each text, its language, and "
    "classifies the state at the end token before it",
    "BART with an untied `tie_word_embeddings`": "its two sides and its head have tables of their own",
    "NLLB with a mixture of experts (`nllb-moe`)": "its router has another rule",
    "the discriminator of ELECTRA": "its head finds replaced tokens; the body is read with `ElectraModel` in "
    "`architectures`",
}
"""The published models that have no model of ours, each with the reason."""

# What a class predicts, by a part of its name; the first that fits.
_HEADS = (
    ("ForPreTraining", "masked tokens, next sentence"),
    ("ForMaskedLM", "masked tokens"),
    ("ForNextSentencePrediction", "next sentence"),
    ("ForSequenceClassification", "classes of texts"),
    ("ForTokenClassification", "classes of tokens"),
    ("ForQuestionAnswering", "answers"),
    ("ForMultipleChoice", "choices"),
    ("ForImageClassification", "classes of images"),
    ("For", "next token"),
    ("LMHeadModel", "next token"),
    ("MTModel", "next token"),
    ("Model", "none"),
)


def models_page() -> str:
    """Return the page as Markdown."""
    recorded = json.loads(DIFFERENCES.read_text(encoding="utf-8"))
    parts = (
        HEAD,
        markdown_table(("models", "`model_type`", "family", "heads", "tokenizer"), _type_rows()),
        CLASSES,
        markdown_table(
            ("`model_type`", "class", "family", "exported as", "largest difference"), class_rows(recorded.values())
        ),
        REFUSED,
        markdown_table(("key", "values", "`model_type`"), refused_rows(CONVERSIONS)),
        UNSUPPORTED,
        markdown_table(("models", "reason"), UNSUPPORTED_MODELS.items()),
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def class_families(model_type: str) -> dict[str, str]:
    """Return the family of our model of each class of a type that is read."""
    specs = (CONVERSIONS[model_type], *(spec for spec in OTHER_CLASSES if spec.model_type == model_type))
    return {name: spec.model_family for spec in specs for name in (spec.architecture, *spec.other_architectures)}


def _type_rows() -> Iterable[Sequence[str]]:
    for model_type, spec in CONVERSIONS.items():
        texts = (next(text for part, text in _HEADS if part in name) for name in class_families(model_type))
        # The same head of several classes once, and none last.
        heads = sorted(
            dict.fromkeys(head for text in texts for head in text.split(", ")), key=lambda head: head == "none"
        )
        files = ", ".join(f"`{name}`" for name in tokenizer_files(model_type)) or "-"
        yield MODELS[model_type], f"`{model_type}`", f"`{spec.model_family}`", ", ".join(heads), files


def class_rows(recorded: Iterable[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    """Yield the rows of the classes that are read.

    Args:
        recorded: For each recorded model, the class that was read, the class that an export wrote, and the difference.
    """
    cases = list(recorded)
    for model_type in CONVERSIONS:
        for name, family in class_families(model_type).items():
            of_class = [case for case in cases if (case["model_type"], case["read"]) == (model_type, name)]
            exports = " or ".join(dict.fromkeys(f"`{case['written']}`" for case in of_class)) or "-"
            difference = f"{max(case['difference'] for case in of_class):.1e}" if of_class else "-"
            yield f"`{model_type}`", f"`{name}`", f"`{family}`", exports, difference


def refused_rows(specs: Mapping[str, ConversionSpec]) -> Iterable[Sequence[str]]:
    """Yield the keys of which some values are refused, with the other values and the types."""
    types: dict[tuple[str, str], list[str]] = {}
    for model_type, spec in specs.items():
        for key, values in spec.limited_keys.items():
            types.setdefault((key, ", ".join(f"`{json.dumps(value)}`" for value in values)), []).append(model_type)
    for (key, value_list), names in sorted(types.items()):
        yield f"`{key}`", value_list, _type_list(names, list(specs))


def _type_list(names: Sequence[str], every: Sequence[str]) -> str:
    """Name some of the types in the fewest words."""
    excluded = [name for name in every if name not in names]
    if not excluded:
        return "every type"
    shorter = excluded if len(excluded) < len(names) else names
    return ("all but " if shorter is excluded else "") + ", ".join(f"`{name}`" for name in shorter)
