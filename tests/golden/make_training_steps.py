"""Record the loss of encoder-decoders and XGLM before and after one step of gradient descent, by transformers.

Recorded with Python 3.13, torch 2.13.0 (CPU), transformers 5.24.0 and numpy 2.4.6, from the root of the checkout:

    golden/bin/python tests/golden/make_training_steps.py

It writes tests/golden/training_steps.json: for each case of families/*.npz the mean cross-entropy of its batch, whose
labels are the next tokens of the target, before and after the step, and its rate. Nothing is dropped, and the bias of
the logits is not trained, which is a constant there.
"""

import json
from pathlib import Path

import torch
import transformers
from cases import CASES
from make_families import LENGTHS, TARGET_LENGTHS, load, padded, real

FILE, RATE = Path(__file__).with_name("training_steps.json"), 0.05
NAMES = ("bart", "m2m_100", "xglm")


def losses(name: str) -> list[float]:
    """The loss before and after the step."""
    model, config, _ = load(CASES[name])
    pad, decodes = config["pad_token_id"], CASES[name].kind == "encoder_decoder"
    inputs = {"input_ids": torch.tensor(padded(LENGTHS, pad, 1)).long(), "attention_mask": torch.tensor(real(LENGTHS))}
    read, mask = inputs["input_ids"], inputs["attention_mask"]
    if decodes:
        read = torch.tensor(padded(TARGET_LENGTHS, pad, 2, config["decoder_start_token_id"])).long()
        mask = torch.tensor(real(TARGET_LENGTHS))
        inputs |= {"decoder_input_ids": read, "decoder_attention_mask": mask}
    labels = torch.where(mask[:, 1:] > 0, read[:, 1:], -100)
    found = []
    for _ in range(2):
        logits = model(**inputs, return_dict=True).logits[:, :-1].double()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        found.append(loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for value in model.parameters():
                value -= RATE * value.grad
    return found


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    content = {"rate": RATE, "losses": {name: losses(name) for name in NAMES}}
    FILE.write_text(json.dumps(content) + "\n")
    print(content)


if __name__ == "__main__":
    main()
