"""Say which operators can be rebuilt, so that reading what was built gives the same operators."""

from __future__ import annotations

from joulecast.kinds import find_kind
from joulecast.records import Op

BUILDABLE_FUNCTIONS = frozenset(
    {
        *("relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "selu"),
        *("hardswish", "hardsigmoid", "softplus", "mish", "hardtanh", "neg", "cumsum", "copy"),
        *("add", "mul", "softmax", "log_softmax"),
    }
)
"""Functions of one input."""

DECOMPOSED_FUNCTIONS = frozenset({"newgeluactivation", "quickgeluactivation"})
"""Activations that several elementary operators compute."""

# Function and number of inputs.
_COMBINATIONS = {("mean", 1), ("add", 2), ("mul", 2), ("concat", 1)}
# What is built for them moves as many elements by index as the module does, not the same ones.
_PLACEHOLDER_KINDS = {"index", "scatter", "sort", "slice", "gradient_copy", "grouped_linear"}


def can_build_op(op: Op) -> bool:
    """Return whether the module built for an operator reads back as the same operator."""
    if op.kind in _PLACEHOLDER_KINDS:
        return False
    if not find_kind(op.kind).combines_inputs:
        return bool(op.sizes.get("bags", 1) == 1)
    fn, inputs = op.sizes["fn"], op.sizes["inputs"]
    is_decomposed = fn in DECOMPOSED_FUNCTIONS
    is_plain = not op.sizes["params"] and "out" not in op.sizes and "constant" not in op.sizes
    if not is_plain or is_decomposed or op.sizes["passes"] > 1:
        return is_plain and is_decomposed and inputs == 1
    is_known = (fn, inputs) in _COMBINATIONS or (inputs == 1 and fn in BUILDABLE_FUNCTIONS)
    return is_known and bool(op.sizes["axes"]) == (fn == "mean")
