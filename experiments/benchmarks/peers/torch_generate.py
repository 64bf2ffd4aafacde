"""Time greedy decoding by GPT-2 in Hugging Face Transformers: `python torch_generate.py SETTINGS` prints JSON.

It runs in its own environment with torch and transformers; nothing imports it. SETTINGS is a JSON object of `layers`,
`width`, `heads`, `feed_forward`, `context`, `vocabulary`, `rows`, the length of the `prompt`, the number of `tokens` to
generate, the `repeats` after a first run, `seed`, `threads` (0: PyTorch chooses), `device` and `dtype`. The weights are
random, and no text ends early.
"""

import json
import sys
import time

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel


def main(settings):
    """Time whole texts and print the seconds per token."""
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    transformers.logging.set_verbosity_error()
    config = GPT2Config(
        vocab_size=settings["vocabulary"],
        n_positions=settings["context"],
        n_embd=settings["width"],
        n_layer=settings["layers"],
        n_head=settings["heads"],
        n_inner=settings["feed_forward"],
        activation_function="gelu_new",
        bos_token_id=settings["vocabulary"] - 1,
        eos_token_id=settings["vocabulary"] - 1,
    )
    model = GPT2LMHeadModel(config).to(settings["device"], getattr(torch, settings["dtype"])).eval()
    prompt = torch.randint(settings["vocabulary"], (settings["rows"], settings["prompt"]), device=settings["device"])
    count = settings["tokens"]
    seconds = []
    for _ in range(1 + settings["repeats"]):
        start = time.perf_counter()
        with torch.inference_mode():
            text = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                num_beams=1,
                use_cache=True,
                min_new_tokens=count,
                max_new_tokens=count,
                pad_token_id=settings["vocabulary"] - 1,
            )
        assert text.shape[1] == settings["prompt"] + count
        seconds.append((time.perf_counter() - start) / count)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(
        json.dumps(
            {
                "seconds": seconds[1:],
                "first": seconds[0] * count,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "versions": {**versions, "threads": torch.get_num_threads()},
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
