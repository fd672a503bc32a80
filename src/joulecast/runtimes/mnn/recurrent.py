"""Build an LSTM from matrix products, one step of time after another: MNN cannot train its own."""

from __future__ import annotations

from collections.abc import Callable

from joulecast.records import Sizes
from joulecast.runtimes.mnn.engine import ENGINE, Var, make_filled, to_plain
from joulecast.runtimes.mnn.weights import Weights


def build_lstm(sizes: Sizes, weights: Weights) -> Callable[[Var], Var]:
    """Return the function from a sequence to the hidden states of the last of ``depth`` layers."""
    tokens, hidden, depth = sizes["tokens"], sizes["hidden"], sizes["depth"]
    widths = [sizes["cin"], *[hidden] * (depth - 1)]
    layers = [_draw_layer(width, hidden, bool(sizes["bias"]), weights) for width in widths]

    def run(x: Var) -> Var:
        batch = x.shape[0]
        x = to_plain(x, (tokens, sizes["cin"]))
        for layer in layers:
            x = _run_layer(x, layer, (batch, tokens, hidden))
        return x

    return run


def _draw_layer(
    width: int, hidden: int, has_bias: bool, weights: Weights
) -> tuple[Var, Var, Var | None]:
    # PyTorch adds two biases; one has the same effect.
    return (
        weights.draw("input_weight", [4 * hidden, width], hidden),
        weights.draw("hidden_weight", [4 * hidden, hidden], hidden),
        weights.draw("bias", [1, 4 * hidden], hidden) if has_bias else None,
    )


def _run_layer(x: Var, layer: tuple[Var, Var, Var | None], shape: tuple[int, int, int]) -> Var:
    """Return the hidden states of one layer; the products with its input are made at once."""
    batch, tokens, hidden = shape
    input_weight, hidden_weight, bias = layer
    rows = ENGINE.reshape(ENGINE.transpose(x, [1, 0, 2]), [tokens * batch, -1])
    rows = ENGINE.matmul(rows, input_weight, False, True)
    rows = rows if bias is None else rows + bias
    state = cell = make_filled(0.0, [batch, hidden])
    states = []
    for gates in ENGINE.split(rows, [batch] * tokens, 0):
        state, cell = _run_cell(gates + ENGINE.matmul(state, hidden_weight, False, True), cell)
        states.append(ENGINE.reshape(state, [batch, 1, hidden]))
    return ENGINE.concat(states, 1)


def _run_cell(gates: Var, cell: Var) -> tuple[Var, Var]:
    hidden = gates.shape[1] // 4
    opened, kept, new, shown = ENGINE.split(gates, [hidden] * 4, 1)
    cell = ENGINE.sigmoid(kept) * cell + ENGINE.sigmoid(opened) * ENGINE.tanh(new)
    return ENGINE.sigmoid(shown) * ENGINE.tanh(cell), cell
