"""Record PyTorch's recurrent layers, convolutions, batch norm and spectral norm, with their weights and inputs.

Run with any Python that has torch (recorded with 2.13.0, CPU) and numpy, from the root of the checkout:

    python tests/golden/make_layers.py

It writes tests/golden/layers.npz. The tests read that file and never run this script. Weights and inputs are exact in
float32; everything else is computed from them in float64. A name is `case/what`, of a weight `case/weights/name`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils import rnn

INPUTS, WIDTH, LENGTHS, TIME = 3, 4, [5, 2, 1], 5
RECURRENT = {
    "vanilla": (nn.RNN, {}),
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "gru_deep": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "lstm_deep": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
}
CONVOLUTIONS = {
    "line": (nn.Conv1d, {"kernel_size": 3, "padding": 1}),
    "line_strided": (nn.Conv1d, {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2}),
    "line_valid": (nn.Conv1d, {"kernel_size": 4, "stride": 2}),
    "line_glu": (nn.Conv1d, {"kernel_size": 3, "padding": 1}),
    "grid": (nn.Conv2d, {"kernel_size": (3, 5), "padding": (1, 2), "stride": (2, 1)}),
    "grid_valid": (nn.Conv2d, {"kernel_size": (2, 3), "dilation": (2, 1)}),
}

Recorded = dict[str, np.ndarray]


def exact(*shape: int) -> torch.Tensor:
    """Random numbers that float32 holds."""
    return torch.randn(*shape).double()


def randomize(module: nn.Module) -> Recorded:
    """Random weights, biases too, or an exchange of two of them would go unseen."""
    found = {}
    for name, parameter in module.named_parameters():
        parameter.data = (exact(*parameter.shape) * 0.5).float().double()
        found[f"weights/{name}"] = parameter.detach().float().numpy()
    return found


def recurrent(kind: type[nn.Module], options: dict[str, object]) -> Recorded:
    """Outputs and last states of padded rows, and the gradient of a weighted sum of both with respect to the input."""
    layer = kind(INPUTS, WIDTH, batch_first=True, **options).double()
    found, x = randomize(layer), exact(len(LENGTHS), TIME, INPUTS).requires_grad_()
    packed = rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True)
    output, state = layer(packed)
    output, _ = rnn.pad_packed_sequence(output, batch_first=True)
    states = state if isinstance(state, tuple) else (state,)
    weights = [exact(*array.shape) for array in (output, *states)]
    sum(torch.sum(w * array) for w, array in zip(weights, (output, *states), strict=True)).backward()
    found |= {"x": x, "lengths": np.int32(LENGTHS), "y": output, "of_y": weights[0], "gradient": x.grad}
    for name, array, weight in zip(("hidden", "memory"), states, weights[1:], strict=False):
        found |= {name: array, f"of_{name}": weight}
    return found


def convolution(name: str, kind: type[nn.Module], options: dict[str, object]) -> Recorded:
    """Outputs of a batch, channels in PyTorch's place, and the gradient with respect to the input."""
    gated = name.endswith("glu")
    layer = kind(INPUTS, WIDTH * (2 if gated else 1), **options).double()
    found, x = randomize(layer), exact(2, INPUTS, *((7,) if kind is nn.Conv1d else (6, 7))).requires_grad_()
    y = nn.functional.glu(layer(x), dim=1) if gated else layer(x)
    weight = exact(*y.shape)
    torch.sum(weight * y).backward()
    return found | {"x": x, "y": y, "of_y": weight, "gradient": x.grad}


def batch_norm() -> Recorded:
    """Three steps of training, the running statistics behind each, and evaluation."""
    norm = nn.BatchNorm1d(INPUTS).double()
    found = randomize(norm)
    for step in range(3):
        x = (exact(6, INPUTS) * 2 + 1).requires_grad_()
        y = norm(x)
        weight = exact(*y.shape)
        torch.sum(weight * y).backward()
        found |= {f"x_{step}": x, f"y_{step}": y, f"of_y_{step}": weight, f"gradient_{step}": x.grad}
        found |= {f"mean_{step}": norm.running_mean.clone(), f"variance_{step}": norm.running_var.clone()}
    norm.eval()
    x = exact(4, INPUTS)
    return found | {"x_eval": x, "y_eval": norm(x)}


def spectral_norm() -> Recorded:
    """A linear map under spectral norm in three steps of training: u before each, the kernel and its gradient.

    By the older of PyTorch's two functions, which iterates in the order of Miyato et al. 2018, algorithm 1: first v
    from u. The newer one begins with v.
    """
    layer = nn.Linear(INPUTS, WIDTH, bias=False).double()
    found = randomize(layer)
    nn.utils.spectral_norm(layer)
    layer.weight_u.copy_(nn.functional.normalize(exact(WIDTH), dim=0))
    for step in range(3):
        found[f"u_{step}"] = layer.weight_u.clone()
        layer.weight_orig.grad = None
        layer(exact(1, INPUTS))  # its hook makes the weight
        weight = exact(WIDTH, INPUTS)
        torch.sum(weight * layer.weight).backward()
        found |= {f"normed_{step}": layer.weight.detach().clone(), f"of_normed_{step}": weight}
        found[f"gradient_{step}"] = layer.weight_orig.grad.clone()
    return found | {"u_3": layer.weight_u.clone()}


def main() -> None:
    torch.manual_seed(0)
    cases = {name: recurrent(*case) for name, case in RECURRENT.items()}
    cases |= {name: convolution(name, *case) for name, case in CONVOLUTIONS.items()}
    cases |= {"batch_norm": batch_norm(), "spectral_norm": spectral_norm()}
    recorded = {
        f"{case}/{name}": array.detach().numpy() if isinstance(array, torch.Tensor) else array
        for case, found in cases.items()
        for name, array in found.items()
    }
    np.savez_compressed(Path(__file__).with_name("layers.npz"), **recorded)
    print(f"torch {torch.__version__}: {len(recorded)} arrays")


if __name__ == "__main__":
    main()
