"""ELMo in miniature: frozen layers of a bidirectional language model as features (Peters et al. 2018).

    python -m launch.train --config=experiments/glue/configs/elmo.py --workdir=runs/elmo
    python -m launch.train --config=experiments/glue/configs/elmo.py:SST-2 --workdir=runs/elmo_sst --data_dir=GLUE
    python -m launch.train --config=experiments/glue/configs/elmo.py:CoLA --workdir=runs/elmo_cola --data_dir=GLUE
    python -m launch.evaluate --workdir=runs/elmo_cola --split=development

The text and GLUE are those of experiments/glue/configs/gpt1.py, and so are steps and batches. Pre-training takes 14
minutes on a shared core and fine-tuning one. Expect 79.6 on SST-2 and 7.8 on CoLA, 78.1 and 9.7 without the features:
results/elmo.md. For both over several seeds see experiments/glue/configs/elmo_ablation.py.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.glue.configs import gpt1, sst2_bilstm

WIDTH, LAYERS = 128, 2


def get_config(part: Literal["language_model", "SST-2", "CoLA"] = "language_model") -> ConfigDict:
    """Build the config of the bidirectional language model, or of a classifier that reads its features."""
    return pretraining() if part == "language_model" else classifier(part)


def pretraining() -> ConfigDict:
    """Build the config of the language model: 2,000 steps, as those of GPT-1 and BERT."""
    config = gpt1.pretraining("lstm")
    config.name = "elmo"
    config.maps_every = 0
    config.model = {"family": "bidirectional_language_model", "width": WIDTH, "dropout": 0.1}
    return config


def classifier(dataset: str) -> ConfigDict:
    """Build the classifier of sst2_bilstm.py on the frozen language model's features, mixed by learned weights."""
    config = sst2_bilstm.get_config()
    config.name = f"elmo_{dataset}"
    config.steps = 1000
    config.eval_every = 250
    config.maps_every = 250
    config.task.update(dataset=f"glue/{dataset}", batch_size=32, tokenizer="existing", test_split="development")
    config.optimizer.frozen = ("elmo/pretrained/*",)
    config.model.elmo = {"layers": LAYERS, "width": WIDTH}
    config.initialize_from = {
        "run": "runs/elmo",
        "copy_tokenizer": True,
        "rules": (
            "elmo/pretrained/embedding/* = embedding/*",
            "elmo/pretrained/forward/* = *",
            "elmo/pretrained/backward/* = backward/*",
            "* = fresh",
        ),
    }
    return config
