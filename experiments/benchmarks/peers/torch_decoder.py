"""Time the training step of a decoder-only Transformer in PyTorch: `python torch_decoder.py SETTINGS` prints JSON.

It runs in its own environment with torch; nothing imports it. SETTINGS is a JSON object of `layers`, `width`, `heads`,
`feed_forward`, `context`, `rows`, `vocabulary`, `warmup_steps`, `steps` (those that are timed), `seed`, `threads` (0:
PyTorch chooses), `compile`, `device` and `dtype`. The model has pre-norm blocks with biases, learned positions,
tanh-GELU and tied embeddings, and is trained with fused AdamW; on an NVIDIA GPU attention is cuDNN's alone.
"""

import contextlib
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A pre-norm block: x + Attention(LN(x)), then x + FFN(LN(x))."""

    def __init__(self, width, heads, feed_forward):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)

    def forward(self, x):
        """Return the block's output."""
        rows, length, width = x.shape
        projected = self.query_key_value(self.attention_norm(x)).split(width, dim=2)
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in projected)
        read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(read.transpose(1, 2).reshape(rows, length, width))
        return x + self.contract(functional.gelu(self.expand(self.feed_forward_norm(x)), approximate="tanh"))


class Decoder(nn.Module):
    """A decoder in the arrangement of GPT-2."""

    def __init__(self, *, layers, width, heads, feed_forward, context, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, feed_forward) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        """Return the mean loss."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main(settings):
    """Time the steps one by one and print them."""
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    torch.set_float32_matmul_precision("high")
    device, dtype = settings["device"], getattr(torch, settings["dtype"])
    sizes = {name: settings[name] for name in ("layers", "width", "heads", "feed_forward", "context", "vocabulary")}
    model = Decoder(**sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    text = torch.randint(settings["vocabulary"], (settings["rows"], settings["context"] + 1), device=device)
    compute_loss = torch.compile(model) if settings["compile"] else model
    narrow = torch.autocast(device, dtype) if dtype is not torch.float32 else contextlib.nullcontext()

    def attention():
        # Made anew for each step: a context of PyTorch's cannot be entered twice.
        if device == "cuda":
            return nn.attention.sdpa_kernel(nn.attention.SDPBackend.CUDNN_ATTENTION)
        return contextlib.nullcontext()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with narrow, attention():
            loss = compute_loss(text[:, :-1], text[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    main_start, seconds = time.perf_counter(), []
    for _ in range(settings["warmup_steps"] + settings["steps"]):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "seconds": seconds[settings["warmup_steps"] :],
                "first": seconds[0],
                "all": time.perf_counter() - main_start,
                "loss": loss,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "versions": {"torch": torch.__version__, "threads": torch.get_num_threads()},
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
