"""Record one step of fine-tuning of models that classify texts or tokens or find an answer, by transformers.

To run it, in the environment of make_families.py: golden/bin/python tests/golden/make_classifiers.py [case ...]

It writes tests/golden/classifiers/<case>.npz, with the weights rebuilt as in make_families.py:

    about             JSON: architecture, config, shapes, seed, learning_rate, versions
    ids, lengths, types, labels    the batch, padded at the end, which XLNet read padded in front; labels are classes
                      [B], scores [B] with one label, classes of tokens [B, T] with -1 where there is none, or the first
                      and the last token of an answer [B, 2]
    logits, loss      [B, C], [B, T, C] or [B, T, 2], and the mean loss, without dropout; padding is no answer
    updated/<tensor>  every tensor after one step of plain gradient descent
"""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import ALBERT, BERT, DEBERTA, MODERNBERT, POSITIONS, XLNET, Case
from make_families import LENGTHS, load, padded, real

FOLDER = Path(__file__).with_name("classifiers")
LEARNING_RATE = 0.5
ROBERTA = BERT | {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
CLASSES = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "label2id": {"no": 0, "perhaps": 1, "yes": 2}}
CASES = {
    "bert": Case("BertForSequenceClassification", BERT | CLASSES, "encoder", seed=41),
    "bert_score": Case("BertForSequenceClassification", BERT | {"num_labels": 1}, "encoder", seed=42),
    "roberta": Case("RobertaForSequenceClassification", ROBERTA | CLASSES, "encoder", seed=43),
    "bert_tokens": Case("BertForTokenClassification", BERT | CLASSES, "encoder", seed=44),
    "roberta_tokens": Case("RobertaForTokenClassification", ROBERTA | CLASSES, "encoder", seed=45),
    "bert_span": Case("BertForQuestionAnswering", BERT, "encoder", seed=46),
    "albert": Case("AlbertForSequenceClassification", ALBERT | {"num_hidden_groups": 2} | CLASSES, "encoder", seed=50),
    "albert_span": Case("AlbertForQuestionAnswering", ALBERT, "encoder", seed=51),
    "modernbert": Case(
        "ModernBertForSequenceClassification",
        MODERNBERT | {"num_hidden_layers": 2, "classifier_pooling": "mean"} | CLASSES,
        "encoder",
        seed=52,
        dtype="float32",
    ),
    "modernbert_first": Case(
        "ModernBertForSequenceClassification",
        MODERNBERT | {"num_hidden_layers": 2, "classifier_bias": True} | CLASSES,
        "encoder",
        seed=58,
        dtype="float32",
    ),
    "modernbert_tokens": Case(
        "ModernBertForTokenClassification",
        MODERNBERT | {"num_hidden_layers": 2} | CLASSES,
        "encoder",
        seed=54,
        dtype="float32",
    ),
    "modernbert_span": Case(
        "ModernBertForQuestionAnswering",
        MODERNBERT | {"num_hidden_layers": 2},
        "encoder",
        seed=57,
        dtype="float32",
    ),
    "deberta": Case("DebertaV2ForSequenceClassification", DEBERTA | CLASSES, "encoder", seed=59),
    "deberta_tokens": Case(
        "DebertaV2ForTokenClassification", DEBERTA | CLASSES | {"position_buckets": -1}, "encoder", seed=60
    ),
    "xlnet": Case("XLNetForSequenceClassification", XLNET | CLASSES, seed=47, dtype="float32"),
    "xlnet_tokens": Case("XLNetForTokenClassification", XLNET | CLASSES, seed=48, dtype="float32"),
    "xlnet_span": Case("XLNetForQuestionAnsweringSimple", XLNET, seed=49, dtype="float32"),
}
FRONT_PADDING_TYPE = 3


def padded_in_front(values: np.ndarray, padding: int) -> np.ndarray:
    """The same rows with their padding in front instead of at the end."""
    rows = [[padding] * (len(row) - length) + list(row[:length]) for row, length in zip(values, LENGTHS, strict=True)]
    return np.array(rows, values.dtype)


def padded_at_the_end(values: torch.Tensor) -> torch.Tensor:
    """The inverse for logits of tokens, zero at padding."""
    rows = [values[row, values.shape[1] - length :] for row, length in enumerate(LENGTHS)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def inputs_of(model: Any, found: dict[str, np.ndarray], pad: int) -> dict[str, torch.Tensor]:
    """What the model reads, from the recorded arrays."""
    mask, xlnet = real(LENGTHS), model.config.model_type == "xlnet"
    given = {"input_ids": (found["ids"], pad), "attention_mask": (mask, 0)}
    if "types" in found:
        given["token_type_ids"] = (found["types"], FRONT_PADDING_TYPE)
    return {
        name: torch.tensor(padded_in_front(values, padding) if xlnet else values).long()
        for name, (values, padding) in given.items()
    }


def record(case: Case) -> tuple[dict, dict[str, np.ndarray]]:
    """What the file says of a case, and its arrays."""
    model, config, shapes = load(case)
    ids = padded(LENGTHS, config.get("pad_token_id") or 0, seed=1)
    found = {"ids": ids, "lengths": np.int32(LENGTHS)}
    xlnet, places = model.config.model_type == "xlnet", np.arange(max(LENGTHS))
    if xlnet or getattr(model.config, "type_vocab_size", 1) > 1:
        found["types"] = np.int32((places >= np.asarray(LENGTHS)[:, None] // 2) * real(LENGTHS))
    if xlnet:
        found["types"][places == np.asarray(LENGTHS)[:, None] - 1] = 2
    inputs = inputs_of(model, found, config.get("pad_token_id") or 0)
    if "ForQuestionAnswering" in case.architecture:
        found["labels"] = np.int32([[1, 2], [0, 0], [1, 1]])
        output = model(**inputs)
        logits = torch.stack([output.start_logits, output.end_logits], dim=-1)
        logits = padded_at_the_end(logits) if xlnet else logits
        scored = logits.masked_fill(~torch.tensor(real(LENGTHS)).bool()[..., None], -torch.inf)
        loss = torch.nn.functional.cross_entropy(scored, torch.tensor(found["labels"]).long())
    else:
        scores = model.config.num_labels == 1
        if case.architecture.endswith("ForTokenClassification"):
            marked = real(LENGTHS) * (places % 3 != 0)
            found["labels"] = np.where(marked, ids % 3, -1).astype(np.int32)
        else:
            found["labels"] = np.float32([0.5, -1.0, 2.0]) if scores else np.int32([2, 0, 1])
        of_tokens = found["labels"].ndim == 2
        answers = torch.tensor(padded_in_front(found["labels"], -1) if xlnet and of_tokens else found["labels"])
        output = model(**inputs, labels=answers if scores else answers.long().masked_fill(answers < 0, -100))
        logits, loss = padded_at_the_end(output.logits) if xlnet and of_tokens else output.logits, output.loss
    loss.backward()
    found |= {"logits": logits.detach().numpy(), "loss": loss.detach().numpy()}
    with torch.no_grad():
        for name, weights in model.named_parameters():
            # XLNet's vector of predicted tokens is read by nothing.
            change = 0 if weights.grad is None else LEARNING_RATE * weights.grad
            found[f"updated/{name}"] = (weights - change).numpy()
    about = {"architecture": case.architecture, "config": config, "shapes": shapes, "seed": case.seed}
    return about | {"learning_rate": LEARNING_RATE}, found


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    FOLDER.mkdir(exist_ok=True)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        about, arrays = record(case)
        arrays = {key: value.astype(np.float32) if value.dtype.kind == "f" else value for key, value in arrays.items()}
        path = FOLDER / f"{name}.npz"
        np.savez_compressed(path, about=json.dumps(about | {"versions": versions}, sort_keys=True), **arrays)
        print(f"{name}: {path.stat().st_size} bytes, loss {arrays['loss']:.3f}, logits {arrays['logits'].shape}")


if __name__ == "__main__":
    main()
