"""Record one step of fine-tuning of encoders that classify texts or tokens or find an answer, by transformers.

To run it, in the environment of make_families.py: golden/bin/python tests/golden/make_classifiers.py

It writes tests/golden/classifiers/<case>.npz, with the weights rebuilt as in make_families.py:

    about             JSON: architecture, config, shapes, seed, learning_rate, versions
    ids, lengths, types, labels    the batch, padded at the end; labels are classes [B], scores [B] with one label,
                      classes of tokens [B, T] with -1 where there is none, or the first and the last token of an
                      answer [B, 2]
    logits, loss      [B, C], [B, T, C] or [B, T, 2], and the mean loss, without dropout; padding is no answer
    updated/<tensor>  every tensor after one step of plain gradient descent
"""

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from cases import BERT, POSITIONS, Case
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
}


def record(case: Case) -> tuple[dict, dict[str, np.ndarray]]:
    """What the file says of a case, and its arrays."""
    model, config, shapes = load(case)
    ids = padded(LENGTHS, config.get("pad_token_id") or 0, seed=1)
    found = {"ids": ids, "lengths": np.int32(LENGTHS)}
    inputs = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(real(LENGTHS))}
    if model.config.type_vocab_size > 1:
        found["types"] = np.int32((np.arange(max(LENGTHS)) >= np.asarray(LENGTHS)[:, None] // 2) * real(LENGTHS))
        inputs["token_type_ids"] = torch.tensor(found["types"]).long()
    if case.architecture.endswith("ForQuestionAnswering"):
        found["labels"] = np.int32([[1, 2], [0, 0], [1, 1]])
        output = model(**inputs)
        logits = torch.stack([output.start_logits, output.end_logits], dim=-1)
        scored = logits.masked_fill(~torch.tensor(real(LENGTHS)).bool()[..., None], -torch.inf)
        loss = torch.nn.functional.cross_entropy(scored, torch.tensor(found["labels"]).long())
    else:
        scores = model.config.num_labels == 1
        if case.architecture.endswith("ForTokenClassification"):
            marked = real(LENGTHS) * (np.arange(max(LENGTHS)) % 3 != 0)
            found["labels"] = np.where(marked, ids % 3, -1).astype(np.int32)
        else:
            found["labels"] = np.float32([0.5, -1.0, 2.0]) if scores else np.int32([2, 0, 1])
        answers = torch.tensor(found["labels"])
        output = model(**inputs, labels=answers if scores else answers.long().masked_fill(answers < 0, -100))
        logits, loss = output.logits, output.loss
    loss.backward()
    found |= {"logits": logits.detach().numpy(), "loss": loss.detach().numpy()}
    with torch.no_grad():
        for name, weights in model.named_parameters():
            found[f"updated/{name}"] = (weights - LEARNING_RATE * weights.grad).numpy()
    about = {"architecture": case.architecture, "config": config, "shapes": shapes, "seed": case.seed}
    return about | {"learning_rate": LEARNING_RATE}, found


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    FOLDER.mkdir(exist_ok=True)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    for name, case in CASES.items():
        about, arrays = record(case)
        arrays = {key: value.astype(np.float32) if value.dtype.kind == "f" else value for key, value in arrays.items()}
        path = FOLDER / f"{name}.npz"
        np.savez_compressed(path, about=json.dumps(about | {"versions": versions}, sort_keys=True), **arrays)
        print(f"{name}: {path.stat().st_size} bytes, loss {arrays['loss']:.3f}, logits {arrays['logits'].shape}")


if __name__ == "__main__":
    main()
