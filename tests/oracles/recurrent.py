"""Recurrent layers, convolutions and norms with state in NumPy float64, one number after another from the equations.

Weights are nested dicts as the package names them; nothing else is shared with it.
"""

from typing import Any, NamedTuple

import numpy as np

Weights = dict[str, Any]


class State(NamedTuple):
    """What one row carries: h, and the LSTM's c."""

    hidden: np.ndarray
    memory: np.ndarray | None = None


class Stack(NamedTuple):
    """Which stack, by the names and values of the config's fields."""

    cell: str
    direction: str = "forward"
    layers: int = 1
    links: str = "none"


def logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def step(cell: str, weights: Weights, x: np.ndarray, state: State) -> State:
    """The next state of one row: of gate g, W' is `kernel[:, g]`, b is `bias[g]` and U' `recurrent_kernel[:, g]`."""
    h = state.hidden

    def read(gate: int) -> np.ndarray:
        return weights["kernel"][:, gate].T.astype(np.float64) @ x + weights["bias"][gate]

    def recur(gate: int, h: np.ndarray) -> np.ndarray:
        return weights["recurrent_kernel"][:, gate].T.astype(np.float64) @ h

    match cell:
        case "vanilla":
            return State(np.tanh(read(0) + recur(0, h)))
        case "gru_reset_before":
            reset, update = logistic(read(0) + recur(0, h)), logistic(read(1) + recur(1, h))
            candidate = np.tanh(read(2) + recur(2, reset * h))
            return State(update * h + (1 - update) * candidate)
        case "gru_reset_after":
            reset, update = logistic(read(0) + recur(0, h)), logistic(read(1) + recur(1, h))
            candidate = np.tanh(read(2) + reset * (recur(2, h) + weights["candidate_bias"]))
            return State(update * h + (1 - update) * candidate)
        case "lstm":
            into, forget, out = (logistic(read(gate) + recur(gate, h)) for gate in (0, 1, 3))
            memory = forget * state.memory + into * np.tanh(read(2) + recur(2, h))
            return State(out * np.tanh(memory), memory)
        case "lstm_peephole":
            peephole, old = weights["peephole"].astype(np.float64), state.memory
            into = logistic(read(0) + recur(0, h) + peephole[0] * old)
            forget = logistic(read(1) + recur(1, h) + peephole[1] * old)
            memory = forget * old + into * np.tanh(read(2) + recur(2, h))
            out = logistic(read(3) + recur(3, h) + peephole[2] * memory)
            return State(out * np.tanh(memory), memory)
    raise KeyError(cell)


def zeros(cell: str, width: int) -> State:
    """The state that nothing was read into."""
    return State(np.zeros(width), np.zeros(width) if cell.startswith("lstm") else None)


def one_way(cell: str, weights: Weights, x_TxI: np.ndarray, state: State, backward: bool) -> tuple[np.ndarray, State]:
    """The outputs of one row, all of whose positions are real, and its last state."""
    outputs = np.zeros((len(x_TxI), len(state.hidden)))
    for place in reversed(range(len(x_TxI))) if backward else range(len(x_TxI)):
        state = step(cell, weights, x_TxI[place], state)
        outputs[place] = state.hidden
    return outputs, state


def layer(
    kind: Stack, number: int, weights: Weights, x: np.ndarray, lengths: np.ndarray, states: list[State] | None
) -> tuple[np.ndarray, list[State]]:
    """The outputs `B T F`, zero at padding, and each row's last state, both directions side by side."""
    both = ["forward", "backward"]
    orders = {
        "bidirectional": both,
        "bidirectional_below": both if number == 0 else ["forward"],
        "alternating": [both[number % 2]],
    }.get(kind.direction, [kind.direction])
    width = weights[orders[0]]["bias"].shape[1]
    outputs, last = np.zeros((*x.shape[:2], width * len(orders))), []
    for row, length in enumerate(lengths):
        ends = []
        for number, order in enumerate(orders):
            part = slice(number * width, (number + 1) * width)
            first = zeros(kind.cell, width)
            if states is not None:
                first = State(*(None if leaf is None else leaf[part] for leaf in states[row]))
            y, end = one_way(kind.cell, weights[order], x[row, :length], first, order == "backward")
            outputs[row, :length, part] = y
            ends.append(end)
        hidden = np.concatenate([end.hidden for end in ends])
        last.append(
            State(hidden, np.concatenate([end.memory for end in ends]) if kind.cell.startswith("lstm") else None)
        )
    return outputs, last


def stack(
    kind: Stack, weights: Weights, x: np.ndarray, lengths: np.ndarray, carry: list[list[State]] | None = None
) -> tuple[np.ndarray, list[list[State]]]:
    """The last layer's outputs and the last states, `carry[layer][row]`."""
    if kind.direction == "alternating_columns":
        y, _, after = two_columns(kind, weights, x, lengths, carry)
        return y, after
    first_linked = {"residual": 1, "gnmt": 2}.get(kind.links, kind.layers)
    x, after = np.asarray(x, np.float64), []
    for number in range(kind.layers):
        of_layer = weights[f"layer_{number}"]
        y, states = layer(kind, number, of_layer, x, lengths, None if carry is None else carry[number])
        after.append(states)
        if kind.links.startswith("fast_forward") and number + 1 < kind.layers:
            fast = [projected(of_layer[order], x) for order in ("forward", "backward") if order in of_layer]
            if kind.links == "fast_forward_half":
                fast = [np.concatenate(np.split(each, 4, axis=-1)[0:3:2], axis=-1) for each in fast]
            x = np.concatenate([*fast, y], -1)
        else:
            x = y + x if number >= first_linked else y
    return x, after


def two_columns(
    kind: Stack, weights: Weights, x: np.ndarray, lengths: np.ndarray, carry: list[list[State]] | None = None
) -> tuple[np.ndarray, np.ndarray, list[list[State]]]:
    """Deep-Att's encoder, one column of layers after the other: [h ; h], [f ; f] and the last states of both.

    Every column is a loop over f = W [Half(f) ; h] + b and one recurrent cell (Zhou et al. 2016, equations 4 to 7); the
    halves are the sums of the input gate and of the candidate, 0 and 2 of the four.
    """
    columns = []
    for column in range(2):
        below, states = np.asarray(x, np.float64), []
        for number in range(kind.layers):
            backward = (number + column) % 2 == 1
            cell = weights[f"layer_{number}"]["backward" if backward else "forward"]
            width = cell["bias"].shape[1]
            h, ended = np.zeros((*below.shape[:2], width)), []
            for row, length in enumerate(lengths):
                state = zeros(kind.cell, width)
                if carry is not None:
                    part = slice(column * width, (column + 1) * width)
                    state = State(*(None if leaf is None else leaf[part] for leaf in carry[number][row]))
                h[row, :length], last = one_way(kind.cell, cell, below[row, :length], state, backward)
                ended.append(last)
            states.append(ended)
            f = projected(cell, below)
            read = {"fast_forward": [f], "fast_forward_half": [f[..., :width], f[..., 2 * width : 3 * width]]}
            top = number + 1 == kind.layers
            skip = 1 if kind.links == "residual" else kind.layers
            added = h + below if number >= skip else h
            below = added if top else np.concatenate([*read.get(kind.links, []), added], -1)
        columns.append((below, f, states))
    both = [
        [
            State(*(None if pair[0] is None else np.concatenate(pair) for pair in zip(*of_row, strict=True)))
            for of_row in zip(*of_layer, strict=True)
        ]
        for of_layer in zip(columns[0][2], columns[1][2], strict=True)
    ]
    return *(np.concatenate([columns[0][i], columns[1][i]], -1) for i in (0, 1)), both


def projected(weights: Weights, x: np.ndarray) -> np.ndarray:
    """W x + b of all gates, one gate after another, at every position."""
    of_gates = [x @ weights["kernel"][:, gate] + weights["bias"][gate] for gate in range(len(weights["bias"]))]
    return np.concatenate(of_gates, axis=-1)


def activated(name: str, a: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """none, relu, glu, gtu."""
    match name:
        case "none":
            return a
        case "relu":
            return np.where(a > 0, a, 0)
        case "glu":
            return a * logistic(b)
        case "gtu":
            return np.tanh(a) * logistic(b)
    raise KeyError(name)


class Line(NamedTuple):
    """A window along one axis, by the names and values of its fields."""

    size: int
    stride: int = 1
    dilation: int = 1
    padding: str = "same"

    def read(self, output: int, tap: int) -> int:
        """The position that an output reads through this tap; beyond the ends stand zeros."""
        reach = self.dilation * (self.size - 1) + 1
        before = {"same": (reach - 1) // 2, "causal": reach - 1, "valid": 0}[self.padding]
        return output * self.stride + tap * self.dilation - before

    def outputs(self, length: int) -> int:
        """How many outputs there are."""
        if self.padding == "valid":
            return sum(self.read(output, self.size - 1) < length for output in range(length))
        return len(range(0, length, self.stride))


def convolution(lines: tuple[Line, ...], activation: str, weights: Weights, x: np.ndarray) -> np.ndarray:
    """One example `*axes I`, all of whose positions are real, to `*axes F`."""
    shape = tuple(line.outputs(size) for line, size in zip(lines, x.shape, strict=False))

    def sums(prefix: str) -> np.ndarray:
        kernel = weights[f"{prefix}kernel"].astype(np.float64)
        found = np.zeros((*shape, kernel.shape[-1])) + weights.get(f"{prefix}bias", 0)
        for place in np.ndindex(shape):
            for tap in np.ndindex(kernel.shape[: len(lines)]):
                at = tuple(line.read(output, one) for line, output, one in zip(lines, place, tap, strict=True))
                if all(0 <= one < size for one, size in zip(at, x.shape, strict=False)):
                    found[place] += x[at] @ kernel[tap]
        return found

    return activated(activation, sums(""), sums("gate_") if "gate_kernel" in weights else None)


def batch_norm(
    weights: Weights, x: np.ndarray, mean: np.ndarray, variance: np.ndarray, *, momentum: float, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training on rows `N F` that all count: the normalized rows and the running mean and (unbiased) variance."""
    y = (x - x.mean(0)) / np.sqrt(x.var(0) + epsilon) * weights["scale"] + weights["bias"]
    kept = 1 - momentum
    return y, kept * mean + momentum * x.mean(0), kept * variance + momentum * x.var(0, ddof=1)
