"""What an export writes: merged LoRA, tokenizers that encode texts as the run reads them, and what is refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import processors

from tests.data.test_image_datasets import png
from tests.golden.recordings import recording
from tests.training.written_run import write_run
from transformer.config import UserError
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.huggingface_tokenizers import load_huggingface_tokenizer, load_wordpiece_tokenizer
from transformer.huggingface.convert import CONVERSIONS, open_model_folder, write_model_folder
from transformer.huggingface.fine_tuned_heads import output_names
from transformer.layers.functional_module import Precision
from transformer.models.model import leaves_by_path
from transformer.models.registry import FAMILIES as OURS
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface
from transformer.tasks.registry import task_config
from transformer.tasks.translation_data import encode_pairs
from transformer.training.huggingface_conversion import (
    FineTuningOptions,
    add_sequence_template,
    export_to_huggingface,
    fine_tuning_config,
    merge_lora,
    tokenizer_config,
)

MODEL = {"family": "decoder", "layers": 2, "width": 8, "heads": 2, "feed_forward": 32, "max_length": 8}


def test_a_model_with_lora_is_published_as_the_plain_one_that_computes_the_same(tmp_path: Path) -> None:
    config = model_config({**MODEL, "lora": {"rank": 2, "alpha": 5.0, "targets": ("value", "output", "feed_forward")}})
    interface = TaskInterface({}, {"tokens": 11, "joint": 11}, pad_id=0, bos_id=1, eos_id=2)
    random = np.random.default_rng(0)
    shapes = build(config, interface, Precision()).functional.shapes()
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)
    with pytest.raises(UserError, match="Hugging Face has no such model"):
        write_model_folder(tmp_path / "raw", config, params)
    model, plain = merge_lora(config, params)
    write_model_folder(tmp_path / "merged", model, plain)
    found, given = leaves_by_path(open_model_folder(tmp_path / "merged").read_params()), leaves_by_path(params)
    assert found.keys() == {path for path in given if "/lora/" not in path}
    adapted = {path.partition("/lora/")[0] for path in given if "/lora/" in path}
    assert len(adapted) == 4
    for path, leaf in found.items():
        folder = path.removesuffix("/kernel")
        expected = given[path].astype(np.float64)
        if folder in adapted:
            inputs = "xy" if folder.endswith("output") else "x"
            outputs = "hd" if folder.endswith("value") else "o"
            low = (given[f"{folder}/lora/{name}"] for name in ("down", "up"))
            expected = expected + 2.5 * np.einsum(f"l{inputs}r,lr{outputs}->l{inputs}{outputs}", *low)
        np.testing.assert_allclose(leaf, expected, atol=1e-5, err_msg=path)
    assert merge_lora(model, plain) == (model, plain)


def test_a_family_that_hugging_face_lacks_is_refused_by_name(tmp_path: Path) -> None:
    theirs = sorted({family.model_family for family in CONVERSIONS.values()})
    lacking = set(OURS.all_names()) - set(theirs)
    assert {"recurrent_encoder_decoder", "recurrent_classifier", "convolutional_classifier"} <= lacking
    for name in lacking:
        with pytest.raises(UserError) as told:
            write_model_folder(tmp_path / "out", model_config({"family": name}), {})
        known = ", ".join(theirs)
        assert (
            str(told.value)
            == f"Hugging Face has no model of config.model.family={name!r}: --save_pretrained writes {known} alone"
        )
    assert not (tmp_path / "out").exists()


def test_a_run_over_images_that_are_not_square_is_refused(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "test")):
        for name in ("flat", "steep"):
            for count in range(20):
                folder = tmp_path / "data" / "bars" / split / name
                folder.mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng((number, count)).integers(0, 256, (8, 16, 3)).astype(np.uint8)
                (folder / f"{count}.png").write_bytes(png(pixels))
    config = {
        "name": "bars",
        "steps": 1,
        "task": {
            "name": "image_classification",
            "dataset": "bars",
            "data_dir": str(tmp_path / "data"),
            "batch_size": 4,
        },
        "model": {"family": "vit", "patch_size": 4, "layers": 1, "width": 8, "heads": 2, "feed_forward": 16},
        "optimizer": {},
    }
    run = write_run(tmp_path / "run", config, lambda state: state)
    with pytest.raises(UserError, match="has images of 16 x 8 pixels: Hugging Face's are square"):
        export_to_huggingface(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(
    ("template", "frame"),
    [
        ("<s> $A </s>", {"source_start_ids": (0,)}),
        ("$A </s> <s>", {"source_end_ids": (0,)}),
        ("$A </s>", {}),
        (None, {}),
    ],
)
def test_sources_of_a_published_encoder_decoder_have_the_tokens_of_its_tokenizer(
    tmp_path: Path, template: str | None, frame: dict[str, tuple[int, ...]]
) -> None:
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    words = special | {f"w{number}": number for number in range(4, 53)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(special))
    if template is not None:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=[*special.items()])
    recording("bart").write(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": 2, "forced_bos_token_id": 9, "decoder_start_token_id": 2})
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_huggingface_tokenizer(tmp_path)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (1, 2, 2)
    options = FineTuningOptions(context_length=16, batch_size=2)
    task = fine_tuning_config(open_model_folder(tmp_path), tokenizer, options, name="bart")["task"]
    assert {key: value for key, value in task.items() if key.startswith("source_")} == frame
    assert task["decoding"] == {"end_ids": (2,), "forced_first_id": 9}
    # Its config.json names classes, as that of every BART does, and the model has none.
    assert output_names(open_model_folder(tmp_path).config | {"id2label": {"0": "LABEL_0"}}, 0) == ()
    encoded = encode_pairs(
        tokenizer,
        [SentencePair("w5 w6", "w7", "")],
        task_config(task).sentence_frame,
    )
    start, end = frame.get("source_start_ids", ()), frame.get("source_end_ids", ())
    assert encoded.sources[0].tolist() == [*start, 5, 6, 2, *end]
    assert encoded.targets[0].tolist() == [9, 7, 2]
    if template is not None:
        assert encoded.sources[0].tolist() == backend.encode("w5 w6").ids


LETTERS = "abcdefg.,!"


@pytest.fixture
def texts() -> list[str]:
    random = np.random.default_rng(0)
    made = ["".join(random.choice([*LETTERS, " ", "A", "é", "日"], random.integers(0, 24))) for _ in range(300)]
    return [*made, "a [MASK] b", "[SEP]"]


def vocabulary(folder: Path) -> Path:
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "abc", "##de"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder / "vocab.txt"


def assert_equal_encodings(found: tokenizers.Tokenizer, expected: tokenizers.Tokenizer, texts: list[str]) -> None:
    for number, text in enumerate(texts):
        for pair in (None, texts[(7 * number + 1) % len(texts)]):
            ours, theirs = found.encode(text, pair), expected.encode(text, pair)
            assert (ours.ids, ours.type_ids) == (theirs.ids, theirs.type_ids), (text, pair)


def test_a_bert_of_a_vocabulary_file_is_published_with_its_special_tokens(tmp_path: Path, texts: list[str]) -> None:
    tokenizer = load_wordpiece_tokenizer(vocabulary(tmp_path))
    framed = add_sequence_template(tokenizer, "bert")
    assert framed is not None
    expected = tokenizers.implementations.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"))
    assert_equal_encodings(framed, expected, texts)
    assert add_sequence_template(FastTokenizer(framed, bos_id=2, eos_id=3), "bert") is None
    assert add_sequence_template(tokenizer, "gpt2") is None
    names = {kind: tokenizer_config(tokenizer, 8, kind)["model_input_names"] for kind in ("bert", "roberta", "xlnet")}
    assert names == {
        "bert": ["input_ids", "token_type_ids", "attention_mask"],
        "roberta": ["input_ids", "attention_mask"],
        "xlnet": ["input_ids", "token_type_ids", "attention_mask"],
    }


@pytest.mark.parametrize(
    ("kind", "single", "pair"),
    [
        ("roberta", "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:0 [SEP]"),
        ("xlnet", "$A [SEP] [CLS]:2", "$A [SEP] $B:1 [SEP]:1 [CLS]:2"),
        ("marian", "$A [SEP]", "$A $B:0 [SEP]"),
    ],
)
def test_sequences_of_other_models_are_published_as_they_were_trained(
    kind: str, single: str, pair: str, tmp_path: Path, texts: list[str]
) -> None:
    tokenizer = load_wordpiece_tokenizer(vocabulary(tmp_path))
    framed = add_sequence_template(tokenizer, kind)
    expected = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    expected.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    assert framed is not None
    assert_equal_encodings(framed, expected, texts)
