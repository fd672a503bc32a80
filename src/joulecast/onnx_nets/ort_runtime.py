"""ONNX Runtime on this machine's processor: turn a Trial, or a user's ONNX file, into a Step.

It runs inference only. Weights and batches are drawn from a seed that belongs to the trial, so that
two runs build the same graph.

Between convolutions and pooling, ONNX Runtime keeps images in blocks of channels (NCHWc), and in 8
bits as integers with the channels last. A kernel alone is converted before and after, which inside
a network it is not, and which takes longer than a depthwise convolution itself. Conversions at the
edges of the graph of an isolated layer are therefore removed: its inputs and outputs are in the
inner format.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnxruntime import quantization
from onnxruntime.quantization import QuantType

from joulecast.onnx_nets.model_file import bind_shapes, list_inputs, list_tensors, parse_model
from joulecast.onnx_nets.net_file import MOST_MODEL_BYTES, OnnxFile
from joulecast.onnx_nets.ort_graph import Array, OnnxGraph
from joulecast.onnx_nets.ort_operators import add_network, draw_weights
from joulecast.operators import network_work
from joulecast.operators.setup_checks import count_threads, raise_closed, refuse_trial
from joulecast.records import INT8_PRECISIONS, Device, Setup, Trial
from joulecast.records.runtime import Step
from joulecast.system.errors import (
    FileError,
    InputError,
    JoulecastError,
    NetError,
    OutOfMemoryError,
    arg,
)
from joulecast.system.files import read_limited

PROVIDER = "CPUExecutionProvider"
# The level of messages that are logged: errors, not warnings.
_ERRORS = 3
# It would compute copies of a layer without weights once for all.
_MERGES_COPIES = "CommonSubexpressionElimination"

# For sessions that its tools open: they warn of graphs that they made themselves.
onnxruntime.set_default_logger_severity(_ERRORS)
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
            raise InputError(
                f"{file.path} computes in 8 bits already: give {arg('precision', 'int8')}"
            )
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
                f"ONNX Runtime does not train: give {arg('phase', 'inference')}, or another device "
                f"({arg('on', 'cpu')})"
            )
        if setup.precision not in _PRECISIONS:
            raise InputError(
                f"ONNX Runtime has no kernels for {setup.precision} on a processor: give "
                f"{', '.join(_PRECISIONS[:-1])} or {_PRECISIONS[-1]}"
            )
        if setup.processor not in ("", PROVIDER):
            available = ", ".join(onnxruntime.get_available_providers())
            raise InputError(
                f"onnx:cpu runs on {PROVIDER}, not on {setup.processor!r} (this build of ONNX "
                f"Runtime has {available}): leave {arg('processor')} out"
            )
        refuse_trial(trial, self.device, "ONNX Runtime")


class OnnxStep(Step):
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


# -- sessions -----------------------------------------------------------------------------------


def open_session(
    model: bytes | str,
    setup: Setup,
    optimised: Path | None = None,
    *,
    level: str = "ENABLE_ALL",
    keeps_copies: bool = False,
) -> Any:
    """Return a session of a model, or of the path of its file.

    The graph that is run is written to ``optimised``; with ``keeps_copies``, equal nodes all run.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_threads(setup)
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = _ERRORS
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    disabled = [_MERGES_COPIES] if keeps_copies else None
    return onnxruntime.InferenceSession(
        model, options, providers=[PROVIDER], disabled_optimizers=disabled
    )


def optimise(model: ModelProto, setup: Setup, **options: Any) -> tuple[ModelProto, Any]:
    """Return the graph that ONNX Runtime makes of a model, and the session that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        session = open_session(model.SerializeToString(), setup, path, **options)
        return onnx.load(path), session


# -- kernels alone -----------------------------------------------------------------------------

# With this many channels, blocks of 8 fit and blocks of 16 do not.
_CHANNELS = 24
# Activations are quantised to unsigned bytes.
_INTEGERS = TensorProto.UINT8
_TO_CHANNELS_LAST, _TO_CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def open_without_conversions(model: ModelProto, setup: Setup) -> Any:
    """Return a session of a model, without conversions of its inputs and outputs."""
    optimised, session = optimise(model, setup, keeps_copies=True)
    if not _drop_conversions(optimised.graph, find_block_size()):
        return session
    return open_session(optimised.SerializeToString(), setup, level="DISABLE_ALL")


@lru_cache(maxsize=1)
def find_block_size() -> int:
    """Return how many channels a block has on this processor: 8, or 16 with AVX-512."""
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, _CHANNELS, 8, 8))
    out = x.apply("Conv", np.ones((_CHANNELS, _CHANNELS, 3, 3), dtype="float32"))
    optimised, _ = optimise(graph.make_model([out]), Setup(threads=1))
    sizes = [tensor.dims[0] for tensor in optimised.graph.initializer if len(tensor.dims) == 4]
    return 8 if sizes == [_CHANNELS] else 16


def _drop_conversions(graph: GraphProto, block: int) -> int:
    """Remove the nodes that convert an optimised graph's inputs or outputs; return how many."""
    before = len(graph.node)
    inputs = {value.name: value for value in graph.input}
    first = []
    for node in graph.node:
        value = inputs.get(node.input[0]) if node.input else None
        converted = value and _convert(node, value, block, is_input=True)
        if converted:
            inputs[converted.name] = converted
        else:
            first.append(node)
    outputs = {value.name: value for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(first):
        value = outputs.get(node.output[0])
        converted = value and _convert(node, value, block, is_input=False)
        if converted and not any(node.output[0] in one.input for one in kept):
            del outputs[node.output[0]]
            outputs[converted.name] = converted
        else:
            kept.insert(0, node)
    used = {name for node in kept for name in node.input}
    wanted = [value for name, value in inputs.items() if name in used]
    found = ((graph.node, kept), (graph.input, wanted), (graph.output, [*outputs.values()]))
    for field, values in found:
        del field[:]
        field.extend(values)
    return before - len(kept)


def _convert(
    node: NodeProto, value: ValueInfoProto, block: int, *, is_input: bool
) -> ValueInfoProto | None:
    """Return what takes the place of a converted input or output; None if it is not converted."""
    shape = [size.dim_value for size in value.type.tensor_type.shape.dim]
    kind, name = _INTEGERS, node.output[0] if is_input else node.input[0]
    orders = [list(one.ints) for one in node.attribute if one.name == "perm"]
    order = _TO_CHANNELS_LAST if is_input else _TO_CHANNELS_FIRST
    if node.op_type == ("ReorderInput" if is_input else "ReorderOutput"):
        kind, shape[1] = TensorProto.FLOAT, -(-shape[1] // block) * block
    elif node.op_type == "Transpose" and value.type.tensor_type.elem_type == _INTEGERS:
        if orders != [order]:
            return None
        shape = [shape[axis] for axis in _TO_CHANNELS_LAST]
    elif node.op_type != ("QuantizeLinear" if is_input else "DequantizeLinear"):
        return None
    return helper.make_tensor_value_info(name, kind, shape)


# -- 8 bits ------------------------------------------------------------------------------------

_CONVOLUTIONS = ["Conv"]
_INTEGER_OPS = ("QLinear", "QGemm", "ConvInteger", "MatMulInteger", "DynamicQuantize")
# A kernel that only converts floats to integers.
_CONVERSION = "DynamicQuantizeLinear"


def quantise_model(model: ModelProto, inputs: Mapping[str, Array], precision: str) -> ModelProto:
    """Return a model in fp32 as one that computes in 8 bits.

    In ``int8``, scales of activations are fixed before it runs, calibrated on ``inputs``; in
    ``int8_dynamic`` each run computes them.
    """
    from onnxruntime.quantization.registry import CommonOpsRegistry, IntegerOpsRegistry

    # Norms become part of convolutions; otherwise they stay in fp32 between quantised ones.
    folded, _ = optimise(model, Setup(threads=1), level="ENABLE_BASIC")
    with tempfile.TemporaryDirectory() as name, _hide_advice():
        plain, first, out = (Path(name) / f"{one}.onnx" for one in ("plain", "first", "int8"))
        onnx.save(onnx.shape_inference.infer_shapes(folded), plain)
        if precision == "int8":
            batches = iter([dict(inputs)])
            # Ranges are reduced: sums of two full products overflow on processors without VNNI.
            quantization.quantize_static(
                plain, out, SimpleNamespace(get_next=lambda: next(batches, None)),
                quant_format=quantization.QuantFormat.QDQ, per_channel=True, reduce_range=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            )  # fmt: skip
        else:
            # In ConvInteger, signed weights take three times as long as unsigned ones; in products
            # they take less than half as long.
            others = sorted({*CommonOpsRegistry, *IntegerOpsRegistry} - {*_CONVOLUTIONS})
            dynamic = quantization.quantize_dynamic
            dynamic(plain, first, _CONVOLUTIONS, weight_type=QuantType.QUInt8)
            dynamic(first, out, others, weight_type=QuantType.QInt8, reduce_range=True)
        return onnx.load(out)


def is_quantised(model: ModelProto) -> bool:
    """Return whether a model computes in 8 bits already."""
    names = (*_INTEGER_OPS, "DequantizeLinear")
    return any(node.op_type.startswith(names) for node in model.graph.node)


def list_integer_kernels(optimised: ModelProto) -> list[str]:
    """Return the kernels of a graph that compute with integers, as ONNX Runtime optimised it."""
    kernels = [node.op_type for node in optimised.graph.node]
    return [one for one in kernels if one.startswith(_INTEGER_OPS) and one != _CONVERSION]


@contextmanager
def _hide_advice() -> Iterator[None]:
    """Drop what ONNX Runtime's quantiser logs: advice to prepare the model, which is done."""

    def is_own(record: logging.LogRecord) -> bool:
        return "onnxruntime" not in record.pathname

    logger = logging.getLogger()
    logger.addFilter(is_own)
    try:
        yield
    finally:
        logger.removeFilter(is_own)
