"""ONNX Runtime on this machine's processor: turn a Trial, or a user's ONNX file, into a Step.

It runs inference only. Weights and batches are drawn from a seed that belongs to the trial, so that
two runs build the same graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto

from joulecast.onnx_nets.ort_graph import Array, OnnxGraph
from joulecast.onnx_nets.ort_operators import add_network, draw_weights
from joulecast.onnx_nets.ort_sessions import (
    PROVIDER,
    is_quantised,
    list_integer_kernels,
    open_session,
    open_without_conversions,
    quantise_model,
)
from joulecast.operators import network_work, peak_memory
from joulecast.operators.setup_checks import refuse_cuda_graphs, refuse_torch_options
from joulecast.records import INT8_PRECISIONS, Device, Network, Setup, Trial
from joulecast.system.errors import InputError, JoulecastError, NetError, OutOfMemoryError

RUNNABLE_STAGES = ("step", "forward")

_PRECISIONS = ("fp32", *INT8_PRECISIONS)
# A model without external files is one message of protobuf.
_LARGEST_MODEL_BYTES = 2**31 - 2**20


class OnnxRuntime:
    """ONNX Runtime on a processor: see ``runtimes.base.Runtime``.

    Args:
        device: Name and properties of the processor, stored with every observation.
    """

    modes: tuple[str, ...] = ("eager",)

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = f"onnxruntime-{onnxruntime.__version__}"

    def prepare(self, trial: Trial) -> OnnxStep:
        """Build a trial's graph and return its checked step."""
        check_trial(trial)
        self.check_memory(trial)
        with explain_errors():
            model, inputs = build_model(trial)
            if is_isolated(trial):
                return prepare_isolated(model, inputs, trial.setup)
            # A graph without products, such as an empty one, has nothing to compute in integers.
            has_products = bool(network_work(trial.network, trial.setup).forward.flops)
            return prepare_model(model, inputs, trial.setup, needs_integers=has_products)

    def check_memory(self, trial: Trial) -> None:
        """Raise OutOfMemoryError for a trial that does not fit."""
        needed = peak_memory(trial.network, trial.setup) * trial.execution.copies
        limit = self.device.memory_bytes
        if limit and needed > limit:
            raise OutOfMemoryError(
                f"inference needs {needed / 2**20:.0f} MiB but {self.device.name} has "
                f"{limit / 2**20:.0f} MiB: use a smaller batch or a narrower network"
            )


class OnnxStep:
    """An inference that has run twice: see ``runtimes.base.Step``."""

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
            raise InputError("this step is closed: prepare it again")
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


def check_trial(trial: Trial) -> None:
    """Refuse what ONNX Runtime does not do.

    Raises:
        InputError: It is training, or in a precision, mode, stage or processor that is missing.
        NetError: The network is empty.
    """
    setup, execution = trial.setup, trial.execution
    if not trial.network.layers:
        raise NetError("an empty network cannot be run: it has no layers")
    if setup.phase != "inference":
        raise InputError(
            "ONNX Runtime does not train: give --inference, or another device (--on cpu)"
        )
    if execution.stage not in RUNNABLE_STAGES:
        raise InputError(
            f"inference has no stage {execution.stage!r}: use {' or '.join(RUNNABLE_STAGES)}"
        )
    refuse_cuda_graphs(setup, "ONNX Runtime on a processor")
    refuse_torch_options(setup, trial.network, "ONNX Runtime")
    if execution.mode != "eager":
        raise InputError(f"ONNX Runtime cannot run the mode {execution.mode}: use eager")
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


def build_model(trial: Trial) -> tuple[ModelProto, dict[str, Array]]:
    """Return the graph of a trial and its inputs: copies are side by side in one graph.

    Copies of an isolated layer read one input: inside a network, the layer before has just written
    it, and it is in a cache. Weights are not: each copy has its own. With dynamic scales, copies
    have inputs of their own, because one would be converted to integers once for all of them.
    """
    seed = int(trial.key[:8], 16)
    network, setup = trial.network, trial.setup
    graph, outputs = OnnxGraph(setup.batch), []
    shares_input = is_isolated(trial) and setup.precision != "int8_dynamic"
    shape, is_tokens = (setup.batch, *network.input.shape), bool(network.input.vocabulary)
    for copy in range(trial.execution.copies):
        if copy == 0 or not shares_input:
            x = graph.add_input(f"input_{copy}", shape, is_tokens)
        outputs.append(add_network(graph, network, x, draw_weights(seed + copy)))
        if graph.weights_bytes > _LARGEST_MODEL_BYTES:
            raise NetError(
                "an ONNX graph holds at most 2 GiB of weights: use a smaller network, or give it "
                "as a file with external data (net.onnx)"
            )
    return graph.make_model(outputs), _draw_inputs(graph, network, seed)


def is_isolated(trial: Trial) -> bool:
    """Return whether a trial runs a part of a network alone."""
    return trial.execution.upstream == "random"


def prepare_isolated(model: ModelProto, inputs: Mapping[str, Array], setup: Setup) -> OnnxStep:
    """Return the step of a layer alone, run as inside a network.

    It may have no integer kernel, and its random input may lie outside of what its function is
    defined for.
    """
    if setup.precision in INT8_PRECISIONS:
        model = quantise_model(model, inputs, setup.precision)
    session = open_without_conversions(model, setup)
    draw = np.random.default_rng(0)
    return OnnxStep(
        session,
        {
            one.name: _draw_converted(one, draw) if one.name not in inputs else inputs[one.name]
            for one in session.get_inputs()
        },
    )


def prepare_model(
    model: ModelProto, inputs: Mapping[str, Array], setup: Setup, *, needs_integers: bool = True
) -> OnnxStep:
    """Return the checked step of a model, in 8 bits if the setup says so.

    Args:
        model: The model, in fp32 or quantised.
        inputs: What it is run on.
        setup: How it is run.
        needs_integers: Refuse a model in 8 bits that no kernel runs with integers.

    Raises:
        NetError: Its output is not finite, or it has no integer kernels.
    """
    if setup.precision not in INT8_PRECISIONS:
        session = open_session(model.SerializeToString(), setup)
        return check_finite(OnnxStep(session, inputs))
    if not is_quantised(model):
        model = quantise_model(model, inputs, setup.precision)
    with tempfile.TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"
        session = open_session(model.SerializeToString(), setup, optimised)
        if needs_integers and not list_integer_kernels(optimised):
            raise NetError(
                "ONNX Runtime runs no layer of the network with integers: measure it in fp32, not "
                f"in {setup.precision}"
            )
    return check_finite(OnnxStep(session, inputs))


def check_finite(step: OnnxStep) -> OnnxStep:
    """Return a step whose results are numbers.

    Raises:
        NetError: One is not.
    """
    for result in step.read_outputs():
        if result.dtype.kind == "f" and not np.isfinite(result).all():
            raise NetError("the network's output is not finite: not measured")
    return step


@contextmanager
def explain_errors() -> Iterator[None]:
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


def _draw_converted(value: Any, draw: np.random.Generator) -> Array:
    """Return numbers for an input that is in the inner format of a network."""
    is_integer = "uint8" in value.type
    drawn: Array = (
        draw.integers(0, 256, value.shape, dtype="uint8")
        if is_integer
        else draw.standard_normal(value.shape, dtype="float32")
    )
    return drawn


def _draw_inputs(graph: OnnxGraph, network: Network, seed: int) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    vocabulary = network.input.vocabulary
    return {
        value.name: draw.integers(0, vocabulary, value.shape)
        if vocabulary and value.name.startswith("input")
        else draw.standard_normal(value.shape, dtype="float32")
        for value in graph.inputs
    }
