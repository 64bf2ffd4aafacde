"""Record what the independent implementations give for every arrangement of a Transformer that they have.

Recorded with Python 3.11, torch 2.13.0 (CPU), transformers 5.23.0, safetensors 0.8.0 and numpy 2.4.6. To run it, from
the root of the checkout, in an environment of its own:

    python3 -m venv golden && golden/bin/pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    golden/bin/python tests/golden/make_families.py [case ...]

It writes tests/golden/families/<case>.npz; the tests read these and never run this script. The weights are not stored:
`weights.weights_of(architecture, shapes, seed)` rebuilds them bit by bit. They are float32; the models compute in
float64 where they can, though several go through float32 in norms, rotary angles and softmaxes. A file holds, with L
layers:

    about            JSON: architecture, kind, config (config.json as published), shapes (the tensors of
                     model.safetensors), seed, versions
    ids, lengths     int32 [B, T], [B]: the batch, padded at the end; types [B, T] where a model has token types;
                     target, target_lengths: what an encoder-decoder's decoder reads
    logits           [B, T, V], of the target for an encoder-decoder
    hidden           [L + 1, B, T, E]: what enters the first block, then what leaves each block; the last is behind
                     the final norm where there is one; encoder_hidden, decoder_hidden for an encoder-decoder
    attention        [L, B, H, T, T]; encoder_attention, decoder_attention, cross_attention for an encoder-decoder
    pooled, next_sentence           [B, E], [B, 2]: of BERT's pretraining heads
    prompts, prompt_lengths         int32 [P, T], [P]; each was continued alone, without padding
    losses           [3], where the case trains: the mean loss of the next tokens with the balance loss of experts, that
                     balance loss alone without its weight, and the first after a step of gradient descent of rate RATE
    generated        int32 [P, 8 or 32] greedy continuations of the prompts, never ended by a token; for an
                     encoder-decoder [B, <= 8] continuations of the start token, padded behind the end token; no token
                     is forced

Values at padded queries are zero here: they mean nothing. Floats are float32.
"""

import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import make_torch_cases
import numpy as np
import torch
import transformers
from cases import CASES, Case
from safetensors import safe_open
from safetensors.numpy import save_file
from weights import weights_of

FOLDER = Path(__file__).with_name("families")
LENGTHS, TARGET_LENGTHS, PROMPT_LENGTHS = (9, 5, 2), (4, 7, 2), (5, 2)
RATE = 0.05
FIRST_TOKEN, LAST_TOKEN = 6, 51  # those outside are special in one case or another
CLOSE = 1e-3  # greedy choices nearer than this could fall the other way in float32
VARIED = 3  # so many different tokens at least, or a wrong step could go unseen


def padded(lengths: tuple[int, ...], pad: int, seed: int, start: int | None = None) -> np.ndarray:
    """Random tokens of these lengths, padded at the end, behind `start` where it is given."""
    generator = np.random.default_rng(seed)
    ids = np.full((len(lengths), max(lengths)), pad, np.int32)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = generator.integers(FIRST_TOKEN, LAST_TOKEN + 1, length)
        if start is not None:
            row[0] = start
    return ids


def real(lengths: tuple[int, ...]) -> np.ndarray:
    """One where a token is real: [B, T]."""
    return (np.arange(max(lengths)) < np.asarray(lengths)[:, None]).astype(np.int64)


def load(case: Case) -> tuple[Any, dict[str, Any], dict[str, tuple[int, ...]]]:
    """The model from a folder like a published one, its config.json, and the shapes of its tensors."""
    kind = getattr(transformers, case.architecture)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kind(kind.config_class(**case.config)).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text()) | case.published
        config = {key: value for key, value in config.items() if key not in case.published or value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        with safe_open(folder / "model.safetensors", "np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118, safetensors has no iterator
        shapes |= case.untied
        save_file(weights_of(case.architecture, shapes, case.seed), folder / "model.safetensors", {"format": "pt"})
        model, report = kind.from_pretrained(
            folder,
            dtype=getattr(torch, case.dtype),
            attn_implementation="eager",
            experts_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
        )
    if any(report.values()):
        raise SystemExit(f"{case.architecture} did not take its weights: {report}")
    return model.eval(), config, shapes


def stacked(values: tuple[torch.Tensor, ...], lengths: tuple[int, ...], axis: int) -> np.ndarray:
    """The layers' arrays in one, zero at padded queries, which lie along `axis`."""
    array = torch.stack(tuple(values)).numpy()
    shape = [1] * array.ndim
    shape[1], shape[axis] = len(lengths), max(lengths)
    return array * real(lengths).reshape(shape)


def forward(model: Any, case: Case, pad: int, start: int) -> dict[str, np.ndarray]:
    """One pass over the padded batch."""
    ids = padded(LENGTHS, pad, seed=1)
    found = {"ids": ids, "lengths": np.int32(LENGTHS)}
    inputs = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(real(LENGTHS))}
    if case.architecture.startswith("XLNet"):
        del inputs["attention_mask"]  # its causal mask cannot be joined with padding, which it hides from real queries
    if case.kind == "encoder" and getattr(model.config, "type_vocab_size", 1) > 1:
        found["types"] = np.int32((np.arange(max(LENGTHS)) >= np.asarray(LENGTHS)[:, None] // 2) * real(LENGTHS))
        inputs["token_type_ids"] = torch.tensor(found["types"]).long()
    if case.kind == "encoder_decoder":
        found["target"], found["target_lengths"] = padded(TARGET_LENGTHS, pad, 2, start), np.int32(TARGET_LENGTHS)
        inputs["decoder_input_ids"] = torch.tensor(found["target"]).long()
        inputs["decoder_attention_mask"] = torch.tensor(real(TARGET_LENGTHS))
    output = model(**inputs, output_hidden_states=True, output_attentions=True, return_dict=True)
    logits = output.prediction_logits if "prediction_logits" in output else output.logits
    if case.kind == "encoder_decoder":
        found["logits"] = stacked((logits,), TARGET_LENGTHS, 2)[0]
        found["encoder_hidden"] = stacked(output.encoder_hidden_states, LENGTHS, 2)
        found["decoder_hidden"] = stacked(output.decoder_hidden_states, TARGET_LENGTHS, 2)
        found["encoder_attention"] = stacked(output.encoder_attentions, LENGTHS, 3)
        found["decoder_attention"] = stacked(output.decoder_attentions, TARGET_LENGTHS, 3)
        found["cross_attention"] = stacked(output.cross_attentions, TARGET_LENGTHS, 3)
        return found
    found["logits"] = stacked((logits,), LENGTHS, 2)[0]
    found["hidden"] = stacked(output.hidden_states, LENGTHS, 2)
    found["attention"] = stacked(output.attentions, LENGTHS, 3)
    if "seq_relationship_logits" in output:
        found["next_sentence"] = output.seq_relationship_logits.numpy()
        found["pooled"] = model.bert(**inputs).pooler_output.numpy()
    return found


def train(model: Any, pad: int) -> dict[str, np.ndarray]:
    """The losses of the batch, before and after a step on all parameters."""
    ids, mask = torch.tensor(padded(LENGTHS, pad, seed=1)).long(), torch.tensor(real(LENGTHS))
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)}
    before = model(**inputs)
    before.loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad
        after = model(**inputs)
    return {"losses": torch.stack([before.loss, before.aux_loss, after.loss]).detach().numpy()}


def continue_greedily(model: Any, new_tokens: int, **inputs: torch.Tensor) -> np.ndarray:
    """The tokens behind the prompt, or behind the start token of an encoder-decoder; refuses near ties and monotony."""
    output = model.generate(
        **inputs,
        do_sample=False,
        num_beams=1,
        max_new_tokens=new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = output.sequences[:, -len(output.logits) :]
    pad = model.generation_config.pad_token_id
    for step, logits in enumerate(output.logits):
        best, second = logits.topk(2).values.T
        margin = (best - second)[tokens[:, step] != pad]
        if margin.numel() and margin.min() < CLOSE:
            raise SystemExit(f"a greedy choice of {type(model).__name__} is {margin.min():.1e} from a tie: other seed")
    if len(tokens.unique()) < VARIED:
        raise SystemExit(f"{type(model).__name__} repeats itself: {tokens.tolist()}; take another seed")
    return tokens.int().numpy()


def generate(model: Any, case: Case, pad: int) -> dict[str, np.ndarray]:
    """Greedy continuations: of prompts one by one, or of a padded batch of sources."""
    settings = model.generation_config
    settings.pad_token_id, settings.forced_eos_token_id = pad, None
    if case.kind == "encoder_decoder":
        # Neither of them stands within a text, nor is one generated here.
        settings.suppress_tokens = sorted({pad, settings.decoder_start_token_id} - {settings.eos_token_id})
        source, mask = torch.tensor(padded(LENGTHS, pad, seed=1)).long(), torch.tensor(real(LENGTHS))
        return {"generated": continue_greedily(model, case.new_tokens, input_ids=source, attention_mask=mask)}
    settings.eos_token_id = None
    prompts = padded(PROMPT_LENGTHS, pad, seed=3)
    rows = []
    for prompt, length in zip(prompts, PROMPT_LENGTHS, strict=True):
        ids = torch.tensor(prompt[None, :length]).long()
        mask = torch.ones_like(ids)
        rows.append(continue_greedily(model, case.new_tokens, input_ids=ids, attention_mask=mask))
    return {"prompts": prompts, "prompt_lengths": np.int32(PROMPT_LENGTHS), "generated": np.concatenate(rows)}


def record(case: Case) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the file says about a case of transformers, and its arrays."""
    model, config, shapes = load(case)
    pad = config.get("pad_token_id") or 0
    with torch.no_grad():
        arrays = forward(model, case, pad, config.get("decoder_start_token_id"))
        if case.kind != "encoder" and case.generates:
            arrays |= generate(model, case, pad)
    if case.trains:
        arrays |= train(model, pad)
    about = {"architecture": case.architecture, "kind": case.kind, "config": config, "shapes": shapes}
    return about | {"seed": case.seed}, arrays


def write(name: str, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """One file, and one line that says how far its values are from trivial."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    arrays = {key: value.astype(np.float32) if value.dtype.kind == "f" else value for key, value in arrays.items()}
    for key, value in arrays.items():
        if not np.isfinite(value).all():
            raise SystemExit(f"{name}: {key} is not finite")
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, about=json.dumps(about | {"versions": versions}, sort_keys=True), **arrays)
    hidden = next(value for key, value in arrays.items() if key.endswith("hidden"))
    last = arrays.get("attention", arrays.get("encoder_attention"))[:, 0, :, -1]
    print(
        f"{name}: {path.stat().st_size} bytes, |logits| <= {np.abs(arrays['logits']).max():.1f}, "
        f"hidden std {' '.join(f'{layer[0].std():.1f}' for layer in hidden)}, "
        f"largest weight of the last query {last.max(-1).mean():.2f} of {last.shape[-1]} keys, "
        f"generated {arrays['generated'].tolist() if 'generated' in arrays else 'none'}"
    )


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    makers = {name: lambda case=case: record(case) for name, case in CASES.items()}
    makers |= {name: lambda name=name: make_torch_cases.record(name) for name in make_torch_cases.NAMES}
    for name in sys.argv[1:] or makers:
        write(name, *makers[name]())


if __name__ == "__main__":
    main()
