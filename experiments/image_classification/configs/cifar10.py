r"""CIFAR-10 (as JPEG, quality 75) by a vision Transformer from scratch, compared with a residual network.

    python -m launch.train --config=experiments/image_classification/configs/cifar10.py --data_dir=DIR \
        --workdir=runs/vit
    python -m launch.train --config=experiments/image_classification/configs/cifar10.py:convolution --data_dir=DIR \
        --workdir=runs/convolved
    python -m launch.train --config=experiments/image_classification/configs/cifar10.py:attention --data_dir=DIR \
        --workdir=runs/attention
    python -m launch.train --config=experiments/image_classification/configs/cifar10.py --data_dir=DIR \
        --workdir=runs/no_positions \
        --config.model.positions=none
    python -m launch.train --config=experiments/image_classification/configs/cifar10.py --data_dir=DIR \
        --workdir=runs/shuffled \
        --config.task.shuffled_patch_size=4

DIR holds cifar10-jpg/train.tar.gz and test.tar.gz, or folders, with images by class. `:attention` is the residual
network with self-attention after its second stage. The last two commands are controls: a Transformer without position
embeddings, and one whose patches are shuffled, in all images alike. Each takes 45 to 50 minutes on one core. Expect a
test accuracy of 0.630 with the Transformer and, in equal time, 0.751 with the residual network and 0.748 with
self-attention; 0.567 with the Transformer without positions and 0.632 with shuffled patches: results/cifar10.md.
"""

from typing import Literal

from ml_collections import ConfigDict

# As many steps as take the same time on one core of an AMD EPYC.
STEPS = {"vit": 5000, "convolution": 4650, "attention": 4250}


def get_config(model: Literal["vit", "convolution", "attention"] = "vit") -> ConfigDict:
    """Build the config: about ten epochs of 47,500 images, cropped and mirrored."""
    convolution = {
        "family": "convolutional_classifier",
        "encoder": {"strides": (1, 2, 2), "blocks_per_stage": 1},
    }
    models = {
        "vit": {
            "family": "vit",
            "patch_size": 4,
            "layers": 6,
            "width": 128,
            "heads": 4,
            "feed_forward": 256,
            "pooling": "mean",
            "dropout": 0.0,
            "scan_unroll": 6,
        },
        "convolution": convolution,
        "attention": {**convolution, "attention_stages": (1,)},
    }
    return ConfigDict(
        {
            "name": f"cifar10_{model}",
            "seed": 1,
            "steps": STEPS[model],
            "maps_every": 1000,
            "task": {
                "name": "image_classification",
                "dataset": "cifar10-jpg",
                "batch_size": 96,
                "augmentation": {"crop": 4, "flip": 0.5},
            },
            "model": models[model],
            "optimizer": {
                "algorithm": "adamw",
                "learning_rate": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 250,
                "weight_decay": 0.05,
                "clip_norm": 1.0,
            },
            "topology": "cpu:1",
        }
    )
