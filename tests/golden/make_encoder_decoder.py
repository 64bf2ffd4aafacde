"""Record the logits of PyTorch's own Transformer, post-norm and pre-norm, with its weights and inputs.

Run with any Python that has torch (recorded with 2.13.0, CPU) and numpy, from the root of the checkout:

    python tests/golden/make_encoder_decoder.py

It writes tests/golden/encoder_decoder.npz. The tests read that file and never run this script. The layers are
torch.nn.TransformerEncoderLayer and torch.nn.TransformerDecoderLayer; around them stand the shared embedding
scaled by sqrt(width) and the waves of Vaswani et al. 2017, section 3.5, which PyTorch leaves to its user.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

WIDTH, HEADS, FEED_FORWARD, LAYERS, VOCABULARY, PAD = 16, 4, 24, 2, 21, 0
SOURCE = [[5, 9, 13, 20, 7, 6], [11, 4, 18, 0, 0, 0], [8, 0, 0, 0, 0, 0]]
TARGET = [[1, 17, 3, 12, 10], [1, 6, 6, 19, 0], [1, 2, 14, 0, 0]]


def transformer(pre: bool) -> nn.Transformer:
    """PyTorch's Transformer; post-norm as in the paper, without its extra norm behind the last layer."""
    layer = {"dropout": 0.0, "batch_first": True, "norm_first": pre, "layer_norm_eps": 1e-6}
    encoder_layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FEED_FORWARD, **layer)
    decoder_layer = nn.TransformerDecoderLayer(WIDTH, HEADS, FEED_FORWARD, **layer)
    norms = [nn.LayerNorm(WIDTH, eps=1e-6) if pre else None for _ in range(2)]
    return nn.Transformer(
        WIDTH,
        HEADS,
        batch_first=True,
        custom_encoder=nn.TransformerEncoder(encoder_layer, LAYERS, norms[0], enable_nested_tensor=False),
        custom_decoder=nn.TransformerDecoder(decoder_layer, LAYERS, norms[1]),
    ).double()


def embed(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Scaled embedding plus sines in the even and cosines in the odd columns."""
    waves = torch.zeros(tokens.shape[1], WIDTH, dtype=torch.float64)
    for position in range(tokens.shape[1]):
        for pair in range(WIDTH // 2):
            angle = position / 10000 ** (2 * pair / WIDTH)
            waves[position, 2 * pair] = math.sin(angle)
            waves[position, 2 * pair + 1] = math.cos(angle)
    return table[tokens] * math.sqrt(WIDTH) + waves


def main() -> None:
    torch.manual_seed(0)
    pre, post = transformer(pre=True), transformer(pre=False)
    table = torch.randn(VOCABULARY, WIDTH).mul(WIDTH**-0.5).double()
    for name, parameter in pre.named_parameters():
        # Every bias and norm too, or an exchange of two of them would go unseen; exact in float32.
        noise = torch.randn(parameter.shape) * (0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5)
        parameter.data = (noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0)).double()
    post.load_state_dict(pre.state_dict(), strict=False)
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    recorded = {"source": np.int32(SOURCE), "target": np.int32(TARGET), "embedding": table.float().numpy()}
    for name, model in (("pre", pre), ("post", post)):
        model.eval()
        with torch.no_grad():
            output = model(
                embed(table, source),
                embed(table, target),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(len(TARGET[0]), dtype=torch.float64),
                src_key_padding_mask=source == PAD,
                memory_key_padding_mask=source == PAD,
            )
            recorded[f"logits/{name}"] = (output @ table.T).numpy()
    recorded |= {f"weights/{name}": value.float().numpy() for name, value in pre.state_dict().items()}
    np.savez_compressed(Path(__file__).with_name("encoder_decoder.npz"), **recorded)
    print(f"torch {torch.__version__}: {len(recorded)} arrays")


if __name__ == "__main__":
    main()
