"""What memory a large published folder takes: its import, `transformer.load` and its export. Prints figures.

    python -m tests.huggingface.measure_large_folder --layers=28 --width=3072 --feed_forward=8192

It writes a folder of Llama's shapes with random bfloat16 weights, in shards, and lets a process of its own do each. The
memory is the largest resident memory of the process without pages of files, which the system takes back when it needs
them, sampled every 20 ms and given as a multiple of the weights in bfloat16.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tokenizers

from transformer.data.tokenizers.token_text import byte_characters
from transformer.huggingface.convert import CONVERSIONS
from transformer.huggingface.parameter_conversion import parameter_shapes, plan_file_tensors
from transformer.huggingface.safetensors_files import TensorSpec, write_tensors
from transformer.layers.functional_module import Precision
from transformer.models.registry import build, model_config

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 1 << 22
LOAD = "import sys, transformer; transformer.load(sys.argv[1], dtype='bfloat16')"


def llama_config(layers: int, width: int, feed_forward: int, vocabulary: int) -> dict[str, Any]:
    """The config.json of a Llama of heads of 128 features, of which three queries share a key."""
    heads = width // 128
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": feed_forward,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 3 if heads % 3 == 0 else heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }


def write_folder(folder: Path, config: Mapping[str, Any]) -> int:
    """Write a folder of random weights, one at a time, with a tokenizer of bytes; return the size of its weights."""
    family = CONVERSIONS[config["model_type"]]
    section, interface = family.convert_config(dict(config), frozenset())
    shapes = build(model_config(section), interface, Precision()).functional.shapes()
    plan = plan_file_tensors(family, parameter_shapes(shapes))
    # One block of numbers over and over: to draw billions takes longer than to convert them.
    block = (np.random.default_rng(0).normal(size=BLOCK) / 50).astype(ml_dtypes.bfloat16)
    specs = {planned.tensor_name: TensorSpec("BF16", planned.shape) for planned in plan}

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for name, spec in specs.items():
            yield name, np.resize(block, spec.shape)

    write_tensors(folder, specs, tensors())
    (folder / "config.json").write_text(json.dumps(config))
    pieces = {piece: number for number, piece in enumerate(byte_characters())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return sum(spec.num_bytes for spec in specs.values())


def resident_bytes(process: int) -> int:
    """The resident memory of a process, without pages of files; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def measure_peak(words: list[str]) -> tuple[int, float]:
    """Run a program; return the peak of its memory in bytes and its seconds.

    Raises:
        RuntimeError: If it fails.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    begun, peak = time.monotonic(), 0
    running = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    while running.poll() is None:
        peak = max(peak, resident_bytes(running.pid))
        time.sleep(0.02)
    if running.returncode:
        raise RuntimeError(f"{words[:3]} ended with code {running.returncode}")
    return peak, time.monotonic() - begun


def main() -> None:
    """Write the folder, let each command read or write it, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--feed_forward", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--parent", default=None, help="where the folder is written (default: the temporary folder)")
    arguments = parser.parse_args()
    shapes = (arguments.layers, arguments.width, arguments.feed_forward, arguments.vocabulary)
    parent = Path(tempfile.mkdtemp(prefix="large_folder", dir=arguments.parent))
    try:
        folder, run, out, text = (parent / name for name in ("folder", "run", "out", "text"))
        for directory in (folder, text):
            directory.mkdir()
        for split in ("train", "validation", "test"):
            (text / f"{split}.txt").write_text("What is two and two? " * 50)
        size = write_folder(folder, llama_config(*shapes))
        shards = len(list(folder.glob("*.safetensors")))
        print(f"{size / 1e9:.2f} GB of bfloat16 in {shards} file(s)", flush=True)
        convert = ["-m", "launch.convert", f"--workdir={run}"]
        data = ["--dtype=bfloat16", f"--dataset={text}", "--context_length=16"]
        programs = {
            "transformer.load": ["-c", LOAD, str(folder)],
            "convert --from_pretrained": [*convert, f"--from_pretrained={folder}", *data],
            "convert --save_pretrained": [*convert, f"--save_pretrained={out}"],
        }
        for name, words in programs.items():
            if name == "convert --save_pretrained":
                shutil.rmtree(folder)
            peak, seconds = measure_peak(words)
            print(f"{name}: {peak / 1e9:.2f} GB, {peak / size:.2f} x the weights, {seconds:.0f} s", flush=True)
        print(f"exported in {len(list(out.glob('*.safetensors')))} file(s)")
    finally:
        shutil.rmtree(parent)


if __name__ == "__main__":
    main()
