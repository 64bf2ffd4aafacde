"""The named benchmarks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.benchmarks.benchmark import Benchmark, BenchmarkProgram, PythonInterpreter


def _own_program(name: str) -> tuple[str, ...]:
    return "-m", f"experiments.benchmarks.programs.{name}"


def _peer_program(name: str) -> tuple[str, ...]:
    return (f"experiments/benchmarks/peers/{name}.py",)


DECODER_10M: Mapping[str, Any] = {
    **{"layers": 6, "width": 384, "heads": 6, "feed_forward": 1536, "context": 256, "rows": 8, "vocabulary": 8192},
    "model": {"scan_unroll": 6},
}


def _decoder(description: str, *, threads: int = 2, steps: int = 10, **sizes: Any) -> Benchmark:
    """A training step of one decoder, in float32 and on a CPU unless `sizes` say otherwise."""
    settings = {"dtype": "float32", "device": "cpu", "warmup_steps": 3, "steps": steps, "seed": 0, **sizes}
    torch_settings = {**settings, "threads": threads, "compile": False}
    return Benchmark(
        description,
        {
            "headwise": BenchmarkProgram(_own_program("decoder_training_step"), settings),
            "plain Linen": BenchmarkProgram(_peer_program("linen_decoder"), settings),
            "PyTorch eager": BenchmarkProgram(_peer_program("torch_decoder"), torch_settings, PythonInterpreter.PEERS),
            "PyTorch compiled": BenchmarkProgram(
                _peer_program("torch_decoder"), {**torch_settings, "compile": True}, PythonInterpreter.PEERS
            ),
        },
        units_per_repetition=settings["rows"] * settings["context"],
        unit_name="tokens",
    )


def _encoder_decoder(description: str, **sizes: Any) -> Benchmark:
    """A training step of one encoder-decoder, in float32 on a CPU."""
    settings = {"dtype": "float32", "warmup_steps": 2, "steps": 6, "seed": 0, **sizes}
    peer = _peer_program("torch_encoder_decoder")
    torch_settings = {**settings, "threads": 2, "compile": False}
    return Benchmark(
        description,
        {
            "headwise": BenchmarkProgram(_own_program("encoder_decoder_training_step"), settings),
            "PyTorch eager": BenchmarkProgram(peer, torch_settings, PythonInterpreter.PEERS),
            "PyTorch compiled": BenchmarkProgram(peer, {**torch_settings, "compile": True}, PythonInterpreter.PEERS),
        },
        units_per_repetition=2 * settings["rows"] * settings["context"],
        unit_name="tokens",
    )


def _head(description: str, **sizes: Any) -> Benchmark:
    """The loss of a vocabulary's logits with its gradients."""
    settings = {"at_once": 0, "dtype": "float32", "repeats": 3, "seed": 0, **sizes}
    head = BenchmarkProgram(_own_program("vocabulary_head"), settings)
    return Benchmark(description, {"head": head}, settings["rows"] * settings["length"], "tokens")


def _lstm(width: int, rows: int, length: int) -> Benchmark:
    """The gradient of an LSTM layer, in float32 on a CPU."""
    settings = {"width": width, "rows": rows, "length": length, "warmup_steps": 3, "steps": 50, "seed": 0}
    return Benchmark(
        f"forward and backward pass of an LSTM of {width} over {rows} rows of {length} steps",
        {
            "headwise": BenchmarkProgram(_own_program("lstm_gradient"), settings),
            "PyTorch eager": BenchmarkProgram(
                _peer_program("torch_lstm"), {**settings, "threads": 2}, PythonInterpreter.PEERS
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
            "headwise": BenchmarkProgram(_own_program("greedy_decoding"), {**settings, "cache": True}),
            "without a cache": BenchmarkProgram(
                _own_program("greedy_decoding"), {**settings, "cache": False, "padded": 32, "repeats": 1}
            ),
            "Hugging Face generate": BenchmarkProgram(
                _peer_program("torch_generate"), {**settings, "threads": 2, "repeats": 1}, PythonInterpreter.PEERS
            ),
        },
        units_per_repetition=settings["rows"],
        unit_name="tokens",
    )


class _CompiledStep(NamedTuple):
    """A training step to be compiled by several programs, for devices that need not be there, and never run.

    Attributes:
        topology: The devices.
        sizes: Of the model and its batch.
        config: What our config says beside `sizes`, which peers have as it is.
    """

    topology: str
    sizes: Mapping[str, Any]
    config: Mapping[str, Any] = {}

    def ours(self, *, logits: str = "float32", **model: Any) -> BenchmarkProgram:
        """Our step, with these keys of `config.model`."""
        changes = {
            **self.config,
            "num_microbatches": self.sizes["num_microbatches"],
            "task": {
                "batching": "windows",
                "batch_size": self.sizes["rows"],
                "context_length": self.sizes["context"],
            },
            "model": {**self.config.get("model", {}), **model},
            "precision": {"compute": "bfloat16", "logits": logits},
        }
        file = "experiments/language_modeling/configs/gpt.py"
        return BenchmarkProgram(
            _own_program("step_compilation"), {"topology": self.topology, "file": file, "changes": changes}
        )

    def peer(self, name: str, interpreter: PythonInterpreter, **settings: Any) -> BenchmarkProgram:
        """The step of `experiments/benchmarks/peers/compiled_NAME.py`."""
        (file,) = _peer_program(f"compiled_{name}")
        settings = {"topology": self.topology, "file": file, "sizes": {**self.sizes, **settings}}
        return BenchmarkProgram(_own_program("step_compilation"), settings, interpreter)

    def maxtext(self, remat_policy: str, *, scan_layers: bool = True) -> BenchmarkProgram:
        """MaxText's step."""
        settings = {"attention": "cudnn_flash_jax", "remat_policy": remat_policy, "scan_layers": scan_layers}
        return self.peer("maxtext", PythonInterpreter.PEERS, **settings)


def _overhead(part: str, description: str, *, steps: int, units: int = 1) -> Callable[[Mapping[str, Any]], Benchmark]:
    """What a part of a run adds to its bare step, for the values of an experiment."""

    def make_benchmark(config: Mapping[str, Any]) -> Benchmark:
        settings = {"part": part, "config": config, "steps": steps, "repeats": 3}
        return Benchmark(
            f"{description}, {config['name']}",
            {part: BenchmarkProgram(_own_program("run_overhead"), settings)},
            units,
            "steps",
        )

    return make_benchmark


COMPILED_GPT2 = _CompiledStep(
    "h100:1",
    {"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072, "context": 1024, "rows": 512}
    | {"vocabulary": 50257, "num_microbatches": 32},
)
SIZES_1_3B = {"layers": 24, "width": 2048, "heads": 16, "feed_forward": 8192}
COMPILED_1_3B = _CompiledStep(
    "h100:8",
    {**SIZES_1_3B, "context": 2048, "rows": 512, "vocabulary": 50257, "num_microbatches": 8},
    {
        "sharding": {"data": 1, "fsdp": -1, "rules": "fsdp"},
        # GPT-2's architecture, because MaxText's GPT-3 has no local layers.
        "model": {"size": None, "family": "decoder", "activation": "gelu_tanh", "norm_placement": "pre", **SIZES_1_3B}
        | {"positions": "learned", "max_length": 2048, "dropout": 0.0, "attention_dropout": 0.0},
    },
)

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
                _own_program("training_step_breakdown"),
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
                _own_program("beam_search"),
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
                _own_program("training_step_compilation"),
                {"layers": 24, "width": 256, "heads": 4, "feed_forward": 1024, "context": 128, "rows": 4}
                | {"vocabulary": 1000, "dtype": "float32", "seed": 0},
            )
        },
        units_per_repetition=1,
        unit_name="steps",
    ),
    "compiled_gpt2": Benchmark(
        "training step of GPT-2 small compiled for one H100, 512 rows of 1,024 tokens in 32 microbatches, per step",
        {
            "headwise, unrolled": COMPILED_GPT2.ours(remat="none", scan_unroll=12),
            "headwise, scanned": COMPILED_GPT2.ours(remat="none"),
            "headwise, scanned, remat dots": COMPILED_GPT2.ours(remat="dots"),
            "headwise, scanned, remat full": COMPILED_GPT2.ours(remat="full"),
            "headwise, unrolled, bfloat16 logits": COMPILED_GPT2.ours(remat="none", scan_unroll=12, logits="bfloat16"),
            "headwise, scanned, remat dots, bfloat16 logits": COMPILED_GPT2.ours(remat="dots", logits="bfloat16"),
            "headwise, scanned, remat full, bfloat16 logits": COMPILED_GPT2.ours(remat="full", logits="bfloat16"),
            "plain JAX, unrolled": COMPILED_GPT2.peer("plain_jax", PythonInterpreter.OWN, unroll=12),
            "plain JAX, scanned": COMPILED_GPT2.peer("plain_jax", PythonInterpreter.OWN, unroll=1),
            "nanodo": COMPILED_GPT2.peer("nanodo", PythonInterpreter.PEERS, remat=False),
            "MaxText, unrolled, remat minimal": COMPILED_GPT2.maxtext("minimal", scan_layers=False),
            "MaxText, scanned, remat minimal": COMPILED_GPT2.maxtext("minimal"),
            "MaxText, scanned, remat full": COMPILED_GPT2.maxtext("full"),
        },
        units_per_repetition=1,
        unit_name="steps",
    ),
    "compiled_1_3b": Benchmark(
        "training step of a decoder of 1.3 billion parameters compiled for eight H100s with FSDP, 512 rows of 2,048 "
        "tokens in 8 microbatches, per step and GPU",
        {
            "headwise, remat dots": COMPILED_1_3B.ours(remat="dots"),
            "headwise, remat dots, bfloat16 logits": COMPILED_1_3B.ours(remat="dots", logits="bfloat16"),
            "headwise, remat full, bfloat16 logits": COMPILED_1_3B.ours(remat="full", logits="bfloat16"),
            "MaxText, remat minimal": COMPILED_1_3B.maxtext("minimal"),
            "MaxText, remat full": COMPILED_1_3B.maxtext("full"),
        },
        units_per_repetition=1,
        unit_name="steps",
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
        **{**SIZES_1_3B, "context": 2048, "rows": 8},
        vocabulary=50304,
        model={"remat": "attention"},
    ),
}


def _first_step(config: Mapping[str, Any]) -> Benchmark:
    program = BenchmarkProgram(_own_program("time_to_first_step"), {"config": config})
    description = f"from the start of a process to the end of the first step, {config['name']}"
    return Benchmark(description, {"first_step": program}, 1, "steps")


def _first_page(config: Mapping[str, Any]) -> Benchmark:
    program = BenchmarkProgram(_own_program("time_to_first_page"), {"config": config})
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
