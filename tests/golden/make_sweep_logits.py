"""Compute by transformers what every variation of every key of config.json gives: the first half of `make hf`.

It runs in the environment of README.md and writes a folder that tests/golden/compare_sweep.py reads: for each case of
make_config_sweep.py a file with its variations, and with every array once.

    .hf/bin/python tests/golden/make_sweep_logits.py FOLDER [case ...]
"""

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_config_sweep import CASES, SEED, START, compute, variations

# Keys without effect on the logits of one text may have one on the cache of a text that grows, or on dropout.
USED = ("attention_chunk_size", "is_causal", "is_decoder", "is_encoder_decoder", "layer_types", "sliding_window")
USED_PARTS = ("drop", "token_id")


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for case in sys.argv[2:] or CASES:
        kind, stated = CASES[case]
        base = {"model_type": case.split()[0], "architectures": [kind], **stated}
        arrays: dict[bytes, tuple[str, np.ndarray]] = {}

        def number(value: np.ndarray, arrays: dict[bytes, tuple[str, np.ndarray]] = arrays) -> str:
            content = str(value.shape).encode() + value.tobytes()
            return arrays.setdefault(content, (f"a{len(arrays)}", value))[0]

        entries: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            for key, value, config in [("", None, base), *variations(case)]:
                entry = {"key": key, "value": value, "config": config}
                used = not key or key in USED or any(part in key for part in USED_PARTS)
                try:
                    computed = compute(kind, config, Path(folder), used=used)
                except Exception:  # whatever it is: there is no model of this config
                    entries.append(entry)
                    continue
                named = {name: number(array) for name, array in computed.inputs.items()}
                outputs = {name: number(array) for name, array in computed.outputs.items()}
                uses = {name: number(array) for name, array in computed.uses.items()}
                entries.append({**entry, "shapes": computed.shapes, "inputs": named, "outputs": outputs, "uses": uses})
        about = {"architecture": kind, "seed": SEED, "start": START, "entries": entries}
        np.savez_compressed(out / f"{case.replace(' ', '+')}.npz", about=json.dumps(about), **dict(arrays.values()))
        print(case, len(entries), "variations,", len(arrays), "arrays", flush=True)


if __name__ == "__main__":
    main()
