r"""Questions about images of one colored shape (easy-VQA, Zhou 2019), by two glimpses.

python -m launch.train --config=experiments/visual_question_answering/configs/easy_vqa.py --workdir=runs/easy_vqa \
        --data_dir=DIR

DIR holds easy-VQA's data.zip. Needs Pillow, the extra `images`. Takes seven minutes on one core. Expect a test accuracy
of 0.996, and 0.667 from the question's words alone: results/easy_vqa.md.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Build the config: a grid of four by four; 64 questions a batch, fifteen epochs."""
    return ConfigDict(
        {
            "name": "easy_vqa",
            "seed": 1,
            "steps": 8000,
            "log_every": 100,
            "eval_every": 1000,
            "maps_every": 200,
            "task": {"name": "experiments.visual_question_answering.task", "dataset": "easy_vqa", "batch_size": 64},
            "model": {
                "family": "experiments.visual_question_answering.stacked_attention_vqa",
                "question_encoder": {"width": 64},
                "image_encoder": {"channels": (8, 16, 32, 64), "strides": (2, 2, 2, 2)},
            },
            "optimizer": {"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 100, "clip_norm": 1.0},
            "topology": "cpu:1",
        }
    )
