"""A GPT-2 folder whose weights are set by hand such that two of its four heads are an induction circuit.

The features of the residual stream are four blocks: the token, the position, the token before (which the first head of
the circuit writes) and the logits of the next token (which the second writes).
"""

import json
import math
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models, pre_tokenizers

TOKENS = (*"abcdefghijklmnop", "<end>")
NUM_POSITIONS = 20
NUM_LAYERS, NUM_HEADS = 2, 2
# (layer, head)
PREVIOUS_TOKEN_HEAD, INDUCTION_HEAD = (0, 1), (1, 0)
SIZES = {"token": len(TOKENS), "position": NUM_POSITIONS, "previous": len(TOKENS), "next": len(TOKENS)}
STARTS = dict(zip(SIZES, np.cumsum([0, *SIZES.values()]).tolist(), strict=False))
WIDTH = 76
HEAD_DIM = WIDTH // NUM_HEADS
FEED_FORWARD = 8
SHARPNESS = 12.0  # by which the attention logit of the right key is above the others
GAIN = 8.0  # of the logits
NOISE = 0.02


def block(name: str) -> slice:
    """The features of a block."""
    return slice(STARTS[name], STARTS[name] + SIZES[name])


def normed_size(num_ones: int) -> float:
    """By how much a norm over features that are 1 `num_ones` times and else 0 tells a 1 from a 0."""
    mean = num_ones / WIDTH
    return 1 / math.sqrt(mean - mean**2)


def induction_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of the folder: the circuit, and small random numbers in the other heads and networks."""
    random = np.random.default_rng(seed)
    identity = np.eye(len(TOKENS))

    def noise(*shape: int) -> np.ndarray:
        return NOISE * random.normal(size=shape)

    embedding, positions = np.zeros((len(TOKENS), WIDTH)), np.zeros((NUM_POSITIONS, WIDTH))
    embedding[:, block("token")], positions[:, block("position")] = identity, np.eye(NUM_POSITIONS)
    unembedding = np.zeros((len(TOKENS), WIDTH))
    unembedding[:, block("next")] = GAIN * identity
    weights = {"transformer.wte.weight": embedding, "transformer.wpe.weight": positions, "lm_head.weight": unembedding}
    weights |= {"transformer.ln_f.weight": np.ones(WIDTH), "transformer.ln_f.bias": np.zeros(WIDTH)}

    for layer in range(NUM_LAYERS):
        query, key, value = noise(3, WIDTH, NUM_HEADS, HEAD_DIM)
        output = noise(NUM_HEADS, HEAD_DIM, WIDTH)
        size = normed_size(2 + layer)  # the token and the position; in layer 1 also the token before
        scale = math.sqrt(SHARPNESS * math.sqrt(HEAD_DIM)) / size
        for own_layer, head in (PREVIOUS_TOKEN_HEAD, INDUCTION_HEAD):
            if own_layer == layer:
                query[:, head], key[:, head], value[:, head], output[head] = 0, 0, 0, 0
                value[block("token"), head, : len(TOKENS)] = identity / size
        if layer == PREVIOUS_TOKEN_HEAD[0]:
            head = PREVIOUS_TOKEN_HEAD[1]
            previous = np.maximum(np.arange(NUM_POSITIONS) - 1, 0)
            query[block("position"), head, :NUM_POSITIONS] = scale * np.eye(NUM_POSITIONS)[previous]
            key[block("position"), head, :NUM_POSITIONS] = scale * np.eye(NUM_POSITIONS)
            output[head, : len(TOKENS), block("previous")] = identity
        else:
            head = INDUCTION_HEAD[1]
            query[block("token"), head, : len(TOKENS)] = scale * identity
            key[block("previous"), head, : len(TOKENS)] = scale * identity
            output[head, : len(TOKENS), block("next")] = identity
        path = f"transformer.h.{layer}"
        projections = [matrix.reshape(WIDTH, WIDTH) for matrix in (query, key, value)]
        weights |= {
            f"{path}.attn.c_attn.weight": np.concatenate(projections, axis=1),
            f"{path}.attn.c_attn.bias": np.zeros(3 * WIDTH),
            f"{path}.attn.c_proj.weight": output.reshape(WIDTH, WIDTH),
            f"{path}.attn.c_proj.bias": np.zeros(WIDTH),
            f"{path}.mlp.c_fc.weight": noise(WIDTH, FEED_FORWARD),
            f"{path}.mlp.c_fc.bias": np.zeros(FEED_FORWARD),
            f"{path}.mlp.c_proj.weight": noise(FEED_FORWARD, WIDTH),
            f"{path}.mlp.c_proj.bias": np.zeros(WIDTH),
        }
        for norm in ("ln_1", "ln_2"):
            weights |= {f"{path}.{norm}.weight": np.ones(WIDTH), f"{path}.{norm}.bias": np.zeros(WIDTH)}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in weights.items()}


def write_induction_model(folder: Path) -> Path:
    """Write the folder, whose tokens are letters between spaces."""
    folder.mkdir()
    config = {
        "model_type": "gpt2",
        "vocab_size": len(TOKENS),
        "n_positions": NUM_POSITIONS,
        "n_embd": WIDTH,
        "n_layer": NUM_LAYERS,
        "n_head": NUM_HEADS,
        "n_inner": FEED_FORWARD,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(induction_weights(), folder / "model.safetensors", {"format": "pt"})
    backend = tokenizers.Tokenizer(models.WordLevel({token: n for n, token in enumerate(TOKENS)}, TOKENS[-1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([TOKENS[-1]])
    backend.save(str(folder / "tokenizer.json"))
    roles = {"eos_token": TOKENS[-1], "unk_token": TOKENS[-1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder
