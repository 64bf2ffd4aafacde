"""Time the gradient of an LSTM layer in PyTorch: `python torch_lstm.py SETTINGS` prints JSON.

It runs in its own environment with torch; nothing imports it. SETTINGS is a JSON object of `width`, `rows`, `length`,
`warmup_steps`, `steps`, `seed` and `threads`.
"""

import json
import sys
import time

import torch


def main(settings):
    """Time the gradients one by one and print them."""
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    layer = torch.nn.LSTM(settings["width"], settings["width"], batch_first=True)
    x = torch.randn(settings["rows"], settings["length"], settings["width"], requires_grad=True)
    seconds = []
    for _ in range(settings["warmup_steps"] + settings["steps"]):
        layer.zero_grad(set_to_none=True)
        x.grad = None
        start = time.perf_counter()
        outputs, _ = layer(x)
        outputs.square().mean().backward()
        seconds.append(time.perf_counter() - start)
    versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(json.dumps({"seconds": seconds[settings["warmup_steps"] :], "first": seconds[0], "versions": versions}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
