r"""Multi-hop VQA on synthetic scenes: "what color is the thing right of the star ?" (SMem-VQA, Xu and Saenko 2016).

    python -m launch.train --config=experiments/visual_question_answering/configs/scene_questions.py \
        --workdir=runs/questions
    python -m launch.train --config=experiments/visual_question_answering/configs/scene_questions.py \
        --workdir=runs/questions_further --config.initialize_from.run=runs/questions --config.model.word_dropout=0

The second command continues the first run without word dropout and learns to move from one cell to the next; `:one_hop`
in both commands takes one hop. The other models take one run: `:stacked_attention`, `:mean` and `:question_only`, which
ignores the image. A run takes five minutes on one CPU core.

Expected accuracy: 1.0 on one-cell questions, except for the last two. On relational questions 0.79 with two hops and
0.69 with one (means of three seeds), 0.57 with stacked attention, 0.40 with the mean and 0.16 from the question alone,
where the most frequent answer to the same words has 0.14. See results/questions.md.
"""

from typing import Literal

from ml_collections import ConfigDict

MEMORY = {"family": "experiments.visual_question_answering.smem_vqa", "grid_positions": "learned_2d"}
# What answers, arm by arm. Without words left out, which property of an item is never learned depends on the seed.
ARMS = {
    "two_hops": {**MEMORY, "word_dropout": 0.3},
    "one_hop": {**MEMORY, "word_dropout": 0.3, "num_hops": 1},
    "stacked_attention": {"family": "experiments.visual_question_answering.stacked_attention_vqa"},
    "mean": {**MEMORY, "image_readout": "mean", "num_hops": 1},
    "question_only": {"family": "experiments.visual_question_answering.smem_vqa", "image_readout": "nothing"},
}


def get_config(
    arm: Literal["two_hops", "one_hop", "stacked_attention", "mean", "question_only"] = "two_hops",
) -> ConfigDict:
    """Build the config: scenes of 3 to 5 items, 64 questions a batch; the argument names a model of `ARMS`."""
    config = ConfigDict(
        {
            "name": f"questions_{arm}",
            "seed": 1,
            "steps": 8000,
            "log_every": 100,
            "eval_every": 1000,
            "task": {
                "name": "experiments.visual_question_answering.task",
                "dataset": "scenes/cell_pixels=8",
                "batch_size": 64,
            },
            "model": {"image_encoder": {"channels": (32, 64), "strides": (2, 2)}},
            "optimizer": {"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 100, "clip_norm": 1.0},
            "topology": "cpu:1",
        }
    )
    config.model.update(ARMS[arm])
    return config
