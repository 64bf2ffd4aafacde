r"""Multi30k English-German, fine-tuned on the GLEU of its own translations as Wu et al. 2016 (section 5) did.

    python -m launch.train --config=experiments/translation/configs/recurrent_multi30k.py --data_dir=DIR \
        --workdir=runs/attention
    python -m launch.train --config=experiments/translation/configs/sequence_level_training.py --data_dir=DIR \
        --workdir=runs/rewarded
    python -m launch.train --config=experiments/translation/configs/sequence_level_training.py:mrt \
        --data_dir=DIR \
        --workdir=runs/risk

The second and third runs start from the parameters of the first and take twenty to twenty-five minutes on one core.
Expect the GLEU of samples on validation to rise from 0.20 to 0.27 in both; BLEU on test from 35.6 to 36.2 in the
second, and no gain in the third, 35.4 after 35.7: results/rewarded.md.
"""

from typing import Literal

from ml_collections import ConfigDict

from experiments.translation.configs import recurrent_multi30k


def get_config(expectation: Literal["reinforce", "mrt"] = "reinforce") -> ConfigDict:
    """Build the config: 300 steps of 512 positions and 15 samples of each source, at a small constant rate."""
    config = recurrent_multi30k.get_config()
    config.name = f"recurrent_multi30k_{expectation}"
    config.steps = 300
    config.log_every = 20
    config.eval_every = 100
    config.maps_every = 100
    config.checkpoint_every = 100
    config.initialize_from = ConfigDict({"run": "runs/attention", "copy_tokenizer": True})
    config.task.objective = expectation
    if expectation == "mrt":
        # Shen et al. 2016 train on the risk alone; beside its small gradient the likelihood would decide.
        config.task.nll_weight = 0.0
    config.task.tokens_per_batch = 512
    config.task.num_decoded_examples = 200
    config.model.dropout = 0.0
    config.optimizer.learning_rate = 1e-4
    config.optimizer.schedule = "constant"
    config.optimizer.warmup_steps = 0
    return config
