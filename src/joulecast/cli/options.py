"""Options that several commands share, alone and in groups that become one record each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from joulecast.budgets import RunLength
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import (
    SHARE,
    JoinedOption,
    NumberType,
    OutputFileType,
    PlotType,
    RepeatedOption,
    ShapeType,
)
from joulecast.cli.output import OutputOptions
from joulecast.features.nets import NetRequest, Shape
from joulecast.features.options import EstimateOptions, MeasureOptions
from joulecast.records import OPTIMIZERS, PRECISIONS, Setup

Function = TypeVar("Function", bound=Callable[..., Any])

_RUNTIME = "joulecast.runtime"


def make_on(help: str) -> Callable[[Function], Function]:
    """Return the options ``--on`` and ``--runtime``; the command gets both as ``on``."""
    device = click.option(
        "--on",
        cls=JoinedOption,
        default=("cpu",),
        show_default=True,
        metavar="DEVICE",
        callback=_join_runtime,
        help=help,
    )
    # Eager, so that it is known when the device is parsed.
    runtime = click.option(
        "--runtime",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_keep_runtime,
        help="Framework of the device: torch, mnn, onnx or a plug-in; `--runtime mnn` is `--on "
        "mnn:cpu`.",
    )
    return lambda function: device(runtime(function))


def _keep_runtime(context: click.Context, param: click.Parameter, value: str | None) -> None:
    context.meta[_RUNTIME] = value


def _join_runtime(context: click.Context, param: click.Parameter, on: str) -> str:
    runtime = context.meta.get(_RUNTIME)
    if runtime is None:
        return on
    # Imported where it is needed, because every command imports this module.
    from joulecast.runtimes import join_runtime

    is_default = context.get_parameter_source("on") is click.core.ParameterSource.DEFAULT
    return join_runtime(runtime, "" if is_default else on)


# ---------------------------------------------------------------------------------------------
# Options

json = click.option("--json", is_flag=True, help="Print the result as JSON.")
out = click.option(
    "--out", type=OutputFileType(), metavar="FILE.json", help="Also write the result as JSON."
)
plot = click.option(
    "--plot", type=PlotType(), metavar="FILE", help="Also plot it: .html, .svg or .png."
)
store = click.option("--store", metavar="PATH", help="The store: a file, or a postgresql:// URL.")
meter = click.option(
    "--meter",
    default="auto",
    show_default=True,
    help="Meter, see `joulecast detect`; nvml+rapl adds up.",
)
rounds = click.option("--rounds", default=3, show_default=True, help="Windows of each measurement.")
warmup = click.option(
    "--warmup",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Steps or inferences before the windows.  [default: until their time settles]",
)
runs = click.option(
    "--runs",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Fewest steps or inferences of a window.  [default: as many as 0.1 s takes]",
)
on = make_on(
    "Device to measure on: cpu, cuda:0, mnn:cpu, onnx:cpu, simulated:7 or http://board:8377."
)
device_name = click.option(
    "--device-name", default="", metavar="NAME", help="Record the device under another name."
)
device = click.option(
    "--device",
    default="",
    help="Device with a profile, or of `joulecast devices`, or a TOML data sheet.  [default: this "
    "machine]",
)
estimator = click.option(
    "--estimator",
    default="auto",
    help="Estimator; subtractive is the paper's, ampere the same to the letter.  [default: "
    "additive; kernel-gp where the runtime fuses]",
)
from_ = click.option(
    "--from",
    "from_",
    cls=RepeatedOption,
    metavar="NAME",
    help="Start from what another device has learnt: its name, or a profile's key or file; several "
    "times for several.",
)
level = click.option(
    "--level", type=SHARE, default="95%", show_default=True, help="Probability of the interval."
)
confidence = click.option(
    "--confidence",
    type=SHARE,
    default="50%",
    show_default=True,
    help="Probability with which the budget is kept.",
)
steps = click.option("--steps", type=click.IntRange(1), help="Steps of the run.")
inferences = click.option(
    "--inferences", type=click.IntRange(1), help="With --inference: inferences of the run."
)
epochs = click.option("--epochs", type=click.IntRange(1), help="Passes over --samples.")
samples = click.option("--samples", type=click.IntRange(1), help="Samples of an epoch.")
grid = click.option("--grid", metavar="400|de", help="Also print CO2e: grams per kWh, or a region.")
price = click.option("--price", metavar="0.30EUR", help="Also print the cost: price per kWh.")
seed = click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
input_shape = click.option(
    "--input", type=ShapeType(), metavar="3x96x96", help="Shape of one sample."
)
loss = click.option(
    "--loss",
    type=click.Choice(("cross_entropy", "mse")),
    default="cross_entropy",
    show_default=True,
    help="Loss function.",
)
threads = click.option("--threads", type=int, default=0, help="CPU threads.  [default: all]")
inference = click.option(
    "--inference", is_flag=True, help="Run the net instead of training it: forward passes alone."
)
processor = click.option(
    "--processor", default="", metavar="NAME", help="Processor of the device, as its runtime says."
)
cuda_graphs = click.option(
    "--cuda-graphs", is_flag=True, help="Capture the step once as a CUDA graph, and replay it."
)
accumulate = click.option(
    "--accumulate",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Batches whose gradients are added up before each update; a step is one update.",
)
compiled = click.option(
    "--compile", "compiled", is_flag=True, help="Compile the net with torch.compile."
)
checkpoint = click.option(
    "--checkpoint",
    is_flag=True,
    help="Put the net's repeated blocks under activation checkpointing.",
)
parallel = click.option(
    "--parallel",
    default="",
    metavar="data",
    help="How --gpus share the work: data, as DistributedDataParallel does.",
)
link_gb_s = click.option(
    "--link-gb-s",
    type=NumberType(0, min_open=True),
    metavar="GB/S",
    help="Bandwidth between --gpus in one direction.  [default: the catalogue's]",
)
_batch = click.option(
    "--batch", type=int, help="Batch size.  [default: the net's own; 1 with --inference]"
)
_optimizer = click.option(
    "--optimizer",
    type=click.Choice(OPTIMIZERS),
    default="sgd",
    show_default=True,
    help="Optimizer.",
)
_precision = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="Number format; int8 needs --inference.",
)

# ---------------------------------------------------------------------------------------------
# Groups of options


def make_request(
    batch: int | None,
    input: Shape | None,
    inference: bool,
    checkpoint: bool = False,
    **setup: Any,
) -> NetRequest:
    """Return a request from the values of options; its net is filled in by ``net_options``."""
    values = {**setup, **choose_phase(inference)}
    if batch is not None:
        values["batch"] = batch
    return NetRequest(None, input_shape=input, setup_options=values, checkpoint=checkpoint)


def choose_phase(inference: bool) -> dict[str, Any]:
    """Return the fields of a Setup that ``--inference`` decides, as it has no optimizer and loss.

    Raises:
        UsageError: An optimizer or a loss was given as well.
    """
    if not inference:
        return {"phase": "train"}
    for name in ("optimizer", "loss"):
        if is_typed(name):
            raise click.UsageError(
                f"--{name} is for training: leave it out with --inference",
                click.get_current_context(),
            )
    default = Setup()
    return {"phase": "inference", "optimizer": default.optimizer, "loss": default.loss}


def make_run_length(
    steps: int | None,
    epochs: int | None,
    samples: int | None,
    inferences: int | None = None,
) -> RunLength:
    """Return the length of a run from the values of options."""
    context = click.get_current_context()
    if inferences is not None:
        if not context.params.get("inference"):
            raise click.UsageError("--inferences needs --inference", context)
        if steps is not None:
            raise click.UsageError("give --inferences or --steps, which mean the same", context)
        steps = inferences
    if (epochs is None) != (samples is None):
        raise click.UsageError("--epochs and --samples belong together", context)
    if epochs is not None and steps is not None:
        given = "--steps" if inferences is None else "--inferences"
        raise click.UsageError(f"give {given}, or --epochs and --samples", context)
    return RunLength(steps, epochs, samples)


@dataclass(frozen=True)
class RunBudget:
    """The text of an energy budget, and the length of the run that it may be for."""

    text: str
    length: RunLength


def make_run_budget(budget: str, **length: Any) -> RunBudget:
    """Return a budget from the values of options."""
    return RunBudget(budget, make_run_length(**length))


def check_gpus(gpus: Any, parallel: str, link_gb_s: float | None) -> None:
    """Raise UsageError for options of several GPUs without their number."""
    for option, value in (("--parallel", parallel), ("--link-gb-s", link_gb_s)):
        if value and gpus is None:
            raise click.UsageError(f"{option} needs --gpus", click.get_current_context())


def net_options(function: Function) -> Function:
    """Add the options that say how a net is trained or run; they come as ``request``."""
    return _add_net_options(function)


def checkpointed_net_options(function: Function) -> Function:
    """Add the same options, and ``--checkpoint``, which changes the net itself."""
    return _add_net_options(function, checkpoint)


def _add_net_options(function: Function, *more: Callable[[Any], Any]) -> Function:
    @functools.wraps(function)
    def fill_net(*args: Any, net: Any, request: NetRequest, **rest: Any) -> Any:
        return function(*args, request=replace(request, net=net), **rest)

    add: Any = collect(
        "request",
        make_request,
        _batch,
        input_shape,
        _optimizer,
        _precision,
        loss,
        accumulate,
        compiled,
        *more,
        threads,
        processor,
        cuda_graphs,
        inference,
    )
    result: Function = add(fill_net)
    return result


measuring = collect("measuring", MeasureOptions, on, meter, rounds, device_name, warmup, runs)
probing = collect("measuring", MeasureOptions, on, meter)
estimating = collect("estimating", EstimateOptions, estimator, level, store)
budget = collect(
    "budget",
    make_run_budget,
    click.option(
        "--budget",
        required=True,
        metavar="50%|5J|2Wh",
        help="A share of the original, or energy of a step or run.",
    ),
    steps,
    inferences,
    epochs,
    samples,
)
run_length = collect("length", make_run_length, steps, inferences, epochs, samples)
output = collect("output", OutputOptions, out, json)
plotted_output = collect("output", OutputOptions, out, plot, json)


def is_typed(name: str) -> bool:
    """Return whether an option was given on the command line, not by settings or default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE
