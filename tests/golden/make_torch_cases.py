"""The cases that stand on torch.nn.Transformer alone: GELU, no bias anywhere, pre-norm and post-norm.

PyTorch leaves the embedding and the positions to its user. Here they are those of Vaswani et al. 2017, section 3.5:
the shared table times sqrt(width), plus sines in the even and cosines in the odd columns; the logits are the last
states times the table. Post-norm has no norm behind the last layer, pre-norm has one.
"""

import math
from typing import Any

import numpy as np
import torch
from cases import FEED_FORWARD, HEADS, VOCABULARY, WIDTH
from torch import nn
from weights import random_weights

NAMES = ("torch_pre", "torch_post", "torch_encoder_pre", "torch_encoder_post")
LAYERS, PAD, EPSILON = 2, 0, 1e-5
SOURCE = [[9, 13, 20, 7, 44, 31, 6, 52, 17], [11, 4, 18, 50, 5, 0, 0, 0, 0], [8, 33, 0, 0, 0, 0, 0, 0, 0]]
TARGET = [[1, 17, 3, 12, 0, 0, 0], [1, 6, 6, 19, 40, 28, 51], [1, 2, 0, 0, 0, 0, 0]]


class Model(nn.Module):
    """An encoder, or an encoder and a decoder, of PyTorch's layers around one table."""

    def __init__(self, pre: bool, decoder: bool) -> None:
        super().__init__()
        layer = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": pre, "bias": False}
        sizes = (WIDTH, HEADS, FEED_FORWARD)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, layer_norm_eps=EPSILON, **layer),
            LAYERS,
            nn.LayerNorm(WIDTH, EPSILON, bias=False) if pre else None,
            enable_nested_tensor=False,
        )
        self.decoder = None
        if decoder:
            norm = nn.LayerNorm(WIDTH, EPSILON, bias=False) if pre else None
            block = nn.TransformerDecoderLayer(*sizes, layer_norm_eps=EPSILON, **layer)
            self.decoder = nn.TransformerDecoder(block, LAYERS, norm)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        waves = torch.zeros(tokens.shape[1], WIDTH, dtype=torch.float64)
        for position in range(tokens.shape[1]):
            for pair in range(WIDTH // 2):
                angle = position / 10000 ** (2 * pair / WIDTH)
                waves[position, 2 * pair] = math.sin(angle)
                waves[position, 2 * pair + 1] = math.cos(angle)
        return self.embedding(tokens) * math.sqrt(WIDTH) + waves

    def forward(self, source: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        states = self.encoder(self.embed(source), src_key_padding_mask=source == PAD)
        if self.decoder is not None:
            states = self.decoder(
                self.embed(target),
                states,
                tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
                memory_key_padding_mask=source == PAD,
            )
        return states @ self.embedding.weight.T


def observe(model: Model) -> dict[str, list[torch.Tensor]]:
    """Lists that a pass fills: states around the blocks of a stack, and weights of its attention, by head."""
    seen: dict[str, list[torch.Tensor]] = {}

    def ask(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, kwargs | {"need_weights": True, "average_attn_weights": False}

    def attention(module: nn.Module, name: str) -> None:
        module.register_forward_pre_hook(ask, with_kwargs=True)
        module.register_forward_hook(lambda module, args, output: seen.setdefault(name, []).append(output[1]))

    def states(stack: nn.Module, name: str) -> None:
        kept = seen.setdefault(name, [])
        stack.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
        for block in list(stack.layers)[:-1]:
            block.register_forward_hook(lambda module, args, output: kept.append(output))
        stack.register_forward_hook(lambda module, args, output: kept.append(output))

    prefix = "" if model.decoder is None else "encoder_"
    states(model.encoder, f"{prefix}hidden")
    for block in model.encoder.layers:
        attention(block.self_attn, f"{prefix}attention")
    if model.decoder is not None:
        states(model.decoder, "decoder_hidden")
        for block in model.decoder.layers:
            attention(block.self_attn, "decoder_attention")
            attention(block.multihead_attn, "cross_attention")
    return seen


def record(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the file says about a case of torch.nn, and its arrays."""
    torch.backends.mha.set_fastpath_enabled(False)  # the fused path gives no attention weights
    pre, decoder = name.endswith("pre"), "encoder" not in name
    model = Model(pre, decoder).double().eval()
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    weights = random_weights(shapes, seed=0)
    model.load_state_dict({key: torch.tensor(value).double() for key, value in weights.items()})
    seen = observe(model)
    source, target = np.int32(SOURCE), np.int32(TARGET)
    arrays = {"ids": source, "lengths": np.int32((source != PAD).sum(1))}
    if decoder:
        arrays |= {"target": target, "target_lengths": np.int32((target != PAD).sum(1))}
    with torch.no_grad():
        seen["logits"] = [model(torch.tensor(source).long(), torch.tensor(target).long())]
    for key, values in seen.items():
        of_source = not decoder or key.startswith("encoder")
        real = source != PAD if of_source else target != PAD
        array = torch.stack(values).numpy()
        arrays[key] = array * (real[:, None, :, None] if key.endswith("attention") else real[:, :, None])
    arrays["logits"] = arrays["logits"][0]
    config = {
        "width": WIDTH,
        "heads": HEADS,
        "feed_forward": FEED_FORWARD,
        "layers": LAYERS,
        "activation": "gelu",
        "norm_placement": "pre" if pre else "post",
        "norm_epsilon": EPSILON,
        "biases": "none",
        "positions": "sinusoidal",
        "embedding_scale": "sqrt_width",
        "pad_token_id": PAD,
    }
    kind = "encoder_decoder" if decoder else "encoder"
    architecture = "torch.nn.Transformer" if decoder else "torch.nn.TransformerEncoder"
    return {"architecture": architecture, "kind": kind, "config": config, "shapes": shapes, "seed": 0}, arrays
