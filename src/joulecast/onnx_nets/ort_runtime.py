"""ONNX Runtime on this machine's processor: turn a Trial, or a user's ONNX file, into a Step.

It runs inference only. Weights and batches are drawn from a seed that belongs to the trial, so that
two runs build the same graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, helper

from joulecast.onnx_nets.model_file import bind_shapes, list_inputs, list_tensors, parse_model
from joulecast.onnx_nets.net_file import MOST_MODEL_BYTES, OnnxFile
from joulecast.onnx_nets.ort_graph import Array, OnnxGraph
from joulecast.onnx_nets.ort_operators import add_network, draw_weights
from joulecast.onnx_nets.ort_sessions import (
    PROVIDER,
    is_quantised,
    list_integer_kernels,
    open_session,
    open_without_conversions,
    optimise,
    quantise_model,
)
from joulecast.operators import network_work
from joulecast.operators.setup_checks import raise_closed, refuse_trial
from joulecast.records import INT8_PRECISIONS, Device, Setup, Trial
from joulecast.system.errors import (
    FileError,
    InputError,
    JoulecastError,
    NetError,
    OutOfMemoryError,
)
from joulecast.system.files import read_limited

_PRECISIONS = ("fp32", *INT8_PRECISIONS)
# A model without external files is one message of protobuf.
_LARGEST_MODEL_BYTES = 2**31 - 2**20


class OnnxRuntime:
    """ONNX Runtime on a processor: see ``records.runtime.Runtime``."""

    modes: tuple[str, ...] = ("eager",)

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = f"onnxruntime-{onnxruntime.__version__}"

    def prepare(self, trial: Trial) -> OnnxStep:
        """Build a trial's graph and return its checked step."""
        self._check(trial)
        with _explain_errors():
            model, inputs = build_model(trial)
            if _is_isolated(trial):
                return _prepare_isolated(model, inputs, trial.setup)
            # A graph without products, such as an empty one, has nothing to compute in integers.
            has_products = bool(network_work(trial.network, trial.setup).forward.flops)
            return _prepare_model(model, inputs, trial.setup, needs_integers=has_products)

    def prepare_file(self, file: OnnxFile, trial: Trial) -> OnnxStep:
        """Return a checked step that runs a file itself, with inputs drawn for it.

        Raises:
            FileError: The file is damaged, or keeps weights outside of its folder.
            InputError: It is in 8 bits and the setup is not, or the setup cannot be run.
            NetError: ONNX Runtime cannot run it, or its output is not finite.
        """
        self._check(trial)
        model = parse_model(read_limited(file.path, MOST_MODEL_BYTES), str(file.path))
        check_external_files(model, file.path)
        inputs = _draw_for_file(model.graph, file, trial)
        in_int8 = trial.setup.precision in INT8_PRECISIONS
        if is_quantised(model) and not in_int8:
            raise InputError(f"{file.path} computes in 8 bits already: give --precision int8")
        with _explain_errors():
            if in_int8:
                return _prepare_model(onnx.load(file.path), inputs, trial.setup)
            return _check_finite(OnnxStep(open_session(str(file.path), trial.setup), inputs))

    def _check(self, trial: Trial) -> None:
        """Refuse what ONNX Runtime does not do, and what does not fit."""
        setup = trial.setup
        if not trial.network.layers:
            raise NetError("an empty network cannot be run: it has no layers")
        if setup.phase != "inference":
            raise InputError(
                "ONNX Runtime does not train: give --inference, or another device (--on cpu)"
            )
        if setup.precision not in _PRECISIONS:
            raise InputError(
                f"ONNX Runtime has no kernels for {setup.precision} on a processor: give "
                f"{', '.join(_PRECISIONS[:-1])} or {_PRECISIONS[-1]}"
            )
        if setup.processor not in ("", PROVIDER):
            available = ", ".join(onnxruntime.get_available_providers())
            raise InputError(
                f"--on onnx:cpu runs on {PROVIDER}, not on {setup.processor!r} (this build of ONNX "
                f"Runtime has {available}): leave --processor out"
            )
        refuse_trial(trial, self.device, "ONNX Runtime")


class OnnxStep:
    """An inference that has run twice: see ``records.runtime.Step``."""

    def __init__(self, session: Any, inputs: Mapping[str, Array]) -> None:
        self._session = session
        self._binding = session.io_binding()
        # Bound once: they are neither copied nor converted when it runs.
        for name, array in inputs.items():
            self._binding.bind_cpu_input(name, array)
        for output in session.get_outputs():
            self._binding.bind_output(output.name)
        self.run(2)

    def run(self, count: int) -> None:
        """Run ``count`` inferences; each is finished before the next begins."""
        if self._session is None:
            raise_closed()
        for _ in range(count):
            self._session.run_with_iobinding(self._binding)

    def wait(self) -> None:
        """Return at once: inferences are finished when ``run`` returns."""

    def peak_memory_bytes(self) -> int:
        """Return 0: ONNX Runtime does not tell."""
        return 0

    def close(self) -> None:
        """Release the session and its tensors."""
        self._session = self._binding = None

    def read_outputs(self) -> list[Array]:
        """Return the results of the last inference."""
        return [np.asarray(one) for one in self._binding.copy_outputs_to_cpu()]


def build_model(trial: Trial) -> tuple[ModelProto, dict[str, Array]]:
    """Return the graph of a trial and its inputs: copies are side by side in one graph.

    Copies of an isolated layer read one input: inside a network, the layer before has just written
    it, and it is in a cache. Weights are not: each copy has its own. With dynamic scales, copies
    have inputs of their own, because one would be converted to integers once for all of them.
    """
    seed = int(trial.key[:8], 16)
    network, setup = trial.network, trial.setup
    graph, outputs = OnnxGraph(setup.batch), []
    shares_input = _is_isolated(trial) and setup.precision != "int8_dynamic"
    shape, vocabulary = (setup.batch, *network.input.shape), network.input.vocabulary
    for copy in range(trial.execution.copies):
        if copy == 0 or not shares_input:
            x = graph.add_input(f"input_{copy}", shape, bool(vocabulary))
        outputs.append(add_network(graph, network, x, draw_weights(seed + copy)))
        if graph.weights_bytes > _LARGEST_MODEL_BYTES:
            raise NetError(
                "an ONNX graph holds at most 2 GiB of weights: use a smaller network, or give it "
                "as a file with external data (net.onnx)"
            )
    draw = np.random.default_rng(seed)
    inputs: dict[str, Array] = {
        value.name: draw.integers(0, vocabulary, value.shape)
        if vocabulary and value.name.startswith("input")
        else draw.standard_normal(value.shape, dtype="float32")
        for value in graph.inputs
    }
    return graph.make_model(outputs), inputs


def check_external_files(model: ModelProto, path: Path) -> None:
    """Raise FileError for weights that are not in the folder of the model, whatever links say."""
    folder = path.resolve().parent
    entries = [entry for tensor in list_tensors(model) for entry in tensor.external_data]
    for location in {entry.value for entry in entries if entry.key == "location"}:
        found = (folder / location).resolve()
        if not found.is_relative_to(folder):
            raise FileError(f"{path} keeps weights in {location!r}, outside of its folder: not run")
        if not found.is_file():
            raise FileError(f"{path} keeps weights in {location!r}, which is missing: copy it too")


def _is_isolated(trial: Trial) -> bool:
    """Return whether a trial runs a part of a network alone."""
    return trial.execution.upstream == "random"


def _prepare_isolated(model: ModelProto, inputs: Mapping[str, Array], setup: Setup) -> OnnxStep:
    """Return the step of a layer alone, run as inside a network.

    It may have no integer kernel, and its random input may lie outside of what its function is
    defined for.
    """
    if setup.precision in INT8_PRECISIONS:
        model = quantise_model(model, inputs, setup.precision)
    session, draw = open_without_conversions(model, setup), np.random.default_rng(0)
    given = dict(inputs)
    for one in session.get_inputs():
        # Others are in the inner format of a network.
        if one.name not in given and "uint8" in one.type:
            given[one.name] = draw.integers(0, 256, one.shape, dtype="uint8")
        elif one.name not in given:
            given[one.name] = draw.standard_normal(one.shape, dtype="float32")
    return OnnxStep(session, {one.name: given[one.name] for one in session.get_inputs()})


def _prepare_model(
    model: ModelProto, inputs: Mapping[str, Array], setup: Setup, *, needs_integers: bool = True
) -> OnnxStep:
    """Return the checked step of a model, quantised if the setup says so and it is not yet.

    A model in 8 bits that no kernel runs with integers is refused if it ``needs_integers``.
    """
    if setup.precision not in INT8_PRECISIONS:
        return _check_finite(OnnxStep(open_session(model.SerializeToString(), setup), inputs))
    if not is_quantised(model):
        model = quantise_model(model, inputs, setup.precision)
    optimised, session = optimise(model, setup)
    if needs_integers and not list_integer_kernels(optimised):
        raise NetError(
            "ONNX Runtime runs no layer of the network with integers: measure it in fp32, not "
            f"in {setup.precision}"
        )
    return _check_finite(OnnxStep(session, inputs))


def _check_finite(step: OnnxStep) -> OnnxStep:
    for result in step.read_outputs():
        if result.dtype.kind == "f" and not np.isfinite(result).all():
            raise NetError("the network's output is not finite: not measured")
    return step


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Raise one line that says why ONNX Runtime cannot run a graph."""
    try:
        yield
    except JoulecastError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            "inference does not fit into the memory of this machine: use a smaller batch or network"
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise NetError(f"ONNX Runtime cannot run the network: {text}") from error


def _draw_for_file(graph: onnx.GraphProto, file: OnnxFile, trial: Trial) -> dict[str, Array]:
    """Return a batch for every input of a file.

    Tokens are drawn from the vocabulary; masks are ones and other integers zeros, such as the types
    of tokens, because a file does not say which numbers it accepts.
    """
    draw, inputs = np.random.default_rng(0), list_inputs(graph)
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
