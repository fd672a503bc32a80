"""Open sessions of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from joulecast.records import Setup
from joulecast.runtimes.thread_counts import count_threads

PROVIDER = "CPUExecutionProvider"
# The level of messages that are logged: errors, not warnings.
_ERRORS = 3
# It would compute copies of a layer without weights once for all.
_MERGES_COPIES = "CommonSubexpressionElimination"

# For sessions that its tools open: they warn of graphs that they made themselves.
onnxruntime.set_default_logger_severity(_ERRORS)


def open_session(
    model: bytes | str,
    setup: Setup,
    optimised: Path | None = None,
    *,
    is_optimised: bool = False,
    keeps_copies: bool = False,
) -> Any:
    """Return a session.

    Args:
        model: A model, or the path of its file.
        setup: Threads to run it with.
        optimised: A file to write the graph to that is run.
        is_optimised: The model is a graph that ONNX Runtime optimised: it is run as it is.
        keeps_copies: Equal nodes are all run.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_threads(setup)
    options.inter_op_num_threads = 1
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if is_optimised else levels.ORT_ENABLE_ALL
    )
    options.log_severity_level = _ERRORS
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    disabled = [_MERGES_COPIES] if keeps_copies else None
    return onnxruntime.InferenceSession(
        model, options, providers=[PROVIDER], disabled_optimizers=disabled
    )
