"""The named benchmarks."""

from collections.abc import Callable, Mapping
from typing import Any

from transformer.benchmarks.benchmark import Benchmark, BenchmarkProgram, PythonInterpreter

OVERHEAD = ("-m", "transformer.benchmarks.programs.run_overhead")
DECODER_TRAINING_STEP = ("-m", "transformer.benchmarks.programs.decoder_training_step")
DECODE, BEAM = (("-m", f"transformer.benchmarks.programs.{name}") for name in ("greedy_decoding", "beam_search"))
ENCODER_DECODER_TRAINING_STEP = ("-m", "transformer.benchmarks.programs.encoder_decoder_training_step")
STEP_COMPILATION = ("-m", "transformer.benchmarks.programs.step_compilation")
HUGGING_FACE = ("experiments/benchmarks/torch_generate.py",)
LINEN, TORCH = ("experiments/benchmarks/linen_decoder.py",), ("experiments/benchmarks/torch_decoder.py",)

MAXTEXT = {"attention": "cudnn_flash_jax"}

DECODER_10M: Mapping[str, Any] = {
    **{"layers": 6, "width": 384, "heads": 6, "feed_forward": 1536, "context": 256, "rows": 8, "vocabulary": 8192},
    "model": {"scan_unroll": 6},
}


def _decoder(description: str, *, threads: int = 2, steps: int = 10, **sizes: Any) -> Benchmark:
    """A training step of one decoder, in float32 and on a CPU unless `sizes` say otherwise."""
    settings = {"dtype": "float32", "device": "cpu", "warmup_steps": 3, "steps": steps, "seed": 0, **sizes}
    of_torch = {**settings, "threads": threads, "compile": False}
    return Benchmark(
        description,
        {
            "headwise": BenchmarkProgram(DECODER_TRAINING_STEP, settings),
            "plain Linen": BenchmarkProgram(LINEN, settings),
            "PyTorch eager": BenchmarkProgram(TORCH, of_torch, PythonInterpreter.PEERS),
            "PyTorch compiled": BenchmarkProgram(TORCH, {**of_torch, "compile": True}, PythonInterpreter.PEERS),
        },
        units_per_repetition=settings["rows"] * settings["context"],
        unit_name="tokens",
    )


def _encoder_decoder(description: str, **sizes: Any) -> Benchmark:
    """A training step of one encoder-decoder, in float32 on a CPU."""
    settings = {"dtype": "float32", "warmup_steps": 2, "steps": 6, "seed": 0, **sizes}
    peer = ("experiments/benchmarks/torch_encoder_decoder.py",)
    of_torch = {**settings, "threads": 2, "compile": False}
    return Benchmark(
        description,
        {
            "headwise": BenchmarkProgram(ENCODER_DECODER_TRAINING_STEP, settings),
            "PyTorch eager": BenchmarkProgram(peer, of_torch, PythonInterpreter.PEERS),
            "PyTorch compiled": BenchmarkProgram(peer, {**of_torch, "compile": True}, PythonInterpreter.PEERS),
        },
        units_per_repetition=2 * settings["rows"] * settings["context"],
        unit_name="tokens",
    )


def _head(description: str, **sizes: Any) -> Benchmark:
    """The loss of a vocabulary's logits with its gradients."""
    settings = {"at_once": 0, "dtype": "float32", "repeats": 3, "seed": 0, **sizes}
    head = BenchmarkProgram(("-m", "transformer.benchmarks.programs.vocabulary_head"), settings)
    return Benchmark(description, {"head": head}, settings["rows"] * settings["length"], "tokens")


def _lstm(width: int, rows: int, length: int) -> Benchmark:
    """The gradient of an LSTM layer, in float32 on a CPU."""
    settings = {"width": width, "rows": rows, "length": length, "warmup_steps": 3, "steps": 50, "seed": 0}
    return Benchmark(
        f"forward and backward pass of an LSTM of {width} over {rows} rows of {length} steps",
        {
            "headwise": BenchmarkProgram(("-m", "transformer.benchmarks.programs.lstm_gradient"), settings),
            "PyTorch eager": BenchmarkProgram(
                ("experiments/benchmarks/torch_lstm.py",), {**settings, "threads": 2}, PythonInterpreter.PEERS
            ),
        },
        units_per_repetition=rows * length,
        unit_name="steps of a row",
    )


def _decode(description: str, **sizes: Any) -> Benchmark:
    """A greedily generated token behind a short prompt, the prompt's share included, in float32 on a CPU."""
    settings = {"dtype": "float32", "device": "cpu", "repeats": 3, "seed": 0, **sizes}
    return Benchmark(
        description,
        {
            "headwise": BenchmarkProgram(DECODE, {**settings, "cache": True}),
            "without a cache": BenchmarkProgram(DECODE, {**settings, "cache": False, "padded": 32, "repeats": 1}),
            "Hugging Face generate": BenchmarkProgram(
                HUGGING_FACE, {**settings, "threads": 2, "repeats": 1}, PythonInterpreter.PEERS
            ),
        },
        units_per_repetition=settings["rows"],
        unit_name="tokens",
    )


def _compiled(
    description: str, topology: str, ours: Mapping[str, Any], sizes: Mapping[str, Any], variants: Mapping[str, Any]
) -> Benchmark:
    """Training steps compiled for devices that need not be there, and never run.

    Args:
        description: What is compiled.
        topology: The devices.
        ours: Changes of the config `experiments/language_modeling/configs/gpt.py`.
        sizes: The same sizes for the peers.
        variants: By the name of each program: for ours, changes of `ours`; for peers, changes of `sizes`.
    """
    peers = {
        "plain JAX": ("compiled_plain_jax.py", PythonInterpreter.OWN),
        "nanodo": ("compiled_nanodo.py", PythonInterpreter.PEERS),
        "MaxText": ("compiled_maxtext.py", PythonInterpreter.PEERS),
    }

    def program(name: str, changes: Mapping[str, Any]) -> BenchmarkProgram:
        who = name.split(",")[0]
        if who == "headwise":
            config = {
                **ours,
                "model": {**ours.get("model", {}), **changes["model"]},
                "precision": {"compute": "bfloat16", "logits": changes.get("logits", "float32")},
            }
            file = "experiments/language_modeling/configs/gpt.py"
            return BenchmarkProgram(STEP_COMPILATION, {"topology": topology, "file": file, "changes": config})
        file, interpreter = peers[who]
        settings = {"topology": topology, "file": f"experiments/benchmarks/{file}", "sizes": {**sizes, **changes}}
        return BenchmarkProgram(STEP_COMPILATION, settings, interpreter)

    programs = {name: program(name, changes) for name, changes in variants.items()}
    return Benchmark(description, programs, units_per_repetition=1, unit_name="steps")


def _overhead(part: str, description: str, *, steps: int, units: int = 1) -> Callable[[Mapping[str, Any]], Benchmark]:
    """What a part of a run adds to its bare step, for the values of an experiment."""

    def of_config(config: Mapping[str, Any]) -> Benchmark:
        settings = {"part": part, "config": config, "steps": steps, "repeats": 3}
        return Benchmark(
            f"{description}, {config['name']}", {part: BenchmarkProgram(OVERHEAD, settings)}, units, "steps"
        )

    return of_config


# Those of sizes of their own.
BENCHMARKS: Mapping[str, Benchmark] = {
    "decoder_1m": _decoder(
        "training step of a decoder of 4 layers, width 128, context 64, batch 12, vocabulary 65",
        steps=100,
        model={"scan_unroll": 4},  # as every experiment for a CPU says
        **{"layers": 4, "width": 128, "heads": 4, "feed_forward": 512, "context": 64, "rows": 12, "vocabulary": 65},
    ),
    "decoder_10m": _decoder(
        "training step of a decoder of 6 layers, width 384, context 256, batch 8, vocabulary 8,192",
        **DECODER_10M,
    ),
    "encoder_decoder_base": _encoder_decoder(
        "training step of Transformer base, 8 pairs of 32 tokens, vocabulary 8,192",
        model={"scan_unroll": 6},
        **{"layers": 6, "width": 512, "heads": 8, "feed_forward": 2048, "context": 32, "rows": 8, "vocabulary": 8192},
    ),
    "vocabulary_head": _head(
        "loss and gradients of GPT-2 small's logits, 2 texts of 1,024 tokens, a quarter of the logits at once",
        **{"rows": 2, "length": 1024, "width": 768, "vocabulary": 50257, "at_once": 2 * 256 * 50257},
    ),
    "parts": Benchmark(
        "the parts of the training step of decoder_10m, each compiled with its gradient, for all layers together",
        {
            "parts": BenchmarkProgram(
                ("-m", "transformer.benchmarks.programs.training_step_breakdown"),
                {"dtype": "float32", "warmup_steps": 2, "steps": 5, "seed": 0, **DECODER_10M},
            )
        },
        units_per_repetition=1,
        unit_name="steps",
    ),
    "decode": _decode(
        "a token of 256 by a decoder of GPT-2's shapes, batch 1, greedy",
        **{"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072, "context": 1024, "rows": 1},
        **{"vocabulary": 50257, "prompt": 8, "tokens": 256},
    ),
    "beam": Benchmark(
        "a step of beam search, 4 beams of 2 examples, beside 8 greedy rows: 6 layers, width 384, vocabulary 8,192",
        {
            "beam": BenchmarkProgram(
                BEAM,
                {"layers": 6, "width": 384, "heads": 6, "feed_forward": 1536, "context": 512, "rows": 8}
                | {"vocabulary": 8192, "num_beams": 4, "prompt": 8, "tokens": 128, "repeats": 5}
                | {"dtype": "float32", "seed": 0},
            )
        },
        units_per_repetition=1,
        unit_name="steps",
    ),
    "lstm": _lstm(width=256, rows=32, length=64),
    "compile": Benchmark(
        "compiling the training step of a decoder of 24 layers, width 256",
        {
            "compile": BenchmarkProgram(
                ("-m", "transformer.benchmarks.programs.training_step_compilation"),
                {"layers": 24, "width": 256, "heads": 4, "feed_forward": 1024, "context": 128, "rows": 4}
                | {"vocabulary": 1000, "dtype": "float32", "seed": 0},
            )
        },
        units_per_repetition=1,
        unit_name="steps",
    ),
    "compiled_gpt2": _compiled(
        "training step of GPT-2 small compiled for one H100, 512 rows of 1,024 tokens in 32 microbatches, per step",
        topology="h100:1",
        ours={
            "num_microbatches": 32,
            "task": {"batching": "windows", "batch_size": 512, "context_length": 1024},
        },
        sizes={
            **{"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072, "context": 1024, "rows": 512},
            **{"vocabulary": 50257, "num_microbatches": 32},
        },
        variants={
            "headwise, unrolled": {"model": {"remat": "none", "scan_unroll": 12}},
            "headwise, scanned": {"model": {"remat": "none"}},
            "headwise, scanned, remat dots": {"model": {"remat": "dots"}},
            "headwise, scanned, remat full": {"model": {"remat": "full"}},
            "headwise, unrolled, bfloat16 logits": {
                "model": {"remat": "none", "scan_unroll": 12},
                "logits": "bfloat16",
            },
            "headwise, scanned, remat dots, bfloat16 logits": {"model": {"remat": "dots"}, "logits": "bfloat16"},
            "headwise, scanned, remat full, bfloat16 logits": {"model": {"remat": "full"}, "logits": "bfloat16"},
            "plain JAX, unrolled": {"unroll": 12},
            "plain JAX, scanned": {"unroll": 1},
            "nanodo": {"remat": False},
            "MaxText, unrolled, remat minimal": {**MAXTEXT, "remat_policy": "minimal", "scan_layers": False},
            "MaxText, scanned, remat minimal": {**MAXTEXT, "remat_policy": "minimal", "scan_layers": True},
            "MaxText, scanned, remat full": {**MAXTEXT, "remat_policy": "full", "scan_layers": True},
        },
    ),
    "compiled_1_3b": _compiled(
        "training step of a decoder of 1.3 billion parameters compiled for eight H100s with FSDP, 512 rows of 2,048 "
        "tokens in 8 microbatches, per step and GPU",
        topology="h100:8",
        ours={
            "num_microbatches": 8,
            "task": {"batching": "windows", "batch_size": 512, "context_length": 2048},
            "sharding": {"data": 1, "fsdp": -1, "rules": "fsdp"},
            "model": {
                # GPT-2's architecture, because MaxText's GPT-3 has no local layers.
                **{"size": None, "family": "decoder", "activation": "gelu_tanh", "norm_placement": "pre"},
                **{"positions": "learned", "max_length": 2048, "dropout": 0.0, "attention_dropout": 0.0},
                **{"layers": 24, "width": 2048, "heads": 16, "feed_forward": 8192},
            },
        },
        sizes={
            **{"layers": 24, "width": 2048, "heads": 16, "feed_forward": 8192, "context": 2048, "rows": 512},
            **{"vocabulary": 50257, "num_microbatches": 8},
        },
        variants={
            "headwise, remat dots": {"model": {"remat": "dots"}},
            "headwise, remat dots, bfloat16 logits": {"model": {"remat": "dots"}, "logits": "bfloat16"},
            "headwise, remat full, bfloat16 logits": {"model": {"remat": "full"}, "logits": "bfloat16"},
            "MaxText, remat minimal": {**MAXTEXT, "remat_policy": "minimal", "scan_layers": True},
            "MaxText, remat full": {**MAXTEXT, "remat_policy": "full", "scan_layers": True},
        },
    ),
    "decoder_124m": _decoder(
        "training step of GPT-2 small at context 1,024, batch 16, in bfloat16 on one NVIDIA GPU",
        dtype="bfloat16",
        device="cuda",
        threads=0,
        **{"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072, "context": 1024, "rows": 16},
        vocabulary=50304,
        model={"scan_unroll": 12},
    ),
    "decoder_1_3b": _decoder(
        "training step of a decoder of 1.3 billion parameters at context 2,048, batch 8, in bfloat16 on one NVIDIA GPU",
        dtype="bfloat16",
        device="cuda",
        threads=0,
        **{"layers": 24, "width": 2048, "heads": 16, "feed_forward": 8192, "context": 2048, "rows": 8},
        vocabulary=50304,
        model={"remat": "attention"},
    ),
}


def _first_step(config: Mapping[str, Any]) -> Benchmark:
    program = BenchmarkProgram(("-m", "transformer.benchmarks.programs.time_to_first_step"), {"config": config})
    description = f"from the start of a process to the end of the first step, {config['name']}"
    return Benchmark(description, {"first_step": program}, 1, "steps")


def _first_page(config: Mapping[str, Any]) -> Benchmark:
    program = BenchmarkProgram(("-m", "transformer.benchmarks.programs.time_to_first_page"), {"config": config})
    return Benchmark(
        f"from the command to the first page of a run's maps, {config['name']}", {"first_page": program}, 1, "pages"
    )


# Those of an experiment.
EXPERIMENT_BENCHMARKS: Mapping[str, Callable[[Mapping[str, Any]], Benchmark]] = {
    "first_step": _first_step,
    "first_page": _first_page,
    "loop": _overhead("loop", "the loop, and the making of its batches, beside bare steps", steps=30, units=30),
    "capture": _overhead("capture", "a step with 8 rows and all statistics of every head captured", steps=30),
    "maps": _overhead("maps", "a step's share of a whole run, with and without maps", steps=30),
}
