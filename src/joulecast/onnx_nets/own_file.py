"""Run a user's own ONNX file, and not a graph that is built from its network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.records import INT8_PRECISIONS, Trial
from joulecast.records.runtime import Step
from joulecast.system.errors import FileError, InputError, NetError
from joulecast.system.files import read_limited

if TYPE_CHECKING:
    import onnx

    from joulecast.onnx_nets.ort_graph import Array
    from joulecast.onnx_nets.ort_runtime import OnnxRuntime

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file, as a user's own net.

    Attributes:
        path: The file; weights that it keeps elsewhere are in its folder.
        sample: Shape of one sample, where the file leaves it open.
        loss: It has none.
    """

    path: Path
    sample: Shape | None = None
    loss: None = None

    def prepare(self, runtime: Any, trial: Trial) -> Step:
        """Return the file as a checked step of ONNX Runtime."""
        return prepare_file(runtime, self, trial)


def prepare_file(runtime: OnnxRuntime, file: OnnxFile, trial: Trial) -> Step:
    """Return a checked step that runs a file with inputs drawn for it.

    Raises:
        FileError: The file is damaged, or keeps weights outside of its folder.
        InputError: It is in 8 bits and the setup is not, or the setup cannot be run.
        NetError: ONNX Runtime cannot run it, or its output is not finite.
    """
    # The network is read without NumPy and without ONNX Runtime.
    from joulecast.onnx_nets.model_file import parse_model
    from joulecast.onnx_nets.net_file import MOST_MODEL_BYTES
    from joulecast.onnx_nets.ort_runtime import (
        OnnxStep,
        check_finite,
        check_trial,
        explain_errors,
        prepare_model,
    )
    from joulecast.onnx_nets.ort_sessions import is_quantised, open_session

    check_trial(trial)
    runtime.check_memory(trial)
    model = parse_model(read_limited(file.path, MOST_MODEL_BYTES), str(file.path))
    check_external_files(model, file.path)
    inputs = _draw_inputs(model.graph, file, trial)
    in_int8 = trial.setup.precision in INT8_PRECISIONS
    if is_quantised(model) and not in_int8:
        raise InputError(f"{file.path} computes in 8 bits already: give --precision int8")
    with explain_errors():
        if in_int8:
            return prepare_model(_load_weights(file.path), inputs, trial.setup)
        return check_finite(OnnxStep(open_session(str(file.path), trial.setup), inputs))


def check_external_files(model: onnx.ModelProto, path: Path) -> None:
    """Check that weights in other files are in the folder of the model, whatever links say.

    Raises:
        FileError: One is missing, or elsewhere.
    """
    from joulecast.onnx_nets.model_file import list_tensors

    folder = path.resolve().parent
    entries = [entry for tensor in list_tensors(model) for entry in tensor.external_data]
    for location in {entry.value for entry in entries if entry.key == "location"}:
        found = (folder / location).resolve()
        if not found.is_relative_to(folder):
            raise FileError(f"{path} keeps weights in {location!r}, outside of its folder: not run")
        if not found.is_file():
            raise FileError(f"{path} keeps weights in {location!r}, which is missing: copy it too")


def _load_weights(path: Path) -> onnx.ModelProto:
    import onnx

    return onnx.load(path)


def _draw_inputs(graph: onnx.GraphProto, file: OnnxFile, trial: Trial) -> dict[str, Array]:
    """Return a batch for every input.

    Tokens are drawn from the vocabulary; masks are ones and other integers zeros, such as the types
    of tokens, because a file does not say which numbers it accepts.
    """
    import numpy as np
    from onnx import helper

    from joulecast.onnx_nets.model_file import bind_shapes, list_inputs

    draw = np.random.default_rng(0)
    inputs = list_inputs(graph)
    shapes, _ = bind_shapes(inputs, trial.setup.batch, file.sample)
    vocabulary = trial.network.input.vocabulary
    arrays: dict[str, Array] = {}
    for place, (one, shape) in enumerate(zip(inputs, shapes, strict=True)):
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(one.type))
        if dtype.kind == "f":
            arrays[one.name] = draw.standard_normal(shape).astype(dtype)
        elif dtype.kind not in "iub":
            raise NetError(f"its input {one.name!r} holds neither numbers nor truth values")
        elif place == 0 and vocabulary:
            arrays[one.name] = draw.integers(0, vocabulary, shape).astype(dtype)
        else:
            fill = np.ones if "mask" in one.name or dtype.kind == "b" else np.zeros
            arrays[one.name] = fill(shape, dtype)
    return arrays
