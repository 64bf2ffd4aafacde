r"""GPT-1 in miniature: a language model of plain text, fine-tuned on sentences of GLUE (Radford et al. 2018).

    mkdir -p runs/gpt1_text
    cat WIKITEXT/valid.txt WIKITEXT/test.txt > runs/gpt1_text/train.txt
    tail -n +2 GLUE/SST-2/train.tsv | cut -f1 >> runs/gpt1_text/train.txt
    cut -f4 GLUE/CoLA/raw/in_domain_train.tsv >> runs/gpt1_text/train.txt
    tail -n +2 GLUE/SST-2/dev.tsv | cut -f1 > runs/gpt1_text/validation.txt
    python -m launch.train --config=experiments/glue/configs/gpt1.py --workdir=runs/gpt1
    python -m launch.train --config=experiments/glue/configs/gpt1.py:lstm --workdir=runs/gpt1_lstm
    python -m launch.train --config=experiments/glue/configs/gpt1.py:SST-2 --workdir=runs/sst --data_dir=GLUE
    python -m launch.train --config=experiments/glue/configs/gpt1.py:CoLA --workdir=runs/cola --data_dir=GLUE
    python -m launch.evaluate --workdir=runs/cola --split=development
    python -m launch.maps --workdir=runs/cola

WIKITEXT holds valid.txt and test.txt of WikiText-2, GLUE the data as the task `classification` reads them. The text is
WikiText and the training sentences of both tasks without their labels. Pre-training takes five minutes and fine-tuning
two to three on one core. `launch.evaluate` prints the GLUE score on the development set as `glue`: accuracy of SST-2,
Matthews correlation of CoLA, both times 100. For the rows of the paper's table 5 over several seeds see
experiments/glue/configs/gpt1_ablation.py. Expect about 80 and 10, and with four times the pre-training
(`--config.steps=8000`, 20 minutes) 80.6 and 8: results/gpt1.md.

`gpt1.py:acceptability`, `:entailment`, `:similarity` and `:choice` train from scratch on synthetic problems, one for
each input transformation of the paper, and need no data.
"""

from typing import Literal

from ml_collections import ConfigDict

TEXT = "runs/gpt1_text"
MODEL = {
    "family": "decoder",
    "layers": 4,
    "width": 128,
    "heads": 4,
    "feed_forward": 512,
    "activation": "gelu",
    "norm_placement": "post",
    "initialization": "gpt",
    "dropout": 0.1,
    "max_length": 64,
    "scan_unroll": 4,
}
# Half a million numbers in the cell, where the Transformer's blocks have 0.8 million.
LSTM = {"family": "recurrent_decoder", "width": 256, "embedding_width": 256, "layers": 1, "dropout": 0.1}
# The table has three tokens more than the tokenizer: start, delimiter, extract.
RESIZED = {
    "decoder": ("resize embedding/table",),
    "lstm": ("resize embedding/table", "resize output/kernel", "resize output/bias"),
}
MADE = ("acceptability", "entailment", "similarity", "choice")


def get_config(
    part: Literal[
        "decoder", "lstm", "SST-2", "CoLA", "acceptability", "entailment", "similarity", "choice"
    ] = "decoder",
) -> ConfigDict:
    """Build the config: pre-training (decoder or lstm), fine-tuning on a GLUE task, or a synthetic task."""
    if part in ("decoder", "lstm"):
        return pretraining(part)
    return classification_from_scratch(part) if part in MADE else fine_tuning(part)


def pretraining(family: str) -> ConfigDict:
    """Build the pre-training config: 16 windows of 64 tokens, 2,000 steps, about one epoch."""
    return ConfigDict(
        {
            "name": "gpt1" if family == "decoder" else "gpt1_lstm",
            "seed": 1,
            "steps": 2000,
            "eval_every": 1000,
            "maps_every": 1000,
            "task": {
                "name": "language_modeling",
                # Its folder is the user's: --config.task.dataset.
                "dataset": TEXT,
                "context_length": 64,
                "test_split": "",
            },
            "model": MODEL if family == "decoder" else LSTM,
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 1e-3 if family == "decoder" else 3e-3,
                "schedule": "cosine",
                "warmup_steps": 200,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )


def fine_tuning(dataset: str) -> ConfigDict:
    """Build the fine-tuning config: 1,000 steps of 32 sentences; lambda is 0.5."""
    config = classification_from_scratch(dataset)
    config.name = f"gpt1_{dataset}"
    config.steps = 1000
    config.eval_every = 250
    config.maps_every = 250
    config.task.dataset = f"glue/{dataset}"
    config.task.tokenizer = "existing"
    config.task.test_split = "development"
    config.model = MODEL
    config.initialize_from = {
        "run": "runs/gpt1",
        "copy_tokenizer": True,
        "rules": ("classes/* = fresh", *RESIZED["decoder"]),
    }
    config.optimizer.learning_rate = 1e-3
    return config


def classification_from_scratch(problem: str) -> ConfigDict:
    """Build the config of a synthetic problem, with two layers of width 64."""
    return ConfigDict(
        {
            "name": f"gpt1_{problem}",
            "seed": 1,
            "steps": 2000,
            "task": {
                "name": "fine_tuning",
                "dataset": f"grammar/{problem}",
                "vocab_size": 512,
                "bucket_lengths": (32, 64),
                "num_probe_examples": 6,
            },
            "model": {
                **MODEL,
                "layers": 2,
                "width": 64,
                "feed_forward": 256,
                # GPT-1's own arrangement learns these problems far more slowly where a model is so small.
                "norm_placement": "pre",
                "initialization": "xavier",
                "positions": "rotary",
                "dropout": 0.0,
                "scan_unroll": 2,
            },
            "optimizer": {
                "learning_rate": 2e-3,
                "schedule": "linear",
                "warmup_steps": 50,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
