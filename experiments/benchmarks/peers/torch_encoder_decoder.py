"""Time the training step of an encoder-decoder Transformer in PyTorch: `python torch_encoder_decoder.py SETTINGS`.

It runs in its own environment with torch; nothing imports it. SETTINGS are those of torch_decoder.py. The model is
torch.nn.Transformer, post-norm with ReLU as in Vaswani et al. (2017), without dropout; embeddings are scaled, positions
sinusoidal, and one table serves both sides and the output layer. It is trained with fused AdamW.
"""

import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class EncoderDecoder(nn.Module):
    """torch.nn.Transformer with embeddings and an output layer."""

    def __init__(self, *, layers, width, heads, feed_forward, context, vocabulary):
        super().__init__()
        self.width = width
        self.tokens = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        self.body = nn.Transformer(width, heads, layers, layers, feed_forward, dropout=0.0, batch_first=True)
        angle = torch.arange(context)[:, None] * 10000 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("waves", torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1))
        self.register_buffer("hidden", nn.Transformer.generate_square_subsequent_mask(context))

    def embed(self, tokens):
        """Return the embeddings of tokens with their positions."""
        return self.tokens(tokens) * math.sqrt(self.width) + self.waves

    def forward(self, source, target, labels):
        """Return the mean loss."""
        x = self.body(self.embed(source), self.embed(target), tgt_mask=self.hidden, tgt_is_causal=True)
        return functional.cross_entropy((x @ self.tokens.weight.T).flatten(0, 1).float(), labels.flatten())


def main(settings):
    """Time the steps one by one and print them."""
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    sizes = {name: settings[name] for name in ("layers", "width", "heads", "feed_forward", "context", "vocabulary")}
    model = EncoderDecoder(**sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    source, text = torch.randint(3, settings["vocabulary"], (2, settings["rows"], settings["context"]))
    target = torch.cat([torch.ones_like(text[:, :1]), text[:, :-1]], dim=1)
    compute_loss, seconds = torch.compile(model) if settings["compile"] else model, []
    for _ in range(settings["warmup_steps"] + settings["steps"]):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = compute_loss(source, target, text)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = loss.item()
        seconds.append(time.perf_counter() - start)
    facts = {"parameters": sum(parameter.numel() for parameter in model.parameters()), "loss": last}
    versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    timed = {"seconds": seconds[settings["warmup_steps"] :], "first": seconds[0]}
    print(json.dumps({**timed, **facts, "versions": versions}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
